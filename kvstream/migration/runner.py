"""``plan`` and ``run``: the loops over all keys of a source."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstream.migration import differences
from kvstream.migration.copy import (
    Carried,
    CopyOptions,
    LossCount,
    LossRefused,
    Outcome,
    copy_key,
    find_exclusion,
)
from kvstream.migration.items import (
    LIBRARY,
    STREAM,
    STRING,
    SUPPORTED,
    DbKey,
    Item,
    Outline,
    PlannedTarget,
    Selection,
    Source,
    Target,
    Watch,
    watch_nothing,
)
from kvstream.migration.journal import Journal
from kvstream.migration.libraries import (
    CarriedFunctions,
    PlannedLibrary,
    copy_functions,
    plan_functions,
)
from kvstream.rdb.versions import LOSSES, Loss


class Planned(NamedTuple):
    """What ``run`` would do with a key, or with a library of functions."""

    db: int
    """The number of its database."""
    key: bytes
    """Its name, or that of the library."""
    kind: str
    """The type, as TYPE names it, or LIBRARY."""
    carried: bool
    """Whether the target can hold it; ``losses`` says why not."""
    exists: bool
    """Whether the target has a key of that name."""
    entries: int = 0
    """The number of entries of a stream."""
    bytes: int = 0
    """About how many bytes it has; 0 if the source does not tell."""
    groups: int = 0
    """The number of consumer groups."""
    pending: int = 0
    """The number of pending entries of all groups."""
    expire_at_ms: int = 0
    """When it expires, in Unix milliseconds; 0: never."""
    losses: tuple[Loss, ...] = ()
    """What of it the target cannot have."""
    corrections: tuple[str, ...] = ()
    """Wrong counters of the source, and what they become."""


@dataclass(slots=True)
class Report:
    """The result of a run."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    """The number of keys by what became of them."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Keys that were left out, by type, or by what the target lacks: ``database 19``."""
    entries: int = 0
    """Entries of all streams that are at the target now."""
    bytes: int = 0
    """Bytes of the values that were copied."""
    resumed_keys: int = 0
    """Keys that an interrupted run had copied."""
    resumed_entries: int = 0
    """Entries that an interrupted run had copied."""
    losses: Counter[str] = field(default_factory=Counter)
    """The number of keys by loss."""
    noteworthy: list[Carried] = field(default_factory=list)
    """Keys that differ, were corrected or have lost something."""
    functions: CarriedFunctions = field(default_factory=CarriedFunctions)
    """The libraries of functions; they are not keys."""

    @property
    def complete(self) -> bool:
        """Whether no key and no library of functions at the target differs."""
        outcomes = self.outcomes + self.functions.outcomes
        return not outcomes[Outcome.DIFFERENT]

    @property
    def keys(self) -> int:
        """The number of keys, whatever became of them."""
        return self.outcomes.total()

    def count(self, carried: Carried) -> None:
        """Add ``carried``, what became of one key."""
        self.outcomes[carried.outcome] += 1
        if carried.outcome is Outcome.SKIPPED:
            self.skipped.update(loss.what for loss in carried.losses)
        self.entries += carried.entries
        self.bytes += carried.bytes
        self.resumed_entries += carried.resumed
        self.losses.update({loss.name for loss in carried.losses})
        lost = carried.losses if carried.outcome is not Outcome.SKIPPED else ()
        if lost or carried.corrections or carried.reported:
            self.noteworthy.append(carried)


def plan(
    source: Source,
    target: PlannedTarget | None,
    selection: Selection,
    watch: Watch = watch_nothing,
) -> Iterator[Planned]:
    """Yield each key and each library with what ``run`` would do; nothing is written.

    Without a target only what every target loses is listed.
    """
    for item in _select(source, target, selection):
        lost = _losses(item, target, watch)
        exists = False
        if lost.is_held and target is not None and target.existing is not None:
            exists = target.existing.item(item.db, item.key) is not None
        planned = Planned(item.db, item.key, item.kind, lost.is_held, exists)
        yield _measure(planned, item, lost)
    for library in _libraries(source, target, selection):
        losses = () if library.loss is None else (library.loss,)
        exists = library.present is not None
        yield Planned(0, library.name, LIBRARY, not losses, exists)._replace(
            bytes=len(library.text), losses=losses
        )


def _select(source: Source, target: PlannedTarget | None, selection: Selection) -> Iterator[Item]:
    """Yield the selected keys; if a key may come once only, mark those that come again."""
    marks = target is not None and target.takes_keys_once and not source.ranged
    seen: set[DbKey] = set()
    for item in source.items(selection):
        if marks:
            item.is_repeated = (item.db, item.key) in seen
            seen.add((item.db, item.key))
        yield item


class _Lost(NamedTuple):
    """What a migration of a key loses."""

    losses: list[Loss]
    is_held: bool
    """Whether the target can hold the key."""
    outline: Outline | None = None
    corrections: tuple[str, ...] = ()


