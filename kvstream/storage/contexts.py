"""``with`` blocks that an interrupt cannot leave without their end.

A signal handler that raises, as that of Ctrl-C does, may run between the last line of a block and
the first line of an ``__exit__`` that is written in Python. The end of the block is then never run:
a transaction keeps the lock of its store until somebody drops the exception. The compiled twin is
entered and left in C, where Python runs no handler. An interrupt then arrives inside the generator,
whose own ``try`` and ``with`` statements end the block.

Without the compiled twin this is ``contextlib.contextmanager``, with that gap of some nanoseconds.
From Python 3.14 on there is one after ``__enter__``, for every ``with`` statement.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from kvstream.layout import import_compiled

P = ParamSpec("P")
T = TypeVar("T")

_twin: Any = import_compiled("kvstream.storage._contexts")


def contextmanager(
    function: Callable[P, Iterator[T]],
) -> Callable[P, AbstractContextManager[T]]:
    """Make a function that yields once into one that returns the context of a ``with`` block."""
    if _twin is None:
        return contextlib.contextmanager(function)
    context: Callable[[Iterator[T]], AbstractContextManager[T]] = _twin.Context

    @wraps(function)
    def begin(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return context(function(*args, **kwargs))

    return begin
