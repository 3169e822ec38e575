"""Tables written by our own hands: RocksDB reads from them what was put, and notices damage."""

from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import IngestExternalFileOptions, Options, Rdict

from kvstream.errors import StoreError, StoreFull
from kvstream.layout.packing import pack_rows
from kvstream.storage import sst
from kvstream.storage.sst import TableWriter, twins

if twins is None:
    pytest.skip("the compiled writer is not installed", allow_module_level=True)

VALUES = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 60_000).map(lambda n: b"v" * n),
    st.integers(0, 9000).map(lambda n: b"%06d sku and quantity " % n * (n % 90)),
    st.integers(0, 255).map(lambda n: bytes((n * i * i >> 3) & 255 for i in range(700))),
)
PREFIXES = st.lists(st.binary(max_size=40), min_size=1, max_size=4, unique=True).map(sorted)
Rows = list[tuple[bytes, bytes]]


def ids_of(count: int, step: int = 1) -> list[bytes]:
    return [(n * step).to_bytes(16, "big") for n in range(1, count + 1)]


def rows_in(folder: Path, table: Path) -> Rows:
    """Return what RocksDB finds in a table that it has taken in."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(folder), options)
    try:
        database.ingest_external_file([str(table)], IngestExternalFileOptions())
        rows, found = database.iter(), []
        rows.seek_to_first()
        while rows.valid():
            found.append((rows.key(), rows.value()))
            rows.next()
        rows.status()
        assert database.get([key for key, _ in found]) == [value for _, value in found]
        del rows
        return found
    finally:
        database.close()


@settings(max_examples=30)
@given(
    prefixes=PREFIXES, values=st.lists(VALUES, min_size=1, max_size=90), step=st.integers(1, 900)
)
def test_rocksdb_finds_what_was_put(
    tmp_path_factory: pytest.TempPathFactory, prefixes: list[bytes], values: list[bytes], step: int
) -> None:
    folder = tmp_path_factory.mktemp("table")
    table = TableWriter(folder / "made.sst")
    ids = ids_of(len(values), step)
    expected: Rows = []
    for at, prefix in enumerate(prefixes):
        if at % 2:
            table.put_packed(prefix, pack_rows(ids, values), len(ids))
        else:
            table.put(prefix, ids, values)
        expected += [(prefix + eid, value) for eid, value in zip(ids, values, strict=True)]
        if [key for key, _ in expected] != sorted({key for key, _ in expected}):
            table.abandon()
            return  # a prefix that opens another one: their rows are not in order
    assert table.rows == len(expected)
    table.finish()
    assert rows_in(folder / "db", table.path) == expected


def test_a_long_table_is_the_same_as_the_one_that_rocksdb_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_of(30_000, 7)
    values = [b"value %d of so many, and some more of each" % (n * n) for n in range(len(ids))]
    found = []
    for compiled in (twins, None):
        monkeypatch.setattr(sst, "twins", compiled)
        table = TableWriter(tmp_path / f"{compiled is None}.sst")
        table.put(b"prefix", ids, values)
        table.finish()
        found.append((table.rows, rows_in(tmp_path / f"{compiled is None}", table.path)))
    assert found[0] == found[1]
    own, theirs = (tmp_path / f"{which}.sst" for which in (False, True))
    assert own.stat().st_size < 1.1 * theirs.stat().st_size


def test_the_database_goes_on_with_it(tmp_path: Path) -> None:
    """It is compacted with rows that come later, and found again when the database is reopened."""
    table = TableWriter(tmp_path / "made.sst")
    table.put(b"p", ids_of(5000), [b"old %d" % n for n in range(5000)])
    table.finish()
    assert len(rows_in(tmp_path / "db", table.path)) == 5000
    database = Rdict(str(tmp_path / "db"), Options(raw_mode=True))
    for eid in ids_of(5000)[::2]:
        database[b"p" + eid] = b"new"
    database.flush()
    database.compact_range(None, None)
    assert [database[b"p" + eid] for eid in ids_of(4)] == [b"new", b"old 1", b"new", b"old 3"]
    database.close()


def test_every_flipped_byte_of_the_rows_is_noticed(tmp_path: Path) -> None:
    table = TableWriter(tmp_path / "made.sst")
    table.put(b"p", ids_of(400), [b"value %d" % (n**5) for n in range(400)])
    table.finish()
    whole = table.path.read_bytes()
    for at in range(0, len(whole) // 2, 97):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        place = tmp_path / f"{at}.sst"
        place.write_bytes(damaged)
        with pytest.raises(Exception, match="Corruption"):
            rows_in(tmp_path / f"db{at}", place)


@pytest.mark.parametrize("second", [b"", b"\0", b"o", b"p"])
def test_rows_out_of_order_are_refused(tmp_path: Path, second: bytes) -> None:
    table = TableWriter(tmp_path / "made.sst")
    table.put(b"p", ids_of(3), [b"v"] * 3)
    table.put(second, ids_of(3), [b"v"] * 3)
    with pytest.raises(StoreError):
        table.finish()
    table.abandon()
    table.abandon()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_row_is_refused(tmp_path: Path) -> None:
    table = TableWriter(tmp_path / "made.sst")
    for ids, values in (
        ([b"short"], [b"v"]),
        (ids_of(1), []),
        (ids_of(1), [None]),
        ([1], [b"v"]),
    ):
        with pytest.raises(StoreError):
            table.put(b"p", ids, values)  # type: ignore[arg-type]
    table.put_packed(b"p", pack_rows(ids_of(1), [b"value"])[:-1], 1)
    with pytest.raises(StoreError):
        table.finish()
    table.abandon()


def test_a_table_that_cannot_be_begun_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        TableWriter(tmp_path / "missing" / "made.sst")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_told_as_such() -> None:
    table = TableWriter(Path("/dev/full"))
    table.put(b"p", ids_of(3), [b"v"] * 3)
    with pytest.raises(StoreFull):
        table.finish()
    table._table.close()  # abandoning it would remove the device


@given(st.binary(max_size=200))
def test_sums_are_those_of_xxh64(data: bytes) -> None:
    assert twins.sum_of(data) == xxhash.xxh64_intdigest(data) & 0xFFFFFFFF


@given(VALUES)
def test_an_lz4_block_holds_its_bytes(data: bytes) -> None:
    assert _expanded(twins.compress(data)) == data


def _expanded(block: bytes) -> bytes:
    """Return what an LZ4 block holds, told step by step."""
    found, at = bytearray(), 0

    def more(length: int) -> int:
        nonlocal at
        if length == 15:
            while block[at] == 255:
                length, at = length + 255, at + 1
            length, at = length + block[at], at + 1
        return length

    while at < len(block):
        token, at = block[at], at + 1
        count = more(token >> 4)
        found += block[at : at + count]
        at += count
        if at == len(block):
            return bytes(found)
        distance, at = int.from_bytes(block[at : at + 2], "little"), at + 2
        assert 0 < distance <= len(found)
        for _ in range(more(token & 15) + 4):
            found.append(found[-distance])
    return bytes(found)
