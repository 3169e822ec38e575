"""Differences between two streams: digests of their entries by ranges, entries, and states.

A digest finds differing ranges without keeping entries. A range ends after an ID whose hash has ten
zero bits, so the ends depend on the IDs alone. Two places are digested separately, and an entry
that one of them lacks changes one range.

::

    digest of a range := XXH3-128 of (XXH3-128 of packed IDs, XXH3-128 of stored values)

Equal entries have equal bytes. XXH3 finds accidental differences; it is not cryptographic. A
counter that one state lacks is not compared. Times of consumers may move while they work.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from xxhash import xxh3_64_intdigest, xxh3_128

from kvstream.layout.values import decode_fields
from kvstream.migration.items import Page
from kvstream.operations.queues.image import essence
from kvstream.types.ids import StreamID
from kvstream.types.images import (
    ID_BYTES,
    QUEUE_PARTS,
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    PackedID,
    PendingImage,
    QueueRow,
    StreamState,
)
from kvstream.types.options import STREAM_IDMP_DURATION_S, STREAM_IDMP_MAXSIZE
from kvstream.types.records import Entry

RANGE_ENTRIES = 1024
"""Average entries of a range."""
_MASK = RANGE_ENTRIES - 1
_ZERO, _GREATEST = bytes(ID_BYTES), b"\xff" * ID_BYTES


class Range(NamedTuple):
    """A range of entries, up to its last ID."""

    last: PackedID
    entries: int
    digest: bytes


class Window(NamedTuple):
    """The first and the last ID between which two streams differ."""

    first: PackedID
    last: PackedID


@dataclass(slots=True)
class StreamDigest:
    """The digests of all ranges of a stream."""

    entries: int = 0
    ranges: list[Range] = field(default_factory=list)

    @property
    def hex(self) -> str:
        """One digest of all ranges."""
        whole = xxh3_128()
        for each in self.ranges:
            whole.update(each.last + each.digest)
        return whole.hexdigest()


class Digester:
    """Computes the digest of a stream from its entries in order."""

    def __init__(self) -> None:
        self._made = StreamDigest()
        self._begin()

    def _begin(self) -> None:
        self._ids, self._values = xxh3_128(), xxh3_128()
        self._count = 0

    def update(self, ids: list[PackedID], values: list[bytes]) -> None:
        """Add the next entries."""
        start = 0
        for end in _ends(ids):
            self._take(ids[start:end], values[start:end])
            self._close(ids[end - 1])
            start = end
        if start < len(ids):
            self._take(ids[start:], values[start:])
            self._last = ids[-1]

    def _take(self, ids: list[PackedID], values: list[bytes]) -> None:
        self._ids.update(b"".join(ids))
        self._values.update(b"".join(values))
        self._count += len(ids)

    def _close(self, last: PackedID) -> None:
        digest = xxh3_128(self._ids.digest() + self._values.digest()).digest()
        self._made.ranges.append(Range(last, self._count, digest))
        self._made.entries += self._count
        self._begin()

    def finish(self) -> StreamDigest:
        """Return the digest; nothing can be added afterwards."""
        if self._count:
            self._close(self._last)
        return self._made


def _ends(ids: list[PackedID]) -> Iterator[int]:
    """Yield the positions after the IDs that end a range."""
    for at, eid in enumerate(ids, 1):
        if not xxh3_64_intdigest(eid) & _MASK:
            yield at


def windows(one: StreamDigest, other: StreamDigest) -> Iterator[Window]:
    """Yield the windows in which two streams differ, ascending; adjacent ones are joined.

    A window lies between two IDs at which both end a range, or reaches an end of the streams.
    """
    bound = _ZERO  # compared up to here
    begun: PackedID | None = None
    for last, same in _steps(one.ranges, other.ranges):
        if same and begun is not None:
            yield Window(begun, bound)
            begun = None
        if not same and begun is None:
            begun = _above(bound) if bound != _ZERO else _ZERO
        bound = last
    if begun is not None:
        yield Window(begun, _GREATEST)


def _steps(one: list[Range], other: list[Range]) -> Iterator[tuple[PackedID, bool]]:
    """Yield the IDs at which both end a range, and whether the ranges before were equal.

    A rest after the last such ID comes last, as different.
    """
    at_one = at_other = 0
    same = True
    while at_one < len(one) and at_other < len(other):
        mine, theirs = one[at_one], other[at_other]
        if mine.last == theirs.last:
            yield mine.last, same and mine == theirs
            same = True
            at_one, at_other = at_one + 1, at_other + 1
            continue
        same = False
        if mine.last < theirs.last:
            at_one += 1
        else:
            at_other += 1
    if not same or at_one < len(one) or at_other < len(other):
        yield _GREATEST, False


def _above(eid: PackedID) -> PackedID:
    return (int.from_bytes(eid, "big") + 1).to_bytes(ID_BYTES, "big")


class Mismatch(NamedTuple):
    """A difference in one key."""

    what: str
    """Such as ``entry 5-0`` or ``group 'g', pending 5-0, deliveries``."""
    source: str
    target: str
    may_move: bool = False
    """Whether it is a time that changes while the stream is in use."""
    entry: tuple[PackedID, bytes] | None = None
    """The ID and the stored value of the entry that differs, at the source if it has it."""


class Difference(NamedTuple):
    """A mismatch with its key."""

    db: int
    """The number of the database."""
    key: bytes
    """The name of the key."""
    what: str
    """What differs, such as ``entry 5-0`` or a counter of a group."""
    source: str
    """How it is at the source."""
    target: str
    """How it is at the target."""
    may_move: bool
    """Whether it may change by itself, as times of consumers do; then it does not count."""
    entry: Entry | None = None
    """The entry that differs, at the source if it has it, else at the target."""

    @property
    def change(self) -> str:
        """Return ``missing`` at the target, ``added`` there, or ``changed``."""
        if self.target == ABSENT:
            return "missing"
        return "added" if self.source == ABSENT else "changed"


def in_key(db: int, key: bytes, found: Mismatch) -> Difference:
    """Return a mismatch of a key."""
    entry = None
    if found.entry is not None:
        eid, value = found.entry
        entry = Entry(StreamID.unpack(eid), decode_fields(value))
    return Difference(db, key, found.what, found.source, found.target, found.may_move, entry)


ABSENT = "absent"
_USUAL_LIMITS = STREAM_IDMP_DURATION_S, STREAM_IDMP_MAXSIZE
_UNSHOWN = "..."
_SHOWN_BYTES = 120


def text_of(value: object) -> str:
    """Return a value as one line, with names in quotes."""
    if value is None:
        return "unknown"
    if isinstance(value, bytes):
        shown = value.decode("utf-8", "backslashreplace")
        return repr(shown if len(shown) <= _SHOWN_BYTES else shown[:_SHOWN_BYTES] + _UNSHOWN)
    return str(value)


# --- entries ----------------------------------------------------------------------------------


def entries(source: Iterable[Page], target: Iterable[Page]) -> Iterator[Mismatch]:
    """Yield the differences between the entries of two streams in the same windows."""
    for mine, theirs in _merge(_flat(source), _flat(target)):
        if mine != theirs:
            entry = mine or theirs
            assert entry is not None
            what = f"entry {StreamID.unpack(entry[0])}"
            yield Mismatch(what, _text(mine), _text(theirs), entry=entry)


def _text(entry: tuple[PackedID, bytes] | None) -> str:
    """Return the fields of an entry as one line."""
    if entry is None:
        return ABSENT
    pairs = Entry(StreamID(0, 0), decode_fields(entry[1])).pairs
    text = ", ".join(f"{text_of(name)}: {text_of(content)}" for name, content in pairs)
    return "{" + (text if len(text) <= 4 * _SHOWN_BYTES else text[: 4 * _SHOWN_BYTES] + "...") + "}"


_Row = TypeVar("_Row", bound=tuple[Any, ...])


def _merge(
    source: Iterable[_Row], target: Iterable[_Row]
) -> Iterator[tuple[_Row | None, _Row | None]]:
    """Pair the rows of two ascending lists by their first element, a packed ID."""
    mine, theirs = iter(source), iter(target)
    left, right = next(mine, None), next(theirs, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            yield left, None
            left = next(mine, None)
        elif left is None or right[0] < left[0]:
            yield None, right
            right = next(theirs, None)
        else:
            yield left, right
            left, right = next(mine, None), next(theirs, None)


def _flat(pages: Iterable[Page]) -> Iterator[tuple[PackedID, bytes]]:
    return chain.from_iterable(zip(ids, values, strict=True) for ids, values in pages)


# --- states -----------------------------------------------------------------------------------


def states(source: StreamState, target: StreamState, tolerance_ms: int = 0) -> Iterator[Mismatch]:
    """Yield the differences between two states; times within the tolerance are equal."""
    yield from _values(
        "",
        [
            ("last ID", source.last, target.last),
            ("greatest deleted ID", source.max_deleted, target.max_deleted),
            ("entries added", source.entries_added, target.entries_added),
        ],
    )
    for name, mine, theirs in _pair(source.groups, target.groups):
        what = f"group {text_of(name)}"
        if mine is None or theirs is None:
            yield Mismatch(what, _there(mine), _there(theirs))
        else:
            yield from _groups(what, mine, theirs, tolerance_ms)
    yield from _idempotency(source.idempotency, target.idempotency)
    if source.queue is not None and target.queue is not None:
        yield from _queues(source.queue, target.queue)


def untold(source: StreamState, target: StreamState) -> Iterator[str]:
    """Yield the parts that are not compared, since one of both states does not have them."""
    pairs = [
        ("greatest deleted ID", source.max_deleted, target.max_deleted),
        ("entries added", source.entries_added, target.entries_added),
    ]
    for _, mine, theirs in _pair(source.groups, target.groups):
        if mine is not None and theirs is not None:
            pairs.append(("entries read", mine.entries_read, theirs.entries_read))
    yield from dict.fromkeys(
        what for what, mine, theirs in pairs if (mine is None) != (theirs is None)
    )
    if (source.idempotency is None) != (target.idempotency is None):
        image = source.idempotency or target.idempotency
        if image is not None and (image.duration_s, image.maxsize) != _USUAL_LIMITS:
            yield "idempotency limits"
    if (source.queue is None) != (target.queue is None):
        rows = source.queue or target.queue or ()
        yield from dict.fromkeys(QUEUE_PARTS[key[:1]] for key, _ in rows)


def _queues(source: Sequence[QueueRow], target: Sequence[QueueRow]) -> Iterator[Mismatch]:
    """Yield the differences between what two streams have as queues."""
    for one, other in _merge(source, target):
        if one == other:
            continue
        row = one or other
        assert row is not None
        may_move = one is not None and other is not None and essence(one) == essence(other)
        mine, theirs = (ABSENT if each is None else text_of(each[1]) for each in (one, other))
        yield Mismatch(_row_name(row[0]), mine, theirs, may_move)


def _row_name(key: bytes) -> str:
    """Return a name for a row, such as ``delayed @5000-1``."""
    tag, rest = key[:1], key[1:]
    what = QUEUE_PARTS[tag]
    if tag == b"d":
        return f"{what} @{int.from_bytes(rest[:8], 'big')}-{int.from_bytes(rest[8:], 'big')}"
    if tag in b"el":
        named = f", group {text_of(rest[4:-ID_BYTES])}" if tag == b"e" else ""
        return f"{what}{named}, entry {StreamID.unpack(rest[-ID_BYTES:])}"
    return f"{what} {text_of(rest)}" if rest else what


def _groups(
    what: str, mine: GroupImage, theirs: GroupImage, tolerance_ms: int
) -> Iterator[Mismatch]:
    yield from _values(
        f"{what}, ",
        [
            ("last delivered ID", mine.last_delivered, theirs.last_delivered),
            ("entries read", mine.entries_read, theirs.entries_read),
        ],
    )
    for name, one, other in _pair(mine.consumers, theirs.consumers):
        consumer = f"{what}, consumer {text_of(name)}"
        if one is None or other is None:
            yield Mismatch(consumer, _there(one), _there(other))
        else:
            yield from _consumers(consumer, one, other, tolerance_ms)
    yield from _pending(what, mine.pending, theirs.pending, tolerance_ms)
    if mine.nacked != theirs.nacked and set(mine.nacked) == set(theirs.nacked):
        order = f"{what}, order of entries released by XNACK"
        yield Mismatch(order, _ids(mine.nacked), _ids(theirs.nacked))


def _consumers(
    what: str, mine: ConsumerImage, theirs: ConsumerImage, tolerance_ms: int
) -> Iterator[Mismatch]:
    for word, one, other in (
        ("seen time", mine.seen_ms, theirs.seen_ms),
        ("active time", mine.active_ms, theirs.active_ms),
    ):
        if abs(one - other) > tolerance_ms:
            yield Mismatch(f"{what}, {word}", str(one), str(other), may_move=True)


def _pending(
    what: str,
    mine: Iterable[PendingImage],
    theirs: Iterable[PendingImage],
    tolerance_ms: int,
) -> Iterator[Mismatch]:
    """Yield the differences between two lists of pending entries."""
    for one, other in _merge(mine, theirs):
        if one is not None and other is not None:
            yield from _pending_pair(_pending_name(what, one), one, other, tolerance_ms)
        elif one is not None:
            yield Mismatch(_pending_name(what, one), f"of {text_of(one.owner)}", ABSENT)
        elif other is not None:
            yield Mismatch(_pending_name(what, other), ABSENT, f"of {text_of(other.owner)}")


def _pending_name(what: str, pending: PendingImage) -> str:
    return f"{what}, pending {StreamID.unpack(pending.id)}"


def _pending_pair(
    what: str, mine: PendingImage, theirs: PendingImage, tolerance_ms: int
) -> Iterator[Mismatch]:
    if mine == theirs:
        return
    if mine.owner != theirs.owner:
        yield Mismatch(f"{what}, owner", _owner(mine.owner), _owner(theirs.owner))
    elif mine.owner is not None and abs(mine.time_ms - theirs.time_ms) > tolerance_ms:
        yield Mismatch(f"{what}, time of delivery", str(mine.time_ms), str(theirs.time_ms))
    yield from _values(f"{what}, ", [("deliveries", mine.deliveries, theirs.deliveries)])


def _owner(name: bytes | None) -> str:
    return "nobody" if name is None else text_of(name)


def _idempotency(
    source: IdempotencyImage | None, target: IdempotencyImage | None
) -> Iterator[Mismatch]:
    if source is None or target is None:
        if _producers(source) != _producers(target):
            yield Mismatch("idempotent IDs", _producers(source), _producers(target))
        return
    yield from _values(
        "idempotency, ",
        [
            ("duration", source.duration_s, target.duration_s),
            ("maxsize", source.maxsize, target.maxsize),
            ("IDs added", source.iids_added, target.iids_added),
            ("duplicates", source.iids_duplicates, target.iids_duplicates),
        ],
    )
    mine = {producer.pid: producer.iids for producer in source.producers}
    theirs = {producer.pid: producer.iids for producer in target.producers}
    for pid in sorted(mine.keys() | theirs.keys()):
        if mine.get(pid) != theirs.get(pid):
            what = f"idempotent IDs of producer {text_of(pid)}"
            yield Mismatch(what, _iids(mine.get(pid)), _iids(theirs.get(pid)))


def _producers(image: IdempotencyImage | None) -> str:
    return "none" if image is None or not image.producers else f"{len(image.producers)} producers"


def _iids(iids: Sequence[tuple[bytes, StreamID]] | None) -> str:
    if iids is None:
        return ABSENT
    shown = ", ".join(f"{text_of(iid)} -> {eid}" for iid, eid in iids[:3])
    return f"{len(iids)}: {shown}" + (", ..." if len(iids) > 3 else "")


def _values(what: str, triples: Iterable[tuple[str, object, object]]) -> Iterator[Mismatch]:
    for name, mine, theirs in triples:
        if mine is not None and theirs is not None and mine != theirs:
            yield Mismatch(what + name, text_of(mine), text_of(theirs))


def _ids(packed: Sequence[PackedID]) -> str:
    shown = " ".join(str(StreamID.unpack(eid)) for eid in packed[:5])
    return shown + (" ..." if len(packed) > 5 else "")


def _there(thing: object) -> str:
    return ABSENT if thing is None else "there"


def _pair(mine: Sequence[Any], theirs: Sequence[Any]) -> Iterator[tuple[bytes, Any, Any]]:
    """Pair the elements of two lists by name."""
    one, other = ({each.name: each for each in side} for side in (mine, theirs))
    for name in sorted(one.keys() | other.keys()):
        yield name, one.get(name), other.get(name)
