"""The compiled twins of the protocol do the same as the Python functions, or leave work to them."""

import os
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstream.commands.replies import (
    NULL_ARRAY,
    OK,
    RESP2,
    RESP3,
    Alike,
    EncodedEntries,
    Entries,
    ErrorReply,
    Gradual,
    Map,
    Rows,
    StoredEntry,
    Streams,
)
from kvstream.errors import Corruption
from kvstream.layout.values import encode_flat, pack_any
from kvstream.resp import replies, twins
from kvstream.resp.requests import take_plain
from kvstream.types.ids import U64_MAX, StreamID
from kvstream.types.records import AnyEntry, DeletedEntry, Entry, RepeatedFields
from tests.resp.conversations import framed

if twins is None and os.environ.get("KVSTREAM_PURE") != "1":
    REASON = "the compiled twins are not installed: they need a C compiler and Python's headers"
    if os.environ.get("KVSTREAM_REQUIRE_ALL"):
        pytest.fail(REASON, pytrace=False)
    pytest.skip(REASON, allow_module_level=True)
elif twins is None:
    pytest.skip("KVSTREAM_PURE is set", allow_module_level=True)

ALL = sys.maxsize
NUMBERS = (
    st.integers(0, U64_MAX)
    | st.sampled_from([10**n + d for n in range(20) for d in (-1, 0)])
    | st.just(U64_MAX)
)
IDS = st.builds(StreamID, NUMBERS, NUMBERS)
PARTS = (
    st.binary(max_size=12)
    | st.sampled_from([b"", b"x" * 31, b"x" * 32, b"\r\n"])
    | st.integers(0, 20_000).map(lambda size: b"v" * size)
)
FLAT = st.lists(PARTS, min_size=2, max_size=60).map(lambda parts: parts[: len(parts) // 2 * 2])


def in_python(entries: Any, protocol: int) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replies, "twins", None)
        return replies.encode(entries, protocol)


@given(st.lists(st.tuples(IDS, FLAT), max_size=8), st.binary(max_size=9), st.integers(1, 2000))
@example([(StreamID(0, 0), [b"%d" % n for n in range(40)])], b"", 1)
@example([(StreamID(0, 0), [b"same", b"1"] * 20)], b"", 1)
@example([(StreamID(0, 0), [b"%d" % n for n in range(2 * 65535)])], b"", 1)
@example([(StreamID(0, 0), [b"name", b"x" * 65535, b"n", b"y" * 65536])], b"", 1)
def test_both_twins_encode_rows_alike(
    rows: list[tuple[Any, Any]], prefix: bytes, room: int
) -> None:
    page = [(prefix + eid.packed, pack_any(flat)[0]) for eid, flat in rows]
    whole = twins.encode_rows(page, len(prefix), 0, ALL)
    assert whole is not None
    expected = in_python(Rows(page, len(prefix)), RESP2)
    assert (b"*%d\r\n%b" % (len(page), whole[0]), whole[1]) == (expected, len(page))
    parts, at = [], 0
    while at < len(page):
        made = twins.encode_rows(page, len(prefix), at, room)
        assert made is not None
        assert made[1] > at
        assert made[1] == at + 1 or len(made[0]) < room + len(parts_of(page, prefix, made[1] - 1))
        parts.append(made[0])
        at = made[1]
    assert b"".join(parts) == whole[0]


@given(st.lists(IDS, max_size=9), st.lists(st.binary(max_size=9) | st.integers(), max_size=3))
def test_both_twins_encode_rows_that_differ_by_their_ids_alike(
    ids: list[Any], rest: list[Any]
) -> None:
    reply = Gradual([len(ids), Alike([eid.packed for eid in ids], rest)])
    assert replies.encode(reply, RESP2) == in_python(reply, RESP2)
    assert in_python(reply, RESP2) == in_python([[bytes(eid), *rest] for eid in ids], RESP2)


@pytest.mark.parametrize("ids", [[b"short"], [b"x" * 17], [StreamID(1, 1)], [None]])
def test_an_invalid_packed_id_is_left_to_python(ids: list[Any]) -> None:
    assert twins.encode_alike(ids, b"*1", b"") is None


def parts_of(page: list[tuple[bytes, bytes]], prefix: bytes, at: int) -> bytes:
    return in_python(Rows(page[at : at + 1], len(prefix)), RESP2)


@given(
    st.lists(
        st.tuples(IDS, st.none() | FLAT, st.none() | st.tuples(st.integers(0, 99), NUMBERS)),
        max_size=8,
    )
)
def test_both_twins_encode_entries_alike(given: list[tuple[Any, Any, Any]]) -> None:
    entries: list[AnyEntry] = []
    for eid, flat, found in given:
        if flat is None:
            entries.append(DeletedEntry(eid, None, *(found or ())))
            continue
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        if len(fields) < len(flat) // 2:
            fields = RepeatedFields(tuple(flat))
        entries.append(Entry(eid, fields, *(found or ())))
    for protocol in (RESP2, RESP3):
        made = twins.encode_entries(entries, 0, ALL, protocol)
        expected = in_python(Entries(entries), protocol)
        assert replies.encode(Entries(entries), protocol) == expected
        if made is not None:
            assert b"*%d\r\n%b" % (len(entries), made[0]) == expected
        else:
            assert max(entry.deliveries or 0 for entry in entries) >= 1 << 63


ONE = {b"f": b"v"}


@pytest.mark.parametrize(
    "entry",
    [
        5,
        (),
        Entry((1, 2, 3), ONE),  # type: ignore[arg-type]
        Entry(StreamID(-1, 0), ONE),
        Entry(StreamID(1 << 64, 0), ONE),
        Entry(StreamID("1", 0), ONE),  # type: ignore[arg-type]
        Entry(StreamID(1, 1), {b"f": 1}),  # type: ignore[misc]
        Entry(StreamID(1, 1), {"f": b"v"}),  # type: ignore[misc]
        Entry(StreamID(1, 1), 5),  # type: ignore[arg-type]
        Entry(StreamID(1, 1), ONE, -1, 1),
        Entry(StreamID(1, 1), ONE, 1, None),
        Entry(StreamID(1, 1), RepeatedFields((b"f", b"v", b"f", b"w")), 1 << 63, 1),
    ],
    ids=repr,
)
def test_other_entries_are_left_to_python(entry: Any) -> None:
    assert twins.encode_entries([Entry(StreamID(1, 1), ONE), entry], 0, ALL, RESP2) is None
    made = twins.encode_entries([Entry(StreamID(1, 1), ONE), entry], 0, 1, RESP2)
    assert made is not None
    assert made[1] == 1


@given(st.lists(st.binary(max_size=20), max_size=3), st.data())
def test_damage_is_left_to_python(parts: list[bytes], data: st.DataObject) -> None:
    sound = encode_flat([b"name", b"value", b"other", b"x" * 40, *parts, *parts])[0]
    at = data.draw(st.integers(0, len(sound) - 1))
    mutated = bytearray(sound)
    mutated[at] = data.draw(st.integers(0, 255))
    for value in (bytes(mutated), sound[:at], sound + b"\xa1x", sound + sound[1:]):
        page = [(StreamID(1, 1).packed, value)]
        made = twins.encode_rows(page, 0, 0, ALL)
        if made is None:
            continue
        assert b"*1\r\n" + made[0] == in_python(Rows(page, 0), RESP2)


def test_both_twins_encode_very_many_fields_alike() -> None:
    flat = [part for number in range(70_000) for part in (b"n%d" % number, b"v")]
    for given_ in (flat, [*flat, *flat[:2]]):
        page = [(StreamID(1, 1).packed, encode_flat(given_)[0])]
        made = twins.encode_rows(page, 0, 0, ALL)
        assert made is not None
        assert b"*1\r\n" + made[0] == in_python(Rows(page, 0), RESP2)


@pytest.mark.parametrize("count", [2, 16, 17, 40])
def test_a_map_with_a_repeated_name_is_left_to_python(count: int) -> None:
    names = [b"n%02d" % n for n in range(count)]
    value = encode_flat([part for name in names for part in (name, b"v")])[0]
    twice = value.replace(b"n%02d" % (count - 1), b"n00")
    key = StreamID(1, 1).packed
    assert twins.encode_rows([(key, value)], 0, 0, ALL) is not None
    assert twins.encode_rows([(key, twice)], 0, 0, ALL) is None


@pytest.mark.parametrize(
    "page", [[5], [()], [(b"k" * 15, b"\x01")], [(b"k" * 16, "v")], [("k" * 16, b"\x01")]]
)
def test_an_invalid_row_is_left_to_python(page: Any) -> None:
    assert twins.encode_rows(page, 0, 0, ALL) is None
    assert twins.encode_rows([], 0, 5, ALL) == (b"", 5)
    assert twins.encode_rows([], -1, 0, ALL) is None
    assert twins.encode_rows([], 0, -1, ALL) is None
    assert twins.encode_entries([], -1, ALL, RESP2) is None


def test_a_damaged_row_behind_sound_ones_is_found() -> None:
    sound = (StreamID(1, 1).packed, encode_flat([b"f", b"v"])[0])
    rows = Rows([sound] * 5000 + [(sound[0], b"\x01\x81\xa1f\x05")], 0)
    with pytest.raises(Corruption):
        replies.encode(rows, RESP2)


@given(
    st.lists(st.lists(PARTS, min_size=1, max_size=5), max_size=4),
    st.integers(0, 400),
    st.integers(-2, 30_000),
)
def test_both_twins_parse_plain_requests_alike(
    requests: list[list[bytes]], less: int, bulk_max: int
) -> None:
    data = b"".join(map(framed, requests))
    data = data[: max(0, len(data) - less)]
    taken: list[list[bytes]] = []
    at, args, left = twins.take_plain(data, 0, taken, [], 0, bulk_max)
    rest: list[list[bytes]] = []
    assert taken == requests[: len(taken)]
    assert all(len(part) <= bulk_max for request in [*taken, args] for part in request)
    if left:
        assert args == requests[len(taken)][: len(args)]
        assert left == len(requests[len(taken)]) - len(args)
    # At this point Python finds no plain request either.
    assert take_plain(data, at, rest, args, left, bulk_max) == (at, args, left)
    assert rest == []


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"*", b"*1", b"*1\r", b"*01\r\n", b"*0\r\n", b"*-1\r\n", b"* 1\r\n", b"PING\r\n"),
        *(b"*2147483648\r\n", b"*11111111111111111111\r\n", b"*1\n\n"),
    ],
)
def test_other_heads_are_left_to_python(data: bytes) -> None:
    assert twins.take_plain(data, 0, [], [], 0, 100) == (0, [], 0)
    assert twins.take_plain(data, len(data) + 5, [], [], 0, 100) == (len(data) + 5, [], 0)
    assert twins.take_plain(data, -5, [], [], 1, 100) == (-5, [], 1)


