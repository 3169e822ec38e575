"""A snapshot shows the rows of one moment, unaffected by later writes."""

from pathlib import Path

import pytest

from kvstream.errors import StoreClosed
from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import Database
from kvstream.storage.reads import PAGE_BYTES, PAGE_ROWS, Snapshot
from kvstream.types.options import StoreOptions

TREES = Family.TREES
KEYS = [b"a", *(b"ab%03d" % number for number in range(PAGE_ROWS)), b"b", b"c", b"d", b"da"]
LARGE = PAGE_BYTES // 100
"""A page ends by its bytes after a hundred rows of this size."""


def test_rows_are_those_of_the_moment(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "store", StoreOptions())
    batch = Batch(database)
    for key in KEYS:
        batch.put(TREES, key, key * LARGE)
    database.write(batch)
    batch.clear()
    rows = Snapshot(database, (TREES,))
    for key in KEYS[1:-2]:
        batch.delete(TREES, key)
    batch.put(TREES, b"a", b"new")
    batch.put(TREES, b"bb", b"new")
    database.write(batch)
    bounds = [b"", b"a", b"aa", b"c", b"d", b"e"]
    for lower in bounds:
        for upper in bounds:
            expected = [(key, key * LARGE) for key in KEYS if lower <= key < upper]
            assert list(rows.scan(TREES, lower, upper)) == expected
            assert list(rows.scan(TREES, lower, upper, reverse=True)) == expected[::-1]
            assert rows.page(TREES, lower, upper, 3) == expected[:3]
            assert rows.page(TREES, lower, upper, 2, reverse=True) == expected[::-1][:2]
            pages = rows.pages(TREES, lower, upper)
            assert next(pages) == []
            assert pages.send(2) + pages.send(2 * PAGE_ROWS) == expected
    assert rows.get_many(TREES, [b"b", b"bb", b"da"]) == [b"b" * LARGE, None, b"da" * LARGE]
    database.close()
    with pytest.raises(StoreClosed):
        rows.get(TREES, b"a")
