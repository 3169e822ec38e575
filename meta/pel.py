"""Keep a group's pending entries list (PEL) as runs, with the indexes of meta/pel_index.py.

Reading a hundred entries writes four runs, not a hundred rows. A single entry is a run of one::

    runs row := group's tree(u64) anchor(id) -> run

Runs do not overlap: an ID between a run's anchor and its last ID is either in that run or not
pending. So the run of an ID is the last one anchored at or below it. Adding IDs inside a run's
range splits that run first. Runs that were given back (XNACK) have no owner, time 0 and a growing
rank: the index by time yields them first, in the order in which they came back, and those of one
rank by ID. Those that wait before they are delivered again have the time at which they are ready.

``plan`` computes what runs become when IDs change owners, before anything is changed. Runs
are replaced one by one, so that a concurrent change of one leaves the others valid; only neighbours
that come to share everything are joined.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter

from kvstream.errors import Corruption
from kvstream.layout.keys import ID_BYTES
from kvstream.meta import pel_index
from kvstream.meta.changeset import Changeset
from kvstream.meta.compiled import plain
from kvstream.meta.keyed import Edit, Key, Keyed
from kvstream.meta.records import ConsumerMeta, GroupMeta
from kvstream.meta.runs import (
    HELD_MS,
    OWNED_FIRST,
    TIME_BYTES,
    Run,
    Shared,
    first_waiting,
    new_run,
    offset_of,
    time_and_rank,
    time_of,
)
from kvstream.meta.wakeups import Wake
from kvstream.storage.batch import Family
from kvstream.types.images import PackedID

VALID_IDS_MAX = 128
"""IDs of the longest run that is not damaged: earlier versions wrote as many."""

_NO_TIME = -1
"""Before every delivery: ``runs_by_time`` yields the runs that were given back alone."""
_suffix_of = attrgetter("times_suffix")

COUNT_MAX = (1 << 63) - 1
"""The greatest delivery count: Redis's XNACK FATAL sets it, and it does not grow further."""

# --- reading ------------------------------------------------------------------------------------


def run_at(txn: Changeset, group: GroupMeta, eid: PackedID) -> Run | None:
    """Return the run whose range of IDs includes ``eid``, whether or not it is pending."""
    if not group.indexed:
        run = group.runs.floor(txn.batch, eid)
        return run if run is not None and run.last >= eid else None
    near = group.near  # most entries are acknowledged in the order in which they were delivered
    if near is not None and near.anchor <= eid <= near.last:
        return near
    # on disk a run of its own is found by key in a third of the time
    run = group.runs.get(txn.batch, eid) or group.runs.floor(txn.batch, eid)
    if run is None or run.last < eid:
        return None
    group.near = run
    return run


def pending_among(txn: Changeset, group: GroupMeta, ids: Sequence[PackedID]) -> list[PackedID]:
    """Return those of ``ids``, ascending, that are pending."""
    pending: list[PackedID] = []
    for run, within in runs_at(txn, group, ids):
        pending += pending_of(run, within)
    return pending


def pending_of(run: Run, ids: Sequence[PackedID]) -> list[PackedID]:
    """Return those of ``ids``, all within the bounds of a run, that are in it."""
    own = frozenset(run.ids)
    return [eid for eid in ids if eid in own]


def runs_at(
    txn: Changeset, group: GroupMeta, ids: Sequence[PackedID]
) -> Iterator[tuple[Run, Sequence[PackedID]]]:
    """Yield the runs that may have some of ``ids``, ascending, each with those within its bounds.

    A run may be changed or removed after it was yielded.
    """
    at = 0
    while at < len(ids):
        run = run_at(txn, group, ids[at])
        if run is None:
            if at + 1 == len(ids):
                return
            # a stream may have thousands of groups without pending entries
            following = group.runs.first(txn.batch, ids[at])
            at = len(ids) if following is None else bisect_left(ids, following.anchor, at + 1)
            continue
        end = bisect_right(ids, run.last, at)
        yield run, ids[at:end]
        at = end


