"""KVSTREAM.LOAD: files of rows that clients send, committed by the server."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import redis

from kvstream.bulkload.parts import Part, RowsFile, RowsWriter, pieces_of, unpack_ticket
from kvstream.engine import server_address
from kvstream.layout.values import encode_many
from kvstream.server.commands.info import run_id
from kvstream.types.ids import StreamID
from tests.patience import PATIENCE_S
from tests.server.asking import Asker, Failure
from tests.server.conftest import Serve, Served

LOAD = "KVSTREAM.LOAD"


def values(*numbers: int) -> list[bytes]:
    return [value for value, _ in encode_many([{"n": str(number)} for number in numbers])]


def ids(*numbers: int) -> list[bytes]:
    return [StreamID(number, 0).packed for number in numbers]


def ask(client: Any, *words: Any) -> Any:
    return client.execute_command(LOAD, *words)


class Load:
    """A load as a client makes it: one file for each kind of ``rows``."""

    def __init__(self, client: Any, folder: Path, *keys: str) -> None:
        self._client = client
        self._folder = folder
        reply: Any = ask(client, "TICKET", *keys)
        found = dict(zip(reply[::2], reply[1::2], strict=True)) if type(reply) is list else reply
        self.name: bytes = found[b"load"]
        self.ticket = unpack_ticket(found[b"ticket"])

    def send(self, rows: dict[bytes, tuple[list[int] | None, list[int]]]) -> list[bytes]:
        """Write files and send them; return the words that commit them."""
        writer = RowsWriter(self._folder, self.ticket)
        for key, (given, numbers) in rows.items():
            writer.extend(key, None if given is None else ids(*given), values(*numbers))
        return [word for file in writer.close() for word in self.put(file)]

    def put(self, file: RowsFile) -> list[bytes]:
        """Send a file in two pieces; return the words that commit it."""
        name, data = Path(file.path).stem, Path(file.path).read_bytes()
        half = len(data) // 2
        for at, piece in ((0, data[:half]), (half, data[half:])):
            assert ask(self._client, "PUT", self.name, name, at, piece) == at + len(piece)
        kind = b"GIVEN" if file.given else b"ALLOTTED"
        return [b"PART", name.encode(), file.digest.encode(), kind]

    def commit(self, *words: Any) -> Any:
        reply = ask(self._client, "COMMIT", self.name, *words)
        return dict(zip(reply[::2], reply[1::2], strict=True)) if type(reply) is list else reply


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder in which the client makes its parts."""
    made = tmp_path / "made"
    made.mkdir()
    return made


@pytest.fixture
def asker(served: Served) -> Iterator[Asker]:
    with served.asker() as asker:
        yield asker


def test_parts_are_committed_together_and_once(
    client: redis.Redis, served: Served, folder: Path
) -> None:
    client.xadd("old", {"n": "0"}, id="1-1")
    load = Load(client, folder, "old", "new")
    words = load.send({b"old": ([20, 10], [2, 1]), b"new": (None, [7, 8]), b"other": ([5], [5])})
    assert client.keys() == [b"old"]
    assert client.xlen("old") == 1
    assert load.commit("MARK", "done", 3, *words) == {b"applied": 1, b"entries": 5}
    assert [eid for eid, _ in cast("list[Any]", client.xrange("old"))] == [b"1-1", b"10-0", b"20-0"]
    assert [fields for _, fields in cast("list[Any]", client.xrange("new"))] == [
        {b"n": b"7"},
        {b"n": b"8"},
    ]
    assert client.xlen("other") == 1
    assert client.get("done") == b"3"
    with pytest.raises(redis.ResponseError, match="NOLOAD"):
        load.commit(*words)
    again = Load(client, folder)
    sent = again.send({b"old": ([30], [3])})
    assert again.commit("MARK", "done", 3, *sent) == {b"applied": 0, b"entries": 0}
    assert client.xlen("old") == 3
    assert list((served.engine.database.directory / "loads").iterdir()) == []


def test_a_refused_load_changes_nothing_and_can_be_discarded(
    client: redis.Redis, folder: Path
) -> None:
    client.xadd("old", {"n": "0"}, id="50-1")
    load = Load(client, folder, "old")
    words = load.send({b"old": ([40], [4]), b"new": ([1], [1])})
    with pytest.raises(redis.ResponseError, match="equal or smaller"):
        load.commit("MARK", "done", 1, *words)
    assert client.keys() == [b"old"]
    assert ask(client, "DISCARD", load.name) in (b"OK", True)
    with pytest.raises(redis.ResponseError, match="NOLOAD"):
        ask(client, "PUT", load.name, "a", 0, "x")


