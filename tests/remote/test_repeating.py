"""What calls repeat when their server ends, and what the reads of a consumer remember then."""

import threading

import pytest

from kvstream.errors import UnknownOutcome
from kvstream.operations.reads.read import Reply
from kvstream.remote import repeating
from kvstream.remote.failover import FailoverEngine
from kvstream.remote.repeating import _Consumer, _Read
from kvstream.remote.server_errors import NotConfirmed
from kvstream.types.ids import StreamID
from kvstream.types.records import Entry
from kvstream.types.urls import sentinels_of

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


class Unconfirmed:
    """A server whose replicas do not confirm what a first call has written, or seen."""

    place = "here"

    def __init__(self) -> None:
        self.calls = 0

    def call(self) -> int:
        self.calls += 1
        if self.calls == 1:
            raise NotConfirmed("The write was done here")
        return self.calls

    def close(self) -> None:
        """Close no connection."""


def test_a_read_that_has_seen_what_is_not_confirmed_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for no replica: it has written nothing, so nothing of it can be lost."""
    sentinels, server = sentinels_of("redis+sentinel://127.0.0.1:1/m"), Unconfirmed()
    assert sentinels is not None
    engine = FailoverEngine("", sentinels, wait_s=60)
    monkeypatch.setattr(engine, "_look", lambda: server)
    monkeypatch.setattr(engine, "_confirm", lambda engine: pytest.fail("it has written"))
    assert engine._repeat(lambda each: each.call(), waits=True, reads=True) == 2
    server.calls = 0
    with pytest.raises(UnknownOutcome, match="was done here"):
        engine._repeat(lambda each: each.call())