def runs_from(txn: Changeset, group: GroupMeta, start: PackedID) -> Iterator[Run]:
    """Yield the runs that may hold IDs at or above ``start``, in order."""
    first = group.runs.floor(txn.batch, start)
    return group.runs.scan(txn.batch, first.anchor if first else start)


def runs_of(
    txn: Changeset, group: GroupMeta, consumer: ConsumerMeta, start: PackedID = b""
) -> Iterator[Run]:
    """Yield the runs of one consumer that may hold IDs at or above ``start``, in order."""
    for anchor in pel_index.anchors_of(txn, group, consumer, start):
        yield run_by_anchor(txn, group, anchor)


def runs_by_time(txn: Changeset, group: GroupMeta, latest_ms: int) -> Iterator[Run]:
    """Yield the runs delivered at ``latest_ms`` or before, oldest first.

    Those given back come before all others.
    """
    for suffix in pel_index.times_of(txn, group):
        time_ms = time_of(suffix)
        if time_ms > max(0, latest_ms):
            return
        run = run_by_anchor(txn, group, suffix[TIME_BYTES:])
        if time_ms <= latest_ms or not run.owned:
            yield run


def oldest_time(txn: Changeset, group: GroupMeta) -> int | None:
    """Return the least delivery time of all pending entries."""
    suffix = next(pel_index.times_of(txn, group), None)
    return None if suffix is None else time_of(suffix)


FEW_RUNS = 128
"""Runs that are looked through without an index: to build and keep one would take longer."""


def _runs_without_index(txn: Changeset, group: GroupMeta) -> list[Run] | None:
    """Return the runs of a group whose order is not kept, None if they are many."""
    if group.indexed or (group.index is not None and group.index.is_ordered):
        return None
    runs = group.runs.some(txn.batch, b"", FEW_RUNS + 1)
    return runs if len(runs) <= FEW_RUNS else None


def oldest_delivery(txn: Changeset, group: GroupMeta) -> int | None:
    """Return the least delivery time of entries that have an owner."""
    few = _runs_without_index(txn, group)
    if few is not None:
        return min([run.time_ms for run in few if run.owned], default=None)
    if pel_index.pending_in(txn, group) == pel_index.nacked_in(txn, group):
        return None
    for suffix in pel_index.times_of(txn, group, OWNED_FIRST):
        time_ms, rank = time_and_rank(suffix)
        if not rank:
            return time_ms
    return 0  # XCLAIM may set the time 0, which sorts before those given back


def ready_runs(txn: Changeset, group: GroupMeta) -> Iterator[Run]:
    """Yield the runs that were given back and do not wait, in the order of their return."""
    few = _runs_without_index(txn, group)
    if few is None:
        return runs_by_time(txn, group, _NO_TIME)
    ready = [run for run in few if run.rank and not run.time_ms]
    return iter(sorted(ready, key=_suffix_of))


def lapsed_runs(txn: Changeset, group: GroupMeta, latest_ms: int) -> Iterator[Run]:
    """Yield the runs with owners that were delivered at ``latest_ms`` or before, oldest first."""
    few = _runs_without_index(txn, group)
    if few is not None:
        lapsed = [run for run in few if run.owned and run.time_ms <= latest_ms]
        yield from sorted(lapsed, key=_suffix_of)
        return
    for suffix in pel_index.times_of(txn, group):
        time_ms, rank = time_and_rank(suffix)
        if time_ms or rank or latest_ms < 0:
            break
        yield run_by_anchor(txn, group, suffix[TIME_BYTES:])
    for suffix in pel_index.times_of(txn, group, OWNED_FIRST):
        time_ms, rank = time_and_rank(suffix)
        if time_ms > latest_ms:
            return
        if not rank:
            yield run_by_anchor(txn, group, suffix[TIME_BYTES:])


