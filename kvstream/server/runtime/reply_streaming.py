"""Long replies under way: written page by page, between turns, to clients that read them.

A client of whom one is under way is held: nothing else of it runs until the reply is whole. What
it is made from lies in a snapshot, which keeps files of the store; so who does not read is cut off
after a time. Sans-IO: whoever owns the sockets calls ``write`` between turns.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from kvstream.commands.replies import Paged
from kvstream.commands.reply_pages import memory_of
from kvstream.errors import KVStreamError
from kvstream.resp.replies import CHUNK, encode_pages
from kvstream.server.runtime.client import Client
from kvstream.server.stats import Statistics

PAGES_S = 0.002
"""Pages are made for so long between two turns."""
AHEAD = CHUNK
"""No page is made for a client that has yet to take more bytes than this."""
IDLE_S = 60.0
"""A client that has taken nothing of a reply for so long is cut off."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Reply:
    """One reply under way."""

    pages: Iterator[bytes]
    command: str
    memory: int
    """Bytes that it took when it began."""
    moved: float
    """When the last page went out."""


class Owner(Protocol):
    """What is needed of the executor."""

    clock: Callable[[], float]
    ready: dict[Client, None]
    statistics: Statistics

    def drop(self, client: Client) -> None: ...


class Paging:
    """The long replies of one server's clients."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.under_way: dict[Client, Reply] = {}

    def begin(self, client: Client, reply: Paged, protocol: int) -> None:
        """Have a reply written; what its client was told before is on its way."""
        pages = encode_pages(reply.reply, protocol)
        held = memory_of(reply)
        self.under_way[client] = Reply(pages, client.last_command, held, self._owner.clock())

    def memory_of(self, client: Client) -> int:
        """Return the bytes that the reply takes which is being written to a client."""
        reply = self.under_way.get(client)
        return 0 if reply is None else reply.memory

    def release(self, client: Client) -> None:
        """Let a client go on whose long reply will not come; as any other it may."""
        if client.paged:
            client.paged = False
            self._owner.ready[client] = None

    def forget(self, client: Client) -> None:
        """Let go of what a client's reply is made from."""
        reply = self.under_way.pop(client, None)
        if reply is not None:
            reply.pages.close()  # type: ignore[attr-defined]

    def write(self) -> bool:
        """Write pages for a while; return whether there are more to be written at once."""
        clock = self._owner.clock
        until = clock() + PAGES_S
        waiting = [client for client in self.under_way if client.pending_output() <= AHEAD]
        while waiting:
            following = []
            for client in waiting:
                if client in self.under_way and self._write_page(client):
                    following.append(client)
                if clock() >= until:
                    return True
            waiting = following
        return False

    def _write_page(self, client: Client) -> bool:
        """Write one page; return whether the client may get another one now."""
        reply = self.under_way[client] = self.under_way.pop(client)  # behind all others
        begun = self._owner.clock()
        try:
            page = next(reply.pages, None)
        except Exception as error:
            self._fail(client, reply, error)
            return False
        reply.moved = client.last_used = self._owner.clock()
        self._owner.statistics.of(reply.command).seconds += reply.moved - begun
        if page is None:
            del self.under_way[client]
            self.release(client)
            return False
        if page:
            client.send(page)
        return client.pending_output() <= AHEAD

    def _fail(self, client: Client, reply: Reply, error: Exception) -> None:
        """Close a connection in the middle of a reply: no error can be told there."""
        code = error.code if isinstance(error, KVStreamError) else "ERR"
        self._owner.statistics.failed(reply.command, code)
        _log.error("%s: a reply of %s broke off: %s", client.address, reply.command, str(error))
        self._owner.drop(client)

    def tick(self) -> None:
        """Cut off those who have not taken anything for too long."""
        over = self._owner.clock() - IDLE_S
        for client, reply in list(self.under_way.items()):
            if reply.moved < over:
                self._owner.statistics.output_disconnections += 1
                client.lost = True
                self._owner.drop(client)