def test_a_load_into_a_stream_with_the_greatest_last_id(client: redis.Redis, folder: Path) -> None:
    top = (1 << 64) - 1
    client.xadd("s", {"n": "0"}, id=f"{top}-5")
    load = Load(client, folder, "s")
    assert load.commit(*load.send({b"s": (None, [7, 8])}))[b"entries"] == 2
    found = cast("list[Any]", client.xrange("s"))
    assert [eid.decode() for eid, _ in found] == [f"{top}-{seq}" for seq in (5, 6, 7)]


def test_a_modified_part_is_refused(client: redis.Redis, folder: Path) -> None:
    load = Load(client, folder)
    words = load.send({b"s": ([1], [1])})
    ask(client, "PUT", load.name, "more", 0, "x")
    changed = "is not as it was written"
    for at, wrong, text in (
        (1, b"absent", "is missing"),
        (1, b"more", changed),
        (2, b"0" * 32, changed),
    ):
        damaged = list(words)
        damaged[at] = wrong
        with pytest.raises(redis.ResponseError, match=text):
            load.commit(*damaged)
    assert client.keys() == []
    assert load.commit(*words)[b"entries"] == 1


NAMES = ("../../x", "/etc/x", "a.b", ".rows", "", "..", "a/../b", "a\0")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_stored_in_the_folder_of_its_load(
    client: redis.Redis, folder: Path, name: str
) -> None:
    load = Load(client, folder)
    with pytest.raises(redis.ResponseError, match="a file's name is"):
        ask(client, "PUT", load.name, name, 0, "x")
    for other in ("..", "../loads/" + load.name.decode(), "0" * 32):
        with pytest.raises(redis.ResponseError, match="NOLOAD"):
            ask(client, "PUT", other, "a", 0, "x")


def test_sent_bytes_are_appended_to_the_file(client: redis.Redis, folder: Path) -> None:
    load = Load(client, folder)
    assert ask(client, "PUT", load.name, "a", 0, "abc") == 3
    for offset in (0, 2, 4):
        with pytest.raises(redis.ResponseError, match="has 3 bytes"):
            ask(client, "PUT", load.name, "a", offset, "d")
    assert ask(client, "PUT", load.name, "a", 3, "d") == 4


WRONG = {
    "TICKET s": "WRONGTYPE 's' is a string, not a stream",
    "PUT 0 a x y": "ERR value is not an integer or out of range",
    "PUT 0 a -1 y": "ERR offset is out of range, must be positive",
    "COMMIT 0 PART a b": "ERR wrong number of arguments for 'kvstream.load|commit' command",
    "COMMIT 0 MARK s 1 PART a b": "ERR syntax error",
    "COMMIT 0 PART a b GIVEN": "NOLOAD No such bulk load: it was committed, or given up",
    "COMMIT 0 PORT a b GIVEN": "ERR syntax error",
    "DISCARD 0": "NOLOAD No such bulk load: it was committed, or given up",
    "OTHER": "ERR unknown subcommand 'OTHER'. Try KVSTREAM.LOAD HELP.",
}


@pytest.mark.parametrize("line", WRONG)
def test_errors_name_the_problem(asker: Asker, line: str) -> None:
    asker.ask("SET s text")
    assert asker.ask(f"{LOAD} {line}") == Failure(WRONG[line])


def test_parts_and_marks_are_checked(client: redis.Redis, folder: Path) -> None:
    load = Load(client, folder)
    words = load.send({b"s": ([1], [1])})
    for at, wrong in ((1, b"../a"), (2, b"0" * 31), (3, b"SOME")):
        part = list(words)
        part[at] = wrong
        with pytest.raises(redis.ResponseError, match=r"a part is:|a file's name is"):
            load.commit(*part)
    client.set("text", "no number")
    with pytest.raises(redis.ResponseError, match="holds no number of a batch"):
        load.commit("MARK", "text", 1, *words)
    with pytest.raises(redis.ResponseError, match="not an integer"):
        load.commit("MARK", "done", "x", *words)
    assert load.commit(*words)[b"entries"] == 1


def test_it_needs_the_admin_category_and_is_refused_in_multi(served: Served, asker: Asker) -> None:
    asker.ask("ACL SETUSER ann on nopass ~* +@all -@admin")
    asker.ask("ACL SETUSER bob on nopass ~a* +@all")
    with served.asker() as other:
        other.ask("AUTH ann x")
        assert "NOPERM" in str(other.ask(f"{LOAD} TICKET"))
        other.ask("AUTH bob x")
        assert "NOPERM" in str(other.ask(f"{LOAD} TICKET b"))
        assert isinstance(other.ask(f"{LOAD} TICKET a"), list)
    asker.ask("MULTI")
    assert asker.ask(f"{LOAD} TICKET a") == Failure("ERR Command not allowed inside a transaction")
    assert "EXECABORT" in str(asker.ask("EXEC"))