def runs_waiting_for(txn: Changeset, group: GroupMeta, time_ms: int) -> Iterator[Run]:
    """Yield the runs that were given back and wait for a time, in the order of their return."""
    for suffix in pel_index.times_of(txn, group, first_waiting(time_ms)):
        if time_of(suffix) > time_ms:
            return
        yield run_by_anchor(txn, group, suffix[TIME_BYTES:])


def next_ready_ms(txn: Changeset, group: GroupMeta) -> int | None:
    """Return when the first entry that waits for a time to come is ready; None if there is none."""
    for suffix in pel_index.times_of(txn, group, first_waiting(txn.now_ms)):
        time_ms, rank = time_and_rank(suffix)
        if rank:
            return None if time_ms == HELD_MS else time_ms
    return None


def run_by_anchor(txn: Changeset, group: GroupMeta, anchor: PackedID) -> Run:
    """Return the run of an anchor that an index names; raise Corruption if it is missing."""
    run = group.runs.get(txn.batch, anchor)
    if run is None:
        raise pel_index.missing_run(group, anchor)
    return run


def ids_between(run: Run, start: PackedID, end: PackedID) -> Sequence[PackedID]:
    """Return the run's IDs of ``start <= id <= end``."""
    ids = run.ids
    return ids[bisect_left(ids, start) : bisect_right(ids, end)]


# --- changing -----------------------------------------------------------------------------------


def deliver(
    txn: Changeset, group: GroupMeta, ids: Sequence[PackedID], owner: bytes, time_ms: int
) -> None:
    """Make ``ids``, ascending, pending for the first time, and take over those that are pending."""
    run = group.runs.last(txn.batch)
    if run is None or run.packed[-ID_BYTES:] < ids[0]:
        shared = (owner, time_ms, 1, 0)
        most = txn.thresholds.run_ids
        if run is not None and run[2:] == shared and run.length + len(ids) <= most:
            pel_index.resize(txn, group, run, run.packed + b"".join(ids))
        else:
            _append(txn, group, ids, shared)
    else:  # SETID moved the group's last ID back
        detach(txn, group, ids)
        insert(txn, group, ids, owner, time_ms, 1)


def insert(
    txn: Changeset,
    group: GroupMeta,
    ids: Sequence[PackedID],
    owner: bytes,
    time_ms: int,
    count: int,
    rank: int = 0,
) -> None:
    """Make ``ids``, ascending and not pending, pending."""
    if not ids:
        return
    last = group.runs.floor(txn.batch, ids[-1])
    shared = (owner, time_ms, count, rank)
    if last is None or last.last < ids[0]:  # no run overlaps them
        _append(txn, group, ids, shared)
        return
    runs: list[Run] = []
    for run, within in stretches(txn, group, ids):
        if run is not None:
            runs += _split_around(txn, group, run, within, shared)
        else:
            runs += _runs_of_some(txn, within, shared)
    pel_index.add_all(txn, group, runs)


def redeliver(
    txn: Changeset, group: GroupMeta, run: Run, ids: Sequence[PackedID], owner: bytes
) -> None:
    """Count another delivery, to ``owner`` and now, of IDs that were in a run."""
    if ids:
        detach(txn, group, ids)
        insert(txn, group, ids, owner, txn.now_ms, min(run.deliveries + 1, COUNT_MAX))


def _append(txn: Changeset, group: GroupMeta, ids: Sequence[PackedID], shared: Shared) -> None:
    """Write ``ids`` as runs of their own."""
    if len(ids) <= txn.thresholds.run_ids:
        pel_index.add(txn, group, Run.of(ids, shared))
    else:
        pel_index.add_all(txn, group, _runs_of_some(txn, ids, shared))


def _runs_of_some(txn: Changeset, ids: Sequence[PackedID], shared: Shared) -> list[Run]:
    """Return adjacent runs."""
    size = txn.thresholds.run_ids
    return [Run.of(ids[at : at + size], shared) for at in range(0, len(ids), size)]


