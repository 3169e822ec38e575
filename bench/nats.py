"""``kvstream serve`` beside NATS: adding to a stream, and the cycle of a queue.

NATS's side is JetStream with streams in files. It syncs them each second beside ``everysec``, and
after each message beside ``always``, where it still does not sync acknowledgements. Both servers
get the same load from the same generator, and answer each request. NATS speaks lines::

    client := "CONNECT" json | "SUB" subject sid | "PUB" subject reply size CRLF payload
            | "PING" | "PONG"
    server := "INFO" json | "MSG" subject sid [reply] size CRLF payload | "PING" | "PONG"

A message is read by a request for the next one of a consumer, and comes with the subject by which
it is acknowledged. The protocol is described at https://docs.nats.io/reference/reference-protocols.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from bench.load import ENTRY, Script, WrongReply, connect, run_on, run_scripts
from bench.processes import (
    CLIENTS,
    START_S_MAX,
    PeerMissing,
    framed,
    free_port,
    kvstream_server,
    port_of,
    process_seconds,
    processor_seconds,
)
from bench.queue_cycle import BATCH, QUEUES, Cycle, cycles, queue
from bench.results import Comparison, Log
from bench.server import KEY
from bench.workload import Sizes

SYNCED = {"everysec": "1s", "always": "always"}
"""JetStream's ``sync_interval`` by the durability of kvstream that promises the same."""
BATCHES = {1: "one by one", BATCH: f"{BATCH} at a time"}
ALWAYS_DIVISOR = 10
"""By how much fewer entries there are with an fsync each."""
CONSUMER = "workers"
PAYLOAD = "".join(ENTRY).encode()
_ACK = re.compile(rb"\$JS\.ACK\S+")
_CONFIGURATION = """
host: 127.0.0.1
port: {port}
ping_interval: "1h"
jetstream {{ store_dir: {folder}, sync_interval: {synced} }}
"""


class Nats:
    """A running server, and a connection that asks it one request after another."""

    def __init__(self, port: int, pid: int) -> None:
        self.port, self.pid = port, pid
        self._socket = connect(port)
        self._replies = self._socket.makefile("rb")
        self._socket.sendall(_hello("control"))
        self._lines: list[socket.socket] = []

    def close(self) -> None:
        self._replies.close()
        for each in (self._socket, *self._lines):
            each.close()

    def ask(self, subject: str, **body: object) -> dict[str, Any]:
        """Send a request of JetStream's API; return its reply."""
        self._socket.sendall(_publish(f"$JS.API.{subject}", json.dumps(body).encode(), "control"))
        while not (line := self._replies.readline()).startswith(b"MSG"):
            if not line:
                raise EOFError("the server has closed the connection")
            if line.startswith(b"PING"):
                self._socket.sendall(b"PONG\r\n")
        reply: dict[str, Any] = json.loads(self._replies.read(int(line.split()[-1]) + 2))
        return reply

    def make(self, stream: str) -> None:
        """Make an empty stream with a consumer, in place of the one of that name."""
        self.ask(f"STREAM.DELETE.{stream}")
        made = self.ask(f"STREAM.CREATE.{stream}", name=stream, subjects=[stream], storage="file")
        policy = {"ack_policy": "explicit", "deliver_policy": "all", "max_ack_pending": -1}
        added = self.ask(
            f"CONSUMER.DURABLE.CREATE.{stream}.{CONSUMER}",
            stream_name=stream,
            config={"durable_name": CONSUMER, **policy},
        )
        if "error" in made or "error" in added:
            raise WrongReply(f"{made}, {added}")

    def run(self, scripts: Sequence[Script]) -> float:
        """Run each script on a connection with the inbox of its number; return the seconds."""
        if not self._lines:
            self._lines = _connections(self.port)
        return run_on(self._lines[: len(scripts)], scripts)


def _connections(port: int) -> list[socket.socket]:
    """Open a connection for each client, with an inbox of its number.

    The server pings a new connection once, after two seconds: that is awaited.
    """
    lines = [connect(port) for _ in range(CLIENTS)]
    for number, line in enumerate(lines):
        line.sendall(_hello(_inbox(number)))
    for line in lines:
        seen = b""
        while not seen.endswith(b"\r\nPING\r\n"):
            received = line.recv(1 << 16)
            if not received:
                raise EOFError("the server has closed a connection")
            seen += received
        line.sendall(b"PONG\r\n")
    return lines


