"""XACK, XACKDEL and XNACK: acknowledge entries, delete them too, or give them back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from kvstream.meta import pel
from kvstream.meta.compiled import plain
from kvstream.meta.pel import (
    COUNT_MAX,
    Change,
    Targets,
    discard,
    discard_one,
    signal_freed,
    stretches,
)
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import HELD_MS, Run
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations.claim import refuse_retrycount
from kvstream.operations.delete import Live, delete_but
from kvstream.operations.delivery.backoff import GivenBack
from kvstream.operations.groups import group_of_key
from kvstream.operations.pel_plans import SteppedPelChange
from kvstream.operations.plans import Plan, Planning
from kvstream.operations.reads.rows import find_live, read_ids
from kvstream.operations.trim import drop_references, find_referenced
from kvstream.types.ids import (
    PACKED,
    StreamID,
    ascending,
    ascending_packed,
    ascending_parts,
    is_ascending,
)
from kvstream.types.images import PackedID
from kvstream.types.options import NackMode, RefPolicy
from kvstream.types.records import Outcome


def stream_and_group(
    txn: Txn, name: bytes, group_name: bytes
) -> tuple[StreamMeta, GroupMeta] | None:
    """Return a stream and its group; None if either is missing, so that nothing is pending."""
    stream = txn.stream(name)
    if stream is None:
        return None
    group = stream.groups.get(group_name) or txn.catalog.group(txn, stream, group_name)
    return None if group is None else (stream, group)


def acknowledge(txn: Txn, name: bytes, group_name: bytes, ids: Sequence[StreamID]) -> int:
    """Acknowledge entries as XACK does; return how many were pending."""
    return acknowledge_packed(txn, name, group_name, [PACKED(*eid) for eid in ids])


def acknowledge_packed(txn: Txn, name: bytes, group_name: bytes, ids: Sequence[PackedID]) -> int:
    """Acknowledge entries by packed IDs, in any order; return how many were pending."""
    if len(ids) == 1 and plain is not None:
        count = plain.acknowledge(Run, txn, name, group_name, ids[0])
        if count >= 0:
            return count
    found = stream_and_group(txn, name, group_name)
    if found is None:
        return 0
    group = found[1]
    txn.frees = True
    if group.policy is not None:
        signal_freed(txn, name, group)
    if len(ids) == 1:
        return discard_one(txn, group, ids[0])
    return discard(txn, group, ascending_packed(ids))


def acknowledge_and_delete(
    txn: Txn,
    name: bytes,
    group_name: bytes,
    ids: Sequence[StreamID],
    policy: RefPolicy,
    live: Live = find_live,
) -> list[Outcome]:
    """Acknowledge entries and delete their messages as XACKDEL does; return each ID's outcome."""
    found = stream_and_group(txn, name, group_name)
    if found is None:
        return [Outcome.MISSING] * len(ids)
    stream, group = found
    txn.frees = True
    distinct = ascending(ids)
    taken = pel.acknowledge(txn, group, [PACKED(*eid) for eid in distinct])
    whole = len(taken) == len(distinct)
    acked = distinct if whole else [StreamID.unpack(eid) for eid in taken]
    kept = find_referenced(txn, stream, acked) if policy is RefPolicy.ACKED else frozenset()
    signal_freed(txn, name, group)
    delete_but(txn, stream, acked, kept, live)
    if policy is RefPolicy.DELREF:
        drop_references(txn, stream, acked)
    if len(acked) == len(ids) and not kept:
        return [Outcome.DELETED] * len(ids)
    outcomes = {eid: Outcome.KEPT if eid in kept else Outcome.DELETED for eid in acked}
    # A repeated ID is not pending any more.
    return [outcomes.pop(eid, Outcome.MISSING) for eid in ids]


@dataclass(slots=True)
class Nack:
    """The rule by which one XNACK gives entries back to their group."""

    mode: NackMode
    retrycount: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        refuse_retrycount(self.retrycount)

    @property
    def gives_up(self) -> bool:
        """Whether entries of a group with a policy move to the dead letters."""
        return self.mode is NackMode.FATAL and self.retrycount is None

    def decide(
        self, stream: StreamMeta, rank: int, txn: Txn, run: Run | None, ids: Sequence[PackedID]
    ) -> Targets:
        """Return what becomes of IDs of a run, or of IDs that are not pending."""
        if run is None:
            if not self.force:
                return {}
            rows = read_ids(txn, stream, ids)
            ids = [eid for eid, row in zip(ids, rows, strict=True) if row is not None]
        count = self._count_after(0 if run is None else run.deliveries)
        return dict.fromkeys(ids, (b"", 0, count, rank))

    def decide_by_policy(
        self,
        txn: Txn,
        stream: StreamMeta,
        rank: int,
        back: GivenBack,
        run: Run | None,
        ids: Sequence[PackedID],
    ) -> Targets:
        """Return what becomes of IDs in a group with a policy: some may wait or be given up."""
        if run is None:
            return self.decide(stream, rank, txn, run, ids)
        if run.time_ms == HELD_MS:  # it was never delivered
            return {}
        count = run.deliveries if self.gives_up else self._count_after(run.deliveries)
        return back.share(run, ids, count, rank, tried=self.mode is not NackMode.SILENT)

    def _count_after(self, count: int) -> int:
        if self.retrycount is not None:
            return self.retrycount
        if self.mode is NackMode.FATAL:
            return COUNT_MAX
        return max(0, count - 1) if self.mode is NackMode.SILENT else count


