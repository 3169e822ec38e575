"""Dead letters: a complete entry moves to another stream in the commit that acknowledges it."""

from collections.abc import Sequence

import pytest

from kvstream import ManualClock, Store
from kvstream.errors import TEXT_BYTES_MAX
from kvstream.layout.keys import qualified
from kvstream.meta import pel
from kvstream.meta.events.queues import Reason
from kvstream.meta.txn import Txn
from kvstream.operations import strings
from kvstream.operations.delivery import dead
from kvstream.operations.delivery.dead import DeadLettersRefused
from kvstream.operations.queues import policy
from kvstream.types.ids import StreamID

NAME = qualified(0, b"s")


@pytest.fixture
def read(store: Store) -> list[StreamID]:
    """Deliver three entries to consumer ``w`` of group ``g``."""
    stream = store.stream("s")
    ids = [stream.add({"n": str(n)}) for n in range(3)]
    stream.create_group("g", start="0").consumer("w").read()
    return ids


def bury(
    store: Store, ids: Sequence[StreamID], *, wait: bool = False, group: bytes = b"g", **said: bytes
) -> int:
    """Give up pending entries of a group."""

    def operation(txn: Txn) -> int:
        stream = txn.stream(NAME)
        assert stream is not None
        found = txn.catalog.group(txn, stream, group)
        assert found is not None
        parts = list(pel.runs_at(txn, found, sorted(eid.packed for eid in ids)))
        if wait:
            return dead.bury_or_wait(txn, NAME, stream, found, parts, Reason.MAX_DELIVERIES)
        return dead.bury(txn, NAME, stream, found, parts, dead.Cause(Reason.FATAL, **said))

    return store.engine.run(operation)


def test_an_entry_moves_completely_and_names_its_origin(
    store: Store, read: list[StreamID], clock: ManualClock
) -> None:
    clock.advance(5000)
    moved = bury(store, read[1:2], error=b"boom", traceback=b"line 1\nline 2")
    assert moved == 1
    (letter,) = store.stream("s:dead").range()
    assert letter.flat == (
        *(b"n", b"1", b"dead:stream", b"s", b"dead:id", str(read[1]).encode()),
        *(b"dead:group", b"g", b"dead:consumer", b"w", b"dead:deliveries", b"1"),
        *(b"dead:reason", b"fatal", b"dead:at", b"%d" % clock.now_ms()),
        *(b"dead:error", b"boom", b"dead:traceback", b"line 1\nline 2"),
    )
    assert [entry.id for entry in store.stream("s").range()] == [read[0], read[2]]
    assert store.stream("s").group("g").pending().count == 2


def test_fields_keep_their_order_names_may_repeat_or_begin_with_dead(store: Store) -> None:
    pairs = [("dead:id", "own"), ("b", "1"), ("a", "2"), ("b", "3")]
    eid = store.stream("s").add(pairs)
    store.stream("s").create_group("g", start="0").consumer("w").read()
    bury(store, [eid])
    (letter,) = store.stream("s:dead").range()
    own = (b"dead:id", b"own", b"b", b"1", b"a", b"2", b"b", b"3")
    assert dead.strip(letter.flat) == own
    assert dead.origin(letter.flat)[dead.ID] == str(eid).encode()
    assert dead.strip(own) == own


def test_the_message_stays_while_another_group_needs_it(store: Store, read: list[StreamID]) -> None:
    store.stream("s").create_group("late", start="0")
    bury(store, read)
    assert len(store.stream("s:dead")) == len(store.stream("s")) == 3
    store.stream("s").group("late").consumer("w").read()
    bury(store, read, group=b"late")
    assert len(store.stream("s:dead")) == 6
    assert len(store.stream("s")) == 0


def test_an_entry_whose_message_was_deleted_is_acknowledged_only(
    store: Store, read: list[StreamID]
) -> None:
    store.stream("s").delete(read[0])
    assert bury(store, read[:2]) == 1
    assert store.stream("s").group("g").pending().count == 1
    assert len(store.stream("s:dead")) == 1


def test_the_policy_names_the_stream(store: Store, read: list[StreamID]) -> None:
    store.engine.run(policy.set_policy, NAME, b"g", {"dead_letter": b"graveyard"})
    bury(store, read)
    assert len(store.stream("graveyard")) == 3


@pytest.mark.parametrize("key", [b"note", b"s"])
def test_a_stream_that_refuses_loses_nothing(
    store: Store, read: list[StreamID], key: bytes, clock: ManualClock
) -> None:
    if key == b"s":  # renamed to it after the policy was set
        store.rename("s", "t")
        store.engine.run(policy.set_policy, qualified(0, b"t"), b"g", {"dead_letter": b"s"})
        store.rename("t", "s")
    else:
        store.engine.run(policy.set_policy, NAME, b"g", {"dead_letter": b"note"})
        store.engine.run(strings.put, qualified(0, b"note"), b"a string")
    with pytest.raises(DeadLettersRefused, match="cannot be added to"):
        bury(store, read)
    assert store.stream("s").group("g").pending().consumers == {b"w": 3}
    assert bury(store, read[:2], wait=True) == 0
    waiting = store.stream("s").group("g").pending_range()
    assert [row.consumer for row in waiting] == [b"", b"", b"w"]
    assert [row.deliveries for row in waiting] == [1, 1, 1]
    assert len(store.stream("s")) == 3


def test_long_texts_are_cut_at_their_less_useful_end(store: Store, read: list[StreamID]) -> None:
    much = b"x" * 100_000
    bury(store, read[:1], error=b"first" + much, traceback=much + b"last")
    origin = dead.origin(next(iter(store.stream("s:dead").range())).flat)
    assert len(origin[b"dead:error"]) == len(origin[b"dead:traceback"]) == TEXT_BYTES_MAX
    assert origin[b"dead:error"].startswith(b"first")
    assert origin[b"dead:error"].endswith(b" [cut: it has 100005 bytes]")
    assert origin[b"dead:traceback"].startswith(b"[cut: it has 100004 bytes]\n")
    assert origin[b"dead:traceback"].endswith(b"last")
