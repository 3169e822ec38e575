"""Blocked clients: those of blocking commands, and those that CLIENT PAUSE holds.

A turn or another thread that serves a waiter answers its client. Timeouts and retries are kept in
a heap.
"""

from collections.abc import Callable, Sized
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import TypeAlias

from kvstream.commands.command import Attempt, Blocked, Command, Flag
from kvstream.commands.replies import ErrorReply, Reply, internal_error
from kvstream.engine.turns import Turn, TurnFailed
from kvstream.engine.waiters import RETRY_PAUSE_MS_MAX, Outcome, Waiter, retry_pause_s
from kvstream.errors import KVStreamError, Unblocked
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.server.acl import NoPermission
from kvstream.server.runtime.client import Argv, Block, Client, Server
from kvstream.server.runtime.client_state import ClientState, Event
from kvstream.server.runtime.dispatch import Dispatcher

Entry: TypeAlias = tuple[float, int, Client, Block]
OnlyReads: TypeAlias = Callable[[Txn, Command, Argv], bool]

TIMES = 2
"""Entries of one wait in the heap: its timeout and its next retry."""
SPARE = 64
"""Ended waits that a small heap may keep before it is rebuilt."""


class Deadlines:
    """The times of all waits, on the server's clock: a heap, the soonest first.

    An ended wait stays in the heap until it is reached or until most of the heap has ended, so
    every operation costs the same however many clients wait.
    """

    def __init__(self, blocked: Sized) -> None:
        """``blocked`` holds the clients that wait now; other waits in the heap have ended."""
        self._blocked = blocked
        self.heap: list[Entry] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self.heap)

    def add(self, client: Client, block: Block, when: float | None) -> None:
        """Add a time of a wait; do nothing if it is None."""
        if when is None:
            return
        heappush(self.heap, (when, next(self._numbers), client, block))
        if len(self.heap) > 2 * TIMES * len(self._blocked) + SPARE:
            self.heap[:] = [entry for entry in self.heap if _holds(entry)]
            heapify(self.heap)

    def next(self) -> float | None:
        """Return the soonest time, or None if there is none."""
        heap = self.heap
        while heap and not _holds(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now: float) -> tuple[Client, Block] | None:
        """Remove and return the soonest wait if it is due by now."""
        soonest = self.next()
        if soonest is None or soonest > now:
            return None
        return heappop(self.heap)[2:]


def _holds(entry: Entry) -> bool:
    """Return whether an entry is still valid: its wait goes on, and has this time."""
    when, _, client, block = entry
    return client.block is block and when in (block.until, block.retry)


POLL_S = RETRY_PAUSE_MS_MAX / 1000
"""How often a blocked CLAIM tries again if it is unknown when an entry becomes claimable."""
_PAUSE_TOKEN = b"p"
"""The name that paused clients wait for: no key has it."""


