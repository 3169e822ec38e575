"""The figures of queues in a sample of ``top``: of groups that have a policy.

A stream costs a server of ours one command more, and any other server none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstream.errors import KVStreamError, NoSuchKey

if TYPE_CHECKING:
    from kvstream.meta.policy import GroupPolicy
    from kvstream.operations.queues.info import GroupQueue, QueueInfo
    from kvstream.remote.connection import Connection
    from kvstream.store import Store


@dataclass(frozen=True, slots=True)
class QueueSample:
    """The messages of a group that has a policy."""

    ready: int | None
    """For the next readers; None if they are too many to count."""
    leased: int
    waiting: int
    """Given back, to be repeated after a delay."""
    held: int
    """Behind another one of their key."""
    dead: int
    """The length of the dead-letter stream."""
    oldest_age_ms: int | None
    """The time since the oldest message that is not done was added; None if there is none."""
    paused: bool
    done: int | None
    """Messages that were delivered and are no longer pending; None if that is unknown."""
    done_rate: float | None = None
    """Messages done per second since the last sample."""
    next_ms: int | None = None
    """The time until the first waiting message is ready; None if none waits."""


def no_queue() -> QueueInfo:
    """Return what a server without queues says of a stream."""
    from kvstream.operations.queues.info import QueueInfo  # not for a help text

    return QueueInfo(0, 0, 0, [], None)


def sample_of(group: GroupQueue | None, entries_read: int | None) -> QueueSample | None:
    """Return the figures of a group; None if it has no policy."""
    if group is None or group.policy is None:
        return None
    pending = group.leased + group.waiting + group.held
    return QueueSample(
        *(group.ready, group.leased, group.waiting, group.held, group.dead),
        oldest_age_ms=group.oldest_ms or None,
        paused=group.policy.paused,
        done=None if entries_read is None else max(0, entries_read - pending),
        next_ms=group.next_ms,
    )


def groups_of(info: QueueInfo) -> Mapping[bytes, GroupQueue]:
    """Return the groups of a stream by name."""
    return {group.name: group for group in info.groups}


def info_of_store(store: Store, key: bytes) -> QueueInfo:
    """Return the figures of a stream as a queue."""
    from kvstream.layout.keys import qualified
    from kvstream.operations.queues.info import queue_info

    with suppress(NoSuchKey):  # expired just now
        return store.engine.run(queue_info, qualified(store.db, key))
    return no_queue()


def infos_of_server(connection: Connection, names: Sequence[bytes]) -> Mapping[bytes, QueueInfo]:
    """Return the figures of streams as queues; an older server knows none."""
    from kvstream.remote.replies import queue_info_of

    replies = connection.ask_all(("KVSTREAM.INFO", name) for name in names)
    return {
        name: no_queue() if isinstance(reply, Exception) else queue_info_of(reply)
        for name, reply in zip(names, replies, strict=True)
    }


def policy_on_server(connection: Connection, stream: bytes, group: bytes) -> GroupPolicy | None:
    """Return the policy of a group; None if it has none, or an older server knows none."""
    from kvstream.remote.replies import policy_of

    with suppress(KVStreamError):
        return policy_of(connection.ask("KVSTREAM.POLICY", "GET", stream, group))
    return None
