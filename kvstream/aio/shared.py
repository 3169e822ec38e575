"""A store that many processes share, for the tasks of one event loop.

The owner's tasks call its engine in the thread of the loop; a thread serves the other processes. A
client's tasks wait for replies on connections of their own. Opening and closing a store as its
owner take long, and are done in a thread.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

from kvstream.aio.engines import (
    TURN_CALLS,
    LoopEngine,
    LoopRemoteEngine,
    OfTask,
    RemoteCalls,
    TaskLock,
    in_greenlet,
    in_thread,
    open_in_thread,
    pause,
    running_task,
    suspends,
    wait,
)
from kvstream.shared.engine import SharedEngine
from kvstream.shared.owner import Owner

P = ParamSpec("P")
T = TypeVar("T")


class LoopSharedEngine(RemoteCalls, SharedEngine):
    """A shared store, as the tasks of one event loop see it."""

    engine_type = LoopEngine
    server_type = LoopRemoteEngine
    sleep = staticmethod(pause)
    _new_lock: Callable[[], Any] = staticmethod(TaskLock)
    _opener: Callable[[], object] = staticmethod(running_task)
    _new_local: Callable[[], Any] = OfTask
    _calls = 0
    """Calls since the last ``sleep(0)``: an owner's calls may never suspend; see LoopEngine."""

    async def task_call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._calls += 1
        if self._calls >= TURN_CALLS:
            self._calls = 0
            await asyncio.sleep(0)
        return await in_greenlet(function, *args, **kwargs)

    async def task_call_long(self, function: Callable[[], T], alone: bool) -> T:
        """Run a function in a thread if this process is the owner, outside of a transaction."""
        if self._owner is None or self._local.server is not None:
            return await in_greenlet(function)
        return await in_thread(function)

    def _own(self) -> Owner:
        """Open the store in a thread; close it again if the task was cancelled meanwhile."""
        if not suspends():
            return super()._own()
        return wait(open_in_thread(super()._own))

    def _disown(self, owner: Owner) -> None:
        if suspends():
            wait(in_thread(owner.close))
        else:
            owner.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store of an event loop cannot be pickled: open it in each process")
