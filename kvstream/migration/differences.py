"""What differs between two states, and between the entries of a window. It reads no place.

A counter that one of the two cannot tell is not compared. Times that go on moving while consumers
are at work are *moved*, and no difference.

Digests of a stream's entries, by ranges, so that a difference is found without keeping them.

A range ends where the hash of an ID says so, one in ``RANGE_ENTRIES`` on average: where ranges end
depends on the IDs alone, and not on where a stream is kept or in which pages it is read. So two
places are digested apart from each other, and an entry that one of them lacks changes one range.

::

    digest of a range := XXH3-128 of (XXH3-128 of packed IDs, XXH3-128 of stored values)

Values are msgpack, which says itself where it ends; equal entries have equal bytes. The hash finds
accidents; it is none against those who choose the bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest, xxh3_128

from kvstream.migration.items import Page
from kvstream.types.ids import StreamID
from kvstream.types.images import (
    ID_BYTES,
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    PackedID,
    PendingImage,
    StreamState,
)

RANGE_ENTRIES = 1024
"""Entries of a range on average: what is read again where it differs."""
_MASK = RANGE_ENTRIES - 1
_ZERO, _GREATEST = bytes(ID_BYTES), b"\xff" * ID_BYTES


class Range(NamedTuple):
    """A range of entries, up to its last."""

    last: PackedID
    entries: int
    digest: bytes


class Window(NamedTuple):
    """IDs between which two streams differ, both included."""

    first: PackedID
    last: PackedID


@dataclass(slots=True)
class StreamDigest:
    """The entries of a stream, as the digests of its ranges."""

    entries: int = 0
    ranges: list[Range] = field(default_factory=list)

    @property
    def hex(self) -> str:
        """One digest of all of them."""
        whole = xxh3_128()
        for each in self.ranges:
            whole.update(each.last + each.digest)
        return whole.hexdigest()


class Digester:
    """Takes the entries of a stream, in their order, and makes its digest."""

    def __init__(self) -> None:
        self._made = StreamDigest()
        self._begin()

    def _begin(self) -> None:
        self._ids, self._values = xxh3_128(), xxh3_128()
        self._count = 0

    def update(self, ids: list[PackedID], values: list[bytes]) -> None:
        """Take the next entries."""
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
        """Return the digest; nothing can be taken afterwards."""
        if self._count:
            self._close(self._last)
        return self._made


def _ends(ids: list[PackedID]) -> Iterator[int]:
    """Yield the positions behind the IDs with which a range ends."""
    for at, eid in enumerate(ids, 1):
        if not xxh3_64_intdigest(eid) & _MASK:
            yield at


def digest_of(pages: Iterable[Page]) -> StreamDigest:
    """Return the digest of entries that come page by page."""
    digester = Digester()
    for ids, values in pages:
        digester.update(ids, values)
    return digester.finish()


def windows(one: StreamDigest, other: StreamDigest) -> Iterator[Window]:
    """Yield the windows in which two streams differ, ascending, those that touch as one.

    Ranges that both have are passed over: what is left lies between two IDs at which both end a
    range, or at the ends of the streams.
    """
    bound = _ZERO
    """What lies up to it has been compared."""
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
    """Yield the bounds at which both end a range, and whether what came before was the same.

    What is left behind the last such bound comes last, as different.
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


Show = Callable[[Any], str]


class Told(NamedTuple):
    """Something of one key that two places tell differently."""

    what: str
    """Such as ``entry 5-0`` or ``group 'g', pending 5-0, deliveries``."""
    source: str
    target: str
    may_move: bool = False
    """Whether it is a time that moves by itself while a stream is in use."""


class Difference(NamedTuple):
    """The same, with the key."""

    db: int
    key: bytes
    what: str
    source: str
    target: str
    may_move: bool

    @classmethod
    def of(cls, db: int, key: bytes, told: Told) -> "Difference":
        return cls(db, key, told.what, told.source, told.target, told.may_move)


ABSENT = "absent"
_UNSHOWN = "..."
_SHOWN_BYTES = 120


def text_of(value: object) -> str:
    """Return a value as one line: names in quotes, IDs as such."""
    if value is None:
        return "unknown"
    if isinstance(value, bytes):
        shown = value.decode("utf-8", "backslashreplace")
        return repr(shown if len(shown) <= _SHOWN_BYTES else shown[:_SHOWN_BYTES] + _UNSHOWN)
    return str(value)


# --- entries ----------------------------------------------------------------------------------


def entries(source: Iterable[Page], target: Iterable[Page]) -> Iterator[Told]:
    """Yield what differs between the entries of two streams that lie in the same window."""
    for eid, mine, theirs in _merged(source, target):
        if mine != theirs:
            yield Told(f"entry {StreamID.unpack(eid)}", fields_text(mine), fields_text(theirs))


def fields_text(value: bytes | None) -> str:
    """Return the fields of a stored value as one line."""
    from kvstream.layout.values import decode_fields
    from kvstream.types.records import Entry

    if value is None:
        return ABSENT
    pairs = Entry(StreamID(0, 0), decode_fields(value)).pairs
    text = ", ".join(f"{text_of(name)}: {text_of(content)}" for name, content in pairs)
    return "{" + (text if len(text) <= 4 * _SHOWN_BYTES else text[: 4 * _SHOWN_BYTES] + "...") + "}"


