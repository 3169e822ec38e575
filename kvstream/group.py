"""A consumer group of a stream, and its consumers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import partial
from math import inf
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, overload

from kvstream.engine import lease_renewal
from kvstream.engine.blocking_reads import clear_unknown_idle, explain_missing, group_read
from kvstream.engine.coerce import (
    NUMBER_MAX,
    IDs,
    Mode,
    Name,
    Policy,
    Seconds,
    at_least_1,
    budget_of,
    count_of,
    id_list,
    milliseconds,
    name_bytes,
    optional,
    wait_of,
    whole,
)
from kvstream.engine.decoding import Decoder
from kvstream.engine.interface import AnyEngine
from kvstream.engine.lease_renewal import Lease, Outages, Stop, stop_check
from kvstream.engine.queue_arguments import (
    Delays,
    Duration,
    Moment,
    Rate,
    moment_ms,
    rules_of,
    span_ms,
)
from kvstream.errors import InvalidArgument, NoGroup, NoSuchKey, advise, show
from kvstream.layout.keys import key_of
from kvstream.meta.pel import COUNT_MAX
from kvstream.meta.policy import GroupPolicy
from kvstream.meta.txn import Txn
from kvstream.operations import ack, claim, groups, info, readgroup
from kvstream.operations.ack import Nack
from kvstream.operations.claim import AUTOCLAIM_COUNT
from kvstream.operations.queues import consumers, policy
from kvstream.operations.reads.range import Range, scan
from kvstream.surface import Public
from kvstream.types.clock import monotonic
from kvstream.types.ids import MIN_ID, BoundLike, IDLike, StreamID, range_end, range_start
from kvstream.types.options import NackMode, RefPolicy
from kvstream.types.records import (
    BareEntry,
    Claimed,
    ClaimedIDs,
    ConsumerInfo,
    DeletedEntry,
    Entry,
    GroupInfo,
    HistoryEntry,
    Outcome,
    PendingEntry,
    PendingSummary,
    S,
)

P = ParamSpec("P")
T = TypeVar("T")

_PAGE = 1000
"""Pending entries that one request asks for."""


class Group(Public, Generic[S]):
    """A consumer group, by its name.

    Calls raise NoGroup if it does not exist; only ``ack``, ``ack_delete`` and ``destroy`` then do
    nothing, as in Redis.

    >>> with kvstream.open("data", decode=True) as store:
    ...     _ = store.stream("orders").add({"sku": "a1"})
    ...     group = store.stream("orders").create_group("workers", start="0")
    ...     (entry,) = group.consumer("ann").read(count=10)
    ...     print(entry.fields, group.pending().count, group.ack(entry), group.pending().count)
    {'sku': 'a1'} 1 1 0
    """

    __slots__ = ("_decoder", "_engine", "_key", "_name")

    def __init__(self, engine: AnyEngine, key: bytes, name: bytes, decoder: Decoder[S]) -> None:
        self._engine = engine
        self._key = key
        self._name = name
        self._decoder = decoder

    @property
    def name(self) -> S:
        """The name of the group."""
        return self._decoder.name(self._name)

    def __repr__(self) -> str:
        return f"<Group {self._name!r} of {key_of(self._key)!r}>"

    def _run(
        self,
        operation: Callable[Concatenate[Txn, bytes, bytes, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation on the group; its error suggests the name that was meant."""
        try:
            return self._engine.run(operation, self._key, self._name, *args, **kwargs)
        except (NoGroup, NoSuchKey) as error:
            raise error.with_detail(explain_missing(self._engine, self._key, self._name)) from None

    def consumer(self, name: Name) -> Consumer[S]:
        """Return a consumer by name; its first read creates it."""
        return Consumer(self, name_bytes(name, "the consumer"))

    # --- entries --------------------------------------------------------------------------------

    def ack(self, *ids: IDs) -> int:
        """Acknowledge entries, as XACK does, and return how many were pending."""
        wanted = id_list(ids)
        done = self._engine.run(ack.acknowledge, self._key, self._name, wanted)
        if type(done) is int and not done and wanted:  # no int yet in a transaction on a server
            wrong = explain_missing(self._engine, self._key, self._name)
            if wrong:
                advise(f"ack acknowledged nothing: {wrong}")
        return done

    def _forget_free(self, last: StreamID) -> None:
        """Acknowledge entries up to an ID that nobody has leased: their messages were deleted."""
        start: BoundLike = "-"
        policy = self.policy()
        lease_ms = policy.lease_ms if policy is not None and policy.lease_ms else inf
        while rows := self.pending_range(start, last, _PAGE):
            free = [row.id for row in rows if not row.consumer or (row.idle_ms or 0) >= lease_ms]
            if free:
                self.ack(*free)
            start = f"({rows[-1].id}"

    def ack_delete(self, *ids: IDs, ref_policy: Policy = RefPolicy.KEEPREF) -> list[Outcome]:
        """Acknowledge and delete entries, as XACKDEL does, and return each ID's outcome."""
        return self._run(
            ack.acknowledge_and_delete,
            id_list(ids),
            RefPolicy(ref_policy),
        )

    def nack(
        self,
        *ids: IDs,
        mode: Mode = NackMode.FAIL,
        retrycount: int | None = None,
        force: bool = False,
    ) -> int:
        """Give pending entries back to the group, as XNACK does, and return how many.

        "SILENT": they were not tried; "FAIL": they failed. The next ``read`` of any consumer
        returns them, before new entries. "FATAL": they must not be tried again; only a claim or a
        read with ``claim_min_idle`` returns them. ``retrycount`` sets the delivery count.
        """
        return self._run(
            ack.negative_acknowledge,
            id_list(ids),
            Nack(NackMode(mode), optional(retrycount, "retrycount"), force),
        )

    @overload
    def claim(
        self,
        consumer: Name,
        *ids: IDs,
        min_idle: Seconds = ...,
        idle: Seconds | None = ...,
        time: float | None = ...,
        retrycount: int | None = ...,
        force: bool = ...,
        justid: Literal[False] = ...,
        last_id: IDLike | None = ...,
    ) -> list[Entry[S]]: ...

    @overload
    def claim(
        self,
        consumer: Name,
        *ids: IDs,
        min_idle: Seconds = ...,
        idle: Seconds | None = ...,
        time: float | None = ...,
        retrycount: int | None = ...,
        force: bool = ...,
        justid: Literal[True],
        last_id: IDLike | None = ...,
    ) -> list[BareEntry]: ...

    @overload
    def claim(
        self,
        consumer: Name,
        *ids: IDs,
        min_idle: Seconds = ...,
        idle: Seconds | None = ...,
        time: float | None = ...,
        retrycount: int | None = ...,
        force: bool = ...,
        justid: bool = ...,
        last_id: IDLike | None = ...,
    ) -> list[Entry[S]] | list[BareEntry]: ...

    def claim(
        self,
        consumer: Name,
        *ids: IDs,
        min_idle: Seconds = 0,
        idle: Seconds | None = None,
        time: float | None = None,
        retrycount: int | None = None,
        force: bool = False,
        justid: bool = False,
        last_id: IDLike | None = None,
    ) -> list[Any]:
        """Give pending entries to a consumer, as XCLAIM does, and return them.

        ``min_idle`` skips entries delivered less than that many seconds ago. ``idle`` (seconds) or
        ``time`` (Unix seconds) sets the delivery time. ``force`` claims entries that are not
        pending. ``justid`` returns entries without fields and does not count a delivery.
        """
        time_ms = None if time is None else milliseconds(time, "time")
        if idle is not None:
            time_ms = self._engine.clock.now_ms() - milliseconds(idle, "idle")
        claimed = self._run(
            claim.claim,
            name_bytes(consumer, "the consumer"),
            milliseconds(min_idle, "min_idle"),
            id_list(ids),
            time_ms=time_ms,
            retrycount=optional(retrycount, "retrycount"),
            force=force,
            justid=justid,
            last_id=None if last_id is None else StreamID.parse(last_id),
        )
        return self._decoder.entries(self._key, cast(Iterable[Entry], claimed))

    @overload
    def autoclaim(
        self,
        consumer: Name,
        min_idle: Seconds = ...,
        start: IDLike = ...,
        *,
        count: int = ...,
        justid: Literal[False] = ...,
    ) -> Claimed[S]: ...

    @overload
    def autoclaim(
        self,
        consumer: Name,
        min_idle: Seconds = ...,
        start: IDLike = ...,
        *,
        count: int = ...,
        justid: Literal[True],
    ) -> ClaimedIDs: ...

    @overload
    def autoclaim(
        self,
        consumer: Name,
        min_idle: Seconds = ...,
        start: IDLike = ...,
        *,
        count: int = ...,
        justid: bool = ...,
    ) -> Claimed[S] | ClaimedIDs: ...

    def autoclaim(
        self,
        consumer: Name,
        min_idle: Seconds = 0,
        start: IDLike = "0-0",
        *,
        count: int = AUTOCLAIM_COUNT,
        justid: bool = False,
    ) -> Claimed[S] | ClaimedIDs:
        """Scan pending entries from ``start`` and claim the idle ones, as XAUTOCLAIM does.

        Continue from the returned ``cursor`` until it is 0-0. If every scan starts at 0-0, entries
        after those that cannot be claimed are never reached.
        """
        if type(count) is not int:
            count = whole(count, "count")
        result = self._run(
            claim.autoclaim,
            name_bytes(consumer, "the consumer"),
            milliseconds(min_idle, "min_idle"),
            range_start(start),
            count,
            justid,
        )
        kind: Any = ClaimedIDs if justid else Claimed
        entries = self._decoder.entries(self._key, cast(Iterable[Entry], result.entries))
        claimed: Claimed[S] | ClaimedIDs = kind(result.cursor, entries, result.deleted)
        return claimed

    # --- looking --------------------------------------------------------------------------------

    def pending(self) -> PendingSummary[S]:
        """Return the number of pending entries, their bounds and owners, as XPENDING does."""
        summary = self._run(claim.pending_summary)
        return self._decoder.pending_summary(summary)

    def pending_range(
        self,
        start: BoundLike = "-",
        end: BoundLike = "+",
        count: int = 100,
        *,
        consumer: Name | None = None,
        min_idle: Seconds = 0,
    ) -> list[PendingEntry[S]]:
        """Return pending entries one by one, as XPENDING's extended form does."""
        if type(count) is not int:
            count = whole(count, "count")
        rows = self._run(
            claim.pending_range,
            range_start(start, self._engine.clock.now_ms),
            range_end(end, self._engine.clock.now_ms),
            count,
            None if consumer is None else name_bytes(consumer, "the consumer"),
            milliseconds(min_idle, "min_idle"),
        )
        return self._decoder.pending_entries(rows)

    def info(self) -> GroupInfo[S]:
        """Return this group's part of XINFO GROUPS."""
        return self._decoder.group_info(self._run(info.group_info))

    def backlog(self) -> int:
        """Return the exact number of entries not yet delivered, even if ``lag`` is None."""
        return self._run(info.backlog)

    def consumers(self) -> list[ConsumerInfo[S]]:
        """Return XINFO CONSUMERS."""
        infos = self._run(info.consumer_infos)
        return [self._decoder.consumer_info(each) for each in infos]

    # --- care -----------------------------------------------------------------------------------

    def set_id(self, start: IDLike, *, entries_read: int | None = None) -> None:
        """Move the last delivered ID to an ID, "$", "-" or "+"; pending entries stay."""
        after = None if start in ("$", b"$", "+", b"+") else range_start(start)
        read = optional(entries_read, "entries_read")
        self._run(groups.set_group_id, after, read)

    def seek(self, when: Moment | timedelta) -> StreamID:
        """Deliver the entries added at a time and later, again or for the first time.

        ``when`` is a datetime, Unix seconds, or a timedelta: that long ago. Pending entries stay
        with their consumers. Returns the new last delivered ID.
        """
        if isinstance(when, timedelta):
            at_ms = self._engine.clock.now_ms() - span_ms(when, "when")
        elif isinstance(when, date | int | float):
            at_ms = moment_ms(when, "when")
        else:
            raise InvalidArgument(
                "seek takes a datetime, Unix seconds, or a timedelta (that long ago), not "
                f"{show(when)}; set_id() takes an ID"
            )
        return self._run(groups.seek, max(0, at_ms))

    def create_consumer(self, name: Name) -> bool:
        """Create the consumer ``name`` before its first read; return whether it is new."""
        consumer = name_bytes(name, "the consumer")
        return self._run(groups.create_consumer, consumer)

    def delete_consumer(self, name: Name) -> int:
        """Delete the consumer ``name``; return how many pending entries were lost with it."""
        consumer = name_bytes(name, "the consumer")
        return self._run(groups.delete_consumer, consumer)

    def remove_consumer(self, name: Name) -> int:
        """Delete the consumer ``name``, give its pending entries back; return how many.

        Unlike ``delete_consumer`` it loses none.
        """
        consumer = name_bytes(name, "the consumer")
        return self._run(consumers.pass_on, consumer)

    def destroy(self) -> bool:
        """Delete the group with its consumers and pending entries; return whether it existed."""
        return self._run(groups.destroy_group)

    # --- the policy -----------------------------------------------------------------------------

    def set_policy(
        self,
        *,
        lease: Duration | None = None,
        max_deliveries: int | None = None,
        backoff: Delays | None = None,
        dead_letter: Name | None = None,
        order_by: Name | None = None,
        max_per_key: int | None = None,
        fair: bool | None = None,
        max_in_flight: int | None = None,
        rate: Rate | None = None,
        reap: Duration | None = None,
    ) -> GroupPolicy:
        """Set rules for all readers of new entries, of any client; return all rules.

        None leaves a rule as it is; 0, ``()`` or ``""`` removes it. ``lease``: an entry pending for
        so long goes to the next reader. ``max_deliveries``: after so many an entry moves to the
        stream ``dead_letter``, by default ``<key>:dead``. ``backoff``: the delay before a failed
        entry is repeated, as ``5``, ``[1, 10, 60]`` or ``Backoff(1, 3600)``. ``order_by``: a field;
        entries of equal value are delivered in order, ``max_per_key`` (1) at a time. ``fair``: the
        values take turns, so that one with very many entries delays no other one.
        ``max_in_flight``: at most so many are pending. ``rate``: ``(100, 60)`` delivers at most 100
        in 60 seconds. ``reap``: a consumer idle for so long is deleted.
        """
        rules = rules_of(
            lease=lease,
            max_deliveries=max_deliveries,
            backoff=backoff,
            dead_letter=dead_letter,
            order_by=order_by,
            max_per_key=max_per_key,
            fair=fair,
            max_in_flight=max_in_flight,
            rate=rate,
            reap=reap,
        )
        return self._run(policy.set_policy, rules)

    def policy(self) -> GroupPolicy | None:
        """Return the rules of the group, times in milliseconds; None if it has none."""
        return self._run(policy.policy_of)

    def drop_policy(self) -> bool:
        """Remove all rules of the group; return whether it had any."""
        return self._run(policy.drop_policy)

    def pause(self) -> None:
        """Deliver no entry until ``resume``, to no client; pending ones may be acknowledged."""
        self._run(policy.set_policy, {"paused": True})

    def resume(self) -> bool:
        """Deliver entries again; return whether the group was paused."""
        return self._run(policy.resume)


