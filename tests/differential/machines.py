"""State machines that run one command on the model and on another implementation, and compare.

Against redis-server the model follows the rules of 7.0.15, and times are left out. Against kvstream
everything of 8.10 is compared, times too, and the store may crash and be opened again at any step.
"""

import re
import tempfile
import time
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from tests.differential.grammar import (
    CRASH,
    REOPEN,
    STEP_7,
    STEP_8,
    WAIT,
    Argv,
)
from tests.model.strings import Appended
from tests.operations.implementations import Clock, Kvstream, Model, RedisServer, Subject
from tests.operations.replies import Error, Reply

COMMANDS_7 = st.randoms(use_true_random=True).map(STEP_7)
COMMANDS_8 = st.randoms(use_true_random=True).map(STEP_8)
NODE_ENTRIES = st.sampled_from([2, 3, 100])
NODE_BYTES = st.sampled_from([4096, 60])
HOT_MEMORY = {2: 1500, 3: 4000, 100: 1 << 20}
"""What is kept of what was read lately, for each size of nodes: an entry or two; some; all."""
SEEN = (b"idle", b"seen-time")
TREE = (b"radix-tree-nodes",)
MARK = re.compile(r"@(\+|[0-9])")
BEGINNING = (
    *("SET string value", "SET n 7"),
    *("XADD s 1-0 f v", "XADD s 2-0 f v", "XADD s 3-0 f v", "XADD s 3-1 g w", "XADD t 3-0 f v"),
    *("XGROUP CREATE s g 0", "XGROUP CREATE s h 2-0", "XGROUP CREATE t g 0"),
    "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
)
FIRST_IDS = ("1-0", "2-0", "3-0", "3-1")
A_TIME = range(1_500_000_000_000, 4_000_000_000_000)


