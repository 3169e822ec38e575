"""``verify``: whether two places have the same, and what exactly differs where they do not.

Each key is read once on either side and leaves a digest by ranges (digests.py) and its state; what
differs is read again, by ranges. A place that cannot be asked for a key is read in its own order,
and the other one is asked; where neither can be asked the first is read once more for the details.

One key, read whole: what is left of it is a digest and its state. And how two of them differ.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from kvstream.migration import differences
from kvstream.migration.differences import (
    ABSENT,
    Difference,
    Digester,
    StreamDigest,
    Told,
    Window,
    text_of,
    windows,
)
from kvstream.migration.differences import entries as entry_differences
from kvstream.migration.items import (
    CARRIED,
    STREAM,
    STRING,
    Counted,
    Item,
    Page,
    Selection,
    Source,
    Watch,
)
from kvstream.types.images import PackedID, StreamState

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


Name = tuple[int, bytes]

ENTRIES_TOLD = 100
"""Differing entries of one key that are named."""
WINDOWS_TOLD = 20
"""Windows of one key that are kept in memory where both places must be read through."""


@dataclass(slots=True)
class Verification:
    """What two places have in common, and what not."""

    keys: int = 0
    entries: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Keys of kinds that are not compared, by kind."""
    differences: list[Difference] = field(default_factory=list)
    digests: dict[Name, str] = field(default_factory=dict)
    """Of the entries of each stream at the source."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs but times that move by themselves."""
        return all(each.may_move for each in self.differences)


@dataclass(frozen=True, slots=True)
class Comparing:
    """How to compare."""

    selection: Selection = field(default_factory=Selection)
    tolerance_ms: int = 0
    """By how much times may differ."""
    watch: Watch = lambda entries, bytes: None
    keep_digests: bool = False


def verify(source: Source, target: Source, how: Comparing) -> Verification:
    """Compare all keys of two places."""
    if target.ranged:
        return _Ranged(source, target, how, swapped=False).run()
    if source.ranged:
        return _Ranged(target, source, how, swapped=True).run()
    return _InPasses(source, target, how).run()


class _Pass:
    """What both ways of comparing have in common."""

    def __init__(self, how: Comparing) -> None:
        self.result = Verification()
        self._how = how

    def _examined(self, name: Name, item: Item) -> Examined:
        found = examine(item, self._how.watch)
        self.result.keys += 1
        self.result.entries += found.entries
        if self._how.keep_digests and found.state is not None:
            self.result.digests[name] = found.digest.hex
        return found

    def _is_compared(self, item: Item) -> bool:
        """Tell whether a key is to be compared; one of another type is counted."""
        if item.kind in CARRIED:
            return not item.is_over
        self.result.skipped[item.kind] = self.result.skipped.get(item.kind, 0) + 1
        return False

    def _tell(self, name: Name, told: Told) -> None:
        self.result.differences.append(Difference.of(*name, told))

    def _tell_entries(self, name: Name, source: Iterator[Page], target: Iterator[Page]) -> None:
        for count, told in enumerate(entry_differences(source, target)):
            if count == ENTRIES_TOLD:
                self._tell(name, Told("entries", "more differ", "more differ"))
                return
            self._tell(name, told)


class _Ranged(_Pass):
    """One place in its order; the other is asked for each key."""

    def __init__(self, driver: Source, asked: Source, how: Comparing, swapped: bool) -> None:
        super().__init__(how)
        self._driver = driver
        self._asked = asked
        self._swapped = swapped
        """Whether the driver is the target."""
        self._again: dict[Name, list[Window]] = {}
        """What a driver that cannot be asked must be read again for."""

    def run(self) -> Verification:
        seen: set[Name] = set()
        for item in self._driver.items(self._how.selection):
            seen.add((item.db, item.key))
            if self._is_compared(item):
                self._compare(item)
        self._details()
        for other in self._asked.items(self._how.selection):
            if (other.db, other.key) not in seen and self._is_compared(other):
                self._tell((other.db, other.key), missing(other.kind, self._swapped))
        return self.result

    def _compare(self, item: Item) -> None:
        name = item.db, item.key
        mine = self._examined(name, item)
        if mine.kind == GONE:
            return
        other = self._asked.item(*name)
        if other is None:
            self._tell(name, missing(item.kind, not self._swapped))
            return
        theirs = examine(other)
        pair = (theirs, mine) if self._swapped else (mine, theirs)
        for told in outside_entries(*pair, self._how.tolerance_ms):
            self._tell(name, told)
        wanted = differing(*pair) if mine.kind == theirs.kind else []
        if not wanted:
            return
        if self._driver.ranged:
            self._detail(name, item, wanted)
        else:
            self._again[name] = wanted

    def _details(self) -> None:
        """Read again what a driver cannot be asked for."""
        if self._again:
            for item in self._driver.items(self._how.selection):
                wanted = self._again.get((item.db, item.key))
                if wanted is not None:
                    self._detail((item.db, item.key), item, wanted)

    def _detail(self, name: Name, item: Item, wanted: list[Window]) -> None:
        other = self._asked.item(*name)
        theirs = iter(()) if other is None else pages_in(other, wanted)
        mine = pages_in(item, wanted)
        pair = (theirs, mine) if self._swapped else (mine, theirs)
        self._tell_entries(name, *pair)


class _InPasses(_Pass):
    """Two places that can only be read through: digests of one stay in memory, then details."""

    def __init__(self, source: Source, target: Source, how: Comparing) -> None:
        super().__init__(how)
        self._source = source
        self._target = target

    def run(self) -> Verification:
        mine: dict[Name, Examined] = {}
        for item in self._source.items(self._how.selection):
            if self._is_compared(item):
                name = item.db, item.key
                mine[name] = self._examined(name, item)
        wanted: dict[Name, list[Window]] = {}
        for item in self._target.items(self._how.selection):
            if item.kind in CARRIED and not item.is_over:
                self._compare(item, mine.pop((item.db, item.key), None), wanted)
        for name, left in mine.items():
            self._tell(name, missing(left.kind, at_source=True))
        self._details(wanted)
        return self.result

    def _compare(self, item: Item, mine: Examined | None, wanted: dict[Name, list[Window]]) -> None:
        name = item.db, item.key
        if mine is None:
            self._tell(name, missing(item.kind, at_source=False))
            return
        theirs = examine(item)
        for told in outside_entries(mine, theirs, self._how.tolerance_ms):
            self._tell(name, told)
        windows = differing(mine, theirs)
        if windows and mine.kind == theirs.kind:
            wanted[name] = windows

    def _details(self, wanted: dict[Name, list[Window]]) -> None:
        """Read both once more: what the windows hold at the source is kept meanwhile."""
        if not wanted:
            return
        few = {name: windows[:WINDOWS_TOLD] for name, windows in wanted.items()}
        kept = {
            (item.db, item.key): list(pages_in(item, few[item.db, item.key]))
            for item in self._source.items(self._how.selection)
            if (item.db, item.key) in wanted
        }
        for item in self._target.items(self._how.selection):
            name = item.db, item.key
            if name in wanted:
                theirs = pages_in(item, few[name])
                self._tell_entries(name, iter(kept.pop(name, [])), theirs)