class Consumer(Public, Generic[S]):
    """A consumer, by its name; its first read creates it."""

    __slots__ = ("_decoder", "_engine", "_group", "_group_name", "_key", "_name")

    def __init__(self, group: Group[S], name: bytes) -> None:
        self._group = group
        self._name = name
        self._engine = group._engine
        self._key = group._key
        self._group_name = group._name
        self._decoder = group._decoder

    @property
    def name(self) -> S:
        """The name of the consumer."""
        return self._decoder.name(self._name)

    def __repr__(self) -> str:
        return f"<Consumer {self._name!r} of {self._group_name!r} on {key_of(self._key)!r}>"

    def read(
        self,
        count: int | None = None,
        block: Seconds | None = None,
        *,
        noack: bool = False,
        claim_min_idle: Seconds | None = None,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> list[Entry[S]]:
        """Read the entries that were given back to the group, then those not delivered yet.

        Each stays pending with this consumer until it is acknowledged. Those that were given back
        (``nack``) come in that order and tell their ``deliveries``. With ``noack`` only new entries
        are read, as acknowledged. With ``claim_min_idle`` (seconds), as XREADGROUP with CLAIM,
        entries pending for that long with any consumer come first, and every entry has ``idle_ms``
        and ``deliveries``. Waits up to ``block`` seconds; 0: for ever; None: not at all. Returns []
        if there are none.
        """
        if block is None:
            if count is not None and (type(count) is not int or not 0 < count <= NUMBER_MAX):
                count = count_of(count)
                if count == 0:  # which means no limit to a server
                    return []
            claim_ms = None
            if claim_min_idle is not None:
                claim_ms = milliseconds(claim_min_idle, "claim_min_idle")
            try:
                entries = self._engine.run(
                    readgroup.read_new,
                    self._key,
                    self._group_name,
                    self._name,
                    count,
                    noack,
                    claim_ms,
                    budget_of(max_count, max_size),
                )
            except NoGroup as error:
                wrong = explain_missing(self._engine, self._key, self._group_name)
                raise error.with_detail(wrong) from None
            known = entries if claim_ms is None else clear_unknown_idle(self._engine, entries)
            return self._decoder.entries(self._key, known)
        reply = group_read(
            self._engine,
            self._group_name,
            self._name,
            [(self._key, ">")],
            count=count,
            block=block,
            noack=noack,
            claim_min_idle=claim_min_idle,
            budget=lambda: budget_of(max_count, max_size),
        )
        return self._decoder.entries(self._key, cast(list[Entry], reply[0][1])) if reply else []

    def history(self, after: IDLike = "0-0", count: int | None = None) -> list[HistoryEntry[S]]:
        """Return entries pending with this consumer after an ID; each counts as delivered again.

        An entry whose message was deleted is a DeletedEntry, whose ``fields`` are None.
        """
        wanted = [(self._key, after)]
        reply = group_read(self._engine, self._group_name, self._name, wanted, count=count)
        return self._decoder.history(self._key, reply[0][1]) if reply else []

    def listen(
        self,
        count: int = 100,
        *,
        poll: Seconds = 1.0,
        claim_min_idle: Seconds | None = None,
        stop: Stop | None = None,
    ) -> Iterator[Entry[S]]:
        """Yield entries for ever: those pending with this consumer, then what ``read`` returns.

        Acknowledge each when it is done. The entry in work, and those of the ``count`` read ahead,
        stay this consumer's: their idle time is set back every second (every third of a shorter
        ``claim_min_idle``) until the next entry is asked for. One that another consumer claimed all
        the same, and one given back as FATAL, is not yielded. One wait lasts ``poll`` seconds at
        most. Ends when the event ``stop`` is set (see ``stop_on_signals``), before the next entry
        or after the wait; entries that were read and not yielded stay pending, and the next
        ``listen`` begins with them.
        """
        count = at_least_1(count, "count")
        wait_of(poll, "poll")
        every_s = lease_renewal.RENEW_S
        if claim_min_idle is not None:
            every_s = min(every_s, milliseconds(claim_min_idle, "claim_min_idle") / 3000)
        stopped = stop_check(stop)
        outages = Outages(self._engine, stopped)
        lease = Lease(self._engine, self._renew, every_s, outages)
        return self._listen(count, poll, claim_min_idle, stopped, outages, lease)

    def _listen(
        self,
        count: int,
        poll: Seconds,
        claim_min_idle: Seconds | None,
        stopped: Callable[[], bool],
        outages: Outages,
        lease: Lease[StreamID],
    ) -> Iterator[Entry[S]]:
        found: list[Entry[S]] = []
        newest = MIN_ID

        def read() -> list[Entry[S]]:
            return self.read(count, poll, claim_min_idle=claim_min_idle)

        def recover(begun: float) -> list[Entry[S]]:
            known = {entry.id for entry in found}
            return self._find_delivered_since(begun, newest, known) or read()

        try:
            after: IDLike = "0-0"
            while page := outages.outlast(partial(self._next_pending, after, count)):
                yield from self._yield_leased(page[1], stopped, lease)
                after = newest = page[0]
                if stopped():
                    return
            while not stopped():
                found = outages.outlast(read, recover) or []
                newest = max([newest, *(entry.id for entry in found)])
                tried = [entry for entry in found if entry.deliveries != COUNT_MAX]
                yield from self._yield_leased(tried, stopped, lease)
        finally:
            lease.end()

    def _next_pending(self, after: IDLike, count: int) -> tuple[StreamID, list[Entry[S]]] | None:
        """Return the last ID of a page of pending entries, and those to try; None at their end."""
        pending = self.history(after, count)
        return (pending[-1].id, self._to_try(pending)) if pending else None

    def _find_delivered_since(
        self, begun: float, newest: StreamID, known: Container[StreamID]
    ) -> list[Entry[S]]:
        """Return the entries of a read whose reply was lost: those delivered since it began.

        Idle times are not exact: an entry up to ``newest`` that was delivered once, and one that is
        ``known``, came before.
        """
        start: BoundLike = "-"
        found: list[Entry] = []
        while rows := self._group.pending_range(start, "+", _PAGE, consumer=self._name):
            longest_ms = (monotonic() - begun) * 1000 + 1
            for row in rows:
                is_recent = row.idle_ms is not None and row.idle_ms <= longest_ms
                came_before = row.id in known or (row.id <= newest and row.deliveries == 1)
                if is_recent and not came_before and row.deliveries != COUNT_MAX:
                    page = self._engine.run(scan, Range(self._key, row.id, row.id))
                    found += page.entries() if page else []
            start = f"({rows[-1].id}"
        return self._decoder.entries(self._key, found)

    def _renew(self, ids: Sequence[StreamID]) -> list[StreamID]:
        """Set the idle time of entries to 0; return those that this consumer still has."""
        return self._engine.run(claim.renew, self._key, self._group_name, self._name, ids)

    def _to_try(self, pending: list[HistoryEntry[S]]) -> list[Entry[S]]:
        """Return the entries that are not deleted, and not marked as FATAL."""
        first, last = pending[0].id, pending[-1].id
        rows = self._group.pending_range(first, last, len(pending), consumer=self._name)
        marked = {row.id for row in rows if row.deliveries == COUNT_MAX}
        return [
            entry
            for entry in pending
            if not isinstance(entry, DeletedEntry) and entry.id not in marked
        ]

    @staticmethod
    def _yield_leased(
        entries: Sequence[Entry[S]], stopped: Callable[[], bool], lease: Lease[StreamID]
    ) -> Iterator[Entry[S]]:
        """Yield entries; the lease keeps them with the consumer until the next call for one."""
        lease.hold([entry.id for entry in entries])
        for at, entry in enumerate(entries):
            if stopped():
                return
            if lease.begin(at):
                yield entry
        lease.hold(())

    def ack(self, *ids: IDs) -> int:
        """Acknowledge entries, and return how many were pending in the group."""
        return self._group.ack(*ids)

    def nack(self, *ids: IDs, mode: Mode = NackMode.FAIL) -> int:
        """Give pending entries back to the group, and return how many."""
        return self._group.nack(*ids, mode=mode)

    @overload
    def claim(
        self, *ids: IDs, min_idle: Seconds = ..., force: bool = ..., justid: Literal[False] = ...
    ) -> list[Entry[S]]: ...

    @overload
    def claim(
        self, *ids: IDs, min_idle: Seconds = ..., force: bool = ..., justid: Literal[True]
    ) -> list[BareEntry]: ...

    @overload
    def claim(
        self, *ids: IDs, min_idle: Seconds = ..., force: bool = ..., justid: bool = ...
    ) -> list[Entry[S]] | list[BareEntry]: ...

    def claim(
        self, *ids: IDs, min_idle: Seconds = 0, force: bool = False, justid: bool = False
    ) -> list[Any]:
        """Claim pending entries of other consumers, as XCLAIM does, and return them."""
        return self._group.claim(self._name, *ids, min_idle=min_idle, force=force, justid=justid)

    @overload
    def autoclaim(
        self,
        min_idle: Seconds = ...,
        start: IDLike = ...,
        *,
        count: int = ...,
        justid: Literal[False] = ...,
    ) -> Claimed[S]: ...

    @overload
    def autoclaim(
        self,
        min_idle: Seconds = ...,
        start: IDLike = ...,
        *,
        count: int = ...,
        justid: Literal[True],
    ) -> ClaimedIDs: ...

    @overload
    def autoclaim(
        self,
        min_idle: Seconds = ...,
        start: IDLike = ...,
        *,
        count: int = ...,
        justid: bool = ...,
    ) -> Claimed[S] | ClaimedIDs: ...

    def autoclaim(
        self,
        min_idle: Seconds = 0,
        start: IDLike = "0-0",
        *,
        count: int = AUTOCLAIM_COUNT,
        justid: bool = False,
    ) -> Claimed[S] | ClaimedIDs:
        """Scan pending entries from ``start`` and claim the idle ones, as XAUTOCLAIM does."""
        return self._group.autoclaim(self._name, min_idle, start, count=count, justid=justid)

    def pending(self, count: int = 100, *, min_idle: Seconds = 0) -> list[PendingEntry[S]]:
        """Return the entries pending with this consumer, by ID."""
        return self._group.pending_range(count=count, consumer=self._name, min_idle=min_idle)

    def delete(self) -> int:
        """Delete the consumer; return how many pending entries were lost with it."""
        return self._group.delete_consumer(self._name)
