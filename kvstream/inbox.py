"""The effect of a message in the user's own database, exactly once.

A queue delivers a message again if its worker dies after the work and before the ``ack``. An inbox
notes in the user's database, in the transaction of the work, which messages were handled. A message
that comes again is recognised, acknowledged, and not worked on. The table of the inbox::

    kvstream_inbox (queue, message, handled_at), with the primary key (queue, message)

Connections are those of ``sqlite3`` and ``psycopg``; in asyncio those of ``aiosqlite`` and the
``AsyncConnection`` of ``psycopg``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any, Protocol, Self

from kvstream.errors import InvalidArgument, LeaseLost, show
from kvstream.queue import Message
from kvstream.storage.contexts import contextmanager

__all__ = ["AsyncInbox", "Inbox"]


def __dir__() -> list[str]:
    return __all__


TABLE = "kvstream_inbox"


class Awaited(Protocol):
    """A message of ``kvstream.aio``."""

    @property
    def _sync(self) -> Message[Any]: ...

    async def ack(self) -> None: ...


class Database(Protocol):
    """A kind of database: its SQL, and how its transactions begin."""

    create: str
    insert: str
    forget: str

    def transaction(self, connection: Any) -> AbstractContextManager[object]:
        """Return a block that commits, and is rolled back by an exception."""
        ...


class SQLite:
    """The standard library's sqlite3."""

    create = (
        f"CREATE TABLE IF NOT EXISTS {TABLE} (queue TEXT NOT NULL, message TEXT NOT NULL, "
        "handled_at REAL NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400), "
        "PRIMARY KEY (queue, message)) WITHOUT ROWID"
    )
    insert = f"INSERT OR IGNORE INTO {TABLE} (queue, message) VALUES (?, ?)"
    forget = f"DELETE FROM {TABLE} WHERE handled_at < (julianday('now') - 2440587.5) * 86400 - ?"

    @contextmanager
    def transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Begin a transaction that has the write lock: two workers cannot both be the first."""
        _refuse_open(connection.in_transaction)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


class Postgres:
    """psycopg 3."""

    create = (
        f"CREATE TABLE IF NOT EXISTS {TABLE} (queue text NOT NULL, message text NOT NULL, "
        "handled_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (queue, message))"
    )
    insert = f"INSERT INTO {TABLE} (queue, message) VALUES (%s, %s) ON CONFLICT DO NOTHING"
    forget = f"DELETE FROM {TABLE} WHERE handled_at < now() - make_interval(secs => %s)"

    def transaction(self, connection: Any) -> AbstractContextManager[object]:
        """Begin a transaction; a second insert of a message waits for the end of the first."""
        _refuse_open(connection.info.transaction_status.name != "IDLE")
        block: AbstractContextManager[object] = connection.transaction()
        return block


class Inbox:
    """Handles each message once in the transaction of a database connection. ::

    inbox = Inbox(sqlite3.connect("app.db"))
    for message in emails.listen():
        with inbox.handle(message) as is_new:
            if is_new:
                inbox.connection.execute("INSERT INTO sent VALUES (?)", (message.fields[b"to"],))
    """

    def __init__(self, connection: Any) -> None:
        """Create the table of the inbox, if it is missing, in the database of a connection."""
        self.connection = connection
        self._database = _database_of(connection)
        with self._database.transaction(connection):
            connection.execute(self._database.create)

    @contextmanager
    def handle(self, message: Message[Any]) -> Iterator[bool]:
        """Run a block in a transaction of the database, then acknowledge the message.

        Gives True if the message was not handled before. The block must not commit. If it raises,
        nothing is committed and the message is not acknowledged: it comes again when its lease has
        ended, or at once after ``message.nack()``. A lease that was lost meanwhile is no error: the
        next delivery of the message is recognised.
        """
        row = _row(message, message)
        with self._database.transaction(self.connection):
            yield self.connection.execute(self._database.insert, row).rowcount == 1
        with suppress(LeaseLost):
            message.ack()

    def forget(self, seconds: float) -> int:
        """Delete the notes of messages handled more than ``seconds`` ago; return how many.

        Keep them for longer than a message may take until its last delivery.
        """
        with self._database.transaction(self.connection):
            cursor = self.connection.execute(self._database.forget, (seconds,))
            return int(cursor.rowcount)


class AsyncInbox:
    """An inbox in a connection of aiosqlite or psycopg, for the tasks of one event loop. ::

    inbox = await AsyncInbox.open(await aiosqlite.connect("app.db"))
    async for message in emails.listen():
        async with inbox.handle(message) as is_new:
            if is_new:
                await inbox.connection.execute("INSERT INTO sent VALUES (?)", ["ann"])
    """

    def __init__(self, connection: Any, database: Database) -> None:
        """Wrap a connection whose database has the table; use ``open`` instead."""
        self.connection = connection
        self._database = database

    @classmethod
    async def open(cls, connection: Any) -> Self:
        """Create the table of the inbox, if it is missing, in the database of a connection."""
        self = cls(connection, _database_of(connection, is_async=True))
        async with self._transaction():
            await connection.execute(self._database.create)
        return self

    @asynccontextmanager
    async def handle(self, message: Awaited) -> AsyncIterator[bool]:
        """Run a block in a transaction, then acknowledge ``message``; see ``Inbox.handle``."""
        row = _row(getattr(message, "_sync", None), message)
        async with self._transaction():
            cursor = await self.connection.execute(self._database.insert, row)
            yield cursor.rowcount == 1
        with suppress(LeaseLost):
            await message.ack()

    async def forget(self, seconds: float) -> int:
        """Delete the notes of messages handled more than ``seconds`` ago; return how many."""
        async with self._transaction():
            cursor = await self.connection.execute(self._database.forget, (seconds,))
            return int(cursor.rowcount)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        if isinstance(self._database, Postgres):
            async with self._database.transaction(self.connection):  # type: ignore[attr-defined]
                yield
            return
        _refuse_open(self.connection.in_transaction)
        await self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            await self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                await self.connection.execute("ROLLBACK")
            raise


def _row(message: Message[Any] | None, given: object) -> tuple[str, str]:
    """Return what the table has of a message: its queue and group, and its ID."""
    if not isinstance(message, Message):
        raise InvalidArgument(
            "an Inbox handles a message of a Queue, an AsyncInbox that of an AsyncQueue, not "
            f"{show(given)}"
        )
    key = message.key
    name = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key
    group = message.queue._group.decode("utf-8", "backslashreplace")
    return f"{name} {group}", str(message.id)


def _refuse_open(is_open: bool) -> None:
    if is_open:
        raise InvalidArgument(
            "the connection has a transaction open: commit it before the message is handled"
        )


def _database_of(connection: Any, is_async: bool = False) -> Database:
    kind = type(connection)
    package = kind.__module__.partition(".")[0]
    if package == "psycopg" and kind.__name__.startswith("Async") == is_async:
        return Postgres()
    if isinstance(connection, sqlite3.Connection) if not is_async else package == "aiosqlite":
        return SQLite()
    known = "aiosqlite, or an AsyncConnection of psycopg" if is_async else "sqlite3 or psycopg"
    raise InvalidArgument(f"an inbox is in a connection of {known}, not {show(connection)}")