@contextmanager
def nats_server(folder: Path, durability: str) -> Iterator[Nats]:
    """Run a nats-server with its streams in ``folder``."""
    program, port = nats_program(), free_port()
    assert program is not None
    folder.mkdir(parents=True)
    settings = _CONFIGURATION.format(
        port=port, folder=json.dumps(str(folder)), synced=json.dumps(SYNCED[durability])
    )
    (folder / "nats.conf").write_text(settings)
    command = [program, "-c", str(folder / "nats.conf")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_up(port, server)
        with closing(Nats(port, server.pid)) as nats:
            yield nats
    finally:
        server.kill()
        server.wait()


def _wait_until_up(port: int, server: "subprocess.Popen[bytes]") -> None:
    """Wait until a server accepts connections. Raises PeerMissing if it ends."""
    for _ in range(20 * START_S_MAX):
        try:
            connect(port).close()
            return
        except ConnectionRefusedError:
            try:
                server.wait(0.05)
                break
            except subprocess.TimeoutExpired:
                continue
    raise PeerMissing(f"{server.args!s:.60} did not start")


def nats_program() -> str | None:
    """Return the installed nats-server, of PyPI or of the system."""
    return shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
        "nats-server"
    )


def _inbox(number: int) -> str:
    return f"inbox.{number}"


def _hello(inbox: str) -> bytes:
    options = json.dumps({"verbose": False, "pedantic": False})
    return f"CONNECT {options}\r\nSUB {inbox} 1\r\n".encode()


def _publish(subject: str, payload: bytes, inbox: str) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox.encode(), len(payload), payload)


# --- what is compared ---------------------------------------------------------------------------


def _adds(count: int, batch: int) -> Script:
    """Add entries to one stream of kvstream, ``batch`` at once."""
    add = framed("XADD", KEY, "*", *ENTRY) * batch
    for _ in range(0, count, batch):
        reply = yield add, 2 * batch
        if reply.count(b"$") != batch:
            raise WrongReply(repr(reply[:200]))


def _publications(number: int, subject: str, count: int, batch: int) -> Script:
    """Publish messages to a stream of NATS, ``batch`` at once."""
    publish = _publish(subject, PAYLOAD, _inbox(number)) * batch
    for _ in range(0, count, batch):
        reply = yield publish, 2 * batch
        if reply.count(b'"seq":') != batch:
            raise WrongReply(repr(reply[:200]))


def _nats_cycles(number: int, subject: str, count: int, batch: int) -> Script:
    """Publish ``batch`` messages, read them one by one, acknowledge them one by one; repeat."""
    inbox = _inbox(number)
    publish = _publish(subject, PAYLOAD, inbox) * batch
    read = _publish(f"$JS.API.CONSUMER.MSG.NEXT.{subject}.{CONSUMER}", b"1", inbox) * batch
    for _ in range(0, count, batch):
        reply = yield publish, 2 * batch
        if reply.count(b'"seq":') != batch:
            raise WrongReply(repr(reply[:200]))
        reply = yield read, 2 * batch
        acks = _ACK.findall(reply)
        if len(acks) != batch or reply.count(PAYLOAD) != batch:
            raise WrongReply(repr(reply[:200]))
        reply = yield b"".join(_publish(ack.decode(), b"+ACK", inbox) for ack in acks), 2 * batch
        if reply.count(b"MSG") != batch:
            raise WrongReply(repr(reply[:200]))


def _added(client: Redis, count: int, batch: int) -> float:
    each = count // CLIENTS
    return run_scripts(port_of(client), [_adds(each, batch) for _ in range(CLIENTS)])


def _published(nats: Nats, count: int, batch: int) -> float:
    each = count // CLIENTS
    return nats.run([_publications(number, KEY, each, batch) for number in range(CLIENTS)])


