"""Connections to servers: options that are refused, and lost connections."""

import os
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis

import kvstream
from kvstream import (
    AccessDenied,
    InvalidArgument,
    ServerUnavailable,
    Store,
    StoreClosed,
    UnknownOutcome,
)
from kvstream.remote.connection import BLOCK_S_MAX, Connection, Link, connect
from kvstream.remote.engine import RemoteEngine
from kvstream.resp import waits
from kvstream.spark.jobs.places import place as place_of_job
from tests.patience import PATIENCE_S, until


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"durability": "always"}, "durability"),
        ({"read_only": True}, "read_only"),
        ({"block_cache_bytes": 1}, "block_cache_bytes"),
    ],
)
def test_options_of_a_directory_are_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} is for a store in a directory"):
        kvstream.open("redis://localhost", **options)


def test_a_missing_server_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match=r"no connection to 127\.0\.0\.1:1"):
        kvstream.open("redis://127.0.0.1:1")
    with pytest.raises(ServerUnavailable, match="No such file"):
        kvstream.open(f"unix://{tmp_path}/none")


def test_the_error_of_a_missing_server_is_shown_by_its_public_name() -> None:
    with pytest.raises(ServerUnavailable) as refused:
        kvstream.open("redis://127.0.0.1:1")
    (shown,) = traceback.format_exception_only(refused.value)
    assert shown.startswith("kvstream.errors.ServerUnavailable: no connection to 127.0.0.1:1: ")
    same = pickle.loads(pickle.dumps(refused.value))
    assert (type(same), str(same)) == (ServerUnavailable, str(refused.value))


def test_a_url_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (Store.open, kvstream.connect):
        with pytest.raises(InvalidArgument, match=r'use kvstream\.open\("redis://\.\.\."\)'):
            call("redis://:secret@localhost")
    with pytest.raises(InvalidArgument, match="is a URL, not a path"):
        kvstream.open("https://localhost")
    assert os.listdir(tmp_path) == []


def test_a_url_of_valkey_is_that_of_a_server(url: str) -> None:
    same = url.replace("redis://", "valkey://")
    with kvstream.open(same) as store, connect(same) as client:
        eid = store.stream("s").add({"n": 1})
        assert client.xrange("s")[0][0] == bytes(eid)
    assert place_of_job(same) == {"url": same}


def test_a_directory_opens_as_before(directory: Path) -> None:
    with kvstream.open(directory, durability="always", db=1) as store:
        assert (store.db, store.engine.durability) == (1, "always")
        store.stream("s").add({"a": 1})
    with kvstream.open(os.fsencode(directory), read_only=True, db=1) as store:
        assert len(store.stream("s")) == 1


def test_a_password_for_a_server_without_one_is_named(url: str) -> None:
    if url.startswith("unix:"):
        pytest.skip("a path has no place for a password")
    with pytest.raises(AccessDenied, match="the server has no password: leave it out of the URL"):
        kvstream.open(url.replace("://", "://:secret@"))


def test_methods_that_need_files_are_refused(url: str) -> None:
    with kvstream.open(f"{url}/3") as store:
        assert store.db == 3
        assert repr(store) == f"<Store '{url.removeprefix('redis://')}', db 3>"
        store.stream("s").add({"a": 1})
        calls: list[Any] = [
            store.check,
            store.sync,
            lambda: store.image("s"),
            lambda: store.rows("s", "0", "1", 1),
            lambda: store.loader("s"),
            lambda: store.checkpoint("there"),
            lambda: store.bulk_ticket(["s"]),
            lambda: store.engine,
        ]
        for call in calls:
            with pytest.raises(InvalidArgument, match="works on the files of a store"):
                call()
        with pytest.raises(InvalidArgument, match="a server chooses its format"):
            store.dump("s", "redis:7.2")
        store.compact()
        assert store.stats()["server"]["redis_mode"] == "standalone"


def blocked(client: Any) -> int:
    return int(client.info("clients")["blocked_clients"])


def links_of(store: Store) -> list[Link]:
    engine = store._engine
    assert isinstance(engine, RemoteEngine)
    return engine.connection()._free


