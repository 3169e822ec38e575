"""Check the groups, consumers and pending entries of one stream.

Runs are the truth. In an indexed group each run has one row in the times tree and, if it has an
owner, one in the consumer's tree. Rows are looked up run by run and counted; an index with more
rows has rows that point to no run. Other groups have no index rows. Runs out of order would hide
pending entries, so the runs of such a group are all rewritten. Entries that were given back until a
time need a timer; without one they are made ready.

``check_keyed`` checks the rows of the entries that a group delivers in order by key. The runs tell
which entries are pending and which of them are held; an entry row tells the key. The other rows
follow from these. The key of a held entry without a row is that of its message.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TypeAlias

from kvstream.errors import KVStreamError
from kvstream.layout.keys import ID_BYTES, U64, tree_prefix
from kvstream.layout.values import decode_fields
from kvstream.meta import timers
from kvstream.meta.keyed import (
    ENTRY,
    HELD,
    IS_BUSY,
    IS_HELD,
    KEY,
    KEY_BYTES,
    Counts,
    Key,
    key_of_value,
)
from kvstream.meta.pel import VALID_IDS_MAX, is_ready
from kvstream.meta.policy import GroupPolicy
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.runs import HELD_MS, Run
from kvstream.meta.timers import Kind
from kvstream.meta.trees import key_tree
from kvstream.operations.checks.survey import DECODING_ERRORS, Survey, consumer_place, group_place
from kvstream.storage.batch import Family
from kvstream.types.images import PackedID
from kvstream.types.thresholds import DEFAULT

_TREES = Family.TREES
_STUCK = "a key has held entries although it has room"
_WRONG = "a row of the order by key is wrong"
_MISSING = "a row of the order by key is missing"
_STRAY = "a row of the order by key belongs to no entry"
_UNORDERED = "entries are held in a group without order"

Ordered: TypeAlias = dict[bytes, Run] | None
"""The runs of a group by anchor as a repair writes them; None: as they are."""


def check_keyed(
    survey: Survey, stream: StreamMeta, group: GroupMeta, place: str, ordered: Ordered
) -> None:
    """Check that each held entry can become ready, and that keys are busy only with entries.

    ``ordered``: the result of ``check_runs``.
    """
    policy = group.policy
    runs = _runs(survey, group) if ordered is None else ordered.values()
    if policy is None or not policy.keyed_tree:
        _check_none_held(survey, group, place, runs)
        return
    rows = dict(survey.tree(policy.keyed_tree))
    known_runs = list(runs)
    expected, counts = _derive_rows(survey, stream, known_runs, policy, rows)
    turns = _find_turns(known_runs, expected) if policy.fair else {}
    for key, count in counts.items():
        known = _decode_counts(rows.get(KEY + key))
        is_free = count.held > 0 and count.busy < policy.max_per_key
        ready = turns.get(key, set())
        if known is not None and known.turn in ready:
            count.turn = known.turn
        elif is_free or known is None or known.turn:
            count.turn = max(ready, default=b"")
        if is_free and not count.turn:
            survey.findings.fault(place, _STUCK, key.hex(), repaired=False)
        if known is not None and (known.busy, known.held) == (count.busy, count.held):
            count.first = min(count.first, known.first)
        expected[KEY + key] = count.encode()
    for suffix, value in rows.items():
        if suffix not in expected:
            survey.findings.fault(place, _STRAY, suffix[:40].hex())
            survey.findings.delete(_TREES, tree_prefix(policy.keyed_tree) + suffix)
        elif not _is_same(suffix, value, expected[suffix]):
            survey.findings.fault(place, _WRONG, suffix.hex())
            survey.findings.put(_TREES, tree_prefix(policy.keyed_tree) + suffix, expected[suffix])
    for suffix in expected.keys() - rows.keys():
        survey.findings.fault(place, _MISSING, suffix.hex())
        survey.findings.put(_TREES, tree_prefix(policy.keyed_tree) + suffix, expected[suffix])


def _derive_rows(
    survey: Survey,
    stream: StreamMeta,
    runs: Iterable[Run],
    policy: GroupPolicy,
    rows: dict[bytes, bytes],
) -> tuple[dict[bytes, bytes], dict[Key, Counts]]:
    """Return the rows that the pending entries need, except those of keys, and counts by key."""
    expected: dict[bytes, bytes] = {}
    counts: dict[Key, Counts] = {}
    for run in runs:
        held = run.time_ms == HELD_MS
        for eid in run.ids:
            value = rows.get(ENTRY + eid)
            if value is not None and len(value) == 1 + KEY_BYTES:
                key = value[1:]
            elif held or value is not None:
                key = _key_of_message(survey, stream, eid, policy.order_by)
            else:
                continue
            of_key = counts.setdefault(key, Counts())
            expected[ENTRY + eid] = (IS_HELD if held else IS_BUSY) + key
            of_key.busy += not held
            of_key.held += held
            if held:
                of_key.first = min(of_key.first, eid)
                expected[HELD + key + eid] = key + eid
    return expected, counts


def _find_turns(runs: Iterable[Run], expected: Mapping[bytes, bytes]) -> dict[Key, set[PackedID]]:
    """Return the ready entries of each key, one of which has its turn."""
    turns: dict[Key, set[PackedID]] = {}
    for eid in (eid for run in runs if is_ready(run) for eid in run.ids):
        if entry := expected.get(ENTRY + eid):
            turns.setdefault(entry[1:], set()).add(eid)
    return turns


def _is_same(suffix: bytes, value: bytes, true: bytes) -> bool:
    """Return whether a row is right; the first held entry of a key without any is not compared."""
    if suffix[:1] != KEY:
        return value == true
    known, counts = _decode_counts(value), Counts.decode(true)
    if known is None or known.turn != counts.turn:
        return False
    if (known.busy, known.held) != (counts.busy, counts.held):
        return False
    return not counts.held or known.first <= counts.first


def _decode_counts(value: bytes | None) -> Counts | None:
    try:
        return None if value is None else Counts.decode(value)
    except DECODING_ERRORS:
        return None


def _runs(survey: Survey, group: GroupMeta) -> Iterator[Run]:
    runs = (_decode_run(suffix, value) for suffix, value in survey.tree(group.runs.id))
    return (run for run in runs if run is not None)  # ``check_runs`` reports the others


def _decode_run(suffix: bytes, value: bytes) -> Run | None:
    """Return the run of a row; None if it is damaged."""
    if len(suffix) != ID_BYTES:
        return None
    try:
        return Run.decode(suffix, value)
    except DECODING_ERRORS:
        return None


def _key_of_message(survey: Survey, stream: StreamMeta, eid: PackedID, field: bytes) -> Key:
    try:
        value = survey.rows.get(Family.MESSAGES, stream.prefix + eid)
        return key_of_value(b"" if value is None else decode_fields(value).get(field, b""))
    except KVStreamError:  # reported where the entries are checked
        return key_of_value(b"")


def _check_none_held(survey: Survey, group: GroupMeta, place: str, runs: Iterable[Run]) -> None:
    """Report held entries of a group without order, and make them ready."""
    findings = survey.findings
    for run in runs:
        if not run.rank or run.time_ms != HELD_MS:
            continue
        findings.fault(place, _UNORDERED, run.anchor.hex())
        ready = run._replace(time_ms=0)
        findings.put(_TREES, group.runs.prefix + run.anchor, ready.encode())
        if group.indexed:
            findings.delete(_TREES, group.times.prefix + run.times_suffix)
            findings.put(_TREES, group.times.prefix + ready.times_suffix, b"")


@dataclass(slots=True)
class Owner:
    """A consumer's record, if it can be read, and the count of its runs."""

    place: str
    name: bytes
    row: bytes
    consumer: ConsumerMeta | None = None
    record: bytes | None = None
    pending: int = 0
    """Its pending entries, if the group is indexed; otherwise they are not counted."""
    indexed: int = 0
    """Runs that the consumer's own tree has."""
    unindexed: list[bytes] = field(default_factory=list)
    """Anchors of the runs of a consumer without a record."""

    def make(self, survey: Survey) -> None:
        """Write a record and a tree for a consumer that has none; its times begin now."""
        tree = key_tree(survey.allocate(), DEFAULT)
        consumer = ConsumerMeta(self.name, self.row, tree, survey.now_ms)
        consumer.pending = self.pending
        survey.findings.put(Family.TREES, self.row, consumer.encode())
        for anchor in self.unindexed:
            survey.findings.put(Family.TREES, tree.prefix + anchor, b"")


