"""An inbox: the effect of a message in the user's own database happens once."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

import kvstream
from kvstream import Inbox, InvalidArgument, LeaseLost, Message, Queue, Store
from kvstream.aio import AsyncMessage, AsyncQueue
from kvstream.inbox import AsyncInbox
from tests.patience import PATIENCE_S, until

Connect = Callable[[], Any]


@contextmanager
def postgres() -> Iterator[Connect]:
    """Run a server of Postgres only on a Unix socket; skip without its programs or psycopg."""
    psycopg = pytest.importorskip("psycopg")
    initdb, program = shutil.which("initdb"), shutil.which("postgres")
    if initdb is None or program is None:
        pytest.skip("Postgres is not installed: apt-get install postgresql")
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="kvstream-postgres-", dir="/tmp"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        data = folder / "data"
        made = [initdb, "-D", str(data), "-U", "kvstream", "-A", "trust", "--no-sync"]
        subprocess.run(made, user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
        with subprocess.Popen(
            [program, "-D", str(data), *options], user=user, cwd=folder, stderr=subprocess.DEVNULL
        ) as server:
            address = f"host={folder} dbname=postgres user=kvstream"

            def answers() -> bool:
                try:
                    psycopg.connect(address).close()
                except psycopg.OperationalError:
                    return False
                return True

            try:
                until(answers)
                yield lambda: psycopg.connect(address)
            finally:
                server.terminate()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def connect_postgres() -> Iterator[Connect]:
    with postgres() as connecting:
        yield connecting


@pytest.fixture(params=["sqlite3", "psycopg"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Connect to an empty database."""
    if request.param == "sqlite3":
        path = tmp_path / "app.db"
        yield lambda: sqlite3.connect(path, timeout=PATIENCE_S, check_same_thread=False)
        return
    connecting: Connect = request.getfixturevalue("connect_postgres")
    with closing(connecting()) as connection:
        connection.execute("DROP TABLE IF EXISTS sent, kvstream_inbox")
        connection.commit()
    yield connecting


@pytest.fixture
def inbox(connect: Connect) -> Iterator[Inbox]:
    with closing(connect()) as connection:
        connection.execute("CREATE TABLE sent (n text)")
        connection.commit()
        yield Inbox(connection)


@pytest.fixture
def queue(store: Store) -> Queue:
    queue = Queue(store, "q", consumer="ann")
    queue.put_many([{"n": n} for n in range(3)])
    return queue


def send(inbox: Inbox, message: Message, fail: bool = False) -> bool:
    """Do the work of a message; return whether it was new."""
    with inbox.handle(message) as is_new:
        if is_new:
            sent = message.fields[b"n"].decode()
            inbox.connection.execute(f"INSERT INTO sent VALUES ('{sent}')")
        if fail:
            raise ZeroDivisionError
    return is_new


def list_sent(inbox: Inbox) -> list[str]:
    rows = inbox.connection.execute("SELECT n FROM sent ORDER BY n").fetchall()
    inbox.connection.commit()
    return [row[0] for row in rows]


def test_a_message_is_handled_once_and_acknowledged(queue: Queue, inbox: Inbox) -> None:
    first, second = queue.get(2)
    assert send(inbox, first)
    assert send(inbox, second)
    assert queue.info().leased == 0
    assert list_sent(inbox) == ["0", "1"]


def test_a_message_whose_acknowledgement_was_lost_is_recognised(queue: Queue, inbox: Inbox) -> None:
    (message,) = queue.get()
    message.nack()  # as if its lease had ended
    assert send(inbox, message)
    (again,) = queue.get()
    assert (again.id, again.deliveries) == (message.id, 2)
    assert not send(inbox, again)
    assert list_sent(inbox) == ["0"]
    with pytest.raises(LeaseLost):
        again.ack()
    Inbox(inbox.connection)  # the table exists


def test_a_failure_leaves_no_trace_and_the_message_is_not_acknowledged(
    queue: Queue, inbox: Inbox
) -> None:
    (message,) = queue.get()
    with pytest.raises(ZeroDivisionError):
        send(inbox, message, fail=True)
    assert list_sent(inbox) == []
    assert queue.info().leased == 1
    assert send(inbox, message)
    assert list_sent(inbox) == ["0"]


