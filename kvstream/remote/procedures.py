"""Operations of the library that take several round trips to a server."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol

from kvstream.engine.interface import AnyEngine
from kvstream.errors import RequestError, WrongType
from kvstream.layout.keys import database_of, key_of
from kvstream.operations import append, claim, info, keyspace, watch
from kvstream.operations.ack import Nack
from kvstream.operations.queues import leases
from kvstream.operations.queues.leases import Token
from kvstream.operations.reads import counts
from kvstream.operations.reads.range import Range, scan
from kvstream.remote.call import Call, Effect, plain
from kvstream.remote.connection import PAGE_MAX, Connection
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID
from kvstream.types.records import Entry, PendingEntry

PENDING_PAGE = 1000
_COUNT = plain("KVSTREAM.COUNT")


class ServerEngine(AnyEngine, Protocol):
    """What these operations need of the engine of a server."""

    given_back: Any

    def call(self, call: Call) -> Any: ...

    def connection(self, db: int | None = None) -> Connection: ...

    def is_open_here(self) -> bool: ...


def count(engine: ServerEngine, name: bytes, start: StreamID, end: StreamID) -> int:
    """Count the entries of a range; read them if the server has no command that counts."""
    if start <= MIN_ID.next() and end == MAX_ID:
        return engine.run(counts.length, name)
    try:
        return int(engine.call(replace(_COUNT(name, start, end), effect=Effect.READ)))
    except WrongType:
        raise
    except RequestError:  # Redis, an older kvstream, or a user without permission
        return _count_by_reading(engine, name, start, end)


def _count_by_reading(engine: ServerEngine, name: bytes, start: StreamID, end: StreamID) -> int:
    count = 0
    entries: list[Entry] = []
    while start <= end:
        page = engine.page_size(entries, PAGE_MAX)
        found = engine.run(scan, Range(name, start, end, page))
        entries = found.entries() if found else []
        count += len(entries)
        if len(entries) < page or entries[-1].id >= end:
            break
        start = entries[-1].id.next()
    return count


def count_after(engine: ServerEngine, name: bytes, eid: StreamID) -> int:
    """Count the entries after an ID."""
    return 0 if eid == MAX_ID else count(engine, name, eid.next(), MAX_ID)


def backlog(engine: ServerEngine, name: bytes, group: bytes) -> int:
    """Return the lag; count the entries if the server does not know it."""
    group_info = engine.run(info.group_info, name, group)
    if group_info.lag is not None:
        return group_info.lag
    return count_after(engine, name, group_info.last_delivered_id)


def give_back(
    engine: ServerEngine, name: bytes, group: bytes, ids: Sequence[StreamID], nack: Nack
) -> int:
    """Give entries back to their group."""
    connection = engine.connection(database_of(name))
    return engine.given_back.nack(connection, name, group, ids, nack)  # type: ignore[no-any-return]


def pending_rows(
    engine: AnyEngine,
    name: bytes,
    group: bytes,
    consumer: bytes,
    start: StreamID = MIN_ID,
    end: StreamID = MAX_ID,
) -> Iterator[PendingEntry]:
    """Yield the pending entries of a consumer, a page in a round trip."""
    while start <= end:
        page = engine.run(claim.pending_range, name, group, start, end, PENDING_PAGE, consumer)
        yield from page
        if len(page) < PENDING_PAGE or page[-1].id == end:
            return
        start = page[-1].id.next()


def renew(
    engine: ServerEngine, name: bytes, group: bytes, consumer: bytes, ids: Sequence[StreamID]
) -> list[StreamID]:
    """Reset the idle time of entries that are pending with a consumer, in two round trips."""
    rows = pending_rows(engine, name, group, consumer, min(ids), max(ids))
    pending = {row.id for row in rows}
    renewed = [eid for eid in ids if eid in pending]
    engine.run(claim.claim, name, group, consumer, 0, renewed, justid=True)
    return renewed


def finish(
    engine: ServerEngine,
    name: bytes,
    group: bytes,
    consumer: bytes,
    tokens: Sequence[Token],
    results: Sequence[leases.Result] = (),
    unless: Sequence[bytes] = (),
) -> bool:
    """Acknowledge deliveries and add their results in one MULTI, guarded by the leases.

    If one of the keys ``unless`` exists, return False, and nothing is done.
    """
    with nullcontext() if engine.is_open_here() else engine.transaction():
        keys = [*map(key_of, unless)]
        there: int = engine.run(keyspace.count_all, database_of(name), keys) if keys else 0
        if there:
            return False
        for token in tokens:
            engine.run(watch.guard, name, group, consumer, *token)
        now_ms = engine.clock.now_ms() if results else 0
        for result in results:
            engine.run(append.add, result.name, result.value, result.names)
            if result.ttl_ms is not None:
                engine.run(keyspace.expire_at, result.name, now_ms + result.ttl_ms)
        engine.run(leases.ack_delete, name, group, consumer, tokens)
    return True
