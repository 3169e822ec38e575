"""One consumer of a group."""

from collections.abc import Iterator
from typing import Any, Literal, cast, overload

from kvstream.engine.blocking_reads import group_read
from kvstream.engine.coerce import (
    NUMBER_MAX,
    IDs,
    Mode,
    Seconds,
    budget_of,
    id_list,
    milliseconds,
    wait_of,
    whole,
)
from kvstream.engine.engine import Engine
from kvstream.errors import InvalidArgument
from kvstream.layout.keys import key_of
from kvstream.operations import ack as acks
from kvstream.operations import claim as claims
from kvstream.operations import groups, readgroup
from kvstream.operations.ack import Nack, NackMode
from kvstream.types.ids import IDLike, range_start
from kvstream.types.records import (
    BareEntry,
    Claimed,
    ClaimedIDs,
    DeletedEntry,
    Entry,
    HistoryEntry,
    PendingEntry,
)


class Consumer:
    """A consumer, by its name; its first read makes it."""

    __slots__ = ("_engine", "_group", "_key", "_name")

    def __init__(self, engine: Engine, key: bytes, group: bytes, name: bytes) -> None:
        self._engine = engine
        self._key = key
        self._group = group
        self._name = name

    @property
    def name(self) -> bytes:
        return self._name

    def __repr__(self) -> str:
        return f"<Consumer {self._name!r} of {self._group!r} on {key_of(self._key)!r}>"

    def read(
        self,
        count: int | None = None,
        block: Seconds | None = None,
        *,
        noack: bool = False,
        claim_min_idle: Seconds | None = None,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> list[Entry]:
        """Take entries that the group has given to nobody yet, as XREADGROUP with ``>`` does.

        Each stays pending with this consumer until it is acknowledged, unless ``noack``. With
        ``claim_min_idle`` (seconds) entries pending for that long, whoever has them, come first,
        and all tell ``idle_ms`` and ``deliveries``. Waits ``block`` seconds at most, 0 for ever,
        None not at all; [] when nothing came.
        """
        if block is None:
            if count is not None and (type(count) is not int or count > NUMBER_MAX):
                count = whole(count, "count")
            claim_ms = None
            if claim_min_idle is not None:
                claim_ms = milliseconds(claim_min_idle, "claim_min_idle")
            found = self._engine.run(
                readgroup.read_new,
                self._key,
                self._group,
                self._name,
                count,
                noack,
                claim_ms,
                budget_of(max_count, max_size),
            )
            return list(found)
        reply = group_read(
            self._engine,
            self._group,
            self._name,
            [(self._key, ">")],
            count=count,
            block=block,
            noack=noack,
            claim_min_idle=claim_min_idle,
            budget=lambda: budget_of(max_count, max_size),
        )
        return cast(list[Entry], reply[0][1]) if reply else []

    def history(self, after: IDLike = "0-0", count: int | None = None) -> list[HistoryEntry]:
        """Show again what is pending with this consumer after an ID; each counts as a delivery.

        One whose message has been deleted is a DeletedEntry, whose ``fields`` are None.
        """
        reply = group_read(self._engine, self._group, self._name, [(self._key, after)], count=count)
        return reply[0][1] if reply else []

    def listen(
        self, count: int = 100, *, poll: Seconds = 1.0, claim_min_idle: Seconds | None = None
    ) -> Iterator[Entry]:
        """Yield entries for ever: first what is pending with this consumer, then new ones.

        Acknowledge each when it is done. ``poll`` bounds how long one wait lasts.
        """
        count = whole(count, "count")
        if count < 1:
            raise InvalidArgument("count must be at least 1")
        wait_of(poll)
        return self._heard(count, poll, claim_min_idle)

    def _heard(self, count: int, poll: Seconds, claim_min_idle: Seconds | None) -> Iterator[Entry]:
        after: IDLike = "0-0"
        while pending := self.history(after, count):
            yield from (entry for entry in pending if not isinstance(entry, DeletedEntry))
            after = pending[-1].id
        while True:
            yield from self.read(count, poll, claim_min_idle=claim_min_idle)

    def ack(self, *ids: IDs) -> int:
        """Acknowledge entries, and return how many were pending in the group."""
        return self._engine.run(acks.acknowledge, self._key, self._group, id_list(ids))

    def nack(self, *ids: IDs, mode: Mode = NackMode.FAIL) -> int:
        """Give pending entries back to the group, and return how many."""
        return self._engine.run(
            acks.negative_acknowledge, self._key, self._group, id_list(ids), Nack(NackMode(mode))
        )

    @overload
    def claim(
        self, *ids: IDs, min_idle: Seconds = ..., force: bool = ..., justid: Literal[False] = ...
    ) -> list[Entry]: ...

    @overload
    def claim(
        self, *ids: IDs, min_idle: Seconds = ..., force: bool = ..., justid: Literal[True]
    ) -> list[BareEntry]: ...

    @overload
    def claim(
        self, *ids: IDs, min_idle: Seconds = ..., force: bool = ..., justid: bool = ...
    ) -> list[Entry] | list[BareEntry]: ...

    def claim(
        self, *ids: IDs, min_idle: Seconds = 0, force: bool = False, justid: bool = False
    ) -> list[Any]:
        """Take over pending entries of others, as XCLAIM does, and return them."""
        claimed = self._engine.run(
            claims.claim,
            self._key,
            self._group,
            self._name,
            milliseconds(min_idle, "min_idle"),
            id_list(ids),
            force=force,
            justid=justid,
        )
        return list(claimed)

    @overload
    def autoclaim(
        self,
        min_idle: Seconds = ...,
        start: IDLike = ...,
        *,
        count: int = ...,
        justid: Literal[False] = ...,
    ) -> Claimed: ...

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
    ) -> Claimed | ClaimedIDs: ...

    def autoclaim(
        self,
        min_idle: Seconds = 0,
        start: IDLike = "0-0",
        *,
        count: int = claims.AUTOCLAIM_COUNT,
        justid: bool = False,
    ) -> Claimed | ClaimedIDs:
        """Scan pending entries from ``start`` and take over the idle ones, as XAUTOCLAIM does."""
        if type(count) is not int:
            count = whole(count, "count")
        taken = self._engine.run(
            claims.autoclaim,
            self._key,
            self._group,
            self._name,
            milliseconds(min_idle, "min_idle"),
            range_start(start),
            count,
            justid,
        )
        return claimed_of(taken, justid)

    def pending(self, count: int = 100, *, min_idle: Seconds = 0) -> list[PendingEntry]:
        """Return what is pending with this consumer, by ID."""
        if type(count) is not int:
            count = whole(count, "count")
        return self._engine.run(
            claims.pending_range,
            self._key,
            self._group,
            range_start("-"),
            range_start("+"),
            count,
            self._name,
            milliseconds(min_idle, "min_idle"),
        )

    def delete(self) -> int:
        """Remove the consumer; return how many pending entries were lost with it."""
        return self._engine.run(groups.delete_consumer, self._key, self._group, self._name)


def claimed_of(taken: claims.Taken, justid: bool) -> Claimed | ClaimedIDs:
    """Return what was claimed with the entries in a list, outside the lock."""
    kind: Any = ClaimedIDs if justid else Claimed
    claimed: Claimed | ClaimedIDs = kind(taken.cursor, list(taken.entries), taken.deleted)
    return claimed