def kill_idle(store: Store, url: str) -> None:
    """End the connections of a store, and wait until it can detect that."""
    kill_clients(url)
    until(lambda: not any(link.is_open() for link in links_of(store)))


def kill_clients(url: str) -> None:
    """End the connections of all other clients."""
    with redis.Redis.from_url(url) as client:
        kill: Any = client.client_kill_filter
        kill(_type="normal", skipme=True)


def test_idle_connections_closed_by_the_server_are_reopened(url: str) -> None:
    with kvstream.open(url) as store:
        store.stream("s").add({"n": 1})
        kill_idle(store, url)
        store.stream("s").add({"n": 2})
        kill_idle(store, url)
        assert len(store.stream("s")) == 2


def test_a_read_whose_connection_is_lost_is_sent_again(old: str) -> None:
    with kvstream.open(old) as store:
        got: list[Any] = []
        wait = threading.Thread(
            target=lambda: got.append(store.stream("s").read(block=PATIENCE_S)), daemon=True
        )
        wait.start()
        with redis.Redis.from_url(old) as client:
            until(lambda: blocked(client) == 1)
            kill_clients(old)
            until(lambda: blocked(client) == 1)
        store.stream("s").add({"n": 1})
        wait.join(PATIENCE_S)
        assert [entry.fields for entry in got[0]] == [{b"n": b"1"}]


def test_closing_a_store_ends_the_reads_of_other_threads_at_once(url: str) -> None:
    store = kvstream.open(url)
    stream = store.stream("s")
    group = stream.create_group("g")
    errors: list[Exception] = []

    def run(read: Callable[[], object]) -> None:
        try:
            read()
        except StoreClosed as error:
            errors.append(error)

    reads: list[Callable[[], object]] = [
        lambda: stream.read(block=0),
        lambda: group.consumer("c").read(block=0),
        lambda: list(group.consumer("d").listen(poll=60)),
    ]
    threads = [threading.Thread(target=run, args=(read,), daemon=True) for read in reads]
    for thread in threads:
        thread.start()
    with redis.Redis.from_url(url) as client:
        until(lambda: blocked(client) == len(threads))
        begun = time.monotonic()
        store.close()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert time.monotonic() - begun < BLOCK_S_MAX / 2
        assert len(errors) == len(threads)
        until(lambda: blocked(client) == 0)


class ClosedMeanwhile(RemoteEngine):
    """An engine that another thread closes while it connects to database 7."""

    def _connect(self, db: int | None) -> Connection:
        if db == 7:
            self.close()
        return super()._connect(db)


def test_a_store_that_is_closed_while_it_connects_sends_nothing(url: str) -> None:
    store = Store(ClosedMeanwhile(url), 7)
    with pytest.raises(StoreClosed):
        store.size()


def test_a_group_read_whose_connection_is_lost_may_have_delivered(old: str) -> None:
    with kvstream.open(old) as store:
        errors: list[Exception] = []
        worker = store.stream("s").create_group("g").consumer("c")

        def read() -> None:
            try:
                worker.read(block=PATIENCE_S)
            except UnknownOutcome as error:
                errors.append(error)

        wait = threading.Thread(target=read, daemon=True)
        wait.start()
        with redis.Redis.from_url(old) as client:
            until(lambda: blocked(client) == 1)
            kill_clients(old)
        wait.join(PATIENCE_S)
        assert len(errors) == 1


def test_only_repeatable_requests_are_sent_again(url: str) -> None:
    lose: list[bool] = []

    class Losing(Connection):
        def _execute(self, *words: Any) -> Any:
            reply = super()._execute(*words)
            if lose:
                lose.pop()
                raise redis.ConnectionError("gone")
            return reply

    class Engine(RemoteEngine):
        connection_type = Losing

    with Store(Engine(url)) as store:
        stream = store.stream("s")
        stream.add({"n": 0})
        lose.append(True)
        assert len(stream) == 1
        lose.append(True)
        made = stream.add({"n": 1}, idmp=("p", "i"))
        assert stream.range()[-1].id == made
        lose.append(True)
        with pytest.raises(UnknownOutcome, match="may or may not have done it"):
            stream.add({"n": 2})
        assert len(stream) == 3
        lose += [True, True]
        with pytest.raises(UnknownOutcome):
            stream.add({"n": 3}, idmp=("p", "j"))
        lose += [True, True]
        with pytest.raises(ServerUnavailable):
            len(stream)


