"""A consumer is removed without losing its entries; a group is moved to a time."""

import pytest

from kvstream import ManualClock, NoGroup, RequestError, Store
from kvstream.commands import Dispatcher
from kvstream.commands.command import Stepwise
from kvstream.commands.table import find
from kvstream.layout.keys import qualified
from kvstream.operations.queues import removal
from kvstream.types.ids import StreamID
from tests.commands.conftest import Say, speaker, words

NAME = qualified(0, b"s")


@pytest.fixture
def say(store: Store) -> Say:
    found = speaker(Dispatcher(store.engine))
    found("XGROUP CREATE s g $ MKSTREAM")
    for number in (1000, 2000, 3000):
        found(f"XADD s {number}-5 f v")
    return found


def test_the_entries_of_a_removed_consumer_pass_on(say: Say) -> None:
    say("KVSTREAM.POLICY SET s g LEASE 9999")
    say("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    assert say("KVSTREAM.POLICY REMOVE s g a") == 2
    assert say("XINFO CONSUMERS s g") == []
    found = say("XREADGROUP GROUP g b STREAMS s >")
    assert [entry[0] for entry in found[0][1]] == [b"1000-5", b"2000-5", b"3000-5"]
    assert [row[3] for row in say("XPENDING s g - + 9")] == [2, 2, 1]


def test_a_late_ack_of_a_removed_consumer_is_refused(say: Say) -> None:
    say("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    say("KVSTREAM.POLICY REMOVE s g a")
    assert say("KVSTREAM.ACK s g a 1000-5 1") == [-1]


def test_a_consumer_of_very_many_entries_is_removed_in_steps(
    store: Store, say: Say, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "RUNS_TOGETHER", 1)
    for _ in range(3):
        clock.advance(1)
        say("XREADGROUP GROUP g a COUNT 1 STREAMS s >")
    session = Dispatcher(store.engine).session
    session.pages = True
    argv = words("KVSTREAM.POLICY REMOVE s g a")
    answer, steps = store.engine.run(find(argv).run, session, argv), 0
    while isinstance(answer, Stepwise):
        answer, steps = store.engine.run(answer.step, session, argv), steps + 1
        assert store.check() == []
    assert (answer, steps) == (3, 4)
    assert say("XINFO CONSUMERS s g") == []


def test_a_consumer_that_is_missing_is_named(store: Store, say: Say) -> None:
    with pytest.raises(RequestError, match="there is no consumer"):
        store.engine.run(removal.pass_on, NAME, b"g", b"none")
    with pytest.raises(NoGroup):
        store.engine.run(removal.pass_on, NAME, b"none", b"a")


@pytest.mark.parametrize(
    ("at_ms", "after", "lag"),
    [
        (0, StreamID(0, 0), 3),
        (2000, StreamID(1999, 2**64 - 1), 2),
        (2001, StreamID(2000, 2**64 - 1), 1),
        (9999, StreamID(9998, 2**64 - 1), 0),
    ],
)
def test_a_group_is_moved_to_a_time(
    store: Store, say: Say, at_ms: int, after: StreamID, lag: int
) -> None:
    say("XREADGROUP GROUP g a COUNT 2 STREAMS s >")
    assert store.engine.run(removal.seek, NAME, b"g", at_ms) == after
    group = store.stream("s").groups()[0]
    assert (group.last_delivered_id, group.lag, group.pending) == (after, lag, 2)


def test_a_time_that_cannot_be_is_refused(say: Say) -> None:
    assert "cannot be -1" in say("KVSTREAM.POLICY SEEK s g -1")
    assert "must be Unix milliseconds" in say("KVSTREAM.POLICY SEEK s g soon")
    assert say("KVSTREAM.POLICY SEEK s none 5").startswith("NOGROUP")
