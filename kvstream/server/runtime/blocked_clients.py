"""The clients that wait: how a wait begins, how it is tried again, and how it ends.

Whoever finds something for a waiter, a turn or another thread, has its client told. When a wait is
due is looked up in a heap.

When blocked clients are due: a heap, the soonest first.

What has ended stays in the heap until it is met, or until most of the heap has ended; so beginning,
ending and looking cost the same however many clients wait. This module ends no wait.
"""

from collections.abc import Callable, Sized
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import Protocol, TypeAlias

from kvstream.commands.command import Attempt, Blocked, Command
from kvstream.commands.replies import ErrorReply, Paged, Reply, Streams, internal_error
from kvstream.engine.blocking_reads import RETRY_PAUSE_MS_MAX, retry_pause_s
from kvstream.engine.engine import Engine, Turn, TurnFailed
from kvstream.engine.waiters import Outcome, Waiter
from kvstream.errors import KVStreamError, Unblocked
from kvstream.meta.txn import Txn
from kvstream.server.acl import NoPermission
from kvstream.server.runtime.client import Argv, Block, Client
from kvstream.server.runtime.client_pause import Pause
from kvstream.server.runtime.dispatch import Calls

Entry: TypeAlias = tuple[float, int, Client, Block]

TIMES = 2
"""Times that one wait can have in the heap: its end, and its next try."""
SPARE = 64
"""Ended waits that a small heap may keep: putting it in order would cost more than they do."""


class Deadlines:
    """The times of all waits, on the loop's clock."""

    def __init__(self, blocked: Sized) -> None:
        """``blocked`` are the clients that wait; how many they are tells how much has ended."""
        self._blocked = blocked
        self._heap: list[Entry] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, client: Client, block: Block, when: float | None) -> None:
        """Have a wait be due at a time; None: never."""
        if when is None:
            return
        heappush(self._heap, (when, next(self._numbers), client, block))
        if len(self._heap) > 2 * TIMES * len(self._blocked) + SPARE:
            self._heap = [entry for entry in self._heap if _holds(entry)]
            heapify(self._heap)

    def next(self) -> float | None:
        """Return the soonest time; None where nothing is due ever."""
        heap = self._heap
        while heap and not _holds(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now: float) -> tuple[Client, Block] | None:
        """Take out the soonest wait that is due by now; None where there is no such."""
        soonest = self.next()
        if soonest is None or soonest > now:
            return None
        return heappop(self._heap)[2:]


def _holds(entry: Entry) -> bool:
    """Tell whether the wait has not ended, and this time of it has not been put off."""
    when, _, client, block = entry
    return client.block is block and when in (block.until, block.retry)


POLL_S = RETRY_PAUSE_MS_MAX / 1000
"""How often those look again who do not know when something may be claimed."""


class Teller(Protocol):
    """What the waits need of the executor."""

    clock: Callable[[], float]
    post: Callable[[Callable[[], None]], None]
    ready: dict[Client, None]

    @property
    def in_turn(self) -> bool: ...

    def tell(self, client: Client, reply: Reply) -> None: ...


