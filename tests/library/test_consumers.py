"""Consumer: each method with its results and errors."""

from itertools import islice

import pytest

from kvstream import (
    BareEntry,
    Consumer,
    Entry,
    InvalidArgument,
    InvalidID,
    ManualClock,
    PendingEntry,
    Store,
    Stream,
    StreamID,
)
from tests.engine.waiting import Call, blocked, ms_of, waiting
from tests.patience import until


@pytest.fixture
def consumer(five: Stream) -> Consumer:
    """Consumer "c" of a group that has received none of five entries."""
    return five.create_group("g", start="0").consumer("c")


def test_a_consumer_is_created_by_its_first_read(consumer: Consumer, five: Stream) -> None:
    assert (consumer.name, repr(consumer)) == (b"c", "<Consumer b'c' of b'g' on b's'>")
    assert five.group("g").consumers() == []
    consumer.read(count=1)
    assert [known.name for known in five.group("g").consumers()] == [b"c"]


def test_a_read_delivers_entries_that_are_pending_for_no_consumer(
    consumer: Consumer, five: Stream
) -> None:
    other = five.group("g").consumer("d")
    assert consumer.read(count=2) == [
        Entry(StreamID(1, 0), {b"n": b"1"}), Entry(StreamID(2, 0), {b"n": b"2"})
    ]  # fmt: skip
    assert ms_of(other.read(count=1)) == [3]
    assert ms_of(consumer.read()) == [4, 5]
    assert other.read() == consumer.read(count=9) == []
    assert five.group("g").pending().consumers == {b"c": 4, b"d": 1}


def test_a_read_without_acks_leaves_nothing_pending(consumer: Consumer, five: Stream) -> None:
    assert ms_of(consumer.read(noack=True)) == [1, 2, 3, 4, 5]
    assert consumer.pending() == []
    assert five.group("g").info().last_delivered_id == (5, 0)


def test_a_read_is_bounded_in_count_and_size(consumer: Consumer) -> None:
    assert ms_of(consumer.read(count=3, max_count=2)) == [1, 2]
    assert ms_of(consumer.read(max_size=1)) == [3]
    assert [entry.id.ms for entry in consumer.pending()] == [1, 2, 3]
    with pytest.raises(InvalidArgument, match="MAXCOUNT must be a positive integer"):
        consumer.read(max_count=0)
    with pytest.raises(InvalidArgument, match="MAXSIZE must be a positive integer"):
        consumer.read(block=0, max_size=-1)
    with pytest.raises(InvalidArgument, match="block is negative: -1; give seconds, 0 to"):
        consumer.read(block=-1)
    with pytest.raises(InvalidArgument, match="claim_min_idle is negative"):
        consumer.read(claim_min_idle=-1)


def test_a_claiming_read_returns_idle_entries_first_with_their_idle_times(
    consumer: Consumer, five: Stream, clock: ManualClock
) -> None:
    dead = five.group("g").consumer("dead")
    dead.read(count=2)
    clock.advance(3000)
    dead.read(count=1)
    dead.nack("2-0")
    entries = consumer.read(claim_min_idle=3, count=3)
    assert [(e.id.ms, e.deliveries) for e in entries] == [(2, 1), (1, 1), (4, 0)]
    assert [entry.idle_ms for entry in entries] == [None, 3000, 0]  # the first was given back
    assert consumer.read(claim_min_idle=3, count=9)[0].id.ms == 5
    assert [entry.id.ms for entry in dead.pending()] == [3]


def test_a_read_without_claim_returns_no_idle_times(consumer: Consumer) -> None:
    assert {(entry.idle_ms, entry.deliveries) for entry in consumer.read()} == {(None, None)}


def test_a_read_returns_entries_given_back_within_its_limits(
    consumer: Consumer, five: Stream
) -> None:
    group = five.group("g")
    group.consumer("dead").read(4)
    group.nack("3-0", "1-0", "2-0")
    assert [e.id.ms for e in consumer.read(max_count=2)] == [3, 1]
    assert [e.id.ms for e in consumer.read(2, max_size=1)] == [2]
    assert [e.id.ms for e in consumer.read(2)] == [5]


def test_entries_given_back_and_deleted_are_acknowledged_by_a_read(
    consumer: Consumer, five: Stream
) -> None:
    group = five.group("g")
    consumer.read(3)
    group.nack("1-0", "2-0", "3-0")
    five.delete("1-0", "3-0")
    assert [(e.id.ms, e.deliveries, e.idle_ms) for e in consumer.read(1)] == [(2, 1, None)]
    assert group.pending().count == 1
    assert [e.id.ms for e in consumer.read()] == [4, 5]
    assert [row.id.ms for row in consumer.pending()] == [2, 4, 5]


def test_history_returns_the_pending_entries_again(consumer: Consumer, five: Stream) -> None:
    consumer.read(count=4)
    five.delete("2-0")
    shown = consumer.history()
    assert ms_of(shown) == [1, 2, 3, 4]
    assert [entry.fields is None for entry in shown] == [False, True, False, False]
    assert ms_of(consumer.history("1-0", count=2)) == [2, 3]
    assert ms_of(consumer.history(after=(3, 0))) == [4]
    assert consumer.history("9") == five.group("g").consumer("d").history() == []
    assert [entry.deliveries for entry in consumer.pending()] == [2, 1, 3, 3]
    with pytest.raises(InvalidID):
        consumer.history("x")
    with pytest.raises(InvalidArgument, match="meaningless in the context of XREADGROUP"):
        consumer.history("$")