NOT_COUNTED = "the group is not indexed, and yet counts of pending entries are kept"

_NO_RUN = "the index has rows of no such run"
_NOT_INDEXED = "runs are missing from the index"
_UNUSED = "the group is not indexed, and its index has rows"

Owners = dict[bytes, Owner]
Expected = Callable[[bytes], bool]
"""Tells whether an index may have a row of this suffix."""


@dataclass(slots=True)
class _Tally:
    """Sums over the runs of a group."""

    pending: int = 0
    nacked: int = 0
    rank: int = 0
    timed: int = 0
    """Runs that the times tree has."""


def check_runs(
    survey: Survey, stream: StreamMeta, group: GroupMeta, place: str, owners: Owners
) -> Ordered:
    """Check the pending entries of a group; set its counters and those of its ``owners``."""
    return _RunsCheck(survey, stream, group, place, owners).run()


class _RunsCheck:
    def __init__(
        self, survey: Survey, stream: StreamMeta, group: GroupMeta, place: str, owners: Owners
    ) -> None:
        self._survey = survey
        self._stream = stream
        self._findings = survey.findings
        self._group = group
        self._place = place
        self._owners = owners
        self._ordered: Ordered = None
        self._timed: dict[int, bool] = {}
        """Whether the group has a timer for a time."""

    def run(self) -> Ordered:
        if self._is_faulty():
            self._ordered = self._put_in_order()
        tally = _Tally()
        for chunk in self._chunks():
            self._count(tally, chunk)
        self._check_strays(tally)
        self._check_counts(tally)
        return self._ordered

    def _check_counts(self, tally: _Tally) -> None:
        place, group = self._place, self._group
        if group.indexed:
            correct = self._findings.correct
            what = "the number of pending entries"
            group.pending = correct(place, what, group.pending, tally.pending)
            what = "the number of entries given back"
            group.nacked = correct(place, what, group.nacked, tally.nacked)
        elif group.pending or group.nacked:
            self._findings.fault(place, NOT_COUNTED, f"{group.pending} and {group.nacked}")
            group.pending = group.nacked = 0
        if group.nack_rank < tally.rank:
            detail = f"{group.nack_rank}, but an entry has {tally.rank}"
            self._findings.fault(place, "the rank of entries given back is behind", detail)
            group.nack_rank = tally.rank

    # --- runs -----------------------------------------------------------------------------------

    def _on_record(self) -> Iterator[list[Run]]:
        for chunk in self._survey.tree_chunks(self._group.runs.id):
            runs = (_decode_run(suffix, value) for suffix, value in chunk)
            yield [run for run in runs if run is not None]

    def _chunks(self) -> Iterable[list[Run]]:
        if self._ordered is None:
            return self._on_record()
        return [list(self._ordered.values())]

    def _is_faulty(self) -> bool:
        """Return whether a run breaks the order or waits forever; report all damaged rows."""
        end, faulty = b"", False
        for suffix, value in self._survey.tree(self._group.runs.id):
            run = _decode_run(suffix, value)
            if run is None:
                self._note_damaged(suffix)
            elif not _is_sound(run, end):
                faulty = True
                self._findings.fault(self._place, "pending entries are out of order", suffix.hex())
            else:
                end = run.last
                if self._waits_for_ever(run):
                    faulty = True
                    self._findings.fault(self._place, "entries wait without a timer", suffix.hex())
        return faulty

    def _waits_for_ever(self, run: Run) -> bool:
        """Return whether a run waits for a time at which no timer makes it ready."""
        if not run.waits or run.time_ms == HELD_MS:
            return False
        waits = self._timed.get(run.time_ms)
        if waits is None:
            waits = False
            if self._stream.queue_tree:
                row = timers.row(self._stream, run.time_ms, Kind.RETRY, self._group.name)
                waits = self._survey.rows.get(_TREES, row) is not None
            self._timed[run.time_ms] = waits
        return not waits

    def _note_damaged(self, suffix: bytes) -> None:
        if len(suffix) == ID_BYTES:
            what = "a run of pending entries cannot be decoded"
            self._findings.fault(self._place, what, suffix.hex(), repaired=False)
        else:
            self._findings.fault(self._place, "a row that is no run", suffix.hex())
            self._findings.delete(_TREES, self._group.runs.prefix + suffix)

    def _put_in_order(self) -> dict[bytes, Run]:
        """Replace the runs by sorted ones in which each ID is once; return these."""
        old = {run.anchor: run for chunk in self._on_record() for run in chunk}
        sound = [
            run._replace(time_ms=0) if self._waits_for_ever(run) else run for run in old.values()
        ]
        new = {run.anchor: run for run in _sort_runs(sound)}
        prefix = self._group.runs.prefix
        for anchor in old.keys() - new.keys():
            self._findings.delete(_TREES, prefix + anchor)
        for anchor, run in new.items():
            if run != old.get(anchor):
                self._findings.put(_TREES, prefix + anchor, run.encode())
        return new

    # --- indexes --------------------------------------------------------------------------------

    def _count(self, tally: _Tally, runs: list[Run]) -> None:
        for run in runs:
            tally.pending += run.length
            if not run.owned:
                tally.nacked += run.length
                tally.rank = max(tally.rank, run.rank)
        if self._group.indexed:
            prefix = self._group.times.prefix
            tally.timed += self._look_up(self._place, [prefix + run.times_suffix for run in runs])
        owned = sorted((run for run in runs if run.owned), key=_owner_of)
        for name, own in groupby(owned, key=_owner_of):
            self._count_owned(name, list(own))

    def _count_owned(self, name: bytes, runs: list[Run]) -> None:
        owner = self._owners.get(name) or self._missing(name)
        if not self._group.indexed:
            return
        owner.pending += sum(run.length for run in runs)
        if owner.consumer is None:
            owner.unindexed += [run.anchor for run in runs]
            return
        prefix = owner.consumer.runs.prefix
        owner.indexed += self._look_up(owner.place, [prefix + run.anchor for run in runs])

    def _missing(self, name: bytes) -> Owner:
        place = consumer_place(self._place, name)
        self._findings.fault(place, "the owner of pending entries has no record")
        row = tree_prefix(self._group.consumers_tree) + name
        owner = self._owners[name] = Owner(place, name, row)
        return owner

    def _look_up(self, place: str, keys: list[bytes]) -> int:
        """Return how many rows exist, and write the missing ones."""
        count = 0
        for key, value in zip(keys, self._survey.rows.get_many(_TREES, keys), strict=True):
            count += value is not None
            if value != b"":
                self._findings.fault(place, _NOT_INDEXED, key[U64.size :].hex())
                self._findings.put(_TREES, key, b"")
        return count

    def _check_strays(self, tally: _Tally) -> None:
        def is_timed(suffix: bytes) -> bool:
            if not self._group.indexed:
                return False
            run = self._run_at(suffix[-ID_BYTES:])
            return run is not None and run.times_suffix == suffix

        self._drop_strays(self._place, self._group.times.id, tally.timed, is_timed)
        for owner in self._owners.values():
            if owner.consumer is not None:
                is_owned = self._is_owned_by(owner.name)
                self._drop_strays(owner.place, owner.consumer.runs.id, owner.indexed, is_owned)

    def _is_owned_by(self, name: bytes) -> Expected:
        def is_owned(suffix: bytes) -> bool:
            if not self._group.indexed:
                return False
            run = self._run_at(suffix)
            return run is not None and run.owned and run.owner == name

        return is_owned

    def _run_at(self, anchor: bytes) -> Run | None:
        if self._ordered is not None:
            return self._ordered.get(anchor)
        value = self._survey.rows.get(_TREES, self._group.runs.prefix + anchor)
        return None if value is None else _decode_run(anchor, value)

    def _drop_strays(self, place: str, tree: int, found: int, expected: Expected) -> None:
        """Report the index rows that point to nothing, if there are more rows than were found."""
        if sum(1 for _ in self._survey.tree(tree)) == found:
            return
        kind = _NO_RUN if self._group.indexed else _UNUSED
        for suffix, value in self._survey.tree(tree):
            if not expected(suffix):
                is_index = value == b""  # else it may be the tree's true owner
                self._findings.fault(place, kind, suffix.hex(), repaired=is_index)
                if is_index:
                    self._findings.delete(_TREES, tree_prefix(tree) + suffix)


