"""Idempotent IDs of processes that have ended do not pile up."""

from pathlib import Path

from kvstream import ManualClock, Store
from tests.shared.conftest import shared


def test_old_producers_are_forgotten_when_new_ones_come(directory: Path) -> None:
    clock = ManualClock()
    with Store.open(directory, clock=clock) as store:
        stream = store.stream("s")
        for n in range(12):
            stream.add({"n": n}, idmp=(f"old-{n}", "1"))
        stream.add({"n": 12}, idmp=("old-5", "2"))
        assert stream.info().pids_tracked == 12
        clock.ms += 200_000
        for n in range(4):
            stream.add({"n": n}, idmp=(f"new-{n}", "1"))
        assert stream.info().pids_tracked == 4
        assert stream.info().iids_tracked == 4
        assert store.check() == []


def test_a_client_has_one_producer_for_calls_one_after_another(directory: Path) -> None:
    with shared(directory), shared(directory) as client:
        for n in range(5):
            client.stream("s").add({"n": n})
        assert client.stream("s").info().pids_tracked == 1