def _cycled(client: Redis, count: int, batch: int) -> float:
    scripts = [cycles(queue(number), count // QUEUES, batch) for number in range(QUEUES)]
    return run_scripts(port_of(client), scripts)


def _nats_cycled(nats: Nats, count: int, batch: int) -> float:
    each = count // QUEUES
    return nats.run([_nats_cycles(n, queue(n), each, batch) for n in range(QUEUES)])


def _check(nats: Nats, streams: Sequence[str], count: int, *, read: bool) -> None:
    """Raise WrongReply unless the streams have ``count`` messages, acknowledged if ``read``."""
    for stream in streams:
        state = nats.ask(f"STREAM.INFO.{stream}")["state"]
        group = nats.ask(f"CONSUMER.INFO.{stream}.{CONSUMER}")
        left = group["num_ack_pending"] + group["num_pending"] if read else 0
        if state["messages"] != count // len(streams) or left:
            raise WrongReply(f"{stream} has {state} and {group}")


@dataclass(frozen=True, slots=True)
class Work:
    """What both servers do, a batch of requests at once."""

    key: str
    title: str
    entries: Callable[[Sizes], int]
    clients: int
    """Each does an equal part of the entries."""
    streams: Sequence[str]
    ours: Callable[[Redis, int, int], float]
    theirs: Callable[[Nats, int, int], float]
    reads: bool = False

    def prepare(self, client: Redis, nats: Nats, count: int) -> None:
        client.flushall()
        if self.reads:
            Cycle().prepare(client, count)
        for stream in self.streams:
            nats.make(stream)

    def check(self, client: Any, nats: Nats, count: int) -> None:
        if self.reads:
            Cycle().check(client, count)
        elif client.xlen(KEY) != count:
            raise WrongReply(f"{client.xlen(KEY)} of {count} entries")
        _check(nats, self.streams, count, read=self.reads)


_QUEUES = [queue(number) for number in range(QUEUES)]
WORKS = (
    Work(
        "add",
        f"{CLIENTS} clients add",
        lambda sizes: sizes.requests,
        CLIENTS,
        [KEY],
        _added,
        _published,
    ),
    Work(
        "cycle",
        f"{QUEUES} clients add, read 1, acknowledge",
        lambda sizes: sizes.cycles,
        QUEUES,
        _QUEUES,
        _cycled,
        _nats_cycled,
        reads=True,
    ),
)


def _compare(
    row: Comparison, work: Work, batch: int, client: Redis, nats: Nats, rounds: int
) -> None:
    """Run the rounds of a row on both servers, one after the other."""
    for number in range(rounds):
        work.prepare(client, nats, row.count)

        def ours() -> None:
            before = processor_seconds(client)
            row.seconds.append(work.ours(client, row.count, batch))
            row.processor.append(processor_seconds(client) - before)

        def theirs() -> None:
            before = process_seconds(nats.pid)
            row.peer_seconds.append(work.theirs(nats, row.count, batch))
            row.peer_processor.append(process_seconds(nats.pid) - before)

        for side in (ours, theirs) if number % 2 else (theirs, ours):
            side()
        work.check(client, nats, row.count)


def run_nats(sizes: Sizes, folder: Path, log: Log) -> Iterator[Comparison]:
    """Run each work on both servers by turns; yield nothing if nats-server is not installed."""
    if nats_program() is None:
        log("NATS: nats-server is not installed")
        return
    for durability, synced in SYNCED.items():
        with (
            kvstream_server(folder / f"beside-nats-{durability}", durability) as client,
            nats_server(folder / f"nats-{durability}", durability) as nats,
        ):
            for work in WORKS:
                for batch, size in BATCHES.items():
                    title = f"`{durability}`, NATS {synced}: {work.title}, {size}"
                    log(title)
                    entries = work.entries(sizes) * (1 if batch == 1 else 3)
                    share = entries // (ALWAYS_DIVISOR if durability == "always" else 1)
                    each = max(share // work.clients // BATCH, 1) * BATCH
                    key = f"nats-{durability}-{work.key}-{batch}"
                    row = Comparison(key, title, 0, each * work.clients)
                    _compare(row, work, batch, client, nats, sizes.command_rounds)
                    yield row
