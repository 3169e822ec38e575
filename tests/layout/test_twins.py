"""The compiled twins do the same as the Python functions, or leave the work to them."""

import gc
import os
import re
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstream.errors import Corruption
from kvstream.layout import rows, twins, values
from kvstream.meta.filling import fill_in_python
from kvstream.meta.nodes import data_size, size_in_python
from kvstream.types.ids import U64_MAX, StreamID
from kvstream.types.records import Entry, Outcome

if twins is None and os.environ.get("KVSTREAM_PURE") != "1":
    REASON = "the compiled twins are not installed: they need a C compiler and Python's headers"
    if os.environ.get("KVSTREAM_REQUIRE_ALL"):
        pytest.fail(REASON, pytrace=False)
    pytest.skip(REASON, allow_module_level=True)
elif twins is None:
    pytest.skip("KVSTREAM_PURE is set", allow_module_level=True)

LIMIT = 1 << 20
NUMBERS = st.integers(-(1 << 65), 1 << 65) | st.sampled_from(
    [10**n + d for n in range(20) for d in (-1, 0, 1)]
    + [2**n + d for n in range(65) for d in (-1, 0)]
)
PARTS = (
    st.binary(max_size=80)
    | NUMBERS.map(lambda n: b"%d" % n)
    | NUMBERS.map(lambda n: b"-%d" % n)
    | st.sampled_from([b"", b"-", b"-0", b"00", b"01", b"1 ", b"+1", b"x" * 63, b"x" * 64])
    | st.integers(0, 20_000).map(lambda n: b"v" * n)
)
FLAT = st.lists(PARTS, min_size=2, max_size=40).map(lambda parts: parts[: len(parts) // 2 * 2])
TEXT = st.dictionaries(st.text(max_size=40), st.text(max_size=300), max_size=20)
IDS = st.tuples(st.integers(0, U64_MAX), st.integers(0, U64_MAX))


@given(TEXT)
@example({"n": "x" * 31, "m": "x" * 32, "o": "y" * 65535, "p": "z" * 65536})
@example({f"field {n}": "v" for n in range(64)})
@example({f"f\xe4lt {n}": f"{n}" for n in range(65)})
@example({f"field {n}": "v" for n in range(70_000)})
@example({"surrogate": "\ud800"})
def test_both_twins_pack_text_alike(fields: dict[str, str]) -> None:
    packed = twins.pack_fields(fields, LIMIT)
    if packed is not None:
        assert packed == values.pack_text(fields, LIMIT)
    elif len(fields) < 16:
        assert values.pack_text(fields, LIMIT) is None
    assert twins.pack_many([fields, 1], LIMIT) == [packed, None]


@given(FLAT)
@example([b"f%d" % n for n in range(2 * 40)])
@example([b"same", b"1", b"same", b"2"])
def test_both_twins_pack_bytes_alike(flat: list[bytes]) -> None:
    packed = twins.pack_flat(flat, LIMIT)
    if packed is not None:
        assert packed == values.pack_any(flat)
    unique = dict(zip(flat[::2], flat[1::2], strict=True))
    if len(unique) == len(flat) // 2:
        assert twins.pack_fields(unique, LIMIT) == values.pack_any(flat)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.text(), min_size=1, max_size=4))
@example([number for n in range(64) for number in (-(2**n), 2**n - 1)])
@example([0, -1, 9, 10, -(1 << 63), (1 << 63) - 1])
def test_integers_are_packed_as_their_digits(parts: list[int | str]) -> None:
    fields = {f"f{at}": part for at, part in enumerate(parts)}
    texts = {name: str(part) for name, part in fields.items()}
    assert twins.pack_fields(fields, LIMIT) == twins.pack_fields(texts, LIMIT)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"f": 1.5},
        {"f": 1 << 63},
        {"f": Outcome.DELETED},
        {"f": None},
        {1: "v"},
        {"f": "v", b"f": "w"},
        {"f": bytearray(b"v")},
        {"f": True},
    ],
)
def test_other_types_are_left_to_python(fields: dict[Any, Any]) -> None:
    assert twins.pack_fields(fields, LIMIT) is None


