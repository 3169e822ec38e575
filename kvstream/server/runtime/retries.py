"""Retries of a failed turn: each of its requests runs again, in a turn of its own.

The failure, damage or a full disk, is so reported to the client whose request meets it. A turn that
was rolled back has blocked clients, put requests off and begun replies: that is undone first.
"""

from typing import Protocol

from kvstream.commands.command import Blocked
from kvstream.commands.replies import Paged
from kvstream.errors import UnknownOutcome
from kvstream.server.runtime.blocked_clients import BlockedClients, Pause
from kvstream.server.runtime.client import Argv, Client, PendingReplies, Server
from kvstream.server.runtime.incremental_commands import IncrementalCommands
from kvstream.server.runtime.pipelines import Pipeline, Pipelines
from kvstream.server.runtime.reply_queue import (
    Operation,
    ReplyStreaming,
    Requeued,
    Slot,
    error_of,
)
from kvstream.server.runtime.xadd_batching import BatchedXadds, Burst


class RetryingServer(Server, Protocol):
    """The executor as its retries see it."""

    blocking: BlockedClients
    first: list[Client]
    incremental: IncrementalCommands
    pause: Pause
    streaming: ReplyStreaming

    def run_again(self, slot: Slot, unit: Operation) -> tuple[int, list[PendingReplies]]:
        """Run a unit in a turn of its own; return the sequence number, and the replies."""
        ...


class Retries:
    """The retries of one server."""

    def __init__(self, server: RetryingServer, xadds: BatchedXadds, pipelines: Pipelines) -> None:
        self._server = server
        self._xadds = xadds
        self._pipelines = pipelines

    def run(
        self, failure: Exception, failed: list[PendingReplies]
    ) -> tuple[int, list[PendingReplies]]:
        """Run each unit of a failed turn again; return the sequence number, and the replies.

        If it is unknown whether the turn was written, units that write get that error instead.
        """
        server = self._server
        is_unknown = isinstance(failure.__cause__, UnknownOutcome)
        behind: dict[Client, list[Argv]] = {}
        sequence, replies = server.engine.seen_sequence, list[PendingReplies]()
        for slot in self._taken_apart(failed):
            client = slot.client
            if client.block is not None or client.reply_unfinished:  # by its request before
                behind.setdefault(client, []).append(Requeued(slot))
            elif slot.unit is None:
                replies.append(slot)
            elif is_unknown and not slot.reads:
                slot.reply = error_of(failure)
                slot.is_wanted()
                replies.append(slot)
            else:
                written, answers = server.run_again(slot, slot.unit)
                sequence = max(sequence, written)
                replies += answers
        for client, requests in behind.items():
            if client in server.first:
                requests.insert(0, client.requests.popleft())
            client.requests.extendleft(reversed(requests))
        return sequence, replies

    def _taken_apart(self, failed: list[PendingReplies]) -> list[Slot]:
        """Return a slot for each request of a failed turn, and release their clients."""
        self._xadds.clear()
        self._pipelines.forget()
        slots = [slot for replies in failed for slot in self._slots_of(replies)]
        # Otherwise they might be put off forever.
        slots += map(self._take_back, list(self._server.first))
        for slot in slots:
            self._release(slot)
        return slots

    def _slots_of(self, replies: PendingReplies) -> list[Slot]:
        """Return a slot for each request; none for a message, which is published again."""
        if isinstance(replies, Pipeline):
            return self._pipelines.slots_of(replies)
        if isinstance(replies, Burst):
            return self._xadds.slots_of(replies)
        return [replies] if isinstance(replies, Slot) else []

    def _take_back(self, client: Client) -> Slot:
        """Return the request of a client that was to run first in the next turn."""
        self._server.first.remove(client)
        client.reply_unfinished = False
        self._server.ready[client] = None  # for the requests after it
        again = client.requests.popleft()
        assert isinstance(again, Requeued)
        return again.slot

    def _release(self, slot: Slot) -> None:
        """Release a client that was held by a turn that was rolled back.

        Its unanswered request becomes its next one.
        """
        client, server = slot.client, self._server
        server.incremental.put_back(client)
        server.pause.release(client)
        if client.requests:
            server.ready[client] = None
        if isinstance(slot.reply, Blocked):
            if client.block is not None and client.block.wait is slot.reply:
                server.blocking.end(client)  # its waiter went with the turn
            else:  # the wait has ended: another slot has its reply
                slot.unit = None
        elif type(slot.reply) is Paged:
            server.streaming.release(client)

    def give_up(self, slot: Slot, failure: Exception) -> None:
        """Answer the request of a slot with the failure of its own turn, which was rolled back."""
        client, server = slot.client, self._server
        if client.block is not None:
            server.blocking.end(client)
        if client in server.first:
            self._take_back(client)
        server.incremental.forget(client)
        server.streaming.release(client)
        slot.reply = error_of(failure)
        slot.is_wanted()
