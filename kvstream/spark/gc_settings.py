"""Settings of the garbage collector in Spark's processes: it would walk rows in vain."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def without_gc() -> Iterator[None]:
    """Switch garbage collection off: it would walk all rows in memory, which have no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def freeze_modules() -> None:
    """Exempt all objects of this moment from garbage collection, once in a process of Spark's.

    Spark collects garbage after every task, which would walk all imported modules.
    """
    gc.collect()
    gc.freeze()
