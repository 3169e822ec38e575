"""Calls with many IDs have the effect of calls with one ID each, but are faster."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from kvstream import Group, ManualClock, NackMode, RefPolicy, Store, Stream, StreamID
from kvstream.meta import pel
from kvstream.meta.runs import Run
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.opening import change_thresholds

ENTRIES = 700


@pytest.fixture
def twins(store: Store) -> tuple[Stream, Stream]:
    """Two streams of the same entries, in small nodes."""
    made = store.stream("one"), store.stream("other")
    for stream in made:
        with store.transaction():
            for number in range(1, ENTRIES + 1):
                stream.add({"f": number, "v": "x" * (number % 90)}, id=f"{number}-1")
    return made


def shape(stream: Stream) -> Any:
    info = stream.info()
    return info, list(stream.range())


def spans(draw: random.Random) -> list[str]:
    """Return IDs in adjacent spans, in any order, some of them without an entry."""
    numbers: list[int] = []
    for _ in range(draw.randint(1, 4)):
        first = draw.randint(-20, ENTRIES)
        numbers += range(max(first, 1), first + draw.choice([1, 5, 150, 400]))
    if draw.random() < 0.5:
        draw.shuffle(numbers)
    return [f"{number}-1" for number in numbers]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("span", [30, DEFAULT.span_rows])
def test_entries_deleted_together_have_the_effect_of_single_deletions(
    store: Store,
    twins: tuple[Stream, Stream],
    seed: int,
    span: int,
) -> None:
    change_thresholds(store.engine, span_rows=span)
    draw = random.Random(seed)
    one, other = twins
    for _ in range(4):
        ids = spans(draw)
        assert one.delete(*ids) == sum(other.delete(eid) for eid in ids)
        assert shape(one) == shape(other)
        maxlen = draw.choice([ENTRIES, draw.randint(1, ENTRIES)])
        assert one.trim(maxlen=maxlen) == other.trim(maxlen=maxlen)
    assert store.check() == []


@pytest.mark.parametrize("span", [30, DEFAULT.span_rows])
def test_all_entries_deleted_together_leave_an_empty_stream(
    store: Store, twins: tuple[Stream, Stream], span: int
) -> None:
    change_thresholds(store.engine, span_rows=span)
    ids = [entry.id for entry in twins[0].range()]
    with store.transaction():
        assert twins[0].delete(*ids) == ENTRIES
        twins[0].add({"f": "v"}, id=f"{ENTRIES + 1}-1")
    assert [entry.id.ms for entry in twins[0].range()] == [ENTRIES + 1]
    assert store.check() == []


def test_deleting_entries_of_one_large_node_keeps_those_between_them(
    open_store: Callable[..., Store],
) -> None:
    nodes = {"stream_node_max_entries": 0, "stream_node_max_bytes": 0}
    store = open_store("large", Thresholds(span_rows=30), **nodes)
    stream = store.stream("one")
    with store.transaction():
        for number in range(1, 101):
            stream.add({"f": "v"}, id=f"{number}-1")
    assert stream.delete(*[f"{number}-1" for number in range(1, 101, 2)]) == 50
    assert [entry.id.ms for entry in stream.range()] == list(range(2, 101, 2))
    assert store.check() == []


def deliver(streams: tuple[Stream, Stream], clock: ManualClock, seed: int) -> list[Group]:
    """Return groups with the same pending entries, of several owners, times and counts."""
    groups = [stream.create_group("g", start="0") for stream in streams]
    draw = random.Random(seed)
    while min([len(group.consumer("a").read(count=1)) for group in groups]):
        consumer, count = draw.choice("ab"), draw.choice([1, 3, 200])
        for group in groups:
            group.consumer(consumer).read(count=count)
        clock.advance(10)
    deleted = [f"{draw.randint(1, ENTRIES)}-1" for _ in range(draw.choice([0, 1, 60]))]
    if deleted:
        for stream, group in zip(streams, groups, strict=True):
            group.consumer("c").claim(*deleted[:20], justid=True)
            group.consumer("c").nack(*deleted[5:10])
            stream.delete(*deleted)
    return groups


def pending(group: Group) -> Any:
    return list(group.pending_range(count=10 * ENTRIES)), group.pending(), group.consumers()


@pytest.mark.parametrize("seed", range(10))
def test_entries_claimed_together_equal_those_claimed_one_by_one(
    store: Store, twins: tuple[Stream, Stream], clock: ManualClock, seed: int
) -> None:
    one, other = deliver(twins, clock, seed)
    draw = random.Random(seed)
    for _ in range(3):
        clock.advance(5)
        ids = sorted({int(eid.partition("-")[0]) for eid in spans(draw)})
        options: dict[str, Any] = {
            "min_idle": draw.choice([0, 0.5, 2]),
            "justid": draw.random() < 0.4,
            "retrycount": draw.choice([None, 7]),
        }
        together = one.claim("d", *[f"{number}-1" for number in ids], **options)
        alone = [other.claim("d", f"{number}-1", **options) for number in ids]
        assert together == [entry for entries in alone for entry in entries]
        assert type(together) is list
        assert pending(one) == pending(other)
    assert store.check() == []


@pytest.mark.parametrize("seed", range(10))
def test_a_large_scan_claims_the_same_entries_as_small_ones(
    store: Store, twins: tuple[Stream, Stream], clock: ManualClock, seed: int
) -> None:
    one, other = deliver(twins, clock, seed)
    draw = random.Random(seed)
    idle, justid = draw.choice([0, 0.5, 1]), draw.random() < 0.4
    whole = one.autoclaim("d", idle, count=10 * ENTRIES, justid=justid)
    assert whole.cursor == (0, 0)
    cursor: Any = "0-0"
    claimed: list[Any] = []
    deleted: list[StreamID] = []
    while True:
        some = other.autoclaim("d", idle, cursor, count=draw.choice([1, 2, 7, 100]), justid=justid)
        claimed += some.entries
        deleted += some.deleted
        cursor = some.cursor
        if cursor == (0, 0):
            break
    assert (whole.entries, whole.deleted) == (claimed, deleted)
    assert pending(one) == pending(other)
    assert store.check() == []


@pytest.mark.parametrize("seed", range(6))
def test_entries_acknowledged_together_are_those_acknowledged_one_by_one(
    store: Store, twins: tuple[Stream, Stream], clock: ManualClock, seed: int
) -> None:
    one, other = deliver(twins, clock, seed)
    ids = spans(random.Random(seed))
    assert one.consumer("a").ack(*ids) == sum(other.consumer("a").ack(eid) for eid in ids)
    assert pending(one) == pending(other)
    assert store.check() == []


@pytest.mark.parametrize("policy", ["KEEPREF", "DELREF", "ACKED"])
@pytest.mark.parametrize("seed", range(2))
def test_entries_deleted_by_a_policy_together_are_those_deleted_one_by_one(
    store: Store, twins: tuple[Stream, Stream], clock: ManualClock, seed: int, policy: Any
) -> None:
    one, other = twins
    groups = deliver(twins, clock, seed)
    draw = random.Random(seed)
    for group, stream in zip(groups, twins, strict=True):
        group.ack(*[f"{number}-1" for number in range(100, 600, 3)])
        behind = stream.create_group("h", start="0")
        behind.consumer("a").read(count=400)
        behind.ack(*[f"{number}-1" for number in range(1, 300)])
    for together, alone in (
        (one.delete_entries, other.delete_entries),
        (groups[0].ack_delete, groups[1].ack_delete),
    ):
        ids = spans(draw) + spans(draw)  # some of them again
        outcomes = [alone(eid, ref_policy=policy)[0] for eid in ids]
        assert together(*ids, ref_policy=policy) == outcomes
    length = one.info().length
    maxlen = draw.randint(length // 2, length)
    trims = [other.trim(maxlen=n, ref_policy=policy) for n in range(length, maxlen - 1, -1)]
    assert one.trim(maxlen=maxlen, ref_policy=policy) == sum(trims)
    assert shape(one) == shape(other)
    for name in ("g", "h"):
        assert pending(one.group(name)) == pending(other.group(name))
    assert store.check() == []


@pytest.mark.parametrize("mode", NackMode)
def test_entries_given_back_together_are_those_given_back_one_by_one(
    store: Store, twins: tuple[Stream, Stream], clock: ManualClock, mode: NackMode
) -> None:
    one, other = deliver(twins, clock, 1)
    draw = random.Random(mode)
    for _ in range(3):
        ids = spans(draw)
        alone = sum(other.nack(eid, mode=mode, force=True) for eid in ids)
        assert one.nack(*ids, mode=mode, force=True) == alone
        assert pending(one) == pending(other)
    assert store.check() == []


@pytest.mark.parametrize("ref_policy", [RefPolicy.DELREF, RefPolicy.ACKED])
@pytest.mark.parametrize("how", ["trim", "delete"])
def test_groups_without_pending_entries_cost_a_deletion_nothing_per_entry(
    store: Store, monkeypatch: pytest.MonkeyPatch, ref_policy: RefPolicy, how: str
) -> None:
    """XTRIM DELREF of 200,000 entries with 2,000 groups took 222 s: a lookup each for each."""
    stream = store.stream("s")
    ids = stream.add_many([{"n": number} for number in range(2000)])
    for number in range(20):
        stream.create_group(f"g{number}", "$")
    old = stream.create_group("old", "0")
    old.consumer("ann").read(count=1500)
    old.ack(ids[:1000])
    lookups = 0
    run_at = pel.run_at

    def count(*args: Any) -> Run | None:
        nonlocal lookups
        lookups += 1
        return run_at(*args)

    monkeypatch.setattr(pel, "run_at", count)
    if how == "trim":
        stream.trim(maxlen=0, ref_policy=ref_policy)
    else:
        stream.delete_entries(ids, ref_policy=ref_policy)
    assert lookups < 1000
    assert len(stream) == (0 if ref_policy is RefPolicy.DELREF else 1000)
    assert old.pending().count == (0 if ref_policy is RefPolicy.DELREF else 500)
