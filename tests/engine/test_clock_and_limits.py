"""IDs increase on any clock, idle times are never negative, and IDs can run out."""

import time
from collections.abc import Callable

import pytest

from kvstream import IDsExhausted, IDTooSmall, ManualClock, Store, StreamID
from kvstream.layout.values import encode_fields
from kvstream.types.ids import U64_MAX
from tests.engine.sharing import START_MS
from tests.engine.waiting import blocked, ms_of
from tests.opening import Stores

SECOND, HOUR = 1000, 3_600_000
YEAR_9999_MS = 253_402_300_799_000
TOO_SMALL = "The ID specified in XADD is equal or smaller than the target stream top item"
EXHAUSTED = "The stream has exhausted the last possible ID, unable to add more items"

MOVES: dict[str, Callable[[ManualClock], object]] = {
    "stands still": lambda clock: None,
    "steps back a second": lambda clock: clock.advance(-SECOND),
    "steps back an hour": lambda clock: clock.advance(-HOUR),
    "is set to 1970": lambda clock: setattr(clock, "ms", 0),
    "jumps to the year 9999": lambda clock: setattr(clock, "ms", YEAR_9999_MS),
    "jumps an hour ahead": lambda clock: clock.advance(HOUR),
}
every_move = pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())


# --- the clock ----------------------------------------------------------------------------------


@every_move
def test_ids_increase_on_a_clock_that(
    open_store: Stores, clock: ManualClock, move: Callable[[ManualClock], object]
) -> None:
    store = open_store("own")
    ids = []
    for _ in range(4):
        ids.append(store.stream("s").add({"f": "v"}))
        ids += store.stream("s").add_many([{"f": "v"}] * 3)
        move(clock)
        ids.append(store.stream("s").add({"f": "v"}, maxlen=5))
        clock.ms = START_MS
    store = open_store.reopen(store)
    ids.append(store.stream("s").add({"f": "v"}))
    assert ids == sorted(set(ids))


def test_ids_of_a_stopped_clock_continue_within_its_millisecond(
    store: Store, clock: ManualClock
) -> None:
    stream = store.stream("s")
    assert [stream.add({"f": "v"}) for _ in range(3)] == [(START_MS, seq) for seq in range(3)]
    clock.advance(-5000)
    assert stream.add({"f": "v"}) == (START_MS, 3)
    clock.advance(5001)
    assert stream.add({"f": "v"}) == (START_MS + 1, 0)


def test_the_first_id_of_a_clock_at_zero_is_above_0_0(store: Store, clock: ManualClock) -> None:
    clock.ms = 0
    assert store.stream("s").add({"f": "v"}) == (0, 1)


@every_move
def test_no_idle_time_is_negative_on_a_clock_that(
    store: Store, clock: ManualClock, move: Callable[[ManualClock], object]
) -> None:
    stream = store.stream("s")
    group = stream.create_group("g", start="0")
    ids = stream.add_many([{"n": n} for n in range(4)])
    worker = group.consumer("c")
    worker.read(count=3)
    move(clock)
    assert all((entry.idle_ms or 0) >= 0 for entry in group.pending_range())
    assert all(c.idle >= 0 and (c.inactive or 0) >= 0 for c in group.consumers())
    claimed = group.consumer("d").read(claim_min_idle=0)
    assert all(entry.idle_ms is not None and entry.idle_ms >= 0 for entry in claimed)
    group.claim("e", ids[0])
    group.autoclaim("e", start=ids[1])
    group.nack(ids[2])
    group.consumer("e").history()
    assert [entry.idle_ms for entry in group.pending_range()] == [0, 0, None, 0]
    assert group.pending().count == 4


def test_entries_can_be_claimed_once_the_clock_is_right_again(
    store: Store, clock: ManualClock
) -> None:
    store.stream("s").add({"f": "v"})
    group = store.stream("s").create_group("g", start="0")
    group.consumer("c").read()
    clock.advance(-HOUR)
    assert group.consumer("d").read(claim_min_idle=1) == []
    clock.advance(HOUR + SECOND)
    (entry,) = group.consumer("d").read(claim_min_idle=1)
    assert (entry.idle_ms, entry.deliveries) == (SECOND, 1)


def test_entries_delivered_at_time_0_differ_from_entries_given_back(
    store: Store, clock: ManualClock
) -> None:
    ids = store.stream("s").add_many([{"f": "v"}] * 3)
    group = store.stream("s").create_group("g", start="0")
    clock.ms = 0
    group.consumer("c").read(count=2)
    group.nack(ids[1])
    assert [entry.id for entry in group.consumer("d").read(count=1, claim_min_idle=5)] == [ids[1]]
    assert group.consumer("d").read(count=1, claim_min_idle=5) != []  # the new entry
    assert group.pending().consumers == {b"c": 1, b"d": 2}


def test_a_wait_has_its_full_length_though_the_clock_jumps(
    store: Store, clock: ManualClock
) -> None:
    group = store.stream("s").create_group("g")
    calls = [
        blocked(store, lambda: store.stream("s").read(block=0.2)),
        blocked(store, lambda: group.consumer("c").read(block=0.2)),
        blocked(store, lambda: group.consumer("c").read(block=0.2, claim_min_idle=0.05)),
    ]
    clock.ms = YEAR_9999_MS
    time.sleep(0.05)
    clock.ms = 0
    for call in calls:
        assert call.result() == []
        assert 0.2 <= call.seconds < 20


