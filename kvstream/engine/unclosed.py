"""Release stores that a program has dropped without closing them.

An engine that nothing refers to any more, neither a store nor a stream, group or queue of it, gives
a ResourceWarning and is closed, as files and connections of sqlite3 are. Its own threads refer to
it weakly. The garbage collector may find it in the middle of any call, with any lock held by the
same thread. So ``__del__`` takes no lock, and a new thread closes the engine. A warning may run
code of the program, such as a log handler: inside a call of kvstream it is left to that thread.
"""

import _thread
import atexit
import gc
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

from kvstream.errors import KVStreamError, StoreClosed
from kvstream.storage import directory as directories
from kvstream.types.clock import monotonic

_log = logging.getLogger(__name__)

WAIT_S = 10.0
"""Seconds that an opening, and the end of the process, wait for stores that are being closed."""
_PAUSE_S = 0.002


class Unclosed:
    """Base of engines; an engine sets ``_opened`` once there is something to close."""

    _opened = False
    _closed = False
    _opened_by = 0

    def __del__(self) -> None:
        if self._opened and not self._closed and self._opened_by == os.getpid():
            if sys.is_finalizing():  # everything is durable already: see ``durability``
                return
            warns_here = not _is_in_call()
            _closing.add(self)
            try:
                _thread.start_new_thread(_start, (self, not warns_here))
            except RuntimeError:  # no thread can be made: the store stays open
                _closing.discard(self)
            if warns_here:
                _warn(self)

    def note_opened(self) -> None:
        """Note that this process has to close the engine."""
        self._opened, self._opened_by = True, os.getpid()

    def close(self, discard: bool = False) -> None:
        raise NotImplementedError


_closing: set[Unclosed] = set()
"""Engines that are being closed."""


def _is_in_call() -> bool:
    """Return whether this thread is inside a call of kvstream."""
    frame = sys._getframe(1).f_back  # the caller of __del__: none at the end of a thread
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "kvstream":
            return True
        frame = frame.f_back
    return False


def _warn(engine: Any) -> None:
    warnings.warn(
        f"the store in {engine.place} was not closed: open it in a with block, or call close()",
        ResourceWarning,
        source=engine,
        stacklevel=3,
    )


def _start(engine: Unclosed, warns: bool) -> None:
    """Start a thread that ``threading`` knows; to start it in ``__del__`` could take its lock."""
    args = engine, warns
    try:
        threading.Thread(target=_close, args=args, name="kvstream-closer", daemon=True).start()
    except RuntimeError:  # the process ends, or has too many threads
        _closing.discard(engine)


def _close(engine: Any, warns: bool) -> None:
    try:
        engine.close()
    except KVStreamError as error:
        _log.warning("the store in %s was dropped, and closing it failed: %s", engine.place, error)
    finally:
        _closing.discard(engine)
    if warns:
        _warn(engine)


def weakly(engine: Any, name: str) -> Callable[..., Any]:
    """Return a function that calls a method of an engine; StoreClosed once the engine is gone."""
    reference = weakref.ref(engine)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = reference()
        if found is None:
            raise StoreClosed
        return getattr(found, name)(*args, **kwargs)

    return call


def _wait() -> None:
    """Wait until all dropped stores are closed."""
    until = monotonic() + WAIT_S
    while _closing and monotonic() < until:
        sleep(_PAUSE_S)


def _free(path: Path) -> None:
    """Free a directory that a dropped store of this process, perhaps in a cycle, has locked."""
    holders = directories.holders_of(path)
    if os.getpid() in holders or not holders:  # nobody knows whose the lock is
        gc.collect()
        _wait()


directories.last_resorts.append(_free)
atexit.register(_wait)
os.register_at_fork(after_in_child=_closing.clear)