def test_a_listener_gets_its_pending_entries_and_then_new_ones(
    consumer: Consumer, five: Stream, store: Store
) -> None:
    consumer.read(count=4)
    five.delete("2-0")
    consumer.ack("1-0")
    listener = consumer.listen(count=1)
    assert ms_of(list(islice(listener, 3))) == [3, 4, 5]
    call = Call(lambda: ms_of(list(islice(listener, 2))))
    until(lambda: waiting(store) == 1, "the listener to wait")
    five.add({"f": "v"}, id="6-0")
    five.add({"f": "v"}, id="7-0")
    assert call.result() == [6, 7]


def test_a_listener_may_claim_entries_of_other_consumers(
    consumer: Consumer, five: Stream, clock: ManualClock
) -> None:
    five.group("g").consumer("dead").read(count=3)
    clock.advance(60_000)
    listener = consumer.listen(claim_min_idle=60, poll=0.01)
    assert ms_of(list(islice(listener, 5))) == [1, 2, 3, 4, 5]


def test_a_polling_listener_gets_later_entries(
    consumer: Consumer, five: Stream, store: Store
) -> None:
    listener = consumer.listen(poll=0.005)
    assert ms_of(list(islice(listener, 5))) == [1, 2, 3, 4, 5]
    call = blocked(store, lambda: next(listener))
    five.add({"f": "v"}, id="6-0")
    assert call.result().id == (6, 0)


def test_a_consumer_acknowledges_for_its_group(consumer: Consumer, five: Stream) -> None:
    entries = consumer.read()
    assert consumer.ack(entries[0], "2-0", [entries[2]]) == 3
    assert five.group("g").consumer("other").ack("4-0") == 1
    assert consumer.ack() == consumer.ack("4-0") == 0
    assert [entry.id.ms for entry in consumer.pending()] == [5]


def test_a_consumer_gives_entries_back(consumer: Consumer, five: Stream) -> None:
    entries = consumer.read()
    assert consumer.nack(entries[:2], mode="SILENT") == 2
    assert [entry.id.ms for entry in consumer.pending()] == [3, 4, 5]
    assert [e.deliveries for e in five.group("g").pending_range(count=2)] == [0, 0]
    with pytest.raises(InvalidArgument, match="mode must be SILENT, FAIL, or FATAL"):
        consumer.nack("3-0", mode="silent")  # type: ignore[arg-type]


def test_a_consumer_claims_entries_of_others(
    consumer: Consumer, five: Stream, clock: ManualClock
) -> None:
    other = five.group("g").consumer("d")
    other.read(count=3)
    clock.advance(1000)
    assert consumer.claim("1-0", min_idle=2) == []
    assert ms_of(consumer.claim("1-0", min_idle=1)) == [1]
    assert consumer.claim(["4-0"], force=True, justid=True) == [BareEntry(StreamID(4, 0))]
    claimed = consumer.autoclaim(min_idle=1, start="2", count=1)
    assert (claimed.cursor, ms_of(claimed.entries)) == ((3, 0), [2])
    assert consumer.autoclaim(justid=True, start="(2-0").entries[0] == (
        StreamID(3, 0),
        None,
        None,
        None,
    )
    assert [entry.id.ms for entry in consumer.pending()] == [1, 2, 3, 4]
    assert other.pending() == []


def test_the_pending_entries_of_a_consumer_are_listed_by_id(
    consumer: Consumer, clock: ManualClock
) -> None:
    consumer.read(count=2)
    clock.advance(1000)
    consumer.read(count=1)
    assert consumer.pending(count=1) == [PendingEntry(StreamID(1, 0), b"c", 1000, 1)]
    assert [entry.id.ms for entry in consumer.pending(min_idle=1)] == [1, 2]
    assert len(consumer.pending()) == 3


def test_deleting_a_consumer_deletes_its_pending_entries(consumer: Consumer, five: Stream) -> None:
    consumer.read(count=3)
    assert consumer.delete() == 3
    assert consumer.delete() == 0
    assert five.group("g").pending().count == 0
    assert ms_of(consumer.read()) == [4, 5]


def test_deleted_entries_that_were_read_ahead_are_never_returned(store: Store) -> None:
    stream = store.stream("s")
    ids = [stream.add({"n": number}, id=f"{number + 1}-0") for number in range(30)]
    consumer = stream.create_group("g", "0").consumer("c")

    def read() -> StreamID:
        return consumer.read(count=1)[0].id

    assert [read() for _ in range(4)] == ids[:4]
    stream.delete(ids[1])
    assert read() == ids[4]
    stream.delete(ids[5], ids[7])
    assert [read() for _ in range(2)] == [ids[6], ids[8]]
    stream.trim(minid=ids[12])
    assert read() == ids[12]
    stream.trim(maxlen=0)
    stream.set_id("9-0")
    stream.add({"n": "new"}, id="10-0")
    last = stream.add({"n": "new"}, id="40-0")
    assert read() == last
    assert store.check() == []
