"""The compiled writer of tables, where it is installed; else RocksDB's own does the work."""

import os

from kvstream.layout.compiled import PURE_VARIABLE

try:
    if os.environ.get(PURE_VARIABLE) == "1":
        raise ImportError(f"{PURE_VARIABLE} is set")
    from kvstream.storage import _tables as twins
except ImportError:
    twins = None  # type: ignore[assignment]

__all__ = ["twins"]
