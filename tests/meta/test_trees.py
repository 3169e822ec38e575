"""Trees compared with dicts, held in memory and too large for it."""

from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvstream.layout.keys import successor, tree_prefix
from kvstream.meta.trees import Tree
from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import Database
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.examples import examples
from tests.meta.rows import Metadata

SUFFIXES = st.text("\0a\xff", max_size=3).map(lambda text: text.encode("latin-1"))
VALUES = st.binary(max_size=3)
LETTERS = [bytes([letter]) for letter in b"abcdefghij"]
Item = tuple[bytes, bytes]


def decoded(suffix: bytes, value: bytes) -> Item:
    return suffix, value


def encoded(item: Item) -> bytes:
    return item[1]


def new_tree(metadata: Metadata, sizes: Thresholds) -> Tree[Item]:
    number = metadata.txn.allocate()
    metadata.commit()
    return Tree(number, decoded, encoded, sizes, new=True)


def on_disk(database: Database, tree: Tree[Item]) -> list[Item]:
    prefix = tree_prefix(tree.id)
    rows = database.scan(Family.TREES, prefix, successor(prefix))
    return [(key[8:], value) for key, value in rows]


class TreeMachine(RuleBasedStateMachine):
    """Every operation of a tree, compared with a dict."""

    database: ClassVar[Database]
    sizes: ClassVar[Thresholds]

    def __init__(self) -> None:
        super().__init__()
        self.batch = Batch(self.database)
        self.model: dict[bytes, bytes] = {}
        self.tree = new_tree(Metadata(self.database), self.sizes)

    @initialize(rows=st.dictionaries(SUFFIXES, VALUES, max_size=8))
    def fill(self, rows: dict[bytes, bytes]) -> None:
        for suffix, value in rows.items():
            self.put(suffix, value)

    @rule(suffix=SUFFIXES, value=VALUES)
    def put(self, suffix: bytes, value: bytes) -> None:
        self.tree.put(self.batch, suffix, (suffix, value))
        self.model[suffix] = value

    @rule(suffix=SUFFIXES)
    def delete(self, suffix: bytes) -> None:
        self.tree.delete(self.batch, suffix)
        self.model.pop(suffix, None)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete_one_that_there_is(self, data: st.DataObject) -> None:
        self.delete(data.draw(st.sampled_from(sorted(self.model))))

    @rule(rows=st.dictionaries(SUFFIXES, VALUES, max_size=5))
    def put_many(self, rows: dict[bytes, bytes]) -> None:
        fresh = {suffix: value for suffix, value in rows.items() if suffix not in self.model}
        if self.tree.has_room(self.batch, len(fresh)):
            put = {suffix: (suffix, value) for suffix, value in fresh.items()}
            self.tree.put_all(self.batch, put)
            self.model |= fresh

    @rule(data=st.data())
    def delete_many(self, data: st.DataObject) -> None:
        if self.tree.memory is not None:
            gone = data.draw(st.sets(st.sampled_from(sorted(self.model)))) if self.model else set()
            self.tree.delete_all(self.batch, list(gone))
            self.model = {key: self.model[key] for key in self.model if key not in gone}

    @rule(gone=st.sets(SUFFIXES, max_size=4), rows=st.dictionaries(SUFFIXES, VALUES, max_size=5))
    def replace(self, gone: set[bytes], rows: dict[bytes, bytes]) -> None:
        put = {suffix: (suffix, value) for suffix, value in rows.items()}
        self.tree.replace(self.batch, sorted(gone - rows.keys()), put)
        self.model = {key: self.model[key] for key in self.model if key not in gone} | rows

    @rule()
    def drop(self) -> None:
        self.tree.drop(self.batch)
        self.model.clear()

    @rule()
    def commit(self) -> None:
        self.database.write(self.batch)
        self.batch = Batch(self.database)
        assert on_disk(self.database, self.tree) == sorted(self.model.items())

    @rule()
    def reload(self) -> None:
        self.tree = Tree(self.tree.id, decoded, encoded, self.sizes)

    @rule(suffix=SUFFIXES)
    def look(self, suffix: bytes) -> None:
        rows = sorted(self.model.items())
        value = self.model.get(suffix)
        assert self.tree.get(self.batch, suffix) == (None if value is None else (suffix, value))
        below = [row for row in rows if row[0] <= suffix]
        above = [row for row in rows if row[0] >= suffix]
        assert self.tree.floor(self.batch, suffix) == (below[-1] if below else None)
        assert self.tree.first(self.batch, suffix) == (above[0] if above else None)
        assert list(self.tree.scan(self.batch, suffix)) == above

    @invariant()
    def has_the_rows_of_the_dict(self) -> None:
        assert list(self.tree.scan(self.batch)) == sorted(self.model.items())


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("cached_rows", [DEFAULT.cached_rows, 3, 0])
def test_a_tree_behaves_like_a_dict(database: Database, cached_rows: int, in_place: bool) -> None:
    sparse = 0 if in_place else DEFAULT.sparse_keys
    given = {
        "database": database,
        "sizes": Thresholds(
            cached_rows=cached_rows, sparse_keys=sparse, range_rows=4, chunk_keys=2
        ),
    }
    run_state_machine_as_test(
        type("Machine", (TreeMachine,), given),
        settings=settings(max_examples=examples(20), stateful_step_count=25, deadline=None),
    )