def _losses(
    item: Item,
    target: PlannedTarget | None,
    watch: Watch = watch_nothing,
    *,
    looks_inside: bool = True,
) -> _Lost:
    """Return what a key loses, for ``plan`` and for ``run``.

    ``looks_inside`` is false if nothing of a stream that the target can hold may be lost.
    """
    loss = None if item.is_expired else find_exclusion(item, target)
    if loss is not None:
        return _Lost([loss], False)
    if item.kind != STREAM or not looks_inside:
        return _Lost([], item.kind in SUPPORTED)
    outline, corrections = _outline(item, watch)
    losses = outline.notes + ([] if target is None else target.losses(outline.state))
    return _Lost([] if item.is_expired else losses, True, outline, tuple(corrections))


def _measure(planned: Planned, item: Item, lost: _Lost) -> Planned:
    """Return a planned key with its sizes."""
    size = item.size
    if lost.outline is not None:
        size = lost.outline.bytes()
    elif item.kind == STRING and lost.is_held and item.value is not None:
        size = len(item.value() or b"")
    groups = [] if lost.outline is None else lost.outline.state.groups
    return planned._replace(
        entries=0 if lost.outline is None else lost.outline.entries,
        bytes=size,
        groups=len(groups),
        pending=sum(len(group.pending) for group in groups),
        expire_at_ms=item.expire_at_ms,
        losses=tuple(lost.losses),
        corrections=lost.corrections,
    )


def _libraries(
    source: Source, target: PlannedTarget | None, selection: Selection
) -> list[PlannedLibrary]:
    """Return the libraries to migrate; a choice of keys has none."""
    return [] if selection.match else plan_functions(source, target)


def _outline(item: Item, watch: Watch = watch_nothing) -> tuple[Outline, list[str]]:
    """Return the outline of a stream, from the source or by reading the stream."""
    if item.outline is not None:
        return item.outline(), []
    content = item.content(watch)
    for _ in content.nodes():
        pass
    state = content.state()
    outline = Outline(content.entries, lambda: content.bytes, state, content.notes)
    return outline, content.corrections


@dataclass(frozen=True, slots=True)
class Progress:
    """Callbacks about the progress of a run."""

    key: Callable[[Carried], None] = lambda carried: None
    """Called after each key."""
    planning: Callable[[], None] = lambda: None
    """Called before the source is searched for losses."""


def run(
    source: Source,
    target: Target,
    selection: Selection,
    options: CopyOptions,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> Report:
    """Copy all selected keys to the target.

    Raises LossRefused, before anything is written, for a loss that ``options`` does not allow. An
    existing key that differs stays, unless ``options.replace``; the report lists it. Keys that are
    copied before an error stay.
    """
    progress = progress or Progress()
    progress.planning()
    libraries = check_losses(source, target, selection, options)
    report = Report()
    report.functions = copy_functions(libraries, target, options)
    for item in _select(source, target, selection):
        carried = _resume(item, target, journal)
        if carried is None:
            carried = copy_key(item, target, options)
            if journal is not None:
                journal.record_done(carried)
        else:
            report.resumed_keys += 1
        report.count(carried)
        progress.key(carried)
    target.finish()
    if journal is not None:
        keys = report.keys - report.outcomes[Outcome.SKIPPED]
        journal.finish(keys, report.entries)
    return report


def check_losses(
    source: Source,
    target: PlannedTarget,
    selection: Selection,
    options: CopyOptions,
    *,
    keys_only: bool = False,
) -> list[PlannedLibrary]:
    """Raise LossRefused for losses that ``options`` does not allow; return the libraries.

    ``keys_only``: only whole keys and libraries, not parts of streams.
    """
    refused = LossCount()
    if not options.allowed >= LOSSES.keys():
        looks_inside = not keys_only and (
            target.may_lose or source.may_lose or (source.has_queues and not target.has_queues)
        )
        for item in _select(source, target, selection):
            lost = _losses(item, target, looks_inside=looks_inside)
            refused.add(item.key, options.select_refused(lost.losses))
    libraries = _libraries(source, target, selection)
    for each in libraries:
        if each.loss is not None:
            refused.add(each.name, options.select_refused([each.loss]))
    if refused:
        raise LossRefused(refused)
    return libraries


def _resume(item: Item, target: Target, journal: Journal | None) -> Carried | None:
    """Return the result of a stream that an interrupted run has copied, if both are unchanged.

    Entries are not read: counts and states are compared.
    """
    if journal is None or target.existing is None or item.kind != STREAM:
        return None
    entries = journal.resumed.get((item.db, item.key))
    if entries is None:
        return None
    existing = target.existing.item(item.db, item.key)
    if existing is None or existing.outline is None:
        return None
    there = existing.outline()
    if there.entries != entries:
        return None
    if item.outline is not None and not _alike(item.outline(), there, target):
        return None
    losses, corrections = journal.notes_of((item.db, item.key))
    return Carried(
        *(item.db, item.key, item.kind, Outcome.SAME, entries),
        losses=losses,
        corrections=corrections,
    )


def _alike(source: Outline, there: Outline, target: Target) -> bool:
    """Return whether two streams are equal, as far as their outlines tell.

    What the target cannot hold is no difference.
    """
    target.reduce(source.state)
    different = differences.states(source.state, there.state)
    return source.entries == there.entries and all(each.may_move for each in different)
