"""Streaming of long replies: pages are made between turns, as fast as the client reads them.

No other request of the client runs until its reply is complete. The reply is made from a snapshot,
which keeps files of the store, so a client that stops reading is disconnected after a time.
Sans-IO: the owner of the sockets calls ``write`` between turns.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from kvstream.commands.replies import Paged
from kvstream.commands.reply_pages import memory_of
from kvstream.errors import KVStreamError
from kvstream.resp.replies import CHUNK, encode_pages
from kvstream.server.runtime.client import Client, Server

PAGES_S = 0.002
"""Time for pages between two turns."""
AHEAD = CHUNK
"""No page is made for a client with more unread bytes than this."""
IDLE_S = 60.0
"""A client that reads nothing of a reply for so long is disconnected."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class StreamedReply:
    """One reply being streamed."""

    pages: Iterator[bytes]
    command: str
    memory: int
    """Bytes that it took at the begin."""
    moved: float
    """When the last page was sent."""


class ReplyStreaming:
    """The streamed replies of one server's clients."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.under_way: dict[Client, StreamedReply] = {}

    def begin(self, client: Client, reply: Paged, protocol: int) -> None:
        """Begin to stream a reply; the replies before it are sent."""
        pages = encode_pages(reply.reply, protocol)
        held = memory_of(reply)
        self.under_way[client] = StreamedReply(
            pages, client.last_command, held, self._server.clock()
        )

    def memory_of(self, client: Client) -> int:
        """Return the bytes that a client's streamed reply takes."""
        reply = self.under_way.get(client)
        return 0 if reply is None else reply.memory

    def release(self, client: Client) -> None:
        """Allow a client to run its next request."""
        if client.paged:
            client.paged = False
            self._server.ready[client] = None

    def forget(self, client: Client) -> None:
        """Stop streaming to a client and release the snapshot."""
        reply = self.under_way.pop(client, None)
        if reply is not None:
            reply.pages.close()  # type: ignore[attr-defined]

    def write(self) -> bool:
        """Write pages for PAGES_S; return whether more can be written at once."""
        clock = self._server.clock
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
        reply = self.under_way[client] = self.under_way.pop(client)  # to the end of the queue
        begun = self._server.clock()
        try:
            page = next(reply.pages, None)
        except Exception as error:
            self._fail(client, reply, error)
            return False
        reply.moved = client.last_used = self._server.clock()
        self._server.statistics.of(reply.command).seconds += reply.moved - begun
        if page is None:
            del self.under_way[client]
            self.release(client)
            return False
        if page:
            client.send(page)
        return client.pending_output() <= AHEAD

    def _fail(self, client: Client, reply: StreamedReply, error: Exception) -> None:
        """Close a connection in the middle of a reply, where no error can be sent."""
        code = error.code if isinstance(error, KVStreamError) else "ERR"
        self._server.statistics.failed(reply.command, code)
        _log.error("%s: a reply of %s broke off: %s", client.address, reply.command, str(error))
        self._server.drop(client)

    def tick(self) -> None:
        """Disconnect clients that have stopped reading."""
        over = self._server.clock() - IDLE_S
        for client, reply in list(self.under_way.items()):
            if reply.moved < over:
                self._server.statistics.output_disconnections += 1
                client.lost = True
                self._server.drop(client)
