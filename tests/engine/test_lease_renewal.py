"""Stopping on signals, and the lease of entries that ``listen`` has read."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstream
from kvstream import InvalidArgument, StreamID
from kvstream.engine.lease_renewal import Lease
from tests.engine.waiting import Call


def kill(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def default() -> Iterator[None]:
    """Check that a test restores the signal handlers."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_signal_sets_the_event_and_a_second_has_its_usual_effect(default: None) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with kvstream.stop_on_signals() as stop:
            assert not stop.is_set()
            kill(number)
            assert stop.is_set()
            assert stop.received is number
            with pytest.raises(KeyboardInterrupt):
                kill(signal.SIGINT)
    with pytest.raises(KeyError), kvstream.stop_on_signals():
        raise KeyError


def test_the_signals_may_be_chosen(default: None) -> None:
    with kvstream.stop_on_signals(signal.SIGUSR1) as stop:
        with pytest.raises(KeyboardInterrupt):
            kill(signal.SIGINT)
        kill(signal.SIGUSR1)
        assert stop.received is signal.SIGUSR1


def test_another_thread_is_refused() -> None:
    def use() -> None:
        with kvstream.stop_on_signals():
            pass

    with pytest.raises(InvalidArgument, match="works in the main thread"):
        Call(use).result()


def test_a_signal_stops_listen(tmp_path: Path, default: None) -> None:
    with kvstream.open(tmp_path) as store, kvstream.stop_on_signals() as stop:
        jobs = store.stream("jobs")
        ids = jobs.add_many([{"n": 1}, {"n": 2}])
        worker = jobs.create_group("g", "0").consumer("c")
        seen = []
        for job in worker.listen(stop=stop):
            seen.append(job.id)
            kill(signal.SIGTERM)
        assert seen == ids[:1]
    with kvstream.open(tmp_path) as store, kvstream.stop_on_signals() as stop:
        threading.Timer(0.05, kill, [signal.SIGTERM]).start()
        worker = store.stream("jobs").group("g").consumer("d")
        assert list(worker.listen(stop=stop, poll=0.2)) == []


def test_a_signal_stops_listen_in_asyncio(tmp_path: Path, default: None) -> None:
    async def main() -> None:
        async with kvstream.aio.open(tmp_path) as store:
            worker = (await store.stream("jobs").create_group("g")).consumer("c")
            with kvstream.stop_on_signals() as stop:
                asyncio.get_running_loop().call_later(0.05, kill, signal.SIGTERM)
                assert [job async for job in worker.listen(stop=stop, poll=0.2)] == []

    asyncio.run(main())


def test_a_lease_is_renewed_before_the_next_entry_if_the_process_stood_still(
    tmp_path: Path,
) -> None:
    with kvstream.open(tmp_path) as store:
        jobs = store.stream("jobs")
        ids = jobs.add_many([{"n": n} for n in range(3)])
        group = jobs.create_group("g", "0")
        group.consumer("c").read()
        engine = store.engine
        lease = Lease(engine, group.consumer("c")._renew, 3600)
        lease.hold(ids)
        assert lease.begin(0)
        group.claim("d", ids[1])
        assert lease.begin(1)  # not checked yet
        lease._renewed -= 10_000
        assert not lease.begin(1)
        assert lease.begin(2)
        store.delete("jobs")
        lease._renewed -= 10_000
        assert lease.begin(2)  # the next call reports it
        lease.end()


def test_renewing_changes_only_the_time(tmp_path: Path) -> None:
    clock = kvstream.ManualClock(1_000_000)
    with kvstream.open(tmp_path, clock=clock) as store:
        jobs = store.stream("jobs")
        ids = jobs.add_many([{"n": n} for n in range(300)])
        group = jobs.create_group("g", "0")
        group.consumer("c").read(200)
        group.consumer("d").read(50)
        group.nack(ids[3])
        clock.advance(5000)
        lease = Lease(store.engine, group.consumer("c")._renew)
        lease.hold([StreamID(9, 9), *reversed(ids[::7]), ids[3]])
        lease._renewed -= 10
        lease.renew()
        lease.end()
        rows = {row.id: row for row in group.pending_range(count=1000)}
        for at, eid in enumerate(ids[:250]):
            idle = 0 if at % 7 == 0 and at < 200 else 5000
            owner = (b"c" if at < 200 else b"d") if at != 3 else b""
            expected = (eid, owner, None if at == 3 else idle, 1)
            assert tuple(rows[eid]) == expected
        assert lease._lost == {StreamID(9, 9), ids[3], *ids[203::7]}
        assert store.check() == []
