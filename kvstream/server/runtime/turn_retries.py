"""Retries of a failed turn: each of its requests runs again, in a turn of its own.

So the failure, such as damage or a full disk, is reported to the client whose request meets it. The
rolled back turn has blocked clients, put requests off and begun replies: this is undone first.
"""

from typing import Protocol

from kvstream.commands.command import Blocked
from kvstream.errors import UnknownOutcome
from kvstream.server.runtime.blocked_clients import BlockedClients, Pause
from kvstream.server.runtime.call_recorder import CallRecorder
from kvstream.server.runtime.client import Argv, Client, PendingReplies, Server
from kvstream.server.runtime.client_state import ClientState, Event
from kvstream.server.runtime.incremental_commands import IncrementalCommands
from kvstream.server.runtime.pipelines import Pipeline, Pipelines
from kvstream.server.runtime.reply_queue import (
    Operation,
    PendingReply,
    Requeued,
    error_of,
)
from kvstream.server.runtime.xadd_batching import BatchedXadds, XaddBatch


class RetryingServer(Server, Protocol):
    """The executor as its retries see it."""

    blocking: BlockedClients
    first: list[Client]
    incremental: IncrementalCommands
    pause: Pause
    recorder: CallRecorder

    def run_again(self, pending: PendingReply, unit: Operation) -> tuple[int, list[PendingReplies]]:
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
        for pending in self._take_apart(failed):
            client = pending.client
            if client.state is not ClientState.RUNNABLE:  # because of its request before
                behind.setdefault(client, []).append(Requeued(pending))
            elif pending.unit is None:
                replies.append(pending)
            elif is_unknown and not pending.reads:
                pending.reply = error_of(failure)
                pending.is_wanted()
                replies.append(pending)
            else:
                written, answers = server.run_again(pending, pending.unit)
                sequence = max(sequence, written)
                replies += answers
        for client, requests in behind.items():
            if client.state is ClientState.PUT_OFF:
                requests.insert(0, client.requests.popleft())
            client.requests.extendleft(reversed(requests))
        return sequence, replies

    def _take_apart(self, failed: list[PendingReplies]) -> list[PendingReply]:
        """Return a pending reply for each request of a failed turn, and release their clients."""
        self._xadds.clear()
        self._server.recorder.forget()
        replies = [pending for replies in failed for pending in self._replies_of(replies)]
        # Otherwise they might be put off forever.
        replies += map(self._take_back, list(self._server.first))
        for pending in replies:
            self._release(pending)
        return replies

    def _replies_of(self, replies: PendingReplies) -> list[PendingReply]:
        """Return a pending reply for each request; none for a message, which is published again."""
        if isinstance(replies, Pipeline):
            return self._pipelines.replies_of(replies)
        if isinstance(replies, XaddBatch):
            return self._xadds.replies_of(replies)
        return [replies] if isinstance(replies, PendingReply) else []

    def _take_back(self, client: Client) -> PendingReply:
        """Roll back a client whose request was put off to the next turn; return that request."""
        self._roll_back(client)
        again = client.requests.popleft()
        assert isinstance(again, Requeued)
        return again.pending

    def _release(self, pending: PendingReply) -> None:
        """Release the client of a request that runs again."""
        block = pending.client.block
        if isinstance(pending.reply, Blocked) and (
            block is None or block.wait is not pending.reply
        ):
            pending.unit = None  # the wait has ended: another one has its reply
        self._roll_back(pending.client)

    def _roll_back(self, client: Client) -> None:
        """Make a client RUNNABLE, as it was when the turn began.

        A request that was put off or held, or that runs in steps, becomes its next request.
        """
        server, state = self._server, client.state
        if state is ClientState.BLOCKED:
            if server.pause.has(client):
                server.pause.release(client)
            else:  # its waiter went with the turn
                server.blocking.end(client)
        elif state is ClientState.PUT_OFF:
            server.first.remove(client)
        elif state is ClientState.STEPPED:
            server.incremental.put_back(client)
        client.handle(Event.ROLL_BACK)
        if client.requests:
            server.ready[client] = None

    def give_up(self, pending: PendingReply, failure: Exception) -> None:
        """Answer a request with the failure of its own turn, which was rolled back."""
        client, is_put_off = pending.client, pending.client.state is ClientState.PUT_OFF
        self._server.incremental.forget(client)
        self._roll_back(client)
        if is_put_off:
            client.requests.popleft()
        pending.reply = error_of(failure)
        pending.is_wanted()
