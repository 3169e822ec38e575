"""Clients of a pair of servers that fails over, and what each knows of its own writes afterwards.

A client asks the Sentinels for the primary, works until its connection ends, and asks again. It
repeats nothing, so the outcome of a request without a reply is unknown: it may be there or not. A
reply is an acknowledgement; it is confirmed if the level promises that a replica has the write.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import redis

from kvstream import KVStreamError, Queue
from kvstream.opening import open as open_place
from tests.crash.clients import ALL, Redis, connected
from tests.patience import until

REPLY_S = 2.0
"""How long a client waits for a reply: a server that is stopped, or cut off, sends none."""
PAUSE_S = 0.004
"""A client's longest pause between two requests: it leaves the processor to the servers."""
ORDERS, GROUP = "orders", "workers"


class Level(StrEnum):
    """When a write is confirmed."""

    NONE = "none"
    WAIT = "WAIT 1"
    ACKS = "replica-acks 1"


@dataclass
class Findings:
    """What was promised, and what became of it."""

    confirmed: int = 0
    """Writes of which a replica was said to have them."""
    acknowledged: int = 0
    """Other writes that were acknowledged."""
    lost: int = 0
    """Confirmed ones that are not there."""
    lost_acknowledged: int = 0
    """Acknowledged ones that are not there: without a promise, counted and said."""
    undone: int = 0
    """Confirmed acknowledgements of messages that are pending or delivered again."""
    invented: list[str] = field(default_factory=list)
    """What is there and cannot be: never added, twice, half of a transaction, too early."""

    def add(self, other: "Findings") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def is_broken(self) -> bool:
        """Return whether a promise was broken."""
        return bool(self.lost or self.undone or self.invented)


class Load:
    """The clients of one round."""

    def __init__(
        self, level: Level, primary: Callable[[], int], is_kvstream: bool, url: str = ""
    ) -> None:
        """``primary`` returns the port of the primary; an error of redis-py if it is unknown.

        ``url`` is that of the primary by Sentinels, for the library; else it asks as others do.
        """
        self.level, self.primary, self.url = level, primary, url
        self.stops = threading.Event()
        self.first_ack: dict[int, float] = {}
        """When a port acknowledged a write for the first time."""
        producers = [Adding(self, f"adder-{n}") for n in range(2)]
        deliveries = Deliveries()
        consuming = [Consuming(self, name, deliveries) for name in ("ann", "bob")]
        self.clients: list[Client] = [*producers, *consuming, Acknowledging(self, deliveries)]
        self.clients += [Transacting(self, "banker"), Probing(self, "prober")]
        if is_kvstream:
            self.clients += [Delaying(self, "later"), Repeating(self, "repeater")]
            self.clients.append(Queueing(self, "queuer"))

    def begin(self, primary_port: int) -> None:
        """Create what the clients need, once writes are accepted, and start them."""
        with connected(primary_port) as client:
            until(lambda: _create_group(client), "a replica", 0.05)
        for each in self.clients:
            each.start()

    def add_stale(self, port: int) -> None:
        """Start clients that know one server alone, on its side of the network."""
        for n in range(2):
            self.clients.append(Adding(self, f"stale-{n}", port))
            self.clients[-1].start()

    def end(self) -> None:
        """Stop the clients; raise what one of them has met that it did not expect."""
        self.stops.set()
        for each in self.clients:
            each.join()
        for each in self.clients:
            if each.fault is not None:
                raise each.fault

    def find(self, port: int) -> dict[str, Findings]:
        """Return what the clients of each kind find in the primary at the end."""
        found: dict[str, Findings] = {}
        with connected(port) as client:
            for each in self.clients:
                if not isinstance(each, Probing):
                    found.setdefault(each.kind, Findings()).add(each.find(client))
        return found

    def find_all(self, port: int) -> Findings:
        """Return the sum over all kinds."""
        total = Findings()
        for each in self.find(port).values():
            total.add(each)
        return total


def _create_group(client: Redis) -> bool:
    """Create the group; return false if the primary lacks a replica for now."""
    try:
        client.xgroup_create(ORDERS, GROUP, "0", mkstream=True)
    except redis.ResponseError as error:
        if not str(error).startswith(("NOREPLICAS", "BUSYGROUP")):
            raise
        return str(error).startswith("BUSYGROUP")  # done, and not confirmed, the time before
    return True


