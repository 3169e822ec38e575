"""T11: a client that requests more than it reads uses limited memory, and delays no other."""

import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.operations import strings
from tests import forking
from tests.cli.program import ENVIRONMENT
from tests.patience import PATIENCE_S, worked_s
from tests.server.asking import Asker
from tests.server.conftest import Served
from tests.server.talking import request

MEGABYTE = 1 << 20
LIMIT = 16 * MEGABYTE
ENTRY = b"v" * 10_000
ENTRIES = 10_000
LARGE = ENTRY * 3000
CUT_OFF = b"client_output_buffer_limit_disconnections:1\r\n"
"""With ENTRY 100 MB in total: CI has no time for a gigabyte, and six limits suffice."""


@pytest.fixture(scope="module")
def long_stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose stream ``s`` is much longer than the limit."""
    directory = tmp_path_factory.mktemp("long") / "store"
    with Store.open(directory, durability="no") as store:
        stream = store.stream("s")
        for _ in range(0, ENTRIES, 500):
            stream.add_many([{"f": ENTRY}] * 500)
        store.engine.run(strings.put, b"\0\0large", LARGE)
        store.compact()  # not while the memory of a server is measured
    return directory


@contextmanager
def served(directory: Path, limit: int) -> Iterator[tuple[int, int]]:
    """Serve a store as a process; yield its ID and its port."""
    process = forking.start(
        [
            *(sys.executable, "-m", "kvstream", "serve", "--port", "0", "--dir", str(directory)),
            *("--output-max", str(limit), "--shutdown-timeout", "1"),
        ],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = re.search(r":(\d+)$", process.stdout.readline().strip())
    assert found is not None
    try:
        yield process.pid, int(found[1])
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def resident(pid: int, peak: bool = False) -> int:
    """Return the current or the peak memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    name = "VmHWM" if peak else "VmRSS"
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def read_by_pages(asker: Asker) -> None:
    """Fill the store's cache, so that later reads need no more memory for it."""
    for command, start, end in (("XRANGE", "-", "+"), ("XREVRANGE", "+", "-")):
        for _ in range(40):
            page = asker.ask(command, "s", start, end, "COUNT", "100")
            start = "(" + page[-1][0].decode()


@pytest.mark.parametrize(
    "asked",
    ["XRANGE s - +", "XREVRANGE s + -", "XRANGE s - + COUNT 9000"],
)
def test_a_reply_beyond_the_limit_uses_the_memory_of_a_few_pages(
    long_stream: Path, asked: str
) -> None:
    with served(long_stream, LIMIT) as (pid, port), Asker(port) as asker:
        read_by_pages(asker)
        before = resident(pid)
        forget_peak(pid)
        answer = asker.ask(asked)
        assert len(answer) == (9000 if "COUNT" in asked else ENTRIES)
        assert {fields[1] for _, fields in answer} == {ENTRY}
        assert resident(pid, peak=True) - before < LIMIT
        assert len(asker.ask("XRANGE s - + COUNT 1100")) == 1100


def test_a_large_string_uses_the_memory_of_a_few_pages(long_stream: Path) -> None:
    with served(long_stream, LIMIT) as (pid, port), Asker(port) as asker:
        read_by_pages(asker)
        before = resident(pid)
        forget_peak(pid)
        assert asker.ask("GET large") == LARGE
        assert resident(pid, peak=True) - before < len(LARGE)  # at once it would be twice that


def test_a_client_that_stops_reading_a_long_reply_costs_a_page(long_stream: Path) -> None:
    with served(long_stream, LIMIT) as (pid, port), Asker(port) as asker:
        read_by_pages(asker)
        before = resident(pid)
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(request("XRANGE", "s", "-", "+"))
            assert slow.recv(100).startswith(b"*%d\r\n" % ENTRIES)
            time.sleep(0.5)
            assert len(asker.ask("XRANGE s - + COUNT 100")) == 100
            assert resident(pid) - before < LIMIT
            assert b"client_output_buffer_limit_disconnections:0\r\n" in asker.ask("INFO stats")


@pytest.mark.parametrize("times", [1, 3])
def test_a_delivery_is_limited_by_the_reply_limit(
    long_stream: Path, tmp_path: Path, times: int
) -> None:
    shutil.copytree(long_stream, tmp_path / "store")
    with served(tmp_path / "store", LIMIT) as (pid, port), Asker(port) as asker:
        read_by_pages(asker)
        asker.ask("XGROUP CREATE s g 0")
        before = resident(pid)
        forget_peak(pid)
        words = ["GROUP", "g", "c", "STREAMS"]
        read = asker.ask("XREADGROUP", *words, *["s"] * times, *[">"] * times)
        assert 0 < sum(len(entries) for _, entries in read) < times * ENTRIES // 4
        seen = [entry[0] for entry in read[0][1]]
        (more,) = asker.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", "10", "STREAMS", "s", ">")
        assert more[1][0][0] not in seen
        assert len(more[1]) == 10
        assert asker.ask("XPENDING s g")[0] >= len(seen) + 10
        assert resident(pid, peak=True) - before < 8 * LIMIT  # otherwise 100 MB and their copies


