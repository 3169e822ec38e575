"""``verify``: comparison of two places, key by key.

Each key is read once on either side, into its state and a digest of its entries by ranges
(differences.py). Ranges that differ are read again. A place that is not ranged is read in its own
order, and the other is asked for each key. If neither is ranged, digests of the source stay in
memory, and both are read again for the details.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from kvstream.migration import differences
from kvstream.migration.differences import (
    ABSENT,
    Difference,
    Digester,
    Mismatch,
    StreamDigest,
    Window,
    in_key,
    text_of,
    windows,
)
from kvstream.migration.items import (
    LIBRARY,
    STREAM,
    STRING,
    SUPPORTED,
    DbKey,
    Item,
    Page,
    PlannedTarget,
    Selection,
    Source,
    Watch,
    watch_nothing,
)
from kvstream.operations.functions import by_name
from kvstream.types.images import PackedID, StreamState

GONE = "none"
"""The type of a key that was deleted while it was read."""


@dataclass(slots=True)
class Examined:
    """The digest and the state of a key."""

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


def examine(item: Item, watch: Watch = watch_nothing) -> Examined:
    """Read a key once, from the first entry to the last."""
    examined = Examined(item.kind, item.expire_at_ms, item.inexact_ms)
    if item.kind == STREAM:
        content = item.content(watch)
        digester = Digester()
        for node in content.nodes():
            digester.update(node.ids, node.values)
        examined.state = content.state()
        examined.digest = digester.finish()
        examined.inexact_ms = max(item.inexact_ms, content.inexact_ms)
        examined.corrections = content.corrections
    elif item.kind == STRING and item.value is not None:
        examined.value = item.value()
        if examined.value is None:
            examined.kind = GONE
    return examined


def outside_entries(source: Examined, target: Examined, tolerance_ms: int) -> Iterator[Mismatch]:
    """Yield the differences of two keys, without those of their entries."""
    if source.kind != target.kind:
        yield Mismatch("type", source.kind, target.kind)
        return
    tolerance_ms = max(tolerance_ms, source.inexact_ms, target.inexact_ms)
    if source.value != target.value:
        yield Mismatch("value", text_of(source.value), text_of(target.value))
    if not same_expiry(source.expire_at_ms, target.expire_at_ms, tolerance_ms):
        yield Mismatch("expiry", _expiry(source.expire_at_ms), _expiry(target.expire_at_ms))
    if source.state is not None and target.state is not None:
        if source.entries != target.entries:
            yield Mismatch("length", str(source.entries), str(target.entries))
        yield from differences.states(source.state, target.state, tolerance_ms)


def same_expiry(one: int, other: int, tolerance_ms: int) -> bool:
    return one == other or bool(one and other and abs(one - other) <= tolerance_ms)


def differing(source: Examined, target: Examined) -> list[Window]:
    """Return the windows in which the entries of two streams differ."""
    return list(windows(source.digest, target.digest))


def pages_in(item: Item, wanted: list[Window]) -> Iterator[Page]:
    """Yield the entries of a key in the windows; a source without ranges is read as a whole."""
    if item.read_range is not None:
        read = item.read_range
        yield from chain.from_iterable(read(each.first, each.last) for each in wanted)
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


def missing(kind: str, at_source: bool) -> Mismatch:
    """Return the mismatch of a key that only one place has."""
    return Mismatch("key", kind, ABSENT) if at_source else Mismatch("key", ABSENT, kind)


ENTRIES_TOLD = 100
"""Most differing entries of one key that are listed."""
WINDOWS_TOLD = 20
"""Most windows of one key that are kept in memory if neither place is ranged."""


_MORE = Mismatch("entries", "more differ", "more differ")


@dataclass(slots=True)
class Verification:
    """The result of comparing two places."""

    keys: int = 0
    """The number of keys that were compared."""
    entries: int = 0
    """The number of entries that were compared."""
    functions: int = 0
    """Libraries of functions of the source."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Keys that are not compared, by type or by what else they have in common."""
    uncompared: Counter[str] = field(default_factory=Counter)
    """Parts of streams that one of both places does not have, such as ``entries added``, with the
    number of streams."""
    differences: list[Difference] = field(default_factory=list)
    """Without the entries themselves."""
    digests: dict[DbKey, str] = field(default_factory=dict)
    """The digest of the entries of each stream at the source."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs except times that change while consumers work."""
        return all(each.may_move for each in self.differences)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How two places are compared."""

    selection: Selection = field(default_factory=Selection)
    tolerance_ms: int = 0
    """Largest difference of times that counts as equal."""
    watch: Watch = watch_nothing
    keep_digests: bool = False
    allowed: PlannedTarget | None = None
    """Keys and libraries that this target cannot hold are not compared: their loss is allowed."""
    entries_told: int = ENTRIES_TOLD
    """Most differing entries of one key that are listed."""
    keys_kept: int = 1 << 62
    """Most names of keys that are kept in memory, if a place can be asked for the others: a request
    for each."""


def verify(source: Source, target: Source, options: VerifyOptions) -> Verification:
    """Compare all keys of two places, and their libraries of functions unless keys are chosen."""
    result = Verification()
    found = compare(source, target, options, result)
    result.differences = [each._replace(entry=None) for each in found]
    return result


def compare(
    source: Source, target: Source, options: VerifyOptions, result: Verification
) -> Iterator[Difference]:
    """Yield each difference when it is found, and count in ``result`` what was compared.

    If a place is ranged, memory does not grow with the differences, and with entries by a range's
    digest for each thousand of a stream. Groups and pending entries of one stream are in memory.
    """
    comparison: _Ranged | _InPasses
    if target.ranged:
        comparison = _Ranged(source, target, options, result, swapped=False)
    elif source.ranged:
        comparison = _Ranged(target, source, options, result, swapped=True)
    else:
        comparison = _InPasses(source, target, options, result)
    yield from comparison.run()
    if not options.selection.match:
        yield from _compare_functions(source, target, options.allowed, result)


def _compare_functions(
    source: Source, target: Source, allowed: PlannedTarget | None, result: Verification
) -> Iterator[Difference]:
    """Yield the libraries that only one place has, that differ, or that the target cannot load."""
    mine, theirs = by_name(source.functions()), by_name(target.functions())
    if allowed is not None:
        lost = allowed.refused_functions([*mine.values()])
        mine = {name: text for name, text in mine.items() if text not in lost}
        theirs = {name: text for name, text in theirs.items() if text not in lost}
    refused = target.refused_functions([*theirs.values()])
    result.functions = len(mine)
    for name in sorted(mine.keys() | theirs.keys()):
        here, there = mine.get(name), theirs.get(name)
        found = _size(there)
        if here == there and there is not None:
            if there not in refused:
                continue
            found = f"cannot be loaded: {refused[there]}"
        yield Difference(0, name, LIBRARY, _size(here), found, may_move=False)


def _size(text: bytes | None) -> str:
    return ABSENT if text is None else f"{len(text)} bytes"


class _Pass:
    """The common part of both ways of comparing."""

    def __init__(self, options: VerifyOptions, result: Verification) -> None:
        self.result = result
        self._options = options

    def _examine(self, name: DbKey, item: Item) -> Examined:
        examined = examine(item, self._options.watch)
        self.result.keys += 1
        self.result.entries += examined.entries
        if self._options.keep_digests and examined.state is not None:
            self.result.digests[name] = examined.digest.hex
        return examined

    def _is_compared(self, item: Item) -> bool:
        """Return whether to compare a key; count it if it is left out."""
        what, allowed = item.kind, self._options.allowed
        if item.kind in SUPPORTED:
            loss = None if allowed is None else allowed.find_exclusion(item)
            if loss is None:
                return not item.is_expired
            what = loss.what
        self.result.skipped[what] = self.result.skipped.get(what, 0) + 1
        return False

    def _outside(self, name: DbKey, source: Examined, target: Examined) -> Iterator[Difference]:
        """Yield the differences of two keys, without those of their entries."""
        for mismatch in outside_entries(source, target, self._options.tolerance_ms):
            yield in_key(*name, mismatch)
        if source.state is not None and target.state is not None:
            self.result.uncompared.update(differences.untold(source.state, target.state))

    def _entries(
        self, name: DbKey, source: Iterator[Page], target: Iterator[Page]
    ) -> Iterator[Difference]:
        for count, mismatch in enumerate(differences.entries(source, target)):
            if count == self._options.entries_told:
                yield in_key(*name, _MORE)
                return
            yield in_key(*name, mismatch)


class _Ranged(_Pass):
    """Reads one place in its order, and asks the other for each key."""

    def __init__(
        self,
        driver: Source,
        asked: Source,
        options: VerifyOptions,
        result: Verification,
        swapped: bool,
    ) -> None:
        super().__init__(options, result)
        self._driver = driver
        self._asked = asked
        self._swapped = swapped
        """Whether the driver is the target."""
        self._windows: dict[DbKey, list[Window]] = {}
        """The windows to read again from a driver that is not ranged."""
        self._seen: set[DbKey] = set()
        """The keys of the driver, or as many as are kept."""

    def run(self) -> Iterator[Difference]:
        for item in self._driver.items(self._options.selection):
            if len(self._seen) < self._options.keys_kept or not self._driver.ranged:
                self._seen.add((item.db, item.key))
            if self._is_compared(item):
                yield from self._compare(item)
        yield from self._details()
        for other in self._asked.items(self._options.selection):
            if not self._was_seen(other) and self._is_compared(other):
                yield in_key(other.db, other.key, missing(other.kind, self._swapped))

    def _was_seen(self, item: Item) -> bool:
        """Return whether the driver had a key; beyond the names that are kept, it is asked."""
        if (item.db, item.key) in self._seen or len(self._seen) < self._options.keys_kept:
            return (item.db, item.key) in self._seen
        return self._driver.ranged and self._driver.item(item.db, item.key) is not None

    def _compare(self, item: Item) -> Iterator[Difference]:
        name = item.db, item.key
        mine = self._examine(name, item)
        if mine.kind == GONE:
            return
        other = self._asked.item(*name)
        if other is None:
            yield in_key(*name, missing(item.kind, not self._swapped))
            return
        theirs = examine(other)
        pair = (theirs, mine) if self._swapped else (mine, theirs)
        yield from self._outside(name, *pair)
        wanted = differing(*pair) if mine.kind == theirs.kind else []
        if not wanted:
            return
        if self._driver.ranged:
            yield from self._detail(name, item, wanted)
        else:
            self._windows[name] = wanted

    def _details(self) -> Iterator[Difference]:
        """Read a driver that is not ranged again, for the entries in windows."""
        if self._windows:
            for item in self._driver.items(self._options.selection):
                wanted = self._windows.get((item.db, item.key))
                if wanted is not None:
                    yield from self._detail((item.db, item.key), item, wanted)

    def _detail(self, name: DbKey, item: Item, wanted: list[Window]) -> Iterator[Difference]:
        other = self._asked.item(*name)
        theirs = iter(()) if other is None else pages_in(other, wanted)
        mine = pages_in(item, wanted)
        pair = (theirs, mine) if self._swapped else (mine, theirs)
        return self._entries(name, *pair)


class _InPasses(_Pass):
    """Reads two places that are not ranged: digests of the source stay in memory."""

    def __init__(
        self, source: Source, target: Source, options: VerifyOptions, result: Verification
    ) -> None:
        super().__init__(options, result)
        self._source = source
        self._target = target

    def run(self) -> Iterator[Difference]:
        mine: dict[DbKey, Examined] = {}
        for item in self._source.items(self._options.selection):
            if self._is_compared(item):
                name = item.db, item.key
                mine[name] = self._examine(name, item)
        wanted: dict[DbKey, list[Window]] = {}
        for item in self._target.items(self._options.selection):
            if item.kind in SUPPORTED and not item.is_expired:
                yield from self._compare(item, mine.pop((item.db, item.key), None), wanted)
        for name, left in mine.items():
            yield in_key(*name, missing(left.kind, at_source=True))
        yield from self._details(wanted)

    def _compare(
        self, item: Item, mine: Examined | None, wanted: dict[DbKey, list[Window]]
    ) -> Iterator[Difference]:
        name = item.db, item.key
        if mine is None:
            yield in_key(*name, missing(item.kind, at_source=False))
            return
        theirs = examine(item)
        yield from self._outside(name, mine, theirs)
        windows = differing(mine, theirs)
        if windows and mine.kind == theirs.kind:
            wanted[name] = windows

    def _details(self, wanted: dict[DbKey, list[Window]]) -> Iterator[Difference]:
        """Read both again; the source's entries in the windows are kept in memory."""
        if not wanted:
            return
        few = {name: windows[:WINDOWS_TOLD] for name, windows in wanted.items()}
        kept = {
            (item.db, item.key): list(pages_in(item, few[item.db, item.key]))
            for item in self._source.items(self._options.selection)
            if (item.db, item.key) in wanted
        }
        for item in self._target.items(self._options.selection):
            name = item.db, item.key
            if name in wanted:
                theirs = pages_in(item, few[name])
                yield from self._entries(name, iter(kept.pop(name, [])), theirs)
                if len(wanted[name]) > WINDOWS_TOLD:
                    yield in_key(*name, _MORE)