def test_a_blocked_read_outlives_the_timeout_of_its_socket(url: str) -> None:
    with kvstream.open(f"{url}?socket_timeout=0.3") as store:
        stream = store.stream("s")
        late = threading.Timer(1.0, lambda: stream.add({"n": 1}))
        late.start()
        assert len(stream.read(block=PATIENCE_S)) == 1
        late.join()


def test_the_plain_import_is_without_redis_py() -> None:
    script = "import sys, kvstream; print({'redis', 'kvstream.remote'} & sys.modules.keys())"
    run = [sys.executable, "-c", script]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == "set()"


FORKING = """
import os, sys, kvstream

with kvstream.open(sys.argv[1]) as store:
    stream = store.stream("s")
    stream.add({"n": 1})
    child = os.fork()
    for n in range(100):
        assert stream.add({"n": n}).ms > 0
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(stream) == 201
"""


def test_a_forked_child_has_its_own_connections(url: str) -> None:
    subprocess.run([sys.executable, "-c", FORKING, url], check=True, timeout=PATIENCE_S)


def test_the_example_runs_as_printed(url: str) -> None:
    page = Path(kvstream.__file__).parent.parent / "docs" / "library.md"
    (example,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        if "redis://" in block
    )
    exec(compile(example.replace("redis://localhost:6379", url), "example", "exec"), {})
    with kvstream.open(url) as store:
        assert len(store.stream("orders")) == 1


def test_other_databases_have_their_own_connections(url: str) -> None:
    made: list[int] = []

    class Counted(Connection):
        def __init__(self, client: Any, db: int | None = None) -> None:
            super().__init__(client, db)
            made.append(self.db)

    class Engine(RemoteEngine):
        connection_type = Counted

    with Store(Engine(url)) as store:
        store.select(5).stream("s").add({"a": 1})
        assert store.select(5).size() == 1
        assert store.size() == 0
        assert made == [0, 5]


@pytest.mark.skipif(waits is None, reason="waits are compiled")
def test_a_wait_for_a_reply_polls_after_short_ones_until_a_long_one() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiting = waits.ReplyWait(ours.fileno(), True)

        def short_wait() -> None:
            theirs.send(b"+")
            waiting.wait()
            ours.recv(1)

        def processor_us() -> float:
            """Return the processor time of a wait for nothing: little if it sleeps."""
            begun = time.thread_time_ns()
            waiting.wait()
            return (time.thread_time_ns() - begun) / 1000

        def polls_after_short_waits() -> bool:
            for _ in range(20):
                short_wait()
            return processor_us() > 50

        assert min(processor_us() for _ in range(5)) < 50
        assert any(polls_after_short_waits() for _ in range(1000))
        assert min(processor_us() for _ in range(5)) < 50  # the last one was long


def test_replies_of_slow_and_fast_servers_are_read_alike() -> None:
    """Replies that come at once, late, and in parts."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        end, _ = listening.accept()
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with end, end.makefile("rb") as requests:
            for number in count():
                head = requests.readline()
                if not head:
                    return
                for _ in range(2 * int(head[1:])):
                    requests.readline()
                late = number % 40 == 39
                if late:
                    time.sleep(0.01)
                reply = b"+PONG\r\n"
                end.sendall(reply[:3])
                if late:
                    time.sleep(0.002)
                end.sendall(reply[3:])

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    link = Link(connect(f"redis://127.0.0.1:{listening.getsockname()[1]}"))
    for _ in range(200):
        assert link.ask(("PING",)) == b"PONG"
    link.close()
    server.join(PATIENCE_S)
    listening.close()


def test_an_open_store_is_not_pickled(url: str) -> None:
    with kvstream.open(url) as store, pytest.raises(TypeError, match="open its URL in the other"):
        pickle.dumps(store.stream("s"))


def test_the_database_is_a_number(url: str) -> None:
    with pytest.raises(InvalidArgument, match="db must be a whole number, not '1'"):
        kvstream.open(url, db="1")  # type: ignore[call-overload]
