"""Stream: ranges, scans, reads, tails and information."""

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from kvstream import (
    BusyGroup,
    Entry,
    InvalidArgument,
    InvalidID,
    ManualClock,
    NoSuchKey,
    RequestError,
    Store,
    Stream,
    StreamID,
)
from kvstream.storage import reads
from kvstream.types.ids import U64_MAX
from tests.engine.waiting import Call, blocked, ms_of, waiting
from tests.patience import until


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((), [1, 2, 3, 4, 5]),
        (("2", "4"), [2, 3, 4]),
        (("(2-0", "(4-0"), [3]),
        ((b"2-1", StreamID(4, 0)), [3, 4]),
        (((2, 0), 3), [2, 3]),
        ((datetime(1970, 1, 1, 0, 0, 0, 4000, UTC),), [4, 5]),
        (("4", "2"), []),
        (("+", "-"), []),
        (("9", "+"), []),
    ],
)
def test_a_range_lies_between_its_bounds(
    five: Stream, bounds: tuple[Any, ...], expected: list[int]
) -> None:
    assert ms_of(five.range(*bounds)) == expected
    backwards = five.revrange(*reversed(bounds)) if len(bounds) == 2 else None
    if backwards is not None:
        assert ms_of(backwards) == expected[::-1]
    assert ms_of(list(five.scan(*bounds, page=2))) == expected


def test_a_count_bounds_a_range_from_either_end(five: Stream) -> None:
    assert ms_of(five.range(count=2)) == [1, 2]
    assert ms_of(five.range("3", count=2)) == [3, 4]
    assert ms_of(five.revrange(count=2)) == [5, 4]
    assert ms_of(five.revrange("3", count=9)) == [3, 2, 1]
    assert five.range(count=0) == five.revrange(count=-1) == []


