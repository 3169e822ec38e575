"""A batch shows the committed rows as they will be once it is written; compared with dicts."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import process_time
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvstream.storage import batch as batches
from kvstream.storage.batch import Batch, Family, Row
from kvstream.storage.database import Database
from kvstream.storage.reads import Snapshot
from tests.storage.stores import SMALL

FAMILIES = [Family.MESSAGES, Family.TREES]
LETTERS = "abcdef"

short_keys = st.text(LETTERS, min_size=1, max_size=2).map(str.encode)
bounds = st.tuples(short_keys, short_keys).map(sorted)
families = st.sampled_from(FAMILIES)
changes = st.one_of(
    st.tuples(st.just("put"), families, short_keys, st.binary(max_size=3)),
    st.tuples(st.just("delete"), families, short_keys, st.just(b"")),
    st.tuples(st.just("delete_range"), families, short_keys, short_keys),
)
Change = tuple[str, Family, bytes, bytes]
sharing_a_store = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@dataclass
class Model:
    """The rows in plain dicts."""

    rows: dict[Family, dict[bytes, bytes]] = field(
        default_factory=lambda: {family: {} for family in FAMILIES}
    )

    def apply(self, change: Change) -> None:
        kind, family, key, value = change
        rows = self.rows[family]
        if kind == "put":
            rows[key] = value
        elif kind == "delete":
            rows.pop(key, None)
        else:
            for covered in [own for own in rows if key <= own < value]:
                del rows[covered]

    def between(self, family: Family, lower: bytes, upper: bytes) -> list[Row]:
        return sorted(row for row in self.rows[family].items() if lower <= row[0] < upper)


def apply(batch: Batch, change: Change) -> None:
    kind, family, key, value = change
    if kind == "put":
        batch.put(family, key, value)
    elif kind == "delete":
        batch.delete(family, key)
    else:
        batch.delete_range(family, key, value)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """One store for all examples: each example empties it first."""
    path: Path = tmp_path_factory.mktemp("batch") / "store"
    database = Database.open(path, SMALL)
    yield database
    database.close()


def started(database: Database, committed: list[Change]) -> Model:
    """Make the store hold exactly the rows of ``committed``."""
    emptied = Batch(database)
    for family in FAMILIES:
        emptied.delete_range(family, b"", b"\xff")
    database.write(emptied)
    model = Model()
    for change in committed:
        batch = Batch(database)
        apply(batch, change)
        if batch:
            database.write(batch)
        model.apply(change)
    return model


@pytest.fixture(params=[0, batches._FEW])
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """New keys are sorted together, or inserted one by one."""
    with patch.object(batches, "_FEW", request.param):
        yield


@pytest.mark.usefixtures("few")
@sharing_a_store
@given(committed=st.lists(changes, max_size=8), own=st.lists(changes, max_size=12), data=st.data())
def test_every_read_of_a_batch_sees_its_own_changes(
    shared: Database, committed: list[Change], own: list[Change], data: st.DataObject
) -> None:
    model = started(shared, committed)
    batch = Batch(shared)
    for number, change in enumerate(own):
        apply(batch, change)
        model.apply(change)
        if number % 3 and data.draw(st.booleans()):
            continue  # so that several keys are new to the next read
        family = data.draw(families)
        lower, upper = data.draw(bounds)
        expected = model.between(family, lower, upper)
        reverse = data.draw(st.booleans())
        ordered = expected[::-1] if reverse else expected
        limit = data.draw(st.integers(0, 8))
        assert list(batch.scan(family, lower, upper, reverse)) == ordered
        assert batch.page(family, lower, upper, limit, reverse) == ordered[:limit]
        last, most = upper or b"\0", data.draw(st.integers(1, 8))
        below = model.between(family, lower, last + b"\0")[:most]
        assert batch.seeks(family).send((lower, last, most)) == below
        wanted = data.draw(st.lists(short_keys, max_size=4))
        values = [model.rows[family].get(key) for key in wanted]
        assert batch.get_many(family, wanted) == values
        assert [batch.get(family, key) for key in wanted] == values


@pytest.mark.usefixtures("few")
@sharing_a_store
@given(
    committed=st.lists(changes, max_size=8),
    own=st.lists(changes, max_size=12),
    later=st.lists(changes, max_size=6),
    data=st.data(),
)
def test_a_snapshot_shows_the_changes_before_it_and_none_after_it(
    shared: Database,
    committed: list[Change],
    own: list[Change],
    later: list[Change],
    data: st.DataObject,
) -> None:
    model = started(shared, committed)
    batch = Batch(shared)
    for change in own:
        apply(batch, change)
        model.apply(change)
    family, (lower, upper) = data.draw(families), data.draw(bounds)
    expected = model.between(family, lower, upper)
    with patch.object(batches, "SNAPSHOT_ROWS", data.draw(st.integers(1, 4))):
        pages = [batch.snapshot(family, lower, upper, reverse) for reverse in (False, True)]
        copied = batch.copy_onto(partial(Snapshot, families=tuple(FAMILIES)))
        for change in later:
            apply(batch, change)
        shared.write(batch)
        for rows, ordered in zip(pages, (expected, expected[::-1]), strict=True):
            assert [row for page in rows for row in page] == ordered
    last = upper or b"\0"
    below = model.between(family, lower, last + b"\0")[:3]
    assert copied.seeks(family).send((lower, last, 3))[: len(below)] == below


@sharing_a_store
@given(committed=st.lists(changes, max_size=8), own=st.lists(changes, max_size=12))
def test_a_written_batch_stores_what_it_showed(
    shared: Database, committed: list[Change], own: list[Change]
) -> None:
    model = started(shared, committed)
    batch = Batch(shared)
    for change in own:
        apply(batch, change)
        model.apply(change)
    shared.write(batch)
    for family in FAMILIES:
        assert list(shared.scan(family, b"", b"\xff")) == model.between(family, b"", b"\xff")


def test_a_batch_without_changes_is_false(shared: Database) -> None:
    batch = Batch(shared)
    assert not batch
    batch.delete_range(Family.TREES, b"a", b"b")
    assert batch


def test_a_cleared_batch_shows_the_committed_rows_again(shared: Database) -> None:
    started(shared, [("put", Family.MESSAGES, b"a", b"1")])
    batch = Batch(shared)
    batch.delete(Family.MESSAGES, b"a")
    batch.delete_range(Family.TREES, b"a", b"b")
    assert batch.get(Family.MESSAGES, b"a") is None
    batch.clear()
    assert not batch
    assert batch.get(Family.MESSAGES, b"a") == b"1"


def test_a_read_outside_the_changes_reads_the_rows_directly(shared: Database) -> None:
    started(shared, [("put", Family.MESSAGES, b"a", b"1")])
    batch = Batch(shared)
    batch.put(Family.MESSAGES, b"x", b"2")
    batch.delete_range(Family.TREES, b"a", b"b")
    assert batch.page(Family.MESSAGES, b"a", b"b", 9) == [(b"a", b"1")]
    assert batch.page(Family.METADATA, b"a", b"b", 9) == []
    assert batch.get_many(Family.METADATA, [b"a"]) == [None]


def test_very_many_deleted_ranges_are_searched_quickly(shared: Database) -> None:
    batch = Batch(shared)
    began = process_time()
    for number in range(0, 40_000, 2):
        lower, upper = b"%05d" % number, b"%05d" % (number + 1)
        batch.delete_range(Family.MESSAGES, lower, upper)
        assert batch.page(Family.MESSAGES, lower, upper, 1) == []
        assert batch.get(Family.MESSAGES, lower) is None
    assert process_time() - began < 10  # half a second; a search of all took a minute


def test_reads_between_very_many_changes_take_no_longer(shared: Database) -> None:
    batch = Batch(shared)
    began = process_time()
    for number in range(15_000, 0, -1):
        keys = [b"%05d-%03d" % (number, at) for at in range(10)]
        for key in keys:
            batch.put(Family.MESSAGES, key, b"")
        assert batch.page(Family.MESSAGES, keys[0], keys[-1], 1) == [(keys[0], b"")]
    assert process_time() - began < 10  # one second; to sort all changes each time took 20
