"""The latency of other clients while one client runs a large command.

A probe adds an entry every millisecond. A late reply delays later probes, so each missed probe is
counted with the time that it would have waited (no coordinated omission).
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from bench.load import Line
from bench.processes import kvstream_server, port_of
from bench.results import Limit
from bench.workload import BATCH, Sizes, entries
from kvstream import Store

Words = Sequence[object]

PROBE_S = 0.001
POLL_S = 0.05
LATENCY_MS_MAX = 20.0
PIPELINE = 5000
POOL = 100_000
CONSUMER = "worker-1"


class Probe(threading.Thread):
    """Adds an entry every millisecond, and records each latency."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._line = Line(port)
        self._over = threading.Event()
        self._waits: list[float] = []

    def run(self) -> None:
        while not self._over.wait(PROBE_S):
            begun = time.perf_counter()
            self._line.ask(("XADD", "probe", "MAXLEN", "~", "1000", "*", "f", "v"))
            self._waits.append(time.perf_counter() - begun)

    def waits_ms(self) -> list[float]:
        """Return the latencies since the last call, sorted, including the probe now waiting."""
        seen = len(self._waits)
        while len(self._waits) < seen + 2 and self.is_alive():
            time.sleep(PROBE_S)
        waits, self._waits = self._waits, []
        late = [wait - n * PROBE_S for wait in waits for n in range(1, int(wait / PROBE_S))]
        return sorted(1000 * wait for wait in (*waits, *late))

    def end(self) -> None:
        self._over.set()
        self.join()
        self._line.close()


@dataclass(frozen=True, slots=True)
class LargeCommand:
    """A large command, or a sequence of commands."""

    title: str
    requests: Callable[[Sizes], list[Words]]
    again: bool = True
    """Whether to repeat it for the length of the window."""
    awaited: str = ""
    """The field of INFO persistence that is 0 when it has ended."""


def _in_keys(*words: object) -> list[Words]:
    """Return a command in the database with many keys."""
    return [("SELECT", 1), words, ("SELECT", 0)]


def _tenth(sizes: Sizes, number: int) -> list[str]:
    """Return the IDs of a tenth of the stream."""
    part = sizes.bulk // 10
    return [f"{n}-1" for n in range(number * part + 1, number * part + part + 1)]


