"""Clients that wait for replicas: WAIT and WAITAOF."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvstream.commands.command import Answer, Blocked
from kvstream.commands.replies import Reply
from kvstream.engine.engine import Engine
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.replication.replicas import Replica

TOKEN = b"r"
"""The name under which clients wait for replicas; no key has it."""


@dataclass(slots=True, eq=False)
class Wait:
    """A client that waits until replicas have its writes."""

    client: Client
    wanted: int
    answer: Callable[[int], Reply]
    """Makes the reply of the number of replicas that have them."""
    durable: bool
    """They have them on disk."""
    local: bool
    """This server must have them on disk, too."""
    goal: int | None = None
    """The lsn of its last write; None: its turn is not committed yet."""
    sequence: int = 0
    blocked: Blocked | None = None


class Waits:
    """The waits of one server."""

    def __init__(
        self,
        engine: Engine,
        online: Callable[[], Iterator[Replica]],
        lsn: Callable[[], int],
    ) -> None:
        """``online`` yields the replicas that get the log, ``lsn`` returns the last row."""
        self._engine, self._online, self._lsn = engine, online, lsn
        self._waits: dict[Wait, None] = {}
        self.confirmed = 0
        """The last row that was confirmed to a client: replicas have it."""

    def __bool__(self) -> bool:
        return bool(self._waits)

    def is_any(self) -> bool:
        """Return whether a client waits still; forget those that have gone or timed out."""
        if self._waits:
            self._waits = {each: None for each in self._waits if self._goes_on(each)}
        return bool(self._waits)

    def begin(self, wait: Wait, txn: Txn, timeout_ms: int | None) -> Answer:
        """Return the reply of a wait, or what blocks its client until it is due."""
        if not txn.dirty:
            self._set_goal(wait)
        count = self._count(wait)
        if self._is_over(wait, count):
            return wait.answer(count)

        def attempt(txn: Txn) -> Reply:
            count = self._count(wait)
            if not self._is_over(wait, count):
                return None
            self._waits.pop(wait, None)
            return wait.answer(count)

        wait.blocked = Blocked([TOKEN], attempt, timeout_ms, expired=wait.answer(count))
        self.is_any()
        self._waits[wait] = None
        return wait.blocked

    def set_goals(self) -> None:
        """Note the last row for those whose turn is committed now."""
        for wait in self._waits:
            if wait.goal is None:
                self._set_goal(wait)

    def serve(self, txn: Txn) -> None:
        """Note what timeouts would answer; serve the clients whose waits are over."""
        is_over = False
        for wait in self._waits:
            count = self._count(wait)
            is_over = is_over or self._is_over(wait, count)
            if wait.blocked is not None:
                wait.blocked.expired = wait.answer(count)
        if is_over:
            txn.signal(TOKEN, Wake.FREED)

    def _goes_on(self, wait: Wait) -> bool:
        client, block = wait.client, wait.client.block
        if wait.goal is None:
            return not client.lost
        return block is not None and block.wait is wait.blocked and not client.lost

    def _set_goal(self, wait: Wait) -> None:
        wait.sequence = self._engine.database.sequence
        wait.goal = self._lsn()

    def _count(self, wait: Wait) -> int:
        """Return how many replicas have the writes of a wait."""
        goal = wait.goal
        if goal is None:
            return 0
        has = "durable" if wait.durable else "lsn"
        return sum(getattr(each, has) >= goal for each in self._online())

    def _is_over(self, wait: Wait, count: int) -> bool:
        if wait.goal is None or count < wait.wanted:
            return False
        if wait.local and self._engine.committer.flushed_sequence < wait.sequence:
            return False
        if count:
            self.confirmed = max(self.confirmed, wait.goal)
        return True

    def restart(self) -> None:
        """Forget what was confirmed: the role has changed."""
        self.confirmed = 0
