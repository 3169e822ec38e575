"""A queue of a shared store whose owner ends during a call."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvstream import Queue, StreamID
from kvstream.engine.blocking_reads import GroupRead
from tests.shared.conftest import Holder, end, shared


def test_a_repeated_read_has_the_deliveries_of_its_entries(
    directory: Path,
) -> None:
    with shared(directory) as store:
        queue = Queue(store, "q", consumer="ann")
        queue.put_many([{"n": 1}, {"n": 2}])
        queue.get()[0].nack()
        begun = time.time()
        read = [(message.id, message.deliveries) for message in queue.get(2)]
        engine: Any = store._engine
        wanted: list[tuple[bytes, StreamID | None]] = [(queue._plain, None)]
        attempt = GroupRead(b"workers", b"ann", wanted, 2, False, 30_000, lambda: None)
        with engine._reading(attempt) as (consumer, seen):
            found = engine._find_deliveries(engine._current, attempt, begun, consumer, seen)
        ((_, entries),) = found
        assert [(entry.id, entry.deliveries + 1) for entry in entries] == read
        assert [deliveries for _, deliveries in read] == [2, 1]


def test_an_acknowledgement_that_is_repeated_counts_as_done(directory: Path) -> None:
    with shared(directory) as store:
        queue = Queue(store, "q", consumer="ann")
        queue.put_many([{"n": 1}, {"n": 2}])
        first, second = queue.get(2)
        engine: Any = store._engine
        repeat = engine._repeat

        def twice(call: Callable[[Any], Any], again: bool = False) -> Any:
            repeat(call, again)
            return repeat(call, again)

        engine._repeat = twice
        tokens = [first.token, (second.id, 7)]
        assert engine._ack_leases(queue._plain, b"workers", b"ann", tokens) == [1, -1]
        engine._repeat = repeat
        assert engine._ack_leases(queue._plain, b"workers", b"ann", tokens) == [0, -1]


def test_leases_are_kept_when_another_process_becomes_the_owner(
    directory: Path, holder: Callable[[], Holder]
) -> None:
    owner = holder()
    with shared(directory) as store:
        queue = Queue(store, "q", consumer="ann")
        queue.put_many([{"n": 1}, {"n": 2}])
        first, second = queue.get(2)
        end(owner)
        first.extend()
        first.ack()
        with second.transaction():
            queue.put({"n": 3})
        info = queue.info()
        assert (info.leased, info.ready) == (0, 1)
