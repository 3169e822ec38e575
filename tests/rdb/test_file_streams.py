"""The streams of a file have the state of the server, wherever reading stops."""

import io
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kvstream.errors import BadPayload
from kvstream.layout.values import decode_checked
from kvstream.rdb.file_reader import FileReader, StreamRecord, StringRecord
from kvstream.types.ids import StreamID
from kvstream.types.images import StreamState
from kvstream.types.records import RepeatedFields
from tests.rdb.building import built, each, length, record, resummed, string
from tests.rdb.conftest import Start
from tests.rdb.filling import fill_streams
from tests.rdb.redis_files import RedisFiles


def _entries(stream: Any) -> list[list[Any]]:
    """Return entries as XRANGE returns them."""
    found = []
    for node in stream.nodes():
        for eid, fields in zip(node.ids, decode_checked(node.values), strict=True):
            pairs = fields.flat if isinstance(fields, RepeatedFields) else fields.items()
            flat = pairs if isinstance(fields, RepeatedFields) else [x for p in pairs for x in p]
            found.append([str(StreamID.unpack(eid)).encode(), list(flat)])
    return found


def _groups(state: StreamState) -> list[Any]:
    """Return groups as XINFO STREAM FULL of Redis 7.0 shows them, without lag."""
    return [
        [
            group.name,
            str(group.last_delivered).encode(),
            group.entries_read,
            [
                [str(StreamID.unpack(eid)).encode(), owner, time_ms, deliveries]
                for eid, owner, time_ms, deliveries in group.pending
            ],
            [(consumer.name, consumer.seen_ms) for consumer in group.consumers],
        ]
        for group in state.groups
    ]


def _told_groups(server: RedisFiles, key: bytes) -> list[Any]:
    reply = server.ask(0, "XINFO", "STREAM", key, "FULL", "COUNT", "0")
    groups = []
    for flat in reply[reply.index(b"groups") + 1]:
        group = dict(zip(flat[::2], flat[1::2], strict=True))
        consumers = [dict(zip(c[::2], c[1::2], strict=True)) for c in group[b"consumers"]]
        groups.append(
            [
                group[b"name"],
                group[b"last-delivered-id"],
                group[b"entries-read"],
                group[b"pending"],
                [(each[b"name"], each[b"seen-time"]) for each in consumers],
            ]
        )
    return groups


@pytest.fixture
def saved(redis_files: Start) -> Path:
    """A file of streams, with a string after each."""
    with redis_files() as server:
        fill_streams(server.client())
        for number in range(20):
            server.client().set(f"plain {number}", number)
        return server.saved()


def test_entries_and_groups_are_those_of_the_server(redis_files: Start) -> None:
    with redis_files() as server:
        fill_streams(server.client())
        path = server.saved()
        with path.open("rb") as file:
            for found in FileReader(file):
                if isinstance(found, StreamRecord):
                    assert _entries(found.stream) == server.ask(0, "XRANGE", found.key, "-", "+")
                    state = found.stream.state()
                    assert _groups(state) == _told_groups(server, found.key)
                    assert state.length == found.stream.entries
                    assert found.stream.corrections == []


@pytest.mark.parametrize("nodes", [0, 1, 2, 100])
@pytest.mark.parametrize("state", [False, True])
def test_reading_may_stop_anywhere_in_a_stream(saved: Path, nodes: int, state: bool) -> None:
    expected = []
    with saved.open("rb") as file:
        for found in FileReader(file):
            if isinstance(found, StreamRecord | StringRecord):
                expected.append(found.key)
        file.seek(0)
        keys = []
        reader = FileReader(file)
        for found in reader:
            if isinstance(found, StreamRecord | StringRecord):
                keys.append(found.key)
            if isinstance(found, StreamRecord):
                assert len(list(islice(found.stream.nodes(), nodes))) <= nodes
                if state:
                    found.stream.state()
    assert keys == expected
    assert len(keys) >= 25


def test_damage_inside_a_stream_names_its_key_and_may_be_skipped(saved: Path) -> None:
    data = saved.read_bytes()
    with saved.open("rb") as file:
        keys = [r.key for r in FileReader(file) if isinstance(r, StreamRecord | StringRecord)]
    at = data.index(b"\x10\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x05")
    damaged = resummed(data[: at + 1] + b"\xff" * 8 + data[at + 9 :])
    reader = iter(FileReader(io.BytesIO(damaged)))
    found = []
    for entry in reader:
        if isinstance(entry, StreamRecord | StringRecord):
            found.append(entry.key)
        if isinstance(entry, StreamRecord) and entry.key == b"stream:mixed":
            with pytest.raises(BadPayload) as caught:
                list(entry.stream.nodes())
            assert caught.value.key == b"stream:mixed"
    assert found == keys


def test_a_stream_whose_state_fails_ends_the_file(saved: Path) -> None:
    no_entries = length(0) * 9
    group = string(b"g") + length(0) * 2 + length(0) + length(0)
    consumer = string(b"c") + bytes(8) + each(b"\0" * 15 + b"\x01")
    data = built(
        record(19, no_entries + each(group + each(consumer))),
        record(0, string(b"1"), b"behind"),
        magic=b"REDIS0010",
    )
    reader = iter(FileReader(io.BytesIO(data)))
    found = next(reader)
    assert isinstance(found, StreamRecord)
    with pytest.raises(BadPayload, match="a length of 1 is above 0") as caught:
        found.stream.state()
    assert caught.value.key == b"k"
    with pytest.raises(BadPayload, match="could not be read to its end"):
        next(reader)
    passing = [type(entry) for entry in FileReader(io.BytesIO(data))]
    assert passing == [StreamRecord, StringRecord]


def test_a_stream_with_a_last_id_below_its_deleted_entries_is_read(
    redis_files: Start,
) -> None:
    with redis_files() as server:
        client: Any = server.client()
        for number in range(1, 101):
            client.xadd("next node", {"f": number}, id=f"{number}-0")
        client.xdel("next node", "100-0")
        client.execute_command("XSETID", "next node", "99-5")
        client.xadd("next node", {"f": 1}, id="99-6")
        for number in (1, 2, 3):
            client.xadd("same node", {"f": number}, id=f"{number}-0")
        client.xdel("same node", "3-0")
        client.execute_command("XSETID", "same node", "2-5")
        client.xadd("same node", {"f": 1}, id="2-6")
        with server.saved().open("rb") as file:
            for found in FileReader(file):
                if isinstance(found, StreamRecord):
                    entries = _entries(found.stream)
                    assert entries == server.ask(0, "XRANGE", found.key, "-", "+")
                    assert found.stream.state().length == len(entries) in (100, 3)
