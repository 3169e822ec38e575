"""Clients of a server that will be killed; the replies that they record are the oracle.

A client works, one unit after the other, until its connection ends. After the restart ``settle``
compares the store with these records: all acknowledged units must exist, and a unit under way must
exist completely or not at all. The client continues from the state that it finds.
"""

import random
from contextlib import suppress
from typing import Any, TypeAlias

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.patience import PATIENCE_S

JOBS, WORKERS = "jobs", "workers"
PIPELINE = 40
ALL = 1 << 20

Entries = list[tuple[bytes, dict[bytes, bytes]]]
Redis: TypeAlias = Any
"""A client of redis-py, whose types allow for every form of a reply."""


def connected(port: int, timeout_s: float = PATIENCE_S) -> Redis:
    """Return a client that never repeats a request."""
    return redis.Redis(port=port, retry=Retry(NoBackoff(), 0), socket_timeout=timeout_s)


def info_of(client: Redis, key: str) -> Any:
    return client.xinfo_stream(key)


class Client:
    """A client; its ``work`` raises redis.ConnectionError when the server has died."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"{seed} {self}")

    def __str__(self) -> str:
        return type(self).__name__

    def prepare(self, client: Redis) -> None:
        """Create what the client needs, before its first unit of work."""

    def work(self, client: Redis) -> None:
        """Do one unit of work, and record its replies."""
        raise NotImplementedError

    def settle(self, client: Redis) -> None:
        """Check that the store has the acknowledged state, and continue from what it has."""


class Numbering(Client):
    """Adds entries, numbered from 1 on."""

    key = ""
    kept = ALL
    """Entries that its trims keep."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.acknowledged: list[bytes] = []
        """The IDs of acknowledged entries, in order."""
        self.asked = 0
        """The highest number sent."""

    def settle(self, client: Redis) -> None:
        found: Entries = client.xrange(self.key)
        info = info_of(client, self.key) if self.asked else {"length": 0, "entries-added": 0}
        total = info["entries-added"]
        assert len(self.acknowledged) <= total <= self.asked
        first = max(0, total - self.kept)
        assert [int(fields[b"n"]) for _, fields in found] == list(range(first + 1, total + 1))
        ids = [eid for eid, _ in found]
        assert ids[: len(self.acknowledged) - first] == self.acknowledged[first:]
        assert ids == sorted(ids, key=lambda eid: [int(part) for part in eid.split(b"-")])
        assert info["length"] == len(found)
        self.acknowledged += ids[len(self.acknowledged) - first :]
        self.asked = total


class OneByOne(Numbering):
    """Waits for each acknowledgement."""

    key = "one by one"

    def work(self, client: Redis) -> None:
        self.asked += 1
        self.acknowledged.append(client.xadd(self.key, {"n": self.asked}))


class Trimming(Numbering):
    """The same, and keeps only the newest entries."""

    key = "trimming"
    kept = 50

    def work(self, client: Redis) -> None:
        self.asked += 1
        fields = {"n": self.asked}
        self.acknowledged.append(client.xadd(self.key, fields, maxlen=self.kept, approximate=False))


class Pipelining(Numbering):
    """Sends many entries at once, and records each acknowledgement."""

    key = "pipelining"

    def work(self, client: Redis) -> None:
        first, self.asked = self.asked + 1, self.asked + self.chance.randint(2, PIPELINE)
        numbers = range(first, self.asked + 1)
        connection = client.connection_pool.get_connection()
        try:
            commands = [("XADD", self.key, "*", "n", n) for n in numbers]
            connection.send_packed_command(connection.pack_commands(commands))
            for _ in numbers:
                self.acknowledged.append(connection.read_response())
        finally:
            client.connection_pool.release(connection)


class Repeating(Numbering):
    """A producer with idempotent IDs: it repeats requests without a reply."""

    key = "repeating"

    def work(self, client: Redis) -> None:
        self.asked = number = len(self.acknowledged) + 1
        words = ("XADD", self.key, "IDMP", "producer", number, "*", "n", number)
        self.acknowledged.append(client.execute_command(*words))

    def settle(self, client: Redis) -> None:
        lost = self.asked - len(self.acknowledged)
        if lost:
            self.work(client)  # adds the entry only if it is missing
        super().settle(client)


class Transacting(Client):
    """MULTI of entries in two streams, a counter and a string; all or nothing."""

    streams = ("left", "right")

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.acknowledged = self.asked = 0

    def work(self, client: Redis) -> None:
        self.asked = self.acknowledged + 1
        with client.pipeline(transaction=True) as pipe:
            for key in self.streams:
                pipe.xadd(key, {"n": self.asked})
            pipe.incr("count").set("last", self.asked)
            counted = pipe.execute()[2]
        assert counted == self.asked
        self.acknowledged = counted

    def settle(self, client: Redis) -> None:
        count = int(client.get("count") or 0)
        assert self.acknowledged <= count <= self.asked
        assert int(client.get("last") or 0) == count
        for key in self.streams:
            numbers = [int(fields[b"n"]) for _, fields in client.xrange(key)]
            assert numbers == list(range(1, count + 1))
        self.acknowledged = count


