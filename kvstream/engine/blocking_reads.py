"""XREAD and XREADGROUP for the library: reads that may block the calling thread.

A read is an object that an engine tries until it replies. An engine of this process calls it, one
of a server sends it as a command.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import cast

from kvstream.engine.coerce import Seconds, block_of, count_of, milliseconds
from kvstream.engine.interface import AnyEngine
from kvstream.engine.waiters import Interrupt
from kvstream.errors import KVStreamError, NoGroup, NoSuchKey, advise, nearest, show
from kvstream.layout.keys import database_of, key_of
from kvstream.meta.txn import Txn
from kvstream.operations import info, readgroup
from kvstream.operations.groups import text
from kvstream.operations.reads import read
from kvstream.operations.reads.limits import Budget
from kvstream.operations.reads.read import Position, Reply, StreamsRead
from kvstream.types.clock import monotonic
from kvstream.types.ids import (
    ID_OR_TIME,
    BoundLike,
    NowMs,
    StreamID,
    position,
    seconds_hint,
)
from kvstream.types.records import Entry, HistoryEntry

_NAMES_MAX = 1000
"""How many keys are compared with a wrong one."""
_DECADE_MS = 10 * 365 * 86_400_000

_POSITIONS = {position.value: position for position in Position}

Wanted = Sequence[tuple[bytes, BoundLike]]
"""The (qualified name, start) of each stream."""

Lists = list[tuple[bytes, list[Entry]]]
"""The (qualified name, entries) of each stream with entries."""

PendingLists = list[tuple[bytes, list[HistoryEntry]]]
"""The (qualified name, entries) of each stream; pending entries may be deleted ones."""

BudgetOf = Callable[[], Budget | None]
"""Returns new limits of a reply, for each attempt."""


def _sign(after: BoundLike) -> str | None:
    if isinstance(after, bytes):
        return after.decode("ascii", "replace")
    return after if isinstance(after, str) else None


def read_position(after: BoundLike, now_ms: NowMs) -> StreamID | Position:
    """Return the start of an XREAD: an ID, a time, ``$`` or ``+``."""
    sign = _sign(after)
    if sign == ">":
        raise read.new_only()
    if sign in _POSITIONS:
        return _POSITIONS[sign]
    if (hint := seconds_hint(after)) is not None:
        advise(hint)
    return position(after, now_ms, f"give '$', '+', {ID_OR_TIME}")


def group_position(after: BoundLike) -> StreamID | None:
    """Return the start of an XREADGROUP: an ID, or NEW for ``>``."""
    sign = _sign(after)
    if sign == ">":
        return readgroup.NEW
    if sign in _POSITIONS:
        raise readgroup.no_history_from(sign)
    return StreamID.parse(after)  # type: ignore[arg-type]  # it refuses a timedelta


@dataclass(slots=True, eq=False)
class PlainRead:
    """An XREAD."""

    wanted: list[tuple[bytes, StreamID | Position]]
    count: int | None
    budget: BudgetOf
    fixed: list[tuple[bytes, StreamID]] = field(default_factory=list)
    """``wanted`` once "$" and "+" are resolved, which the first attempt does for all later ones."""
    interrupt: Interrupt | None = None
    """Ends the wait, if it blocks."""

    def __call__(self, txn: Txn) -> Reply | None:
        bounds = self.budget()  # raises its errors before anything is read
        if self.fixed:
            return read.read_again(txn, StreamsRead(self.fixed, self.count, bounds)) or None
        resolved = [(name, read.resolve(txn, name, after)) for name, after in self.wanted]
        reply = read.read(txn, StreamsRead(resolved, self.count, bounds))
        self.fixed = resolved
        return reply or None


@dataclass(slots=True, eq=False)
class GroupRead:
    """An XREADGROUP."""

    group: bytes
    consumer: bytes
    wanted: list[tuple[bytes, StreamID | None]]
    count: int | None
    noack: bool
    claim_ms: int | None
    budget: BudgetOf
    interrupt: Interrupt | None = None
    """Ends the wait, if it blocks."""

    def __call__(self, txn: Txn) -> Reply | None:
        reply = readgroup.read_group(
            txn,
            self.group,
            self.consumer,
            self.wanted,
            self.count,
            self.noack,
            self.claim_ms,
            self.budget(),
            given_back=self.given_back,
        )
        return reply or None

    @property
    def given_back(self) -> bool:
        """Whether it returns entries that were given back, before new ones."""
        return (
            self.claim_ms is None
            and not self.noack
            and all(after is readgroup.NEW for _, after in self.wanted)
        )

    @property
    def share_key(self) -> Hashable | None:
        """The key of reads that find nothing if this one finds nothing."""
        return readgroup.share_key(self.group, self.claim_ms, self.given_back)

    @property
    def is_interrupted(self) -> bool:
        return self.interrupt is not None and self.interrupt.is_set()

    @property
    def retries(self) -> Callable[[Txn], int | None] | None:
        """``retry_at``, if tries may help although nothing wakes the read."""
        return None if self.claim_ms is None else self.retry_at

    def retry_at(self, txn: Txn) -> int | None:
        """Return the Unix time in milliseconds at which an entry can be claimed, if any can."""
        idle = self.claim_ms or 0
        times = [readgroup.claimable_at(txn, name, self.group, idle) for name, _ in self.wanted]
        return min(times, default=None)


class QueueRead(GroupRead):
    """The read of a worker: a lease in this process, an XREADGROUP with CLAIM on a server.

    Its groups have leases, at whose ends the timer thread wakes blocked reads.
    """

    __slots__ = ("names",)
    retries = None

    def __init__(
        self,
        names: list[bytes],
        group: bytes,
        consumer: bytes,
        count: int,
        lease_ms: int,
        interrupt: Interrupt | None = None,
    ) -> None:
        self.names, self.interrupt = names, interrupt
        self.group, self.consumer, self.count = group, consumer, count
        self.noack, self.claim_ms = False, lease_ms
        self.wanted = [(name, readgroup.NEW) for name in names]
        self.budget = partial(Budget, count, None) if len(names) > 1 else _no_budget

    def __call__(self, txn: Txn) -> Reply | None:
        assert self.count is not None
        assert self.claim_ms is not None
        leased = readgroup.lease(
            txn, self.names, self.group, self.consumer, self.count, self.claim_ms
        )
        return leased or None


def _no_budget() -> None:
    """Return no limits."""


def read_new(
    engine: AnyEngine,
    name: bytes,
    group: bytes,
    consumer: bytes,
    count: int | None = None,
    noack: bool = False,
    claim_ms: int | None = None,
    budget: Budget | None = None,
) -> list[HistoryEntry]:
    """Run ``readgroup.read_new`` as an XREADGROUP, for an engine that sends it to a server."""
    wanted: list[tuple[bytes, StreamID | None]] = [(name, readgroup.NEW)]
    attempt = GroupRead(group, consumer, wanted, count, noack, claim_ms, lambda: budget)
    return [entry for _, entries in engine.run(attempt) or () for entry in entries]


def lease(
    engine: AnyEngine, names: list[bytes], group: bytes, consumer: bytes, count: int, lease_ms: int
) -> Reply:
    """Run ``readgroup.lease`` as an XREADGROUP, for an engine that sends it to a server."""
    return engine.run(QueueRead(names, group, consumer, count, lease_ms)) or []


def rest_of(timeout_s: float | None) -> Callable[[], float | None]:
    """Return a function that returns the seconds left, at least 0; None without a timeout."""
    if timeout_s is None:
        return lambda: None
    deadline = monotonic() + timeout_s
    return lambda: max(0.0, deadline - monotonic())


def plain_read(
    engine: AnyEngine,
    wanted: Wanted,
    count: int | None,
    block: Seconds | None,
    budget: BudgetOf,
    interrupt: Interrupt | None = None,
) -> Lists:
    """Read the entries after each position; return [] if none came within ``block`` seconds.

    ``interrupt`` ends the wait.
    """
    count = count_of(count)
    positions = [(name, read_position(after, engine.clock.now_ms)) for name, after in wanted]
    attempt = PlainRead(positions, count, budget, interrupt=interrupt)
    if count == 0:  # which means no limit to a server
        return []
    if block is None:
        return cast(Lists, _decode(engine.run(attempt)))
    names = [name for name, _ in wanted]
    return cast(Lists, _decode(engine.wait_for(names, attempt, block_of(block))))


def _decode(reply: Reply | None) -> PendingLists:
    """Return a reply with its entries decoded; called outside the lock."""
    return [(name, list(entries)) for name, entries in reply or ()]


def missing_key(engine: AnyEngine, name: bytes, kind: str = "key") -> str:
    """Return the message for a missing key, with the nearest name."""
    key = text(key_of(name))
    keys = [text(known) for known in islice(engine.keys(database_of(name), None), _NAMES_MAX)]
    return f"there is no {kind} {show(key)}{nearest(key, keys)}"


def explain_missing(engine: AnyEngine, name: bytes, group: bytes | None = None) -> str:
    """Return a message that names the missing stream or group; "" if both exist."""
    key = key_of(name)
    try:
        names = [text(known.name) for known in engine.run(info.group_infos, name)]
    except NoSuchKey:
        return missing_key(engine, name, "stream")
    except KVStreamError:
        return ""
    if group is None or text(group) in names:
        return ""
    near = nearest(text(group), names) or ": create_group creates it"
    return f"stream {show(text(key))} has no group {show(text(group))}{near}"


def clear_unknown_idle(engine: AnyEngine, entries: Iterable[HistoryEntry]) -> list[Entry]:
    """Return entries of a CLAIM, with an ``idle_ms`` of None for those that were given back.

    XNACK sets their delivery time to 0, so that Redis shows them idle since 1970.
    """
    found = cast("list[Entry]", list(entries))
    if max((entry.idle_ms or 0 for entry in found), default=0) < _DECADE_MS:
        return found
    since_1970_ms = engine.clock.now_ms() - _DECADE_MS
    return [
        entry._replace(idle_ms=None) if (entry.idle_ms or 0) > since_1970_ms else entry
        for entry in found
    ]


def lease_messages(
    engine: AnyEngine,
    names: list[bytes],
    group: bytes,
    consumer: bytes,
    count: int,
    lease_ms: int,
    block: Seconds | None,
    interrupt: Interrupt | None = None,
) -> Reply:
    """Lease messages as ``readgroup.lease``; return [] if none came within ``block`` seconds.

    ``interrupt`` ends the wait.
    """
    if block is None:
        return engine.run(readgroup.lease, names, group, consumer, count, lease_ms)
    read = QueueRead(names, group, consumer, count, lease_ms, interrupt)
    return engine.wait_for(names, read, block_of(block), read.retries) or []


def group_read(
    engine: AnyEngine,
    group: bytes,
    consumer: bytes,
    wanted: Wanted,
    *,
    count: int | None = None,
    block: Seconds | None = None,
    noack: bool = False,
    claim_min_idle: Seconds | None = None,
    budget: BudgetOf = lambda: None,
) -> PendingLists:
    """Deliver entries to a consumer; return [] if none came within ``block`` seconds."""
    count = count_of(count)
    positions = [(name, group_position(after)) for name, after in wanted]
    claim_ms = None if claim_min_idle is None else milliseconds(claim_min_idle, "claim_min_idle")
    attempt = GroupRead(group, consumer, positions, count, noack, claim_ms, budget)
    if count == 0:
        return []
    names = [name for name, _ in positions]
    try:
        if block is None:
            reply = engine.run(attempt)
        else:
            reply = engine.wait_for(names, attempt, block_of(block), attempt.retries)
    except NoGroup as error:
        wrong = (explain_missing(engine, name, group) for name in names)
        raise error.with_detail(next(filter(None, wrong), "")) from None
    lists = _decode(reply)
    if claim_ms is None:
        return lists
    return [(name, [*clear_unknown_idle(engine, entries)]) for name, entries in lists]
