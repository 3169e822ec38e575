"""The end of ``kvstream serve``: graceful at the first signal, immediate at the second."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvstream import Store
from kvstream.types.options import SHUTDOWN_TIMEOUT_S
from tests import forking
from tests.cli.program import ENVIRONMENT
from tests.patience import PATIENCE_S, until, worked_s
from tests.server.asking import Asker
from tests.server.talking import request


class Serving:
    """A server as a process."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self.directory = directory
        self.process = forking.start(
            [
                *(sys.executable, "-m", "kvstream", "serve", "--port", "0"),
                *("--dir", str(directory), *arguments),
            ],
            env={**os.environ, **ENVIRONMENT, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        found = re.search(r":(\d+)$", self.process.stdout.readline().strip())
        assert found is not None
        self.port = int(found[1])

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the errors."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def rest_of(asker: Asker) -> list[Any]:
    """Return all replies until the connection ends."""
    replies = []
    with suppress(EOFError, ConnectionResetError):
        while True:
            replies.append(asker.read())
    return replies


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


def request_much(asker: Asker, server: Serving) -> None:
    """Request more than a socket buffers, and return once the server has read all requests."""
    asker.send_bytes(request("GET", "k") * 4)
    with Asker(server.port) as other:
        until(lambda: b"cmdstat_get:calls=" in other.ask("INFO commandstats"))


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Serving]]:
    """Kill servers at the end of the test if they have not ended."""
    servers: list[Serving] = []
    yield servers
    for server in servers:
        if server.process.returncode is None:
            server.kill()


def start(started: list[Serving], tmp_path: Path, *arguments: str, **environment: str) -> Serving:
    server = Serving(tmp_path / "store", *arguments, **environment)
    started.append(server)
    return server


@pytest.mark.parametrize("durability", ["always", "everysec"])
def test_received_requests_are_answered_and_durable(
    started: list[Serving], tmp_path: Path, durability: str
) -> None:
    server = start(started, tmp_path, "--durability", durability)
    with Asker(server.port) as asker:
        asker.ask("PING")
        for number in range(1, 5001):
            asker.send("XADD", "s", f"{number}-1", "f", "v" * 100)
        server.signal()
        answered = rest_of(asker)
    assert server.end() == (0, "")
    with Store.open(tmp_path / "store") as store:
        kept = [str(entry.id).encode() for entry in store.stream("s").range()]
        assert kept[: len(answered)] == answered
        assert store.check() == []


def test_no_client_is_admitted_while_the_last_replies_are_read(
    started: list[Serving], tmp_path: Path
) -> None:
    server = start(started, tmp_path)
    with Asker(server.port) as asker:
        asker.ask("SET", "k", b"v" * (8 << 20))
        request_much(asker, server)
        server.signal()
        until(lambda: is_refused(server.port))
        assert [len(asker.read()) for _ in range(4)] == [8 << 20] * 4
        with pytest.raises(EOFError):
            asker.read()
    assert server.end() == (0, "")


def test_a_client_that_does_not_read_delays_others_only_briefly(
    started: list[Serving], tmp_path: Path
) -> None:
    server = start(started, tmp_path, "--shutdown-timeout", "1")
    with Asker(server.port) as asker:
        asker.ask("SET", "k", b"v" * (8 << 20))
        request_much(asker, server)
        began = time.monotonic()
        server.signal()
        assert server.end() == (0, "")
        assert 0.8 < time.monotonic() - began < SHUTDOWN_TIMEOUT_S


def test_a_cancelled_wait_ends_and_consumes_no_entry(
    started: list[Serving], tmp_path: Path
) -> None:
    server = start(started, tmp_path)
    with Asker(server.port) as waiting, Asker(server.port) as writing:
        writing.ask("XGROUP CREATE s g $ MKSTREAM")
        waiting.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
        while b"blocked_clients:1" not in writing.ask("INFO clients"):
            time.sleep(0.01)
        server.signal()
        with pytest.raises((EOFError, ConnectionResetError)):
            waiting.read()
    assert server.end() == (0, "")
    with Store.open(tmp_path / "store") as store:
        assert store.stream("s").group("g").pending().count == 0


