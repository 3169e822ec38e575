"""The compiled twins of what every node of a stream goes through, where they are installed.

As with those of kvstream/layout: without them the Python functions do all the work, with the same
results.
"""

import os

from kvstream.layout.compiled import PURE_VARIABLE

try:
    if os.environ.get(PURE_VARIABLE) == "1":
        raise ImportError(f"{PURE_VARIABLE} is set")
    from kvstream.rdb import _compiled as twins
except ImportError:
    twins = None  # type: ignore[assignment]

__all__ = ["twins"]