def _split_around(
    txn: Changeset, group: GroupMeta, run: Run, ids: Sequence[PackedID], shared: Shared
) -> list[Run]:
    """Cut a run around new IDs; return all pieces but its first, with runs of the IDs between.

    ``ids`` are below its last one, and not in it.
    """
    old, pieces = run.ids, []
    at = cut = _position(old, ids[0])
    if cut:
        pel_index.resize(txn, group, run, run.packed[: cut * ID_BYTES])
    else:
        pel_index.remove(txn, group, run)
    mine = 0
    while mine < len(ids):
        end = bisect_left(ids, old[cut], mine)
        if end == mine:
            raise Corruption(f"pending entries are out of order at {ids[mine].hex()}")
        pieces += _runs_of_some(txn, ids[mine:end], shared)
        mine, at = end, cut
        cut = _position(old, ids[mine]) if mine < len(ids) else len(old)
        pieces.append(Run.of(old[at:cut], run.shared))
    return pieces


def _position(ids: Sequence[PackedID], eid: PackedID) -> int:
    """Return the index of the first ID at or above ``eid`` in a run that reaches it."""
    at = bisect_left(ids, eid)
    if at == len(ids):
        raise Corruption(f"the run of pending entries that ends at {ids[-1].hex()} is not sorted")
    return at


def detach(txn: Changeset, group: GroupMeta, ids: Sequence[PackedID]) -> list[PackedID]:
    """Remove ``ids``, ascending, from the PEL, for the caller to place them again.

    Returns those that were pending.
    """
    return [eid for _, lifted in _remove(txn, group, ids) for eid in lifted]


def acknowledge(txn: Changeset, group: GroupMeta, ids: Sequence[PackedID]) -> list[PackedID]:
    """Remove ``ids``, ascending, from the PEL; return those that were pending."""
    taken = detach(txn, group, ids)
    if group.keyed is not None:
        free_keys(txn, group, taken)
    return taken


def discard(txn: Changeset, group: GroupMeta, ids: Sequence[PackedID]) -> int:
    """Remove ``ids``, ascending and distinct, from the PEL; return how many were pending."""
    if group.keyed is not None:
        return len(acknowledge(txn, group, ids))
    return sum([len(dropped) for _, dropped in _remove(txn, group, ids)])


def discard_of(txn: Changeset, group: GroupMeta, consumer: ConsumerMeta) -> int:
    """Remove all entries of a consumer from the PEL; return how many there were."""
    if group.keyed is None:
        return pel_index.remove_of(txn, group, consumer)
    ids = [eid for run in runs_of(txn, group, consumer) for eid in run.ids]
    count = pel_index.remove_of(txn, group, consumer)
    free_keys(txn, group, ids)
    return count


def discard_one(txn: Changeset, group: GroupMeta, eid: PackedID) -> int:
    """Remove one ID from the PEL; return 1 if it was pending."""
    if plain is not None and (count := plain.discard(Run, txn, group, eid)) >= 0:
        return count
    run = run_at(txn, group, eid)
    return 0 if run is None else discard_from(txn, group, run, eid)


def discard_leased(
    txn: Changeset, group: GroupMeta, eid: PackedID, owner: bytes, deliveries: int
) -> int:
    """Remove one ID that its owner has got for the given time; return 1.

    Return 0 if it is not pending, -1 if it was delivered again or given back.
    """
    if plain is not None:
        outcome = plain.discard(Run, txn, group, eid, owner, deliveries)
        if outcome >= -1:
            return outcome
    run = run_at(txn, group, eid)
    if run is None or not run.has(eid):
        return 0
    if not run.owned or run.owner != owner or run.deliveries != deliveries:
        return -1
    return discard_from(txn, group, run, eid)


def discard_from(txn: Changeset, group: GroupMeta, run: Run, eid: PackedID) -> int:
    """Remove one ID from the run that reaches over it; return 1 if it was pending."""
    packed = run.packed
    at = offset_of(packed, eid)
    if at < 0:
        return 0
    if len(packed) > ID_BYTES:
        pel_index.resize(txn, group, run, packed[:at] + packed[at + ID_BYTES :])
    else:
        pel_index.remove(txn, group, run)
        if group.indexed:
            pel_index.unindex_if_small(txn, group)
    if group.keyed is not None:
        free_keys(txn, group, [eid])
    return 1


