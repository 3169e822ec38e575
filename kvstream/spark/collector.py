"""Python's collector of cycles, kept out while rows by the thousand come and go."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep the collector out: it would walk all rows in memory, and rows have no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def pass_over_modules() -> None:
    """Have the collector pass over all that is there by now, once in a process of Spark's.

    Spark has each of its Pythons collect after every task, which walks all that was imported.
    """
    gc.collect()
    gc.freeze()
