"""Complete streams of every type: round trips, and streams that loaders refuse."""

import io
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream.errors import BadPayload
from kvstream.layout.values import encode_flat
from kvstream.rdb import streams
from kvstream.rdb.nodes import encode
from kvstream.rdb.primitives import (
    FIXED_LENGTH_BYTES,
    Reader,
    encode_fixed_length,
    encode_id,
    encode_length,
    encode_string,
    encode_time,
)
from kvstream.rdb.streams import StreamReading, encode_stream
from kvstream.rdb.versions import Kind
from kvstream.types.ids import StreamID
from kvstream.types.images import (
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    NodeImage,
    ProducerImage,
    StreamState,
)
from tests.rdb import generated
from tests.rdb.generated import Image, entry

KINDS = pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
LAST = StreamID(9, 0)
ONE, TWO, SIX = (StreamID(n, 0).packed for n in (1, 2, 6))


def written(kind: Kind, image: Image, *, compress: bool = False) -> bytes:
    return b"".join(encode_stream(kind, *image, len(image.nodes), compress=compress))


def read(kind: Kind, data: bytes) -> Image:
    """Read a stream, and compare it with the result of skipping it."""
    reading = StreamReading(Reader(data), kind, alone=True)
    image = Image([node._replace(size=0) for node in reading.nodes()], reading.state())
    StreamReading(Reader(data), kind, alone=True).skip()
    return image


@KINDS
@settings(max_examples=30)
@given(data=st.data(), compress=st.booleans())
def test_streams_of_every_type_survive_a_round_trip(
    kind: Kind, data: st.DataObject, compress: bool
) -> None:
    """No real payload of type 27 was available: the test follows its description."""
    image = data.draw(generated.streams(kind))
    made = written(kind, image, compress=compress)
    found = read(kind, made)
    assert found == image
    assert written(kind, found, compress=compress) == made


@KINDS
@settings(max_examples=20)
@given(data=st.data())
def test_a_stream_is_the_same_in_pieces_of_a_file(kind: Kind, data: st.DataObject) -> None:
    image = data.draw(generated.streams(kind))
    made = written(kind, image)
    for size in (1, 7):
        file = io.BytesIO(made + b"next")
        reader = Reader(lambda _, file=file, size=size: file.read(size))  # type: ignore[misc]
        reading = StreamReading(reader, kind)
        assert [node._replace(size=0) for node in reading.nodes()] == image.nodes
        assert reading.state() == image.state
        assert reader.offset == len(made)


def test_the_number_of_nodes_can_be_written_afterwards() -> None:
    image = two_nodes()
    first, *rest = encode_stream(Kind.COUNTERS, *image)
    assert len(first) == FIXED_LENGTH_BYTES
    assert read(Kind.COUNTERS, encode_fixed_length(2) + b"".join(rest)) == image


def node(*ids: bytes) -> NodeImage:
    value = encode_flat([b"f", b"v"])[0]
    return NodeImage(ids[0], (b"f",), list(ids), [value] * len(ids), len(ids), 0, ids[-1])


def two_nodes() -> Image:
    state = StreamState(2, StreamID(2, 0), StreamID(1, 0), StreamID(0, 0), 2)
    return Image([node(ONE), node(TWO)], state)


# --- by hand: what no writer of ours would write --------------------------------------------------


def raw(
    nodes: list[tuple[bytes, bytes]],
    length: int,
    counters: tuple[StreamID, StreamID, int] | None = None,
    rest: bytes = b"\x00",
) -> bytes:
    """A stream; ``rest`` is its groups and the parts after them."""
    parts = [encode_length(len(nodes))]
    parts += [encode_string(key) + encode_string(data) for key, data in nodes]
    parts += [encode_length(length), encode_id(LAST)]
    if counters is not None:
        parts += [encode_id(counters[0]), encode_id(counters[1]), encode_length(counters[2])]
    return b"".join([*parts, rest])


def listpack(*seqs: int, flags: int = 2, living: int | None = None) -> bytes:
    """A node of entries with one field, whose IDs exceed the node's key by these numbers."""
    entries = [part for seq in seqs for part in entry(flags, 0, seq, 5)]
    count = len(seqs) if living is None else living
    return encode([count, len(seqs) - count, 1, b"f", 0, *entries])


