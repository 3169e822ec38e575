"""RDB files of a redis-server, and files built manually: every kind of record."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream.errors import BadPayload
from kvstream.rdb.file_reader import (
    AuxRecord,
    FileReader,
    FunctionRecord,
    ModuleAuxRecord,
    OtherRecord,
    Record,
    StreamRecord,
    StringRecord,
    verify,
)
from kvstream.rdb.versions import MAGIC_BYTES, Header
from tests.rdb.building import (
    EOF,
    MODULE_VALUES,
    OBJECTS,
    built,
    each,
    i64,
    length,
    module_number,
    record,
    string,
)
from tests.rdb.conftest import Start
from tests.rdb.filling import SHRINKING, fill_streams, fill_values
from tests.rdb.redis_files import DATABASES, RedisFiles

Told = tuple[str, str, int | None]
"""Kind, encoding and expiry of a key."""


def _fill(server: RedisFiles) -> None:
    for db in range(DATABASES):
        client = server.client(db)
        if db % 5 == 0:
            fill_values(client)
            fill_streams(client)
        else:
            client.set("only", db, pxat=(1 << 41) + db)


def _as_the_server_tells(server: RedisFiles) -> dict[tuple[int, bytes], Told]:
    reply: dict[tuple[int, bytes], Told] = {}
    for db in range(DATABASES):
        client: Any = server.client(db)
        for key in client.keys("*"):
            kind = client.type(key).decode()
            encoding = "" if kind == "string" else client.object("encoding", key).decode()
            expire_at = client.pexpiretime(key)
            reply[db, key] = kind, encoding, expire_at if expire_at >= 0 else None
    return reply


def _as_the_file_tells(path: Path) -> Iterator[tuple[tuple[int, bytes], Told]]:
    with path.open("rb") as file:
        for each_record in FileReader(file):
            match each_record:
                case OtherRecord(db, key, expire_at, kind=kind, encoding=encoding):
                    yield (db, key), (kind, encoding, expire_at)
                case StringRecord(db, key, expire_at):
                    yield (db, key), ("string", "", expire_at)
                case StreamRecord(db, key, expire_at):
                    yield (db, key), ("stream", "stream", expire_at)


@pytest.mark.parametrize("compression", ["yes", "no"])
@pytest.mark.parametrize("checksum", ["yes", "no"])
def test_every_key_of_a_server_has_its_kind_encoding_database_and_expiry(
    redis_files: Start, compression: str, checksum: str
) -> None:
    with redis_files(rdbcompression=compression, rdbchecksum=checksum) as server:
        _fill(server)
        path = server.saved()
        expected = _as_the_server_tells(server)
    assert dict(_as_the_file_tells(path)) == expected
    assert len({(kind, encoding) for kind, encoding, _ in expected.values()}) == 9
    with path.open("rb") as file:
        assert verify(file) == (checksum == "yes")
        file.seek(0)
        reader = FileReader(file)
        for _ in reader:
            pass
        assert reader.offset == path.stat().st_size


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu"])
def test_strings_are_read_with_their_idle_time_and_frequency(
    redis_files: Start, policy: str
) -> None:
    with redis_files(maxmemory_policy=policy) as server:
        client = server.client()
        fill_values(client)
        values = {key: client.get(key) for key in client.keys("*") if client.type(key) == b"string"}
        path = server.saved()
    with path.open("rb") as file:
        records = [r for r in FileReader(file) if isinstance(r, StringRecord)]
        assert {r.key for r in records} == values.keys()
        file.seek(0)
        read = {r.key: r.value() for r in FileReader(file) if isinstance(r, StringRecord)}
    assert read == values
    if policy == "allkeys-lfu":
        assert {type(r.freq) for r in records} == {int}
        assert {r.idle_s for r in records} == {None}
    else:
        assert all(r.idle_s is not None and r.idle_s < 60 for r in records)
        assert {r.freq for r in records} == {None}


def test_a_string_can_be_read_once_and_only_in_order() -> None:
    data = built(record(0, string(b"one"), b"a"), record(0, string(SHRINKING, compress=True), b"b"))
    reader = iter(FileReader(io.BytesIO(data)))
    first, second = next(reader), next(reader)
    assert isinstance(first, StringRecord)
    assert isinstance(second, StringRecord)
    with pytest.raises(ValueError, match="or skipped"):
        first.value()
    assert second.value() == SHRINKING
    with pytest.raises(ValueError, match="has been read"):
        second.value()
    assert list(reader) == []


@pytest.mark.parametrize(
    ("magic", "type_", "value", "kind", "encoding"),
    OBJECTS,
    ids=[f"{magic.decode()}-{type_}" for magic, type_, *_ in OBJECTS],
)
def test_objects_of_every_server_are_skipped_and_named(
    magic: bytes, type_: int, value: bytes, kind: str, encoding: str
) -> None:
    before, after = record(0, string(b"before"), b"a"), record(0, string(b"after"), b"z")
    data = built(before, record(type_, value), after, magic=magic)
    first, found, last = FileReader(io.BytesIO(data))
    assert isinstance(found, OtherRecord)
    assert (found.kind, found.encoding, found.key) == (kind, encoding, b"k")
    assert (found.offset, found.size) == (9 + len(before) + 3, len(value))
    assert isinstance(first, StringRecord)
    assert isinstance(last, StringRecord)


@pytest.mark.parametrize(
    ("magic", "type_", "value", "kind", "encoding"),
    OBJECTS,
    ids=[f"{magic.decode()}-{type_}" for magic, type_, *_ in OBJECTS],
)
def test_objects_that_end_too_early_are_refused_with_their_key(
    magic: bytes, type_: int, value: bytes, kind: str, encoding: str
) -> None:
    data = magic + record(type_, value, b"name")
    for size in range(15, len(data), 1 + len(data) // 50):
        with pytest.raises(BadPayload) as caught:
            list(FileReader(io.BytesIO(data[:size])))
        assert caught.value.key == b"name"
        assert caught.value.offset is not None
        assert 15 <= caught.value.offset <= size


def test_hashes_that_share_a_template_have_its_length() -> None:
    def template(number: int, *names: bytes) -> bytes:
        return b"\xf2" + length(number) + each(*map(string, names))

    data = built(
        template(1, b"a", b"bb"),
        template(70000, b"c"),
        record(32, length(70000) + string(b"one")),
        record(32, length(1) + string(b"one") + string(b"2")),
        record(0, string(b"after"), b"z"),
        magic=b"REDIS0015",
    )
    *hashes, last = FileReader(io.BytesIO(data))
    assert [(r.kind, r.encoding) for r in hashes if isinstance(r, OtherRecord)] == [
        ("hash", "template-array")
    ] * 2
    assert isinstance(last, StringRecord)
    with pytest.raises(BadPayload, match="hash template 5 is not defined"):
        list(FileReader(io.BytesIO(built(record(32, length(5)), magic=b"REDIS0015"))))


@pytest.mark.parametrize("magic", [b"REDIS0010", b"REDIS0014", b"VALKEY080"])
def test_other_records_of_servers_are_read(magic: bytes) -> None:
    module = length(module_number("vectorset", 1)) + MODULE_VALUES
    data = built(
        b"\xfa" + string(b"redis-ver") + string(b"7.4.0"),
        b"\xfa" + string(b"ctime") + string(b"1700000000"),
        b"\xf5" + string(b"#!lua name=lib\nredis.register_function('f', f)"),
        b"\xf6" + string(b"lib") + string(b"LUA") + length(1) + string(b"text") + string(b"code"),
        b"\xf6" + string(b"lib") + string(b"LUA") + length(0) + string(b"code"),
        b"\xf7" + module,
        b"\xfe" + length(300) + b"\xfb" + length(70000) + length(3),
        b"\xf4" + length(12) + length(1) + length(0),
        b"\xfd" + (1700000000).to_bytes(4, "little") + record(0, string(b"1"), b"seconds"),
        b"\xfc" + i64(1700000000123) + record(0, string(b"1"), b"milliseconds"),
        b"\xfc" + i64(-1) + record(0, string(b"1"), b"never"),
        b"\xfc" + i64(0) + record(0, string(b"1"), b"at the epoch"),
        b"\xfd" + (-2).to_bytes(4, "little", signed=True) + record(0, string(b"1"), b"before it"),
        b"\xf8" + length(100) + b"\xf9\x07" + record(0, string(b"1"), b"used"),
        record(0, string(b"1"), b"plain"),
        magic=magic,
    )
    records = list(FileReader(io.BytesIO(data)))
    assert records[:6] == [
        AuxRecord(b"redis-ver", b"7.4.0"),
        AuxRecord(b"ctime", b"1700000000"),
        FunctionRecord(b"#!lua name=lib\nredis.register_function('f', f)"),
        FunctionRecord(b"#!LUA name=lib\ncode"),
        FunctionRecord(b"#!LUA name=lib\ncode"),
        ModuleAuxRecord("vectorset 1"),
    ]
    found = [
        (r.db, r.key, r.expire_at_ms, r.idle_s, r.freq)
        for r in records
        if isinstance(r, StringRecord)
    ]
    assert found == [
        (300, b"seconds", 1700000000000, None, None),
        (300, b"milliseconds", 1700000000123, None, None),
        (300, b"never", None, None, None),
        (300, b"at the epoch", 1, None, None),
        (300, b"before it", 1, None, None),
        (300, b"used", None, 100, 7),
        (300, b"plain", None, None, None),
    ]


def test_byte_243_has_different_meanings_in_redis_and_valkey() -> None:
    metadata = b"\xf3" + length(2) + (b"abcd" + MODULE_VALUES) * 2
    importing = b"\xf3" + string(b"j" * 40) + each(length(0) + length(5), length(70) + length(99))
    key = record(0, string(b"1"))
    for magic, good, bad in (
        (b"REDIS0013", metadata, importing),
        (b"VALKEY080", importing, metadata),
    ):
        [found] = FileReader(io.BytesIO(built(good, key, magic=magic)))
        assert isinstance(found, StringRecord)
        with pytest.raises(BadPayload):
            list(FileReader(io.BytesIO(built(bad, key, magic=magic))))
    with pytest.raises(BadPayload, match="243 is unknown"):
        list(FileReader(io.BytesIO(built(metadata, key, magic=b"REDIS0011"))))


@pytest.mark.parametrize(
    ("magic", "type_"),
    [
        (b"REDIS0009", 8),
        (b"REDIS0011", 22),
        (b"REDIS0012", 29),
        (b"REDIS0016", 33),
        (b"REDIS0009", 241),
        (b"VALKEY080", 23),
        (b"VALKEY080", 242),
        (b"VALKEY080", 26 + 7),
    ],
)
def test_an_unknown_type_is_refused_with_its_offset_and_key(magic: bytes, type_: int) -> None:
    first = record(0, string(b"1"), b"known")
    data = built(first, record(type_, string(b"?"), b"unknown"), magic=magic)
    reader = iter(FileReader(io.BytesIO(data)))
    assert isinstance(next(reader), StringRecord)
    with pytest.raises(BadPayload, match=f"{type_} is unknown in") as caught:
        next(reader)
    assert (caught.value.offset, caught.value.key) == (9 + len(first), b"unknown")


def test_a_module_of_a_release_candidate_cannot_be_skipped() -> None:
    with pytest.raises(BadPayload, match="cannot be found") as caught:
        list(FileReader(io.BytesIO(built(record(6, length(1) + b"?" * 9)))))
    assert caught.value.key == b"k"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"REDIS",
        b"REDIS000",
        b"REDIS0000" + EOF,
        b"REDIS00x9" + EOF,
        b"redis0009" + EOF,
        b"VALKEY000" + EOF,
        b"*3\r\n$3\r\nSET\r\n",
    ],
)
def test_a_file_without_the_magic_is_refused(data: bytes) -> None:
    for read in (FileReader, verify):
        with pytest.raises(BadPayload, match="does not begin as an RDB file does") as caught:
            read(io.BytesIO(data))
        assert caught.value.offset == 0


@pytest.mark.parametrize(
    "magic", [b"REDIS0017", b"REDIS0080", b"REDIS0099", b"VALKEY011", b"VALKEY079", b"VALKEY081"]
)
def test_a_version_that_no_server_writes_is_refused_before_anything_else(magic: bytes) -> None:
    whole = built(record(0, string(b"1")), magic=magic)
    for data in (whole, magic + built(record(0, string(b"1")))[9:]):  # the checksum, too, is wrong
        for read in (FileReader, verify):
            with pytest.raises(BadPayload, match=f"version {int(magic[-3:])} is not known"):
                read(io.BytesIO(data))


def test_a_header_survives_a_round_trip() -> None:
    for data in (b"REDIS0003", b"REDIS0012", b"VALKEY080", b"REDIS9999"):
        header = Header.decode(data)
        assert header is not None
        assert header.encode() == data


# --- the end of a file ----------------------------------------------------------------------------

SAMPLE = built(*(record(0, string(b"%d" % n * 9), b"key %d" % n) for n in range(300)))


def walked(data: bytes) -> list[Record]:
    return list(FileReader(io.BytesIO(data)))


def test_a_wrong_checksum_is_reported_at_the_end() -> None:
    at = SAMPLE.index(b"key 299") + 9
    damaged = SAMPLE[:at] + b"!" + SAMPLE[at + 1 :]
    reader = iter(FileReader(io.BytesIO(damaged)))
    assert [isinstance(next(reader), StringRecord) for _ in range(300)] == [True] * 300
    with pytest.raises(BadPayload, match="the checksum is") as caught:
        next(reader)
    assert caught.value.offset == len(SAMPLE) - 8
    assert not verify(io.BytesIO(damaged))


def test_a_file_without_a_checksum_is_read_and_not_verified() -> None:
    for data in (SAMPLE[:-8] + bytes(8), b"REDIS0004" + SAMPLE[9:-8]):
        assert len(walked(data)) == 300
        assert not verify(io.BytesIO(data))


class Dripping(io.BytesIO):
    """A file that returns few bytes at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 3))