def _merged(
    source: Iterable[Page], target: Iterable[Page]
) -> Iterator[tuple[PackedID, bytes | None, bytes | None]]:
    """Yield every ID of either, with the values that it has there."""
    mine, theirs = _flat(source), _flat(target)
    left, right = next(mine, None), next(theirs, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None
            yield left[0], left[1], None
            left = next(mine, None)
        elif left is None or right[0] < left[0]:
            yield right[0], None, right[1]
            right = next(theirs, None)
        else:
            yield left[0], left[1], right[1]
            left, right = next(mine, None), next(theirs, None)


def _flat(pages: Iterable[Page]) -> Iterator[tuple[PackedID, bytes]]:
    return chain.from_iterable(zip(ids, values, strict=True) for ids, values in pages)


# --- states -----------------------------------------------------------------------------------


def states(source: StreamState, target: StreamState, tolerance_ms: int = 0) -> Iterator[Told]:
    """Yield what differs between two states; times within the tolerance are the same."""
    yield from _values(
        "",
        [
            ("last ID", source.last, target.last),
            ("greatest deleted ID", source.max_deleted, target.max_deleted),
            ("entries added", source.entries_added, target.entries_added),
        ],
    )
    for name, mine, theirs in _paired(source.groups, target.groups):
        what = f"group {text_of(name)}"
        if mine is None or theirs is None:
            yield Told(what, _there(mine), _there(theirs))
        else:
            yield from _groups(what, mine, theirs, tolerance_ms)
    yield from _idempotency(source.idempotency, target.idempotency)


def _groups(what: str, mine: GroupImage, theirs: GroupImage, tolerance_ms: int) -> Iterator[Told]:
    yield from _values(
        f"{what}, ",
        [
            ("last delivered ID", mine.last_delivered, theirs.last_delivered),
            ("entries read", mine.entries_read, theirs.entries_read),
        ],
    )
    for name, one, other in _paired(mine.consumers, theirs.consumers):
        consumer = f"{what}, consumer {text_of(name)}"
        if one is None or other is None:
            yield Told(consumer, _there(one), _there(other))
        else:
            yield from _consumers(consumer, one, other, tolerance_ms)
    yield from _pending(what, mine.pending, theirs.pending, tolerance_ms)
    if mine.nacked != theirs.nacked and set(mine.nacked) == set(theirs.nacked):
        yield Told(f"{what}, order of what was given back", _ids(mine.nacked), _ids(theirs.nacked))


def _consumers(
    what: str, mine: ConsumerImage, theirs: ConsumerImage, tolerance_ms: int
) -> Iterator[Told]:
    for word, one, other in (
        ("seen time", mine.seen_ms, theirs.seen_ms),
        ("active time", mine.active_ms, theirs.active_ms),
    ):
        if abs(one - other) > tolerance_ms:
            yield Told(f"{what}, {word}", str(one), str(other), may_move=True)


def _pending(
    what: str,
    mine: Iterable[PendingImage],
    theirs: Iterable[PendingImage],
    tolerance_ms: int,
) -> Iterator[Told]:
    """Yield what differs in two lists of pending entries, of which either may be empty."""
    one, other = iter(mine), iter(theirs)
    left, right = next(one, None), next(other, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left.id < right.id):
            assert left is not None
            yield Told(_pending_name(what, left), f"of {text_of(left.owner)}", ABSENT)
            left = next(one, None)
        elif left is None or right.id < left.id:
            yield Told(_pending_name(what, right), ABSENT, f"of {text_of(right.owner)}")
            right = next(other, None)
        else:
            yield from _pending_pair(_pending_name(what, left), left, right, tolerance_ms)
            left, right = next(one, None), next(other, None)


def _pending_name(what: str, pending: PendingImage) -> str:
    return f"{what}, pending {StreamID.unpack(pending.id)}"


def _pending_pair(
    what: str, mine: PendingImage, theirs: PendingImage, tolerance_ms: int
) -> Iterator[Told]:
    if mine == theirs:
        return
    if mine.owner != theirs.owner:
        yield Told(f"{what}, owner", _owner(mine.owner), _owner(theirs.owner))
    elif mine.owner is not None and abs(mine.time_ms - theirs.time_ms) > tolerance_ms:
        yield Told(f"{what}, time of delivery", str(mine.time_ms), str(theirs.time_ms))
    yield from _values(f"{what}, ", [("deliveries", mine.deliveries, theirs.deliveries)])


def _owner(name: bytes | None) -> str:
    return "nobody" if name is None else text_of(name)


def _idempotency(
    source: IdempotencyImage | None, target: IdempotencyImage | None
) -> Iterator[Told]:
    if source is None or target is None:
        if _producers(source) != _producers(target):
            yield Told("idempotent IDs", _producers(source), _producers(target))
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
            yield Told(what, _iids(mine.get(pid)), _iids(theirs.get(pid)))


def _producers(told: IdempotencyImage | None) -> str:
    return "none" if told is None or not told.producers else f"{len(told.producers)} producers"


def _iids(iids: Sequence[tuple[bytes, StreamID]] | None) -> str:
    if iids is None:
        return ABSENT
    shown = ", ".join(f"{text_of(iid)} -> {eid}" for iid, eid in iids[:3])
    return f"{len(iids)}: {shown}" + (", ..." if len(iids) > 3 else "")


def _values(what: str, triples: Iterable[tuple[str, object, object]]) -> Iterator[Told]:
    for name, mine, theirs in triples:
        if mine is not None and theirs is not None and mine != theirs:
            yield Told(what + name, text_of(mine), text_of(theirs))


def _ids(packed: Sequence[PackedID]) -> str:
    shown = " ".join(str(StreamID.unpack(eid)) for eid in packed[:5])
    return shown + (" ..." if len(packed) > 5 else "")


def _there(thing: object) -> str:
    return ABSENT if thing is None else "there"


def _paired(mine: Sequence[Any], theirs: Sequence[Any]) -> Iterator[tuple[bytes, Any, Any]]:
    """Yield what either has, by name."""
    one, other = ({each.name: each for each in side} for side in (mine, theirs))
    for name in sorted(one.keys() | other.keys()):
        yield name, one.get(name), other.get(name)
