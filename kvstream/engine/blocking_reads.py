"""XREAD and XREADGROUP for the library: reads that may block the calling thread.

A read is an object that an engine tries until it replies. An engine of this process calls it, one
of a server sends it as a command.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from kvstream.engine.coerce import NUMBER_MAX, Seconds, milliseconds, wait_of, whole
from kvstream.engine.interface import AnyEngine
from kvstream.meta.txn import Txn
from kvstream.operations import read, readgroup
from kvstream.operations.read import Position, Reply
from kvstream.operations.reply_limits import Budget
from kvstream.types.ids import IDLike, StreamID
from kvstream.types.records import Entry, HistoryEntry

_POSITIONS = {position.value: position for position in Position}

Wanted = Sequence[tuple[bytes, IDLike]]
"""The (qualified name, start) of each stream."""

Lists = list[tuple[bytes, list[Entry]]]
"""The (qualified name, entries) of each stream with entries."""

PendingLists = list[tuple[bytes, list[HistoryEntry]]]
"""The same for a read that may return pending entries, some of them deleted."""

BudgetOf = Callable[[], Budget | None]
"""Returns new limits of a reply, for each attempt."""


def _text(after: IDLike) -> str | None:
    if isinstance(after, bytes):
        return after.decode("ascii", "replace")
    return after if isinstance(after, str) else None


def read_position(after: IDLike) -> StreamID | Position:
    """Return the start of an XREAD: an ID, ``$`` or ``+``."""
    text = _text(after)
    if text == ">":
        raise read.new_only()
    if text in _POSITIONS:
        return _POSITIONS[text]
    return StreamID.parse(after)


def group_position(after: IDLike) -> StreamID | None:
    """Return the start of an XREADGROUP: an ID, or NEW for ``>``."""
    text = _text(after)
    if text == ">":
        return readgroup.NEW
    if text in _POSITIONS:
        raise readgroup.no_history_from(text)
    return StreamID.parse(after)


@dataclass(slots=True, eq=False)
class PlainRead:
    """An XREAD."""

    wanted: list[tuple[bytes, StreamID | Position]]
    count: int | None
    budget: BudgetOf
    fixed: list[tuple[bytes, StreamID]] = field(default_factory=list)
    """``wanted`` once "$" and "+" are resolved, which the first attempt does for all later ones."""

    def __call__(self, txn: Txn) -> Reply | None:
        bounds = self.budget()  # raises its errors before anything is read
        if self.fixed:
            return read.read_on(txn, self.fixed, self.count, bounds) or None
        found = [(name, read.resolve(txn, name, after)) for name, after in self.wanted]
        reply = read.read(txn, found, self.count, bounds)
        self.fixed = found
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
        )
        return reply or None

    @property
    def shares(self) -> bytes | None:
        """The group: if one of its readers finds nothing new, the others find nothing either."""
        return self.group if self.claim_ms is None else None  # each claims after a time of its own

    def retry_at(self, txn: Txn) -> int | None:
        """Return the Unix time in milliseconds at which an entry can be claimed, if any can."""
        idle = self.claim_ms or 0
        times = [readgroup.claimable_at(txn, name, self.group, idle) for name, _ in self.wanted]
        return min(times, default=None)


def plain_read(
    engine: AnyEngine, wanted: Wanted, count: int | None, block: Seconds | None, budget: BudgetOf
) -> Lists:
    """Read the entries after each position; return [] if none came within ``block`` seconds."""
    if count is not None and (type(count) is not int or count > NUMBER_MAX):
        count = whole(count, "count")
    attempt = PlainRead([(name, read_position(after)) for name, after in wanted], count, budget)
    if block is None:
        return cast(Lists, _decoded(engine.run(attempt)))
    names = [name for name, _ in wanted]
    return cast(Lists, _decoded(engine.wait_for(names, attempt, wait_of(block))))


def _decoded(reply: Reply | None) -> PendingLists:
    """Return a reply with its entries decoded; called outside the lock."""
    return [(name, list(entries)) for name, entries in reply or ()]


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
    if count is not None and (type(count) is not int or count > NUMBER_MAX):
        count = whole(count, "count")
    positions = [(name, group_position(after)) for name, after in wanted]
    claim_ms = None if claim_min_idle is None else milliseconds(claim_min_idle, "claim_min_idle")
    attempt = GroupRead(group, consumer, positions, count, noack, claim_ms, budget)
    if block is None:
        return _decoded(engine.run(attempt))
    names = [name for name, _ in positions]
    retry_at = None if claim_ms is None else attempt.retry_at
    return _decoded(engine.wait_for(names, attempt, wait_of(block), retry_at))
