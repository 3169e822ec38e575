"""The conditions of EXEC: no key under WATCH has changed, no lease of KVSTREAM.GUARD is lost."""

from collections.abc import Iterator
from typing import NamedTuple

from kvstream.errors import LeaseLost, quote
from kvstream.layout.keys import key_of
from kvstream.meta.keyspace import KeyWatch
from kvstream.meta.pel import run_at
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn
from kvstream.types.ids import StreamID


class Guard(NamedTuple):
    """The lease of one entry: its consumer, and how often it was delivered."""

    name: bytes
    group: bytes
    consumer: bytes
    eid: StreamID
    deliveries: int

    def is_held(self, txn: Txn) -> bool:
        """Return whether the entry is pending with the consumer, and was not delivered again."""
        stream = txn.key(self.name)
        group = None
        if isinstance(stream, StreamMeta):
            group = txn.catalog.group(txn, stream, self.group)
        run = None if group is None else run_at(txn, group, self.eid.packed)
        return (
            run is not None
            and run.has(self.eid.packed)
            and run.owned
            and (run.owner, run.deliveries) == (self.consumer, self.deliveries)
        )

    def check(self, txn: Txn) -> None:
        """Raise LeaseLost if the lease is not held."""
        if not self.is_held(txn):
            raise lost_lease(self.name, self.consumer, self.eid, self.deliveries)


def lost_lease(name: bytes, consumer: bytes, eid: StreamID, deliveries: int) -> LeaseLost:
    """Return the error of a token that is not current."""
    return LeaseLost(
        f"entry {eid} of stream {quote(key_of(name))} is not leased to {quote(consumer)} with "
        f"delivery {deliveries} any more"
    )


def guard(
    txn: Txn, name: bytes, group: bytes, consumer: bytes, eid: StreamID, deliveries: int
) -> None:
    """Raise LeaseLost if an entry is not pending with this consumer and delivery count."""
    Guard(name, group, consumer, eid, deliveries).check(txn)


class Watched:
    """The keys under WATCH and the guarded leases, and whether they have changed since."""

    __slots__ = ("_prints", "_unchanged", "_watch", "guards")

    def __init__(self) -> None:
        self.guards: list[Guard] = []
        self._prints: dict[bytes, object] = {}
        self._watch: KeyWatch | None = None
        self._unchanged = False

    def __len__(self) -> int:
        return len(self._prints)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._prints)

    @property
    def is_used(self) -> bool:
        """Whether there is a key or a lease."""
        return bool(self._prints or self.guards)

    def add(self, txn: Txn, name: bytes) -> None:
        """Watch another key; a key that is already watched stays as it was."""
        if name in self._prints:
            return
        if self._watch is None:
            self._watch = txn.catalog.index.watch(set())
        # This deletes an expired key before it is watched.
        self._prints[name] = _fingerprint(txn, name)
        txn.catalog.index.follow(self._watch, txn.catalog.databases.stored_name(txn, name))

    def is_changed(self, txn: Txn) -> bool:
        """Return whether any of the keys has changed, even if it changed back, or a lease is lost.

        After a turn that was rolled back, the changes noted since the last call are its own.
        """
        if not (self._prints or self.guards):  # most often
            return False
        if not all(guard.is_held(txn) for guard in self.guards):
            return True
        if self._watch is None:
            return False
        has_changed = bool(self._watch.changed) and not self._unchanged
        changes = (_fingerprint(txn, name) != before for name, before in self._prints.items())
        self._unchanged = not (has_changed or any(changes))
        return not self._unchanged


def _fingerprint(txn: Txn, name: bytes) -> object:
    """Return a value that changes with a key; None if there is no key.

    Changes of a stream's groups do not count, as in Redis.
    """
    stream = txn.key(name)
    if isinstance(stream, StringMeta):
        return (stream.generation, stream.value, stream.pieces, stream.expire_at)
    if stream is None:
        return None
    return (
        stream.generation,
        stream.entries_added,
        stream.length,
        stream.last,
        stream.max_deleted,
        stream.expire_at,
        stream.iids_added,
    )
