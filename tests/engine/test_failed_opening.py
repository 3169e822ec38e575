"""An opening that fails or is interrupted at any point, while somebody keeps the exception.

Its frames have handles of RocksDB. RocksDB deletes files that it does not know when it is closed,
so one that is still open must not meet the next opening of the store.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest

from kvstream import Store, StoreLocked
from kvstream.errors import KVStreamError
from kvstream.storage import database, directory, files, maintenance, opening, options, sst
from kvstream.storage.watermark import Watermark
from tests.interrupting import interrupted_at
from tests.patience import until

STEP = 101
"""Every so many points: an opening has thousands."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A closed store with one entry."""
    add(tmp_path / "store")
    return tmp_path / "store"


def add(place: Path) -> None:
    with Store.open(place) as store:
        store.stream("s").add({"f": "v"})


def length(place: Path) -> int:
    with Store.open(place) as store:
        assert store.check() == []
        return len(store.stream("s"))


def is_open_in_rocksdb(place: Path) -> bool:
    return bool(directory._descriptors_of_rocksdb(place))


@pytest.fixture
def kept() -> Iterator[list[BaseException]]:
    """Exceptions that are kept, as a notebook keeps the last one."""
    exceptions: list[BaseException] = []
    yield exceptions
    exceptions.clear()
    gc.collect()


def keep(kept: list[BaseException], call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException as error:
        kept.append(error)
        raise


def test_an_interrupted_opening_loses_nothing(place: Path, kept: list[BaseException]) -> None:
    added = 1
    opened: list[Store] = []

    def open_it() -> None:
        with suppress(RuntimeError):  # that of Python's own locks, in place of the interrupt
            keep(kept, lambda: opened.append(Store.open(place)))

    for point in count(1, STEP):
        interrupted = interrupted_at(point, open_it)
        while opened:
            opened.pop().close()
        if not interrupted:
            break
        if is_open_in_rocksdb(place):
            with pytest.raises(StoreLocked):
                Store.open(place)
            kept.clear()
        add(place)
        added += 1
    assert point > 1000
    kept.clear()
    gc.collect()
    assert length(place) == added


FAILING: list[tuple[object, str]] = [
    (sst, "clear_staging"),
    (files, "make_private"),
    (Watermark, "open"),
    (opening, "_refuse_loss"),
    (opening, "_refuse_gap"),
    (options, "_check_large_values"),
    (database, "Stalls"),
    (maintenance, "RangeDeletes"),
]


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), KeyboardInterrupt()])
@pytest.mark.parametrize(("where", "name"), FAILING, ids=[name for _, name in FAILING])
def test_a_failed_opening_closes_rocksdb(
    place: Path,
    kept: list[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    name: str,
    error: BaseException,
) -> None:
    used = len(os.listdir("/proc/self/fd"))
    for nth in range(4):  # some are called for a view first, some more than once
        with monkeypatch.context() as patch:
            real = getattr(where, name)
            left = iter(range(nth))
            patch.setattr(where, name, failing_after(left, real, error))
            with suppress(KVStreamError, OSError, KeyboardInterrupt):
                keep(kept, lambda: add(place))
        assert not is_open_in_rocksdb(place)
    before = length(place)
    add(place)
    kept.clear()
    gc.collect()
    assert length(place) == before + 1
    until(lambda: len(os.listdir("/proc/self/fd")) <= used, "the descriptors to be closed")


def failing_after(
    left: Iterator[int], real: Callable[..., object], error: BaseException
) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        if next(left, None) is None:
            raise error
        return real(*args, **kwargs)

    return call


def test_a_new_store_whose_watermark_cannot_be_made_is_made_by_the_next_opening(
    tmp_path: Path, kept: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr(Watermark, "create", Mock(side_effect=OSError(28, "No space left")))
        with pytest.raises(KVStreamError):
            keep(kept, lambda: Store.open(place))
    assert not place.exists()
    add(place)
    add(place)
    kept.clear()
    gc.collect()
    assert length(place) == 2


def test_a_handle_that_is_kept_keeps_the_lock(place: Path) -> None:
    store = Store.open(place)
    handle = store.engine.database._root.get_column_family_handle("messages")
    store.close()
    assert is_open_in_rocksdb(place)
    for _ in range(2):
        with pytest.raises(StoreLocked, match="keeps has it open still: drop that"):
            Store.open(place)
    del handle
    add(place)
    assert length(place) == 2


def test_a_kept_interrupt_of_a_write_or_read_keeps_nothing_open(
    place: Path, kept: list[BaseException]
) -> None:
    def use() -> None:
        stream = store.stream("s")
        stream.add_many([{"f": "v"}] * 3)
        list(stream.range())
        stream.trim(maxlen=2)

    for point in count(1, STEP):
        store = Store.open(place)
        interrupted = interrupted_at(point, lambda: keep(kept, use))
        store.close()
        assert not is_open_in_rocksdb(place)
        if not interrupted:
            break
    assert point > 300
