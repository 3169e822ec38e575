"""Tree IDs and generations: none is ever allocated twice."""

from pathlib import Path

import pytest

from kvstream.layout.keys import ALLOCATOR_KEY, U64
from kvstream.meta.trees import key_tree
from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import Database
from kvstream.types.options import StoreOptions
from kvstream.types.thresholds import DEFAULT
from tests.meta.rows import Metadata, fresh_name


def allocated(metadata: Metadata, count: int = 3) -> list[int]:
    return [metadata.txn.allocate() for _ in range(count)]


def numbers_of(metadata: Metadata, name: bytes) -> list[int]:
    """Return every number of a stream, its groups and their consumers."""
    stream = metadata.stream(name)
    found = [stream.generation, stream.nodes_tree, stream.groups_tree]
    for group in metadata.catalog.groups(metadata.txn, stream):
        found += [group.consumers_tree, group.runs.id, group.times.id]
        found += [consumer.runs.id for consumer in metadata.catalog.consumers(metadata.txn, group)]
    return found


def build(metadata: Metadata) -> list[int]:
    """Create a stream with two groups of two consumers, and return its numbers."""
    name = fresh_name()
    for group in (b"one", b"two"):
        for consumer in (b"a", b"b"):
            metadata.consumer(metadata.group(name, group), consumer)
    return numbers_of(metadata, name)


def test_the_first_number_of_a_store_is_one(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "store", StoreOptions())
    try:
        assert allocated(Metadata(database)) == [1, 2, 3]  # 0 stands for none
    finally:
        database.close()


def test_all_parts_of_a_stream_have_distinct_numbers(metadata: Metadata) -> None:
    numbers = build(metadata) + build(metadata)
    assert len(set(numbers)) == len(numbers) == 26
    assert 0 not in numbers


def test_numbers_continue_with_a_new_catalog(metadata: Metadata) -> None:
    before = allocated(metadata)
    metadata.commit()
    assert allocated(Metadata(metadata.database))[0] == before[-1] + 1


def test_numbers_of_an_aborted_transaction_are_not_reused(metadata: Metadata) -> None:
    kept = build(metadata)
    metadata.commit()
    lost = build(metadata)
    metadata.abandon()
    after = build(metadata)
    metadata.commit()
    assert min(after) > max(lost) > max(kept)
    assert min(build(Metadata(metadata.database))) > max(after)


def test_written_numbers_are_not_reused_after_reopening(tmp_path: Path) -> None:
    written: list[int] = []
    for _ in range(4):
        database = Database.open(tmp_path / "store", StoreOptions())
        try:
            metadata = Metadata(database)
            written += build(metadata)
            metadata.commit()
            build(metadata)
            metadata.abandon()
        finally:
            database.close()
    assert len(set(written)) == len(written) == 4 * 13


def test_the_rows_of_a_dropped_tree_are_not_found_under_a_later_one(metadata: Metadata) -> None:
    name = fresh_name()
    group = metadata.group(name)
    metadata.consumer(group, b"c")
    metadata.commit()
    metadata.catalog.drop_stream(metadata.txn, metadata.stream(name))
    metadata.commit()
    again = metadata.group(name)
    assert again.consumers_count == 0
    assert again.consumers_tree > group.consumers_tree
    assert metadata.catalog.consumer(metadata.txn, again, b"c") is None
    assert list(key_tree(group.consumers_tree, DEFAULT).scan(metadata.txn.batch)) == []


@pytest.mark.parametrize("number", [(1 << 32) - 1, (1 << 63) - 1])
def test_numbers_outgrow_32_bits(tmp_path: Path, number: int) -> None:
    database = Database.open(tmp_path / "store", StoreOptions())
    try:
        batch = Batch(database)
        batch.put(Family.METADATA, ALLOCATOR_KEY, U64.pack(number))
        database.write(batch)
        metadata = Metadata(database)
        assert build(metadata)[0] == number
        metadata.reload()
        assert allocated(metadata, 1)[0] == number + 13
    finally:
        database.close()
