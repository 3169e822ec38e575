"""The states of a server in its replication, and what each of them allows: one enum, one table.

The state is never stored: ``state_of`` computes it from what is known at the moment.

A primary has a lease: for how long the answers of its replicas count. Replicas send back the
primary's own clock with each heartbeat. So answers that a stopped process finds in its sockets are
as old as they are, and no clocks of two machines are compared.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from math import inf
from typing import NamedTuple

from kvstream.commands.replies import ErrorReply
from kvstream.errors import ReplicaReadOnly

LOADING = ErrorReply("LOADING", "kvstream is loading the dataset of its primary in memory")
MASTERDOWN = ErrorReply(
    "MASTERDOWN", "Link with MASTER is down and replica-serve-stale-data is set to 'no'."
)
NOREPLICAS = ErrorReply("NOREPLICAS", "Not enough good replicas to write.")
SUSPECT = ErrorReply(
    "NOREPLICAS",
    "This server comes from a power loss, and asks its replicas whether they have more.",
)
READONLY = ErrorReply.of(ReplicaReadOnly())


class State(StrEnum):
    """The state of a server, as other servers and clients see it."""

    ALONE = "alone"
    """It has had no replica for ``repl-backlog-ttl``."""
    PRIMARY = "primary"
    DEGRADED = "degraded"
    """A primary that goes on without the replicas of ``replica-acks``."""
    SUSPECT = "suspect"
    """A primary that may have lost, in a power loss, rows that its replicas have."""
    FENCED = "fenced"
    """A primary that hears too few replicas, so that another one may have been promoted; or that
    another one has replaced, which has its archive."""
    SYNCING = "syncing"
    """A replica that has not finished its first copy."""
    REPLICA = "replica"
    BEHIND = "behind"
    """A replica that must not be promoted: it knows that it lacks rows."""


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
    State.SUSPECT: Allowed(SUSPECT, SUSPECT),
    State.FENCED: Allowed(writes=NOREPLICAS),
    State.SYNCING: Allowed(READONLY, LOADING, LOADING, may_be_promoted=False),
    State.REPLICA: Allowed(READONLY, stale_reads=MASTERDOWN),
    State.BEHIND: Allowed(READONLY, stale_reads=MASTERDOWN, may_be_promoted=False),
}


class OfReplica(NamedTuple):
    """What a replica knows of itself."""

    has_data: bool
    """It has finished a copy of a primary."""
    is_copying: bool
    """A copy is under way."""
    lacks_rows: bool
    """The primary has confirmed a row to clients which this replica lacks."""
    valid_until: float
    """When its link has been down for ``replica-validity``; infinite while it is up."""


class OfPrimary(NamedTuple):
    """What a primary knows of its replicas; times are on its own clock."""

    has_history: bool
    acked_until: float
    """When the replicas of ``replica-acks`` have not answered for too long."""
    heard_until: float
    """The same for those of ``min-replicas-to-write``."""
    degrades: bool
    """``replica-acks-degrade``."""
    is_suspect: bool
    """It has lost power, and not yet heard from each replica that the replica is not ahead."""
    is_replaced: bool = False
    """Another server has taken its archive over."""


def state_of(known: OfReplica | OfPrimary, now: float) -> State:
    """Return the state of a server by what is known."""
    if isinstance(known, OfReplica):
        if not known.has_data:
            return State.SYNCING
        is_behind = known.is_copying or known.lacks_rows or known.valid_until < now
        return State.BEHIND if is_behind else State.REPLICA
    if known.is_suspect:
        return State.SUSPECT
    if known.is_replaced or known.heard_until < now:
        return State.FENCED
    if known.acked_until < now:
        return State.DEGRADED if known.degrades else State.FENCED
    return State.PRIMARY if known.has_history else State.ALONE


def lease_s(max_lag_s: int, lease_ms: int) -> float:
    """Return for how long an answer counts, by both settings; 0 is no limit."""
    return min(max_lag_s or inf, lease_ms / 1000 or inf)


def lease_end(echoes: Iterable[float], wanted: int, seconds: float) -> float:
    """Return until when at least ``wanted`` replicas count as present.

    ``echoes`` are the newest times that each has sent back. Infinite if none is wanted, and in the
    past if there are too few.
    """
    if wanted <= 0:
        return inf
    newest = sorted(echoes, reverse=True)
    return newest[wanted - 1] + seconds if wanted <= len(newest) else -inf


def next_change(ends: Iterable[float], now: float) -> float:
    """Return when the first lease ends that has not ended yet; infinite if none does."""
    return min((end for end in ends if end >= now), default=inf)
