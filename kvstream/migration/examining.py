"""One key, read whole: what is left of it is a digest and its state. And how two of them differ."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from kvstream.images import PackedID, StreamState
from kvstream.migration import differences
from kvstream.migration.differences import ABSENT, Told, text_of
from kvstream.migration.digests import Digester, StreamDigest, Window, windows
from kvstream.migration.items import STREAM, STRING, Counted, Item, Page, Watch

GONE = "none"
"""The kind of a key that went away while it was read."""


@dataclass(slots=True)
class Examined:
    """What has been read of a key."""

    kind: str
    expire_at_ms: int = 0
    inexact_ms: int = 0
    digest: StreamDigest = field(default_factory=StreamDigest)
    state: StreamState | None = None
    value: bytes | None = None
    corrections: list[str] = field(default_factory=list)

    @property
    def entries(self) -> int:
        return self.digest.entries


def examine(item: Item, watch: Watch = lambda entries, bytes: None) -> Examined:
    """Read a key once, from its first entry to its last."""
    found = Examined(item.kind, item.expire_at_ms, item.inexact_ms)
    if item.kind == STREAM:
        content = Counted(item.content(), watch)
        digester = Digester()
        for node in content.nodes():
            digester.update(node.ids, node.values)
        found.state = content.state()
        found.digest = digester.finish()
        found.inexact_ms = max(item.inexact_ms, content.inexact_ms)
        found.corrections = content.corrections
    elif item.kind == STRING and item.value is not None:
        found.value = item.value()
        if found.value is None:
            found.kind = GONE
    return found


def outside_entries(source: Examined, target: Examined, tolerance_ms: int) -> Iterator[Told]:
    """Yield what differs in two keys but for the entries of their streams."""
    if source.kind != target.kind:
        yield Told("type", source.kind, target.kind)
        return
    tolerance_ms = max(tolerance_ms, source.inexact_ms, target.inexact_ms)
    if source.value != target.value:
        yield Told("value", text_of(source.value), text_of(target.value))
    if not same_expiry(source.expire_at_ms, target.expire_at_ms, tolerance_ms):
        yield Told("expiry", _expiry(source.expire_at_ms), _expiry(target.expire_at_ms))
    if source.state is not None and target.state is not None:
        if source.entries != target.entries:
            yield Told("length", str(source.entries), str(target.entries))
        yield from differences.states(source.state, target.state, tolerance_ms)


def same_expiry(one: int, other: int, tolerance_ms: int) -> bool:
    return one == other or bool(one and other and abs(one - other) <= tolerance_ms)


def differing(source: Examined, target: Examined) -> list[Window]:
    """Return the windows in which the entries of two streams differ."""
    return list(windows(source.digest, target.digest))


def pages_in(item: Item, wanted: list[Window]) -> Iterator[Page]:
    """Yield the entries of a key that lie in the windows: by ranges, or by reading it all again."""
    if item.between is not None:
        between = item.between
        yield from chain.from_iterable(between(each.first, each.last) for each in wanted)
        return
    content = item.content()
    for node in content.nodes():
        kept = [
            (eid, value)
            for eid, value in zip(node.ids, node.values, strict=True)
            if _inside(eid, wanted)
        ]
        if kept:
            yield [eid for eid, _ in kept], [value for _, value in kept]
    content.state()


def _inside(eid: PackedID, wanted: list[Window]) -> bool:
    return any(each.first <= eid <= each.last for each in wanted)


def _expiry(at_ms: int) -> str:
    return str(at_ms) if at_ms else "never"


def missing(kind: str, at_source: bool) -> Told:
    """Return the difference of a key that only one place has."""
    return Told("key", kind, ABSENT) if at_source else Told("key", ABSENT, kind)