@pytest.fixture
def ten_rows(metadata: Metadata) -> Tree[Item]:
    """A tree of rows a to j, in memory; one more is too many."""
    tree = new_tree(metadata, Thresholds(cached_rows=10))
    for suffix in LETTERS:
        tree.put(metadata.txn.batch, suffix, (suffix, b""))
    metadata.commit()
    assert tree.memory is not None
    return tree


def test_rows_that_a_scan_has_passed_may_be_deleted(
    ten_rows: Tree[Item], metadata: Metadata
) -> None:
    seen = []
    for suffix, _ in ten_rows.scan(metadata.txn.batch, b"c"):
        seen.append(suffix)
        ten_rows.delete(metadata.txn.batch, suffix)
    assert seen == LETTERS[2:]
    assert [suffix for suffix, _ in ten_rows.scan(metadata.txn.batch)] == LETTERS[:2]


def test_a_scan_continues_when_the_tree_outgrows_memory(
    ten_rows: Tree[Item], metadata: Metadata
) -> None:
    scan = ten_rows.scan(metadata.txn.batch, b"c")
    assert next(scan)[0] == b"c"
    ten_rows.put(metadata.txn.batch, b"dd", (b"dd", b""))
    assert ten_rows.memory is None
    assert [suffix for suffix, _ in scan] == [b"d", b"dd", *LETTERS[4:]]


def test_a_tree_that_is_small_again_returns_to_memory(
    ten_rows: Tree[Item], metadata: Metadata
) -> None:
    batch = metadata.txn.batch
    ten_rows.put(batch, b"k", (b"k", b""))
    assert ten_rows.memory is None
    for suffix in LETTERS[:6]:  # one more than half of ten
        assert ten_rows.memory is None
        ten_rows.delete(batch, suffix)
    assert ten_rows.get(batch, b"j") == (b"j", b"")
    assert ten_rows.memory is not None
    assert [suffix for suffix, _ in ten_rows.scan(batch)] == [*LETTERS[6:], b"k"]


def test_a_very_large_tree_is_seldom_loaded_in_vain_while_it_shrinks(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, batch = new_tree(metadata, Thresholds(cached_rows=10)), metadata.txn.batch
    suffixes = [b"%04d" % number for number in range(500)]
    for suffix in suffixes:
        tree.put(batch, suffix, (suffix, b"v"))
    tried = 0
    few_rows = Tree._few_rows

    def counted(self: Tree[Item], batch: Batch) -> object:
        nonlocal tried
        tried += 1
        return few_rows(self, batch)

    monkeypatch.setattr(Tree, "_few_rows", counted)
    for suffix in suffixes:
        tree.delete(batch, suffix)
    assert tried < 20
    assert next(tree.scan(batch), None) is None