class WallClock(Clock):
    """The time of the machine that redis-server runs on."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def without(reply: Reply, names: tuple[bytes, ...], times: bool = False) -> Reply:
    """Return a reply without the values of these names, or without all times."""
    if isinstance(reply, list):
        return [
            None if i and reply[i - 1] in names else without(item, names, times)
            for i, item in enumerate(reply)
        ]
    return None if times and isinstance(reply, int) and reply in A_TIME else reply


def without_idle_times(argv: Argv, reply: Reply) -> Reply:
    """Return a reply to XPENDING with the idle times of its rows left out."""
    rows = isinstance(reply, list) and all(isinstance(row, list) for row in reply)
    if argv and argv[0].upper() == "XPENDING" and rows:
        return [[*row[:2], None, *row[3:]] for row in reply]
    return reply


def sort_keys(argv: Argv, reply: Reply) -> Reply:
    """Return a reply to KEYS in one order."""
    return (
        sorted(reply) if argv and argv[0].upper() == "KEYS" and isinstance(reply, list) else reply
    )


def without_times_left(argv: Argv, reply: Reply) -> Reply:
    """Return a reply to TTL without the remaining time, if there is any."""
    timed = argv and argv[0].upper() in ("TTL", "PTTL")
    return min(reply, 0) if timed and isinstance(reply, int) else reply


class Naming:
    """The IDs that ``@`` stands for in a command of the grammar."""

    ids: list[str]
    """What was ever added, to any key."""

    def with_ids(self, argv: Argv) -> Argv:
        """Return a command in which the IDs are put in."""
        return [MARK.sub(self.named, word) for word in argv]

    def named(self, mark: re.Match[str]) -> str:
        if mark[1] == "+":
            ms, seq = max(tuple(map(int, id.split("-"))) for id in self.ids)
            return f"{ms}-{seq + 1}" if len(self.ids) % 3 else f"{ms + 1}-0"
        id = self.ids[-1 - int(mark[1]) % len(self.ids)]
        return id.split("-")[0] if mark.string.endswith("-*") else id


class Comparison(Naming, RuleBasedStateMachine):
    """What both machines share: a model, another implementation, and a comparison of the two."""

    model: Subject
    other: Subject

    def normalize(self, argv: Argv, reply: Reply) -> Reply:
        """Return the compared part of a reply."""
        raise NotImplementedError

    def compare(self, *argv: str) -> Reply:
        command = list(argv)
        theirs = self.normalize(command, self.other(*command))
        ours = self.normalize(command, self.model(*command))
        assert ours == theirs, f"{command} answered {theirs!r}, the model {ours!r}"
        return theirs

    def perform(self, argv: Argv) -> None:
        """Compare a command whose ``@`` IDs are filled in."""
        reply = self.compare(*self.with_ids(argv))
        if argv[:1] == ["XADD"] and isinstance(reply, bytes):
            self.ids.append(reply.decode())

    def prepare(self, entries: int, size: int) -> None:
        self.other("FLUSHALL")
        self.model("FLUSHDB")
        for subject in (self.model, self.other):
            subject("CONFIG", "SET", "stream-node-max-entries", entries)
            subject("CONFIG", "SET", "stream-node-max-bytes", size)
            for command in BEGINNING:
                assert not isinstance(subject(*command.split()), Error)
        self.ids = list(FIRST_IDS)

    @invariant()
    def everything_is_the_same(self) -> None:
        self.compare("MGET", "string", "n", "u")
        self.compare("XINFO", "STREAM", "u", "FULL", "COUNT", "0")
        for key in ("s", "t", "u", "string", "n"):
            self.compare("TTL", key)
        for key in ("s", "t"):
            self.compare("XRANGE", key, "-", "+", "COUNT", "100")
            self.compare("XINFO", "STREAM", key, "FULL", "COUNT", "0")
            self.compare("XINFO", "GROUPS", key)
            for group in ("g", "h"):
                self.compare("XPENDING", key, group)
                self.compare("XPENDING", key, group, "-", "+", "99")
                self.compare("XINFO", "CONSUMERS", key, group)


class AgainstRedis(Comparison):
    """The model, by the rules of 7.0.15, against a real server of that version."""

    server: RedisServer

    @initialize(entries=NODE_ENTRIES, size=NODE_BYTES)
    def begin(self, entries: int, size: int) -> None:
        self.model = Model(WallClock(), old=True)
        self.other = self.server
        self.prepare(entries, size)

    @rule(argv=COMMANDS_7)
    def step(self, argv: Argv) -> None:
        self.perform(argv)

    def normalize(self, argv: Argv, reply: Reply) -> Reply:
        reply = without_times_left(argv, without_idle_times(argv, sort_keys(argv, reply)))
        return without(reply, SEEN + TREE, times=True)


class AgainstKvstream(Comparison):
    """The model against a store, on one clock."""

    model: Model
    directory: tempfile.TemporaryDirectory[str]
    crashed = False

    @initialize(entries=NODE_ENTRIES, size=NODE_BYTES)
    def begin(self, entries: int, size: int) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="kvstream-")
        self.store = self.other = Kvstream(Path(self.directory.name), HOT_MEMORY.get(entries, 0))
        self.model = Model(self.store.clock)
        self.limits = (entries, size)
        self.prepare(entries, size)

    @rule(argv=COMMANDS_8)
    def step(self, argv: Argv) -> None:
        if argv[0] == WAIT:
            self.store.clock.advance(int(argv[1]))
        elif argv[0] in (CRASH, REOPEN):
            self.crashed = self.crashed or argv[0] == CRASH
            self.store.crash() if argv[0] == CRASH else self.store.reopen()
            self.configure()
        elif not self.hides_encoding(argv):
            self.perform(argv)

    def hides_encoding(self, argv: Argv) -> bool:
        """Return whether this is OBJECT ENCODING of a string that was appended to.

        Here short strings are in pieces, whose records do not tell it.
        """
        if argv[:2] != ["OBJECT", "ENCODING"] or len(argv) != 3:
            return False
        return isinstance(self.model.redis.keys.get(argv[2].encode()), Appended)

    def configure(self) -> None:
        entries, size = self.limits
        self.store("CONFIG", "SET", "stream-node-max-entries", entries)
        self.store("CONFIG", "SET", "stream-node-max-bytes", size)

    def normalize(self, argv: Argv, reply: Reply) -> Reply:
        # When a consumer was last seen is not worth a write of its own: a crash may lose it.
        return without(sort_keys(argv, reply), SEEN + TREE if self.crashed else TREE)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            try:
                assert self.store.faults() == []
            finally:
                self.store.close()
                self.directory.cleanup()