def refused(kind: Kind, data: bytes) -> str:
    with pytest.raises(BadPayload) as caught:
        read(kind, data)
    assert caught.value.offset is not None
    return caught.value.reason


def test_a_wrong_length_is_reported_and_the_entries_are_counted() -> None:
    """Redis accepts such payloads; a real file of Redis 5 has 120 for 118."""
    reading = StreamReading(Reader(raw([(ONE, listpack(0, 1))], 77)), Kind.LISTPACKS)
    assert (reading.state().length, reading.entries, reading.corrections) == (77, 2, [])


def test_a_wrong_count_of_a_node_is_reported() -> None:
    reading = StreamReading(Reader(raw([(ONE, listpack(0, 1, living=1))], 2)), Kind.LISTPACKS)
    reading.state()
    assert reading.entries == 2
    assert reading.corrections == ["node 1-0 claims 1 entries and has 2"]


def test_a_node_without_live_entries_is_skipped_and_reported() -> None:
    data = raw([(ONE, listpack(0, flags=3, living=0)), (TWO, listpack(0))], 1)
    reading = StreamReading(Reader(data), Kind.LISTPACKS)
    assert [found.first for found in reading.nodes()] == [TWO]
    assert reading.state().length == 1
    assert reading.corrections == ["node 1-0 claims 0 entries and has 0"]


def test_an_empty_stream_with_a_group_is_a_stream() -> None:
    image = Image([], StreamState(0, StreamID(5, 0), StreamID(0, 0), StreamID(4, 0), 7))
    image.state.groups = [GroupImage(b"g", StreamID(5, 0), 7)]
    assert read(Kind.COUNTERS, written(Kind.COUNTERS, image)) == image


@pytest.mark.parametrize(
    ("nodes", "length", "reason"),
    [
        ([(b"abc", listpack(0))], 1, "the key of a node has 3 bytes"),
        ([(bytes(17), listpack(0))], 1, "a string of 17 bytes is above 16"),
        ([(ONE, listpack(0)), (ONE, listpack(0))], 2, "node 1-0 is out of order"),
        ([(TWO, listpack(0)), (ONE, listpack(0))], 2, "node 1-0 is out of order"),
        ([(ONE, listpack(0, 5)), (StreamID(1, 3).packed, listpack(0))], 3, "out of order"),
        ([(ONE, encode([]))], 0, "a node ends too early, at byte|a node ends too early"),
        ([(ONE, b"")], 0, "claims another size"),
        ([(ONE, listpack(0)[:-1] + b"\xfe")], 1, "terminator, at byte 31 of the node|terminator"),
        ([], 1, "a stream of 1 entries has no nodes"),
    ],
)
def test_nodes_that_loaders_refuse_are_refused(
    nodes: list[tuple[bytes, bytes]], length: int, reason: str
) -> None:
    assert any(part in refused(Kind.LISTPACKS, raw(nodes, length)) for part in reason.split("|"))


def group(
    pel: list[bytes], owned: dict[bytes, list[bytes]], nacked: list[bytes] | None = None
) -> bytes:
    """One group ``g`` of type 15, or of 27 where ``nacked`` is given."""
    modern = nacked is not None
    parts = [encode_string(b"g"), encode_id(StreamID(0, 0))]
    parts += [encode_length(-1)] if modern else []
    parts.append(encode_length(len(pel)))
    parts += [eid + encode_time(5) + encode_length(1) for eid in pel]
    parts.append(encode_length(len(owned)))
    for name, ids in owned.items():
        parts += [encode_string(name.rstrip(b"'")), encode_time(5)]
        parts += [encode_time(5)] if modern else []
        parts += [encode_length(len(ids)), *ids]
    if nacked is not None:
        parts += [encode_length(len(nacked)), *nacked]
    return b"".join(parts)