def test_a_running_save_is_completed_first(started: list[Serving], tmp_path: Path) -> None:
    server = start(started, tmp_path, "--checkpoint-dir", str(tmp_path / "kept"))
    with Asker(server.port) as asker:
        asker.ask("XADD s 1-1 f v")
        asker.send("SAVE")
        asker.send("XLEN", "s")
        server.signal()
        replies = rest_of(asker)
    assert server.end() == (0, "")
    assert replies in ([], [b"OK"], [b"OK", 1])
    for checkpoint in (tmp_path / "kept").glob("checkpoint-*"):
        with Store.open(checkpoint, read_only=True) as store:
            assert len(store.stream("s")) == 1


def test_shutdown_is_graceful_too(started: list[Serving], tmp_path: Path) -> None:
    server = start(started, tmp_path)
    with Asker(server.port) as asker:
        asker.ask("XADD s 1-1 f v")
        asker.send("SHUTDOWN")
        with pytest.raises((EOFError, ConnectionResetError)):
            asker.read()
    assert server.end() == (0, "")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once_without_losing_acknowledged_writes(
    started: list[Serving], tmp_path: Path, second: signal.Signals
) -> None:
    server = start(started, tmp_path, "--shutdown-timeout", "60")
    with Asker(server.port) as asker:
        asker.ask("XADD s 1-1 f v")
        asker.ask("SET", "k", b"v" * (8 << 20))
        request_much(asker, server)
        server.signal()
        until(lambda: is_refused(server.port))  # so the first signal has arrived
        assert server.process.poll() is None  # it waits for the client to read
        server.signal(second)
        code, errors = server.end()
        assert code == 1
        assert errors.endswith(" WARNING server.serving: ends at once: asked a second time\n")
        assert errors.count("\n") == 1
    with Store.open(tmp_path / "store") as store:
        assert len(store.stream("s")) == 1
        assert store.check() == []


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_script_that_looks_at_no_clock(
    started: list[Serving], tmp_path: Path, second: signal.Signals
) -> None:
    """One call of string.find takes hours here, and Python runs no signal handler meanwhile."""
    server = start(started, tmp_path)
    endless = "return string.find(('a'):rep(60), ('a?'):rep(60) .. ('a'):rep(60))"
    with Asker(server.port) as asker, Asker(server.port) as other:
        asker.ask("XADD s 1-1 f v")
        asker.send("EVAL", f"redis.call('SET', KEYS[1], 'v'); {endless}", "1", "k")
        other.send("PING")
        spent = worked_s(server.process.pid)
        until(lambda: worked_s(server.process.pid) > spent + 0.1)  # the script runs
        server.signal()
        assert server.process.poll() is None
        until(lambda: _signals_are_read(server.process.pid))
        server.signal(second)
        code, errors = server.end()
    if code == 1:
        assert errors.endswith(" WARNING server.serving: ends at once: asked a second time\n")
    else:  # it came before the server had read the first one
        assert (code, second) == (-signal.SIGTERM, signal.SIGTERM)
    with Store.open(tmp_path / "store") as store:
        assert len(store.stream("s")) == 1
        assert not store.exists("k")
        assert store.check() == []


def test_two_signals_at_once_end_an_idle_server_without_damage(
    started: list[Serving], tmp_path: Path
) -> None:
    """Whether it has read the first one when the second one comes, is a matter of time."""
    server = start(started, tmp_path)
    with Asker(server.port) as asker:
        asker.ask("XADD s 1-1 f v")
    server.signal()
    server.signal()
    assert server.end()[0] in (0, 1, -signal.SIGTERM)
    with Store.open(tmp_path / "store") as store:
        assert len(store.stream("s")) == 1
        assert store.check() == []


