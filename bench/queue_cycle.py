"""Clients of a queue: cycles of add, read and acknowledge; random acks; reads beside adds.

The cycles differ in what one pipeline has: requests of one command, or several commands by turns.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from bench.commands import check_acked, deliver_all
from bench.load import (
    CONSUMER,
    ENTRY,
    ENTRY_LINES,
    GROUP,
    READ_LINES,
    Script,
    WrongReply,
    entry_id,
    exchanges,
    fill_numbered,
    run_scripts,
)
from bench.open_loop import background_adds
from bench.processes import CLIENTS, framed, port_of
from bench.server import KEY, ServerRow
from bench.workload import Sizes

QUEUES = 10
BATCH = 16
ACKED = 100
"""IDs of one XACK in random order."""
READ = 10
"""Entries of one XREADGROUP beside adds."""
ADDS_A_SECOND = 5_000
_ID = re.compile(rb"\$\d+\r\n(\d+-\d+)\r\n")
"""An ID as a string of a reply: no field of an entry looks like one."""


def queue(number: int) -> str:
    """Return the stream of one client."""
    return f"queue-{number}"


def _adds(key: str) -> bytes:
    return framed("XADD", key, "*", *ENTRY)


def _reads_one(key: str) -> bytes:
    return framed("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", 1, "STREAMS", key, ">")


def _acks(key: str, ids: Sequence[bytes]) -> list[bytes]:
    return [framed("XACK", key, GROUP, each.decode()) for each in ids]


def cycles(key: str, count: int, batch: int) -> Script:
    """Add ``batch`` entries, read them one by one, acknowledge them one by one; repeat."""
    add, read = _adds(key) * batch, _reads_one(key) * batch
    for _ in range(0, count, batch):
        added = _ID.findall((yield add, 2 * batch))
        reply = yield read, (READ_LINES + ENTRY_LINES) * batch
        if len(added) != batch or _ID.findall(reply) != added:
            raise WrongReply(f"{reply[:200]!r} after the XADD of {added[:BATCH]!r}")
        acked = yield b"".join(_acks(key, added)), batch
        if acked != b":1\r\n" * batch:
            raise WrongReply(f"{acked!r} to XACK")


def pairs(key: str, count: int, batch: int) -> Script:
    """Add and read by turns in one pipeline, then acknowledge in another; repeat."""
    for _ in range(0, count, batch):
        reply = yield (_adds(key) + _reads_one(key)) * batch, _PAIR_LINES * batch
        acked = yield b"".join(_acks(key, _added_and_read(reply, batch))), batch
        if acked != b":1\r\n" * batch:
            raise WrongReply(f"{acked!r} to XACK")


def mixed(key: str, count: int, batch: int) -> Script:
    """Add, read, and acknowledge what the last pipeline has read, by turns in one pipeline."""
    acks: list[bytes] = []
    for _ in range(0, count, batch):
        pair = _adds(key) + _reads_one(key)
        requests = b"".join(pair + ack for ack in acks or [b""] * batch)
        reply = yield requests, _PAIR_LINES * batch + len(acks)
        if reply.count(b":1\r\n") != len(acks):
            raise WrongReply(f"{reply[-200:]!r} to {len(acks)} XACK")
        acks = _acks(key, _added_and_read(reply, batch))
    yield b"".join(acks), batch


_PAIR_LINES = 2 + READ_LINES + ENTRY_LINES
"""Lines of the replies of XADD, and of XREADGROUP COUNT 1."""


def _added_and_read(reply: bytes, batch: int) -> list[bytes]:
    """Return the IDs that were added; each was read at once, since the client is alone."""
    ids: list[bytes] = _ID.findall(reply)
    if len(ids) != 2 * batch or ids[::2] != ids[1::2]:
        raise WrongReply(f"{ids[:BATCH]!r} in the replies of XADD and XREADGROUP")
    return ids[::2]


@dataclass(frozen=True, slots=True)
class Cycle:
    """Clients that each have a stream with a group, and add, read and acknowledge."""

    script: Callable[[str, int, int], Script] = cycles
    batch: int = 1
    clients: int = QUEUES

    def each(self, count: int) -> int:
        """Return the cycles of one client: a multiple of the largest batch."""
        return max(count // self.clients // BATCH, 1) * BATCH

    def prepare(self, client: Redis, count: int) -> None:
        """Make the streams of the clients, each with a group."""
        for number in range(self.clients):
            client.xgroup_create(queue(number), GROUP, id="0", mkstream=True)

    def load(self, client: Redis, count: int) -> float:
        each = self.each(count)
        scripts = [self.script(queue(n), each, self.batch) for n in range(self.clients)]
        return run_scripts(port_of(client), scripts) * count / (each * self.clients)

    def check(self, client: Any, count: int) -> None:
        """Raise WrongReply unless ``count`` entries were added, read and acknowledged."""
        for number in range(self.clients):
            length = client.xlen(queue(number))
            group = client.xinfo_groups(queue(number))[0]
            if length != self.each(count) or group["pending"] or group["lag"]:
                raise WrongReply(f"{queue(number)} has {length} entries and {group}")

    def row(self, key: str, title: str, target: float = 0) -> ServerRow:
        """Return the row of this load."""

        def count(sizes: Sizes) -> int:
            return self.each(sizes.cycles // (QUEUES // self.clients)) * self.clients

        return ServerRow(
            key, title, target, "everysec", count, self.load, self.prepare, self.check, _rounds
        )


def _ack_at_random(client: Redis, count: int) -> float:
    """Acknowledge all entries, 100 of them at once, in random order; return the seconds."""
    numbers = list(range(count))
    random.Random(1).shuffle(numbers)
    pairs = []
    for at in range(0, count, ACKED):
        ids = [entry_id(number) for number in numbers[at : at + ACKED]]
        pairs.append((framed("XACK", KEY, GROUP, *ids), b":%d\r\n" % len(ids)))
    scripts = [exchanges(pairs[number::CLIENTS]) for number in range(min(CLIENTS, len(pairs)))]
    return run_scripts(port_of(client), scripts)


def _pages(count: int) -> int:
    """Return the pages of one client that reads beside adds."""
    return max(count // READ // CLIENTS, 1)


def _prepare_reads(client: Redis, count: int) -> None:
    fill_numbered(port_of(client), KEY, _pages(count) * READ * CLIENTS)
    client.xgroup_create(KEY, GROUP, id="0")


def _reads(count: int) -> Script:
    """Read ``count`` pages of 10 entries."""
    read = framed("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", READ, "STREAMS", KEY, ">")
    lines = READ_LINES + READ * ENTRY_LINES
    for _ in range(count):
        reply = yield read, lines
        if reply.count(b"\n") != lines:
            raise WrongReply(repr(reply[:200]))


def _read_beside_adds(client: Redis, count: int) -> float:
    """Read ``count`` entries while another process adds 5,000 a second; return the seconds."""
    each = _pages(count)
    with background_adds(client, KEY, ADDS_A_SECOND):
        seconds = run_scripts(port_of(client), [_reads(each) for _ in range(CLIENTS)])
    return seconds * count / (each * READ * CLIENTS)


def _check_reads(client: Any, count: int) -> None:
    read = _pages(count) * READ * CLIENTS
    group, length = client.xinfo_groups(KEY)[0], client.xlen(KEY)
    if group["pending"] != read or length <= read:
        raise WrongReply(f"{group} of {length} entries")


def _rounds(sizes: Sizes) -> int:
    return sizes.command_rounds


_SEPARATELY = f"{QUEUES} clients XADD, XREADGROUP 1, XACK"
_PAIRS = "XADD and XREADGROUP 1 by turns, then XACK"
_MIXED = f"{QUEUES} clients XADD, XREADGROUP 1 and XACK by turns in one pipeline"
CYCLE_ROWS = (
    Cycle().row("cycle-1", f"{_SEPARATELY}, one by one", 0.6),
    Cycle(batch=BATCH).row("cycle-16", f"{_SEPARATELY}, {BATCH} at a time", 0.5),
    Cycle(pairs).row("cycle-pairs-1", f"{QUEUES} clients {_PAIRS}, one by one"),
    Cycle(pairs, BATCH).row("cycle-pairs-16", f"{QUEUES} clients {_PAIRS}, {BATCH} at a time"),
    Cycle(pairs, clients=1).row("cycle-pairs-c1", f"1 client {_PAIRS}, one by one"),
    Cycle(mixed).row("cycle-mixed-1", f"{_MIXED}, one of each"),
    Cycle(mixed, BATCH).row("cycle-mixed-16", f"{_MIXED}, {BATCH} of each"),
)
READING_ROWS = (
    ServerRow(
        "ack-random",
        f"XACK of {ACKED}, in random order (entries)",
        0.4,
        "everysec",
        lambda sizes: sizes.pending,
        _ack_at_random,
        deliver_all,
        check_acked,
        _rounds,
    ),
    ServerRow(
        "read-beside-add",
        f"XREADGROUP COUNT {READ} beside {ADDS_A_SECOND:,} XADD a second (entries)",
        0.4,
        "everysec",
        lambda sizes: _pages(sizes.pending) * READ * CLIENTS,
        _read_beside_adds,
        _prepare_reads,
        _check_reads,
        _rounds,
    ),
)