def test_a_file_may_arrive_in_pieces_of_any_size() -> None:
    assert verify(Dripping(SAMPLE))
    assert [type(r) for r in FileReader(Dripping(SAMPLE))] == [StringRecord] * 300


def test_a_file_truncated_anywhere_is_refused() -> None:
    for size in (
        *range(40),
        *range(40, len(SAMPLE) - 40, 61),
        *range(len(SAMPLE) - 40, len(SAMPLE)),
    ):
        with pytest.raises(BadPayload) as caught:
            walked(SAMPLE[:size])
        assert caught.value.offset is not None
        assert caught.value.offset <= size
        if size >= MAGIC_BYTES:
            assert not verify(io.BytesIO(SAMPLE[:size]))


@pytest.mark.parametrize("data", [SAMPLE, SAMPLE[:-8] + bytes(8), b"REDIS0004" + SAMPLE[9:-8]])
@pytest.mark.parametrize("behind", [b"\0", b"*1\r\n", b"f" * 40, bytes(4096), b"\xff" + bytes(8)])
def test_bytes_after_the_end_are_not_read(data: bytes, behind: bytes) -> None:
    reader = FileReader(io.BytesIO(data + behind))
    assert len(list(reader)) == 300
    assert reader.offset == len(data)
    assert list(reader) == []
    assert not verify(io.BytesIO(data + behind))


def test_damage_before_the_end_is_found_despite_bytes_after_it() -> None:
    for at in (SAMPLE.index(b"key 7") + 4, len(SAMPLE) - 4):
        with pytest.raises(BadPayload, match="the checksum is"):
            walked(SAMPLE[:at] + b"!" + SAMPLE[at + 1 :] + b"f" * 40)


def test_a_database_number_beyond_the_limit_is_refused() -> None:
    with pytest.raises(BadPayload, match="above 32767"):
        walked(built(b"\xfe" + length(1 << 15)))
