"""The states of a server in its replication, and what each of them allows: one enum, one table.

No part keeps a state: ``state_of`` tells it from what is known at the moment.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from kvstream.commands.replies import ErrorReply
from kvstream.errors import ReplicaReadOnly

LOADING = ErrorReply("LOADING", "kvstream is loading the dataset of its primary in memory")
MASTERDOWN = ErrorReply(
    "MASTERDOWN", "Link with MASTER is down and replica-serve-stale-data is set to 'no'."
)
NOREPLICAS = ErrorReply("NOREPLICAS", "Not enough good replicas to write.")
READONLY = ErrorReply.of(ReplicaReadOnly())


class State(StrEnum):
    """What a server is to others."""

    ALONE = "alone"
    """Nobody has ever followed it, or not for long."""
    PRIMARY = "primary"
    DEGRADED = "degraded"
    """A primary that goes on without the replicas of ``replica-acks``."""
    FENCED = "fenced"
    """A primary that hears too few replicas: another one may have been promoted."""
    SYNCING = "syncing"
    """A replica that has no whole data yet."""
    REPLICA = "replica"


class Allowed(NamedTuple):
    """What clients may do in a state; an error is the reply to what they may not."""

    writes: ErrorReply | None = None
    reads: ErrorReply | None = None
    """The reply to all commands but those that need no present data."""
    stale_reads: ErrorReply | None = None
    """The same while the link is down, with ``replica-serve-stale-data no``."""
    may_be_promoted: bool = True
    """Whether Sentinel may see its priority; else it sees 0."""


ALLOWED: Mapping[State, Allowed] = {
    State.ALONE: Allowed(),
    State.PRIMARY: Allowed(),
    State.DEGRADED: Allowed(),
    State.FENCED: Allowed(writes=NOREPLICAS),
    State.SYNCING: Allowed(READONLY, LOADING, LOADING, may_be_promoted=False),
    State.REPLICA: Allowed(READONLY, stale_reads=MASTERDOWN),
}


class OfReplica(NamedTuple):
    """What a replica knows of itself."""

    has_data: bool
    """It has once had all data of a primary."""
    is_copying: bool
    """A copy is under way."""


class OfPrimary(NamedTuple):
    """What a primary knows of its replicas; times are on its own clock."""

    has_history: bool
    acked_until: float
    """When the replicas of ``replica-acks`` have not answered for too long."""
    heard_until: float
    """The same for those of ``min-replicas-to-write``."""
    degrades: bool
    """``replica-acks-degrade``."""


def state_of(known: OfReplica | OfPrimary, now: float) -> State:
    """Return the state of a server by what is known."""
    if isinstance(known, OfReplica):
        return State.REPLICA if known.has_data else State.SYNCING
    if known.heard_until < now:
        return State.FENCED
    if known.acked_until < now:
        return State.DEGRADED if known.degrades else State.FENCED
    return State.PRIMARY if known.has_history else State.ALONE
