"""A kvstream server that follows a source: commands and journal go there as one transaction each.

The server expires keys by its own clock meanwhile; what that or a refused command has changed is
found at the cut-over, when every key is compared.

Where the commands of a source go: an open store, where data and journal are one commit.

How far a source has been followed: one string key of the target, written with every commit.

::

    journal := JSON {"state": "loading" | "following", "source": text, "replid": text, "offset": n,
                     "db": n, "again": [[db, hex of key]*], "skipped": {name: n}, "refused": {..}}

As it is in the commit of what it tells of, neither kill -9 nor a lost link can make us apply a
command twice, or leave one out. The database is part of it: a source that goes on where it was
asked to does not say SELECT again.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from kvstream.engine.engine import Engine
from kvstream.errors import Corruption, KVStreamError, RequestError, UnknownOutcome
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration.items import Selection
from kvstream.migration.replication.applying import NOTHING_EXPIRES, Applier, clear
from kvstream.migration.replication.commands import Interpreter, Meaning, Name, Run
from kvstream.migration.replication.protocol import NOWHERE, Position, Received
from kvstream.migration.server_source import Server
from kvstream.operations import keyspace, strings
from kvstream.remote.connection import ServerUnavailable, Words, error_of, translated

JOURNAL_PREFIX = b"kvstream:follow:"
"""Opens the names of journals: no migration takes them for keys of its own."""


class State(StrEnum):
    """What a target has of its source."""

    LOADING = "loading"
    """A part of a snapshot: nothing of it is to be used."""
    FOLLOWING = "following"
    """All up to the position."""


@dataclass(slots=True)
class Journal:
    """The position in a source's history that a target stands at, and what is owed to it."""

    source: str
    state: State = State.LOADING
    position: Position = NOWHERE
    db: int = 0
    """The database that the next command is for."""
    again: set[Name] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def encode(self) -> bytes:
        return json.dumps(
            {
                "state": self.state,
                "source": self.source,
                "replid": self.position.replid.decode(),
                "offset": self.position.offset,
                "db": self.db,
                "again": sorted([db, key.hex()] for db, key in self.again),
                "skipped": self.skipped,
                "refused": self.refused,
            }
        ).encode()

    @classmethod
    def decode(cls, value: bytes) -> "Journal":
        """Return the journal that was written; Corruption where it is none."""
        try:
            told = json.loads(value)
            return cls(
                str(told["source"]),
                State(told["state"]),
                Position(told["replid"].encode(), int(told["offset"])),
                int(told["db"]),
                {(int(db), bytes.fromhex(key)) for db, key in told["again"]},
                Counter(told["skipped"]),
                Counter(told["refused"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Corruption(f"the journal of a follower is damaged: {value[:80]!r}") from error


def journal_key(source: str, selection: Selection) -> bytes:
    """Return the key of the journal of one source and what is followed of it."""
    databases = None if selection.databases is None else sorted(selection.databases)
    told = json.dumps([source, [pattern.hex() for pattern in selection.match], databases])
    return JOURNAL_PREFIX + hashlib.sha256(told.encode()).hexdigest()[:16].encode()


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


_CLEARED = 1000
"""Keys that are deleted at once."""


class FollowingServer:
    """A server that follows a source."""

    passing: tuple[type[Exception], ...] = (ServerUnavailable, UnknownOutcome)

    def __init__(self, server: Server, source: str, selection: Selection) -> None:
        self._server = server
        self._source = source
        self._selection = selection
        self._key = journal_key(source, selection)
        self._databases = self._count_databases()
        self.recover()

    def recover(self) -> None:
        """Read the journal, which a transaction whose reply was lost has written, or not."""
        value = self._server.connection(JOURNAL_DB).ask("GET", self._key)
        self.journal = Journal(self._source) if value is None else Journal.decode(value)
        if value is None:
            refuse_others(self._keys(db) for db in self._followed())
        self._stream = self._new_stream(self.journal.db)

    def _count_databases(self) -> int:
        told = self._server.connection(JOURNAL_DB).ask("CONFIG", "GET", "databases")
        return int(told[1]) if told else 16

    def _followed(self) -> list[int]:
        return [db for db in range(self._databases) if self._selection.has_database(db)]

    def _keys(self, db: int) -> list[bytes]:
        found = self._server.connection(db).ask("KEYS", "*")
        return [key for key in found if self._selection.has(db, key)]

    def _new_stream(self, db: int) -> Interpreter:
        stream = Interpreter(self._selection, self._databases, db)
        owe(self.journal, stream)
        return stream

    def begin(self) -> None:
        self.journal = Journal(self.journal.source)
        self._stream = self._new_stream(0)
        self._execute([])
        for db in self._followed():
            self._clear(db)

    def _clear(self, db: int) -> None:
        keys = self._keys(db)
        for at in range(0, len(keys), _CLEARED):
            self._server.connection(db).do("UNLINK", *keys[at : at + _CLEARED])

    def loaded(self, position: Position, db: int) -> None:
        self.journal.state, self.journal.position = State.FOLLOWING, position
        self.journal.db = self._stream.db = db
        self._execute([])

    def commit(self, commands: Sequence[Received], position: Position) -> None:
        done: list[Meaning] = []
        runs: list[Run] = []
        for command in commands:
            told = self._stream.read(command.argv)
            for db in self._stream.flushed(told) if told.flushed else ():
                runs.append(Run(db, self._flush_words(db)))
            runs += told.runs
            done.append(told)
        self.journal.position, self.journal.db = position, self._stream.db
        self._execute(runs)
        for told in done:
            self._stream.note_done(told)

    def _flush_words(self, db: int) -> list[bytes]:
        """Return the command that deletes what is followed of a database, as it is by now."""
        if not self._selection.match:
            return [b"FLUSHDB"]
        return [b"DEL", b"", *self._keys(db)]

    def _execute(self, runs: list[Run]) -> None:
        """Run commands, and write the journal, as one transaction."""
        words: list[Words] = []
        places: list[tuple[int, Run]] = []
        db = JOURNAL_DB
        if any(run.argv[0].upper() == b"SWAPDB" for run in runs):
            words.append(("DEL", self._key))  # it would wander with its database
        for run in runs:
            if run.db != db:
                words.append(("SELECT", run.db))
                db = run.db
            places.append((len(words), run))
            words.append(run.argv)
        if db != JOURNAL_DB:
            words.append(("SELECT", JOURNAL_DB))
        words.append(("SET", self._key, self.journal.encode()))
        replies = self._replies(words)
        for at, run in places:
            if isinstance(replies[at], KVStreamError):
                self._stream.note_refusal(run, replies[at])
            else:
                self._stream.note_run(run)

    def _replies(self, words: list[Words]) -> list[Any]:
        """Return the replies to a transaction, errors among them; the last one must be none."""
        import redis

        with (
            translated(writing=True),
            self._server.client(JOURNAL_DB).pipeline(transaction=True) as pipeline,
        ):
            for each in words:
                pipeline.execute_command(*each)
            replies = [
                error_of(reply) if isinstance(reply, redis.RedisError) else reply
                for reply in pipeline.execute(raise_on_error=False)
            ]
        if isinstance(replies[-1], KVStreamError):
            raise RequestError(f"the target does not keep how far it is: {replies[-1]}")
        return replies

    def finish(self) -> None:
        self._server.connection(JOURNAL_DB).do("DEL", self._key)
