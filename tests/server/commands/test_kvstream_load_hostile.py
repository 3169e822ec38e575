"""KVSTREAM.LOAD COMMIT looks into what it is given: a load touches its own streams or nothing."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from rocksdict import Options, SstFileWriter

from kvstream.bulkload import parts
from kvstream.bulkload.parts import Part, PartWriter, digest_of, packed, pieces_of
from kvstream.layout.keys import message_prefix
from kvstream.layout.values import encode_fields
from kvstream.operations.checks import check
from kvstream.storage import sst
from kvstream.storage.sst import TableWriter
from kvstream.types.ids import StreamID
from tests.server.commands.test_kvstream_load import Load, ids, values
from tests.server.conftest import Served

Rows = list[tuple[bytes, list[int]]]
"""Prefixes, and the milliseconds of IDs."""


@pytest.fixture(params=["own", "rocksdb"])
def load(
    request: pytest.FixtureRequest,
    client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Load]:
    """A load into ``mine``, beside a stream that it has no business with, by either writer."""
    client.xadd("victim", {"n": "1"}, id="1-1")
    client.xadd("victim", {"n": "2"}, id="2-1")
    folder = tmp_path / "made"
    folder.mkdir()
    if request.param == "rocksdb":
        monkeypatch.setattr(sst, "twins", None)
    yield Load(client, folder, "mine", "victim")
    assert [eid for eid, _ in client.xrange("victim")] == [b"1-1", b"2-1"]  # type: ignore[union-attr]


def part_of(load: Load, folder: Path) -> Part:
    """Make a part as it should be: entries 1 to 3 of ``mine``."""
    writer = PartWriter(folder, load.ticket)
    writer.extend(b"mine", ids(1, 2, 3), values(1, 2, 3))
    [part] = writer.close()
    return part


def sent(load: Load, part: Part) -> list[bytes]:
    """Send a part whose files were changed, with digests that fit."""
    digests = digest_of(Path(part.table)), digest_of(Path(part.pieces))
    part = part._replace(table_digest=digests[0], pieces_digest=digests[1])
    return [b"PART", *load._sent(part)]


def refused(load: Load, part: Part, client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError):
        load.commit(*sent(load, part))
    assert client.keys() == [b"victim"]


def with_rows(load: Load, part: Part, rows: Rows) -> Part:
    """Give a part a table of other rows."""
    Path(part.table).unlink()
    path = Path(part.table)
    table = TableWriter(path, load.ticket.session_of(path.stem))
    for prefix, numbers in rows:
        table.put(prefix, ids(*numbers), values(*numbers))
    table.finish()
    return part


def others(load: Load) -> dict[str, Rows]:
    """Return tables that are not what the pieces tell, by what is wrong with them."""
    mine, victim = load.ticket.prefixes[b"mine"], load.ticket.prefixes[b"victim"]
    stray = message_prefix(b"\0\0victim", 77)
    return {
        "another stream": [(victim, [1, 2, 3])],
        "another stream too": sorted([(mine, [1, 2, 3]), (victim, [9])]),
        "another generation": sorted([(mine, [1, 2, 3]), (stray, [9])]),
        "no stream's": [(b"\0\0", [1]), (mine, [1, 2, 3])],
        "behind all": [(mine, [1, 2, 3]), (b"\xff" * 9, [1])],
        "another database": [(mine, [1, 2, 3]), (b"\1" + victim[1:], [1])],
        "too few": [(mine, [1, 3])],
        "too many": [(mine, [1, 2, 3, 4])],
        "a longer ID": [(mine, [1, 2]), (mine + ids(2)[0] + b"\0", [3])],
    }


CASES = [
    *("another stream", "another stream too", "another generation", "no stream's"),
    *("behind all", "another database", "too few", "too many", "a longer ID"),
]


@pytest.mark.parametrize("case", CASES)
def test_rows_that_belong_elsewhere_are_refused(
    load: Load, client: redis.Redis, tmp_path: Path, case: str
) -> None:
    part = part_of(load, tmp_path / "made")
    refused(load, with_rows(load, part, others(load)[case]), client)


def test_what_a_table_deletes_is_not_deleted(
    load: Load, client: redis.Redis, tmp_path: Path
) -> None:
    """RocksDB would believe it; rows that are written once more are plain rows."""
    part = part_of(load, tmp_path / "made")
    rows = dict(zip(ids(1, 2, 3), values(1, 2, 3), strict=True))
    mine, victim = load.ticket.prefixes[b"mine"], load.ticket.prefixes[b"victim"]
    gone = victim + StreamID(1, 1).packed
    Path(part.table).unlink()
    table: Any = SstFileWriter(Options(raw_mode=True))
    table.open(part.table)
    for key, value in sorted([(gone, b""), *((mine + eid, value) for eid, value in rows.items())]):
        if key == gone:
            del table[key]
        else:
            table[key] = value
    table.finish()
    assert load.commit(*sent(load, part)) == {b"applied": 1, b"entries": 3}


LIES: dict[str, Callable[[Any], None]] = {
    "another key": lambda piece: setattr(piece, "key", b"theirs"),
    "the victim": lambda piece: setattr(piece, "key", b"victim"),
    "no key": lambda piece: setattr(piece, "key", 5),
    "more": lambda piece: _set(piece, length=4, open_live=4, open_appended=4),
    "fewer": lambda piece: _set(piece, length=2, open_live=2, open_appended=2),
}
MISTAKES: dict[str, Callable[[Any], None]] = {
    "another begin": lambda piece: _set(piece, first=StreamID(0, 5)),
    "a later end": lambda piece: _set(piece, last=StreamID(99, 0)),
    "none live": lambda piece: _set(piece, open_live=0),
    "gone": lambda piece: _set(piece, open_appended=9),
    "nodes": lambda piece: _set(piece, nodes=7),
    "a head": lambda piece: _set(piece, head=StreamID(0, 7)),
    "a node that is none": lambda piece: piece.nodes.append((ids(2)[0], b"short")),
    "an ID that is none": lambda piece: piece.nodes.append((b"short", b"")),
}


def _set(piece: Any, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(piece.stream, name, value)


def described(part: Part, change: Callable[[Any], None]) -> Part:
    [piece] = pieces_of(part)
    change(piece)
    Path(part.pieces).write_bytes(packed([piece]))
    return part


@pytest.mark.parametrize("lie", LIES)
def test_pieces_that_tell_of_other_rows_are_refused(
    load: Load, client: redis.Redis, tmp_path: Path, lie: str
) -> None:
    refused(load, described(part_of(load, tmp_path / "made"), LIES[lie]), client)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_pieces_that_contradict_themselves_leave_the_store_sound(
    load: Load, client: redis.Redis, served: Served, tmp_path: Path, mistake: str
) -> None:
    """They are refused, or made anew from the rows."""
    with suppress(redis.ResponseError):
        load.commit(*sent(load, described(part_of(load, tmp_path / "made"), MISTAKES[mistake])))
    assert served.engine.run(check, False) == []
    assert client.xlen("mine") in (0, 3)


def test_bytes_that_are_no_table_and_no_pieces_are_refused(
    load: Load, client: redis.Redis, tmp_path: Path
) -> None:
    whole = part_of(load, tmp_path / "made")
    table, pieces = (Path(path).read_bytes() for path in (whole.table, whole.pieces))
    wrong = [(table[:-9], pieces), (b"x" * 900, pieces), (table, pieces[:-1]), (table, b"\xc1")]
    wrong += [(table, b""), (table, b"\x05"), (table, b"\x91\x93\x01\x02\x03")]
    for at, (one, other) in enumerate(wrong):
        part = whole._replace(
            table=str(tmp_path / "made" / f"p{at}.sst"),
            pieces=str(tmp_path / "made" / f"p{at}.pieces"),
        )
        Path(part.table).write_bytes(one)
        Path(part.pieces).write_bytes(other)
        refused(load, part, client)


def test_rows_of_the_same_streams_in_two_orders_are_taken(
    load: Load, client: redis.Redis, served: Served, tmp_path: Path
) -> None:
    writer = PartWriter(tmp_path / "made", load.ticket)
    writer.extend(b"mine", ids(3, 1, 2), values(3, 1, 2))
    writer.extend(b"unnamed", None, values(*range(500)))
    many = "f" * 70_000
    words = [word for part in writer.close() for word in sent(load, part)]
    writer = PartWriter(tmp_path / "made", load.ticket, partition=1)
    writer.extend(b"mine", ids(5), [encode_fields({str(n): many[:n] for n in range(300)})[0]])
    words += [word for part in writer.close() for word in sent(load, part)]
    assert load.commit(*words) == {b"applied": 1, b"entries": 504}
    assert served.engine.run(check, False) == []
    assert (client.xlen("mine"), client.xlen("unnamed")) == (4, 500)


def test_tables_by_one_name_are_not_taken_for_each_other(
    load: Load, client: redis.Redis, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "session_of", lambda name: sst.session_of(b"one for all"))
    words: list[bytes] = []
    for key in (b"mine", b"unnamed"):
        numbers = [number**7 for number in range(1, 3000)]
        writer = PartWriter(tmp_path / "made", load.ticket)
        writer.extend(key, ids(*range(1, 3000)), values(*[n * (1 + len(key)) for n in numbers]))
        words += [word for part in writer.close() for word in sent(load, part)]
    monkeypatch.undo()
    with suppress(redis.ResponseError):  # each shows its own rows twice
        load.commit(*words)
    assert served.engine.run(check, False) == []
    assert {client.xlen("mine"), client.xlen("unnamed")} in ({0}, {2999})


def test_keys_are_those_that_the_user_may_write(served: Served, tmp_path: Path) -> None:
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