class Waits:
    """The waits of one server's clients."""

    def __init__(self, engine: Engine, teller: Teller, calls: Calls) -> None:
        self._engine = engine
        self._teller = teller
        self.blocked: dict[Client, None] = {}
        self._deadlines = Deadlines(self.blocked)
        self._calls = calls
        self.pause = Pause(self, calls, engine.expiry)

    def now(self) -> float:
        """Return the time on the loop's clock."""
        return self._teller.clock()

    def begin(
        self,
        turn: Turn,
        client: Client,
        wait: Blocked,
        call: tuple[Command, Argv] | None = None,
    ) -> None:
        """Have a client wait for what its command has not found.

        Every attempt checks first that the client may still run ``call``.
        """
        attempt = wait.attempt
        if self._calls.trackers.clients:
            attempt = self._calls.trackers.attempt_of(client, wait)
        if call is not None:
            attempt = partial(_attempt_if_permitted, client, call, attempt)
        told = partial(self._delivered, client, wait)
        waiter = Waiter(wait.names, attempt, told, wait.shares, before_fsync=True, group=wait.group)
        now = self._teller.clock()
        until = None if wait.timeout_ms is None else now + wait.timeout_ms / 1000
        client.block = block = Block(wait, waiter, now, until)
        self.blocked[client] = None
        self._deadlines.add(client, block, until)
        self._set_retry(turn.txn, client, block)
        turn.queue(waiter)

    def _set_retry(self, txn: Txn, client: Client, block: Block) -> None:
        if block.wait.retry_at is None:
            return
        try:
            due = block.wait.retry_at(txn)
        except KVStreamError:  # the key or group is gone or damaged: the waiter will be told
            due = None
        now, pause_s = self._teller.clock(), retry_pause_s(due, txn.now_ms)
        if pause_s < POLL_S:
            block.retry = now + pause_s
        else:  # all who merely look again do so together
            block.retry = (now // POLL_S + 1) * POLL_S
        self._deadlines.add(client, block, block.retry)

    def _delivered(self, client: Client, wait: Blocked, outcome: Outcome) -> None:
        """Tell a blocked client what has come; another thread may have found it."""
        if self._teller.in_turn:
            self._tell(client, wait, outcome)
        else:
            self._teller.post(partial(self._tell, client, wait, outcome))

    def _tell(self, client: Client, wait: Blocked, outcome: Outcome) -> None:
        if client.block is None or client.block.wait is not wait:
            return
        error = outcome.error
        if error is None:
            reply: Reply = outcome.reply
        elif isinstance(error, KVStreamError):
            reply = ErrorReply.of(error)
        else:
            reply = internal_error(error)
        self.end(client)
        if isinstance(error, NoPermission):
            self._calls.deny(client, error.kind, error.object, client.user.name)
        self._teller.tell(client, reply)

    def end(self, client: Client) -> None:
        """Have a client wait no more; its waiter is somebody else's to take away."""
        client.block = None
        client.last_used = self._teller.clock()
        self.blocked.pop(client, None)
        if client.has_work and not client.closing:
            self._teller.ready[client] = None

    def cancel(self, client: Client) -> None:
        """End a client's wait, if it waits, without a word."""
        if client.block is not None:
            waiter = client.block.waiter
            self._engine.cancel(waiter)
            waiter.names = []  # a turn that has served it, and fails, has it wait for nothing
            self.end(client)

    def unblock(self, client: Client, error: bool) -> bool:
        """End a client's wait as CLIENT UNBLOCK does; False where it does not wait.

        One that a pause holds has not begun to: its request is still to be answered.
        """
        block = client.block
        if block is None or self.pause.has(client) or not self._engine.cancel(block.waiter):
            return False
        outcome = Outcome(block.wait.expired)
        if error:
            outcome = Outcome(error=Unblocked("client unblocked via CLIENT UNBLOCK"))
        self._tell(client, block.wait, outcome)
        return True

    def due(self) -> float | None:
        """Return when ``expire`` has something to do, on the clock; None: never."""
        soonest, until = self._deadlines.next(), self.pause.until
        if soonest is None or until is None:
            return soonest if until is None else until
        return min(soonest, until)

    def expire(self) -> None:
        """End the waits whose time is over, and let those try again whose time has come."""
        now = self._teller.clock()
        if self.pause.until is not None and self.pause.until <= now:
            self.pause.end()
        retries: list[tuple[Client, Block]] = []
        while found := self._deadlines.take(now):
            client, block = found
            if block.until is None or now < block.until:
                retries.append(found)
            elif client.block is block and self._engine.cancel(block.waiter):
                self._tell(client, block.wait, Outcome(block.wait.expired))
        if retries:
            self._try_again(retries)

    def _try_again(self, retries: list[tuple[Client, Block]]) -> None:
        """Let all who are due try, each once however many they are, and look when they are next."""
        waits = [block.wait for _, block in retries]
        names = dict.fromkeys(chain.from_iterable(wait.names for wait in waits))
        self._engine.serve(names, {wait.group for wait in waits})
        with suppress(TurnFailed):  # of what the transaction had to write beside
            turn = Turn(self._engine)  # which waits for no fsync: this is the loop
            for client, block in retries:
                if client.block is block:
                    self._set_retry(turn.txn, client, block)
            turn.commit()


def _attempt_if_permitted(
    client: Client, call: tuple[Command, Argv], attempt: Attempt, txn: Txn
) -> Streams | Paged | None:
    """Try again what a client waits for; NoPermission where it may not run it any more."""
    client.user.check(*call)
    return attempt(txn)
