"""Stream: adding, trimming, deleting and settings."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kvstream import (
    Entry,
    IDTooSmall,
    InvalidArgument,
    InvalidID,
    ManualClock,
    NoSuchKey,
    Outcome,
    RefPolicy,
    Store,
    Stream,
    StreamID,
)
from tests.engine.sharing import START_MS
from tests.engine.waiting import ms_of


def all_ms(stream: Stream) -> list[int]:
    return ms_of(stream.range())


# --- the handle ---------------------------------------------------------------------------------


def test_a_handle_creates_nothing(store: Store, stream: Stream) -> None:
    assert stream.key == b"s"
    assert repr(stream) == "<Stream b's'>"
    assert (len(stream), bool(stream), list(stream)) == (0, True, [])
    assert not store.exists("s")


# --- add ----------------------------------------------------------------------------------------


def test_an_added_entry_has_an_id_of_the_clock(stream: Stream) -> None:
    eid = stream.add({"sku": "a1", "qty": 2})
    assert eid == StreamID(START_MS, 0)
    assert type(eid) is StreamID
    assert stream.range() == [Entry(eid, {b"sku": b"a1", b"qty": b"2"})]


@pytest.mark.parametrize(
    "fields",
    [
        {"a": "1", "b": 2, "c": 2.5},
        {b"a": b"1", b"b": bytearray(b"2"), b"c": memoryview(b"2.5")},
        {"a": "1", b"b": 2, "c": 2.5},
        [("a", "1"), (b"b", 2), ("c", 2.5)],
    ],
)
def test_fields_are_accepted_in_many_forms_and_read_as_bytes(stream: Stream, fields: Any) -> None:
    (entry,) = [stream.get(stream.add(fields))]
    assert entry is not None
    assert entry.fields == {b"a": b"1", b"b": b"2", b"c": b"2.5"}
    assert entry.flat == (b"a", b"1", b"b", b"2", b"c", b"2.5")


def test_a_repeated_field_is_kept_with_its_order(stream: Stream) -> None:
    eid = stream.add([("a", "1"), ("b", "2"), ("a", "3")])
    entry = stream.get(eid)
    assert entry is not None
    assert entry.pairs == ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    assert entry.fields == {b"a": b"3", b"b": b"2"}


def test_fields_of_an_entry_are_added_as_they_are(stream: Stream) -> None:
    stream.add([("a", 1), ("b", 2), ("a", 3)])
    (entry,) = stream.range()
    stream.add(entry.fields)
    stream.add_many([entry.fields])
    assert [each.flat for each in stream.range()] == [entry.flat] * 3
    entry.fields[b"b"] = b"4"
    stream.add(entry.fields)
    assert stream.range()[-1].pairs == ((b"a", b"3"), (b"b", b"4"))


@pytest.mark.parametrize(
    ("eid", "expected"),
    [
        ("7-3", (7, 3)),
        (b"7-3", (7, 3)),
        ("7", (7, 0)),
        (7, (7, 0)),
        ((7, 3), (7, 3)),
        (StreamID(7, 3), (7, 3)),
        ("7-*", (7, 0)),
        ("5-*", (5, 1)),
        (datetime(2030, 1, 1, tzinfo=UTC), (1_893_456_000_000, 0)),
        ("*", (START_MS, 0)),
        (b"*", (START_MS, 0)),
    ],
)
def test_an_id_may_be_given(five: Stream, eid: Any, expected: tuple[int, int]) -> None:
    assert five.add({"f": "v"}, id=eid) == expected


def test_an_id_that_is_not_above_the_last_is_refused(five: Stream) -> None:
    five.delete("5-0")
    for eid in ("5-0", "4-9", "0-1", "4-*"):
        with pytest.raises(IDTooSmall, match="equal or smaller than the target stream top item"):
            five.add({"f": "v"}, id=eid)
    with pytest.raises(IDTooSmall, match="must be greater than 0-0"):
        five.add({"f": "v"}, id="0-0")
    with pytest.raises(InvalidID):
        five.add({"f": "v"}, id="x")
    assert len(five) == 4


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"maxlen": 3}, [4, 5, 6]),
        ({"maxlen": 0}, []),
        ({"minid": "5"}, [5, 6]),
        ({"minid": (4, 1)}, [5, 6]),
        ({"maxlen": 2, "approximate": True}, [1, 2, 3, 4, 5, 6]),
        ({"maxlen": 2, "ref_policy": RefPolicy.DELREF}, [5, 6]),
        ({"maxlen": 2, "ref_policy": "ACKED"}, [5, 6]),
    ],
)
def test_an_add_may_trim(five: Stream, options: Any, left: list[int]) -> None:
    assert five.add({"f": "v"}, id="6-0", **options) == (6, 0)
    assert all_ms(five) == left


def test_many_entries_may_be_added_under_their_ids(stream: Stream) -> None:
    rows = [{"n": str(n)} for n in range(4)]
    added = stream.add_many(rows, ids=["5-1", "5-*", StreamID(7, 3), "*"], maxlen=3)
    assert added[:3] == [StreamID(5, 1), StreamID(5, 2), StreamID(7, 3)]
    assert [(entry.id, entry.fields[b"n"]) for entry in stream.range()] == [
        (added[1], b"1"),
        (added[2], b"2"),
        (added[3], b"3"),
    ]


def test_many_entries_are_added_under_their_ids_or_not_at_all(store: Store, stream: Stream) -> None:
    rows = [{"n": "1"}, {"n": "2"}]
    with pytest.raises(IDTooSmall):
        stream.add_many(rows, ids=["5-1", "5-1"])
    with pytest.raises(InvalidArgument, match="ids must have an ID for each entry: 1, not 2"):
        stream.add_many(rows, ids=["5-1"])
    with pytest.raises(InvalidArgument, match="ids does not go with delay"):
        stream.add_many(rows, ids=["5-1", "6-1"], delay=1)  # type: ignore[call-overload]
    assert not store.exists("s")


def test_an_add_may_leave_a_missing_stream_missing(store: Store, stream: Stream) -> None:
    assert stream.add({"f": "v"}, nomkstream=True) is None
    assert store.keys() == []
    first = stream.add({"f": "v"})
    second = stream.add({"f": "v"}, nomkstream=True)
    assert second is not None
    assert second > first


def test_a_repeated_add_of_a_producer_adds_nothing(stream: Stream, clock: ManualClock) -> None:
    first = stream.add({"n": 1}, idmp=("producer", "a"))
    clock.advance(5)
    assert stream.add({"n": 2}, idmp=(b"producer", b"a"), maxlen=0) == first
    assert stream.add({"n": 2}, idmp=("other", "a")) != first
    by_content = stream.add({"a": 1, "b": 2}, idmpauto="producer")
    assert stream.add({"b": 2, "a": 1}, idmpauto="producer") == by_content
    assert len(stream) == 3
    info = stream.info()
    assert (info.pids_tracked, info.iids_tracked, info.iids_duplicates) == (2, 3, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"idmp": ("", "a")}, "IDMP requires a non-empty producer ID"),
        ({"idmp": ("p", "")}, "IDMP requires a non-empty idempotent ID"),
        ({"idmpauto": ""}, "IDMPAUTO requires a non-empty producer ID"),
        ({"idmp": ("p", "a"), "idmpauto": "p"}, "IDMP/IDMPAUTO specified multiple times"),
        ({"idmp": ("p", "a"), "id": "7-0"}, "only with auto-generated IDs"),
        ({"maxlen": 1, "minid": 1}, "MAXLEN and MINID options at the same time"),
        ({"maxlen": -1}, "The MAXLEN argument must be >= 0."),
        ({"maxlen": 1, "limit": 1}, "without the special ~ option"),
        ({"limit": 1}, "without specifying a trimming strategy"),
        ({"maxlen": 1, "approximate": True, "limit": -1}, "The LIMIT argument must be >= 0."),
        ({"maxlen": 1, "ref_policy": "NONE"}, "KEEPREF, DELREF or ACKED"),
    ],
)
def test_invalid_options_are_refused_and_nothing_is_created(
    store: Store, stream: Stream, options: Any, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        stream.add({"f": "v"}, **options)
    assert store.keys() == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        *(({}, "must not be empty"), ([], "must not be empty"), (iter(()), "must not be empty")),
        *(({"a": None}, "."), ({"a": True}, "."), ({"a": ["1"]}, "."), (None, "."), ("ab", ".")),
    ],
)
def test_invalid_fields_are_refused_and_nothing_is_created(
    store: Store, stream: Stream, fields: Any, says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        stream.add(fields)
    with pytest.raises(InvalidArgument, match=says):
        stream.add_many([{"f": "v"}, fields])
    assert store.keys() == []


def test_many_entries_are_one_commit(stream: Stream) -> None:
    ids = stream.add_many([{"n": n} for n in range(250)], maxlen=220)
    assert ids == [StreamID(START_MS, seq) for seq in range(250)]
    assert [entry.id for entry in stream.range()] == ids[30:]
    assert (
        stream.add_many(({"n": n} for n in "ab"), minid=ids[248], approximate=False)[0].seq == 250
    )
    assert len(stream) == 4


def test_adding_no_entries_creates_no_stream(store: Store, stream: Stream) -> None:
    assert stream.add_many([]) == []
    assert stream.add_many(iter(())) == []
    assert store.keys() == []


# --- trim and delete ----------------------------------------------------------------------------


def test_a_trim_returns_the_number_of_deleted_entries(five: Stream, store: Store) -> None:
    assert five.trim(maxlen=4) == 1
    assert five.trim(minid="3") == 1
    assert five.trim(maxlen=1, approximate=True) == 0
    assert five.trim(maxlen=0, approximate=True, limit=0) == 3
    assert store.exists("s")
    assert store.stream("missing").trim(maxlen=0) == 0
    with pytest.raises(InvalidArgument, match="a trim needs maxlen or minid"):
        five.trim()


def test_a_deletion_accepts_ids_entries_and_lists_of_them(five: Stream) -> None:
    entries = five.range()
    assert five.delete() == 0
    assert five.delete("1-0", "1-0", "9-9") == 1
    assert five.delete([entries[1], "3-0"], (4, 0)) == 3
    assert five.delete(eid for eid in [b"5-0"]) == 1
    assert len(five) == 0


@pytest.mark.parametrize("ids", [("x",), ("1-0", "x"), (["1-0", None],), (1.5,), ((1, 2, 3),)])
def test_one_bad_id_refuses_a_whole_deletion(five: Stream, ids: Any) -> None:
    with pytest.raises(InvalidID):
        five.delete(*ids)
    with pytest.raises(InvalidID):
        five.delete_entries(*ids)
    assert len(five) == 5


def test_a_deletion_with_a_policy_returns_the_result_for_each_id(five: Stream) -> None:
    group = five.create_group("g", start="0")
    group.consumer("c").read(count=3)
    group.ack("1-0")
    outcomes = five.delete_entries("1-0", "2-0", "4-0", "9-0", ref_policy="ACKED")
    assert outcomes == [Outcome.DELETED, Outcome.KEPT, Outcome.KEPT, Outcome.KEPT]
    assert five.delete_entries(["2-0", "9-0"]) == [Outcome.DELETED, Outcome.MISSING]
    assert group.pending().count == 2  # the reference to 2-0 dangles
    assert five.delete_entries("2-0", "3-0", ref_policy=RefPolicy.DELREF) == [
        Outcome.MISSING, Outcome.DELETED
    ]  # fmt: skip
    assert group.pending().count == 0
    with pytest.raises(InvalidArgument, match="KEEPREF, DELREF or ACKED"):
        five.delete_entries("4-0", ref_policy="acked")  # type: ignore[arg-type]


# --- settings -----------------------------------------------------------------------------------


def test_the_last_id_and_the_counters_can_be_set(five: Stream, store: Store) -> None:
    five.set_id("9-0", entries_added=50, max_deleted_id="8-0")
    info = five.info()
    assert (info.last_generated_id, info.entries_added) == ((9, 0), 50)
    assert info.max_deleted_entry_id == (8, 0)
    for wrong in (
        {"last_id": "4-0"},
        {"last_id": "10-0", "max_deleted_id": "11-0"},
        {"last_id": "10-0", "entries_added": 2},
        {"last_id": "10-0", "entries_added": -1},
        {"last_id": "10-0", "entries_added": 1 << 64},
    ):
        with pytest.raises(InvalidArgument):
            five.set_id(**wrong)
    assert five.info() == info
    with pytest.raises(NoSuchKey, match=r"^no such key: there is no stream '"):
        store.stream("missing").set_id("1-0")


def test_the_idempotency_of_producers_can_be_configured(five: Stream, store: Store) -> None:
    five.configure(idmp_duration=5, idmp_maxsize=7)
    five.configure(idmp_maxsize=8)
    assert (five.info().idmp_duration, five.info().idmp_maxsize) == (5, 8)
    for wrong in ({}, {"idmp_duration": 0}, {"idmp_maxsize": 10_001}, {"idmp_duration": 86_401}):
        with pytest.raises(InvalidArgument):
            five.configure(**wrong)
    with pytest.raises(NoSuchKey):
        store.stream("missing").configure(idmp_duration=5)
