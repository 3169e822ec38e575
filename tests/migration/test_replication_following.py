"""Following continues after any failure of the link, of the follower and of the source."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest
import redis

from kvstream import RequestError, Store
from kvstream.migration.items import Selection
from kvstream.migration.replication.applying import load_snapshot
from kvstream.migration.replication.following import Follower, source_offset
from kvstream.migration.replication.targets import FollowingStore
from tests import forking
from tests.cli.program import ENVIRONMENT
from tests.migration.dropping import Proxy
from tests.migration.sources import Source, needs_redis
from tests.migration.states import asking, state_of, without
from tests.migration.test_replication_applying import play
from tests.patience import PATIENCE_S, until
from tests.peers import program_of

pytestmark = needs_redis


class Followed:
    """A store that follows a server in a thread of its own."""

    def __init__(self, directory: Path, source: Source, port: int | None = None) -> None:
        self.store = Store.open(directory, durability="no")
        self.source = source
        self.said: list[str] = []
        self.error: BaseException | None = None
        self._over = False
        self.follower = Follower(
            lambda: redis.Redis(port=port or source.port),
            FollowingStore(self.store.engine, source.url, Selection()),
            directory.with_suffix(".rdb"),
            partial(load_snapshot, self.store, Selection()),
            self.said.append,
        )
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        try:
            self.follower.follow(lambda: self._over)
        except BaseException as error:
            self.error = error

    def catch_up(self) -> None:
        """Wait until all commands of the source have arrived."""
        until(lambda: self.error or self._is_level())
        assert self.error is None

    def _is_level(self) -> bool:
        """Return whether the follower is at the source's position, in its current history."""
        reply = self.source.ask("INFO", "replication")
        return (
            self.follower.is_following
            and self.follower.target.journal.position.replid in reply
            and self.follower.offset >= source_offset(self.source.ask)
        )

    def compare(self) -> None:
        again = self.follower.target.journal.recopy
        ours = without(state_of(asking(self.store.engine)), "read", "seen")
        theirs = without(state_of(self.source.ask), "read", "seen")
        differing = {
            name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
        }
        assert differing <= again

    def stop(self) -> None:
        self._over = True
        self._thread.join(PATIENCE_S)
        self.follower.close()
        assert self.store.check() == []
        self.store.close()
        assert self.error is None


