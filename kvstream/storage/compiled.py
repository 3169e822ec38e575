"""The compiled writer of tables, and what looks into them, where they are installed.

Else RocksDB's own writer and reader do the work.
"""

import os

from kvstream.layout.compiled import PURE_VARIABLE

try:
    if os.environ.get(PURE_VARIABLE) == "1":
        raise ImportError(f"{PURE_VARIABLE} is set")
    from kvstream.storage import _proofs as proofs
    from kvstream.storage import _tables as twins
except ImportError:
    twins = proofs = None  # type: ignore[assignment]

__all__ = ["proofs", "twins"]
