"""The bytes of every row: pure functions, no I/O; and the compiled twins of functions.

A twin is a function of a Cython module that does what a Python function does, only faster. It
handles plain input and returns None for all other input, damage included: then the Python function
beside its use does the work. The same tests run on both. Without a C compiler, or with
KVSTREAM_PURE=1 in the environment, the Python functions do all the work.
"""

import functools
import os
from importlib import import_module
from pathlib import Path
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


@functools.cache
def compiled_state() -> str:
    """Return whether compiled code runs: yes, no, or which modules of it are missing."""
    package = Path(__file__).parents[1]
    names = [f"kvstream.{path.parent.name}.{path.stem}" for path in package.glob("*/_*.pyx")]
    missing = sorted(name for name in names if import_compiled(name) is None)
    if not missing:
        return "yes"
    return "no" if len(missing) == len(names) else f"not {', '.join(missing)}"


if TYPE_CHECKING:
    from kvstream.layout import _compiled as twins
else:
    twins = import_compiled("kvstream.layout._compiled")

__all__ = ["PURE_VARIABLE", "compiled_state", "import_compiled", "twins"]
