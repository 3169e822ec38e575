"""The turns of a server: the operations of many clients as one commit.

Each operation sees the writes of those before it, and blocked readers are served right after the
operation that wrote for them, as in Redis. No client may be answered before ``commit`` has returned
the number of the write, and with durability ``always`` before that write is durable. If an
operation fails half-way or the commit fails, the whole turn is undone and ``TurnFailed`` is raised.
The caller then runs each operation in a turn of its own, so that only the failing one gets the
error.
"""

from collections.abc import Callable
from functools import partial
from typing import Concatenate, NoReturn, ParamSpec, TypeVar

from kvstream.engine.engine import Engine
from kvstream.engine.waiters import Outcome, Waiter
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn

P = ParamSpec("P")
T = TypeVar("T")


class TurnFailed(Exception):
    """The turn was undone; ``__cause__`` says why."""


class Turn:
    """One turn of one thread, from the first operation to ``commit`` or ``undo``."""

    __slots__ = ("_engine", "_sequence", "_waiters", "grows", "queued", "served", "txn")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters = engine.waiters
        self.txn: Txn = engine.begin_turn()
        self._sequence: int | None = None
        self.served: list[tuple[Waiter, Outcome]] = []
        """Waiters taken out of their queues; they get their outcome after the commit."""
        self.queued: list[Waiter] = []
        """Waiters that the turn has queued."""
        self.grows = False
        """A command may have made the store larger, so the reserve of free space is not used."""

    def run(
        self, operation: Callable[Concatenate[Txn, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run one operation.

        Raises RequestError if it was refused before it changed anything, else TurnFailed.
        """
        try:
            return operation(self.txn, *args, **kwargs)
        except RequestError:
            raise
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> NoReturn:
        """Undo the turn after an operation failed half-way; raise TurnFailed."""
        self.undo()
        if not isinstance(error, Exception):
            raise error  # KeyboardInterrupt, meant for this thread: nothing is run again
        raise TurnFailed from error

    def queue(self, waiter: Waiter) -> None:
        """Queue a waiter for its keys."""
        self._waiters.add(waiter)
        self.queued.append(waiter)

    def serve(self) -> None:
        """Run the attempts of the waiters of all changed keys, first come first served."""
        while self.txn.signals:
            signals = list(self.txn.signals.items())
            self.txn.signals.clear()
            for name, reason in signals:
                self._waiters.serve(name, reason, self._attempt, self._take)

    def _attempt(self, waiter: Waiter) -> Outcome | None:
        try:
            reply = self.run(waiter.attempt)
        except RequestError as error:
            return Outcome(error=error)
        return None if reply is None else Outcome(reply)

    def _take(self, waiter: Waiter, outcome: Outcome) -> None:
        self._waiters.remove(waiter)
        self.served.append((waiter, outcome))

    def commit(self) -> int:
        """Write the changes of the turn; return the sequence number to wait for."""
        if self.grows:
            self.txn.frees = False
        try:
            self._sequence = sequence = self._engine.commit_turn(self.txn)
        except BaseException as error:
            self._restore()
            if not isinstance(error, Exception):
                raise
            raise TurnFailed from error
        database = self._engine.database
        if database.pause_s:
            database.rest()
        return sequence

    @property
    def is_committed(self) -> bool:
        return self._sequence is not None

    def deliver(self, sequence: int) -> None:
        """Deliver the outcomes of the served waiters, after the commit with that number."""
        for waiter, outcome in self.served:
            if waiter.before_fsync:
                waiter.deliver(outcome)
            else:
                durable, failed = partial(waiter.deliver, outcome), waiter.fail
                self._engine.committer.after(sequence, durable, failed)

    def undo(self) -> None:
        """Undo all changes of the turn, and queue its waiters again."""
        self._engine.undo_turn(self.txn)
        self._restore()

    def abandon(self) -> None:
        """End the turn after a failure outside its operations.

        An open turn is undone. If it is committed already, its served waiters get their outcome.
        """
        if self._engine.abandon_turn():
            self._restore()
        elif self._sequence is not None:
            self.deliver(self._sequence)

    def _restore(self) -> None:
        """Put the waiters back as they were before the turn."""
        for waiter in self.queued:
            if not waiter.done:
                self._waiters.remove(waiter)
        for waiter, _ in self.served:
            self._engine.serve_later(waiter.names)
        queued = set(self.queued)
        self._waiters.put_back([waiter for waiter, _ in self.served if waiter not in queued])
        self.queued, self.served = [], []
