"""One stream, its nodes and its groups: the rules of Redis, each in the plainest form.

Where Redis 8.10 leaves a choice, the comment says "Decided".
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import xxhash

from tests.model.listpack import FRAME, ONE_GIGABYTE, element, integer

Id = tuple[int, int]
Fields = list[bytes]
MAX64 = (1 << 64) - 1
ZERO: Id = (0, 0)
TOP: Id = (MAX64, MAX64)
COUNT_MAX = (1 << 63) - 1  # a delivery count stays there


def after(id: Id) -> Id:
    """Return the ID right above."""
    return (id[0], id[1] + 1) if id[1] < MAX64 else (id[0] + 1, 0)


def before(id: Id) -> Id:
    """Return the ID right below."""
    return (id[0], id[1] - 1) if id[1] > 0 else (id[0] - 1, MAX64)


@dataclass
class Node:
    """A run of entries made by appends, as one listpack of Redis."""

    master: Id
    fields: Fields
    live: list[Id] = field(default_factory=list)
    deleted: int = 0
    last: Id = ZERO  # of the last entry, deleted or not
    body: int = 0  # bytes of all but the frame and the two counts

    def __post_init__(self) -> None:
        self.body = integer(len(self.fields)) + sum(map(element, self.fields)) + integer(0)

    def size(self) -> int:
        return FRAME + integer(len(self.live)) + integer(self.deleted) + self.body

    def append(self, id: Id, flat: Fields) -> None:
        same = flat[::2] == self.fields
        parts = [0, id[0] - self.master[0], id[1] - self.master[1]] + [len(flat) // 2] * (not same)
        stored = flat[1::2] if same else flat
        lp_count = len(parts) + len(stored)
        self.body += sum(map(integer, [*parts, lp_count])) + sum(map(element, stored))
        self.live.append(id)
        self.last = id


@dataclass
class Pending:
    """One entry delivered and not acknowledged; ``owner`` None after XNACK."""

    owner: bytes | None
    time: int
    count: int


@dataclass
class Consumer:
    seen: int
    active: int = -1


@dataclass
class Group:
    last: Id
    read: int | None  # None: unknown
    pel: dict[Id, Pending] = field(default_factory=dict)
    consumers: dict[bytes, Consumer] = field(default_factory=dict)
    nacked: dict[Id, None] = field(default_factory=dict)  # the NACK zone, first given back first

    def consumer(self, name: bytes, now: int) -> Consumer:
        """Return the consumer, made when it is new, as seen now."""
        found = self.consumers.setdefault(name, Consumer(now))
        found.seen = now
        return found

    def ids(self, owner: bytes | None = None) -> list[Id]:
        """Return the pending IDs in order, of one owner or of all."""
        return sorted(id for id, p in self.pel.items() if owner is None or p.owner == owner)

    def own(self, id: Id, owner: bytes, time: int, count: int) -> None:
        self.drop(id)
        self.pel[id] = Pending(owner, time, min(count, COUNT_MAX))

    def drop(self, id: Id) -> bool:
        self.nacked.pop(id, None)
        return self.pel.pop(id, None) is not None

    def nack(self, id: Id, count: int) -> None:
        """Give an entry back: to the end of the zone, also when it lies in there already."""
        self.drop(id)  # Decided: a second XNACK moves the entry to the end of the zone
        self.pel[id] = Pending(None, 0, count)
        self.nacked[id] = None

    def idle(self, now: int, min_idle: int) -> list[Id]:
        """Return what a CLAIM may take: the NACK zone, then the longest idle; ties by ID."""
        owned = (id for id, p in self.pel.items() if p.owner is not None)
        waiting = sorted((self.pel[id].time, id) for id in owned)
        return [*self.nacked, *(id for time, id in waiting if now - time >= min_idle)]


@dataclass
class Trim:
    """A trimming strategy: ``maxlen`` or ``minid`` is set; ``limit`` 0 is no limit."""

    maxlen: int | None
    minid: Id | None
    approx: bool
    limit: int
    policy: bytes = b"KEEPREF"


@dataclass
class Stream:
    idmp_duration: int
    idmp_maxsize: int
    entries: dict[Id, Fields] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    last: Id = ZERO
    max_deleted: Id = ZERO
    added: int = 0
    groups: dict[bytes, Group] = field(default_factory=dict)
    producers: dict[bytes, dict[bytes, tuple[Id, int]]] = field(default_factory=dict)
    iids_added: int = 0
    iids_duplicates: int = 0

    def first(self) -> Id:
        return next((node.live[0] for node in self.nodes if node.live), ZERO)

    def top(self) -> Id:
        return next((node.live[-1] for node in reversed(self.nodes) if node.live), ZERO)

    def between(self, low: Id, high: Id) -> Iterator[Id]:
        return (id for id in self.entries if low <= id <= high)

    # -- appending and deleting

    def append(self, id: Id, flat: Fields, max_entries: int, max_bytes: int) -> None:
        limit = max_bytes if 0 < max_bytes <= ONE_GIGABYTE else ONE_GIGABYTE
        node = self.nodes[-1] if self.nodes else None
        if (
            node is None
            or node.size() + sum(map(len, flat)) >= limit
            or 0 < max_entries <= len(node.live) + node.deleted
        ):
            node = Node(id, flat[::2])
            self.nodes.append(node)
        node.append(id, flat)
        self.entries[id] = flat
        self.last = id
        self.added += 1

    def delete(self, id: Id) -> bool:
        """Delete an entry as XDEL does: a tombstone that the lag rules look at."""
        if id not in self.entries:
            return False
        node = next(node for node in self.nodes if node.master <= id <= node.last)
        self._remove(node, id)
        if not node.live:
            self.nodes.remove(node)
        self.max_deleted = max(self.max_deleted, id)
        return True

    def _remove(self, node: Node, id: Id) -> None:
        del self.entries[id]
        node.live.remove(id)
        node.deleted += 1

    def is_referenced(self, id: Id) -> bool:
        """Tell whether a group has yet to read the entry, or to acknowledge it."""
        groups = self.groups.values()
        return any(id > group.last or id in group.pel for group in groups)

    def forget(self, id: Id) -> None:
        for group in self.groups.values():
            group.drop(id)

    def delete_by(self, policy: bytes, id: Id) -> int:
        """Delete as XDELEX: 1 deleted, 2 still referenced, -1 not there."""
        if policy == b"ACKED" and self.is_referenced(id):
            return 2  # Decided: the reference is looked at first, so also for an ID never added
        if policy == b"DELREF":
            self.forget(id)
        return 1 if self.delete(id) else -1

    def trim(self, how: Trim, keep_empty_nodes: bool = False) -> int:
        """Remove entries from the head; return how many. A trim makes no tombstone."""
        removed = 0
        for node in list(self.nodes):
            count = len(node.live)
            if how.maxlen is not None and len(self.entries) <= how.maxlen:
                break
            if how.limit and removed + count > how.limit:
                break
            if how.maxlen is not None:
                whole = len(self.entries) - count >= how.maxlen
            else:
                whole = how.minid is not None and node.last < how.minid
            if how.approx and not whole and how.policy == b"KEEPREF":
                break
            for id in list(node.live):
                if how.maxlen is not None and len(self.entries) <= how.maxlen:
                    break
                if how.minid is not None and id >= how.minid:
                    break
                if how.policy == b"ACKED" and self.is_referenced(id):
                    continue
                if how.policy == b"DELREF":
                    self.forget(id)
                self._remove(node, id)
                removed += 1
            if not node.live and (whole or not keep_empty_nodes):
                self.nodes.remove(node)
            if not whole:
                break
        return removed

    # -- idempotent producers

    def expire_iids(self, now: int) -> None:
        """Forget what is older than the duration, by the clock of the store: the oldest first."""
        for pid, seen in list(self.producers.items()):
            while seen and next(iter(seen.values()))[1] <= now - self.idmp_duration * 1000:
                del seen[next(iter(seen))]
            if not seen:
                del self.producers[pid]

    def find_iid(self, pid: bytes, iid: bytes, now: int) -> Id | None:
        """Return the ID that an append of this producer and idempotent ID was given."""
        self.expire_iids(now)
        id, stamp = self.producers.get(pid, {}).get(iid, (None, 0))
        # Decided: after the clock was set back, what is too old is unknown though it waits behind
        # something younger to be forgotten.
        return id if stamp > now - self.idmp_duration * 1000 else None

    def remember_iid(self, pid: bytes, iid: bytes, id: Id, now: int) -> None:
        seen = self.producers.setdefault(pid, {})
        seen.pop(iid, None)
        seen[iid] = (id, now)
        self.iids_added += 1
        if len(seen) > self.idmp_maxsize:
            del seen[next(iter(seen))]

    # -- counters of groups

    def tombstone_from(self, id: Id, old: bool = False) -> bool:
        if not self.entries or (old and self.max_deleted < self.first()):
            return False
        return self.max_deleted != ZERO and id <= self.max_deleted

    def position(self, id: Id, old: bool = False) -> int | None:
        """Return how many entries were ever added up to ``id``, or None if unknown."""
        if self.added == 0:
            return 0
        if not self.entries and id <= self.last:
            return self.added
        if id != ZERO and id < self.max_deleted and not old:
            return None
        if id == self.last:
            return self.added
        if id > self.last:
            return None
        if self.max_deleted < self.first():
            if id < self.first():
                return self.added - len(self.entries)
            if id == self.first():
                return self.added - len(self.entries) + 1
        return None

    def lag(self, group: Group, old: bool = False) -> int | None:
        if self.added == 0 or (not self.entries and not old):
            return 0
        if max(group.last, self.max_deleted) < self.first() and not old:
            return len(self.entries)
        read = group.read
        if read is None or self.tombstone_from(group.last, old):
            read = self.position(group.last, old)
        return None if read is None else self.added - read

    def advance(self, group: Group, id: Id, old: bool = False) -> None:
        """Move a group's reading position to a new entry."""
        known = group.read is not None and (old or group.last >= self.first())
        if known and not self.tombstone_from(id if old else group.last, old):
            group.read = (group.read or 0) + 1
        elif self.added:
            group.read = self.position(id, old)
        group.last = id


def idmpauto(flat: Fields) -> bytes:
    """Return the idempotent ID of an entry's content, in any order of its fields."""
    sums = [0, 0]
    xors = [0, 0]
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        digest = xxhash.xxh3_128_intdigest(name + len(name).to_bytes(8, "little") + value)
        for i, half in enumerate((digest & MAX64, digest >> 64)):
            sums[i] = (sums[i] + half) & MAX64
            xors[i] ^= half
    low = sums[0] ^ _rotate(xors[1])
    high = sums[1] ^ _rotate(xors[0])
    return (high << 64 | low).to_bytes(16, "little")


def _rotate(value: int) -> int:
    return (value << 1 | value >> 63) & MAX64
