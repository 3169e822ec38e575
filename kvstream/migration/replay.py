"""Replay of an append-only file on an open store, and the keys that the store cannot hold.

A log has all commands that succeeded. So keys of unsupported types, and strings that kvstream
cannot compute, are tracked through every command that deletes, overwrites, renames or copies them.
A stream command proves that its key is a stream at that point.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kvstream.commands.args import Argv
from kvstream.commands.table import find
from kvstream.engine.engine import Engine
from kvstream.errors import KVStreamError, NoSuchKey
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration.items import STREAM, STRING, DbKey, Selection
from kvstream.migration.replication.applying import Applier, flushes
from kvstream.migration.replication.commands import Run, Translation
from kvstream.operations import keyspace
from kvstream.operations.functions import by_name
from kvstream.rdb.payload import restore_functions


class Unsupported(NamedTuple):
    """A key whose value the store lacks or has wrong."""

    kind: str
    """The type; for a string also the command that changed it; "": the key may not exist."""
    expire_at_ms: int = 0
    size: int = 0
    why: str = ""
    """Why a migration of this key is refused; "": it is reported and skipped."""

    @property
    def type(self) -> str:
        return self.kind.partition(" ")[0]


class _Everything(Selection):
    """All keys: temporary keys of an earlier migration were renamed later in the log."""

    def has(self, db: int, key: bytes) -> bool:
        return True


class Replay(Applier):
    """Runs a log as Redis loads it: XCLAIM does not change entries-read."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, _Everything(), counts_reads=False)
        self.unsupported: dict[DbKey, Unsupported] = {}
        self.libraries: dict[bytes, bytes] = {}
        """The libraries of functions by name, of engines that the store does not know as well."""
        self._word = ""
        """The name of the current command."""

    def apply(self, txn: Txn, argv: Argv) -> None:
        self._word = argv[0].decode("ascii", "backslashreplace").upper()
        super().apply(txn, argv)

    def read(self, argv: Argv) -> Translation:
        translation = super().read(argv)
        # A key of this name in the store is an older one, which was deleted before.
        translation.runs += [
            Run(db, [b"DEL", key])
            for (db, key), _ in translation.retyped
            if (db, key) not in self.unsupported and not translation.runs
        ]
        if translation.is_opaque:
            self._doubt((self.db, word) for word in argv[1:])
        return translation

    def _doubt(self, names: Iterable[DbKey]) -> None:
        """Record the arguments of an unknown command: any of them may be a key."""
        why = f"the log has {self._word}, which kvstream does not know and may have changed it"
        for name in names:
            if len(name[1]) <= _DOUBTED_BYTES_MAX:
                self.unsupported.setdefault(name, Unsupported("", why=why))

    def finish(self, txn: Txn) -> None:
        """Forget doubtful names that are not keys of the store."""
        for name, held in list(self.unsupported.items()):
            if not held.kind and not keyspace.exists(txn, qualified(*name)):
                del self.unsupported[name]

    def change_functions(self, txn: Txn, argv: Argv) -> None:
        """Follow a FUNCTION command without the store, which refuses libraries of other engines."""
        change = argv[1].upper()
        if change == b"DELETE":
            self.libraries.pop(argv[2], None)
            return
        if change == b"FLUSH" or flushes(argv):
            self.libraries.clear()
        if change != b"FLUSH":
            texts = argv[-1:] if change == b"LOAD" else restore_functions(argv[2])
            self.libraries.update(by_name(texts))

    # --- commands that were run -----------------------------------------------------------------

    def note_flush(self, translation: Translation) -> list[int]:
        numbers = super().note_flush(translation)
        for name in [name for name in self.unsupported if name[0] in numbers]:
            del self.unsupported[name]
        return numbers

    def note_run(self, run: Run) -> None:
        super().note_run(run)
        word = run.argv[0].upper()
        if not self.unsupported or word in _MOVES:
            return
        keys = [(run.db, key) for key in find(run.argv).keys_of(run.argv)]
        for name in keys:
            held = self.unsupported.get(name)
            if held is None:
                continue
            if word in _EXPIRES:
                self.unsupported[name] = held._replace(expire_at_ms=_EXPIRES[word](run.argv))
            elif word not in _GENERIC and not _leaves(word, held):
                del self.unsupported[name]

    def note_refusal(self, run: Run, error: KVStreamError) -> None:
        """Record a command that the server has run and the store refuses: its keys are wrong."""
        word = run.argv[0].upper()
        if word == b"FUNCTION":
            super().note_refusal(run, error)
            return
        names = [(run.db, key) for key in find(run.argv).keys_of(run.argv)]
        if word in _MOVES and isinstance(error, NoSuchKey):
            return
        if all(name in self.unsupported for name in names):  # a consequence of an earlier refusal
            return
        self.refused[f"{self._word}: {error.reply}"] += 1
        kind = STREAM if word.startswith(b"X") else STRING
        why = f"{self._word} of the log was refused ({error.reply})"
        for name in names:
            self.unsupported.setdefault(name, Unsupported(kind, why=why))

    def note_done(self, translation: Translation) -> None:
        if self.unsupported:
            self._note_unsupported_moves(translation)
        for name, kind in translation.retyped:
            held = self.unsupported.get(name)
            if held is None or held.kind != kind:
                self.unsupported[name] = Unsupported(kind)
        for name in translation.recopy:
            why = (
                f"the log has {self._word}, a script that names it" if translation.is_opaque else ""
            )
            self.unsupported[name] = Unsupported(
                "unknown" if why else f"{STRING} ({self._word})", why=why
            )

    def _note_unsupported_moves(self, translation: Translation) -> None:
        if translation.moved is not None:
            source, target, keeps = translation.moved
            held = self.unsupported.get(source) if keeps else self.unsupported.pop(source, None)
            if held is not None:
                self.unsupported[target] = held
        if translation.swapped is not None:
            one, other = translation.swapped
            numbers = {one: other, other: one}
            self.unsupported = {
                (numbers.get(db, db), key): held for (db, key), held in self.unsupported.items()
            }


def _leaves(word: bytes, held: Unsupported) -> bool:
    """Return whether a key is still unsupported after a command that changed it."""
    if word.startswith(b"X"):
        return held.type in (STREAM, *_UNSURE)
    return word in _AMENDS and held.type in (STRING, *_UNSURE)


_UNSURE = ("", "unknown")
_DOUBTED_BYTES_MAX = 1024
"""Longest argument of an unknown command that may be a key; longer ones count as values."""
_MOVES = (b"RENAME", b"RENAMENX", b"MOVE", b"COPY", b"SWAPDB")
_GENERIC = (b"TOUCH", b"EXPIRE", b"EXPIREAT", b"PEXPIRE")
"""Commands for keys of any type."""
_EXPIRES: dict[bytes, Callable[[Argv], int]] = {
    b"PEXPIREAT": lambda argv: max(int(argv[2]), 1),
    b"PERSIST": lambda argv: 0,
}
"""Commands that set the expiry in a log, and the time that they set."""
_AMENDS = frozenset(b"APPEND SETRANGE INCR INCRBY INCRBYFLOAT INCREX DECR DECRBY".split())
"""Commands that change a string in part."""
