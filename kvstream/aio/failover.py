"""A store whose primary the Sentinels name, for the tasks of one event loop.

It asks the Sentinels over connections of the loop: nothing here blocks its thread.
"""

from collections.abc import Callable
from typing import Any

from kvstream.aio.engines import LoopRemoteEngine, OfTask, RemoteCalls, TaskLock, pause
from kvstream.remote.failover import FailoverEngine


class LoopFailoverEngine(RemoteCalls, FailoverEngine):
    """The present primary of a name, as the tasks of one event loop see it."""

    server_type = LoopRemoteEngine
    sleep = staticmethod(pause)
    _new_lock: Callable[[], Any] = staticmethod(TaskLock)
    _new_local: Callable[[], Any] = OfTask