@pytest.mark.parametrize(
    ("pel", "owned", "reason"),
    [
        ([ONE, ONE], {b"c": [ONE]}, "out of order"),
        ([TWO, ONE], {b"c": [ONE, TWO]}, "out of order"),
        ([ONE], {b"c": [TWO]}, "has an entry that is not pending in its group"),
        ([ONE, TWO], {b"c": [TWO, ONE]}, "has an entry that is not pending in its group"),
        ([ONE, TWO], {b"c": [ONE, ONE]}, "has an entry that is not pending in its group"),
        ([ONE], {b"c": [ONE, ONE]}, "a length of 2 is above 1"),
        ([ONE], {b"c": [ONE], b"d": [ONE]}, "has an entry of another consumer"),
        ([ONE], {b"c": [ONE], b"c'": []}, "comes twice"),
        ([ONE, TWO], {b"c": [ONE]}, "entry 2-0 has no owner and was not released"),
        ([ONE], {}, "entry 1-0 has no owner and was not released"),
    ],
)
def test_pending_lists_that_loaders_refuse_are_refused(
    pel: list[bytes], owned: dict[bytes, list[bytes]], reason: str
) -> None:
    assert reason in refused(Kind.LISTPACKS, raw([], 0, rest=b"\x01" + group(pel, owned)))


@pytest.mark.parametrize(
    ("nacked", "reason"),
    [
        ([], "entry 2-0 has no owner and was not released"),
        ([ONE], "entry 1-0 has no owner and was not released by XNACK"),
        ([TWO, TWO], "entry 2-0 has no owner and was not released by XNACK"),
        ([SIX], "entry 2-0 has no owner and was not released"),
        ([ONE, TWO, SIX], "a length of 3 is above 2"),
    ],
)
def test_entries_given_back_must_be_pending_and_without_an_owner(
    nacked: list[bytes], reason: str
) -> None:
    rest = b"\x01" + group([ONE, TWO], {b"c": [ONE]}, nacked)
    zero = StreamID(0, 0)
    data = raw([], 0, counters=(zero, zero, 0), rest=rest + bytes.fromhex("3232000000"))
    assert reason in refused(Kind.NACKED, data)


def test_a_repeated_group_is_refused() -> None:
    data = raw([], 0, rest=b"\x02" + 2 * group([], {}))
    assert refused(Kind.LISTPACKS, data) == "group b'g' comes twice"


@pytest.mark.parametrize(
    ("producers", "reason"),
    [
        ("02 0170 00 0170 00", "producer b'p' comes twice"),
        ("01 0170 02 0169 0000 0169 0000", "has an idempotent ID twice"),
    ],
)
def test_repeated_producers_are_refused(producers: str, reason: str) -> None:
    zero = StreamID(0, 0)
    rest = bytes.fromhex(f"00 3232 {producers} 00 00")
    assert reason in refused(Kind.IDEMPOTENCY, raw([], 0, counters=(zero, zero, 0), rest=rest))


@pytest.mark.parametrize(
    "data",
    [
        "81ffffffffffffffff",  # so many nodes
        "01 10 00000000000000010000000000000000 81ffffffffffffffff",  # a listpack of so many bytes
        "01 10 00000000000000010000000000000000 c3 05 803fffffff 0000000000",  # decompressed
        "00 00 0000 81ffffffffffffffff",  # groups
        "00 00 0000 01 0167 0000 81ffffffffffffffff",  # pending entries
        "00 00 0000 01 0167 0000 00 81ffffffffffffffff",  # consumers
        "00 00 0000 01 0167 0000 00 01 0163 0000000000000000 81ffffffffffffffff",  # what they have
    ],
)
def test_impossible_counts_allocate_nothing(data: str) -> None:
    for reading in (StreamReading.state, StreamReading.skip):
        with pytest.raises(BadPayload):
            reading(StreamReading(Reader(bytes.fromhex(data)), Kind.LISTPACKS))


def test_the_number_of_groups_is_limited() -> None:
    assert "above" in refused(
        Kind.LISTPACKS, raw([], 0, rest=encode_length(streams.GROUPS_MAX + 1))
    )


def test_the_type_of_another_value_is_refused() -> None:
    with pytest.raises(BadPayload, match="type 18 is not a known type of stream"):
        StreamReading(Reader(b""), 18)


# --- writing --------------------------------------------------------------------------------------


