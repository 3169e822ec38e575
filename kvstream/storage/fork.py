"""What a forked child may not do with a store that its parent opened.

The child shares the parent's file descriptors but none of its threads: a write would land in the
parent's log, and closing RocksDB would wait for threads that do not exist. So the child's copy of
every open part is told, once, at the fork; no call has to compare process ids.
"""

import contextlib
import ctypes
import os
import weakref
from typing import Any, NoReturn, Protocol

from kvstream.errors import StoreClosed


class Forked(Protocol):
    """A part of an open store that must not be used in a forked child."""

    def refuse_after_fork(self) -> None:
        """Make every further use in this process, the child, fail."""
        ...


class Gone:
    """Stands where a closed handle was: whatever is asked of it raises StoreClosed."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        raise StoreClosed(self._reason)

    def __call__(self, *_: object) -> NoReturn:
        raise StoreClosed(self._reason)


FORKED = "the store was opened before a fork: the child must open a store of its own"

_open_parts: "weakref.WeakSet[Any]" = weakref.WeakSet()


def register(part: Forked) -> None:
    """Tell ``part`` in a child, should this process fork; held weakly."""
    _open_parts.add(part)


def unregister(part: Forked) -> None:
    """Forget a part that has been closed."""
    _open_parts.discard(part)


def leak(handle: object) -> None:
    """Keep ``handle`` from ever being destroyed in this process.

    The interpreter of the child would otherwise close RocksDB when it exits, and hang.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def _refuse_in_child() -> None:
    parts = list(_open_parts)
    for part in parts:
        part.refuse_after_fork()
    _open_parts.clear()
    if parts:
        _skip_exit_handlers()


def _skip_exit_handlers() -> None:
    """Let this process end without RocksDB's exit handler, which joins threads it does not have.

    What is registered last runs first: ``_exit`` itself, which takes the exit code. The interpreter
    has run its own handlers and flushed its files by then.
    """
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # glibc has on_exit(), others do not
        libc.on_exit(libc._exit, None)


os.register_at_fork(after_in_child=_refuse_in_child)