class BlockedClients:
    """The blocked clients of one server."""

    def __init__(self, server: Server, dispatcher: Dispatcher, only_reads: OnlyReads) -> None:
        """``only_reads`` tells whether a request that runs a script does not write."""
        self._server = server
        self._engine = server.engine
        self.blocked: dict[Client, None] = {}
        self.deadlines = Deadlines(self.blocked)
        self._dispatcher = dispatcher
        self.pause = Pause(self, server, dispatcher, only_reads)

    def begin(
        self,
        turn: Turn,
        client: Client,
        wait: Blocked,
        call: tuple[Command, Argv] | None = None,
    ) -> None:
        """Block a client until its command can be served.

        Every attempt first checks that the client may still run ``call``.
        """
        attempt, share_key = wait.attempt, wait.share_key
        if self._dispatcher.trackers.clients:
            attempt = self._dispatcher.trackers.attempt_of(client, wait)
        recorder = self._dispatcher.recorder
        if call is not None and recorder.counts_hot_keys:
            assert recorder.hot_keys is not None
            attempt = recorder.hot_keys.attempt_of(*call, attempt, client.protocol)
        if share_key is not None and wait.group is None:
            # An attempt also checks the user's rights, which may depend on the first argument.
            first = None if call is None else call[1][1]
            share_key = (client.user, first, share_key) if attempt is wait.attempt else None
        if call is not None:
            attempt = partial(_attempt_if_permitted, client, call, attempt)
        deliver = partial(self._deliver, client, wait)
        waiter = Waiter(
            wait.names, attempt, deliver, share_key, before_fsync=True, group=wait.group
        )
        now = self._server.clock()
        until = None if wait.timeout_ms is None else now + wait.timeout_ms / 1000
        block = Block(wait, waiter, now, until)
        client.wait_for(block)
        self.blocked[client] = None
        self.deadlines.add(client, block, until)
        self._set_retry(turn.txn, client, block)
        turn.queue(waiter)

    def _set_retry(self, txn: Txn, client: Client, block: Block) -> None:
        if block.wait.retry_at is None:
            return
        try:
            due = block.wait.retry_at(txn)
        except KVStreamError:  # the key or group is gone or damaged: the waiter gets the error
            due = None
        now, pause_s = self._server.clock(), retry_pause_s(due, txn.now_ms)
        if pause_s < POLL_S:
            block.retry = now + pause_s
        else:  # polling clients share one time
            block.retry = (now // POLL_S + 1) * POLL_S
        self.deadlines.add(client, block, block.retry)

    def _deliver(self, client: Client, wait: Blocked, outcome: Outcome) -> None:
        """Answer a blocked client, in the executor's thread."""
        if self._server.in_turn:
            self._answer(client, wait, outcome)
        else:
            self._server.post(partial(self._answer, client, wait, outcome))

    def _answer(self, client: Client, wait: Blocked, outcome: Outcome) -> None:
        if client.block is None or client.block.wait is not wait:
            return
        self.end(client)
        error, reply = outcome.error, outcome.reply
        if isinstance(error, KVStreamError):
            reply = ErrorReply.of(error)
        elif error is not None:
            reply = internal_error(error)
        if isinstance(error, NoPermission):
            self._dispatcher.deny(client, error.kind, error.object, client.user.name)
        self._server.answer_blocked(client, reply)

    def end(self, client: Client) -> None:
        """End a client's wait; the caller has removed its waiter."""
        client.handle(Event.RESUME)
        client.last_used = self._server.clock()
        self.blocked.pop(client, None)
        if client.has_work and not client.closing:
            self._server.ready[client] = None

    def cancel(self, client: Client) -> None:
        """End a client's wait, if it is blocked, without a reply."""
        block = client.block
        if client.state is ClientState.BLOCKED and block is not None:
            waiter = block.waiter
            self._engine.cancel(waiter)
            waiter.names = []  # a turn that has served it and fails must not restore it
            self.end(client)

    def unblock(self, client: Client, error: str | None) -> bool:
        """End a client's wait as CLIENT UNBLOCK does; return False if it is not blocked.

        It gets the reply of a timeout, or UNBLOCKED with the text ``error``. A client held by a
        pause is not blocked: its request has yet to run.
        """
        block = client.block
        if (
            block is None
            or self.pause.has(client)
            or not self._engine.cancel(block.waiter, Wake.UNBLOCKED)
        ):
            return False
        outcome = Outcome(block.wait.expired)
        if error is not None:
            outcome = Outcome(error=Unblocked(error))
        self._answer(client, block.wait, outcome)
        return True

    def due(self) -> float | None:
        """Return when ``expire`` must be called next, on the server's clock; None: never."""
        soonest, until = self.deadlines.next(), self.pause.until
        if soonest is None or until is None:
            return soonest if until is None else until
        return min(soonest, until)

    def expire(self) -> None:
        """End the waits that time out, and retry those that are due."""
        now = self._server.clock()
        if self.pause.until is not None and self.pause.until <= now:
            self.pause.end()
        retries: list[tuple[Client, Block]] = []
        while due := self.deadlines.take(now):
            client, block = due
            if block.until is None or now < block.until:
                retries.append(due)
            elif client.block is block and self._engine.cancel(block.waiter, Wake.TIMEOUT):
                self._answer(client, block.wait, Outcome(block.wait.expired))
        if retries:
            self._try_again(retries)

    def _try_again(self, retries: list[tuple[Client, Block]]) -> None:
        """Retry the waits that are due, each once, and set their next retry."""
        waits = [block.wait for _, block in retries]
        names = dict.fromkeys(chain.from_iterable(wait.names for wait in waits))
        self._engine.serve(names, {wait.group for wait in waits})
        with suppress(TurnFailed):  # a read may have to write, such as to expire a key
            turn = Turn(self._engine)
            for client, block in retries:
                if client.block is block:
                    self._set_retry(turn.txn, client, block)
            turn.commit()


def _attempt_if_permitted(
    client: Client, call: tuple[Command, Argv], attempt: Attempt, txn: Txn
) -> Reply:
    """Run an attempt; raise NoPermission if the client may not run the command any more."""
    client.user.check(*call)
    return attempt(txn)


def _nothing(txn: Txn) -> None:
    """Find nothing: only the end of the pause ends the wait."""


class Pause:
    """CLIENT PAUSE: block clients that send a command, or a write, for some time."""

    def __init__(
        self,
        blocking: BlockedClients,
        server: Server,
        dispatcher: Dispatcher,
        only_reads: OnlyReads,
    ) -> None:
        self._blocking = blocking
        self._server = server
        self._dispatcher = dispatcher
        self._only_reads = only_reads
        self._expiry, self._timers = server.engine.expiry, server.engine.timers
        self.until: float | None = None
        """When it ends, on the server's clock; None: there is no pause."""
        self.holds_writes = False
        """Writes are held by FAILOVER, for as long as that takes."""
        self._every = False
        self._held: dict[Client, None] = {}

    def begin(self, seconds: float, every: bool) -> None:
        """Pause every command, or all writes; it never shortens or weakens a pause under way."""
        until = self._server.clock() + seconds
        self.until = until if self.until is None else max(until, self.until)
        self._every |= every
        self._update()

    def end(self) -> None:
        """End the pause; held clients go on, first come first served."""
        self.until, self._every = None, False
        self._update()

    def hold_writes(self, holds: bool) -> None:
        """Hold writes until they go on, whatever CLIENT UNPAUSE says."""
        self.holds_writes = holds
        self._update()

    def _update(self) -> None:
        """Let nothing write during a pause; held clients try again, and may be held again."""
        paused = self.until is not None or self.holds_writes
        self._dispatcher.paused = self._expiry.paused = self._timers.paused = paused
        held, self._held = self._held, {}
        for client in held:
            self._blocking.cancel(client)

    def holds(self, txn: Txn, client: Client, command: Command, argv: Argv) -> bool:
        """Return whether the pause holds a request of a client."""
        if self._every or self._may_write(txn, command, argv):
            return True
        queue = client.queue
        return (
            command.name == "exec"
            and queue is not None
            and any(self._may_write(txn, *queued) for queued in queue.commands)
        )

    def holds_steps(self, command: Command) -> bool:
        """Return whether the pause holds the steps of a long command."""
        return self._every or command.writes

    def _may_write(self, txn: Txn, command: Command, argv: Argv) -> bool:
        """Return whether a request may write, or publish: Redis would send it to its replicas."""
        if command.runs_scripts and command.writes:
            return not self._only_reads(txn, command, argv)
        return command.writes or Flag.MAY_REPLICATE in command.flags

    def has(self, client: Client) -> bool:
        """Return whether a client is held by the pause."""
        return client in self._held

    def release(self, client: Client) -> None:
        """Release a held client; its request runs again, and may be held again."""
        if self.has(client):
            del self._held[client]
            self._blocking.cancel(client)

    def hold(self, turn: Turn, client: Client, argv: Argv) -> None:
        """Block a client until the pause ends; then its request runs."""
        client.requests.appendleft(argv)
        self._blocking.begin(turn, client, Blocked([_PAUSE_TOKEN], _nothing, None))
        self._held[client] = None
