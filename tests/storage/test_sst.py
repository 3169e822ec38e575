"""SST files: RocksDB reads from them what was put."""

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rocksdict import IngestExternalFileOptions, Options, Rdict

from kvstream.errors import StoreError, StoreFull
from kvstream.storage.sst import TableWriter
from tests.storage.stores import pack_rows

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
    """Return the rows that RocksDB finds in an ingested table."""
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
def test_rocksdb_finds_the_rows_put(
    tmp_path_factory: pytest.TempPathFactory, prefixes: list[bytes], values: list[bytes], step: int
) -> None:
    folder = tmp_path_factory.mktemp("table")
    ids = ids_of(len(values), step)
    expected = [
        (prefix + eid, value) for prefix in prefixes for eid, value in zip(ids, values, strict=True)
    ]
    assume(expected == sorted(dict(expected).items()))  # false if one prefix starts another
    table = TableWriter(folder / "made.sst")
    for at, prefix in enumerate(prefixes):
        if at % 2:
            table.put_packed(prefix, pack_rows(ids, values), len(ids))
        else:
            table.put(prefix, ids, values)
    assert table.rows == len(expected)
    table.finish()
    assert rows_in(folder / "db", table.path) == expected


def test_the_database_compacts_and_keeps_the_table(tmp_path: Path) -> None:
    """Compact it with later rows, and read it again after a restart."""
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


@pytest.mark.parametrize("second", [b"", b"\0", b"o", b"p"])
def test_rows_out_of_order_are_refused(tmp_path: Path, second: bytes) -> None:
    table = TableWriter(tmp_path / "made.sst")
    table.put(b"p", ids_of(3), [b"v"] * 3)
    with pytest.raises(StoreError):
        table.put(second, ids_of(3), [b"v"] * 3)
    table.abandon()
    table.abandon()
    assert list(tmp_path.iterdir()) == []


def test_packed_rows_that_were_cut_are_refused(tmp_path: Path) -> None:
    table = TableWriter(tmp_path / "made.sst")
    with pytest.raises(ValueError, match="end within a row"):
        table.put_packed(b"p", pack_rows(ids_of(1), [b"value"])[:-1], 1)
    table.abandon()


def test_a_table_that_cannot_be_created_raises(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        TableWriter(tmp_path / "missing" / "made.sst")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_raises_its_own_error(tmp_path: Path) -> None:
    place = tmp_path / "made.sst"
    place.symlink_to("/dev/full")  # RocksDB removes a file that it cannot complete: the link
    table = TableWriter(place)
    table.put(b"p", ids_of(3), [b"v"] * 3)
    with pytest.raises(StoreFull):
        table.finish()
    assert Path("/dev/full").exists()
