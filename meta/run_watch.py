"""What becomes of a group's runs while long commands look at them bit by bit."""

from collections.abc import Iterable
from weakref import WeakSet

from kvstream.meta.runs import PackedID, Run

Stretch = tuple[PackedID, PackedID]
"""From a run's anchor to its last ID."""


class RunWatch:
    """The stretches in which runs of one group were changed since they were last taken."""

    def __init__(self) -> None:
        self._changed: list[Stretch] = []

    def note(self, stretches: list[Stretch]) -> None:
        self._changed += stretches

    def take(self) -> list[Stretch]:
        """Return the stretches, and forget them."""
        taken, self._changed = self._changed, []
        return taken


class RunWatches:
    """Those who are told of the changes of one group's runs."""

    def __init__(self) -> None:
        self._watches: WeakSet[RunWatch] = WeakSet()

    def add(self) -> RunWatch:
        """Have changes told to who keeps what is returned."""
        watch = RunWatch()
        self._watches.add(watch)
        return watch

    def note(self, runs: Iterable[Run]) -> bool:
        """Tell of runs that were put or are to go; False where nobody listens any more."""
        if not self._watches:
            return False
        stretches = [(run.anchor, run.ids[-1]) for run in runs]
        for watch in self._watches:
            watch.note(stretches)
        return True