I64 = st.integers(-(1 << 63), (1 << 63) - 1) | NUMBERS.map(lambda number: number >> 1)
ROWS = st.lists(st.tuples(IDS, FLAT), max_size=3).map(
    lambda rows: Rows([(b"p" + eid.packed, pack_any(flat)[0]) for eid, flat in rows], 1)
)
WRITTEN = ROWS.map(lambda rows: EncodedEntries(len(rows), [in_python(rows, RESP2)[4:]], []))
READ = ROWS | WRITTEN | ROWS.map(lambda rows: rows.entries())
PLAIN = st.none() | I64 | PARTS | ROWS | WRITTEN | READ.map(Entries) | st.just(OK)
PLAIN |= ROWS.filter(lambda rows: len(rows) == 1).map(StoredEntry)
PLAIN |= st.lists(st.tuples(PARTS, READ), max_size=3).map(Streams)
REPLIES = st.recursive(
    PLAIN,
    lambda parts: (
        st.lists(parts, max_size=4) | st.lists(st.tuples(parts, parts), max_size=4).map(Map)
    ),
    max_leaves=12,
)


@given(REPLIES, st.sampled_from([RESP2, RESP3]))
@example([-(1 << 63), (1 << 63) - 1, 0, -1], RESP2)
def test_both_twins_encode_short_replies_alike(reply: Any, protocol: int) -> None:
    assert twins.encode_reply(reply, protocol) == in_python(reply, protocol)