def test_a_client_that_never_reads_is_disconnected_and_others_hardly_wait(
    long_stream: Path,
) -> None:
    with served(long_stream, LIMIT) as (pid, port), Asker(port) as asker:
        read_by_pages(asker)
        before = resident(pid)
        forget_peak(pid)
        took: list[float] = []
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(request("XRANGE", "s", "-", "+", "COUNT", "20") * 5000)  # a gigabyte
            while CUT_OFF not in asker.ask("INFO stats") or len(took) < 1000:
                began = worked_s(pid)
                asker.ask("PING")
                took.append(worked_s(pid) - began)
        assert resident(pid, peak=True) - before < 3 * LIMIT  # for sixty times as much
        assert statistics.quantiles(took, n=100)[98] < 0.050


@pytest.mark.parametrize(
    "asked",
    [
        "XRANGE s - + COUNT 100",
        "XREVRANGE s + - COUNT 100",
        "XREAD COUNT 100 STREAMS s 0",
        "XREAD COUNT 100 STREAMS none s 0 0",
    ],
)
def test_few_large_entries_use_the_memory_of_a_few_pages(tmp_path: Path, asked: str) -> None:
    with served(tmp_path / "store", LIMIT) as (pid, port), Asker(port) as asker:
        for number in range(1, 61):
            asker.ask("XADD", "s", f"{number}-1", "f", b"v" * MEGABYTE)
        asker.ask("DEBUG", "RELOAD")  # or compaction may start while memory is measured
        asker.ask("XRANGE s - + COUNT 1")
        before = resident(pid)
        forget_peak(pid)
        answer = asker.ask(asked)
        entries = answer[0][1] if asked.startswith("XREAD") else answer
        assert len(entries) == 60
        assert {len(fields[1]) for _, fields in entries} == {MEGABYTE}
        assert resident(pid, peak=True) - before < 2 * LIMIT


def test_few_large_entries_are_delivered_up_to_the_limit(served: Served) -> None:
    with served.asker() as asker:
        asker.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 16mb 0 0")
        asker.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        for number in range(1, 13):
            asker.ask("XADD", "s", f"{number}-1", "f", b"v" * MEGABYTE)
        given = []
        while answer := asker.ask("XREADGROUP GROUP g c COUNT 12 STREAMS s >"):
            [[_, entries]] = answer
            assert 1 <= len(entries) <= 4  # a quarter of the limit
            given += [eid for eid, _ in entries]
        assert given == [b"%d-1" % number for number in range(1, 13)]


def test_several_strings_beyond_the_limit_are_refused(served: Served) -> None:
    with served.asker() as asker:
        asker.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 2mb 0 0")
        asker.ask("SET", "k", b"v" * 10_000)
        assert len(asker.ask("MGET", *["k"] * 200)) == 200
        assert asker.ask("MGET", *["k"] * 300).startswith("ERR the reply would exceed")
        asker.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0")
        assert len(asker.ask("MGET", *["k"] * 300)) == 300


def test_a_transaction_uses_the_memory_of_a_few_pages(long_stream: Path) -> None:
    asked = [["GET", "large"], ["XRANGE", "s", "-", "+"], ["MGET", "large", "large"]]
    with served(long_stream, LIMIT) as (pid, port), ExitStack() as opened:
        askers = [opened.enter_context(Asker(port)) for _ in range(4)]
        read_by_pages(askers[0])
        before = resident(pid)
        forget_peak(pid)
        for asker in askers:
            asker.send_bytes(b"".join(request(*words) for words in (["MULTI"], *asked, ["EXEC"])))
        for asker in askers:
            assert [asker.read() for _ in range(4)] == [b"OK", *[b"QUEUED"] * 3]
            large, entries, several = asker.read()
            assert [large, *several] == [LARGE] * 3
            assert len(entries) == ENTRIES
        assert resident(pid, peak=True) - before < 3 * LIMIT  # for fifty times as much


def test_the_replies_of_a_transaction_share_one_limit(served: Served) -> None:
    with served.asker() as asker:
        asker.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 2mb 0 0")
        for _ in range(10):
            asker.ask("XADD", "s", "*", "f", "v" * 5000)
        reads = [["XRANGE", "s", "-", "+"]] * 60
        for words in (["MULTI"], *reads, ["XLEN", "s"], ["SET", "k", "v"]):
            asker.ask(*words)
        *read, length, done = asker.ask("EXEC")
        answered = [each for each in read if isinstance(each, list)]
        assert 35 < len(answered) < 60
        assert {len(each) for each in answered} == {10}
        refused = read[len(answered) :]
        assert all(each.startswith("ERR the reply would exceed") for each in refused)
        assert (length, done) == (10, b"OK")
        assert len(asker.ask("XRANGE", "s", "-", "+")) == 10


@pytest.mark.parametrize(("fields", "count"), [(("f", "v" * 1000), 1500), (("f", "v") * 200, 600)])
def test_limited_reads_in_sequence_return_every_entry_once_and_in_order(
    served: Served, fields: tuple[str, ...], count: int
) -> None:
    """Short fields take four times as much in the protocol; even so the client stays connected."""
    with served.asker() as asker:
        asker.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 0 0")
        for stream in ("s", "t"):
            asker.ask("XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
            for number in range(1, count + 1):
                asker.send("XADD", stream, f"{number}-1", *fields)
            added = [asker.read() for _ in range(count)]
        read: list[bytes] = []
        while page := asker.ask("XREAD", "STREAMS", "s", read[-1] if read else "0"):
            read += [entry[0] for entry in page[0][1]]
        assert read == added
        given: dict[bytes, list[bytes]] = {b"s": [], b"t": []}
        while pages := asker.ask("XREADGROUP GROUP g c STREAMS s t > >"):
            for stream, entries in pages:
                given[stream] += [entry[0] for entry in entries]
        assert given == {b"s": added, b"t": added}
