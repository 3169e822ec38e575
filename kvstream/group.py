"""One consumer group of a stream."""

from typing import Any, Literal, overload

from kvstream.consumer import Consumer, claimed_of
from kvstream.engine.coerce import (
    IDs,
    Mode,
    Name,
    Policy,
    Seconds,
    id_list,
    milliseconds,
    name_bytes,
    optional,
    whole,
)
from kvstream.engine.engine import Engine
from kvstream.layout.keys import key_of
from kvstream.operations import ack as acks
from kvstream.operations import claim as claims
from kvstream.operations import groups
from kvstream.operations import info as inspect
from kvstream.operations.ack import Nack, NackMode
from kvstream.operations.delete import Outcome
from kvstream.operations.trim import RefPolicy
from kvstream.types.ids import IDLike, StreamID, range_end, range_start
from kvstream.types.records import (
    BareEntry,
    Claimed,
    ClaimedIDs,
    ConsumerInfo,
    Entry,
    GroupInfo,
    PendingEntry,
    PendingSummary,
)


class Group:
    """A consumer group, by its name.

    Calls raise NoGroup where it does not exist; only ``ack``, ``ack_delete`` and ``destroy`` then
    find nothing to do, as in Redis.
    """

    __slots__ = ("_engine", "_key", "_name")

    def __init__(self, engine: Engine, key: bytes, name: bytes) -> None:
        self._engine = engine
        self._key = key
        self._name = name

    @property
    def name(self) -> bytes:
        return self._name

    def __repr__(self) -> str:
        return f"<Group {self._name!r} of {key_of(self._key)!r}>"

    def consumer(self, name: Name) -> Consumer:
        """Return a consumer by name; its first read makes it."""
        return Consumer(self._engine, self._key, self._name, name_bytes(name))

    # --- entries --------------------------------------------------------------------------------

    def ack(self, *ids: IDs) -> int:
        """Acknowledge entries, as XACK does, and return how many were pending."""
        return self._engine.run(acks.acknowledge, self._key, self._name, id_list(ids))

    def ack_delete(self, *ids: IDs, ref_policy: Policy = RefPolicy.KEEPREF) -> list[Outcome]:
        """Acknowledge entries and delete their messages, as XACKDEL does; each ID's outcome."""
        return self._engine.run(
            acks.acknowledge_and_delete,
            self._key,
            self._name,
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

        "SILENT" says that they were not tried, "FAIL" that they failed, "FATAL" that they must not
        be tried again; ``retrycount`` sets the delivery count. They are first in line for the next
        read with ``claim_min_idle``.
        """
        return self._engine.run(
            acks.negative_acknowledge,
            self._key,
            self._name,
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
    ) -> list[Entry]: ...

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
    ) -> list[Entry] | list[BareEntry]: ...

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

        ``min_idle`` passes over what was delivered less than that many seconds ago. ``idle``
        (seconds) or ``time`` (Unix seconds) sets the delivery time; ``force`` takes entries that
        are not pending; ``justid`` returns entries without fields and counts no delivery.
        """
        time_ms = None if time is None else milliseconds(time, "time")
        if idle is not None:
            time_ms = self._engine.clock.now_ms() - milliseconds(idle, "idle")
        claimed = self._engine.run(
            claims.claim,
            self._key,
            self._name,
            name_bytes(consumer),
            milliseconds(min_idle, "min_idle"),
            id_list(ids),
            time_ms=time_ms,
            retrycount=optional(retrycount, "retrycount"),
            force=force,
            justid=justid,
            last_id=None if last_id is None else StreamID.parse(last_id),
        )
        return list(claimed)

    @overload
    def autoclaim(
        self,
        consumer: Name,
        min_idle: Seconds = ...,
        start: IDLike = ...,
        *,
        count: int = ...,
        justid: Literal[False] = ...,
    ) -> Claimed: ...

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
    ) -> Claimed | ClaimedIDs: ...

    def autoclaim(
        self,
        consumer: Name,
        min_idle: Seconds = 0,
        start: IDLike = "0-0",
        *,
        count: int = claims.AUTOCLAIM_COUNT,
        justid: bool = False,
    ) -> Claimed | ClaimedIDs:
        """Scan pending entries from ``start`` and claim the idle ones, as XAUTOCLAIM does.

        Go on from the returned ``cursor`` until it is 0-0: always starting anew at 0-0 starves what
        lies behind entries that cannot be claimed.
        """
        if type(count) is not int:
            count = whole(count, "count")
        taken = self._engine.run(
            claims.autoclaim,
            self._key,
            self._name,
            name_bytes(consumer),
            milliseconds(min_idle, "min_idle"),
            range_start(start),
            count,
            justid,
        )
        return claimed_of(taken, justid)

    # --- looking --------------------------------------------------------------------------------

    def pending(self) -> PendingSummary:
        """Return the number of pending entries, their bounds and owners, as XPENDING does."""
        return self._engine.run(claims.pending_summary, self._key, self._name)

    def pending_range(
        self,
        start: IDLike = "-",
        end: IDLike = "+",
        count: int = 100,
        *,
        consumer: Name | None = None,
        min_idle: Seconds = 0,
    ) -> list[PendingEntry]:
        """Return pending entries one by one, as XPENDING's extended form does."""
        if type(count) is not int:
            count = whole(count, "count")
        return self._engine.run(
            claims.pending_range,
            self._key,
            self._name,
            range_start(start),
            range_end(end),
            count,
            None if consumer is None else name_bytes(consumer),
            milliseconds(min_idle, "min_idle"),
        )

    def info(self) -> GroupInfo:
        """Return this group's part of XINFO GROUPS."""
        return self._engine.run(inspect.group_info, self._key, self._name)

    def backlog(self) -> int:
        """Return the exact number of entries not yet delivered, also where ``lag`` is None."""
        return self._engine.run(inspect.backlog, self._key, self._name)

    def consumers(self) -> list[ConsumerInfo]:
        """Return XINFO CONSUMERS."""
        return self._engine.run(inspect.consumer_infos, self._key, self._name)

    # --- care -----------------------------------------------------------------------------------

    def set_id(self, start: IDLike, *, entries_read: int | None = None) -> None:
        """Move what counts as delivered: an ID, "$", "-" or "+"; pending entries stay."""
        after = None if start in ("$", b"$", "+", b"+") else range_start(start)
        read = optional(entries_read, "entries_read")
        self._engine.run(groups.set_group_id, self._key, self._name, after, read)

    def create_consumer(self, name: Name) -> bool:
        """Make a consumer before its first read; tell whether it is new."""
        consumer = name_bytes(name)
        return self._engine.run(groups.create_consumer, self._key, self._name, consumer)

    def delete_consumer(self, name: Name) -> int:
        """Remove a consumer; return how many pending entries were lost with it."""
        consumer = name_bytes(name)
        return self._engine.run(groups.delete_consumer, self._key, self._name, consumer)

    def destroy(self) -> bool:
        """Remove the group with its consumers and pending entries; tell whether it existed."""
        return self._engine.run(groups.destroy_group, self._key, self._name)
