"""A stream's record may lag behind its rows; the loaded stream never does."""

from pathlib import Path

import pytest

from kvstream import IDTooSmall, Store, StreamInfo
from kvstream.layout.keys import qualified, stream_row
from kvstream.meta.records import UNRECORDED_MAX, StreamMeta
from kvstream.storage.batch import Family

NAME = qualified(0, b"s")


def recorded(store: Store) -> StreamMeta:
    """Return the stream of its record alone."""
    record = store.engine.database.get(Family.METADATA, stream_row(NAME))
    assert record is not None
    return StreamMeta.decode(NAME, record)


def reloaded(store: Store) -> StreamInfo:
    store.engine.catalog.forget()
    return store.stream("s").info()


def test_an_entry_that_joins_the_open_node_is_one_row(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        store.stream("s").add({"f": "v"})
        before = store.engine.database.sequence
        store.stream("s").add({"f": "v"})
        assert store.engine.database.sequence == before + 1
        assert recorded(store).length == 1
        assert reloaded(store).length == 2


@pytest.mark.parametrize("node_max_entries", [100, 0])
def test_the_loaded_stream_is_complete(tmp_path: Path, node_max_entries: int) -> None:
    with Store.open(tmp_path / "store", stream_node_max_entries=node_max_entries) as store:
        for number in range(3 * UNRECORDED_MAX):
            store.stream("s").add({"f": "v"}, id=(number + 1, 0))
            if number % 7 == 0:
                info = store.stream("s").info()
                assert reloaded(store) == info
                assert recorded(store).length > info.length - UNRECORDED_MAX - 1
        assert store.check() == []


def test_a_record_lags_no_further_though_it_is_loaded_again_and_again(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", stream_node_max_entries=0) as store:
        for number in range(2 * UNRECORDED_MAX):
            store.stream("s").add({"f": "v"}, id=(number + 1, 0))
            store.engine.catalog.forget()
        assert recorded(store).length > UNRECORDED_MAX


def test_a_record_lags_no_further_behind_entries_added_together(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", stream_node_max_entries=0) as store:
        for number in range(1, 8):
            store.stream("s").add_many([{"f": "v"}] * 50)
            assert recorded(store).length >= 50 * number - UNRECORDED_MAX


def test_a_change_of_another_kind_brings_the_record_up_to_date(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        stream = store.stream("s")
        ids = [stream.add({"f": "v"}) for _ in range(10)]
        stream.delete(ids[4])
        assert recorded(store).length == 9
        stream.add({"f": "v"})
        assert reloaded(store).length == 10
        assert [entry.id for entry in stream.range()][:4] == ids[:4]


def test_an_undone_transaction_keeps_what_was_appended_before(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        stream = store.stream("s")
        for _ in range(5):
            last = stream.add({"f": "v"})
        with pytest.raises(IDTooSmall), store.transaction():  # noqa: PT012 - two in one
            stream.add({"f": "v"})
            stream.add({"f": "v"}, id=last)
        assert len(stream) == 5
        assert stream.info().last_generated_id == last
