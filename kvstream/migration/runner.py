"""``plan`` and ``run``: the loops over all keys of a source."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstream.migration import differences
from kvstream.migration.copy import (
    Carried,
    CarriedFunctions,
    CopyOptions,
    LossRefused,
    Outcome,
    copy_functions,
    copy_key,
)
from kvstream.migration.items import (
    STREAM,
    SUPPORTED,
    Counted,
    Item,
    Outline,
    PlannedTarget,
    Selection,
    Source,
    Target,
    Watch,
)
from kvstream.migration.journal import Journal
from kvstream.rdb.versions import Loss

REFUSED_MAX = 1000
"""Most keys that LossRefused names."""


class Planned(NamedTuple):
    """What ``run`` would do with a key."""

    db: int
    key: bytes
    kind: str
    carried: bool
    """Whether its type is supported."""
    exists: bool
    """Whether the target has a key of that name."""
    entries: int = 0
    bytes: int = 0
    groups: int = 0
    pending: int = 0
    expire_at_ms: int = 0
    losses: tuple[Loss, ...] = ()
    corrections: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """The result of a run."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    """Keys of unsupported types, by type."""
    entries: int = 0
    """Entries of all streams that are at the target now."""
    bytes: int = 0
    resumed_keys: int = 0
    resumed_entries: int = 0
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
        return self.outcomes.total()

    def count(self, carried: Carried) -> None:
        self.outcomes[carried.outcome] += 1
        if carried.outcome is Outcome.SKIPPED:
            self.skipped[carried.kind] += 1
        self.entries += carried.entries
        self.bytes += carried.bytes
        self.resumed_entries += carried.resumed
        self.losses.update({loss.name for loss in carried.losses})
        if carried.losses or carried.corrections or carried.reported:
            self.noteworthy.append(carried)


def plan(
    source: Source,
    target: PlannedTarget | None,
    selection: Selection,
    watch: Watch = lambda entries, bytes: None,
) -> Iterator[Planned]:
    """Yield each key with what ``run`` would do; nothing is written.

    Without a target only losses by reading the source are listed.
    """
    existing = None if target is None else target.existing
    for item in source.items(selection):
        exists = existing is not None and existing.item(item.db, item.key) is not None
        if item.kind == STREAM:
            yield _planned_stream(item, target, exists, watch)
        elif item.kind in SUPPORTED:
            value = None if item.value is None else item.value()
            size = 0 if value is None else len(value)
            yield _planned(item, exists)._replace(bytes=size)
        else:
            yield _planned(item, exists)._replace(bytes=item.size)


def _planned(item: Item, exists: bool) -> Planned:
    carried = item.kind in SUPPORTED
    return Planned(item.db, item.key, item.kind, carried, exists, expire_at_ms=item.expire_at_ms)


def _planned_stream(
    item: Item, target: PlannedTarget | None, exists: bool, watch: Watch
) -> Planned:
    outline, corrections = _outlined(item, watch)
    losses = outline.notes + ([] if target is None else target.losses(outline.state))
    return _planned(item, exists)._replace(
        entries=outline.entries,
        bytes=outline.bytes(),
        groups=len(outline.state.groups),
        pending=sum(len(group.pending) for group in outline.state.groups),
        losses=tuple(losses),
        corrections=tuple(corrections),
    )


def _outlined(item: Item, watch: Watch = lambda entries, bytes: None) -> tuple[Outline, list[str]]:
    """Return the outline of a stream, from the source or by reading the stream."""
    if item.outline is not None:
        return item.outline(), []
    content = Counted(item.content(), watch)
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
    """Called if the source is searched for losses first."""


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
    if target.may_lose or source.may_lose or (source.has_queues and not target.has_queues):
        progress.planning()
        _refuse_losses(source, target, selection, options)
    report = Report()
    if not selection.match:  # a choice of keys has no functions
        report.functions = copy_functions(source, target, options.replace)
    for item in source.items(selection):
        carried = _resumed(item, target, journal)
        if carried is None:
            carried = copy_key(item, target, options)
            if journal is not None:
                journal.done(carried)
        else:
            report.resumed_keys += 1
        report.count(carried)
        progress.key(carried)
    target.finish()
    if journal is not None:
        keys = report.keys - report.outcomes[Outcome.SKIPPED]
        journal.finish(keys, report.entries)
    return report


def _refuse_losses(
    source: Source, target: Target, selection: Selection, options: CopyOptions
) -> None:
    refused: dict[bytes, list[Loss]] = {}
    for item in source.items(selection):
        if item.kind != STREAM or item.is_expired:
            continue
        outline, _ = _outlined(item)
        lost = options.refused([*outline.notes, *target.losses(outline.state)])
        if lost and len(refused) < REFUSED_MAX:
            refused[item.key] = lost
    if refused:
        raise LossRefused(refused)


def _resumed(item: Item, target: Target, journal: Journal | None) -> Carried | None:
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
    if item.outline is not None and not _alike(item.outline(), there):
        return None
    return Carried(item.db, item.key, item.kind, Outcome.SAME, entries)


def _alike(source: Outline, target: Outline) -> bool:
    """Return whether two streams are equal, as far as their outlines tell."""
    different = differences.states(source.state, target.state)
    return source.entries == target.entries and all(each.may_move for each in different)
