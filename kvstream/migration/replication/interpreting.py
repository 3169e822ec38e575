"""One source's commands in order: in which database each is, what it means, what is owed to it.

A command that the source has run and that the target refuses is no reason to stop: its keys are
noted, to be copied from the source as a whole. This module knows no target.
"""

from collections import Counter
from collections.abc import Callable

from kvstream.commands.args import Argv
from kvstream.commands.table import find
from kvstream.errors import InvalidArgument, KVStreamError, NoSuchKey, RequestError
from kvstream.migration.items import Selection
from kvstream.migration.replication.meaning import EVERY_DATABASE, Meaning, Name, Run, meaning

AGAIN_MAX = 100_000
"""Keys that are noted to be copied again; where there are more, everything had better be."""
_DELETIONS = (b"DEL", b"UNLINK")
_RENAMES = (b"RENAME", b"RENAMENX")


class SourceExchanged(RequestError):
    """SWAPDB has put a database that is not followed in the place of one that is."""


class Interpreter:
    """What is known of the stream of one source."""

    def __init__(self, selection: Selection, databases: int, db: int = 0) -> None:
        """``databases`` is how many the target has, ``db`` where the next command belongs."""
        self.selection = selection
        self._databases = databases
        self.db = db
        self.in_unit = False
        """Inside MULTI: what has come is to be committed together with what comes until EXEC."""
        self.applied = 0
        """Commands that were run, or had nothing to do with what is followed."""
        self.skipped: Counter[str] = Counter()
        """Commands that kvstream has not, by name."""
        self.refused: Counter[str] = Counter()
        """What was refused although the source ran it: by command and error."""
        self.again: set[Name] = set()
        """Keys that are to be copied from the source as a whole."""

    def read(self, argv: Argv) -> Meaning:
        """Return what a command means; SourceExchanged where it cannot be followed at all."""
        control = _CONTROL.get(argv[0].lower())
        if control is not None:
            control(self, argv)
            return Meaning()
        told = meaning(self.db, argv, self.selection)
        if told.is_exchange:
            raise SourceExchanged(
                "SWAPDB of the source has exchanged a database that is followed with another"
            )
        if told.is_known:
            self.applied += 1
        else:
            self.skipped[argv[0].decode("utf-8", "backslashreplace").lower()] += 1
        return told

    def _select(self, argv: Argv) -> None:
        self.db = int(argv[1])
        if not 0 <= self.db < self._databases:
            raise InvalidArgument(
                f"the source uses database {self.db}, and the target has only {self._databases}"
            )

    def _begin(self, argv: Argv) -> None:
        self.in_unit = True

    def _end(self, argv: Argv) -> None:
        self.in_unit = False

    def flushed(self, told: Meaning) -> list[int]:
        """Return the databases whose followed keys are to be deleted."""
        whole = EVERY_DATABASE in told.flushed
        numbers = list(range(self._databases)) if whole else told.flushed
        self.again.difference_update([name for name in self.again if name[0] in numbers])
        return [db for db in numbers if self.selection.has_database(db)]

    def note_run(self, run: Run) -> None:
        """Note that a command was run."""
        if self.again and run.argv[0].upper() in _DELETIONS:
            self.again.difference_update((run.db, key) for key in run.argv[1:])

    def note_refusal(self, run: Run, error: KVStreamError) -> None:
        """Note that a command was refused; a key that we never had may well be renamed."""
        if isinstance(error, NoSuchKey) and run.argv[0].upper() in _RENAMES:
            return
        names = [(run.db, key) for key in find(run.argv).keys_of(run.argv)]
        if any(name not in self.again for name in names):  # else it follows from the first one
            word = run.argv[0].decode("ascii", "replace").upper()
            self.refused[f"{word}: {error.reply}"] += 1
        for name in names:
            self._copy_again(name)

    def note_done(self, told: Meaning) -> None:
        """Note that all of a command was run: keys that are owed have their new names."""
        if self.again:
            self._note_moves(told)
        for name in told.again:
            self._copy_again(name)

    def _note_moves(self, told: Meaning) -> None:
        if told.moved is not None and told.moved[0] in self.again:
            source, target, keeps = told.moved
            self.again.add(target)
            if not keeps:
                self.again.discard(source)
        if told.swapped is not None:
            one, other = told.swapped
            numbers = {one: other, other: one}
            moved = [(numbers.get(db, db), key) for db, key in self.again]
            self.again.clear()  # the journal has the same set
            self.again.update(moved)

    def _copy_again(self, name: Name) -> None:
        if len(self.again) >= AGAIN_MAX:
            raise RequestError(f"more than {AGAIN_MAX} keys cannot be followed command by command")
        self.again.add(name)


_CONTROL: dict[bytes, Callable[[Interpreter, Argv], None]] = {
    b"select": Interpreter._select,
    b"multi": Interpreter._begin,
    b"exec": Interpreter._end,
    b"discard": Interpreter._end,
}