@pytest.mark.parametrize(
    "part",
    [
        *(True, 1.5, 1 << 63, -(1 << 63) - 1, "text", bytearray(b"x"), (1, 2), NULL_ARRAY),
        *(Gradual([0]), Streams(Gradual([0])), Rows([(b"p" + bytes(16), b"damage")], 1)),
        StoredEntry(Rows([(b"p" + bytes(16), b"damage")], 1)),
        *(Entries((Entry(StreamID(1, 1), {}),)), Entries([5]), Rows([(b"short", b"")], 1)),  # type: ignore[list-item]
    ],
)
def test_other_parts_of_a_reply_are_left_to_python(part: Any) -> None:
    assert twins.encode_reply(part, RESP2) is None
    assert twins.encode_reply([1, [part]], RESP2) is None
    assert twins.encode_reply(Map([(b"f", part)]), RESP3) is None


ODD = st.sampled_from([NULL_ARRAY, ErrorReply("ERR", "no"), [1, NULL_ARRAY], 1 << 63])


@given(st.lists(REPLIES | ODD, max_size=5), st.sampled_from([RESP2, RESP3]))
def test_both_twins_encode_replies_of_a_pipeline_alike(given: list[Any], protocol: int) -> None:
    expected = b"".join([in_python(reply, protocol) for reply in given])
    assert replies.encode_all(given, protocol) == expected