def test_a_reverse_read_does_not_step_over_trimmed_entries(
    five: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB looks at the row below each that it returns: it would step over all trimmed ones."""
    walk, bounds = reads.walk, []

    def record(family: Any, options: Any, lower: bytes, upper: bytes, reverse: bool) -> Any:
        bounds.append(lower if reverse else b"")
        return walk(family, options, lower, upper, reverse)

    monkeypatch.setattr(reads, "walk", record)
    five.trim(maxlen=3)
    for count in (None, 3, 9):
        assert ms_of(five.revrange(count=count)) == [5, 4, 3]
        assert ms_of(five.revrange("4", count=count)) == [4, 3]
        assert ms_of(five.revrange("3", count=count)) == [3]
    prefix = bounds[0][:-16]
    second, behind_first = StreamID(4, 0).packed, StreamID(3, U64_MAX).packed + b"\0"
    assert set(bounds) == {prefix + second, prefix + behind_first}
    assert ms_of(five.revrange(count=2)) == [5, 4]
    five.trim(maxlen=1)
    assert ms_of(five.revrange()) == [5]


def test_one_entry_is_returned_by_its_id(five: Stream) -> None:
    assert five.get("3") == Entry(StreamID(3, 0), {b"n": b"3"})
    assert five.get("3-1") is None
    five.delete("3-0")
    assert five.get((3, 0)) is None
    with pytest.raises(InvalidID):
        five.get("-")


@pytest.mark.parametrize("page", [1, 2, 5, 6, 1000])
def test_a_scan_yields_all_page_by_page(five: Stream, page: int) -> None:
    assert ms_of(list(five.scan(page=page))) == [1, 2, 3, 4, 5]
    assert ms_of(list(five)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("page", [0, -1])
def test_an_empty_page_is_refused(five: Stream, page: int) -> None:
    with pytest.raises(InvalidArgument, match="a page must be at least 1 entry"):
        five.scan(page=page)


def test_a_stream_may_change_while_it_is_scanned(five: Stream, store: Store) -> None:
    scan = five.scan(page=2)
    assert next(scan).id.ms == 1
    five.delete("2-0", "3-0", "4-0")
    five.add({"f": "v"}, id="6-0")
    assert ms_of(list(scan)) == [2, 5, 6]
    scan = five.scan(page=1)
    next(scan)
    store.delete("s")
    assert list(scan) == []


def test_a_read_gives_what_lies_after_an_id(five: Stream) -> None:
    assert five.read() == []
    assert ms_of(five.read("3")) == [4, 5]
    assert ms_of(five.read(after=0, count=2)) == [1, 2]
    assert ms_of(five.read("0", max_count=3)) == [1, 2, 3]
    assert ms_of(five.read("0", max_size=1)) == [1]
    assert ms_of(five.read("+")) == [5]
    for after in (">", "-", "x", "(1"):
        with pytest.raises(InvalidArgument):
            five.read(after)
    for wrong in ({"max_count": 0}, {"max_size": 0}):
        with pytest.raises(InvalidArgument):
            five.read(**wrong)


@pytest.mark.parametrize(("after", "first"), [("$", 6), ("3", 4), ("0", 1), ("+", 5)])
def test_a_tail_never_ends_and_starts_at_its_position(
    five: Stream, store: Store, after: str, first: int
) -> None:
    tail = five.tail(after)
    five.add({"f": "v"}, id="6-0")
    expected = list(range(first, 9))
    call = Call(lambda: ms_of(list(islice(tail, len(expected)))))
    until(lambda: waiting(store) == 1, "the tail to wait")
    five.add({"f": "v"}, id="7-0")
    five.add({"f": "v"}, id="8-0")
    assert call.result() == expected


def test_the_tail_of_a_missing_stream_waits_for_its_first_entry(
    stream: Stream, store: Store
) -> None:
    tail = stream.tail(poll=0.01)
    call = blocked(store, lambda: next(tail))
    stream.add({"f": "v"}, id="0-1")
    assert call.result().id == (0, 1)


# --- information --------------------------------------------------------------------------------


def test_information_on_a_stream_is_that_of_xinfo(five: Stream, store: Store) -> None:
    five.create_group("g", start="0").consumer("c").read(count=2)
    five.delete("1-0")
    info = five.info()
    assert (info.length, info.groups, info.entries_added) == (4, 1, 5)
    assert (info.radix_tree_keys, info.radix_tree_nodes) == (1, 2)
    assert info.recorded_first_entry_id == (2, 0)
    assert info.first_entry == five.get("2-0")
    assert info.last_entry == five.get("5-0")
    detail = five.info_full(count=1)
    assert detail.info == info
    assert ms_of(detail.entries) == [2]
    assert [len(group.pending) for group in detail.groups] == [1]
    assert [len(group.pending) for group in five.info_full(count=0).groups] == [2]
    missing = store.stream("missing")
    for ask in (missing.info, missing.info_full, missing.groups):
        with pytest.raises(NoSuchKey, match=r"^no such key: there is no stream 'missing'$"):
            ask()


def test_groups_are_created_and_listed_by_name(five: Stream, store: Store) -> None:
    made = five.create_group("b", start="2", entries_read=2)
    five.create_group(b"a")
    five.create_group("c", "0", entries_read=-1)
    assert (made.name, repr(made)) == (b"b", "<Group b'b' of b's'>")
    found = five.groups()
    assert [group.name for group in found] == [b"a", b"b", b"c"]
    assert [group.last_delivered_id.ms for group in found] == [5, 2, 0]
    assert [group.entries_read for group in found] == [None, 2, None]
    assert five.group("a").info() == found[0]
    with pytest.raises(BusyGroup) as busy:
        five.create_group("a")
    assert busy.value.reply == "BUSYGROUP Consumer Group name already exists"
    assert str(busy.value).startswith(
        "Consumer Group name already exists: group 'a' of stream 's'; exist_ok=True "
    )
    with pytest.raises(InvalidArgument):
        five.create_group("d", entries_read=-2)
    with pytest.raises(InvalidID):
        five.create_group("d", start="+")
    with pytest.raises(RequestError, match="requires the key to exist"):
        store.stream("t").create_group("g", mkstream=False)
    assert store.stream("t").create_group("g").info().pending == 0
    assert store.keys() == [b"s", b"t"]


OTHERS: list[Callable[[Stream], object]] = [
    lambda s: s.range("x"),
    lambda s: s.revrange("x"),
    lambda s: s.scan("x"),
    lambda s: s.read("x"),
    lambda s: s.trim(minid="x"),
    lambda s: s.set_id("x"),
    lambda s: s.create_group("g", "x"),
]


@pytest.mark.parametrize("call", OTHERS)
def test_an_invalid_id_is_refused_everywhere(
    five: Stream, call: Callable[[Stream], object]
) -> None:
    with pytest.raises(InvalidID, match="Invalid stream ID specified as stream command argument"):
        call(five)


LONG = "1" * 1000


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("soon", "'soon'"),
        (b"1-2-3", "b'1-2-3'"),
        ("\u0663", "'\u0663'"),
        (1 << 64, "18446744073709551616"),
        ("18446744073709551616-0", "'18446744073709551616-0'"),
        ((1, -1), "(1, -1)"),
        (None, "None"),
        (True, "True"),
        (1.5, "1.5"),
        (LONG, f"'{LONG[:59]}..."),
        (LONG.encode(), f"b'{LONG[:58]}..."),
        (10**5000, "<int>"),
    ],
    ids=range(12),
)
def test_an_invalid_id_is_shown_but_not_to_clients_of_redis(
    five: Stream, value: Any, shown: str
) -> None:
    redis = "Invalid stream ID specified as stream command argument"
    with pytest.raises(InvalidID) as refusal:
        five.get(value)
    assert str(refusal.value).startswith(f"{redis}: {shown} (")
    assert refusal.value.reply == f"ERR {redis}"
    assert str(pickle.loads(pickle.dumps(refusal.value))) == str(refusal.value)


def test_an_existing_group_is_returned_unchanged_with_exist_ok(stream: Stream) -> None:
    stream.add({"f": "v"}, id="1-0")
    stream.create_group("g", start="0").consumer("c").read()
    again = stream.create_group("g", start="$", exist_ok=True)
    assert again.info().last_delivered_id == StreamID(1, 0)
    assert again.pending().count == 1


@pytest.mark.parametrize("idmp", ["x", ("x",), ("p", "i", "more")], ids=repr)
def test_an_idempotent_id_must_be_a_pair(stream: Stream, idmp: object) -> None:
    with pytest.raises(InvalidArgument, match="idmp is a pair"):
        stream.add({"f": "v"}, idmp=idmp)  # type: ignore[call-overload]


@pytest.mark.parametrize("after", ["1h ago", "now-1h", timedelta(hours=1)])
def test_a_read_starts_at_a_time(store: Store, clock: ManualClock, after: Any) -> None:
    stream = store.stream("s")
    stream.add({"n": "old"})
    clock.advance(3_600_000)
    at = stream.add({"n": "at"})
    clock.advance(3_600_000)
    new = stream.add({"n": "new"})
    assert [entry.id for entry in stream.read(after)] == [at, new]
    assert [entry.id for entry in store.read({"s": after})[b"s"]] == [at, new]
    assert [entry.id for entry in islice(stream.tail(after), 2)] == [at, new]
