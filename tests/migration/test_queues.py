"""The queue state of a stream is migrated to another kvstream; for other targets it is a loss."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from kvstream import Store
from kvstream.layout.keys import qualified
from kvstream.migration import LossRefused, Outcome, plan, run, verify
from kvstream.migration.server_target import import_commands
from kvstream.operations.queues import image
from kvstream.types.images import QUEUE_PARTS, QueueRow
from tests.migration.servers import RedisServer
from tests.migration.test_kills import ROUNDS, finish, start
from tests.operations.queues.test_image import fill
from tests.serving import ServerProcess

HOUR = 3_600_000
ALL = sorted(set(QUEUE_PARTS.values()))
StartServer = Callable[[str], str]


def make(directory: Path, streams: int = 1) -> Path:
    """Create a store of streams with every part of a queue, and nothing due soon."""
    with Store.open(directory, durability="no") as store:
        for number in range(streams):
            fill(store, f"s{number}", HOUR)
        store.stream("plain").add({"n": 1})
    return directory


def rows(directory: Path, key: str = "s0") -> list[QueueRow]:
    with Store.open(directory, read_only=True) as store:
        assert store.check() == []
        return store.engine.run(lambda txn: image.page(txn, qualified(0, key.encode())))[0]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start kvstream servers, by name; return the URL of each."""
    started: list[ServerProcess] = []

    def begin(name: str) -> str:
        started.append(ServerProcess(tmp_path / name, "--port", "0"))
        return f"redis://127.0.0.1:{started[-1].port}"

    yield begin
    for each in started:
        each.stop()


def client(url: str) -> Any:
    return redis.Redis.from_url(url, protocol=2)


def test_a_queue_is_migrated_from_a_directory_to_a_directory(tmp_path: Path) -> None:
    source = make(tmp_path / "one")
    report = run(source, tmp_path / "other")
    assert report.outcomes == {Outcome.COPIED: 3}
    assert not report.losses
    assert rows(tmp_path / "other") == rows(source)
    assert verify(source, tmp_path / "other").differences == []
    again = run(source, tmp_path / "other")
    assert again.outcomes == {Outcome.SAME: 3}


def test_due_timers_fire_on_the_target(tmp_path: Path) -> None:
    with Store.open(tmp_path / "one") as store:
        store.stream("s").add({"n": 1}, delay=0.2)
    time.sleep(0.3)
    run(tmp_path / "one", tmp_path / "other")
    assert len(rows(tmp_path / "other", "s")) == 1
    assert verify(tmp_path / "one", tmp_path / "other").differences == []


def test_a_queue_is_migrated_to_a_server_to_another_and_back(
    tmp_path: Path, start_server: StartServer
) -> None:
    source = make(tmp_path / "one")
    first, second = start_server("first"), start_server("second")
    run(source, first)
    assert verify(source, first).equal
    run(first, second)
    assert verify(first, second).equal
    assert sorted(client(second).scan_iter()) == [b"plain", b"s0", b"s0x"]
    run(second, tmp_path / "other")
    assert verify(source, tmp_path / "other").differences == []
    assert rows(tmp_path / "other") == rows(source)


@pytest.mark.parametrize("refused", [["-dump"], ["-restore"], ["-dump", "-restore"]])
def test_a_queue_is_migrated_by_commands_and_in_pages(
    tmp_path: Path,
    start_server: StartServer,
    monkeypatch: pytest.MonkeyPatch,
    refused: list[str],
) -> None:
    monkeypatch.setattr("kvstream.migration.server_target.BATCH_BYTES", 100)
    first, second = start_server("first"), start_server("second")
    run(make(tmp_path / "one"), first)
    for url in (first, second):
        user = {"enabled": True, "nopass": True, "keys": ["*"], "commands": ["+@all", *refused]}
        client(url).acl_setuser("some", **user)
    users = [url.replace("redis://", "redis://some:any@") for url in (first, second)]
    run(users[0], users[1], allow_loss=["active-time", "nacked"])
    found = verify(first, second).differences
    assert [each for each in found if not each.may_move and "order of" not in each.what] == []


def test_a_user_without_the_right_to_export_gets_an_error(
    tmp_path: Path, start_server: StartServer
) -> None:
    url = start_server("first")
    client(url).xadd("s", {"n": 1})
    user = {
        "enabled": True,
        "nopass": True,
        "keys": ["*"],
        "commands": ["+@all", "-kvstream.queue"],
    }
    client(url).acl_setuser("some", **user)
    with pytest.raises(Exception, match=r"kvstream\.queue"):
        run(url.replace("redis://", "redis://some:any@"), tmp_path / "other")


def test_a_redis_is_no_target_unless_each_loss_is_allowed(
    tmp_path: Path, target: RedisServer
) -> None:
    source = make(tmp_path / "one")
    (planned,) = [each for each in plan(source, target.url) if each.key == b"s0"]
    assert {loss.name for loss in planned.losses} >= set(ALL)
    with pytest.raises(LossRefused, match="delayed messages"):
        run(source, target.url)
    assert target.client().dbsize() == 0
    allowed = [*ALL, "active-time", "nacked", "entries-read"]
    assert run(source, target.url, allow_loss=allowed).complete
    assert target.client().xlen("s0") == 9


def test_a_file_is_no_target_unless_each_loss_is_allowed(tmp_path: Path) -> None:
    source, file = make(tmp_path / "one"), tmp_path / "out.rdb"
    with pytest.raises(LossRefused, match="schedules"):
        run(source, file)
    assert not file.exists()
    assert run(source, file, allow_loss=ALL).complete
    found = verify(source, file).differences
    assert found == []  # a file cannot store it


def test_verify_names_the_differences(tmp_path: Path) -> None:
    source = make(tmp_path / "one")
    run(source, tmp_path / "other")
    with Store.open(tmp_path / "other") as store:
        stream = store.stream("s0")
        (first, _) = stream.delayed()
        stream.cancel(first.ticket)
        stream.group("g").set_policy(lease=5)
        stream.delete_schedule("yearly")
    found = [each.what for each in verify(source, tmp_path / "other").differences]
    assert found == [
        "policies 'g'",
        f"delayed {first.ticket}",
        "schedules 'yearly'",
        "unique 'later'",
    ]


def test_a_killed_migration_of_queues_is_resumed(tmp_path: Path, start_server: StartServer) -> None:
    source, url = make(tmp_path / "one", 60), start_server("first")
    begun = time.monotonic()
    finish(str(source), str(tmp_path / "first-store"))
    whole_s, chance = time.monotonic() - begun, random.Random(3)
    for there in (str(tmp_path / "other"), url):
        for _ in range(ROUNDS):
            with start(str(source), there) as process:
                time.sleep(chance.uniform(0.2, 1.0) * whole_s)
                process.send_signal(signal.SIGKILL)
        finish(str(source), there)
        assert verify(source, there).equal
    assert len(list(client(url).scan_iter())) == 121
    assert client(url).execute_command("KVSTREAM.DELAYED", "LEN", "s7") == 2


def test_rows_are_sent_in_parts() -> None:
    queue = [(b"d%d" % n, b"x" * 400_000) for n in range(5)]
    words = list(import_commands(b"s", queue))
    assert [len(each) for each in words] == [9, 7]
