"""``plan`` and ``run``: all keys of a source, one after the other."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstream.migration import differences
from kvstream.migration.copy import Carried, LossRefused, Manner, Outcome, carry
from kvstream.migration.items import (
    CARRIED,
    STREAM,
    Counted,
    Item,
    Outline,
    Reception,
    Selection,
    Source,
    Target,
    Watch,
    now_ms,
)
from kvstream.migration.journal import Journal
from kvstream.rdb.versions import Loss

REFUSED_MAX = 1000
"""Keys that are kept to be named where a run is refused for what it would lose."""


class Planned(NamedTuple):
    """What ``run`` would do with a key."""

    db: int
    key: bytes
    kind: str
    carried: bool
    """False: it is of a kind that kvstream does not have."""
    exists: bool
    """Whether a key of that name is at the target."""
    entries: int = 0
    bytes: int = 0
    groups: int = 0
    pending: int = 0
    expire_at_ms: int = 0
    losses: tuple[Loss, ...] = ()
    corrections: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """What a run has done."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    """Keys of kinds that are not carried, by kind."""
    entries: int = 0
    """Entries of all streams that are at the target now."""
    bytes: int = 0
    resumed_keys: int = 0
    resumed_entries: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    """How many keys have lost what, as allowed."""
    noteworthy: list[Carried] = field(default_factory=list)
    """Keys that differ, were corrected or have lost something."""

    @property
    def complete(self) -> bool:
        """Whether all that was to be carried is at the target."""
        return not self.outcomes[Outcome.DIFFERENT]

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
        if carried.losses or carried.corrections or carried.told:
            self.noteworthy.append(carried)


def plan(
    source: Source,
    target: Reception | None,
    selection: Selection,
    watch: Watch = lambda entries, bytes: None,
) -> Iterator[Planned]:
    """Yield what there is and what would become of it; nothing is written.

    ``target`` None: only what is lost by reading the source is told.
    """
    existing = None if target is None else target.existing
    for item in source.items(selection):
        exists = existing is not None and existing.item(item.db, item.key) is not None
        if item.kind == STREAM:
            yield _planned_stream(item, target, exists, watch)
        elif item.kind in CARRIED:
            value = None if item.value is None else item.value()
            size = 0 if value is None else len(value)
            yield _planned(item, exists)._replace(bytes=size)
        else:
            yield _planned(item, exists)._replace(bytes=item.size)


def _planned(item: Item, exists: bool) -> Planned:
    carried = item.kind in CARRIED
    return Planned(item.db, item.key, item.kind, carried, exists, expire_at_ms=item.expire_at_ms)


def _planned_stream(item: Item, target: Reception | None, exists: bool, watch: Watch) -> Planned:
    outline, corrections = _outlined(item, watch)
    losses = outline.notes + ([] if target is None else target.losses(outline.state))
    return _planned(item, exists)._replace(
        entries=outline.entries,
        bytes=outline.bytes,
        groups=len(outline.state.groups),
        pending=sum(len(group.pending) for group in outline.state.groups),
        losses=tuple(losses),
        corrections=tuple(corrections),
    )


def _outlined(item: Item, watch: Watch) -> tuple[Outline, list[str]]:
    """Return what a stream is: as its source says, or by reading all of it."""
    if item.outline is not None:
        return item.outline(), []
    content = Counted(item.content(), watch)
    for _ in content.nodes():
        pass
    state = content.state()
    return Outline(content.entries, content.bytes, state, content.notes), content.corrections


@dataclass(frozen=True, slots=True)
class Told:
    """Who is told how a run goes on."""

    key: Callable[[Carried], None] = lambda carried: None
    """Each key, when it has been dealt with."""
    planning: Callable[[], None] = lambda: None
    """That the source is looked through for losses first."""


def run(
    source: Source,
    target: Target,
    selection: Selection,
    manner: Manner,
    journal: Journal | None = None,
    told: Told | None = None,
) -> Report:
    """Bring all selected keys to the target.

    Raises LossRefused before anything is written where something would be lost that ``manner`` does
    not allow. A key that is there and differs stays as it is, unless told otherwise: the report has
    it. What is finished before an error stays.
    """
    told = told or Told()
    if target.may_lose or source.may_lose:
        told.planning()
        _refuse_losses(source, target, selection, manner)
    report = Report()
    for item in source.items(selection):
        carried = _resumed(item, target, journal)
        if carried is None:
            carried = carry(item, target, manner)
            if journal is not None:
                journal.done(carried)
        else:
            report.resumed_keys += 1
        report.count(carried)
        told.key(carried)
    target.finish()
    if journal is not None:
        keys = report.keys - report.outcomes[Outcome.SKIPPED]
        journal.finish(keys, report.entries)
    return report


def _refuse_losses(source: Source, target: Target, selection: Selection, manner: Manner) -> None:
    refused: dict[bytes, list[Loss]] = {}
    for planned in plan(source, target, selection):
        lost = [loss for loss in planned.losses if loss.name not in manner.allowed]
        expired = planned.expire_at_ms and planned.expire_at_ms <= now_ms()
        if lost and not expired and len(refused) < REFUSED_MAX:
            refused[planned.key] = lost
    if refused:
        raise LossRefused(refused)


def _resumed(item: Item, target: Target, journal: Journal | None) -> Carried | None:
    """Return a stream that an interrupted run has brought, if it is there as it was brought.

    Its entries are not read again; where its source has been changed since, it is as any other.
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
    """Tell whether two streams are the same, as far as can be seen without their entries."""
    told = differences.states(source.state, target.state)
    return source.entries == target.entries and all(each.may_move for each in told)