def _remove(
    txn: Changeset, group: GroupMeta, ids: Sequence[PackedID]
) -> list[tuple[Run, Sequence[PackedID]]]:
    taken: list[tuple[Run, Sequence[PackedID]]] = []
    whole: list[Run] = []
    for run, within in runs_at(txn, group, ids):
        lifted = _remove_ids(txn, group, run, within)
        if lifted:
            taken.append((run, lifted))
            if len(lifted) == run.length:
                whole.append(run)
    pel_index.remove_all(txn, group, whole)
    if group.indexed:
        pel_index.unindex_if_small(txn, group)
    return taken


def release_runs(txn: Changeset, group: GroupMeta, runs: list[Run], rank: int) -> None:
    """Make whole runs ready under a rank, without owner; their delivery counts stay."""
    ready = {run.anchor: run._replace(owner=b"", time_ms=0, rank=rank) for run in runs}
    pel_index.replace(txn, group, runs, ready)


def _remove_ids(
    txn: Changeset, group: GroupMeta, run: Run, ids: Sequence[PackedID]
) -> Sequence[PackedID]:
    """Return the IDs that are in a run; remove them from it, unless they are all that it has."""
    packed = run.packed
    if len(ids) <= txn.thresholds.few_ids:  # most acknowledgements in random order
        lifted, left = [], packed
        for eid in ids:
            at = offset_of(left, eid)
            if at >= 0:
                lifted.append(eid)
                left = left[:at] + left[at + ID_BYTES :]
    elif b"".join(ids) == packed:
        return ids
    else:
        wanted, own = set(ids), run.ids
        lifted = [eid for eid in own if eid in wanted]
        left = b"".join([eid for eid in own if eid not in wanted])
    if lifted and left:
        pel_index.resize(txn, group, run, left)
    return lifted


# --- changes that are planned first -------------------------------------------------------------

Targets = Mapping[PackedID, Shared | None]
"""What each ID becomes: None if it is no longer pending. IDs that are left out do not change."""
Decide = Callable[[Run | None, Sequence[PackedID]], Targets]
"""Return the targets of IDs of one run, or, without a run, of IDs that are not pending."""
Stretches = Iterable[tuple[Run | None, Sequence[PackedID]]]
"""Ascending IDs by the runs that reach over them."""


@dataclass(slots=True)
class Change:
    """Runs to delete, and the runs that take their place."""

    old: list[Run]
    new: dict[PackedID, Run]
    """By anchor."""
    count: int
    """IDs that have a target."""

    def apply(
        self, txn: Changeset, group: GroupMeta, rows: Mapping[PackedID, bytes] | None = None
    ) -> None:
        """Change the runs; ``rows``: the new ones, if they are encoded already."""
        pel_index.replace(txn, group, self.old, self.new, rows)
        if group.keyed is not None:
            free_keys(txn, group, self._moved_ids())

    def _moved_ids(self) -> list[PackedID]:
        """Return the IDs that are no longer pending, or ready or held no longer."""
        places = {eid: _place_of(run) for run in self.new.values() for eid in run.ids}
        return [eid for run in self.old for eid in run.ids if places.get(eid) != _place_of(run)]


def _place_of(run: Run) -> int:
    """Return a number for the place of a run's entries: held, ready, or another one."""
    return 2 if run.time_ms == HELD_MS else int(is_ready(run))


def is_ready(run: Run) -> bool:
    """Return whether the entries of a run have no owner and do not wait."""
    return bool(run.rank) and not run.time_ms