@pytest.mark.parametrize("now_ms", [0, START_MS - HOUR, YEAR_9999_MS])
def test_a_waiting_claim_uses_no_processor_on_any_clock(
    store: Store, clock: ManualClock, now_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = store.stream("s").create_group("g", start="0")
    store.stream("s").add({"f": "v"})
    group.consumer("c").read()
    store.stream("s").trim(maxlen=0)  # pending for ever, and never claimable
    clock.ms = now_ms
    looks: list[int] = []

    def counted() -> int:
        looks.append(now_ms)
        return now_ms

    monkeypatch.setattr(store.engine, "_now_ms", counted)
    assert group.consumer("d").read(block=0.2, claim_min_idle=0) == []
    assert len(looks) < 80  # a busy loop makes thousands


def test_a_key_expires_by_a_clock_that_moves_in_either_direction(
    store: Store, clock: ManualClock
) -> None:
    store.stream("s").add({"f": "v"})
    store.expire("s", 60)
    clock.advance(-HOUR)
    assert store.ttl("s") == 3660
    clock.advance(HOUR + 59 * SECOND)
    assert store.ttl("s") == 1
    clock.ms = YEAR_9999_MS
    assert not store.exists("s")


# --- the ends of IDs ----------------------------------------------------------------------------


def test_the_greatest_id_is_the_last_one(store: Store) -> None:
    stream = store.stream("s")
    assert stream.add({"f": "v"}, id=(U64_MAX, U64_MAX - 1)) == (U64_MAX, U64_MAX - 1)
    assert stream.add({"f": "v"}) == (U64_MAX, U64_MAX)
    for attempt in (
        lambda: stream.add({"f": "v"}),
        lambda: stream.add({"f": "v"}, id="5-5"),
        lambda: stream.add({"f": "v"}, id=f"{U64_MAX}-*"),
        lambda: stream.add({"f": "v"}, id=(U64_MAX, U64_MAX)),
        lambda: stream.add_many([{"f": "v"}]),
    ):
        with pytest.raises(IDsExhausted) as caught:
            attempt()
        assert str(caught.value) == EXHAUSTED
    assert len(stream) == 2


def test_entries_that_do_not_all_fit_below_the_greatest_id_are_refused(
    store: Store,
) -> None:
    stream = store.stream("s")
    stream.add({"f": "v"}, id=(U64_MAX, U64_MAX - 2))
    encoded = [encode_fields({"f": "v"})[0]] * 5
    for attempt in (
        lambda: stream.add_many([{"f": "v"}] * 5),
        lambda: store.bulk_append({"s": (None, encoded)}),
    ):
        with pytest.raises(IDsExhausted) as caught:
            attempt()
        assert str(caught.value) == EXHAUSTED
    assert len(stream) == 1
    store.bulk_append({"s": (None, encoded[:2])})
    assert [entry.id.seq for entry in stream] == [U64_MAX - 2, U64_MAX - 1, U64_MAX]


def test_a_full_millisecond_carries_into_the_next(store: Store, clock: ManualClock) -> None:
    stream = store.stream("s")
    stream.add({"f": "v"}, id=(START_MS + 5, U64_MAX))
    with pytest.raises(IDTooSmall) as caught:
        stream.add({"f": "v"}, id=f"{START_MS + 5}-*")
    assert caught.value.reply == f"ERR {TOO_SMALL}"
    assert stream.add({"f": "v"}) == (START_MS + 6, 0)


def test_many_ids_carry_into_the_next_millisecond(store: Store) -> None:
    stream = store.stream("s")
    stream.add({"f": "v"}, id=(START_MS + 5, U64_MAX - 2))
    assert stream.add_many([{"f": "v"}] * 4) == [
        (START_MS + 5, U64_MAX - 1), (START_MS + 5, U64_MAX), (START_MS + 6, 0), (START_MS + 6, 1)
    ]  # fmt: skip


def test_a_stream_at_the_greatest_id_is_read_trimmed_and_delivered_as_usual(store: Store) -> None:
    stream = store.stream("s")
    group = stream.create_group("g", start="0")
    last = stream.add({"f": "v"}, id=(U64_MAX, U64_MAX))
    assert [entry.id for entry in stream] == [last]
    assert [entry.id for entry in stream.read("+")] == [last]
    assert stream.read("$") == stream.read((U64_MAX, U64_MAX)) == []
    assert [entry.id for entry in group.consumer("c").read()] == [last]
    assert [entry.id for entry in group.consumer("c").history()] == [last]
    assert group.consumer("c").history(after=last) == []
    assert group.autoclaim("d").entries[0].id == last
    assert (group.backlog(), group.ack(last)) == (0, 1)
    assert stream.trim(maxlen=0) == 1
    assert stream.info().last_generated_id == StreamID(U64_MAX, U64_MAX)
    with pytest.raises(IDsExhausted):
        stream.add({"f": "v"})


def test_waiting_after_the_greatest_id_returns_nothing(store: Store) -> None:
    stream = store.stream("s")
    stream.add({"f": "v"}, id=(U64_MAX, U64_MAX))
    assert stream.read("$", block=0.01) == []
    assert ms_of(stream.revrange(count=1)) == [U64_MAX]
