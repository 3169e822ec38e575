"""The counters of queue events: what they count, and which of them are log lines."""

import logging

import pytest

from kvstream import Store
from kvstream.logs import emit_deferred
from kvstream.meta.events.queues import LIMITS, MEANINGS, THROTTLES_MAX, QueueEvents, Reason
from kvstream.types.ids import StreamID

JOBS = b"\x00\x00jobs"
LOGGER = "kvstream.meta.events.queues"


def test_all_counters_begin_at_zero_and_have_names_of_their_own() -> None:
    counts = QueueEvents().counts()
    assert set(counts.values()) == {0}
    assert len(counts) == len(MEANINGS) + len(Reason) + len(LIMITS)


def test_a_dead_letter_is_counted_by_reason_and_logged_without_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    events = QueueEvents()
    events.bury(JOBS, b"workers", StreamID(5, 1), Reason.FATAL)
    emit_deferred()
    assert events.counts()["dead_fatal"] == 1
    assert caplog.messages == ["entry 5-1 of stream jobs is a dead letter of group workers: fatal"]


def test_a_limit_is_counted_each_time_and_logged_once_a_minute_for_each_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    events = QueueEvents()
    for _ in range(3):
        events.limit(JOBS, b"workers", "rate")
        events.limit(JOBS, b"others", "rate")
    emit_deferred()
    assert events.counts()["limited_rate"] == 6
    assert caplog.messages == [
        "stream jobs: group workers delivers no more entries now: rate",
        "stream jobs: group others delivers no more entries now: rate",
    ]


def test_log_lines_of_very_many_groups_take_bounded_memory() -> None:
    events = QueueEvents()
    for number in range(THROTTLES_MAX + 10):
        events.limit(JOBS, b"group %d" % number, "paused")
    assert len(events._throttles) == THROTTLES_MAX


def test_statistics_of_a_store_have_the_counters(store: Store) -> None:
    store.engine.catalog.queue_events.retries += 2
    assert store.stats()["queues"]["retries"] == 2
