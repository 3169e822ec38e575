"""The compiled writer and reader of tables, and what proves them, each where it is installed.

Else RocksDB's own writer and reader do the work.
"""

import os

from kvstream.layout.compiled import PURE_VARIABLE

_pure = os.environ.get(PURE_VARIABLE) == "1"

try:
    if _pure:
        raise ImportError(f"{PURE_VARIABLE} is set")
    from kvstream.storage import _tables as twins
except ImportError:
    twins = None  # type: ignore[assignment]

try:
    if twins is None:
        raise ImportError("what it compares with cannot be written")
    from kvstream.storage import _proofs as proofs
except ImportError:
    proofs = None  # type: ignore[assignment]

try:
    if twins is None:
        raise ImportError("none of them is wanted, or can be had")
    from kvstream.storage import _reading as reading
except ImportError:
    reading = None  # type: ignore[assignment]

__all__ = ["proofs", "reading", "twins"]