def stretches(txn: Changeset, group: GroupMeta, ids: Sequence[PackedID]) -> Stretches:
    """Yield all of ``ids``, ascending, by the runs that reach over them."""
    at = 0
    while at < len(ids):
        run = run_at(txn, group, ids[at])
        if run is not None:
            end = bisect_right(ids, run.last, at)
        else:
            following = group.runs.first(txn.batch, ids[at]) if at + 1 < len(ids) else None
            end = len(ids) if following is None else bisect_left(ids, following.anchor, at)
            if end == at:
                raise Corruption(f"pending entries are out of order at {ids[at].hex()}")
        yield run, ids[at:end]
        at = end


def plan(txn: Changeset, group: GroupMeta, stretches: Stretches, decide: Decide) -> Change:
    """Return the change of a group's runs that gives IDs the targets that ``decide`` returns."""
    old: list[Run] = []
    new: dict[PackedID, Run] = {}
    count = 0
    before: Run | None = None
    """The last new run so far, to which the next one may be joined."""
    last: Run | None = None
    for run, within in stretches:
        targets = _targets(run, within, decide)
        if not targets:
            before = None
            continue
        count += len(targets)
        if run is None:
            anchor, before = None, None
        else:
            anchor = run.anchor
            old.append(run)
            if before is not None and not (last and group.runs.is_next(last.anchor, run.anchor)):
                before = None
        pieces = _pieces(txn, run, targets)
        for packed, shared in pieces:
            joined = None if before is None else _join(txn, before, packed, shared)
            before = joined or new_run((anchor or packed[:ID_BYTES], packed, *shared))
            anchor = None
            new[before.anchor] = before
        if pieces and pieces[-1][0][-ID_BYTES:] not in targets:
            before = None
        last = run
    return Change(old, new, count)


def _targets(run: Run | None, within: Sequence[PackedID], decide: Decide) -> Targets:
    """Return the targets of IDs within the bounds of a run."""
    if run is None or offset_of(run.packed, b"".join(within)) >= 0:
        return decide(run, within)
    there = frozenset(run.ids)
    targets = dict(decide(run, [eid for eid in within if eid in there]))
    absent = [eid for eid in within if eid not in there]
    if absent:
        targets.update(decide(None, absent))
    return targets


def _pieces(txn: Changeset, run: Run | None, targets: Targets) -> list[tuple[bytes, Shared]]:
    """Return the IDs of new runs, packed, and what those of each share."""
    shares = list(targets.values())
    packed, own = b"".join(targets), None if run is None else run.shared
    at = 0 if run is None else offset_of(run.packed, packed)
    parts: list[tuple[Shared | None, bytes]]
    if at < 0 or shares.count(shares[0]) < len(shares):
        every = sorted(targets if run is None else {*run.ids, *targets})
        kept = [(to, eid) for eid in every if (to := targets.get(eid, own)) is not None]
        same = groupby(kept, itemgetter(0))
        parts = [(to, b"".join([eid for _, eid in part])) for to, part in same]
    elif run is None:
        parts = [(shares[0], packed)]
    else:
        before, behind = run.packed[:at], run.packed[at + len(packed) :]
        parts = [(own, before), (shares[0], packed), (own, behind)]
    size = txn.thresholds.run_ids * ID_BYTES
    return [
        (part[at : at + size], shared)
        for shared, part in parts
        if shared is not None
        for at in range(0, len(part), size)
    ]


def _join(txn: Changeset, before: Run, packed: bytes, shared: Shared) -> Run | None:
    """Return a new run extended by more IDs, or None if that is impossible."""
    size = len(before.packed) + len(packed)
    if before.shared != shared or size > txn.thresholds.run_ids * ID_BYTES:
        return None
    return before._replace(packed=before.packed + packed)


# --- readers that wait --------------------------------------------------------------------------


def signal_freed(txn: Changeset, name: bytes, group: GroupMeta) -> None:
    """Wake the readers of a group that limits entries in flight: there is room again."""
    policy = group.policy
    if policy is not None and policy.max_in_flight:
        txn.signal(name, Wake.FREED)


def note_renewal(txn: Changeset, group: GroupMeta) -> None:
    """Note that leases begin now: before all others, if the clock was set back."""
    group.owned_since = min(group.owned_since, txn.now_ms)