def test_other_clients_are_served_during_a_commit(
    served: Served, folder: Path, protocol: int
) -> None:
    client = served.client(protocol)
    load = Load(client, folder)
    words = load.send({b"s": ([1], [1])})
    go, inside = threading.Event(), threading.Event()

    def held(part: Part) -> Any:
        inside.set()
        assert go.wait(PATIENCE_S)
        return pieces_of(part)

    with (
        patch("kvstream.bulkload.commit.pieces_of", held),
        served.asker() as asker,
        served.asker() as busy,
    ):
        waiting = threading.Thread(target=load.commit, args=words)
        waiting.start()
        assert inside.wait(PATIENCE_S)
        assert asker.ask("XADD t * f v")
        name = load.name.decode()
        assert busy.ask(f"{LOAD} DISCARD {name}") == Failure("ERR the load is being committed")
        reader = threading.Thread(target=lambda: read.append(client.xread({"s": "0"}, block=60000)))
        read: list[Any] = []
        reader.start()
        go.set()
        waiting.join(PATIENCE_S)
        reader.join(PATIENCE_S)
    assert "1-0" in str(read)


def test_a_load_survives_a_restart(serve: Serve, folder: Path, tmp_path: Path) -> None:
    first = Served(tmp_path / "kept")
    load = Load(first.client(), folder, "s")
    words = load.send({b"s": ([1, 2], [1, 2])})
    first.stop()
    second = Served(tmp_path / "kept")
    try:
        client = second.client()
        client.xadd("t", {"f": "v"})
        load._client = client
        assert load.commit(*words) == {b"applied": 1, b"entries": 2}
        assert client.xlen("s") == 2
    finally:
        second.stop()


def test_abandoned_loads_are_swept(client: redis.Redis, folder: Path) -> None:
    load = Load(client, folder)
    with patch("kvstream.server.runtime.uploads.LEFT_S", -1):
        Load(client, folder)
    with pytest.raises(redis.ResponseError, match="NOLOAD"):
        ask(client, "DISCARD", load.name)


def test_a_full_disk_refuses_sent_bytes(served: Served, folder: Path) -> None:
    client = served.client()
    load = Load(client, folder)
    full = patch("os.write", side_effect=OSError(28, "No space left on device"))
    refused = pytest.raises(redis.ResponseError, match="MISCONF the disk does not take it")
    with full, refused:
        ask(client, "PUT", load.name, "a", 0, "x")
    assert ask(client, "PUT", load.name, "a", 0, "x") == 1


def test_a_stream_can_get_the_state_of_another_one(client: redis.Redis) -> None:
    for key in ("whole", "bare"):
        for number in range(1, 6):
            client.xadd(key, {"n": number}, id=f"{number}-1")
    client.xdel("whole", "5-1")
    client.xgroup_create("whole", "g", id="0")
    client.xgroup_create("bare", "gone", id="0")
    client.xreadgroup("g", "w", {"whole": ">"}, count=3)
    payload = client.dump("whole")
    assert ask(client, "STATE", "bare", payload) in (b"OK", True)
    assert client.xlen("bare") == 5
    found = [client.xinfo_stream(key) for key in ("whole", "bare")]
    for name in ("last-generated-id", "max-deleted-entry-id", "entries-added", "groups"):
        assert found[0][name] == found[1][name], name
    assert client.xpending("bare", "g")["pending"] == 3
    client.set("text", "x")
    for key, given, error in (
        ("none", payload, "no such key"),
        ("text", payload, "WRONGTYPE|wrong kind"),
        ("bare", b"no payload", "DUMP payload version or checksum are wrong"),
        ("bare", client.dump("text"), "Bad data format"),
    ):
        with pytest.raises(redis.ResponseError, match=error):
            ask(client, "STATE", key, given)
    assert len(cast("list[Any]", client.xinfo_groups("bare"))) == 1


ADDRESSES = {
    ("0.0.0.0", 6379, False): "redis://127.0.0.1:6379",
    ("::1", 7, True): "rediss://[::1]:7",
    ("10.0.0.1", 8, False): "redis://10.0.0.1:8",
}


def test_a_store_has_the_address_of_its_server(tmp_path: Path) -> None:
    assert {place: server_address.url_of(*place) for place in ADDRESSES} == ADDRESSES
    assert server_address.read(tmp_path) is None
    address = server_address.Address("redis://127.0.0.1:1", run_id())
    server_address.write(tmp_path, address)
    assert server_address.read(tmp_path) == address
    (tmp_path / "loads" / "server").write_text("{}")
    assert server_address.read(tmp_path) is None
    server_address.remove(tmp_path)
    server_address.remove(tmp_path)
