"""The figures of queues and groups: one call of the store for each stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kvstream.errors import NoSuchKey, RequestError, ServerTooOld, WrongType
from kvstream.meta.policy import DEAD_SUFFIX
from kvstream.operations.queues.info import GroupQueue, QueueInfo, queue_info

if TYPE_CHECKING:
    from kvstream.console.listing import Listing
    from kvstream.meta.policy import GroupPolicy
    from kvstream.store import Store
    from kvstream.stream import Stream
    from kvstream.types.records import GroupInfo


class QueueRow(NamedTuple):
    """A queue: all its priorities together."""

    name: bytes
    group: bytes
    ready: int | None
    leased: int
    waiting: int
    held: int
    delayed: int
    dead: int
    """The letters in its stream of dead letters, which other queues may share."""
    oldest_ms: int
    consumers: int
    policy: GroupPolicy
    dead_key: bytes
    streams: tuple[bytes, ...]

    @property
    def is_troubled(self) -> bool:
        return bool(self.dead or self.policy.paused or self.oldest_ms > OLD_MS)

    @property
    def dead_elsewhere(self) -> bytes:
        """The stream of its dead letters, if that is not its own: other queues may share it."""
        own = any(self.dead_key == name + DEAD_SUFFIX for name in self.streams)
        return b"" if own or self.dead_key == self.name + DEAD_SUFFIX else self.dead_key

    @property
    def group_shown(self) -> bytes:
        """The group, unless it is the usual one."""
        return b"" if self.group == b"workers" else self.group

    @property
    def open(self) -> int:
        """Messages that are not done."""
        return (self.ready or 0) + self.leased + self.waiting + self.held + self.delayed


GROUPS_FIGURED = 100
"""Groups of a stream whose figures a list shows, by name; the page of a queue reads ten times as
many, and finds a group that is asked for among any number."""
GROUPS_READ, CONSUMERS_READ = 1000, 2000
"""Above these numbers no groups of a stream, and no consumers of a group, are listed: a server has
no command for a part of them, and sends all in one reply."""
OLD_MS = 300_000
"""A queue whose oldest message is older is shown among the first."""


def groups_of(stream: Stream, count: int | None) -> list[GroupInfo] | None:
    """Return the groups of a stream that has ``count`` of them; None if they are too many."""
    return stream.groups() if (count or 0) <= GROUPS_READ else None


def info_of(
    store: Store, name: bytes, count: int = GROUPS_FIGURED, first: bytes = b""
) -> QueueInfo | None:
    """Return the figures of a stream; None if it is gone, or the server knows no queues.

    They are those of at most ``count`` groups, from the name ``first`` on.
    """
    try:
        return store.run(queue_info, name, first, count)
    except (NoSuchKey, WrongType, ServerTooOld):
        return None
    except RequestError:  # a server that does not know the command
        return None


def queue_rows(
    store: Store, listing: Listing, names: Iterable[bytes], calls: int
) -> tuple[list[QueueRow], bytes | None]:
    """Return the queues among streams, and the first that was not asked after ``calls`` calls."""
    rows: list[QueueRow] = []
    for name in names:
        parts = listing.priorities(name)
        if calls < len(parts):
            return rows, name
        calls -= len(parts)
        rows += rows_of(store, name, parts, GROUPS_FIGURED)
    return rows, None


def rows_of(
    store: Store,
    name: bytes,
    parts: Iterable[bytes],
    count: int = GROUPS_READ,
    group: bytes = b"",
) -> list[QueueRow]:
    """Return a row for each group with rules of a queue; its priorities are added up.

    At most ``count`` groups of each are read, or only ``group``.
    """
    rows: dict[bytes, QueueRow] = {}
    for part in parts:
        info = info_of(store, part, 1 if group else count, group)
        for each in () if info is None else info.groups:
            if each.policy is not None and group in (b"", each.name):
                row = _row(name, part, each, info.delayed if info else 0)
                rows[each.name] = _added(rows[each.name], row) if each.name in rows else row
    return list(rows.values())


def _row(name: bytes, part: bytes, group: GroupQueue, delayed: int) -> QueueRow:
    assert group.policy is not None
    return QueueRow(
        *(name, group.name, group.ready, group.leased, group.waiting, group.held),
        delayed=delayed,
        dead=group.dead,
        oldest_ms=group.oldest_ms,
        consumers=group.consumers,
        policy=group.policy,
        dead_key=group.policy.dead_key(part),
        streams=(part,),
    )


def _added(one: QueueRow, other: QueueRow) -> QueueRow:
    ready = None if one.ready is None or other.ready is None else one.ready + other.ready
    is_same = one.dead_key == other.dead_key
    return one._replace(
        ready=ready,
        leased=one.leased + other.leased,
        waiting=one.waiting + other.waiting,
        held=one.held + other.held,
        delayed=one.delayed + other.delayed,
        dead=max(one.dead, other.dead) if is_same else one.dead + other.dead,
        oldest_ms=max(one.oldest_ms, other.oldest_ms),
        consumers=max(one.consumers, other.consumers),
        policy=one.policy if one.policy.paused else other.policy,
        streams=one.streams + other.streams,
    )


def troubled_first(rows: Iterable[QueueRow]) -> list[QueueRow]:
    """Return queues in the order in which a person wants to see them."""
    return sorted(
        rows, key=lambda row: (not row.dead, not row.is_troubled, -row.oldest_ms, row.name)
    )
