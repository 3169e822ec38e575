"""Why blocked readers wake: counts by reason, and the last wake-ups.

Whoever changes a key on which readers are blocked gives the reason (``Txn.signal``). One object of
a store, ``txn.catalog.wakeups``, counts the readers that got an outcome by the reason of the change
that woke them, and those whose wait ended without one. KVSTREAM.WAKEUPS shows it, and the debug log
has a line for each. A commit that fails afterwards is counted nevertheless.
"""

import logging
from collections import deque
from enum import StrEnum
from typing import NamedTuple

from kvstream.errors import quote
from kvstream.layout.keys import U16, key_of
from kvstream.logs import DeferredLogger
from kvstream.types.clock import now_ms

LAST_MAX = 100
"""Wake-ups that are kept; the oldest are forgotten first."""

_log = DeferredLogger(__name__)


class Wake(StrEnum):
    """Why a blocked reader woke."""

    ADDED = "added"
    """Entries were added."""
    DUE = "due"
    """A delayed message or one of a schedule became due and was added."""
    DELETED = "deleted"
    """The key was deleted, alone or with its database."""
    EXPIRED = "expired"
    """The key expired."""
    REPLACED = "replaced"
    """The key came from another command: RENAME, COPY, RESTORE, SET, SWAPDB."""
    GROUP_CHANGED = "group-changed"
    """The group was created, or its last delivered ID was set."""
    GROUP_DESTROYED = "group-destroyed"
    """A group of the stream was destroyed."""
    POLICY = "policy"
    """The rules of the group changed, or its pause ended."""
    GIVEN_BACK = "given-back"
    """Pending entries were given back to the group."""
    RETRY = "retry"
    """Entries that were given back have waited for their backoff."""
    FREED = "freed"
    """Pending entries ended, and the group may deliver others: it had reached a limit, or they are
    of one key."""
    CLAIMED = "claimed"
    """Entries were claimed, which moves the end of a lease."""
    LEASE = "lease"
    """A lease ended."""
    RATE = "rate"
    """The rate of the group allows more."""
    MORE = "more"
    """The read before it stopped half-way."""
    IDLE = "idle"
    """Pending entries have become idle for as long as a CLAIM asks for."""
    AGAIN = "again"
    """The transaction that had served the reader was undone."""
    TIMEOUT = "timeout"
    """The time of the wait was over."""
    UNBLOCKED = "unblocked"
    """CLIENT UNBLOCK ended the wait."""
    CANCELLED = "cancelled"
    """The caller gave up: its connection closed, its task was cancelled, or CLIENT PAUSE ended."""
    FAILED = "failed"
    """The store cannot be used any more."""
    CLOSED = "closed"
    """The store was closed."""


class Wakeup(NamedTuple):
    """The end of one wait."""

    at_ms: int
    """The Unix time of the system's clock."""
    name: bytes
    """The key, with its database."""
    group: bytes | None
    """The group of the reader, if it reads for one."""
    reason: Wake


class Wakeups:
    """The wake-ups of a store since it was opened."""

    __slots__ = ("counts", "last")

    def __init__(self) -> None:
        self.counts = dict.fromkeys(Wake, 0)
        """Readers by the reason of their wake-up."""
        self.last: deque[Wakeup] = deque(maxlen=LAST_MAX)
        """The last wake-ups, oldest first."""

    def record(self, name: bytes, group: bytes | None, reason: Wake) -> None:
        """Count and log a wake-up; the caller has the engine's lock."""
        if len(name) < U16.size:  # no key's: what CLIENT PAUSE and WAIT wait for
            return
        self.counts[reason] += 1
        self.last.append(Wakeup(now_ms(), name, group, reason))
        if _log.isEnabledFor(logging.DEBUG):
            of = "" if group is None else f" of group {quote(group)}"
            _log.debug("a reader%s of %s wakes: %s", of, quote(key_of(name)), reason)
