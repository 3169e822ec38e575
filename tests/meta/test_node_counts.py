"""Counts of entries between two IDs, compared with a scan."""

import random

import pytest

from kvstream.errors import Corruption
from kvstream.layout.keys import tree_prefix
from kvstream.layout.values import encode_fields
from kvstream.meta.nodes import live_between
from kvstream.operations import append, delete, trim
from kvstream.operations.trim import Strategy, Trim
from kvstream.storage.batch import Family
from kvstream.storage.database import Database
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID
from kvstream.types.options import StoreOptions
from tests.meta.rows import Metadata, between, fresh_name

OPTIONS = StoreOptions(stream_node_max_entries=4)
SPAN = 300


@pytest.mark.parametrize("seed", range(25))
def test_what_lies_between_two_ids_is_counted_by_nodes(database: Database, seed: int) -> None:
    draw = random.Random(seed)
    metadata, name = Metadata(database, OPTIONS), fresh_name()
    for ms in sorted(draw.sample(range(1, SPAN), draw.randint(0, 120))):
        append.add(metadata.txn, name, *encode_fields({"f": "v"}), StreamID(ms, 0))
    stream = metadata.stream(name)
    for _ in range(draw.randint(0, 30)):
        delete.delete(metadata.txn, name, [StreamID(draw.randint(1, SPAN), 0)])
    trim.trim(metadata.txn, name, Trim(Strategy.MAXLEN, draw.choice([0, 5, 60, 200])))
    metadata.commit()
    live = [entry.id for entry in between(metadata.txn, stream, MIN_ID, MAX_ID, None)]
    bounds = [MIN_ID, MAX_ID, *(StreamID(draw.randint(0, SPAN), 0) for _ in range(20)), *live[::9]]
    for start in bounds:
        for end in bounds:
            found = sum(live_between(metadata.txn, stream, start, end))
            assert found == sum(start <= eid <= end for eid in live), (start, end)


def test_a_damaged_node_raises(database: Database) -> None:
    metadata, name = Metadata(database, OPTIONS), fresh_name()
    for ms in range(1, 100):
        append.add(metadata.txn, name, *encode_fields({"f": "v"}), StreamID(ms, 0))
    stream = metadata.stream(name)
    prefix = tree_prefix(stream.nodes_tree)
    metadata.txn.batch.put(Family.TREES, prefix + StreamID(49, 0).packed, b"short")
    metadata.commit()
    with pytest.raises(Corruption, match="record of a node is damaged"):
        sum(live_between(metadata.txn, stream, StreamID(2, 0), MAX_ID))
