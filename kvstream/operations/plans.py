"""Plans: long commands that run in steps and take effect in the last one.

A plan is a generator function. It is called with a transaction, looks at some of the data and
yields a ``Progress``; it is resumed with the transaction of the next step. Other commands run
between two steps. The plan returns the command's result. A command that takes effect as a whole
changes what others see only after the last ``yield``::

    def plan(txn: Txn) -> Planning[int]:
        watch, found = watch_deletions(txn), []
        while some := next_ids():
            found += live(txn, some)
            txn = yield Progress(watch.holds)
        delete(txn, found)
        return len(found)

``Stepped`` runs a plan in steps, for a server. ``run_at_once`` runs it in one transaction.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from kvstream.meta.txn import Txn

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """How the runner continues or ends a plan after one of its steps."""

    holds: Callable[[Txn], bool] | None = None
    """Returns whether the plan can go on; if not, it begins anew. None: it always can."""
    undo: Callable[[Txn], object] | None = None
    """Removes what the steps have written, if the plan begins anew, fails or is abandoned."""


ALWAYS_HOLDS = Progress()
"""Other commands cannot invalidate the plan, and there is nothing to undo."""

Planning: TypeAlias = Generator[Progress, Txn, T]
Plan: TypeAlias = Callable[[Txn], Planning[T]]


class Stepped(Generic[T]):
    """A plan that runs in steps, each in a transaction of its own."""

    def __init__(self, plan: Plan[T]) -> None:
        self._plan = plan
        self._run: Planning[T] | None = None
        self._progress = ALWAYS_HOLDS
        self._tries = 0

    def step(self, txn: Txn) -> T | None:
        """Run one step; return the result in the last one, None before.

        A plan that other commands have made begin anew ``tries`` times runs to its end in one step.
        """
        holds = self._progress.holds
        if self._run is not None and holds is not None and not holds(txn):
            self._run = None
        run, self._run = self._run, None  # a step that fails ends the run
        try:
            if run is None:
                run = self._begin(txn)
                self._progress = next(run)
            else:
                self._progress = run.send(txn)
            while self._tries > txn.thresholds.tries:
                self._progress = run.send(txn)
        except StopIteration as end:
            self._progress = ALWAYS_HOLDS
            result: T = end.value
            return result
        self._run = run
        return None

    def _begin(self, txn: Txn) -> Planning[T]:
        self.abandon(txn)
        self._tries += 1
        return self._plan(txn)

    @property
    def has_staged(self) -> bool:
        """Whether the steps so far have written something that ``abandon`` removes."""
        return self._progress.undo is not None

    def abandon(self, txn: Txn) -> None:
        """Remove what the steps so far have written."""
        undo, self._progress, self._run = self._progress.undo, ALWAYS_HOLDS, None
        if undo is not None:
            undo(txn)


def run_at_once(txn: Txn, plan: Plan[T]) -> T:
    """Run a plan to its end in one transaction; return its result."""
    run = plan(txn)
    try:
        next(run)
        while True:
            run.send(txn)
    except StopIteration as end:
        result: T = end.value
        return result
