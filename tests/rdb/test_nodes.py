"""Nodes: exact bytes, both twins, tombstones, negative deltas, repeated fields, and damage."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstream.errors import BadPayload
from kvstream.layout.values import encode_flat
from kvstream.rdb.nodes import (
    Element,
    Node,
    decode_in_python,
    decode_node,
    encode,
    encode_in_python,
    encode_node,
    growth_max,
)
from kvstream.types.ids import U64_MAX, StreamID
from kvstream.types.images import NodeImage
from tests.rdb.generated import entry, nodes

GOLDEN = bytes.fromhex(
    "46000000180003010001010181610200010201000100010101040102010101dfff028568656c6c6f0604010001"
    "010100010201816202f290eefe0481630283303037040801ff"
)
"""1-1 a 1, 2-0 a hello, 2-1 b -70000 c 007."""

KEY = StreamID(1, 1).packed
Decode = Callable[[bytes, bytes], Node]
BY_BOTH = pytest.mark.parametrize("decode", [decode_node, decode_in_python])


def flat(*parts: bytes) -> bytes:
    return encode_flat(list(parts))[0]


def image(node: Node, key: bytes) -> NodeImage:
    return NodeImage(key, node.names, node.ids, node.values, node.appended, 0, node.last)


@BY_BOTH
def test_a_known_node_is_read(decode: Decode) -> None:
    assert decode(KEY, GOLDEN) == Node(
        names=(b"a",),
        ids=[StreamID(*eid).packed for eid in [(1, 1), (2, 0), (2, 1)]],
        values=[flat(b"a", b"1"), flat(b"a", b"hello"), flat(b"b", b"-70000", b"c", b"007")],
        appended=3,
        last=StreamID(2, 1).packed,
        claimed=3,
    )


def test_a_known_node_is_written() -> None:
    known = image(decode_node(KEY, GOLDEN), KEY)
    assert encode_node(known) == encode_in_python(known) == GOLDEN


@given(nodes())
def test_nodes_survive_a_round_trip_with_both_twins(node: NodeImage) -> None:
    data = encode_node(node)
    assert data == encode_in_python(node)
    found = decode_node(node.first, data)
    assert found == decode_in_python(node.first, data)
    assert image(found, node.first) == node
    assert found.claimed == len(node.ids)


def test_the_compiled_twin_takes_every_plain_node_itself(twins: Any) -> None:
    assert twins.decode_node(KEY, GOLDEN, growth_max(len(GOLDEN)), 100) is not None
    known = decode_node(KEY, GOLDEN)
    assert twins.encode_node(KEY, known.names, known.ids, known.values) == GOLDEN


@given(nodes(), st.data())
def test_damage_ends_in_the_same_error_or_the_same_node(
    node: NodeImage, data: st.DataObject
) -> None:
    sound = bytearray(encode_node(node))
    for _ in range(data.draw(st.integers(1, 3))):
        sound[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    found: list[Any] = []
    for decode in (decode_node, decode_in_python):
        try:
            found.append(decode(node.first, bytes(sound)))
        except BadPayload as error:
            found.append(str(error))
    assert found[0] == found[1]


@BY_BOTH
def test_deleted_entries_are_skipped_and_counted(decode: Decode) -> None:
    """Redis leaves them in their node, with a flag."""
    data = encode(
        [1, 2, 1, b"f", 0, *entry(3, 0, 0, 1), *entry(2, 1, 0, 2), *entry(1, 2, 0, 1, b"g", 3)]
    )
    assert decode(KEY, data) == Node(
        names=(b"f",),
        ids=[StreamID(2, 1).packed],
        values=[flat(b"f", b"2")],
        appended=3,
        last=StreamID(3, 1).packed,
        claimed=1,
    )


@BY_BOTH
def test_a_node_of_deleted_entries_alone_has_none(decode: Decode) -> None:
    found = decode(KEY, encode([0, 1, 1, b"f", 0, *entry(3, 0, 0, 1)]))
    assert (found.ids, found.appended) == ([], 1)


@BY_BOTH
def test_a_wrong_count_of_live_entries_is_reported_and_corrected(decode: Decode) -> None:
    found = decode(KEY, encode([2, 0, 1, b"f", 0, *entry(2, 0, 0, 1), *entry(3, 1, 0, 1)]))
    assert (len(found.ids), found.claimed, found.appended) == (1, 2, 2)


@BY_BOTH
@pytest.mark.parametrize(
    ("flags_and_deltas", "living", "last"),
    [
        ([(2, 0), (3, 9), (2, 5)], [0, 5], 5),
        ([(2, 0), (2, 5), (3, 9)], [0, 5], 9),
        ([(2, 0), (2, 5), (3, 3)], [0, 5], 5),
        ([(3, 0), (3, 7), (2, 0)], [0], 0),
        ([(2, 0), (3, -1), (2, 1)], [0, 1], 1),
        ([(3, 4), (3, 2)], [], 2),
    ],
)
def test_deleted_entries_need_not_be_in_order(
    decode: Decode, flags_and_deltas: list[tuple[int, int]], living: list[int], last: int
) -> None:
    """XSETID of Redis 7.0 may go back below it."""
    parts = [entry(flags, delta, 0, 1) for flags, delta in flags_and_deltas]
    dead = len(parts) - len(living)
    data = encode([len(living), dead, 1, b"f", 0, *(part for each in parts for part in each)])
    found = decode(KEY, data)
    assert found.ids == [StreamID(1 + delta, 1).packed for delta in living]
    assert found.last == StreamID(1 + last, 1).packed
    assert found.appended == len(parts)


@BY_BOTH
def test_a_sequence_may_be_lower_than_that_of_the_key(decode: Decode) -> None:
    key = StreamID(1000, 5)
    data = encode([2, 0, 1, b"f", 0, *entry(2, 0, 0, 1), *entry(2, 1, -5, 2)])
    found = decode(key.packed, data)
    assert found.ids == [key.packed, StreamID(1001, 0).packed]
    assert encode_node(image(found, key.packed)) == data


@BY_BOTH
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (StreamID(0, 0), StreamID(U64_MAX, U64_MAX)),
        (StreamID(0, U64_MAX), StreamID(1, 0)),
        (StreamID(1, 0), StreamID(1 << 63, 1 << 63)),
    ],
)
def test_deltas_wrap_at_64_bits(decode: Decode, first: StreamID, second: StreamID) -> None:
    node = NodeImage(
        first.packed, (b"f",), [first.packed, second.packed], [flat(b"f", b"1")] * 2, 2, 0
    )
    data = encode_node(node)
    assert data == encode_in_python(node)
    assert decode(first.packed, data).ids == node.ids


@BY_BOTH
def test_repeated_fields_are_kept_in_order(decode: Decode) -> None:
    repeated = flat(b"f", b"1", b"f", b"2", b"g", b"3")
    other = flat(b"5", b"1", b"5", b"2")
    node = NodeImage(
        KEY,
        (b"f", b"f", b"g"),
        [KEY, StreamID(1, 2).packed],
        [repeated, other],
        2,
        0,
    )
    data = encode_node(node)
    assert data == encode_in_python(node)
    assert decode(KEY, data).values == [repeated, other]


@BY_BOTH
def test_a_number_in_another_encoding_is_still_the_same_name(decode: Decode) -> None:
    """No writer makes such listpacks, but readers take them: 5 as text beside 5 as integer."""
    odd = b"\x81\x35\x02"
    body = encode([1, 0, 0, 0, *entry(0, 0, 0, 2, b"#", 1, 5, 2)])
    data = body.replace(b"\x81#\x02", odd)
    assert data != body
    assert decode(KEY, data).values == [flat(b"5", b"1", b"5", b"2")]


@BY_BOTH
def test_entries_of_many_fields_survive_a_round_trip(decode: Decode) -> None:
    many = [part for n in range(300) for part in (b"field %d" % n, b"%d" % n)]
    twice = [*many, b"field 7", b"again"]
    node = NodeImage(
        KEY,
        tuple(many[::2]),
        [KEY, StreamID(2, 0).packed, StreamID(2, 1).packed],
        [flat(*many), flat(*twice), flat(*many[2:])],
        3,
        0,
    )
    data = encode_node(node)
    assert data == encode_in_python(node)
    assert decode(KEY, data).values == node.values


ONE = entry(2, 0, 0, 1)
DAMAGED: list[tuple[str, list[Element], str]] = [
    ("nothing", [], "ends too early"),
    ("a text for a count", [b"x", 0, 1, b"f", 0, *ONE], "string in place of an integer"),
    ("fewer than none", [-1, 2, 1, b"f", 0, *ONE], "negative count"),
    ("no count of fields", [1, 0, -1, 0, *ONE], "negative count"),
    ("no end of the master entry", [1, 0, 1, b"f", 1, *ONE], "master entry"),
    ("an entry too few", [2, 0, 1, b"f", 0, *ONE], "ends too early"),
    ("an entry too many", [1, 0, 1, b"f", 0, *ONE, *ONE], "has bytes behind"),
    ("the same ID twice", [2, 0, 1, b"f", 0, *ONE, *ONE], "out of order"),
    ("an ID below the key", [1, 0, 1, b"f", 0, *entry(2, 0, -1, 1)], "out of order"),
    ("unknown flags", [1, 0, 1, b"f", 0, *entry(6, 0, 0, 1)], "flags 6"),
    ("a wrong end", [1, 0, 1, b"f", 0, 2, 0, 0, 1, 5], "the element count of an entry is wrong"),
    ("no fields", [1, 0, 0, 0, 2, 0, 0, 3], "has no fields"),
    ("no fields of its own", [1, 0, 1, b"f", 0, 0, 0, 0, 0, 4], "has no fields"),
    ("more fields than there are", [1, 0, 1, b"f", 0, 0, 0, 0, 1 << 60, 4], "ends too early"),
    ("more entries than there are", [1 << 62, 1 << 62, 1, b"f", 0, *ONE], "ends too early"),
    ("more names than there are", [1, 0, 1 << 40, b"f", 0, *ONE], "ends too early"),
]


@BY_BOTH
@pytest.mark.parametrize(
    ("elements", "reason"), [case[1:] for case in DAMAGED], ids=[case[0] for case in DAMAGED]
)
def test_a_malformed_node_is_refused(decode: Decode, elements: list[Element], reason: str) -> None:
    with pytest.raises(BadPayload, match=reason):
        decode(KEY, encode(elements))


@BY_BOTH
def test_a_node_key_that_is_no_id_is_refused(decode: Decode) -> None:
    with pytest.raises(BadPayload, match="the key of a node has 3 bytes"):
        decode(b"abc", GOLDEN)


@BY_BOTH
def test_a_small_node_cannot_blow_up_by_repeating_a_long_name(decode: Decode) -> None:
    """A listpack has a name once, but every stored value has it."""
    entries = [part for seq in range(3000) for part in entry(2, 0, seq, 1)]
    data = encode([3000, 0, 1, b"n" * 100_000, 0, *entries])
    with pytest.raises(BadPayload, match="too large"):
        decode(KEY, data)


@BY_BOTH
def test_long_names_in_a_large_node_are_accepted(decode: Decode) -> None:
    entries = [part for seq in range(100) for part in entry(2, 0, seq, 1)]
    data = encode([100, 0, 1, b"n" * 100_000, 0, *entries])
    assert len(decode(KEY, data).ids) == 100


@pytest.mark.parametrize(
    ("ids", "key"),
    [([], KEY), ([KEY, KEY], KEY), ([StreamID(1, 0).packed], KEY)],
)
def test_malformed_images_are_not_written(ids: list[bytes], key: bytes) -> None:
    with pytest.raises(ValueError, match="node"):
        encode_node(NodeImage(key, (b"f",), ids, [flat(b"f", b"1")] * len(ids), len(ids), 0))


@BY_BOTH
def test_an_entry_above_the_limit_of_all_entries_is_refused(
    decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("kvstream.rdb.nodes", "kvstream.layout.values"):
        monkeypatch.setattr(f"{module}.ENTRY_BYTES_MAX", 1000)
    fitting, larger = (encode([1, 0, 1, b"f", 0, *entry(2, 0, 0, b"v" * n)]) for n in (990, 1001))
    assert len(decode(KEY, fitting).ids) == 1
    with pytest.raises(BadPayload, match="entry 1-1: Elements are too large to be stored"):
        decode(KEY, larger)


@example(b"\x01\x81\xa1a\xa1")
@example(b"\x01\x81\xa1a")
@given(st.binary(max_size=12))
def test_damaged_values_are_not_written(value: bytes) -> None:
    node = NodeImage(KEY, (b"f",), [KEY], [value], 1, 0)
    made: list[Any] = []
    for write in (encode_node, encode_in_python):
        try:
            made.append(write(node))
        except Exception as error:
            made.append(type(error).__name__)
    assert made[0] == made[1]
    assert made[0] == "Corruption" or isinstance(made[0], bytes)
