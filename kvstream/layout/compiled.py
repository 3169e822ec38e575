"""The compiled twins of the functions that every entry goes through, where they are installed.

They are built with the package where there is a C compiler. Without them, or with KVSTREAM_PURE=1
in the environment, the Python functions beside each use do all the work, with the same results.
"""

import os

PURE_VARIABLE = "KVSTREAM_PURE"

try:
    if os.environ.get(PURE_VARIABLE) == "1":
        raise ImportError(f"{PURE_VARIABLE} is set")
    from kvstream.layout import _compiled as twins
except ImportError:
    twins = None  # type: ignore[assignment]

__all__ = ["twins"]
