"""A kvstream server that follows a source: commands and journal go there as one transaction each.

The server expires keys by its own clock meanwhile; what that or a refused command has changed is
found at the cut-over, when every key is compared.
"""

from collections.abc import Sequence
from typing import Any

from kvstream.errors import KVStreamError, RequestError, UnknownOutcome
from kvstream.migration.items import Selection
from kvstream.migration.replication.interpreting import Interpreter
from kvstream.migration.replication.journal import Journal, State, journal_key
from kvstream.migration.replication.meaning import Meaning, Run
from kvstream.migration.replication.protocol import Position, Received
from kvstream.migration.replication.targets import JOURNAL_DB, owe, refuse_others
from kvstream.migration.server import Server
from kvstream.remote.connection import Words
from kvstream.remote.errors import ServerUnavailable, error_of, translated

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