class Client(threading.Thread):
    """One client; ``work`` raises an error of redis-py when its server is gone."""

    kind = ""
    reply_s = REPLY_S

    def __init__(self, load: Load, name: str, port: int | None = None) -> None:
        """``port``: the only server that it knows, without Sentinels."""
        super().__init__(name=name, daemon=True)
        self.load, self._port = load, port
        self.chance = random.Random(name)
        self.fault: BaseException | None = None
        self.count = self.port_now = 0

    def run(self) -> None:
        try:
            while not self.load.stops.is_set():
                with suppress(redis.RedisError, OSError):
                    self.port_now = self._port or self.load.primary()
                    with connected(self.port_now, self.reply_s) as client:
                        self.begin(client)
                        while not self.load.stops.wait(self.chance.uniform(0, PAUSE_S)):
                            self.work(client)
                self.load.stops.wait(0.05)
        except BaseException as error:
            self.fault = error

    def begin(self, client: Redis) -> None:
        """Begin anew on another connection."""

    def work(self, client: Redis) -> None:
        """Do one unit of work."""
        raise NotImplementedError

    def find(self, client: Redis) -> Findings:
        """Compare what the primary has with what was promised."""
        raise NotImplementedError

    def next_value(self) -> bytes:
        """Return a value that nobody has used."""
        self.count += 1
        return f"{self.name}-{self.count}".encode()

    def ask(self, client: Redis, *words: Any) -> tuple[Any, bool]:
        """Return the reply to a write, and whether it is confirmed."""
        if self.load.level is not Level.WAIT:
            reply = client.execute_command(*words)
            return reply, self.load.level is Level.ACKS
        pipeline = client.pipeline(transaction=False)
        pipeline.execute_command(*words)
        pipeline.execute_command("WAIT", 1, 1000)
        reply, replicas = pipeline.execute()
        return reply, replicas >= 1


class Probing(Client):
    """Writes a string wherever the Sentinels say, to see which server takes writes since when."""

    kind = "probes"
    reply_s = 0.3

    def work(self, client: Redis) -> None:
        client.set("probe", self.next_value())
        self.load.first_ack.setdefault(self.port_now, time.monotonic())
        if self.load.primary() != self.port_now:
            raise redis.ConnectionError("another server is the primary")

    def find(self, client: Redis) -> Findings:
        return Findings()


class Writes:
    """The values that a client has written, by what it heard of them."""

    def __init__(self) -> None:
        self.asked: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.acknowledged: set[bytes] = set()

    def note(self, value: bytes, is_confirmed: bool) -> None:
        (self.confirmed if is_confirmed else self.acknowledged).add(value)

    def compare(self, found: list[bytes], whose: str) -> Findings:
        """Compare them with the values that are there."""
        there, counts = set(found), Counter(found)
        odd = [f"{whose} has {v!r}, which was never added" for v in there - self.asked]
        odd += [f"{whose} has {v!r} {n} times" for v, n in counts.items() if n > 1]
        return Findings(
            confirmed=len(self.confirmed),
            acknowledged=len(self.acknowledged),
            lost=len(self.confirmed - there),
            lost_acknowledged=len(self.acknowledged - there),
            invented=odd,
        )


class Adding(Client):
    """Adds entries, one after the other."""

    kind = "adds"

    def __init__(self, load: Load, name: str, port: int | None = None) -> None:
        super().__init__(load, name, port)
        self.writes = Writes()
        self._ids: dict[bytes, bytes] = {}

    def work(self, client: Redis) -> None:
        value = self.next_value()
        self.writes.asked.add(value)
        id_, is_confirmed = self.ask(client, "XADD", ORDERS, "*", "v", value)
        self.writes.note(value, is_confirmed)
        if is_confirmed:
            self._ids[value] = id_

    def find(self, client: Redis) -> Findings:
        mine = [e for e in values_of(client, ORDERS) if e[1].startswith(self.name.encode() + b"-")]
        found = self.writes.compare([value for _, value in mine], ORDERS)
        moved = [value for id_, value in mine if self._ids.get(value, id_) != id_]
        found.invented += [f"{value!r} has another ID than was told" for value in moved]
        return found


class Deliveries:
    """What all consumers of the group have got and acknowledged, by value."""

    def __init__(self) -> None:
        self.given: dict[bytes, str] = {}
        """Values whose delivery was confirmed, and the consumer."""
        self.asked: set[bytes] = set()
        """Values of which somebody has sent an acknowledgement."""
        self.confirmed: set[bytes] = set()
        """Values whose acknowledgement was confirmed."""
        self.acknowledged: set[bytes] = set()
        """Values whose acknowledgement had a reply, and no more."""
        self.again = 0
        self.odd: list[str] = []

    def give(self, values: set[bytes], consumer: str) -> None:
        """Take a confirmed delivery."""
        self.again += len(values & self.confirmed)
        for value in values:
            if value in self.given:
                self.odd.append(f"{value!r} was delivered to {self.given[value]} and {consumer}")
            self.given[value] = consumer


