"""What counts and values at the edge of what is possible do to a stream."""

from pathlib import Path

import pytest

from kvstream import InvalidArgument, Store, Stream

MOST = (1 << 63) - 1
LONG = 1 << 20


def test_a_group_reads_on_after_more_entries_than_its_counter_holds(
    store: Store, stream: Stream
) -> None:
    group = stream.create_group("g", "0")
    stream.add({"a": "b"}, id="1-0")
    with pytest.raises(InvalidArgument, match="entries_added is out of range"):
        stream.set_id("1-0", entries_added=MOST + 1)
    stream.set_id("1-0", entries_added=MOST)
    stream.add({"a": "b"}, id="2-0")
    assert [str(entry.id) for entry in group.consumer("c").read()] == ["1-0", "2-0"]
    assert stream.info().entries_added == MOST + 1
    assert group.info().lag == 0
    assert store.check() == []


def test_long_values_do_not_stay_in_memory_and_end_their_nodes_as_ever(
    store: Store, stream: Stream
) -> None:
    for at in range(3):
        stream.add({"a": "x" * LONG}, id=f"{at + 1}-0")
        kept = [meta.unmeasured for meta in store.engine.catalog.streams.values()]
        assert kept == [[]]
    assert stream.info().radix_tree_keys == 3
    assert store.check() == []


def test_a_stream_that_was_counted_to_the_end_opens_again(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        stream = store.stream("s")
        stream.create_group("g", "0")
        stream.add({"a": "b"})
        stream.set_id(stream.info().last_generated_id, entries_added=MOST)
        stream.add({"a": "b"})
        assert len(stream.group("g").consumer("c").read()) == 2
    with Store.open(tmp_path / "store") as store:
        assert store.stream("s").info().entries_added == MOST + 1
        assert store.stream("s").group("g").info().entries_read == MOST
        assert store.check() == []
