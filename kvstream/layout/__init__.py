"""The bytes of every row: pure functions, no I/O; and the compiled twins of functions.

A twin is a function of a Cython module that does what a Python function does, only faster. It
handles plain input and returns None for all other input, damage included: then the Python function
beside its use does the work. The same tests run on both. Without a C compiler, or with
KVSTREAM_PURE=1 in the environment, the Python functions do all the work.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

PURE_VARIABLE = "KVSTREAM_PURE"


def import_compiled(name: str) -> Any:
    """Return a compiled module; None if it was not built, or KVSTREAM_PURE=1 forbids it."""
    if os.environ.get(PURE_VARIABLE) == "1":
        return None
    try:
        return import_module(name)
    except ImportError:
        return None


if TYPE_CHECKING:
    from kvstream.layout import _compiled as twins
else:
    twins = import_compiled("kvstream.layout._compiled")

__all__ = ["PURE_VARIABLE", "import_compiled", "twins"]