class Consuming(Client):
    """Reads as one consumer of a group, and acknowledges most of what it gets."""

    kind = "deliveries"

    def __init__(self, load: Load, name: str, deliveries: Deliveries) -> None:
        super().__init__(load, name)
        self._all = deliveries

    def begin(self, client: Redis) -> None:
        """Acknowledge what it had before: the replies may have been lost."""
        reply = client.xreadgroup(GROUP, self.name, {ORDERS: "0"}, count=100)
        self._acknowledge(client, given(reply))

    def work(self, client: Redis) -> None:
        words = ("XREADGROUP", "GROUP", GROUP, self.name, "COUNT", 10, "BLOCK", 100)
        reply, is_confirmed = self.ask(client, *words, "STREAMS", ORDERS, ">")
        entries = given(reply)
        if is_confirmed:
            self._all.give({value for _, value in entries}, self.name)
        self._acknowledge(client, [each for each in entries if self.chance.random() < 0.9])

    def _acknowledge(self, client: Redis, entries: list[tuple[bytes, bytes]]) -> None:
        if not entries:
            return
        values = {value for _, value in entries}
        self._all.asked |= values
        _, is_confirmed = self.ask(client, "XACK", ORDERS, GROUP, *[id_ for id_, _ in entries])
        (self._all.confirmed if is_confirmed else self._all.acknowledged).update(values)

    def find(self, client: Redis) -> Findings:
        mine = {value for value, consumer in self._all.given.items() if consumer == self.name}
        values = dict(values_of(client, ORDERS))
        rows = client.xpending_range(ORDERS, GROUP, "-", "+", ALL, consumername=self.name)
        pending = {values.get(row["message_id"], b"?") for row in rows}
        kept = pending | (self._all.asked & set(values.values()))
        return Findings(confirmed=len(mine), lost=len(mine - kept))


class Acknowledging(Client):
    """Looks at the acknowledgements of all consumers at the end; until then it does nothing."""

    kind = "acks"

    def __init__(self, load: Load, deliveries: Deliveries) -> None:
        super().__init__(load, "acks")
        self._all = deliveries

    def work(self, client: Redis) -> None:
        self.load.stops.wait()

    def find(self, client: Redis) -> Findings:
        values = dict(values_of(client, ORDERS))
        rows = client.xpending_range(ORDERS, GROUP, "-", "+", ALL)
        pending = {values.get(row["message_id"], b"?") for row in rows}
        adders = [each for each in self.load.clients if isinstance(each, Adding)]
        added = set[bytes]().union(*(each.writes.asked for each in adders))
        odd = [f"{v!r} was delivered, but never added" for v in set(self._all.given) - added]
        return Findings(
            confirmed=len(self._all.confirmed),
            acknowledged=len(self._all.acknowledged),
            lost_acknowledged=len(self._all.acknowledged & pending),
            undone=self._all.again + len(self._all.confirmed & pending),
            invented=self._all.odd + odd,
        )


class Transacting(Client):
    """Adds to two streams in one transaction: both or none."""

    kind = "transactions"

    def __init__(self, load: Load, name: str) -> None:
        super().__init__(load, name)
        self.writes = Writes()

    def work(self, client: Redis) -> None:
        value = self.next_value()
        self.writes.asked.add(value)
        with client.pipeline(transaction=False) as pipe:
            pipe.execute_command("MULTI")
            for key in ("left", "right"):
                pipe.execute_command("XADD", key, "*", "v", value)
            pipe.execute_command("EXEC")
            if self.load.level is Level.WAIT:
                pipe.execute_command("WAIT", 1, 1000)
            replies = pipe.execute()
        waited = replies[-1] >= 1 if self.load.level is Level.WAIT else False
        self.writes.note(value, self.load.level is Level.ACKS or waited)

    def find(self, client: Redis) -> Findings:
        left, right = ([v for _, v in values_of(client, key)] for key in ("left", "right"))
        found = self.writes.compare(left, "left")
        if left != right:
            found.invented.append("a transaction was done in half")
        return found


