"""Copies of stores, read out of their tables where these are plain: the same entries either way."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream import Corruption, Store
from kvstream.layout.columns import Columns
from kvstream.spark.read import stores
from kvstream.spark.read.partitions import Piece
from kvstream.storage import sst_reads
from kvstream.storage.batch import Family
from kvstream.storage.sst import reading
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID

KEY = b"orders"
MANY = 24_000
"""More than a load writes as single rows: they become a table."""
COMPILED = pytest.mark.skipif(reading is None, reason="the compiled reader is not installed")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a stream that lies in tables of ours, and another one."""
    folder = tmp_path_factory.mktemp("loaded")
    with Store.open(folder / "source") as source, Store.open(folder / "store") as store:
        for n in range(MANY):
            source.stream(KEY).add({"n": n, "text": "x" * (n % 90)}, f"{1000 + n // 3}-{n % 3}")
        source.stream(b"before").add({"a": "1"})
        for key in (KEY, b"before"):
            image = source.image(key)
            assert image is not None
            store.load(key, image)
    return folder / "store"


@pytest.fixture
def store(tmp_path: Path, loaded: Path) -> Iterator[Store]:
    with Store.open(loaded) as origin:
        origin.checkpoint(tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        yield store


def copied(store: Store) -> Path:
    target = store.engine.database.directory.with_name("copy")
    store.checkpoint(target)
    return target


def flat(pages: Iterator[Columns]) -> list[bytes]:
    """Return what pages hold: IDs, and names and values in their order."""
    found = list(pages)
    return [b"".join(getattr(page, part) for page in found) for part in ("ids", "names", "values")]


def piece(start: StreamID = MIN_ID, end: StreamID = MAX_ID) -> Piece:
    return Piece(KEY, start, end, 0)


def both(folder: Path, *pieces: Piece) -> int:
    """Return how many entries pieces of a copy have, once both ways find the same."""
    with Store.open(folder, read_only=True) as copy:
        count = 0
        for each in pieces or (piece(),):
            found = flat(stores.copy_pages(copy, each))
            assert found == flat(stores.store_pages(copy, each))
            count += len(found[0]) // 16
        return count


def read_by_rocksdb(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many entries of the stream RocksDB has to read."""
    counts: list[int] = []

    def counted(store: Store, each: Piece) -> Iterator[Columns]:
        for page in store_pages(store, each):
            counts.append(len(page))
            yield page

    store_pages = stores.store_pages
    with monkeypatch.context() as patch, Store.open(folder, read_only=True) as copy:
        patch.setattr(stores, "store_pages", counted)
        assert sum(map(len, stores.copy_pages(copy, piece()))) == copy.stream(KEY).info().length
    return sum(counts)


@COMPILED
def test_tables_that_were_taken_in_are_read_without_rocksdb(
    loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_by_rocksdb(loaded, monkeypatch) == 0


def test_every_piece_is_the_same_either_way(loaded: Path) -> None:
    cuts = [StreamID(1000 + n * 997, n % 3) for n in range(11)]
    pieces = [piece(a, b.previous()) for a, b in zip(cuts, [*cuts[1:], MAX_ID], strict=True)]
    assert both(loaded, piece(MIN_ID, cuts[0].previous()), *pieces) == MANY
    assert both(loaded, piece(StreamID(5, 0), StreamID(6, 0))) == 0
    assert both(loaded, piece(StreamID(1001, 1), StreamID(1001, 1))) == 1


def delete(store: Store) -> int:
    ids = [f"{1000 + n}-1" for n in range(0, 7900, 7)]
    return -store.stream(KEY).delete(*ids)


def trim(store: Store) -> int:
    return -store.stream(KEY).trim(maxlen=12_345, approximate=False)


def add(store: Store) -> int:
    store.stream(KEY).add_many([{"more": n} for n in range(500)])
    return 500


CHANGES: list[Callable[[Store], int]] = [delete, trim, add]


@pytest.mark.parametrize("changes", [*([each] for each in CHANGES), CHANGES])
@pytest.mark.parametrize("settle", ["log", "flush", "compact"])
def test_what_was_changed_since_is_the_same_either_way(
    store: Store, changes: list[Callable[[Store], int]], settle: str
) -> None:
    expected = MANY + sum(change(store) for change in changes)
    if settle != "log":
        store.engine.database.flush()
    if settle == "compact":
        store.compact()
    target = copied(store)
    assert both(target) == expected


@COMPILED
def test_a_stream_that_grew_is_read_without_rocksdb_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store)
    store.engine.database.flush()  # what is in the log alone would be in memory
    target = copied(store)
    assert read_by_rocksdb(target, monkeypatch) == 0


@COMPILED
def test_a_damaged_block_is_told_by_rocksdb(store: Store) -> None:
    target = copied(store)
    with Store.open(target, read_only=True) as copy:
        tables = copy.engine.database.plain_tables(Family.MESSAGES)
        assert tables
        table = max(tables, key=lambda each: each.size).path
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 1
    table.unlink()
    table.write_bytes(content)
    with Store.open(target, read_only=True) as copy, pytest.raises(Corruption):
        flat(stores.copy_pages(copy, piece()))


@COMPILED
def test_a_table_that_gives_up_in_the_middle_is_ended_by_rocksdb(
    loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_pages = sst_reads.packed_pages

    def interrupted(stretch: sst_reads.Stretch, prefix: bytes, zstd: Any) -> Iterator[bytes]:
        yield next(packed_pages(stretch, prefix))
        raise sst_reads.NotPlain

    monkeypatch.setattr(sst_reads, "CHUNK_BLOCKS", 3)
    monkeypatch.setattr(sst_reads, "packed_pages", interrupted)
    assert both(loaded) == MANY
