"""What runs become where very many IDs change hands, made ready before anything is changed.

Runs are replaced one by one, so that what others do meanwhile to one of them leaves the rest true:
only neighbours that come to share everything are joined.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from kvstream.errors import Corruption
from kvstream.meta.pending import RUN_IDS_MAX, Shared, run_at
from kvstream.meta.records import GroupMeta
from kvstream.meta.runs import PackedID, Run
from kvstream.meta.txn import Txn

Targets = Mapping[PackedID, Shared | None]
"""What IDs are to share, None: they leave. Of those that are not in it nothing changes."""
Decide = Callable[[Run | None, Sequence[PackedID]], Targets]
"""Return the targets of some IDs: those that a run has, or, without one, that are not pending."""


@dataclass(slots=True)
class Weaving:
    """Runs that are to go, and those that are to take their place."""

    old: list[Run] = field(default_factory=list)
    new: dict[PackedID, tuple[bytes, Run]] = field(default_factory=dict)
    """By their anchors, with their rows."""


def stretches(
    txn: Txn, group: GroupMeta, ids: Sequence[PackedID]
) -> list[tuple[Run | None, Sequence[PackedID]]]:
    """Return all of ``ids``, ascending, shared out by the runs that reach over them."""
    found: list[tuple[Run | None, Sequence[PackedID]]] = []
    at = 0
    while at < len(ids):
        run = run_at(txn, group, ids[at])
        if run is not None:
            end = bisect_right(ids, run.ids[-1], at)
        else:
            following = group.runs.first(txn.batch, ids[at])
            end = len(ids) if following is None else bisect_left(ids, following.anchor, at)
            if end == at:
                raise Corruption(f"pending entries are out of order at {ids[at].hex()}")
        found.append((run, ids[at:end]))
        at = end
    return found


def weave(txn: Txn, group: GroupMeta, ids: Sequence[PackedID], decide: Decide) -> Weaving:
    """Return what becomes of the runs that ``ids``, ascending and distinct, lie in or between."""
    made = Weaving()
    before: Run | None = None
    """What the new runs so far end with, where the next one may be joined to it."""
    last: Run | None = None
    for run, within in stretches(txn, group, ids):
        targets, every = _targets(run, within, decide)
        if not targets:
            before = None
            continue
        if run is None:
            before = None
        else:
            made.old.append(run)
            if before is not None and not (last and group.runs.is_next(last.anchor, run.anchor)):
                before = None
        pieces = _pieces(run, every, targets)
        for at, (part, shared) in enumerate(pieces):
            before = _joined(before, part, shared)
            if before is None:
                anchor = part[0] if run is None or at else run.anchor
                before = Run(anchor, part, *shared)
            made.new[before.anchor] = before.encode(), before
        if pieces and pieces[-1][0][-1] not in targets:
            before = None
        last = run
    return made


def _targets(
    run: Run | None, within: Sequence[PackedID], decide: Decide
) -> tuple[Targets, Sequence[PackedID]]:
    """Return what some IDs become, and these in order with those that a run has besides."""
    if run is None or within == run.ids:
        return decide(run, within), within
    there = frozenset(run.ids)
    targets = dict(decide(run, [eid for eid in within if eid in there]))
    absent = [eid for eid in within if eid not in there]
    if absent:
        targets.update(decide(None, absent))
    fresh = [eid for eid in absent if eid in targets]
    return targets, sorted([*run.ids, *fresh]) if fresh else run.ids


def _pieces(
    run: Run | None, every: Sequence[PackedID], targets: Targets
) -> list[tuple[Sequence[PackedID], Shared]]:
    """Return IDs as they are to stand in runs."""
    shares = set(targets.values())
    if len(shares) == 1 and len(targets) == len(every):
        (shared,) = shares
        found = [] if shared is None else [(shared, every)]
    else:
        own = None if run is None else run[2:]
        kept = [(to, eid) for eid in every if (to := targets.get(eid, own)) is not None]
        found = [(to, [eid for _, eid in same]) for to, same in groupby(kept, itemgetter(0))]
    return [
        (part[at : at + RUN_IDS_MAX], shared)
        for shared, part in found
        for at in range(0, len(part), RUN_IDS_MAX)
    ]


def _joined(before: Run | None, part: Sequence[PackedID], shared: Shared) -> Run | None:
    """Return a new run made longer; None where that cannot be."""
    if before is None or before[2:] != shared or len(before.ids) + len(part) > RUN_IDS_MAX:
        return None
    return before._replace(ids=[*before.ids, *part])
