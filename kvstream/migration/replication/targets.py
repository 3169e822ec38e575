"""The targets of a follower: an open store, or a kvstream server.

The position in the source is a string key of the target, written in the transaction of each batch
of commands. So neither kill -9 nor a lost connection makes a command run twice or not at all. On a
server each transaction runs only if the position is still the one before it: a lost connection may
deliver a transaction late.

::

    journal := JSON {"state": "loading" | "following", "source": text, "replid": text, "offset": n,
                     "db": n, "again": [[db, hex of key]*], "skipped": {name: n}, "refused": {..}}

The selected database is part of it: a source that continues does not send SELECT again. A server
target expires keys by its own clock; differences are found at the cut-over.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from kvstream.engine.engine import Engine
from kvstream.errors import (
    Conflict,
    Corruption,
    KVStreamError,
    RequestError,
    ServerUnavailable,
    UnknownOutcome,
)
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration.items import JOURNAL_PREFIX, DbKey, Selection
from kvstream.migration.libraries import not_loaded
from kvstream.migration.replication.applying import NOTHING_EXPIRES, Applier, clear
from kvstream.migration.replication.commands import Interpreter, Run, Translation
from kvstream.migration.replication.protocol import NOWHERE, Position, Received
from kvstream.migration.server import Server
from kvstream.operations import keyspace, strings
from kvstream.operations.functions import name_of
from kvstream.remote.connection import Link, Words
from kvstream.remote.server_errors import translate_errors


class State(StrEnum):
    """The part of the source that a target has."""

    LOADING = "loading"
    """A part of a snapshot, not usable."""
    FOLLOWING = "following"
    """Everything up to the position."""


@dataclass(slots=True)
class Journal:
    """The position of a target in the source's history, and the keys to copy again."""

    source: str
    state: State = State.LOADING
    position: Position = NOWHERE
    db: int = 0
    """The selected database."""
    recopy: set[DbKey] = field(default_factory=set)
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
                "again": sorted([db, key.hex()] for db, key in self.recopy),
                "skipped": self.skipped,
                "refused": self.refused,
            }
        ).encode()

    def at(self, position: Position, db: int) -> "Journal":
        """Return the journal of a target that has everything up to a position.

        The keys to copy again and the counts are shared with this one.
        """
        return replace(self, state=State.FOLLOWING, position=position, db=db)

    @classmethod
    def decode(cls, value: bytes) -> "Journal":
        """Return the journal of a stored value; raise Corruption for damage."""
        try:
            fields = json.loads(value)
            return cls(
                str(fields["source"]),
                State(fields["state"]),
                Position(fields["replid"].encode(), int(fields["offset"])),
                int(fields["db"]),
                {(int(db), bytes.fromhex(key)) for db, key in fields["again"]},
                Counter(fields["skipped"]),
                Counter(fields["refused"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Corruption(f"the journal of a follower is damaged: {value[:80]!r}") from error


def journal_key(source: str, selection: Selection) -> bytes:
    """Return the key of the journal of a source and a selection."""
    databases = None if selection.databases is None else sorted(selection.databases)
    text = json.dumps([source, [pattern.hex() for pattern in selection.match], databases])
    return JOURNAL_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16].encode()


JOURNAL_DB = 0


class Target(Protocol):
    """A place that follows a source."""

    journal: Journal
    unavailable: tuple[type[Exception], ...]
    """Errors that it raises while it cannot be reached; call ``recover`` to continue."""

    def recover(self) -> None:
        """Read the journal: the last commit may have been done or not."""
        ...

    def begin(self) -> None:
        """Delete the followed keys, and record that a snapshot is being loaded."""
        ...

    def record_loaded(self, position: Position) -> None:
        """Record that a snapshot is loaded; the source sends a SELECT before its next command."""
        ...

    def commit(self, commands: Sequence[Received], position: Position) -> None:
        """Run commands, and record the position after them, in one transaction."""
        ...

    def finish(self) -> None:
        """Delete the journal: following has ended."""
        ...


class TargetHasKeys(RequestError):
    """A target that has not followed the source has keys of its own."""


def refuse_others(keys: Iterable[list[bytes]]) -> None:
    """Raise TargetHasKeys if the target has keys of its own among those to follow."""
    for page in keys:
        if page:
            raise TargetHasKeys(
                f"the target has keys already, such as {page[0]!r}: follow into an empty place, "
                "or into the one that has followed this source before"
            )


def _share_notes(journal: Journal, stream: Interpreter) -> None:
    """Make a stream record its keys and counts in the journal."""
    stream.recopy = journal.recopy
    stream.skipped, stream.refused = journal.skipped, journal.refused


class FollowingStore:
    """An open store that follows a source; nothing expires in it meanwhile."""

    unavailable: tuple[type[Exception], ...] = ()

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
        """Yield the followed keys of each database."""
        for db in range(self._engine.options.databases):
            if self._selection.has_database(db):
                _, keys = self._engine.run(keyspace.scan, db, 0, 1 << 62)
                yield [key for key in keys if self._selection.has(db, key)]

    def _new_applier(self, db: int) -> Applier:
        held = self._selection.within(self._engine.options.databases)
        applier = Applier(self._engine, held, db)
        _share_notes(self.journal, applier)
        return applier

    def recover(self) -> None:
        """Do nothing: a store in this process is always available."""

    def begin(self) -> None:
        self.journal = Journal(self.journal.source)
        self._applier = self._new_applier(0)
        with self._engine.transaction() as txn:
            txn.expiry_ms = NOTHING_EXPIRES
            for db in range(self._engine.options.databases):
                if self._selection.has_database(db):
                    clear(txn, db, self._selection)
            self._write(txn, self.journal)

    def record_loaded(self, position: Position) -> None:
        journal = self.journal.at(position, 0)
        with self._engine.transaction() as txn:
            self._write(txn, journal)
        self.journal, self._applier.db = journal, 0

    def commit(self, commands: Sequence[Received], position: Position) -> None:
        with self._engine.transaction() as txn:
            if any(command.argv[0].upper() == b"SWAPDB" for command in commands):
                keyspace.delete(txn, self._key)  # else the journal would move with its database
            self._applier.apply_all(txn, [command.argv for command in commands])
            journal = self.journal.at(position, self._applier.db)
            self._write(txn, journal)
        self.journal = journal

    def _write(self, txn: Txn, journal: Journal) -> None:
        strings.put(txn, self._key, journal.encode())

    def finish(self) -> None:
        self._engine.run(keyspace.delete, self._key)
        self._engine.expiry.active = True


_CLEARED = 1000
"""Keys of one UNLINK."""


class FollowingServer:
    """A kvstream server that follows a source."""

    unavailable: tuple[type[Exception], ...] = (ServerUnavailable, UnknownOutcome)

    def __init__(self, server: Server, source: str, selection: Selection) -> None:
        self._server = server
        self._source = source
        self._selection = selection
        self._key = journal_key(source, selection)
        self._watch = ("WATCH", self._key)
        self._databases = self._count_databases()
        self._link: Link | None = None
        """The connection that watches the journal."""
        self.recover()

    def recover(self) -> None:
        """Read the journal, which tells whether a transaction without a reply was done."""
        value = self._server.connection(JOURNAL_DB).ask("GET", self._key)
        self.journal = Journal(self._source) if value is None else Journal.decode(value)
        if value is None:
            refuse_others(self._keys(db) for db in self._followed_databases())
        self._stored: bytes | None = value
        """The journal as it was last read or written."""
        self._stream = self._new_stream(self.journal.db)

    def _count_databases(self) -> int:
        reply = self._server.connection(JOURNAL_DB).ask("CONFIG", "GET", "databases")
        return int(reply[1]) if reply else 16

    def _followed_databases(self) -> list[int]:
        return [db for db in range(self._databases) if self._selection.has_database(db)]

    def _keys(self, db: int) -> list[bytes]:
        keys = self._server.connection(db).ask("KEYS", "*")
        return [key for key in keys if self._selection.has(db, key)]

    def _new_stream(self, db: int) -> Interpreter:
        held = self._selection.within(self._databases)
        stream = Interpreter(held, self._databases, db)
        _share_notes(self.journal, stream)
        return stream

    def begin(self) -> None:
        self.journal = Journal(self.journal.source)
        self._stream = self._new_stream(0)
        self._execute([], self.journal)
        for db in self._followed_databases():
            self._clear(db)

    def _clear(self, db: int) -> None:
        keys = self._keys(db)
        for at in range(0, len(keys), _CLEARED):
            self._server.connection(db).do("UNLINK", *keys[at : at + _CLEARED])

    def record_loaded(self, position: Position) -> None:
        self._stream.db = 0
        self._execute([], self.journal.at(position, 0))

    def commit(self, commands: Sequence[Received], position: Position) -> None:
        done: list[Translation] = []
        runs: list[Run] = []
        for command in commands:
            translation = self._stream.read(command.argv)
            for db in self._stream.note_flush(translation) if translation.flushed else ():
                runs.append(Run(db, self._flush_words(db)))
            runs += translation.runs
            done.append(translation)
        self._execute(runs, self.journal.at(position, self._stream.db))
        for translation in done:
            self._stream.note_done(translation)

    def _flush_words(self, db: int) -> list[bytes]:
        """Return the command that deletes the followed keys of a database."""
        if not self._selection.match:
            return [b"FLUSHDB"]
        return [b"DEL", b"", *self._keys(db)]

    def _execute(self, runs: list[Run], journal: Journal) -> None:
        """Run commands and write the journal in one transaction."""
        words: list[Words] = []
        places: list[tuple[int, Run]] = []
        db = JOURNAL_DB
        if any(run.argv[0].upper() == b"SWAPDB" for run in runs):
            words.append(("DEL", self._key))  # else the journal would move with its database
        for run in runs:
            if run.db != db:
                words.append(("SELECT", run.db))
                db = run.db
            places.append((len(words), run))
            words.append(run.argv)
        if db != JOURNAL_DB:
            words.append(("SELECT", JOURNAL_DB))
        value = journal.encode()
        words.append(("SET", self._key, value))
        replies = self._replies(words)
        self.journal, self._stored = journal, value
        for at, run in places:
            if isinstance(replies[at], KVStreamError):
                error = replies[at]
                if run.argv[0].upper() == b"FUNCTION" and run.argv[1].upper() == b"LOAD":
                    error = self._leave_out(run, error, is_last=run is runs[-1])
                self._stream.note_refusal(run, error)
            else:
                self._stream.note_run(run)

    def _leave_out(self, run: Run, error: KVStreamError, *, is_last: bool) -> RequestError:
        """Return the refusal of a library; delete the one that it replaces at the source.

        A later command of the transaction may have loaded another one of the name, which stays.
        """
        name = name_of(run.argv[-1])
        if is_last:
            with suppress(RequestError):  # there is none
                self._server.connection(JOURNAL_DB).do("FUNCTION", "DELETE", name)
        return RequestError(not_loaded(name, str(error)))

    def _replies(self, words: list[Words]) -> list[Any]:
        """Return the replies to a transaction, errors among them; the last must not be one.

        Nothing is done if the journal is not the one that was last read or written.
        """
        link = self._watching_link()
        self._link = None
        try:
            with translate_errors(writing=True):
                replies = link.transaction(words, then=[self._watch])
        except Conflict:
            link.close()
            raise _journal_changed() from None
        except BaseException:
            link.close()
            raise
        self._link = link
        if isinstance(replies[-1], KVStreamError):
            raise RequestError(f"the target cannot record the position: {replies[-1]}")
        return replies

    def _watching_link(self) -> Link:
        """Return a connection that watches the journal since it was last read or written."""
        if self._link is not None:
            if self._link.is_open():
                return self._link
            self.close()
        with translate_errors():
            link = self._server.connection(JOURNAL_DB).take()
            try:
                link.ask(self._watch)
                if link.ask(("GET", self._key)) != self._stored:
                    raise _journal_changed()
            except BaseException:
                link.close()
                raise
        self._link = link
        return link

    def finish(self) -> None:
        self._server.connection(JOURNAL_DB).do("DEL", self._key)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


def _journal_changed() -> ServerUnavailable:
    return ServerUnavailable("its position has changed: a transaction arrived late")
