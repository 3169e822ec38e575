"""KVSTREAM.LOAD COMMIT validates every file: all its entries are sound, or none is loaded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import redis

from kvstream.bulkload.parts import RowsFile, RowsWriter, digest_of
from kvstream.layout.values import encode_fields
from kvstream.operations.checks import check
from kvstream.types.options import KEY_BYTES_MAX
from tests.server.commands.test_kvstream_load import Load, ids, values
from tests.server.conftest import Served


@pytest.fixture
def load(client: redis.Redis, served: Served, tmp_path: Path) -> Iterator[Load]:
    """A load into ``mine``, beside a stream that it must not touch."""
    client.xadd("victim", {"n": "1"}, id="1-1")
    client.xadd("victim", {"n": "2"}, id="2-1")
    folder = tmp_path / "made"
    folder.mkdir()
    yield Load(client, folder, "mine", "victim")
    assert [eid for eid, _ in client.xrange("victim")] == [b"1-1", b"2-1"]  # type: ignore[union-attr]
    assert served.engine.run(check, False) == []


def page(key: Any, numbers: list[int], rows: Any = None) -> bytes:
    made: bytes = msgpack.packb((key, b"".join(ids(*numbers)), rows or values(*numbers)))
    return made


def sent(load: Load, folder: Path, content: bytes) -> list[bytes]:
    path = folder / "file.rows"
    path.write_bytes(content)
    return load.put(RowsFile(str(path), digest_of(path), given=True))


SOUND = page(b"mine", [1, 2, 3])
REFUSED = {
    "nothing": b"",
    "a number": b"\x05",
    "an unused byte": b"\xc1",
    "text": b"x" * 900,
    "a page that is cut": SOUND[:-1],
    "two words": msgpack.packb((b"mine", b"")),
    "four words": msgpack.packb((b"mine", *(b"", []), 5)),
    "a key that is a number": page(5, [1]),
    "a key that is too long": page(b"k" * (KEY_BYTES_MAX + 1), [1]),
    "no entries": msgpack.packb((b"mine", b"", [])),
    "an ID too few": page(b"mine", [1], values(1, 2)),
    "half an ID": msgpack.packb((b"mine", bytes(8), values(1))),
    "a value that is a number": page(b"mine", [1], [5]),
    "a value that is no entry": page(b"mine", [1], [b"\x01\x81\xa1a"]),
    "a value without fields": page(b"mine", [1], [b"\x01\x80"]),
    "an ID of zeros": page(b"mine", [0]),
    "IDs that descend": page(b"mine", [2, 1]),
    "the same ID twice": page(b"mine", [1]) + page(b"mine", [1]),
    "the same stream twice": page(b"mine", [1]) + page(b"other", [1]) + page(b"mine", [2]),
    "streams out of order": page(b"other", [1]) + page(b"mine", [1]),
    "an ID that is there": page(b"victim", [2]),
    "arrays in arrays": b"\x91" * 5000,
    "arrays that are said to be long": b"\xdc\xff\xff" * 2000,
    "a string that is said to be long": b"\x93\xc6\xff\xff\xff\xff",
    "more behind": SOUND + b"\xc1",
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_file_is_refused(
    load: Load, client: redis.Redis, tmp_path: Path, case: str
) -> None:
    with pytest.raises(redis.ResponseError):
        load.commit(*sent(load, tmp_path, REFUSED[case]))
    assert client.keys() == [b"victim"]


def test_rows_of_the_same_streams_in_two_orders_are_accepted(
    load: Load, client: redis.Redis, tmp_path: Path
) -> None:
    writer = RowsWriter(tmp_path / "made", load.ticket)
    writer.extend(b"mine", ids(3, 1, 2), values(3, 1, 2))
    writer.extend(b"unnamed", None, values(*range(500)))
    words = [word for file in writer.close() for word in load.put(file)]
    many = "f" * 70_000
    writer = RowsWriter(tmp_path / "made", load.ticket, partition=1)
    writer.extend(b"mine", ids(5), [encode_fields({str(n): many[:n] for n in range(300)})[0]])
    words += [word for file in writer.close() for word in load.put(file)]
    assert load.commit(*words) == {b"applied": 1, b"entries": 504}
    assert (client.xlen("mine"), client.xlen("unnamed")) == (4, 500)


def test_large_entries_are_read_page_by_page(
    load: Load, client: redis.Redis, tmp_path: Path
) -> None:
    large = [encode_fields({"f": bytes([n]) * (3 << 20)})[0] for n in range(4)]
    writer = RowsWriter(tmp_path / "made", load.ticket)
    writer.extend(b"mine", ids(1, 2, 3, 4), large)
    [file] = writer.close()
    with open(file.path, "rb") as content:
        pages = list(msgpack.Unpacker(content, raw=True, max_buffer_size=1 << 30))
    assert [len(rows) for _, _, rows in pages] == [1, 1, 1, 1]
    assert load.commit(*load.put(file))[b"entries"] == 4
    assert client.xlen("mine") == 4


def test_files_that_overlap_are_merged(load: Load, client: redis.Redis, tmp_path: Path) -> None:
    words: list[bytes] = []
    for numbers in (range(1, 3000, 2), range(2, 3000, 2)):
        writer = RowsWriter(tmp_path / "made", load.ticket)
        writer.extend(b"mine", ids(*numbers), values(*numbers))
        words += [word for file in writer.close() for word in load.put(file)]
    assert load.commit(*words)[b"entries"] == 2999
    assert client.xlen("mine") == 2999


def test_the_user_needs_write_rights_for_the_keys(served: Served, tmp_path: Path) -> None:
    served.client().acl_setuser("bob", enabled=True, nopass=True, keys=["a*"], commands=["+@all"])
    bob = served.client(username="bob", password="x")
    load = Load(bob, tmp_path, "a")
    words = load.send({b"a": ([1], [1]), b"b": ([1], [1])})
    with pytest.raises(redis.ResponseError, match="No permissions to access a key"):
        load.commit(*words)
    words = Load.send(load, {b"a": ([1], [1])})
    with pytest.raises(redis.ResponseError, match="No permissions to access a key"):
        load.commit("MARK", "b", 1, *words)
    assert served.client().keys() == []
    assert load.commit("MARK", "a:done", 1, *words) == {b"applied": 1, b"entries": 1}
