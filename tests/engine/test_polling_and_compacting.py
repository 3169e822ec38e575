"""Consumers that find nothing keep no stream in memory; close() waits for a compaction."""

import threading
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.types.thresholds import Thresholds
from tests.opening import open_with
from tests.patience import PATIENCE_S

STREAMS_MAX, STREAMS = 10, 40


@pytest.mark.parametrize("read_only", [False, True])
def test_streams_polled_without_results_are_evicted(tmp_path: Path, read_only: bool) -> None:
    sizes = Thresholds(streams_cached=STREAMS_MAX)
    with open_with(tmp_path / "store", sizes) as store:
        for number in range(STREAMS):
            store.stream(f"s{number}").create_group("g").create_consumer("c")
    with open_with(tmp_path / "store", sizes, read_only=read_only) as store:
        for number in range(STREAMS):
            assert store.stream(f"s{number}").group("g").consumer("c").read() == []
        held = store.engine.catalog
        assert len(held.streams) <= STREAMS_MAX
        assert len(held.seen) <= STREAMS_MAX


def test_closing_waits_for_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path / "store")
    store.stream("s").add({"a": "b"})
    begun, let_go = threading.Event(), threading.Event()
    compact = store.engine.database.compact

    def slowly() -> None:
        begun.set()
        assert let_go.wait(PATIENCE_S)
        compact()

    monkeypatch.setattr(store.engine.database, "compact", slowly)
    compacting = threading.Thread(target=store.compact)
    closing = threading.Thread(target=store.close)
    compacting.start()
    assert begun.wait(PATIENCE_S)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    let_go.set()
    compacting.join(PATIENCE_S)
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    with Store.open(tmp_path / "store") as again:
        assert len(again.stream("s")) == 1