class Producing(Numbering):
    """Adds the work of a group of consumers."""

    key = JOBS

    def prepare(self, client: Redis) -> None:
        if not client.exists(JOBS):
            client.xgroup_create(JOBS, WORKERS, "0", mkstream=True)

    def work(self, client: Redis) -> None:
        self.asked += 1
        self.acknowledged.append(client.xadd(JOBS, {"n": self.asked}))

    def settle(self, client: Redis) -> None:
        if client.exists(JOBS):
            super().settle(client)


class Consuming(Client):
    """Reads as one consumer of the group and acknowledges; ``Queue`` compares all of them."""

    def __init__(self, seed: int, name: str) -> None:
        self.name = name
        super().__init__(seed)
        self.acked: set[bytes] = set()
        self.pending: set[bytes] = set()
        self.acking: set[bytes] = set()
        """The IDs of an acknowledgement without a reply."""
        self.count = 0
        """The count of a read without a reply; 0 if there is none."""

    def __str__(self) -> str:
        return f"consumer {self.name}"

    def work(self, client: Redis) -> None:
        self.count = self.chance.randint(1, 20)
        reply = client.xreadgroup(WORKERS, self.name, {JOBS: ">"}, count=self.count, block=20)
        given = given_by(reply)
        assert not given & (self.pending | self.acked)
        self.count, self.pending = 0, self.pending | given
        self.acking = {eid for eid in self.pending if self.chance.random() < 0.8}
        if self.acking:
            assert client.xack(JOBS, WORKERS, *self.acking) == len(self.acking)
        self._have_acked(self.acking)

    def _have_acked(self, ids: set[bytes]) -> None:
        self.acked |= ids
        self.pending -= ids
        self.acking = set()

    def settle(self, client: Redis) -> None:
        rows = client.xpending_range(JOBS, WORKERS, "-", "+", ALL, consumername=self.name)
        found = {row["message_id"] for row in rows}
        lost = self.pending - found
        assert lost in (set(), self.acking)
        more = found - self.pending
        assert len(more) <= self.count
        assert not more & self.acked
        self._have_acked(lost)
        self.pending, self.count = found, 0
        assert given_by(client.xreadgroup(WORKERS, self.name, {JOBS: "0"}, count=ALL)) == found


def given_by(reply: Any) -> set[bytes]:
    """Return the IDs in a reply to XREADGROUP of one key."""
    return {eid for _, entries in reply for eid, _ in entries}


class Queue(Client):
    """Checks the group as a whole; its work is to call XPENDING."""

    def __init__(self, seed: int, consumers: list[Consuming]) -> None:
        super().__init__(seed)
        self._consumers = consumers

    def work(self, client: Redis) -> None:
        assert client.xpending(JOBS, WORKERS)["pending"] >= 0

    def settle(self, client: Redis) -> None:
        """Check that each delivered entry went to exactly one consumer, and that no others did."""
        (group,) = client.xinfo_groups(JOBS)
        last = group["last-delivered-id"]
        given = [eid for eid, _ in client.xrange(JOBS, max=last)] if last != b"0-0" else []
        known = [eid for each in self._consumers for eid in each.acked | each.pending]
        assert sorted(known) == sorted(given)
        pending = sum(len(each.pending) for each in self._consumers)
        assert group["pending"] == client.xpending(JOBS, WORKERS)["pending"] == pending
        assert (group["entries-read"] or 0) == len(given)  # null before the first read
        assert group["lag"] == client.xlen(JOBS) - len(given)


class Following(Client):
    """Reads a stream as it grows: no reader may see an entry that is lost later."""

    def __init__(self, seed: int, key: str) -> None:
        self._key = key
        super().__init__(seed)
        self._seen: Entries = []

    def __str__(self) -> str:
        return f"reader of {self._key}"

    def work(self, client: Redis) -> None:
        last = self._seen[-1][0] if self._seen else b"0-0"
        for _, entries in client.xread({self._key: last}, block=20):
            self._seen += entries

    def settle(self, client: Redis) -> None:
        assert client.xrange(self._key, count=max(1, len(self._seen)))[: len(self._seen)] == (
            self._seen
        )


class Operating(Client):
    """Starts checkpoints and compactions, so that the server is also killed during these."""

    def work(self, client: Redis) -> None:
        with suppress(redis.ResponseError):  # one may be running
            client.execute_command(self.chance.choice(["BGSAVE", "BGREWRITEAOF"]))
        client.xread({"nothing": "$"}, block=self.chance.randint(50, 300))


def clients(seed: int) -> list[Client]:
    """Return a client of each kind, except the operator, which flushes the log before a cut."""
    consumers = [Consuming(seed, name) for name in ("ann", "bob", "cid")]
    return [
        *(OneByOne(seed), Trimming(seed), Pipelining(seed), Repeating(seed), Transacting(seed)),
        *(Producing(seed), *consumers, Queue(seed, consumers)),
        *(Following(seed, JOBS), Following(seed, OneByOne.key)),
    ]
