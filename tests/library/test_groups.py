"""Group: each method with its results and errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstream import (
    BareEntry,
    Entry,
    Group,
    InvalidArgument,
    InvalidID,
    ManualClock,
    NackMode,
    NoGroup,
    NoSuchKey,
    Outcome,
    PendingEntry,
    PendingSummary,
    RequestError,
    Store,
    Stream,
    StreamID,
)
from kvstream.errors import Corruption
from kvstream.layout.keys import qualified
from kvstream.meta.runs import Run
from kvstream.meta.trees import Tree
from kvstream.storage.batch import Batch, Family
from tests.engine.waiting import ms_of
from tests.opening import change_thresholds

COUNT_MAX = (1 << 63) - 1


@pytest.fixture
def group(five: Stream, clock: ManualClock) -> Group:
    """A group whose consumer "c" has 1, 2 and 3 pending for five seconds; 4 and 5 are new."""
    group = five.create_group("g", start="0")
    assert ms_of(group.consumer("c").read(count=3)) == [1, 2, 3]
    clock.advance(5000)
    return group


def owners(group: Group) -> dict[int, bytes]:
    return {entry.id.ms: entry.consumer for entry in group.pending_range()}


def deliveries(group: Group) -> dict[int, int]:
    return {entry.id.ms: entry.deliveries for entry in group.pending_range()}


# --- ack and nack -------------------------------------------------------------------------------


def test_an_ack_accepts_ids_entries_and_lists_of_them(group: Group, five: Stream) -> None:
    first, second, third = five.range(count=3)
    assert group.ack() == 0
    assert group.ack(first, first.id, "9-9") == 1
    assert group.ack([second, "3-0"], (4, 0)) == 2
    assert group.ack(third) == 0
    assert group.pending() == PendingSummary(0, None, None, {})


def test_pending_entries_can_be_acknowledged_as_they_are_listed(group: Group) -> None:
    assert group.ack(group.pending_range(count=2)) == 2
    assert group.ack(group.pending_range()) == 1


def test_one_bad_id_refuses_a_whole_ack(group: Group) -> None:
    wrong: tuple[Any, ...] = ("1-0", "x")
    for refused in (group.ack, group.ack_delete, group.nack, group.consumer("c").ack):
        with pytest.raises(InvalidID):
            refused(*wrong)
    with pytest.raises(InvalidID):
        group.claim("d", *wrong)
    assert group.pending().count == 3


def test_an_ack_without_a_group_does_nothing(five: Stream, store: Store) -> None:
    with pytest.warns(UserWarning, match="stream 's' has no group 'x'"):
        assert five.group("x").ack("1-0") == 0
    with pytest.warns(UserWarning, match="there is no stream 'missing'"):
        assert store.stream("missing").group("x").ack("1-0") == 0
    assert five.group("x").ack() == 0
    assert five.group("x").ack_delete("1-0") == [Outcome.MISSING]


def test_an_ack_may_delete_the_message_too(group: Group, five: Stream) -> None:
    five.create_group("h", start="2")
    outcomes = group.ack_delete("1-0", "2-0", "9-0")
    assert outcomes == [Outcome.DELETED, Outcome.DELETED, Outcome.MISSING]
    assert group.ack_delete(five.get("3-0") or "", ref_policy="ACKED") == [Outcome.KEPT]
    assert ms_of(five.range()) == [3, 4, 5]
    assert group.pending().count == 0
    with pytest.raises(InvalidArgument, match="KEEPREF, DELREF or ACKED"):
        group.ack_delete("1-0", ref_policy="")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 1),
        ({"mode": "FAIL"}, 1),
        ({"mode": NackMode.SILENT}, 0),
        ({"mode": "FATAL"}, COUNT_MAX),
        ({"mode": "FATAL", "retrycount": 7}, 7),
        ({"retrycount": 0}, 0),
        ({"retrycount": COUNT_MAX}, COUNT_MAX),
    ],
)
def test_a_nack_gives_entries_back_with_a_count(
    group: Group, options: dict[str, Any], expected: int
) -> None:
    assert group.nack("2-0", "2-0", "9-0", **options) in (1, 2)
    assert deliveries(group) == {1: 1, 2: expected, 3: 1}
    assert owners(group)[2] == b""
    assert group.pending().consumers == {b"c": 2}
    assert group.pending_range("2", "2") == [PendingEntry(StreamID(2, 0), b"", None, expected)]


def test_a_nack_may_force_entries_that_are_not_pending(group: Group) -> None:
    assert group.nack("4-0", "9-0") == 0
    assert group.nack(["4-0", "9-0"], force=True) == 1
    assert owners(group) == {1: b"c", 2: b"c", 3: b"c", 4: b""}


@pytest.mark.parametrize(
    "options", [{"mode": "fail"}, {"mode": ""}, {"retrycount": -1}, {"retrycount": COUNT_MAX + 1}]
)
def test_an_invalid_nack_is_refused(group: Group, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        group.nack("1-0", **options)
    assert owners(group)[1] == b"c"


# --- claim --------------------------------------------------------------------------------------


def test_a_claim_transfers_pending_entries(group: Group, clock: ManualClock) -> None:
    claimed = group.claim("d", "1-0", ["2-0"], "4-0")
    assert claimed == [Entry(StreamID(1, 0), {b"n": b"1"}), Entry(StreamID(2, 0), {b"n": b"2"})]
    assert owners(group) == {1: b"d", 2: b"d", 3: b"c"}
    assert deliveries(group) == {1: 2, 2: 2, 3: 1}
    assert [entry.idle_ms for entry in group.pending_range()] == [0, 0, 5000]


def test_pending_entries_can_be_claimed_as_they_are_listed(group: Group) -> None:
    assert ms_of(group.claim("d", group.pending_range(consumer="c", min_idle=5))) == [1, 2, 3]


def test_a_claim_skips_entries_that_are_too_young(group: Group, clock: ManualClock) -> None:
    group.claim("d", "2-0")
    clock.advance(1000)
    assert ms_of(group.claim("e", "1-0", "2-0", "3-0", min_idle=5)) == [1, 3]
    assert ms_of(group.claim("e", "2-0", min_idle=1.0)) == [2]


def test_a_claim_of_ids_alone_counts_no_delivery(group: Group) -> None:
    claimed = group.claim("d", "1-0", justid=True)
    assert claimed == [BareEntry(StreamID(1, 0))]
    assert deliveries(group)[1] == 1


def test_a_claim_may_set_the_time_and_the_count(group: Group, clock: ManualClock) -> None:
    group.claim("d", "1-0", idle=2.5, retrycount=9)
    group.claim("d", "2-0", time=clock.ms / 1000 - 3)
    group.claim("d", "3-0", time=clock.ms / 1000 + 60)
    assert [entry.idle_ms for entry in group.pending_range()] == [2500, 3000, 0]
    assert deliveries(group) == {1: 9, 2: 2, 3: 2}


def test_a_claim_may_force_entries_and_move_the_group(group: Group) -> None:
    assert ms_of(group.claim("d", "4-0", "9-0", force=True, last_id="4-0")) == [4]
    assert group.info().last_delivered_id == (4, 0)
    assert ms_of(group.consumer("c").read()) == [5]


def test_a_claim_drops_deleted_entries(group: Group, five: Stream) -> None:
    five.delete("2-0")
    assert ms_of(group.claim("d", "1-0", "2-0")) == [1]
    assert owners(group) == {1: b"d", 3: b"c"}


@pytest.mark.parametrize(
    "options",
    [
        {"min_idle": -1},
        {"min_idle": float("nan")},
        {"idle": -1},
        {"retrycount": -1},
        {"retrycount": COUNT_MAX + 1},
        {"last_id": "x"},
    ],
)
def test_an_invalid_claim_is_refused(group: Group, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        group.claim("d", "1-0", **options)
    assert owners(group)[1] == b"c"


def test_an_autoclaim_continues_at_its_cursor(group: Group, five: Stream) -> None:
    first = group.autoclaim("d", min_idle=5, count=2)
    assert (first.cursor, ms_of(first.entries), first.deleted) == ((3, 0), [1, 2], [])
    rest = group.autoclaim("d", min_idle=5, start=first.cursor)
    assert (rest.cursor, ms_of(rest.entries), rest.deleted) == ((0, 0), [3], [])
    assert owners(group) == {1: b"d", 2: b"d", 3: b"d"}


def test_an_autoclaim_returns_the_deleted_entries(group: Group, five: Stream) -> None:
    five.delete("1-0", "3-0")
    claimed = group.autoclaim("d", justid=True, start="-")
    assert claimed.entries == [BareEntry(StreamID(2, 0))]
    assert claimed.deleted == [StreamID(1, 0), StreamID(3, 0)]
    assert (owners(group), deliveries(group)) == ({2: b"d"}, {2: 1})


@pytest.mark.parametrize("count", [0, -1, 1 << 63])
def test_an_autoclaim_with_an_invalid_count_is_refused(store: Store, count: int) -> None:
    with pytest.raises(InvalidArgument, match="COUNT must be > 0"):
        store.stream("missing").group("g").autoclaim("d", count=count)


# --- looking ------------------------------------------------------------------------------------


def test_pending_entries_are_summed_up_and_listed(group: Group, clock: ManualClock) -> None:
    group.claim("d", "2-0")
    clock.advance(1000)
    summary = group.pending()
    assert (summary.count, summary.consumers) == (3, {b"c": 2, b"d": 1})
    assert (summary.min_id, summary.max_id) == ((1, 0), (3, 0))
    assert group.pending_range() == [
        PendingEntry(StreamID(1, 0), b"c", 6000, 1),
        PendingEntry(StreamID(2, 0), b"d", 1000, 2),
        PendingEntry(StreamID(3, 0), b"c", 6000, 1),
    ]


@pytest.mark.parametrize(
    ("args", "options", "expected"),
    [
        ((), {"count": 2}, [1, 2]),
        (("2",), {}, [2, 3]),
        (("(1-0", "(3-0"), {}, [2]),
        (("3", "1"), {}, []),
        ((), {"consumer": "c"}, [1, 2, 3]),
        ((), {"consumer": b"x"}, []),
        ((), {"min_idle": 5}, [1, 2, 3]),
        ((), {"min_idle": 5.001}, []),
        ((), {"count": 0}, []),
        ((), {"count": -1}, []),
    ],
)
def test_pending_entries_are_listed_by_bounds_owner_and_idle_time(
    group: Group, args: tuple[Any, ...], options: dict[str, Any], expected: list[int]
) -> None:
    assert [entry.id.ms for entry in group.pending_range(*args, **options)] == expected


def test_information_on_a_group_is_that_of_xinfo(group: Group, clock: ManualClock) -> None:
    info = group.info()
    assert (info.name, info.consumers, info.pending) == (b"g", 1, 3)
    assert (info.last_delivered_id, info.entries_read, info.lag) == ((3, 0), 3, 2)
    assert group.backlog() == 2
    group.create_consumer("idle")
    clock.advance(1000)
    known = {consumer.name: consumer for consumer in group.consumers()}
    assert (known[b"c"].pending, known[b"c"].idle, known[b"c"].inactive) == (3, 6000, 6000)
    assert (known[b"idle"].pending, known[b"idle"].idle, known[b"idle"].inactive) == (0, 1000, -1)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        *[("0", 4), ("1-0", 3), ("3-0", 1), ((4, 0), 1), ("5-0", 0), ("9", 0)],
        *[("-", 4), ("+", 0), (b"-", 4)],
    ],
)
def test_entries_after_an_id_are_counted(five: Stream, after: Any, expected: int) -> None:
    five.delete("4-0")
    assert five.count_after(after) == expected


def test_a_missing_stream_has_no_entries_to_count(store: Store) -> None:
    assert store.stream("missing").count_after("0") == 0


def test_the_backlog_is_exact_if_the_lag_is_unknown(group: Group, five: Stream) -> None:
    five.delete("4-0")
    assert (group.info().lag, group.backlog()) == (None, 1)


# --- care ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "expected"),
    [("0", 0), ("-", 0), ("$", 5), ("+", 5), (b"$", 5), ("2-0", 2), ((2, 0), 2), ("9", 9)],
)
def test_a_group_can_be_moved(group: Group, start: Any, expected: int) -> None:
    group.set_id(start)
    assert group.info().last_delivered_id.ms == expected
    assert (group.info().entries_read, group.pending().count) == (None, 3)


def test_a_moved_group_may_be_given_its_entries_read(group: Group) -> None:
    group.set_id("2", entries_read=2)
    assert group.info().entries_read == 2
    group.set_id("2", entries_read=99)
    assert group.info().entries_read == 5  # no more than the entries ever added
    with pytest.raises(InvalidArgument, match="ENTRIESREAD must be positive or -1"):
        group.set_id("2", entries_read=-2)
    with pytest.raises(InvalidID):
        group.set_id("x")


def test_consumers_are_created_and_deleted(group: Group) -> None:
    assert group.create_consumer("d")
    assert not group.create_consumer(b"d")
    assert group.delete_consumer("d") == 0
    assert group.delete_consumer("d") == 0
    assert group.delete_consumer("c") == 3
    assert group.pending().count == group.info().consumers == 0


def test_deleting_a_consumer_looks_at_its_own_pending_entries(
    group: Group, five: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        assert len(group.consumer(name).read(count=1)) == 1
    assert group.delete_consumer("a") == 1
    read: list[Run] = []
    decoded, everything = Tree.get, Tree.all

    def note_get(tree: Tree[Any], batch: Batch, suffix: bytes) -> Any:
        item = decoded(tree, batch, suffix)
        if isinstance(item, Run):
            read.append(item)
        return item

    def note_all(tree: Tree[Any], batch: Batch) -> list[Any]:
        items = everything(tree, batch)
        read.extend(item for item in items if isinstance(item, Run))
        return items

    monkeypatch.setattr(Tree, "get", note_get)
    monkeypatch.setattr(Tree, "all", note_all)
    assert group.delete_consumer("b") == 1
    assert {run.owner for run in read} == {b"b"}


def test_acks_in_order_look_a_run_of_a_large_group_up_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_thresholds(store.engine, cached_ids=10)
    stream = store.stream("large")
    stream.add_many([{"n": str(number)} for number in range(20)])
    group = stream.create_group("g", start="0")
    entries = group.consumer("c").read(count=10)
    assert len(group.consumer("d").read(count=10)) == 10  # which makes it indexed
    looked: list[bytes] = []
    floor = Tree.floor

    def note(tree: Tree[Any], batch: Batch, suffix: bytes) -> Any:
        looked.append(suffix)
        return floor(tree, batch, suffix)

    monkeypatch.setattr(Tree, "floor", note)
    assert [group.ack(entry) for entry in entries[:5]] == [1] * 5
    assert len(looked) <= 1
    assert store.check() == []


def test_destroying_a_group_deletes_all_its_rows(group: Group, five: Stream) -> None:
    assert group.destroy()
    assert not group.destroy()
    assert five.groups() == []
    again = five.create_group("g", start="0")
    assert (again.pending().count, again.consumers()) == (0, [])


CALLS: list[Callable[[Group], object]] = [
    lambda g: g.nack("1-0"),
    lambda g: g.claim("c", "1-0"),
    lambda g: g.autoclaim("c"),
    lambda g: g.pending(),
    lambda g: g.pending_range(),
    lambda g: g.info(),
    lambda g: g.backlog(),
    lambda g: g.consumers(),
    lambda g: g.set_id("0"),
    lambda g: g.create_consumer("c"),
    lambda g: g.delete_consumer("c"),
    lambda g: g.consumer("c").read(),
    lambda g: g.consumer("c").history(),
    lambda g: g.consumer("c").nack("1-0"),
    lambda g: g.consumer("c").claim("1-0"),
    lambda g: g.consumer("c").autoclaim(),
    lambda g: g.consumer("c").pending(),
    lambda g: g.consumer("c").delete(),
    lambda g: next(g.consumer("c").listen()),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_on_a_missing_group_raises_and_creates_nothing(
    five: Stream, store: Store, call: Callable[[Group], object]
) -> None:
    with pytest.raises(NoGroup, match="No such"):
        call(five.group("x"))
    with pytest.raises((NoGroup, NoSuchKey, RequestError)):
        call(store.stream("missing").group("x"))
    assert (store.keys(), five.groups()) == ([b"s"], [])


def test_names_of_groups_and_consumers_are_bytes_of_any_kind(five: Stream) -> None:
    name = b"\x00\xff\n'"
    group = five.create_group(name, start="0")
    assert len(group.consumer(name).read()) == 5
    assert group.pending().consumers == {name: 5}
    assert [found.name for found in five.groups()] == [name]
    empty = five.create_group("")
    assert empty.create_consumer("")
    assert [found.name for found in five.groups()] == [b"", name]
    with pytest.raises(InvalidArgument, match="the group is longer than 1048576 bytes"):
        five.create_group("x" * (1 << 20) + "x")
    with pytest.raises(InvalidArgument, match="the group is None: give its name"):
        five.group(None)  # type: ignore[arg-type]


def test_a_claim_of_a_damaged_entry_changes_nothing(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        stream = store.stream("s")
        ids = [stream.add({"f": "v"}) for _ in range(3)]
        group = stream.create_group("g", "0")
        group.consumer("a").read(3)
        loaded = store.engine.run(lambda txn: txn.stream(qualified(0, b"s")))
        assert loaded is not None
        batch = Batch(store.engine.database)
        batch.put(Family.MESSAGES, loaded.prefix + ids[1].packed, b"\xc1")
        store.engine.database.write(batch)
        store.engine.catalog.forget()
        with pytest.raises(Corruption):
            group.claim("b", ids)
        assert [row.consumer for row in group.pending_range()] == [b"a"] * 3
