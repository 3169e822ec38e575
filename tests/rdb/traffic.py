"""Streams in a redis-server, made by usual and unusual commands."""

import random
from collections.abc import Callable

from kvstream.types.ids import U64_MAX
from tests.operations.implementations import RedisServer


class Traffic:
    """Usual commands of programs, and some unusual ones."""

    def __init__(self, redis: RedisServer, seed: int, *, deletes: bool) -> None:
        self._redis = redis
        self._random = random.Random(seed)
        self._ms = 1000
        self._ids: list[str] = []
        self._groups = ["7", "g", "-12", "a longer name of a group"]
        commands: list[Callable[[], object]] = [self.add] * 40
        commands += [self.read, self.claim, self.ack] * 5 + [self.reset, self.consumer, self.trim]
        self._commands = commands + ([self.delete] * 12 if deletes else [])

    def run(self, count: int) -> None:
        self.add()
        for name in self._groups:
            self._redis("XGROUP", "CREATE", "s", name, self._random.choice(["0", "$"]))
        for _ in range(count):
            self._random.choice(self._commands)()

    def _value(self) -> bytes:
        kinds = [b"%d" % self._random.randrange(-(1 << 40), 1 << 40), b"007", b"", b"-0"]
        kinds += [b"v" * self._random.randrange(300), self._random.randbytes(9)]
        return self._random.choice(kinds)

    def add(self) -> None:
        seq = self._random.choice([0, 5, U64_MAX])
        self._ms += self._random.choice([1, 1, 1, 70_000])
        names: list[bytes] = self._random.choice([[b"a", b"b"]] * 5 + [[b"a"], [b"x", b"x", b"5"]])
        flat = [part for name in names for part in (name, self._value())]
        self._ids.append(f"{self._ms}-{seq}")
        self._redis("XADD", "s", self._ids[-1], *flat)

    def read(self) -> None:
        options = self._random.choice([["NOACK"], ["COUNT", "3"], ["COUNT", "8"]])
        who = [self._random.choice(self._groups), self._consumer()]
        self._redis("XREADGROUP", "GROUP", *who, "COUNT", "5", *options, "STREAMS", "s", ">")

    def _consumer(self) -> str:
        return self._random.choice(["1", "two", "3" * 30])

    def _some(self) -> list[str]:
        return self._random.choices(self._ids, k=self._random.randrange(1, 9))

    def ack(self) -> None:
        self._redis("XACK", "s", self._random.choice(self._groups), *self._some())

    def claim(self) -> None:
        who = [self._random.choice(self._groups), self._consumer()]
        count = self._random.choice(["0", "70", "20000"])
        self._redis("XCLAIM", "s", *who, "0", *self._some(), "RETRYCOUNT", count, "JUSTID")

    def reset(self) -> None:
        where = [self._random.choice(self._ids), "ENTRIESREAD", "3"]
        group = self._random.choice(self._groups)
        self._redis("XGROUP", "SETID", "s", group, *self._random.choice([["0"], where]))

    def consumer(self) -> None:
        self._redis("XGROUP", "CREATECONSUMER", "s", self._random.choice(self._groups), "idle")

    def trim(self) -> None:
        self._redis("XTRIM", "s", "MAXLEN", "~", self._random.randrange(100, 900))

    def delete(self) -> None:
        self._redis("XDEL", "s", *self._some())