class Repeating(Client):
    """Adds with idempotent IDs, and repeats what had no reply until it has one: exactly once."""

    kind = "repeated adds"

    def __init__(self, load: Load, name: str) -> None:
        super().__init__(load, name)
        self.writes = Writes()
        self._open: bytes | None = None

    def work(self, client: Redis) -> None:
        value = self._open = self._open or self.next_value()
        self.writes.asked.add(value)
        words = ("XADD", "repeated", "IDMP", "producer", value, "*", "v", value)
        _, is_confirmed = self.ask(client, *words)
        if not is_confirmed and self.load.level is Level.WAIT:
            return  # it repeats it until a replica has it
        self.writes.note(value, is_confirmed)
        self._open = None

    def find(self, client: Redis) -> Findings:
        return self.writes.compare([v for _, v in values_of(client, "repeated")], "repeated")


class Delaying(Client):
    """Adds messages that are due later."""

    kind = "delayed messages"

    def __init__(self, load: Load, name: str) -> None:
        super().__init__(load, name)
        self.writes = Writes()
        self._earliest: dict[bytes, int] = {}

    def work(self, client: Redis) -> None:
        value, delay_ms = self.next_value(), self.chance.randint(50, 4000)
        self.writes.asked.add(value)
        self._earliest[value] = int(time.time() * 1000) + delay_ms
        words = ("KVSTREAM.ADD", self.name, "DELAY", delay_ms, "*", "v", value)
        _, is_confirmed = self.ask(client, *words)
        self.writes.note(value, is_confirmed)
        self.load.stops.wait(0.02)

    def find(self, client: Redis) -> Findings:
        waiting = {fields[1] for _, fields in self._waiting(client)}
        due = values_of(client, self.name)  # later: one may become due meanwhile
        values = [value for _, value in due]
        found = self.writes.compare([*values, *(waiting - set(values))], self.name)
        early = [v for id_, v in due if int(id_.split(b"-")[0]) < self._earliest[v] - 5]
        found.invented += [f"{value!r} was there before it was due" for value in early]
        return found

    def _waiting(self, client: Redis) -> Iterator[Any]:
        start = b"-"
        while True:
            words = [] if start == b"-" else [b"(" + start]
            part = client.execute_command("KVSTREAM.DELAYED", "LIST", self.name, *words)
            if not part:
                return
            yield from part
            start = part[-1][0]


class Queueing(Client):
    """Puts jobs into a queue by the library, and a worker does them."""

    kind = "jobs"

    def __init__(self, load: Load, name: str) -> None:
        super().__init__(load, name)
        self.writes = Writes()
        self._acking: set[bytes] = set()
        self._done: set[bytes] = set()
        """Values whose acknowledgement was confirmed."""
        self._again = 0

    def work(self, client: Redis) -> None:
        url = f"redis://127.0.0.1:{self.port_now}?socket_timeout={REPLY_S}"
        try:
            with open_place(self.load.url or url) as store:
                queue = Queue(store, "jobs", consumer="worker", lease=1)
                while not self.load.stops.wait(self.chance.uniform(0, 5 * PAUSE_S)):
                    self._put_and_do(queue)
        except KVStreamError as error:
            raise redis.ConnectionError(str(error)) from error

    def _put_and_do(self, queue: Queue[bytes]) -> None:
        value = self.next_value()
        self.writes.asked.add(value)
        queue.put({"v": value})
        self.writes.note(value, self.load.level is Level.ACKS)
        for message in queue.get(2):
            value = message.fields[b"v"]
            self._again += value in self._done
            self._acking.add(value)
            message.ack()
            if self.load.level is Level.ACKS:
                self._done.add(value)

    def find(self, client: Redis) -> Findings:
        """Find those that are left: retention deletes acknowledged ones a little later."""
        left = dict(values_of(client, "jobs"))
        found = self.writes.compare([*(self._acking - set(left.values())), *left.values()], "jobs")
        rows = client.xpending_range("jobs", "workers", "-", "+", ALL) if left else []
        pending = {left.get(row["message_id"], b"?") for row in rows}
        found.undone = self._again + len(self._done & pending)
        return found


def given(reply: Any) -> list[tuple[bytes, bytes]]:
    """Return IDs and values in a reply to XREADGROUP."""
    parts = reply.items() if isinstance(reply, dict) else reply or []
    found = []
    for _, entries in parts:
        nested = entries if entries and isinstance(entries[0], list) else [entries]
        for part in nested:
            found += [(id_, fields[b"v"]) for id_, fields in part if fields]
    return found


def values_of(client: Redis, key: str) -> list[tuple[bytes, bytes]]:
    """Return the IDs and values of a stream."""
    return [(id_, fields[b"v"]) for id_, fields in client.xrange(key)]
