"""Where the commands of a source go: an open store, where data and journal are one commit."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from kvstream.engine import Engine
from kvstream.errors import RequestError
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration.items import Selection
from kvstream.migration.replication.applying import NOTHING_EXPIRES, Applier, clear
from kvstream.migration.replication.interpreting import Interpreter
from kvstream.migration.replication.journal import Journal, State, journal_key
from kvstream.migration.replication.protocol import Position, Received
from kvstream.operations import keyspace, strings

JOURNAL_DB = 0


class Target(Protocol):
    """What follows a source, whatever it is."""

    journal: Journal
    passing: tuple[type[Exception], ...]
    """What its calls raise while it cannot be reached: ``recover`` goes on when it is back."""

    def recover(self) -> None:
        """Read how far it has come: the last call has been done, or not."""
        ...

    def begin(self) -> None:
        """Have nothing of the source, and note that a snapshot is being loaded."""
        ...

    def loaded(self, position: Position, db: int) -> None:
        """Note that all of a snapshot is there."""
        ...

    def commit(self, commands: Sequence[Received], position: Position) -> None:
        """Run whole units, and note the position behind them."""
        ...

    def finish(self) -> None:
        """Forget the journal: the source is followed no more."""
        ...


def refuse_others(keys: Iterable[list[bytes]]) -> None:
    """Refuse a target that has keys of its own where those of the source are to be."""
    for found in keys:
        if found:
            raise RequestError(
                f"the target has keys already, as {found[0]!r}: a source is followed into an empty "
                "place, or into the one that has followed it before"
            )


def owe(journal: Journal, stream: Interpreter) -> None:
    """Let what is noted of a stream be what its journal tells."""
    stream.again = journal.again
    stream.skipped, stream.refused = journal.skipped, journal.refused


class FollowingStore:
    """An open store that follows a source; nothing expires in it meanwhile."""

    passing: tuple[type[Exception], ...] = ()

    def __init__(self, engine: Engine, source: str, selection: Selection) -> None:
        self._engine = engine
        self._selection = selection
        self._key = qualified(JOURNAL_DB, journal_key(source, selection))
        engine.expiry.active = False
        value = engine.run(strings.get, self._key)
        self.journal = Journal(source) if value is None else Journal.decode(value)
        if value is None:
            refuse_others(self._keys())
        self._applier = self._new_applier(self.journal.db)

    def _keys(self) -> Iterator[list[bytes]]:
        """Yield the keys of each database that are followed."""
        for db in range(self._engine.options.databases):
            if self._selection.has_database(db):
                _, keys = self._engine.run(keyspace.scan, db, 0, 1 << 62)
                yield [key for key in keys if self._selection.has(db, key)]

    def _new_applier(self, db: int) -> Applier:
        applier = Applier(self._engine, self._selection, db)
        owe(self.journal, applier)
        return applier

    def recover(self) -> None:
        """A store in this process is never away."""

    def begin(self) -> None:
        self.journal = Journal(self.journal.source)
        self._applier = self._new_applier(0)
        with self._engine.transaction() as txn:
            txn.expiry_ms = NOTHING_EXPIRES
            for db in range(self._engine.options.databases):
                if self._selection.has_database(db):
                    clear(txn, db, self._selection)
            self._write(txn)

    def loaded(self, position: Position, db: int) -> None:
        self.journal.state, self.journal.position = State.FOLLOWING, position
        self.journal.db = self._applier.db = db
        with self._engine.transaction() as txn:
            self._write(txn)

    def commit(self, commands: Sequence[Received], position: Position) -> None:
        with self._engine.transaction() as txn:
            if any(command.argv[0].upper() == b"SWAPDB" for command in commands):
                keyspace.delete(txn, self._key)  # it would wander with its database
            self._applier.apply_all(txn, [command.argv for command in commands])
            self.journal.position, self.journal.db = position, self._applier.db
            self._write(txn)

    def _write(self, txn: Txn) -> None:
        strings.put(txn, self._key, self.journal.encode())

    def finish(self) -> None:
        self._engine.run(keyspace.delete, self._key)
        self._engine.expiry.active = True