@pytest.mark.parametrize("count", [33, 65_535, 65_536, 70_000])
def test_both_twins_pack_very_many_fields_alike(count: int) -> None:
    flat = [part for number in range(count) for part in (b"n%d" % number, b"v")]
    value, names = values.pack_any(flat)[0], tuple(flat[::2])
    assert twins.pack_flat(flat, LIMIT) == (value, names)
    assert twins.decode_page([value]) == values.unpack_page([value])
    assert twins.data_size(value) == sum(map(len, flat))
    rows = [(StreamID(1, 1).packed, value)]
    assert twins.entries_size(rows, names, 1, 1) == size_in_python(rows, names, StreamID(1, 1))
    twice, _ = values.pack_any([*flat, *flat[:2]])
    assert twins.pack_flat([*flat, *flat[:2]], LIMIT) is None
    assert twins.data_size(twice) == sum(map(len, [*flat, *flat[:2]]))


def test_more_fields_than_there_are_bytes_for_are_left_to_python() -> None:
    for value in (b"\x01\xdf\xff\xff\xff\xff\xa1a\xa1b", b"\x02\xdd\xff\xff\xff\xfe\xa1a"):
        assert twins.data_size(value) is None
        assert twins.decode_page([value]) is None
        with pytest.raises(Corruption):
            values.decode_page([value])


def test_a_row_above_the_limit_is_left_to_python() -> None:
    assert twins.pack_fields({"f": "v" * 100}, 103) is None
    assert twins.pack_fields({"f": "v" * 100}, 107) is not None
    assert twins.pack_flat([b"f", b"v" * 100], 103) is None
    assert twins.pack_flat([b"f", b"v" * 100], 107) is not None


@given(st.lists(FLAT, max_size=6))
def test_both_twins_decode_a_page_alike(flats: list[list[bytes]]) -> None:
    page = [values.pack_any(flat)[0] for flat in flats]
    found = twins.decode_page(page)
    if found is not None:
        assert [list(each.items()) for each in found] == [
            list(each.items()) for each in values.unpack_page(page)
        ]
    else:
        assert any(value[:1] == values.REPEATED for value in page)


