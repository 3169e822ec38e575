"""Written RDB files: a server that loads them has the same keys."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvstream.errors import BadPayload
from kvstream.layout.values import encode_flat
from kvstream.rdb.file_reader import AuxRecord, FileReader, StreamRecord, StringRecord, verify
from kvstream.rdb.file_writer import FileWriter
from kvstream.rdb.versions import TARGETS, Target, reduce, target
from kvstream.storage.files import PARTIAL_SUFFIX, replacing
from kvstream.types.ids import StreamID
from kvstream.types.images import NodeImage, StreamState
from tests.rdb.conftest import Start
from tests.rdb.filling import fill_streams
from tests.rdb.redis_files import RedisFiles

REDIS_7 = target("redis:7.0")
MANY = 5_000
SHOWN = 300


def copied(source: Path, copy: Path, to: Target = REDIS_7, **options: Any) -> None:
    """Write a file with the streams and strings of another one."""
    with source.open("rb") as file, replacing(copy) as out:
        writer = FileWriter(out, to, **options)
        for record in FileReader(file):
            expire_at_ms = getattr(record, "expire_at_ms", None) or 0
            if isinstance(record, StringRecord):
                writer.string(record.db, record.key, record.value(), expire_at_ms)
            elif isinstance(record, StreamRecord):
                stream = record.stream

                def state(stream: Any = stream) -> StreamState:
                    found: StreamState = stream.state()
                    reduce(found, to)
                    return found

                writer.stream(record.db, record.key, stream.nodes(), state, expire_at_ms)
        writer.finish()


def _fill(server: RedisFiles) -> None:
    for db in (0, 3, 15):
        client = server.client(db)
        fill_streams(client)
        client.set("plain", "text " * 100, px=10_000_000_000)
        client.set("number", 12345)
    large: Any = server.client(7)
    with large.pipeline(transaction=False) as pipeline:
        for number in range(MANY):
            pipeline.xadd(
                "large", {"n": number, "pad": f"{number * 7919}" * 12}, id=f"{number + 1}-0"
            )
        pipeline.xgroup_create("large", "g", "0")
        pipeline.xreadgroup("g", "c", {"large": ">"}, count=MANY - 7)
        pipeline.execute()


def _told(server: RedisFiles) -> dict[tuple[int, bytes], Any]:
    """Return the state of all keys of the server, except the bytes of nodes."""
    reply: dict[tuple[int, bytes], Any] = {}
    for db in (0, 3, 7, 15):
        for key in server.ask(db, "KEYS *"):
            if server.ask(db, "TYPE", key) == b"stream":
                value = [
                    server.ask(db, "XINFO", "STREAM", key, "FULL", "COUNT", "0"),
                    server.ask(db, "XRANGE", key, "-", "+", "COUNT", f"{SHOWN}"),
                ]
            else:
                value = server.ask(db, "GET", key)
            reply[db, key] = value, server.ask(db, "PEXPIRETIME", key)
    return reply


UNTOUCHED = [(7, b"large"), (0, b"stream:mixed"), (0, b"12"), (15, b"stream:never"), (3, b"plain")]
"""Keys without losses, so that their dumps are the same bytes."""


@pytest.mark.parametrize("compression", ["yes", "no"])
def test_a_server_loads_all_of_a_written_file(redis_files: Start, compression: str) -> None:
    with redis_files("from", rdbcompression=compression) as server:
        _fill(server)
        source, expected = server.saved(), _told(server)
        dumps = [server.ask(db, "DUMP", key) for db, key in UNTOUCHED]
    (source.parent.parent / "to").mkdir()
    copy = source.parent.parent / "to" / "dump.rdb"
    copied(source, copy, compress=compression == "yes")
    with copy.open("rb") as file:
        assert verify(file)
    with redis_files("to", rdbcompression=compression) as server:
        assert _told(server) == expected
        assert [server.ask(db, "DUMP", key) for db, key in UNTOUCHED] == dumps


def test_a_file_for_any_target_can_be_read(redis_files: Start, tmp_path: Path) -> None:
    with redis_files() as server:
        fill_streams(server.client())
        source = server.saved()
    for to in TARGETS.values():
        copied(source, tmp_path / "copy.rdb", to, ctime_s=1700000000)
        with (tmp_path / "copy.rdb").open("rb") as file:
            reader = FileReader(file)
            assert reader.header.version == to.version
            records = list(reader)
        assert {r.type for r in records if isinstance(r, StreamRecord)} == {to.kind}, to
        assert AuxRecord(b"ctime", b"1700000000") in records
    with (tmp_path / "copy.rdb").open("rb") as file:
        assert verify(file)


def test_a_server_loads_a_file_for_an_older_one(redis_files: Start) -> None:
    with redis_files("from") as server:
        fill_streams(server.client(db=3))
        server.client(db=15).set("plain", "text " * 100, px=10_000_000_000)
        source, expected = server.saved(), _told(server)
    (source.parent.parent / "to").mkdir()
    copied(source, source.parent.parent / "to" / "dump.rdb", target("redis:5.0"))
    with redis_files("to") as server:
        found = _told(server)
    assert found.keys() == expected.keys()
    for name_of, (value, expire_at) in expected.items():
        assert found[name_of][1] == expire_at
        assert found[name_of][0][1] == value[1]  # entries, or the text


# --- what is counted while it is written ----------------------------------------------------------


def node(first: int, count: int, size: int = 10) -> NodeImage:
    ids = [StreamID(first + number, 0).packed for number in range(count)]
    value, _ = encode_flat([b"f", os.urandom(size)])
    return NodeImage(ids[0], (b"f",), ids, [value] * count, count, 0)


def state_of(last: int, length: int) -> StreamState:
    zero = StreamID(0, 0)
    return StreamState(length, StreamID(last, 0), StreamID(1, 0), zero, length)


@pytest.mark.parametrize("buffer", [1, 100, 5000, 1 << 20])
def test_counts_are_right_for_any_end_of_the_buffer(buffer: int) -> None:
    out = io.BytesIO()
    writer = FileWriter(out, REDIS_7, buffer_bytes=buffer)
    for db in (0, 2, 0):
        for count in (0, 1, 3, 70):
            nodes = (node(1 + 100 * number, 100) for number in range(count))
            last = count * 100
            writer.stream(db, b"%d" % count, nodes, state_of(last, last), 77 * db)
        writer.string(db, b"text", b"x" * 300)
    writer.finish()
    out.seek(0)
    assert verify(out)
    out.seek(0)
    found = []
    for record in FileReader(out):
        if isinstance(record, StreamRecord):
            nodes_read = len(list(record.stream.nodes()))
            record.stream.state()
            assert not record.stream.corrections
            found.append((record.db, record.key, nodes_read, record.expire_at_ms))
    assert found == [
        (db, b"%d" % count, count, 77 * db or None) for db in (0, 2, 0) for count in (0, 1, 3, 70)
    ]


def test_a_small_file_is_as_a_server_writes_it() -> None:
    out = io.BytesIO()
    writer = FileWriter(out, target("redis:7.2"))
    writer.string(3, b"a", b"1", 5)
    writer.string(3, b"b", b"text")
    writer.finish()
    aux = b"\xfa\x09redis-ver\x037.2\xfa\x0aredis-bits\xc0\x40"
    keys = b"\xfc\x05\0\0\0\0\0\0\0\x00\x01a\xc0\x01\x00\x01b\x04text"
    assert out.getvalue()[:-8] == b"REDIS0011" + aux + b"\xfe\x03\xfb\x02\x01" + keys + b"\xff"


def test_an_empty_file_is_valid() -> None:
    out = io.BytesIO()
    FileWriter(out, REDIS_7).finish()
    out.seek(0)
    assert [type(record) for record in FileReader(out)] == [AuxRecord, AuxRecord]


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "dump.rdb"
    path.write_bytes(b"before")

    def interrupted() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise BadPayload("something")

    with pytest.raises(BadPayload):
        interrupted()
    assert path.read_bytes() == b"before"
    with replacing(path) as file:
        file.write(b"after")
        assert path.read_bytes() == b"before"
        (partial,) = tmp_path.glob(f"*{PARTIAL_SUFFIX}")
        assert partial.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


WRITE_THEIRS = """
import sys
from pathlib import Path
from kvstream.storage.files import replacing

with replacing(Path(sys.argv[1])) as file:
    file.write(b"theirs")
"""


def test_two_processes_that_write_one_path_do_not_mix(tmp_path: Path) -> None:
    """The path has what one of the two wrote."""
    path = tmp_path / "dump.rdb"
    with replacing(path) as file:
        file.write(b"mine, ")
        file.flush()
        subprocess.run([sys.executable, "-c", WRITE_THEIRS, path], check=True)
        assert path.read_bytes() == b"theirs"
        file.write(b"whole")
    assert path.read_bytes() == b"mine, whole"