@pytest.fixture(params=["yes", "no"], ids=["diskless", "by file"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    server = Source(tmp_path / "redis", "--save", "", "--repl-diskless-sync", request.param)
    yield server
    server.stop()


def test_a_valkey_with_fields_that_expire_is_followed(tmp_path: Path) -> None:
    source = Source(tmp_path / "valkey", "--save", "", program=program_of("valkey-9.1"))
    source.ask("HSET", "hash", "f", "v")
    source.ask("HEXPIRE", "hash", "100000", "FIELDS", "1", "f")
    source.ask("XADD", "s", "1-1", "f", "v")
    followed = Followed(tmp_path / "store", source)
    try:
        followed.catch_up()
        source.ask("XADD", "s", "2-1", "f", "v")
        followed.catch_up()
        assert len(followed.store.stream("s")) == 2
    finally:
        followed.stop()
        source.stop()


def test_links_that_break_at_any_byte_neither_lose_nor_repeat_commands(
    source: Source, tmp_path: Path
) -> None:
    proxy = Proxy(source.port, Random(7), most=4000)
    followed = Followed(tmp_path / "store", source, proxy.port)
    try:
        for seed in range(5):
            play(source, seed)
        until(lambda: proxy.cuts > 8 or followed.error)
        proxy.is_steady = True
        followed.catch_up()
        followed.compare()
        resumed = [text for text in followed.said if text.startswith("following from")]
        assert len(resumed) > 3
    finally:
        followed.stop()
        proxy.close()


def fill(source: Source, entries: int = 2000) -> None:
    """Give a server streams with groups, in several databases, and keys of other types."""
    for db in (0, 3, 15):
        client = source.connect(db)
        pipeline = client.pipeline(transaction=False)
        for at in range(1, entries + 1):
            pipeline.execute_command("XADD", "s", f"{at}-0", "field", f"value {at}", "n", at)
        pipeline.execute_command("XGROUP", "CREATE", "s", "g", "0")
        pipeline.execute_command("XGROUP", "CREATE", "empty", "g", "0", "MKSTREAM")
        pipeline.execute_command(
            "XREADGROUP", "GROUP", "g", "c", "COUNT", entries // 2, "STREAMS", "s", ">"
        )
        pipeline.execute_command("XDEL", "s", "5-0", "6-0", f"{entries}-0")
        pipeline.execute_command("RPUSH", "list", "a", "b")
        pipeline.execute_command("HSET", "hash", "a", "b")
        pipeline.execute_command("SET", "string", "value", "PX", 10**9)
        pipeline.execute()
        client.close()


def test_a_server_with_data_is_followed_from_its_snapshot(source: Source, tmp_path: Path) -> None:
    fill(source)
    followed = Followed(tmp_path / "store", source)
    try:
        followed.catch_up()
        followed.compare()
        play(source, 1)
        followed.catch_up()
        followed.compare()
        assert not (tmp_path / "store.rdb").exists()
    finally:
        followed.stop()


def test_a_lost_history_is_replaced_by_another_snapshot(source: Source, tmp_path: Path) -> None:
    fill(source, 200)
    followed = Followed(tmp_path / "store", source)
    followed.catch_up()
    followed.stop()
    source.ask("CONFIG", "SET", "repl-backlog-size", 16384)
    source.ask("DEL", "empty")
    source.ask("RENAME", "string", "other")
    for at in range(1000):
        source.ask("XADD", "s", f"{at + 9000}-0", "f", "x" * 100)
    followed = Followed(tmp_path / "store", source)
    try:
        followed.catch_up()
        followed.compare()
        assert "the source sends a snapshot" in followed.said
    finally:
        followed.stop()


def test_following_continues_after_a_restart_of_the_source(tmp_path: Path) -> None:
    source = Source(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always")
    try:
        fill(source, 100)
        followed = Followed(tmp_path / "store", source)
        try:
            followed.catch_up()
            for seed in range(2):
                play(source, seed)
                source.kill()
                source.start()
                play(source, seed + 10)
                followed.catch_up()
                followed.compare()
        finally:
            followed.stop()
    finally:
        source.stop()


def test_a_killed_follower_neither_loses_nor_repeats_commands(
    tmp_path: Path,
) -> None:
    source = Source(tmp_path / "redis", "--save", "")
    random = Random(3)
    command = [sys.executable, "-m", "tests.migration.follow_program"]
    environment = {**os.environ, **ENVIRONMENT}
    over = threading.Event()

    def produce() -> None:
        client = source.connect()
        at = 0
        while not over.is_set():
            at += 1
            client.execute_command("XADD", "s", "*", "n", at)
            client.execute_command("INCR", "count")
            client.execute_command("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
            time.sleep(0.003)

    try:
        fill(source, 300)
        producer = threading.Thread(target=produce)
        producer.start()
        for _ in range(6):
            with forking.start(
                [*command, str(tmp_path / "store"), str(source.port)],
                env=environment,
                stdout=subprocess.PIPE,
            ) as follower:
                assert follower.stdout is not None
                assert follower.stdout.readline()  # reports a snapshot, or its position
                time.sleep(random.uniform(0, 0.5))
                follower.kill()
        over.set()
        producer.join()
        followed = Followed(tmp_path / "store", source)
        try:
            followed.catch_up()
            followed.compare()
        finally:
            followed.stop()
    finally:
        over.set()
        source.stop()


def test_a_store_with_other_keys_is_not_written(source: Source, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        store.stream("mine").add({"f": "v"})
        with pytest.raises(RequestError, match="keys already"):
            FollowingStore(store.engine, source.url, Selection())
        FollowingStore(store.engine, source.url, Selection((b"other:*",)))


def test_an_unfinished_snapshot_is_restarted(source: Source, tmp_path: Path) -> None:
    fill(source, 100)
    with Store.open(tmp_path / "store") as store:
        target = FollowingStore(store.engine, source.url, Selection())
        target.begin()
        store.stream("half").add({"f": "v"})
    followed = Followed(tmp_path / "store", source)
    try:
        followed.catch_up()
        followed.compare()
    finally:
        followed.stop()


def test_a_source_that_waits_for_its_replicas_gets_acknowledgements(
    source: Source, tmp_path: Path
) -> None:
    followed = Followed(tmp_path / "store", source)
    try:
        followed.catch_up()
        source.ask("XADD", "s", "1-1", "f", "v")
        assert source.ask("WAIT", 1, 20_000) == 1
        assert followed.store.stream("s").range()[0].id == (1, 1)
    finally:
        followed.stop()
