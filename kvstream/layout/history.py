"""The row that says whose history a store has, and how far: what replicas find their place by.

::

    history row := "R" -> version(u8) epoch(u64) branch lsn(u64) sequence(u64) base(u64)
                          count(u16) (epoch(u64) branch lsn(u64))*
      branch      20 bytes, random for each epoch; in hexadecimal Redis's replication ID
      lsn         how many rows were written in this history
      sequence    0: the store follows, and its last row is ``lsn``
                  else: it is a primary, and this row has that sequence number and ``lsn``
      base        the least lsn for which that difference holds
      count       the former epochs, the oldest first, each with the lsn at which it ended
    integers are big-endian

An *epoch* begins whenever a primary begins: when its store is opened, or promoted. Two stores that
went on from one position have different branches from there, so equal numbers do not mean equal
rows. A store without the row has no history that another one could follow.

On a replica each commit has the row, so the position is that of its rows. On a primary it is the
first row of an epoch, alone in its commit: its replicas read it in the log as any other.
"""

import os
from dataclasses import dataclass, replace
from struct import Struct, error
from typing import NamedTuple, Self

from kvstream.errors import Corruption

VERSION = 1
BRANCH_BYTES = 20
FORMER_MAX = 64
"""Former epochs that are kept: a replica that was away for longer takes a copy."""
_HEAD = Struct(f">BQ{BRANCH_BYTES}sQQQH")
_FORMER = Struct(f">Q{BRANCH_BYTES}sQ")


class Place(NamedTuple):
    """A position in a history: behind the row ``lsn``, in the epoch that wrote it."""

    epoch: int
    branch: bytes
    lsn: int


@dataclass(frozen=True, slots=True)
class History:
    """The history of a store."""

    epoch: int
    branch: bytes
    lsn: int
    sequence: int = 0
    base: int = 0
    former: tuple[Place, ...] = ()

    @classmethod
    def begin(cls, last: int) -> Self:
        """Begin the history of a store by its next row, behind that of the number ``last``."""
        return cls(1, os.urandom(BRANCH_BYTES), last + 1, last + 1, last)

    @property
    def is_followed(self) -> bool:
        """Whether the store is a primary, not a replica."""
        return self.sequence > 0

    def begin_epoch(self, last: int) -> "History":
        """Begin the next epoch by the store's next row, behind that of the number ``last``."""
        lsn = self.lsn_of(last)
        base = self.base if self.is_followed else lsn
        former = (*self.former, Place(self.epoch, self.branch, lsn))[-FORMER_MAX:]
        branch = os.urandom(BRANCH_BYTES)
        return History(self.epoch + 1, branch, lsn + 1, last + 1, base, former)

    def at(self, lsn: int) -> "History":
        """Return the history of a replica that has taken it over up to ``lsn``."""
        return replace(self, lsn=lsn, sequence=0, base=0)

    def as_replica(self, last: int) -> "History":
        """Return the history with which a store whose last row has this number begins to follow.

        Rows of its own that only began an epoch count for nothing: a primary that was opened, and
        has written nothing since, has what it had before.
        """
        if not self.is_followed:
            return self
        history = self.at(self.lsn_of(last))
        while history.former and history.lsn == history.former[-1].lsn + 1:
            *before, place = history.former
            history = History(*place, former=tuple(before))
        return history

    def place(self, sequence: int) -> Place:
        """Return the position of the store, whose last row has this sequence number."""
        return Place(self.epoch, self.branch, self.lsn_of(sequence))

    def lsn_of(self, sequence: int) -> int:
        """Return the lsn of a row by its sequence number here; of a replica, of its last one."""
        return self.lsn + sequence - self.sequence if self.sequence else self.lsn

    def sequence_of(self, lsn: int) -> int:
        """Return the sequence number that a row of a primary has here."""
        return lsn - self.lsn + self.sequence

    def fork(self, place: Place, last: int) -> int | None:
        """Return the last row that this history has in common with another store at ``place``.

        ``last`` is the last row of this store. Returns None if the other history is unknown.
        """
        if place.branch == self.branch:
            return min(place.lsn, last)
        for former in reversed(self.former):
            if former.branch == place.branch:
                return min(place.lsn, former.lsn)
        return None

    def encode(self) -> bytes:
        own = self.epoch, self.branch, self.lsn, self.sequence, self.base
        head = _HEAD.pack(VERSION, *own, len(self.former))
        return head + b"".join(_FORMER.pack(*former) for former in self.former)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Return the history of a row; raise Corruption if it is damaged or of a later version."""
        try:
            version, epoch, branch, lsn, sequence, base, count = _HEAD.unpack_from(value)
            former = tuple(Place(*each) for each in _FORMER.iter_unpack(value[_HEAD.size :]))
        except error:
            version = 0
        if version != VERSION or len(former) != count:
            raise Corruption(
                f"the history row is damaged, or of a later version: {value[:8].hex()}"
            )
        return cls(epoch, branch, lsn, sequence, base, former)