def test_counters_are_written_as_counted() -> None:
    """Counters that loaders compare agree, even if the source's do not."""
    state = StreamState(77, StreamID(1, 0), StreamID(1, 1), StreamID(5, 0), 1)
    found = read(Kind.COUNTERS, written(Kind.COUNTERS, two_nodes()._replace(state=state)))
    counted = StreamState(2, StreamID(5, 0), StreamID(1, 0), StreamID(5, 0), 2)
    assert found.state == counted


def test_values_missing_from_the_image_are_written_as_unknown() -> None:
    image = Image([node(ONE)], StreamState(1, StreamID(1, 0)))
    image.state.groups = [GroupImage(b"g", StreamID(1, 0), None)]
    state = read(Kind.NACKED, written(Kind.NACKED, image)).state
    assert (state.first, state.max_deleted, state.entries_added) == ((1, 0), (0, 0), 1)
    assert state.groups[0].entries_read is None
    assert state.idempotency == IdempotencyImage(100, 100)


def test_groups_consumers_and_producers_are_written_in_their_order() -> None:
    image = two_nodes()
    image.state.groups = [GroupImage(name, StreamID(0, 0), None) for name in (b"b", b"a")]
    image.state.groups[0].consumers = [ConsumerImage(name, 1, 1) for name in (b"z", b"10", b"9")]
    image.state.idempotency = IdempotencyImage(
        1, 1, [ProducerImage(b"q", []), ProducerImage(b"p", [])]
    )
    state = read(Kind.NACKED, written(Kind.NACKED, image)).state
    assert [each.name for each in state.groups] == [b"a", b"b"]
    assert [each.name for each in state.groups[1].consumers] == [b"10", b"9", b"z"]
    assert state.idempotency is not None
    assert [each.pid for each in state.idempotency.producers] == [b"p", b"q"]


def owned_by_nobody() -> GroupImage:
    found = GroupImage(b"g", StreamID(0, 0), None)
    found.pending.add(ONE, None, 0, 1)
    found.nacked = [ONE]
    return found


def owned_by_a_stranger() -> GroupImage:
    found = GroupImage(b"g", StreamID(0, 0), None)
    found.pending.add(ONE, b"c", 0, 1)
    return found


def without_an_order() -> GroupImage:
    found = owned_by_nobody()
    found.nacked = []
    return found


@pytest.mark.parametrize(
    ("kind", "found", "reason"),
    [
        (Kind.IDEMPOTENCY, owned_by_nobody(), "has no pending entries without an owner"),
        (Kind.COUNTERS, owned_by_a_stranger(), "entries of b'c', not a consumer"),
        (Kind.NACKED, without_an_order(), "nacked does not list the ownerless entries"),
    ],
)
def test_groups_that_would_be_refused_are_not_written(
    kind: Kind, found: GroupImage, reason: str
) -> None:
    image = two_nodes()
    image.state.groups = [found]
    with pytest.raises(ValueError, match=reason):
        written(kind, image)


def test_producers_that_a_type_cannot_hold_are_refused() -> None:
    image = two_nodes()
    image.state.idempotency = IdempotencyImage(100, 100)
    with pytest.raises(ValueError, match="no idempotent producers"):
        written(Kind.ACTIVE_TIMES, image)


@pytest.mark.parametrize(
    ("nodes", "count", "reason"),
    [
        ([node(TWO), node(ONE)], 2, "node 1-0 is out of order"),
        ([node(ONE), node(ONE)], 2, "node 1-0 is out of order"),
        ([node(ONE)], 2, "the stream has 1 nodes, not 2"),
        ([node(ONE), node(TWO)], 1, "the stream has 2 nodes, not 1"),
    ],
)
def test_nodes_out_of_order_or_number_are_not_written(
    nodes: list[NodeImage], count: int, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        list(encode_stream(Kind.COUNTERS, nodes, StreamState(0, StreamID(0, 0)), count))


def test_nodes_are_written_one_by_one() -> None:
    """A stream of any length uses the memory of one node."""
    asked = []

    def coming() -> Iterator[NodeImage]:
        for each in two_nodes().nodes:
            asked.append(each)
            yield each

    pieces = encode_stream(Kind.COUNTERS, coming(), two_nodes().state, 2)
    next(pieces)
    assert not asked
    next(pieces)
    assert len(asked) == 1
