"""What the reads of one consumer remember, so that none finds a delivery a second time."""

import threading

import pytest

from kvstream.operations.reads.read import Reply
from kvstream.remote import repeating
from kvstream.remote.repeating import _Consumer, _Read
from kvstream.types.ids import StreamID
from kvstream.types.records import Entry

KEPT_S = 10.0


def reply_of(number: int) -> Reply:
    return [(b"s", [Entry(StreamID(number, 0), {b"f": b"v"})])]


@pytest.mark.parametrize("away_s", [1.0, 60.0])
def test_a_read_remembers_what_was_delivered_just_before_it(
    monkeypatch: pytest.MonkeyPatch, away_s: float
) -> None:
    """The server is away meanwhile; another read of the consumer gets something before it does."""
    now = 1000.0
    monkeypatch.setattr(repeating, "monotonic", lambda: now)
    consumer = _Consumer(threading.Lock())
    consumer.note(reply_of(1), KEPT_S)
    now += KEPT_S - 1
    consumer.note(reply_of(2), KEPT_S)
    lost, other = _Read(), _Read()
    consumer.reads += [lost, other]
    now += away_s
    consumer.note(reply_of(3), KEPT_S)
    consumer.reads.remove(other)
    known = {eid.ms for _, eid in consumer.seen(lost)}
    assert known == {1, 2, 3}
    consumer.reads.clear()
    now += KEPT_S + 1
    consumer.note(reply_of(4), KEPT_S)
    assert {eid.ms for _, eid in consumer.seen(set())} == {4}
