"""How long the server keeps its other clients waiting while one asks for something large.

A probe adds an entry every millisecond. An answer that comes late stands for all the probes that
could not be sent meanwhile: each counts with what it would have waited.
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from bench.results import Claim
from bench.servers import framed, kvstream_server, port_of
from bench.workload import BATCH, Sizes, entries
from kvstream import Store

Words = Sequence[object]

PROBE_S = 0.001
POLL_S = 0.05
GAP_MS_MAX = 20.0
CHUNK = 1 << 18
PIPELINE = 5000
POOL = 100_000
KEPT = 4096
"""The end of a reply that is kept: enough for a section of INFO."""
_END = b"$3\r\nend\r\n"
CONSUMER = "worker-1"


class Line:
    """A connection that reads replies without looking at them."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=600)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, *requests: Words) -> bytes:
        """Send requests, read all their replies, and return the end of the last one."""
        return self.send(b"".join(framed(*each) for each in requests))

    def send(self, framed_requests: bytes) -> bytes:
        """Do so with requests that are framed already."""
        self._socket.sendall(framed_requests + framed("ECHO", "end"))
        last = b""
        while not last.endswith(_END):
            data = self._socket.recv(CHUNK)
            if not data:
                raise EOFError("the server has closed the connection")
            last = (last + data[-KEPT:])[-KEPT:]
        return last[: -len(_END)]

    def close(self) -> None:
        self._socket.close()


class Probe(threading.Thread):
    """Adds entries, one a millisecond, and notes what each had to wait."""

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
        """Return the waits since the last call, with that of who waits now, shortest first."""
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
class Work:
    """What one client asks for, and what has to be there before."""

    title: str
    requests: Callable[[Sizes], list[Words]]
    again: bool = True
    """It may be asked for again and again, for the length of the window."""
    awaited: str = ""
    """The field of INFO that is 0 when it is over."""


def _in_keys(*words: object) -> list[Words]:
    """Return a request to the database that has many keys."""
    return [("SELECT", 1), words, ("SELECT", 0)]


def _tenth(sizes: Sizes, number: int) -> list[str]:
    """Return the IDs of one of ten parts of the stream."""
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


