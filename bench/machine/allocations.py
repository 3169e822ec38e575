"""Counts what a call asks of CPython's allocators.

``sys.getallocatedblocks`` tells what a call has kept, not what it has made and thrown away. So a
small library (``allocations.c``) counts each request to the allocators. It is built where it is
used, with the C compiler that the compiled twins need too. An object from one of Python's free
lists is no request, as it costs no search for memory either.
"""

import ctypes
import gc
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("allocations.c")
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


class CompilerMissing(Exception):
    """There is no C compiler; the message says how to install it."""


class Allocations(NamedTuple):
    """What a call has asked for."""

    made: int
    """Blocks asked for, those that grow or shrink included."""
    kept: int
    """Blocks that are there after the call and were not before it; below 0 if it freed more."""


class AllocationCounter:
    """The library, which counts in one place for the whole process."""

    def __init__(self, folder: Path) -> None:
        """Build the library in a folder. Raises CompilerMissing."""
        if shutil.which("cc") is None:
            raise CompilerMissing("a C compiler (cc) is missing: apt-get install gcc libc6-dev")
        library = folder / "allocations.so"
        subprocess.run(["cc", *FLAGS, "-o", str(library), str(SOURCE)], check=True, timeout=60)
        # PyDLL keeps the GIL, which the allocators need.
        loaded = ctypes.PyDLL(str(library))
        self._begin, self._end = loaded.begin, loaded.end
        self._end.restype = ctypes.c_long
        self._own = Allocations(0, 0)
        self._own = self.count(_nothing)

    def count(self, function: Callable[[], object]) -> Allocations:
        """Call a function; return what it has asked for, without the collector's work."""
        begin, end, own = self._begin, self._end, self._own
        collects = gc.isenabled()
        gc.disable()
        try:
            before = sys.getallocatedblocks()
            begin()
            try:
                function()
            finally:
                made = end()
            kept = sys.getallocatedblocks() - before
        finally:
            if collects:
                gc.enable()
        return Allocations(made - own.made, kept - own.kept)


def _nothing() -> None:
    """Do nothing: what this costs is the counter's own."""