SIGNALLED_LATE = """
import atexit, os, signal, sys
from kvstream.cli import main

@atexit.register
def send():
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    print("sent", flush=True)

main(["serve", "--port", "0", "--dir", sys.argv[1]], prog_name="kvstream")
"""
"""A server that gets signals while its process ends: Python runs the first of such hooks last."""


def test_signals_after_an_end_in_order_do_not_change_the_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SIGNALLED_LATE, str(tmp_path / "store")]
    env = {**os.environ, **ENVIRONMENT}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert "serves" in process.stdout.readline()
        process.terminate()
        assert process.communicate(timeout=PATIENCE_S)[0].endswith("sent\n")
        assert process.returncode == 0


HELD = """
import asyncio, re, sys
from pathlib import Path
from kvstream.server.options import ServerOptions
from kvstream.server.serving import run
from kvstream.types.options import StoreOptions

def hold(_):
    print("serves", flush=True)
    calls = {"all": (sum, range(10**18)), "nearly all": (re.match, "(a+)+$", "a" * 60 + "b")}
    asyncio.get_running_loop().call_soon(*calls[sys.argv[2]])

run(Path(sys.argv[1]), StoreOptions(), ServerOptions(port=0, loglevel="warning"), hold)
"""
"""A server whose loop is in a call that holds the interpreter for years, as a hanging disk does.

A regular expression lets go of it to handle a signal, and at no other time.
"""


@pytest.mark.parametrize(
    ("held", "signals"),
    [
        ("all", (signal.SIGTERM, signal.SIGTERM)),
        ("all", (signal.SIGINT, signal.SIGINT)),
        ("all", (signal.SIGTERM, signal.SIGINT, signal.SIGTERM)),
        ("nearly all", (signal.SIGTERM, signal.SIGTERM)),
    ],
)
def test_a_call_that_holds_the_interpreter_does_not_keep_the_process(
    tmp_path: Path, held: str, signals: tuple[signal.Signals, ...]
) -> None:
    command = [sys.executable, "-c", HELD, str(tmp_path / "store"), held]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "serves\n"
        spent = worked_s(process.pid)
        until(lambda: worked_s(process.pid) > spent + 0.1)  # the call runs
        for number in signals:
            assert process.poll() is None
            process.send_signal(number)
            until(lambda: process.poll() is not None or _signals_are_read(process.pid))
        assert process.wait(PATIENCE_S) in (-signals[-1], 1)
    with Store.open(tmp_path / "store") as store:
        assert store.check() == []


def _signals_are_read(pid: int) -> bool:
    """Return whether no signal to a process is pending."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = re.findall(r"^(?:Sig|Shd)Pnd:\s*(\w+)$", status, re.MULTILINE)
    return not any(int(mask, 16) for mask in pending)


# --- systemd ------------------------------------------------------------------------------------


@pytest.mark.parametrize("abstract", [False, True], ids=["file", "abstract"])
def test_systemd_is_notified_of_start_and_stop(
    started: list[Serving], tmp_path: Path, abstract: bool
) -> None:
    name = f"@kvstream-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0", 1) if abstract else name)
        systemd.settimeout(PATIENCE_S)
        server = start(started, tmp_path, NOTIFY_SOCKET=name)
        assert systemd.recv(100) == b"READY=1"
        with Asker(server.port) as asker:
            assert asker.ask("PING") == b"PONG"
        server.signal()
        assert systemd.recv(100) == b"STOPPING=1"
        assert server.end() == (0, "")


def test_it_serves_although_the_socket_of_systemd_is_gone(
    started: list[Serving], tmp_path: Path
) -> None:
    server = start(started, tmp_path, NOTIFY_SOCKET=str(tmp_path / "gone"))
    with Asker(server.port) as asker:
        assert asker.ask("PING") == b"PONG"
    server.signal()
    assert server.end() == (0, "")