@given(st.lists(st.tuples(IDS, FLAT), max_size=5), st.binary(max_size=30))
def test_rows_become_the_same_entries(
    rows: list[tuple[tuple[int, int], Any]], prefix: bytes
) -> None:
    unique = [(eid, flat) for eid, flat in rows if len(set(flat[::2])) == len(flat) // 2]
    page = [(prefix + struct.pack(">QQ", *eid), values.pack_any(flat)[0]) for eid, flat in unique]
    found = twins.decode_rows(page, len(prefix), Entry, StreamID)
    fields = values.unpack_page([value for _, value in page])
    assert found == [Entry(StreamID(*eid), f) for (eid, _), f in zip(unique, fields, strict=True)]
    assert all(type(entry) is Entry and type(entry.id) is StreamID for entry in found)


def _page(count: int) -> list[tuple[bytes, bytes]]:
    return [
        (
            struct.pack(">QQ", 1700000000000 + at // 10, at % 10),
            values.pack_any([b"f", b"%d" % at])[0],
        )
        for at in range(count)
    ]


def _names_of(packed: Any) -> list[Any]:
    return [names for _, names in packed]


PAGES: dict[str, Callable[[], object]] = {
    "reading": lambda: twins.decode_rows(_page(5000), 0, Entry, StreamID),
    "damage": lambda: twins.decode_rows([(b"short", b"")], 0, Entry, StreamID),
    "packing": lambda: twins.pack_many([{"f": f"{at}"} for at in range(5000)], LIMIT),
    "numbers": lambda: twins.ids_from(StreamID, 5, 0, 5000),
}


@pytest.mark.parametrize("work", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("on", [True, False])
def test_the_state_of_the_collector_is_restored(work: Callable[[], object], on: bool) -> None:
    was = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        work()
        assert gc.isenabled() == on
    finally:
        (gc.enable if was else gc.disable)()


def test_a_page_is_made_without_a_collection_in_between() -> None:
    page = _page(5000)
    fields: list[Any] = [{"f": f"{at}"} for at in range(5000)]
    was, (threshold, *others) = gc.isenabled(), gc.get_threshold()
    begun: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        begun.append(threading.get_ident())

    gc.callbacks.append(note)
    gc.enable()
    gc.set_threshold(10, *others)
    try:
        made: Any = twins.decode_rows(page, 0, Entry, StreamID), twins.pack_many(fields, LIMIT)
        # Objects created and freed between the counts count twice, and one may exist before.
        assert begun.count(threading.get_ident()) <= 6
    finally:
        gc.set_threshold(threshold, *others)
        (gc.enable if was else gc.disable)()
        gc.callbacks.remove(note)
    assert len(made[0]) == len(made[1]) == 5000


def test_ids_of_a_page_have_the_hash_of_equal_ids() -> None:
    """From Python 3.14 on a tuple caches its hash, which new memory does not contain."""
    decoded: Any = twins.decode_rows(_page(3), 0, Entry, StreamID)
    assert {entry.id for entry in decoded} == {
        StreamID(entry.id.ms, entry.id.seq) for entry in decoded
    }
    assert [hash(entry.id) for entry in decoded] == [hash(tuple(entry.id)) for entry in decoded]


def test_entries_of_a_page_are_collected_if_they_form_a_cycle() -> None:
    decoded: Any = twins.decode_rows(_page(1), 0, Entry, StreamID)
    (entry,) = decoded
    assert gc.is_tracked(entry)
    assert not gc.is_tracked(entry.id)  # two numbers: it cannot be part of a cycle
    # Python 3.14 tracks every dict from its creation; older ones track none of plain bytes.
    assert gc.is_tracked(entry.fields) is (sys.version_info >= (3, 14))
    entry.fields[b"itself"] = entry
    assert gc.is_tracked(entry.fields)


def test_entries_of_the_same_names_share_them() -> None:
    name = "".join(["f", "ield"])
    several: list[Any] = [{name: "a"}, {name: "b"}, {"g": "b", name: "c"}, {b"g": "b"}]
    one, other, *rest = _names_of(twins.pack_many(several, LIMIT))
    assert one is other
    assert rest == [("g", name), (b"g",)]


@given(st.lists(st.tuples(IDS, FLAT), min_size=1, max_size=6), st.booleans())
@example([((5, 5), [b"f", b"1"]), ((5, 6), [b"f", b"2"])], True)
def test_listpack_sizes_are_the_same(rows: list[tuple[Any, Any]], own: bool) -> None:
    first = StreamID(*min(eid for eid, _ in rows))
    names = tuple(rows[0][1][::2]) if own else (b"f",)
    entries = [(b"k" + StreamID(*eid).packed, values.pack_any(flat)[0]) for eid, flat in rows]
    assert twins.entries_size(entries, names, *first) == size_in_python(entries, names, first)
    for (_, flat), (_, value) in zip(rows, entries, strict=True):
        if len(set(flat[::2])) == len(flat) // 2:
            assert twins.data_size(value) == sum(map(len, flat)) == data_size(value)


NEAR_IDS = st.tuples(st.integers(100, 6000), st.integers(0, 6000))
ROWS = st.lists(
    st.tuples(
        NEAR_IDS, st.sampled_from([b"v" * n for n in range(0, 300, 20)]), st.sampled_from("ab")
    ),
    max_size=30,
)


@given(
    ROWS, st.integers(0, 3), st.tuples(st.integers(0, 300), st.integers(0, 20), st.integers(0, 900))
)
def test_both_twins_fill_a_node_alike(
    rows: list[Any], start: int, bounds: tuple[int, int, int]
) -> None:
    ids = [StreamID(*eid) for eid, _, _ in rows]
    entries = [(value, (name,)) for _, value, name in rows]
    where = (ids, entries, start, max(start, len(ids) - 1), ("a",), StreamID(100, 50))
    near, width, slack = bounds
    results = []
    for fill in (twins.fill, fill_in_python):
        noted: list[Any] = []
        puts: dict[bytes, bytes | None] = {}
        if start <= len(ids):
            stopped = fill(*where, (near, width, slack, 2000, 4096), b"prefix", noted, puts)
            results.append((stopped, noted, puts))
    assert results[:1] == results[1:]


@given(st.lists(st.binary(max_size=20), max_size=3), st.data())
def test_damage_is_left_to_python(parts: list[bytes], data: st.DataObject) -> None:
    sound = values.pack_any([b"name", b"value", b"other", b"x" * 40, *parts, *parts])[0]
    at = data.draw(st.integers(0, len(sound) - 1))
    mutated = bytearray(sound)
    mutated[at] = data.draw(st.integers(0, 255))
    for value in (bytes(mutated), sound[:at], sound + b"\xa1x", sound + sound[1:]):
        found = twins.decode_page([value])
        if found is not None:
            assert found == values.unpack_page([value])
        assert (twins.data_size(value) or 0) <= len(value)
        twins.entries_size([(StreamID(1, 1).packed, value)], (b"name",), 1, 1)


@pytest.mark.parametrize("content", [{b"f": 1}, {b"f": None}, {b"f": b"v"}, [b"a"], 5, {}, []])
@pytest.mark.parametrize("mark", [b"\x00", b"\x01", b"\x02", b"\x03", b""])
def test_only_complete_entries_of_strings_are_accepted(content: object, mark: bytes) -> None:
    value = mark + msgpack.packb(content, use_bin_type=False)
    taken = mark == values.UNIQUE and content == {b"f": b"v"}
    assert (twins.decode_page([value]) is not None) is taken
    assert (twins.data_size(value) is not None) is taken
    assert twins.decode_page([5]) is None
    assert twins.decode_rows([(b"k" * 15, value)], 0, Entry, StreamID) is None
    assert twins.decode_rows([5], 0, Entry, StreamID) is None  # type: ignore[list-item]


WORDS = (
    st.builds(lambda ms, seq: b"%d-%d" % (ms, seq), st.integers(0, U64_MAX), st.integers(0, 99))
    | st.integers(0, U64_MAX).map(lambda ms: b"%d" % ms)
    | st.sampled_from([b"", b"-", b"1-", b"-1", b"1-2-3", b" 1", b"1 ", b"+1", b"007-01", b"x"])
    | st.text("0123456789-", max_size=24).map(str.encode)
)


@given(st.lists(WORDS, max_size=5))
@example([b"9" * 19, b"0-" + b"9" * 19])
@example([b"9" * 20])
def test_both_twins_parse_ids_alike(words: list[bytes]) -> None:
    ids = twins.parse_ids(words, StreamID)
    assert twins.pack_ids(words) == (None if ids is None else [eid.packed for eid in ids])
    if ids is not None:
        assert ids == [StreamID.parse(word) for word in words]
        assert all(type(eid) is StreamID for eid in ids)
    elif all(re.fullmatch(rb"[0-9]{1,19}(-[0-9]{1,19})?", word) for word in words):
        pytest.fail(f"{words} are plain")


@given(st.integers(0, U64_MAX), st.integers(0, U64_MAX - 9), st.integers(0, 9))
def test_both_twins_make_consecutive_ids_alike(ms: int, seq: int, count: int) -> None:
    made = rows.ids_from(StreamID(ms, seq), count)
    assert made == rows.ids_in_python(StreamID(ms, seq), count)
    assert all(type(eid) is StreamID for eid in made)


@given(st.lists(st.tuples(st.builds(StreamID, st.integers(0, 9), st.integers(0, 9)), FLAT)))
def test_ids_of_rows_are_those_of_the_entries(found: list[tuple[StreamID, list[bytes]]]) -> None:
    page = [(b"prefix" + eid.packed, values.encode_flat(flat)[0]) for eid, flat in found]
    assert twins.packed_ids(page, 6) == [eid.packed for eid, _ in found]
    assert rows.Rows(page, 6).packed_ids() == [eid.packed for eid, _ in found]


@pytest.mark.parametrize(
    "value", [b"", b"\x01", b"\x01\x81\xa1a", b"\x01\x81\xa1a\xa1b\xa1", b"\x07"]
)
def test_damaged_rows_have_no_ids(value: bytes) -> None:
    sound = values.encode_flat([b"f", b"v"])[0]
    page = [(bytes(16), sound), (bytes(16), value)]
    assert twins.packed_ids(page, 0) is None
    with pytest.raises(Corruption):
        rows.Rows(page, 0).packed_ids()
