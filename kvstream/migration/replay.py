"""The commands of an append-only file, run on an open store, and keys that it cannot hold.

A log has only what succeeded, and all of it. So which keys are of a type that kvstream does not
have, or strings that it cannot compute, is followed through every command that deletes, overwrites,
renames or copies them; and a command for streams tells that its key is a stream by then.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kvstream.commands.args import Argv
from kvstream.commands.table import find
from kvstream.engine.engine import Engine
from kvstream.errors import KVStreamError, NoSuchKey
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration.items import STREAM, STRING, Selection
from kvstream.migration.replication.applying import Applier
from kvstream.migration.replication.commands import Meaning, Name, Run
from kvstream.operations import keyspace


class Unheld(NamedTuple):
    """A key whose value the store does not have, or has wrongly."""

    kind: str
    """TYPE's word for it; of a string with the command that changed it; "": perhaps there is none.
    """
    expire_at_ms: int = 0
    size: int = 0
    why: str = ""
    """Why a migration of this key is refused; "": it is named and skipped."""

    @property
    def type(self) -> str:
        return self.kind.partition(" ")[0]


class _Everything(Selection):
    """All keys: those that an earlier migration made on the way have become others."""

    def has(self, db: int, key: bytes) -> bool:
        return True


class Replay(Applier):
    """Runs a log as Redis does that loads it: an XCLAIM leaves entries-read as it is."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, _Everything(), counts_reads=False)
        self.unheld: dict[Name, Unheld] = {}
        self._word = ""
        """The command at hand."""

    def apply(self, txn: Txn, argv: Argv) -> None:
        self._word = argv[0].decode("ascii", "backslashreplace").upper()
        super().apply(txn, argv)

    def read(self, argv: Argv) -> Meaning:
        told = super().read(argv)
        # A key that the store has is another one, which has gone by then.
        told.runs += [
            Run(db, [b"DEL", key])
            for (db, key), _ in told.became
            if (db, key) not in self.unheld and not told.runs
        ]
        if told.is_unheard:
            self._doubt((self.db, word) for word in argv[1:])
        return told

    def _doubt(self, names: Iterable[Name]) -> None:
        """Note the words of a command that nobody knows: any of them may be a key."""
        why = f"the log has {self._word}, which kvstream does not know and may have changed it"
        for name in names:
            if len(name[1]) <= _DOUBTED_BYTES_MAX:
                self.unheld.setdefault(name, Unheld("", why=why))

    def finish(self, txn: Txn) -> None:
        """Forget doubts of what is no key of the store."""
        for name, held in list(self.unheld.items()):
            if not held.kind and not keyspace.exists(txn, qualified(*name)):
                del self.unheld[name]

    # --- what has been run ----------------------------------------------------------------------

    def flushed(self, told: Meaning) -> list[int]:
        numbers = super().flushed(told)
        for name in [name for name in self.unheld if name[0] in numbers]:
            del self.unheld[name]
        return numbers

    def note_run(self, run: Run) -> None:
        super().note_run(run)
        word = run.argv[0].upper()
        if not self.unheld or word in _MOVES:
            return
        keys = [(run.db, key) for key in find(run.argv).keys_of(run.argv)]
        for name in keys:
            held = self.unheld.get(name)
            if held is None:
                continue
            if word in _EXPIRES:
                self.unheld[name] = held._replace(expire_at_ms=_EXPIRES[word](run.argv))
            elif word not in _GENERIC and not _leaves(word, held):
                del self.unheld[name]

    def note_refusal(self, run: Run, error: KVStreamError) -> None:
        """Note a command that the server has run and the store does not: its keys are wrong now."""
        word = run.argv[0].upper()
        names = [(run.db, key) for key in find(run.argv).keys_of(run.argv)]
        if word in _MOVES and isinstance(error, NoSuchKey):
            return
        if all(name in self.unheld for name in names):  # it follows from what was met before
            return
        self.refused[f"{self._word}: {error.reply}"] += 1
        kind = STREAM if word.startswith(b"X") else STRING
        why = f"{self._word} of the log was refused ({error.reply})"
        for name in names:
            self.unheld.setdefault(name, Unheld(kind, why=why))

    def note_done(self, told: Meaning) -> None:
        if self.unheld:
            self._note_held_moves(told)
        for name, kind in told.became:
            held = self.unheld.get(name)
            if held is None or held.kind != kind:
                self.unheld[name] = Unheld(kind)
        for name in told.again:
            why = f"the log has {self._word}, a script that names it" if told.is_unheard else ""
            self.unheld[name] = Unheld("unknown" if why else f"{STRING} ({self._word})", why=why)

    def _note_held_moves(self, told: Meaning) -> None:
        if told.moved is not None:
            source, target, keeps = told.moved
            held = self.unheld.get(source) if keeps else self.unheld.pop(source, None)
            if held is not None:
                self.unheld[target] = held
        if told.swapped is not None:
            one, other = told.swapped
            numbers = {one: other, other: one}
            self.unheld = {
                (numbers.get(db, db), key): held for (db, key), held in self.unheld.items()
            }


def _leaves(word: bytes, held: Unheld) -> bool:
    """Tell whether a key is as wrong as before, behind a command that changed it."""
    if word.startswith(b"X"):
        return held.type in (STREAM, *_UNSURE)
    return word in _AMENDS and held.type in (STRING, *_UNSURE)


_UNSURE = ("", "unknown")
_DOUBTED_BYTES_MAX = 1024
"""Words of unknown commands that are longer are taken for values: each doubt costs memory."""
_MOVES = (b"RENAME", b"RENAMENX", b"MOVE", b"COPY", b"SWAPDB")
_GENERIC = (b"TOUCH", b"EXPIRE", b"EXPIREAT", b"PEXPIRE")
"""Commands of keys of any type."""
_EXPIRES: dict[bytes, Callable[[Argv], int]] = {
    b"PEXPIREAT": lambda argv: max(int(argv[2]), 1),
    b"PERSIST": lambda argv: 0,
}
"""Those of them by which a log tells of expiry, and the time that they set."""
_AMENDS = frozenset(b"APPEND SETRANGE INCR INCRBY INCRBYFLOAT INCREX DECR DECRBY".split())
"""Commands that leave a part of the string as it was."""
