"""A turn: operations of many clients as one commit, and the waiters that they wake.

A server's loop hands all requests that have arrived to one turn. Each operation sees what those
before it wrote; a waiter that has news is tried right after the operation that made them, as Redis
does. Nobody may be told of anything before ``commit`` has returned the number of its write, and
with durability ``always`` not before that one is durable.

An operation that fails half-way, or a commit that fails, undoes the whole turn: ``TurnFailed``.
The caller then runs its operations again, each in a turn of its own, so that the failure meets only
the one that causes it.
"""

from collections.abc import Callable
from functools import partial
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from kvstream.engine import Engine
from kvstream.errors import RequestError, UnknownOutcome
from kvstream.meta.txn import Txn
from kvstream.waiters import Outcome, Waiter

P = ParamSpec("P")
T = TypeVar("T")


class TurnFailed(Exception):
    """The turn was undone; ``__cause__`` says why."""


class Served(NamedTuple):
    """A waiter that the turn has found something for."""

    waiter: Waiter
    outcome: Outcome


class Turn:
    """One turn of one thread, from the first operation to ``commit`` or ``undo``."""

    __slots__ = ("_engine", "_sequence", "_waiters", "grows", "queued", "served", "txn")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters = engine.waiters
        self.txn: Txn = engine.begin_turn()
        self._sequence: int | None = None
        self.served: list[Served] = []
        """Waiters taken out of their queues, to be told once the turn is committed."""
        self.queued: list[Waiter] = []
        """Waiters that the turn has put into queues."""
        self.grows = False
        """Something may have made the store larger: no use of the reserve of free space."""

    def run(
        self, operation: Callable[Concatenate[Txn, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run one operation; RequestError where it was refused before it changed anything."""
        try:
            return operation(self.txn, *args, **kwargs)
        except RequestError:
            raise
        except BaseException as error:
            self.undo()
            if not isinstance(error, Exception):
                raise  # KeyboardInterrupt, meant for this thread: nothing is to be run again
            raise TurnFailed from error

    def queue(self, waiter: Waiter) -> None:
        """Let a waiter wait for its keys."""
        self._waiters.add(waiter)
        self.queued.append(waiter)

    def serve(self) -> None:
        """Let the waiters of every key that has news try, first come first served."""
        while self.txn.signals:
            names = list(self.txn.signals)
            self.txn.signals.clear()
            for name in names:
                self._waiters.serve(name, self._try)

    def _try(self, waiter: Waiter) -> bool:
        outcome = Outcome()
        try:
            outcome.reply = self.run(waiter.attempt)
        except RequestError as error:
            outcome.error = error
        if outcome.reply is None and outcome.error is None:
            return False
        self._waiters.remove(waiter)
        self.served.append(Served(waiter, outcome))
        return True

    def commit(self) -> int:
        """Write all that the turn has changed; return the sequence number to be waited for."""
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

    def tell(self, sequence: int) -> None:
        """Tell the waiters that were served, now that the commit of that number is written."""
        for waiter, outcome in self.served:
            if waiter.keeps:
                waiter.deliver(outcome)
            else:
                told, failed = partial(waiter.deliver, outcome), partial(_tell_failed, waiter)
                self._engine.committer.after(sequence, told, failed)

    def undo(self) -> None:
        """Forget all that the turn has changed."""
        self._engine.undo_turn(self.txn)
        self._restore()

    def abandon(self) -> None:
        """Undo the turn where it is still open: something outside its operations has failed.

        Where it is committed already, those whom it has served are to hear of it.
        """
        if self._engine.abandon_turn():
            self._restore()
        elif self._sequence is not None:
            self.tell(self._sequence)

    def _restore(self) -> None:
        """Let waiters be as they were before the turn."""
        for waiter in self.queued:
            if not waiter.done:
                self._waiters.remove(waiter)
        for each in self.served:
            self._engine.remind(each.waiter.names)
        queued = set(self.queued)
        self._waiters.put_back([each.waiter for each in self.served if each.waiter not in queued])
        self.queued, self.served = [], []


def _tell_failed(waiter: Waiter, error: UnknownOutcome) -> None:
    waiter.deliver(Outcome(error=error))
