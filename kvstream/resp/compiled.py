"""The compiled twins of the wire protocol, where they are installed and not refused.

As with those of kvstream.layout.compiled, the Python functions beside each use do the same.
"""

import os

from kvstream.layout.compiled import PURE_VARIABLE

try:
    if os.environ.get(PURE_VARIABLE) == "1":
        raise ImportError(f"{PURE_VARIABLE} is set")
    from kvstream.resp import _wire as twins
except ImportError:
    twins = None  # type: ignore[assignment]

__all__ = ["twins"]
