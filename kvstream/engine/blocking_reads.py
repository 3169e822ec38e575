"""XREAD and XREADGROUP for the library: reads that may block the calling thread.

``wait_for`` blocks a thread on the engine's waiters. Server and asyncio clients use the same
waiters with a ``deliver`` of their own.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from kvstream.engine.coerce import NUMBER_MAX, Seconds, milliseconds, wait_of, whole
from kvstream.engine.engine import Engine
from kvstream.engine.waiters import Outcome, Signal
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn
from kvstream.operations import read, readgroup
from kvstream.operations.read import Position, Reply
from kvstream.operations.reply_limits import Budget
from kvstream.types.ids import IDLike, StreamID
from kvstream.types.records import Entry, HistoryEntry

T = TypeVar("T")

RETRY_PAUSE_MS_MIN, RETRY_PAUSE_MS_GONE, RETRY_PAUSE_MS_MAX = 10, 50, 1000
"""Pauses between the tries of a blocked CLAIM; the least keeps it from using a whole core."""


def wait_for(
    engine: Engine,
    names: list[bytes],
    attempt: Callable[[Txn], T | None],
    timeout_s: float | None,
    retry_at: Callable[[Txn], int | None] | None = None,
) -> T | None:
    """Run ``attempt`` until it replies; return None after ``timeout_s`` (None waits for ever).

    ``retry_at`` returns the Unix time in milliseconds at which another try may help although
    nothing is written, or None if that is unknown.
    """
    arrived = Signal()
    outcomes: list[Outcome] = []

    def deliver(outcome: Outcome) -> None:
        outcomes.append(outcome)
        arrived.set()

    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    reply, waiter = engine.submit(names, attempt, deliver)
    if waiter is None:
        return reply
    try:
        while not arrived.wait(_pause(engine, deadline, retry_at)):
            if deadline is not None and time.monotonic() >= deadline:
                if engine.cancel(waiter):
                    return None
                arrived.wait(None)
                break
            elif retry_at is not None:
                engine.serve(waiter.names)  # in order: earlier waiters may succeed as well
    except BaseException:  # KeyboardInterrupt among them
        engine.cancel(waiter)
        raise
    return outcomes[0].get()  # type: ignore[no-any-return]


def _pause(
    engine: Engine, deadline: float | None, retry_at: Callable[[Txn], int | None] | None
) -> float | None:
    """Return the seconds until the deadline or the next try, whichever comes first."""
    rest = None
    if deadline is not None:
        rest = min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
    if retry_at is None:
        return rest
    try:
        due = engine.run(retry_at)
    except RequestError:  # the key or group is gone: the waiter gets that error
        due = None
    retry = retry_pause_s(due, engine.clock.now_ms())
    return retry if rest is None else min(rest, retry)


def retry_pause_s(due_ms: int | None, now_ms: int) -> float:
    """Return the seconds until a blocked CLAIM tries again.

    ``due_ms`` is the Unix time at which a try may help, or None if that is unknown.
    """
    wait_ms = RETRY_PAUSE_MS_MAX if due_ms is None else due_ms - now_ms
    if wait_ms < 0:  # an entry was idle long enough, but its message is deleted
        wait_ms = RETRY_PAUSE_MS_GONE
    return min(max(wait_ms, RETRY_PAUSE_MS_MIN), RETRY_PAUSE_MS_MAX) / 1000


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


def plain_read(
    engine: Engine, wanted: Wanted, count: int | None, block: Seconds | None, budget: BudgetOf
) -> Lists:
    """Read the entries after each position; return [] if none came within ``block`` seconds."""
    if count is not None and (type(count) is not int or count > NUMBER_MAX):
        count = whole(count, "count")
    positions = [(name, read_position(after)) for name, after in wanted]
    fixed: list[tuple[bytes, StreamID]] = []

    def attempt(txn: Txn) -> Reply | None:
        bounds = budget()  # raises its errors before anything is read
        if fixed:
            return read.read_on(txn, fixed, count, bounds) or None
        # The first attempt resolves "$" and "+" for all later ones.
        found = [(name, read.resolve(txn, name, after)) for name, after in positions]
        reply = read.read(txn, found, count, bounds)
        fixed.extend(found)
        return reply or None

    if block is None:
        return cast(Lists, _decoded(engine.run(attempt)))
    names = [name for name, _ in wanted]
    return cast(Lists, _decoded(wait_for(engine, names, attempt, wait_of(block))))


def _decoded(reply: Reply | None) -> PendingLists:
    """Return a reply with its entries decoded; called outside the lock."""
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
    """Deliver entries to a consumer; return [] if none came within ``block`` seconds."""
    if count is not None and (type(count) is not int or count > NUMBER_MAX):
        count = whole(count, "count")
    fixed = [(name, group_position(after)) for name, after in wanted]
    claim_ms = None if claim_min_idle is None else milliseconds(claim_min_idle, "claim_min_idle")

    def attempt(txn: Txn) -> Reply | None:
        reply = readgroup.read_group(txn, group, consumer, fixed, count, noack, claim_ms, budget())
        return reply or None

    if block is None:
        return _decoded(engine.run(attempt))
    names = [name for name, _ in fixed]

    def retry_at(txn: Txn) -> int | None:
        times = [readgroup.claimable_at(txn, name, group, claim_ms or 0) for name in names]
        return min(times, default=None)

    retry = None if claim_ms is None else retry_at
    return _decoded(wait_for(engine, names, attempt, wait_of(block), retry))