def _owner_of(run: Run) -> bytes:
    return run.owner


def _is_sound(run: Run, end: bytes) -> bool:
    """Return whether a run that follows one ending at ``end`` is valid."""
    ids = run.ids
    return (
        end < run.anchor <= ids[0]
        and len(ids) <= VALID_IDS_MAX
        and all(one < next_one for one, next_one in pairwise(ids))
        and (run.owned or run.owner == b"")
    )


def _sort_runs(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield runs of the same pending entries in order; a repeated ID gets its latest state."""
    latest: dict[bytes, Run] = {}
    for run in sorted(runs, key=lambda run: run.time_ms):
        sole = run._replace(owner=b"", time_ms=0) if run.rank and run.owner else run
        latest.update(dict.fromkeys(run.ids, sole))

    def state_of(eid: bytes) -> tuple[bytes, int, int, int]:
        run = latest[eid]
        return run.owner, run.time_ms, run.deliveries, run.rank

    for (owner, time_ms, deliveries, rank), same in groupby(sorted(latest), key=state_of):
        ids = list(same)
        for at in range(0, len(ids), DEFAULT.run_ids):
            part = ids[at : at + DEFAULT.run_ids]
            yield Run.of(part, (owner, time_ms, deliveries, rank))


_UNDECODABLE = "the record cannot be decoded"


def check_groups(survey: Survey, stream: StreamMeta, place: str) -> None:
    """Check every group of a stream, and set the stream's number of groups."""
    count = 0
    if stream.groups_tree:
        survey.claim_tree(place, stream.groups_tree)
        for name, record in survey.tree(stream.groups_tree):
            count += 1
            _check_group(survey, stream, group_place(place, name), name, record)
    correct = survey.findings.correct
    stream.groups_count = correct(place, "the number of groups", stream.groups_count, count)


def _check_group(
    survey: Survey, stream: StreamMeta, place: str, name: bytes, record: bytes
) -> None:
    row = tree_prefix(stream.groups_tree) + name
    try:
        group = GroupMeta.decode(name, row, record)
    except DECODING_ERRORS:
        survey.findings.fault(place, _UNDECODABLE, repaired=False)
        survey.owner_lost = True
        return
    keyed = () if group.policy is None else (group.policy.keyed_tree,)
    for tree in (group.consumers_tree, group.runs.id, group.times.id, *filter(None, keyed)):
        survey.claim_tree(place, tree)
    owners = _owners(survey, group, place)
    ordered = check_runs(survey, stream, group, place, owners)
    check_keyed(survey, stream, group, place, ordered)
    correct = survey.findings.correct
    _check_activity(survey, group, place, owners)
    for owner in owners.values():
        _check_owner(survey, group, owner)
    group.consumers_count = correct(
        place, "the number of consumers", group.consumers_count, len(owners)
    )
    if group.encode() != record:
        survey.findings.put(_TREES, row, group.encode())


def _check_activity(
    survey: Survey, group: GroupMeta, place: str, owners: dict[bytes, Owner]
) -> None:
    """Check that the last active consumer exists, and that no activity is above the group's."""
    activity = group.activity
    if activity.is_known and activity.name not in owners:
        survey.findings.fault(place, "the consumer that was active last has no record")
        activity.clear()
    for owner in owners.values():
        consumer = owner.consumer
        if consumer is not None and consumer.activity > activity.number:
            detail = f"{consumer.activity} above {activity.number}"
            survey.findings.fault(owner.place, "its activity is yet to come", detail)
            consumer.activity = activity.number


def _owners(survey: Survey, group: GroupMeta, place: str) -> dict[bytes, Owner]:
    """Return the consumers of a group by name."""
    owners = {}
    for name, record in survey.tree(group.consumers_tree):
        row = tree_prefix(group.consumers_tree) + name
        own = consumer_place(place, name)
        try:
            consumer = ConsumerMeta.decode(name, row, record)
        except DECODING_ERRORS:
            survey.findings.fault(own, _UNDECODABLE)
            owners[name] = Owner(own, name, row)
            continue
        survey.claim_tree(own, consumer.runs.id)
        owners[name] = Owner(own, name, row, consumer, record)
    return owners


def _check_owner(survey: Survey, group: GroupMeta, owner: Owner) -> None:
    """Set a consumer's number of pending entries; create a consumer whose record is lost."""
    consumer = owner.consumer
    if consumer is None:
        survey.afterwards.append(lambda: owner.make(survey))
        return
    if group.indexed:
        what = "the number of pending entries"
        correct = survey.findings.correct
        consumer.pending = correct(owner.place, what, consumer.pending, owner.pending)
    elif consumer.pending:
        survey.findings.fault(owner.place, NOT_COUNTED, str(consumer.pending))
        consumer.pending = 0
    if consumer.encode() != owner.record:
        survey.findings.put(_TREES, consumer.row, consumer.encode())