def _many(sizes: Sizes) -> list[str]:
    return [f"stream:{n}" for n in range(sizes.bulk // 10)]


def _delivered_and_deleted(sizes: Sizes) -> list[Words]:
    ids = _tenth(sizes, 2)
    return [
        ("XGROUP", "SETID", "copied", "late", _tenth(sizes, 1)[-1]),
        ("XREADGROUP", "GROUP", "late", "w", "COUNT", len(ids), "STREAMS", "copied", ">"),
        ("XACKDEL", "copied", "late", "IDS", len(ids), *ids),
    ]


COMMANDS: tuple[LargeCommand, ...] = (
    LargeCommand("nothing", lambda sizes: []),
    LargeCommand("XRANGE of {bulk:,} entries", lambda sizes: [("XRANGE", "bulk", "-", "+")]),
    LargeCommand("XRANGE COUNT 1000", lambda sizes: [("XRANGE", "bulk", "-", "+", "COUNT", 1000)]),
    LargeCommand("XREAD of {bulk:,} entries", lambda sizes: [("XREAD", "STREAMS", "bulk", "0")]),
    LargeCommand(
        "XINFO STREAM FULL COUNT 0", lambda sizes: [("XINFO", "STREAM", "bulk", "FULL", "COUNT", 0)]
    ),
    LargeCommand("KEYS * of {keys:,} keys", lambda sizes: _in_keys("KEYS", "*")),
    LargeCommand(
        "KEYS *9*9* of {keys:,} keys",
        lambda sizes: _in_keys("KEYS", "*9*9*"),
    ),
    LargeCommand("SCAN COUNT 1000", lambda sizes: _in_keys("SCAN", 0, "COUNT", 1000)),
    LargeCommand("INFO", lambda sizes: [("INFO", "everything")]),
    LargeCommand(
        "XREADGROUP of {bulk:,} entries",
        lambda sizes: [("XREADGROUP", "GROUP", "late", CONSUMER, "STREAMS", "bulk", ">")],
        again=False,
    ),
    LargeCommand(
        "XPENDING of {bulk:,} entries",
        lambda sizes: [("XPENDING", "bulk", "late", "-", "+", sizes.bulk)],
    ),
    LargeCommand(
        "XAUTOCLAIM of {bulk:,} entries",
        lambda sizes: [("XAUTOCLAIM", "bulk", "late", "other", 0, 0, "COUNT", sizes.bulk)],
        again=False,
    ),
    LargeCommand(
        "XACK of {bulk:,} entries",
        lambda sizes: [("XACK", "bulk", "late", *(f"{n}-1" for n in range(1, sizes.bulk + 1)))],
        again=False,
    ),
    LargeCommand(
        "COPY of {bulk:,} entries", lambda sizes: [("COPY", "bulk", "copied")], again=False
    ),
    LargeCommand(
        "XDEL of {tenth:,} entries",
        lambda sizes: [("XDEL", "copied", *_tenth(sizes, 0))],
        again=False,
    ),
    LargeCommand(
        "XDELEX of {tenth:,} entries",
        lambda sizes: [("XDELEX", "copied", "IDS", sizes.bulk // 10, *_tenth(sizes, 1))],
        again=False,
    ),
    LargeCommand(
        "XREADGROUP and XACKDEL of {tenth:,} entries", _delivered_and_deleted, again=False
    ),
    LargeCommand(
        "BGSAVE", lambda sizes: [("BGSAVE",)], again=False, awaited="rdb_bgsave_in_progress"
    ),
    LargeCommand(
        "BGREWRITEAOF",
        lambda sizes: [("BGREWRITEAOF",)],
        again=False,
        awaited="aof_rewrite_in_progress",
    ),
    LargeCommand(
        "XTRIM of {large:,} entries",
        lambda sizes: [("XTRIM", "trimmed", "MAXLEN", 0)],
        again=False,
    ),
    LargeCommand("DEL of {large:,} entries", lambda sizes: [("DEL", "deleted")], again=False),
    LargeCommand(
        "UNLINK of {large:,} entries", lambda sizes: [("UNLINK", "unlinked")], again=False
    ),
    LargeCommand(
        "XREAD of {tenth:,} streams",
        lambda sizes: _in_keys("XREAD", "STREAMS", *_many(sizes), *["0"] * (sizes.bulk // 10)),
    ),
    LargeCommand(
        "XINFO GROUPS of {tenth:,} groups", lambda sizes: _in_keys("XINFO", "GROUPS", "grouped")
    ),
    LargeCommand(
        "XINFO STREAM FULL of {tenth:,} groups",
        lambda sizes: _in_keys("XINFO", "STREAM", "grouped", "FULL"),
    ),
    LargeCommand("DUMP of {tenth:,} groups", lambda sizes: _in_keys("DUMP", "grouped")),
    LargeCommand(
        "MGET of 10,000 keys",
        lambda sizes: _in_keys("MGET", *(f"key:{n}" for n in range(10_000))),
    ),
    LargeCommand(
        "MSET of 10,000 new keys",
        lambda sizes: _in_keys("MSET", *(w for n in range(10_000) for w in (f"new:{n}", n))),
        again=False,
    ),
    LargeCommand(
        "EXISTS of 10,000 keys",
        lambda sizes: _in_keys("EXISTS", *(f"key:{n}" for n in range(10_000))),
    ),
    LargeCommand(
        "DEL of 10,000 keys",
        lambda sizes: _in_keys("DEL", *(f"key:{n}" for n in range(10_000))),
        again=False,
    ),
    LargeCommand("DEBUG RELOAD", lambda sizes: [("DEBUG", "RELOAD")], again=False),
    LargeCommand("FLUSHALL of {keys:,} keys", lambda sizes: [("FLUSHALL",)], again=False),
)


def fill(path: Path, sizes: Sizes) -> None:
    """Create the streams that the commands use."""
    with Store.open(path, durability="no") as store:
        for name, count in (
            *(("bulk", sizes.bulk), ("trimmed", sizes.trimmed)),
            *(("deleted", sizes.trimmed), ("unlinked", sizes.trimmed)),
        ):
            supply = islice(cycle(entries(min(count, POOL))), count)
            stream = store.stream(name)
            if name == "bulk":
                for number, fields in enumerate(supply, 1):
                    stream.add(fields, id=f"{number}-1")
            else:
                while batch := list(islice(supply, BATCH)):
                    stream.add_many(batch)
        store.stream("bulk").create_group("late", start="0")


def fill_keys(line: Line, sizes: Sizes) -> None:
    line.ask(("SELECT", 1))
    for first in range(0, sizes.keys, PIPELINE):
        numbers = range(first, min(first + PIPELINE, sizes.keys))
        line.ask(*(("SET", f"key:{n}", n) for n in numbers))
    line.ask(*(("XADD", name, "*", "f", "v") for name in _many(sizes)))
    line.ask(*(("XGROUP", "CREATE", "grouped", name, 0, "MKSTREAM") for name in _many(sizes)))
    line.ask(("SELECT", 0))


def watch(
    command: LargeCommand, line: Line, probe: Probe, sizes: Sizes
) -> tuple[float, float, float]:
    """Run a command; return the p99 and the longest latency of the probe, and its own seconds.

    A short command is watched for the whole window: some of its command follows the reply.
    """
    time.sleep(sizes.window_s)  # for background work of the command before
    requests = command.requests(sizes)
    probe.waits_ms()
    begun = time.perf_counter()
    line.ask(*requests)
    seconds = time.perf_counter() - begun
    while command.awaited and f"{command.awaited}:0\r".encode() not in line.ask(
        ("INFO", "persistence")
    ):
        time.sleep(POLL_S)
        seconds = time.perf_counter() - begun
    while time.perf_counter() - begun < sizes.window_s:
        if command.again and requests:
            line.ask(*requests)
        else:
            time.sleep(PROBE_S)
    waits = probe.waits_ms()
    return waits[len(waits) * 99 // 100], waits[-1], seconds


def blocking_commands(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare the p99 latency during each command with the limit."""
    fill(folder / "gaps", sizes)
    limits = []
    with kvstream_server(folder / "gaps", "everysec") as client:
        port = port_of(client)
        line = Line(port)
        fill_keys(line, sizes)
        probe = Probe(port)
        probe.start()
        for command in COMMANDS:
            p99, longest, seconds = watch(command, line, probe, sizes)
            title = command.title.format(
                bulk=sizes.bulk, tenth=sizes.bulk // 10, large=sizes.trimmed, keys=sizes.keys
            )
            note = f"longest {longest:.1f} ms; it took {1000 * seconds:,.0f} ms"
            limits.append(
                Limit("gaps", f"others wait (p99) during {title}", p99, LATENCY_MS_MAX, "ms", note)
            )
        probe.end()
        line.close()
    return limits
