"""Reads that may wait, in Python's terms: XREAD and XREADGROUP over the engine's waiters."""

from collections.abc import Callable, Sequence
from typing import cast

from kvstream.arguments import NUMBER_MAX, Seconds, milliseconds, wait_of, whole
from kvstream.blocking import wait_for
from kvstream.engine import Engine
from kvstream.errors import InvalidArgument
from kvstream.ids import IDLike, StreamID
from kvstream.meta.txn import Txn
from kvstream.operations import deliver, reads
from kvstream.operations.budget import Budget
from kvstream.operations.reads import Position, Reply
from kvstream.records import Entry, HistoryEntry

_POSITIONS = {position.value: position for position in Position}
_MEANINGLESS = (
    "The {} ID is meaningless in the context of XREADGROUP: you want to read the history of this "
    "consumer by specifying a proper ID, or use the > ID to get new messages. The {} ID would just "
    "return an empty result set."
)
NEW_ONLY = (
    "The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> "
    "option."
)

Wanted = Sequence[tuple[bytes, IDLike]]
"""(qualified name, where to start) of each stream."""

Lists = list[tuple[bytes, list[Entry]]]
"""(qualified name, entries) of each stream that had something."""

PendingLists = list[tuple[bytes, list[HistoryEntry]]]
"""The same of a read that may show what is pending."""

BudgetOf = Callable[[], Budget | None]
"""Makes the bounds of one reply anew for each attempt."""


def _text(after: IDLike) -> str | None:
    if isinstance(after, bytes):
        return after.decode("ascii", "replace")
    return after if isinstance(after, str) else None


def read_position(after: IDLike) -> StreamID | Position:
    """Return where XREAD starts: an ID, ``$`` or ``+``."""
    text = _text(after)
    if text == ">":
        raise InvalidArgument(NEW_ONLY)
    if text in _POSITIONS:
        return _POSITIONS[text]
    return StreamID.parse(after)


def group_position(after: IDLike) -> StreamID | None:
    """Return where XREADGROUP starts: an ID, or NEW for ``>``."""
    text = _text(after)
    if text == ">":
        return deliver.NEW
    if text in _POSITIONS:
        raise InvalidArgument(_MEANINGLESS.format(text, text))
    return StreamID.parse(after)


def plain_read(
    engine: Engine, wanted: Wanted, count: int | None, block: Seconds | None, budget: BudgetOf
) -> Lists:
    """Read what lies after each position; [] when nothing came in ``block`` seconds."""
    if count is not None and (type(count) is not int or count > NUMBER_MAX):
        count = whole(count, "count")
    positions = [(name, read_position(after)) for name, after in wanted]
    fixed: list[tuple[bytes, StreamID]] = []

    def attempt(txn: Txn) -> Reply | None:
        bounds = budget()  # its errors come before anything is read
        if fixed:
            return reads.read_on(txn, fixed, count, bounds) or None
        # The first attempt says what "$" and "+" are for all later ones.
        found = [(name, reads.resolve(txn, name, after)) for name, after in positions]
        reply = reads.read(txn, found, count, bounds)
        fixed.extend(found)
        return reply or None

    if block is None:
        return cast(Lists, _decoded(engine.run(attempt)))
    names = [name for name, _ in wanted]
    return cast(Lists, _decoded(wait_for(engine, names, attempt, wait_of(block))))


def _decoded(reply: Reply | None) -> PendingLists:
    """Return a reply with its entries in lists, outside the lock."""
    return [(name, list(entries)) for name, entries in reply or ()]


def group_read(
    engine: Engine,
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
    """Deliver to a consumer; [] when nothing came in ``block`` seconds."""
    if count is not None and (type(count) is not int or count > NUMBER_MAX):
        count = whole(count, "count")
    fixed = [(name, group_position(after)) for name, after in wanted]
    claim_ms = None if claim_min_idle is None else milliseconds(claim_min_idle, "claim_min_idle")

    def attempt(txn: Txn) -> Reply | None:
        reply = deliver.read_group(txn, group, consumer, fixed, count, noack, claim_ms, budget())
        return reply or None

    if block is None:
        return _decoded(engine.run(attempt))
    names = [name for name, _ in fixed]

    def retry_at(txn: Txn) -> int | None:
        times = [deliver.claimable_at(txn, name, group, claim_ms or 0) for name in names]
        return min(times, default=None)

    retry = None if claim_ms is None else retry_at
    return _decoded(wait_for(engine, names, attempt, wait_of(block), retry))
