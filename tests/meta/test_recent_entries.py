"""Recent entries are read from memory and equal their rows, after any change of the stream."""

import random

import pytest

from kvstream.layout.values import encode_fields
from kvstream.operations import append, delete, trim
from kvstream.operations.reads.rows import read_recent
from kvstream.operations.trim import Strategy, Trim
from kvstream.storage.batch import Family
from kvstream.storage.database import Database
from kvstream.types.ids import MAX_ID, StreamID
from kvstream.types.options import StoreOptions
from tests.meta.rows import Metadata, between, fresh_name

OPTIONS = StoreOptions(stream_node_max_entries=8, stream_node_max_bytes=600)
SPAN = 60


@pytest.mark.parametrize("seed", range(40))
def test_recent_entries_are_those_of_their_rows(database: Database, seed: int) -> None:
    draw = random.Random(seed)
    metadata, name, seen = Metadata(database, OPTIONS), fresh_name(), 0
    for ms in range(1, SPAN):
        value = "v" * draw.choice([1, 1, 1, 1, 200, 5000])
        append.add(metadata.txn, name, *encode_fields({"f": value}), StreamID(ms, 0))
        stream = metadata.stream(name)
        if draw.random() < 0.2:
            delete.delete(metadata.txn, name, [StreamID(draw.randint(max(1, ms - 5), ms), 0)])
        if draw.random() < 0.1:
            exact = Trim(Strategy.MAXLEN, draw.choice([0, 1, 5, 20]))
            trim.trim(metadata.txn, name, exact)
        if draw.random() < 0.3:
            metadata.commit()
        for after in range(max(0, ms - 9), ms + 1):
            start = StreamID(after, 1)
            found = read_recent(stream, start, 3) if stream.length else None
            if found is not None:
                lower, upper = (
                    stream.prefix + max(start, stream.first).packed,
                    stream.prefix + MAX_ID.packed,
                )
                assert found == metadata.txn.batch.page(Family.MESSAGES, lower, upper, 3)
                seen += bool(found)
    assert seen


def test_the_next_entry_of_a_queue_is_read_without_rocksdb(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, name = Metadata(database), fresh_name()
    for ms in (1, 2, 3):
        append.add(metadata.txn, name, *encode_fields({"n": str(ms)}), StreamID(ms, 0))
        metadata.commit()
    stream = metadata.stream(name)
    monkeypatch.setattr(Database, "page", None)
    found = between(metadata.txn, stream, StreamID(2, 1), MAX_ID, 10)
    assert [entry.id for entry in found] == [(3, 0)]
    at_once = between(metadata.txn, stream, StreamID(1, 1), StreamID(2, 5), 10)
    assert [entry.id for entry in at_once] == [(2, 0)]


def test_entries_after_the_measured_ones_are_read_without_rocksdb(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = StoreOptions(stream_node_max_bytes=1 << 20)
    metadata, name = Metadata(database, options), fresh_name()
    for ms, value in ((1, "v" * 5000), (2, "v"), (3, "v")):  # a long one is measured at once
        append.add(metadata.txn, name, *encode_fields({"n": value}), StreamID(ms, 0))
    metadata.commit()
    stream = metadata.stream(name)
    monkeypatch.setattr(Database, "page", None)
    found = between(metadata.txn, stream, StreamID(1, 1), MAX_ID, 10)
    assert [entry.id for entry in found] == [(2, 0), (3, 0)]