def test_two_workers_with_the_same_message_do_its_work_once(
    queue: Queue, inbox: Inbox, connect: Connect
) -> None:
    (message,) = queue.get()
    message.nack()
    (again,) = queue.get()
    inside, news = threading.Event(), list[bool]()

    def work() -> None:
        with closing(connect()) as connection, Inbox(connection).handle(again) as is_new:
            news.append(is_new)

    with inbox.handle(message) as is_new:
        thread = threading.Thread(target=work)
        thread.start()
        inside.wait(0.1)  # the other one waits for the end of this block
        assert news == []
    thread.join(PATIENCE_S)
    assert (is_new, news) == (True, [False])


def test_messages_of_other_queues_and_groups_are_others(
    store: Store, queue: Queue, inbox: Inbox
) -> None:
    other = Queue(store, "q", group="others", consumer="bob")
    assert send(inbox, queue.get()[0])
    assert send(inbox, other.get()[0])
    assert list_sent(inbox) == ["0", "0"]


def test_old_rows_are_deleted(queue: Queue, inbox: Inbox) -> None:
    for message in queue.get(3):
        send(inbox, message)
    assert inbox.forget(60) == 0
    assert inbox.forget(-1) == 3


def test_an_open_transaction_is_refused_and_not_committed(queue: Queue, inbox: Inbox) -> None:
    (message,) = queue.get()
    inbox.connection.execute("INSERT INTO sent VALUES ('mine')")
    with pytest.raises(InvalidArgument, match="the connection has a transaction open"):
        send(inbox, message)
    inbox.connection.rollback()
    assert list_sent(inbox) == []


def test_another_kind_of_message_is_refused(inbox: Inbox) -> None:
    with (
        pytest.raises(InvalidArgument, match="an Inbox handles a message of a Queue"),
        inbox.handle("1-1"),  # type: ignore[arg-type]
    ):
        pass


def test_another_kind_of_connection_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="an inbox is in a connection of sqlite3 or psycopg"):
        Inbox(object())


# --- asyncio --------------------------------------------------------------------------------------


async def async_connection(kind: str, connect: Connect, path: Path) -> Any:
    if kind == "sqlite3":
        return await aiosqlite.connect(path)
    import psycopg

    with closing(connect()) as connection:
        dsn = connection.info.dsn
    return await psycopg.AsyncConnection.connect(dsn)


def test_an_inbox_of_asyncio_handles_each_message_once(
    connect: Connect, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kind = request.node.callspec.params["connect"]

    async def send_in(inbox: AsyncInbox, message: AsyncMessage, fail: bool = False) -> bool:
        async with inbox.handle(message) as is_new:
            if is_new:
                number = message.fields[b"n"].decode()
                await inbox.connection.execute(f"INSERT INTO sent VALUES ('{number}')")
            if fail:
                raise ZeroDivisionError
        return is_new

    async def program() -> None:
        connection = await async_connection(kind, connect, tmp_path / "app.db")
        await connection.execute("CREATE TABLE sent (n text)")
        await connection.commit()
        inbox = await AsyncInbox.open(connection)
        async with kvstream.aio.open(tmp_path / "queue", durability="no") as store:
            queue = AsyncQueue(store, "q", consumer="ann", lease=PATIENCE_S)
            await queue.put({"n": 1})
            (message,) = await queue.get()
            with pytest.raises(ZeroDivisionError):
                await send_in(inbox, message, fail=True)
            assert await send_in(inbox, message)
            assert (await queue.info()).leased == 0
            with pytest.raises(InvalidArgument, match="an Inbox handles a message of a Queue"):
                await send_in(inbox, message._sync)  # type: ignore[arg-type]
            assert not await send_in(inbox, message)  # its lease is over, which is no error
            await connection.execute("INSERT INTO sent VALUES ('2')")
            with pytest.raises(InvalidArgument, match="transaction open"):
                await send_in(inbox, message)
            await connection.rollback()
        cursor = await connection.execute("SELECT n FROM sent")
        assert await cursor.fetchall() == [("1",)]
        await connection.rollback()
        assert await inbox.forget(-1) == 1
        await connection.close()

    asyncio.run(program())


def test_an_inbox_of_asyncio_needs_a_connection_of_asyncio() -> None:
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(InvalidArgument, match="a connection of aiosqlite, or an AsyncConnection"),
    ):
        asyncio.run(AsyncInbox.open(connection))
