"""Clients of a server that will be killed, each with what it was told: the oracle.

A client works, one unit after the other, until its connection ends. After the restart ``settle``
holds the store against what the client knows: all that was acknowledged is there, and of what was
under way, all or nothing. What is then there is what the client goes on from.
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
"""A client of redis-py, whose types allow for every form that a reply may have."""


def connected(port: int) -> Redis:
    """Return a client that sends nothing twice by itself."""
    return redis.Redis(port=port, retry=Retry(NoBackoff(), 0), socket_timeout=PATIENCE_S)


def info_of(client: Redis, key: str) -> Any:
    return client.xinfo_stream(key)


class Client:
    """One client; its ``work`` raises redis.ConnectionError when the server has died."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"{seed} {self}")

    def __str__(self) -> str:
        return type(self).__name__

    def prepare(self, client: Redis) -> None:
        """Make what it needs; before its first unit of work."""

    def work(self, client: Redis) -> None:
        """Do one unit of work, and note what was told of it."""
        raise NotImplementedError

    def settle(self, client: Redis) -> None:
        """See that the store has what it must have, and go on from what is there."""


class Numbering(Client):
    """Adds entries that are numbered from 1 on."""

    key = ""
    kept = ALL
    """Entries that its trims leave."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.told: list[bytes] = []
        """The IDs of what was acknowledged, in order."""
        self.asked = 0
        """The highest number that was sent."""

    def settle(self, client: Redis) -> None:
        found: Entries = client.xrange(self.key)
        info = info_of(client, self.key) if self.asked else {"length": 0, "entries-added": 0}
        total = info["entries-added"]
        assert len(self.told) <= total <= self.asked
        first = max(0, total - self.kept)
        assert [int(fields[b"n"]) for _, fields in found] == list(range(first + 1, total + 1))
        ids = [eid for eid, _ in found]
        assert ids[: len(self.told) - first] == self.told[first:]
        assert ids == sorted(ids, key=lambda eid: [int(part) for part in eid.split(b"-")])
        assert info["length"] == len(found)
        self.told += ids[len(self.told) - first :]
        self.asked = total


class OneByOne(Numbering):
    """Waits for each acknowledgement."""

    key = "one by one"

    def work(self, client: Redis) -> None:
        self.asked += 1
        self.told.append(client.xadd(self.key, {"n": self.asked}))


class Trimming(Numbering):
    """The same, and keeps the newest alone."""

    key = "trimming"
    kept = 50

    def work(self, client: Redis) -> None:
        self.asked += 1
        fields = {"n": self.asked}
        self.told.append(client.xadd(self.key, fields, maxlen=self.kept, approximate=False))


class Pipelining(Numbering):
    """Sends many at once, and notes each acknowledgement as it comes."""

    key = "pipelining"

    def work(self, client: Redis) -> None:
        first, self.asked = self.asked + 1, self.asked + self.chance.randint(2, PIPELINE)
        numbers = range(first, self.asked + 1)
        connection = client.connection_pool.get_connection()
        try:
            commands = [("XADD", self.key, "*", "n", n) for n in numbers]
            connection.send_packed_command(connection.pack_commands(commands))
            for _ in numbers:
                self.told.append(connection.read_response())
        finally:
            client.connection_pool.release(connection)


class Repeating(Numbering):
    """A producer with idempotent IDs: it sends again what was not acknowledged."""

    key = "repeating"

    def work(self, client: Redis) -> None:
        self.asked = number = len(self.told) + 1
        words = ("XADD", self.key, "IDMP", "producer", number, "*", "n", number)
        self.told.append(client.execute_command(*words))

    def settle(self, client: Redis) -> None:
        lost = self.asked - len(self.told)
        if lost:
            self.work(client)  # whether it is there or not: once
        super().settle(client)


class Transacting(Client):
    """MULTI of entries in two streams, a counter and a string; whole or absent."""

    streams = ("left", "right")

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.told = self.asked = 0

    def work(self, client: Redis) -> None:
        self.asked = self.told + 1
        with client.pipeline(transaction=True) as pipe:
            for key in self.streams:
                pipe.xadd(key, {"n": self.asked})
            pipe.incr("count").set("last", self.asked)
            counted = pipe.execute()[2]
        assert counted == self.asked
        self.told = counted

    def settle(self, client: Redis) -> None:
        count = int(client.get("count") or 0)
        assert self.told <= count <= self.asked
        assert int(client.get("last") or 0) == count
        for key in self.streams:
            numbers = [int(fields[b"n"]) for _, fields in client.xrange(key)]
            assert numbers == list(range(1, count + 1))
        self.told = count


class Producing(Numbering):
    """Gives a group of consumers their work."""

    key = JOBS

    def prepare(self, client: Redis) -> None:
        if not client.exists(JOBS):
            client.xgroup_create(JOBS, WORKERS, "0", mkstream=True)

    def work(self, client: Redis) -> None:
        self.asked += 1
        self.told.append(client.xadd(JOBS, {"n": self.asked}))

    def settle(self, client: Redis) -> None:
        if client.exists(JOBS):
            super().settle(client)


class Consuming(Client):
    """Reads as one consumer of the group and acknowledges; ``Queue`` holds all of them together."""

    def __init__(self, seed: int, name: str) -> None:
        self.name = name
        super().__init__(seed)
        self.acked: set[bytes] = set()
        self.pending: set[bytes] = set()
        self.acking: set[bytes] = set()
        """What an acknowledgement under way is about."""
        self.count = 0
        """Entries that a read under way asks for; 0: none is."""

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
    """Looks at the group as a whole; as its work it looks on in XPENDING."""

    def __init__(self, seed: int, consumers: list[Consuming]) -> None:
        super().__init__(seed)
        self._consumers = consumers

    def work(self, client: Redis) -> None:
        assert client.xpending(JOBS, WORKERS)["pending"] >= 0

    def settle(self, client: Redis) -> None:
        """Every entry up to the last given one went to one consumer, once, and none behind it."""
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
    """Reads a stream as it grows: nobody may be shown what is then lost."""

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
    """Has checkpoints made and the store compacted, so that it dies in the midst of them too."""

    def work(self, client: Redis) -> None:
        with suppress(redis.ResponseError):  # one may be in progress
            client.execute_command(self.chance.choice(["BGSAVE", "BGREWRITEAOF"]))
        client.xread({"nothing": "$"}, block=self.chance.randint(50, 300))


def clients(seed: int) -> list[Client]:
    """Return one of each but the operator, who has the log emptied before the power is cut."""
    consumers = [Consuming(seed, name) for name in ("ann", "bob", "cid")]
    return [
        *(OneByOne(seed), Trimming(seed), Pipelining(seed), Repeating(seed), Transacting(seed)),
        *(Producing(seed), *consumers, Queue(seed, consumers)),
        *(Following(seed, JOBS), Following(seed, OneByOne.key)),
    ]
