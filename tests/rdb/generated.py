"""Streams made by hypothesis, as images."""

from typing import Any, NamedTuple

from hypothesis import strategies as st

from kvstream.layout.values import decode_checked, encode_flat
from kvstream.rdb.nodes import Element
from kvstream.rdb.versions import Kind
from kvstream.types.ids import U64_MAX, StreamID
from kvstream.types.images import (
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    NodeImage,
    ProducerImage,
    StreamState,
)
from kvstream.types.records import Entry

NUMBERS = st.integers(-(1 << 65), 1 << 65) | st.sampled_from(
    [sign * (2**n + d) for n in range(65) for d in (-1, 0, 1) for sign in (1, -1)]
)
TEXTS = (
    st.binary(max_size=12)
    | st.sampled_from([b"a", b"b", b"name", b"5", b"", b"-", b"-0", b"007", b"x" * 63, b"x" * 64])
    | NUMBERS.map(lambda n: b"%d" % n)
    | st.integers(0, 5000).map(lambda n: b"v" * n)
)
FLAT = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6).map(
    lambda pairs: [part for pair in pairs for part in pair]
)
NAMES = st.lists(TEXTS, max_size=5)
IDS = st.builds(
    StreamID,
    st.integers(0, 4) | st.integers(0, U64_MAX),
    st.integers(1, 9) | st.integers(1, U64_MAX),
)
OWNERS = st.sampled_from([b"7", b"-12", b"worker", b"w" * 30, b""])
TIMES = st.integers(0, 1 << 42)
COUNTS = st.integers(0, 70) | st.integers(0, 1 << 62)


class Image(NamedTuple):
    """A stream: nodes, and the rest."""

    nodes: list[NodeImage]
    state: StreamState


def entry(flags: int, ms: int, seq: int, *parts: Element) -> list[Element]:
    """Return the elements of an entry in a listpack."""
    return [flags, ms, seq, *parts, 3 + len(parts)]


def entries(image: Image) -> list[list[Any]]:
    """Return the entries as XRANGE answers them."""
    found = []
    for node in image.nodes:
        for eid, fields in zip(node.ids, decode_checked(node.values), strict=True):
            entry = Entry(StreamID.unpack(eid), fields)
            found.append([bytes(entry.id), list(entry.flat)])
    return found


@st.composite
def nodes(draw: st.DrawFn, ids: list[StreamID] | None = None) -> NodeImage:
    """A node: some entries have the fields of the first, some have their own."""
    ids = ids or sorted(draw(st.sets(IDS, min_size=1, max_size=12)))
    names = tuple(draw(NAMES))
    flats = []
    for _ in ids:
        same = draw(st.booleans())
        if names and same:
            values = draw(st.lists(TEXTS, min_size=len(names), max_size=len(names)))
            flats.append([part for pair in zip(names, values, strict=True) for part in pair])
        else:
            flats.append(draw(FLAT))
    return NodeImage(
        first=ids[0].packed,
        names=names,
        ids=[eid.packed for eid in ids],
        values=[encode_flat(flat)[0] for flat in flats],
        appended=len(ids),
        size=0,
        last=ids[-1].packed,
    )


@st.composite
def groups(draw: st.DrawFn, name: bytes, kind: Kind) -> GroupImage:
    """A group whose consumers have entries, some of which may be gone from the stream."""
    group = GroupImage(name, draw(IDS), draw(st.none() | st.integers(0, 1 << 40)))
    if kind < Kind.COUNTERS:
        group.entries_read = None
    names = sorted(draw(st.sets(OWNERS, max_size=4)))
    for consumer in names:
        seen_ms = draw(TIMES)
        active_ms = draw(st.just(-1) | TIMES) if kind >= Kind.ACTIVE_TIMES else seen_ms
        group.consumers.append(ConsumerImage(consumer, seen_ms, active_ms))
    owners: list[bytes | None] = [*names, None] if kind >= Kind.NACKED else [*names]
    if owners:
        for eid in sorted(draw(st.sets(IDS, max_size=6))):
            owner = draw(st.sampled_from(owners))
            group.pending.add(eid.packed, owner, draw(TIMES), draw(COUNTS))
    group.nacked = draw(st.permutations(group.pending.ownerless()))
    return group


PRODUCERS = st.lists(
    st.builds(
        ProducerImage,
        st.binary(min_size=1, max_size=9),
        st.lists(st.tuples(TEXTS, IDS), max_size=4, unique_by=lambda pair: pair[0]),
    ),
    max_size=3,
    unique_by=lambda producer: producer.pid,
).map(sorted)
IDEMPOTENCY = st.builds(
    IdempotencyImage,
    st.integers(1, 86400),
    st.integers(1, 10000),
    PRODUCERS,
    st.integers(0, U64_MAX),
    st.integers(0, U64_MAX),
)


@st.composite
def streams(draw: st.DrawFn, kind: Kind) -> Image:
    """A stream with all that a type can hold, and nothing that contradicts itself."""
    ids = sorted(draw(st.sets(IDS, max_size=10)))
    made = []
    while ids:
        size = draw(st.integers(1, len(ids)))
        made.append(draw(nodes(ids[:size])))
        ids = ids[size:]
    length = sum(len(node.ids) for node in made)
    top = StreamID.unpack(made[-1].ids[-1]) if made else StreamID(0, 0)
    state = StreamState(length, max(top, draw(IDS)))
    if kind >= Kind.COUNTERS:
        state.first = StreamID.unpack(made[0].ids[0]) if made else StreamID(0, 0)
        state.max_deleted = min(state.last, draw(st.just(StreamID(0, 0)) | IDS))
        state.entries_added = length + draw(st.integers(0, 1 << 40))
    names = sorted(draw(st.sets(OWNERS, max_size=3)))
    state.groups = [draw(groups(name, kind)) for name in names]
    if kind >= Kind.IDEMPOTENCY:
        state.idempotency = draw(IDEMPOTENCY)
    return Image(made, state)
