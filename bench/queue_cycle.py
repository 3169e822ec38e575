"""Clients of a queue: cycles of add, read and acknowledge; random acks; reads beside adds."""

import random
import re
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
from bench.server import KEY, Load, ServerRow
from bench.workload import Sizes

QUEUES = 10
BATCH = 16
ACKED = 100
"""IDs of one XACK in random order."""
READ = 10
"""Entries of one XREADGROUP beside adds."""
ADDS_A_SECOND = 5_000
_ID = re.compile(rb"\d+-\d+")


def queue(number: int) -> str:
    """Return the stream of one client."""
    return f"queue-{number}"


def _per_queue(count: int) -> int:
    """Return the cycles of one client: a multiple of a batch."""
    return max(count // QUEUES // BATCH, 1) * BATCH


def prepare_queues(client: Redis, count: int) -> None:
    """Make the streams of the clients, each with a group."""
    for number in range(QUEUES):
        client.xgroup_create(queue(number), GROUP, id="0", mkstream=True)


def cycles(key: str, count: int, batch: int) -> Script:
    """Add ``batch`` entries, read them one by one, acknowledge them one by one; repeat."""
    add = framed("XADD", key, "*", *ENTRY) * batch
    read = framed("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", 1, "STREAMS", key, ">") * batch
    for _ in range(0, count, batch):
        added = _ID.findall((yield add, 2 * batch))
        reply = yield read, (READ_LINES + ENTRY_LINES) * batch
        if len(added) != batch or any(b"\r\n%b\r\n" % each not in reply for each in added):
            raise WrongReply(f"{reply[:200]!r} after the XADD of {added[:BATCH]!r}")
        acks = b"".join(framed("XACK", key, GROUP, each.decode()) for each in added)
        acked = yield acks, batch
        if acked != b":1\r\n" * batch:
            raise WrongReply(f"{acked!r} to XACK")


def _run_cycles(batch: int) -> Load:
    def load(client: Redis, count: int) -> float:
        each = _per_queue(count)
        scripts = [cycles(queue(number), each, batch) for number in range(QUEUES)]
        return run_scripts(port_of(client), scripts) * count / (each * QUEUES)

    return load


def check_queues(client: Any, count: int) -> None:
    """Raise WrongReply unless ``count`` entries were added, read and acknowledged."""
    for number in range(QUEUES):
        length = client.xlen(queue(number))
        group = client.xinfo_groups(queue(number))[0]
        if length != _per_queue(count) or group["pending"] or group["lag"]:
            raise WrongReply(f"{queue(number)} has {length} entries and {group}")


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


def _cycle_row(key: str, title: str, target: float, batch: int) -> ServerRow:
    title = f"{QUEUES} clients XADD, XREADGROUP 1, XACK, {title}"

    def count(sizes: Sizes) -> int:
        return _per_queue(sizes.cycles) * QUEUES

    load = _run_cycles(batch)
    return ServerRow(
        key, title, target, "everysec", count, load, prepare_queues, check_queues, _rounds
    )


CYCLE_ROWS = (
    _cycle_row("cycle-1", "one by one", 0.6, 1),
    _cycle_row("cycle-16", f"{BATCH} at a time", 0.5, BATCH),
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
