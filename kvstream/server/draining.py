"""The orderly end of a server: what has come is answered, what was answered is durable.

Nothing more is read. Requests that have come are run; jobs come to their end; everything is made
durable. Who waits for a key waits no more, and hears it from the end of the connection as with
Redis: clients connect anew then, and ask again. Replies go out; whoever does not read them in time
is cut off.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from kvstream.server.executor import Executor

PAUSE_S = 0.005
"""Between two looks at whether something has come to its end."""
SYNC_S = 5.0
"""Time that the disk gets, however late it is: it is what was promised."""
LAST_S = 1.0
"""Time in which connections that were cut off are forgotten: one round of the loop will do."""


class Ending(NamedTuple):
    """What a server has come to."""

    undurable: str
    """Why not all that was written is known to be on disk; empty: it is."""
    idle: bool
    """No save, no compaction and no bulk load is left at work."""


async def drain(executor: Executor, seconds: float) -> Ending:
    """End all clients within a time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    executor.limits.held.clear()  # nobody is to be read again
    for client in executor.clients.values():
        client.pause()
    await _until(lambda: not _has_work(executor), until)
    saving = executor.saving
    idle = await _until(lambda: not (saving.is_busy or executor.loads.is_busy), until)
    sync = saving.start_sync()
    await _until(
        lambda: not (sync.is_alive or executor.is_answering), max(until, loop.time() + SYNC_S)
    )
    await asyncio.sleep(0)  # what the threads have posted comes first
    for client in list(executor.blocked):
        executor.drop(client)
    for client in list(executor.clients.values()):
        client.close()
    await _until(lambda: not executor.clients, until)
    for client in list(executor.clients.values()):
        client.abort()
    await _until(lambda: not executor.clients, until + LAST_S)
    undurable = str(sync.error or "") if sync.done else "the disk did not take all in time"
    return Ending(undurable, idle)


def _has_work(executor: Executor) -> bool:
    """Run and write what can be now, and return whether there is more."""
    paging = executor.paging
    return executor.run() or paging.write() or executor.pending or bool(paging.under_way)


async def _until(holds: Callable[[], bool], until: float) -> bool:
    """Wait until something holds, or for so long; return whether it does."""
    loop = asyncio.get_running_loop()
    while not holds():
        if loop.time() >= until:
            return False
        await asyncio.sleep(PAUSE_S)
    return True