ALL: tuple[Work, ...] = (
    Work("nothing", lambda sizes: []),
    Work("XRANGE of {bulk:,} entries", lambda sizes: [("XRANGE", "bulk", "-", "+")]),
    Work("XRANGE COUNT 1000", lambda sizes: [("XRANGE", "bulk", "-", "+", "COUNT", 1000)]),
    Work("XREAD of {bulk:,} entries", lambda sizes: [("XREAD", "STREAMS", "bulk", "0")]),
    Work(
        "XINFO STREAM FULL COUNT 0", lambda sizes: [("XINFO", "STREAM", "bulk", "FULL", "COUNT", 0)]
    ),
    Work("KEYS * of {keys:,} keys", lambda sizes: _in_keys("KEYS", "*")),
    Work(
        "KEYS *9*9* of {keys:,} keys",
        lambda sizes: _in_keys("KEYS", "*9*9*"),
    ),
    Work("SCAN COUNT 1000", lambda sizes: _in_keys("SCAN", 0, "COUNT", 1000)),
    Work("INFO", lambda sizes: [("INFO", "everything")]),
    Work(
        "XREADGROUP of {bulk:,} entries",
        lambda sizes: [("XREADGROUP", "GROUP", "late", CONSUMER, "STREAMS", "bulk", ">")],
        again=False,
    ),
    Work(
        "XPENDING of {bulk:,} entries",
        lambda sizes: [("XPENDING", "bulk", "late", "-", "+", sizes.bulk)],
    ),
    Work(
        "XAUTOCLAIM of {bulk:,} entries",
        lambda sizes: [("XAUTOCLAIM", "bulk", "late", "other", 0, 0, "COUNT", sizes.bulk)],
        again=False,
    ),
    Work(
        "XACK of {bulk:,} entries",
        lambda sizes: [("XACK", "bulk", "late", *(f"{n}-1" for n in range(1, sizes.bulk + 1)))],
        again=False,
    ),
    Work("COPY of {bulk:,} entries", lambda sizes: [("COPY", "bulk", "copied")], again=False),
    Work(
        "XDEL of {tenth:,} entries",
        lambda sizes: [("XDEL", "copied", *_tenth(sizes, 0))],
        again=False,
    ),
    Work(
        "XDELEX of {tenth:,} entries",
        lambda sizes: [("XDELEX", "copied", "IDS", sizes.bulk // 10, *_tenth(sizes, 1))],
        again=False,
    ),
    Work("XREADGROUP and XACKDEL of {tenth:,} entries", _delivered_and_deleted, again=False),
    Work("BGSAVE", lambda sizes: [("BGSAVE",)], again=False, awaited="rdb_bgsave_in_progress"),
    Work(
        "BGREWRITEAOF",
        lambda sizes: [("BGREWRITEAOF",)],
        again=False,
        awaited="aof_rewrite_in_progress",
    ),
    Work(
        "XTRIM of {large:,} entries",
        lambda sizes: [("XTRIM", "trimmed", "MAXLEN", 0)],
        again=False,
    ),
    Work("DEL of {large:,} entries", lambda sizes: [("DEL", "deleted")], again=False),
    Work("UNLINK of {large:,} entries", lambda sizes: [("UNLINK", "unlinked")], again=False),
    Work(
        "XREAD of {tenth:,} streams",
        lambda sizes: _in_keys("XREAD", "STREAMS", *_many(sizes), *["0"] * (sizes.bulk // 10)),
    ),
    Work("XINFO GROUPS of {tenth:,} groups", lambda sizes: _in_keys("XINFO", "GROUPS", "grouped")),
    Work(
        "XINFO STREAM FULL of {tenth:,} groups",
        lambda sizes: _in_keys("XINFO", "STREAM", "grouped", "FULL"),
    ),
    Work("DUMP of {tenth:,} groups", lambda sizes: _in_keys("DUMP", "grouped")),
    Work(
        "MGET of 10,000 keys",
        lambda sizes: _in_keys("MGET", *(f"key:{n}" for n in range(10_000))),
    ),
    Work(
        "MSET of 10,000 new keys",
        lambda sizes: _in_keys("MSET", *(w for n in range(10_000) for w in (f"new:{n}", n))),
        again=False,
    ),
    Work(
        "EXISTS of 10,000 keys",
        lambda sizes: _in_keys("EXISTS", *(f"key:{n}" for n in range(10_000))),
    ),
    Work(
        "DEL of 10,000 keys",
        lambda sizes: _in_keys("DEL", *(f"key:{n}" for n in range(10_000))),
        again=False,
    ),
    Work("DEBUG RELOAD", lambda sizes: [("DEBUG", "RELOAD")], again=False),
    Work("FLUSHALL of {keys:,} keys", lambda sizes: [("FLUSHALL",)], again=False),
)


def fill(path: Path, sizes: Sizes) -> None:
    """Make the streams that the works are about."""
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


def watch(work: Work, line: Line, probe: Probe, sizes: Sizes) -> tuple[float, float, float]:
    """Run a work; return the 99th percentile and the longest of the waits, and its own seconds.

    What is done at once is watched for longer: some of it goes on behind the answer.
    """
    time.sleep(sizes.window_s)  # what the work before has left to be done
    requests = work.requests(sizes)
    probe.waits_ms()
    begun = time.perf_counter()
    line.ask(*requests)
    took = time.perf_counter() - begun
    while work.awaited and f"{work.awaited}:0\r".encode() not in line.ask(("INFO", "persistence")):
        time.sleep(POLL_S)
        took = time.perf_counter() - begun
    while time.perf_counter() - begun < sizes.window_s:
        if work.again and requests:
            line.ask(*requests)
        else:
            time.sleep(PROBE_S)
    waits = probe.waits_ms()
    return waits[len(waits) * 99 // 100], waits[-1], took


def loop_gaps(folder: Path, sizes: Sizes) -> list[Claim]:
    """Hold each work's longest waits, but for one in a hundred, against the bound."""
    fill(folder / "gaps", sizes)
    claims = []
    with kvstream_server(folder / "gaps", "everysec") as client:
        port = port_of(client)
        line = Line(port)
        fill_keys(line, sizes)
        probe = Probe(port)
        probe.start()
        for work in ALL:
            p99, longest, took = watch(work, line, probe, sizes)
            title = work.title.format(
                bulk=sizes.bulk, tenth=sizes.bulk // 10, large=sizes.trimmed, keys=sizes.keys
            )
            note = f"longest {longest:.1f} ms; it took {1000 * took:,.0f} ms"
            claims.append(
                Claim("gaps", f"others wait (p99) during {title}", p99, GAP_MS_MAX, "ms", note)
            )
        probe.end()
        line.close()
    return claims
