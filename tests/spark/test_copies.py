"""Copies of stores that tasks read have every entry, after any changes before the copy."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.spark.read import stores
from kvstream.spark.read.partitions import Piece
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID

KEY = b"orders"
MANY = 24_000
"""More rows than a load writes as single rows: they are ingested."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a stream that was ingested, and another one."""
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


def read(folder: Path, start: StreamID = MIN_ID, end: StreamID = MAX_ID) -> bytes:
    """Return the IDs of the entries of a piece of a copy."""
    with Store.open(folder, read_only=True) as copy:
        pages = stores.store_pages(copy, Piece(KEY, start, end, 0))
        return b"".join(page.ids for page in pages)


def test_pieces_have_every_entry_once(loaded: Path) -> None:
    cuts = [StreamID(1000 + n * 997, n % 3) for n in range(11)]
    bounds = zip([MIN_ID, *cuts], [*(cut.previous() for cut in cuts), MAX_ID], strict=True)
    whole = read(loaded)
    assert len(whole) == 16 * MANY
    assert b"".join(read(loaded, *each) for each in bounds) == whole
    assert read(loaded, StreamID(5, 0), StreamID(6, 0)) == b""
    assert read(loaded, StreamID(1001, 1), StreamID(1001, 1)) == StreamID(1001, 1).packed


def delete(store: Store) -> int:
    return -store.stream(KEY).delete(*(f"{1000 + n}-1" for n in range(0, 7900, 7)))


def trim(store: Store) -> int:
    return -store.stream(KEY).trim(maxlen=12_345, approximate=False)


def add(store: Store) -> int:
    store.stream(KEY).add_many([{"more": n} for n in range(500)])
    return 500


CHANGES: list[Callable[[Store], int]] = [delete, trim, add]


@pytest.mark.parametrize("settle", ["log", "flush", "compact"])
def test_a_copy_has_what_was_changed_before_it(store: Store, settle: str) -> None:
    expected = MANY + sum(change(store) for change in CHANGES)
    if settle != "log":
        store.engine.database.flush()
    if settle == "compact":
        store.compact()
    target = store.engine.database.directory.with_name("copy")
    store.checkpoint(target)
    assert len(read(target)) == 16 * expected