def negative_acknowledge(
    txn: Txn, name: bytes, group_name: bytes, ids: Sequence[StreamID], nack: Nack
) -> int:
    """Give pending entries back to the group, owned by nobody, and return how many.

    ``force`` also takes entries of the stream that are not pending.
    """
    stream, group = group_of_key(txn, name, group_name)
    released = 0
    packed = [PACKED(*eid) for eid in ids]
    if group.policy is not None:
        return _nack_by_policy(txn, name, stream, group, ascending_packed(packed), nack)
    for part in ascending_parts(packed):  # an ID may be given again
        rank = group.nack_rank + 1
        decide = partial(nack.decide, stream, rank, txn)
        change = pel.plan(txn, group, stretches(txn, group, part), decide)
        change.apply(txn, group)
        note_released(txn, name, group, rank, change.count)
        released += change.count
    return released


def plan_ack(name: bytes, group_name: bytes, ids: Sequence[PackedID]) -> Plan[int]:
    """Plan XACK of very many IDs, ascending and distinct; return how many were pending."""

    def plan(txn: Txn) -> Planning[int]:
        found = stream_and_group(txn, name, group_name)
        if found is None:
            return 0
        stepped = _SteppedRule(name, found, ids, _drop)
        txn = yield from stepped.plan(txn, len(ids))
        count = stepped.apply(txn)
        txn.frees = True
        signal_freed(txn, name, found[1])
        return count

    return plan


def _drop(txn: Txn, run: Run | None, ids: Sequence[PackedID]) -> Targets:
    return {} if run is None else dict.fromkeys(ids)


def plan_nack(name: bytes, group_name: bytes, ids: Sequence[PackedID], nack: Nack) -> Plan[int]:
    """Plan XNACK of very many IDs; return how many were given back.

    The plan has one step if the group has a policy, or if the IDs are not ascending: only ascending
    IDs share one rank.
    """

    def plan(txn: Txn) -> Planning[int]:
        stream, group = group_of_key(txn, name, group_name)
        if group.policy is not None or not is_ascending(ids):
            return negative_acknowledge(txn, name, group_name, [*map(StreamID.unpack, ids)], nack)
        rank = group.nack_rank + 1
        decide = partial(nack.decide, stream, rank)
        stepped = _SteppedRule(name, (stream, group), ids, decide, rank)
        txn = yield from stepped.plan(txn, len(ids))
        count = stepped.apply(txn)
        note_released(txn, name, group, rank, count)
        return count

    return plan


class _SteppedRule(SteppedPelChange[None]):
    """The change of very many IDs by a rule."""

    def __init__(
        self,
        name: bytes,
        found: tuple[StreamMeta, GroupMeta],
        ids: Sequence[PackedID],
        rule: Callable[[Txn, Run | None, Sequence[PackedID]], Targets],
        rank: int | None = None,
    ) -> None:
        """``rank``: the rank that XNACK uses up; its rule reads messages, that of XACK does not."""
        super().__init__(name, *found, ids, reads_messages=rank is not None)
        self._rule, self._rank = rule, rank

    def _decide(self, txn: Txn, ids: list[PackedID]) -> tuple[Change, None]:
        runs = stretches(txn, self._group, ids)
        return pel.plan(txn, self._group, runs, partial(self._rule, txn)), None

    def _holds(self, txn: Txn) -> bool:
        return super()._holds(txn) and self._rank in (None, self._group.nack_rank + 1)


def _nack_by_policy(
    txn: Txn,
    name: bytes,
    stream: StreamMeta,
    group: GroupMeta,
    ids: Sequence[PackedID],
    nack: Nack,
) -> int:
    """Give entries back by the policy of their group; return how many, given up ones included."""
    rank = group.nack_rank + 1
    back = GivenBack(txn, group, fatal=nack.gives_up)
    decide = partial(nack.decide_by_policy, txn, stream, rank, back)
    change = pel.plan(txn, group, stretches(txn, group, ids), decide)
    buried = back.bury(name, stream)
    change.apply(txn, group)
    back.set_timers(stream)
    note_released(txn, name, group, rank, buried + change.count)
    return buried + change.count


def note_released(txn: Txn, name: bytes, group: GroupMeta, rank: int, count: int) -> None:
    """If entries were given back with ``rank``, store it and wake readers of the stream."""
    if count:
        group.nack_rank = rank
        txn.member_changed(group)
        txn.signal(name, Wake.GIVEN_BACK)