def signal_owned(txn: Changeset, name: bytes, group: GroupMeta) -> None:
    """Wake the readers of a group with leases after a claim: they see when its leases end."""
    if group.policy is not None:
        group.owned_since = 0
        txn.signal(name, Wake.CLAIMED)


# --- order by key -------------------------------------------------------------------------------

DELETED_MAX = 1000
"""Held entries of one key, without messages, that are dropped together."""


def free_keys(txn: Changeset, group: GroupMeta, ids: Iterable[PackedID], wanted: int = 0) -> bool:
    """Update the keys of IDs that are no longer pending, ready or held; make the next ones ready.

    For groups that deliver in order by key, after their runs have changed. Keys that take turns
    share the ``wanted`` entries that a read goes on to take. Return whether any became ready.
    """
    assert group.keyed is not None
    assert group.policy is not None
    fair = group.policy.fair
    edit = Edit(group.keyed, txn.batch)
    freed: dict[Key, None] = {}
    for eid in ids:
        known = edit.entry(eid)
        if known is None:
            continue
        was_held, key = known
        run = run_at(txn, group, eid)
        there = run is not None and run.has(eid)
        if fair and edit.counts(key).turn == eid and not (run and there and is_ready(run)):
            edit.counts(key).turn = b""
            freed[key] = None
        if run is not None and there and was_held == (run.time_ms == HELD_MS):
            continue
        if was_held:
            edit.end_hold(key, eid)
        else:
            edit.counts(key).busy -= 1
        if there:  # claimed by FORCE
            edit.make_busy(key, eid)
        else:
            edit.forget(eid)
        freed[key] = None
    return bool(freed) and _make_ready(txn, group, edit, freed, -(-wanted // len(freed)))


def make_ready(txn: Changeset, group: GroupMeta, keys: Iterable[Key]) -> None:
    """Make the next held entries of some keys ready, as far as the policy allows."""
    assert group.keyed is not None
    _make_ready(txn, group, Edit(group.keyed, txn.batch), keys)


def _make_ready(
    txn: Changeset, group: GroupMeta, edit: Edit, keys: Iterable[Key], share: int = 1
) -> bool:
    """Make the next held entries of keys ready; if they take turns, ``share`` of each."""
    keyed, policy = group.keyed, group.policy
    assert keyed is not None
    assert policy is not None
    ready: dict[PackedID, bool] = {}
    """Whether the message still exists."""
    for key in keys:
        counts, left = edit.counts(key), DELETED_MAX
        room = policy.max_per_key - counts.busy
        if not policy.fair:
            counts.turn = b""
        else:
            room = 0 if counts.turn else min(room, max(1, share))
        while counts.held and room > 0:
            eid = counts.first = edit.first_held(key, counts.first)
            edit.end_hold(key, eid)
            left -= 1
            ready[eid] = left < 0 or _exists(txn, keyed, eid)
            if ready[eid]:
                room -= 1
                edit.make_busy(key, eid)
                counts.turn = eid if policy.fair else b""
            else:
                edit.forget(eid)
    edit.apply()
    if not ready:
        return False
    rank = group.nack_rank = group.nack_rank + 1

    def decide(run: Run | None, ids: Sequence[PackedID]) -> Targets:
        count = 0 if run is None else run.deliveries
        return {eid: (b"", 0, count, rank) if ready[eid] else None for eid in ids}

    change = plan(txn, group, stretches(txn, group, sorted(ready)), decide)
    pel_index.replace(txn, group, change.old, change.new)
    txn.member_changed(group)
    txn.signal(txn.catalog.shown_name(txn, keyed.stream.name), Wake.FREED)
    return True


def _exists(txn: Changeset, keyed: Keyed, eid: PackedID) -> bool:
    """Return whether the message of an entry exists; rows below the first one are dead."""
    stream = keyed.stream
    if not stream.length or eid < stream.first.packed:
        return False
    return txn.batch.get(Family.MESSAGES, stream.prefix + eid) is not None
