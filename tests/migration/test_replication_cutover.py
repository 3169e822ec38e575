"""A live cut-over while producers and consumers work."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from kvstream import Store
from tests import forking
from tests.cli.program import ENVIRONMENT
from tests.migration.sources import Source, needs_redis
from tests.migration.states import asking, state_of
from tests.migration.test_replication_applying import play
from tests.migration.test_replication_following import fill
from tests.patience import PATIENCE_S, tries, until
from tests.ports import free_port
from tests.server.asking import Asker
from tests.serving import ServerProcess

pytestmark = needs_redis


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    server = Source(tmp_path / "redis", "--save", "")
    yield server
    server.stop()


MIGRATE = [*(sys.executable, "-m", "kvstream"), *("migrate", "run", "--allow-loss", "other-types")]
"""The servers have keys of other types, too."""


def migrate(source: str, target: object, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run ``kvstream migrate run`` to its end."""
    return forking.run(
        [*MIGRATE, source, str(target), *options],
        env={**os.environ, **ENVIRONMENT},
        text=True,
        timeout=120,
    )


# --- clients that go on at another address ------------------------------------------------------


class Address:
    """The address of the server in the configuration of an application."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.callers: list[Caller] = []

    def move(self, port: int) -> None:
        """Send all clients to another server."""
        self.port = port
        for caller in self.callers:
            caller.hang_up()


class Caller:
    """A client that repeats unanswered requests at the current address of its server."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._asker: Asker | None = None
        address.callers.append(self)

    def ask(self, *words: str) -> Any:
        while True:
            with suppress(EOFError, OSError):
                if self._asker is None:
                    self._asker = Asker(self._address.port)
                return self._asker.ask(*words)
            self.close()
            time.sleep(0.02)

    def close(self) -> None:
        if self._asker is not None:
            self._asker.close()
            self._asker = None

    def hang_up(self) -> None:
        asker = self._asker
        if asker is not None:
            with suppress(OSError):
                asker._socket.shutdown(socket.SHUT_RDWR)


class Application:
    """Producers, and consumers of one group, that record all acknowledgements."""

    def __init__(self, address: Address, producers: int = 2, consumers: int = 3) -> None:
        self.added: list[bytes] = []
        self.acknowledged: Counter[bytes] = Counter()
        self._address = address
        self._lock = threading.Lock()
        self._producing = self._consuming = True
        Caller(address).ask("XGROUP", "CREATE", "jobs", "workers", "0", "MKSTREAM")
        self._producers = [self._start(self._produce, number) for number in range(producers)]
        self._consumers = [self._start(self._consume, number) for number in range(consumers)]

    def _start(self, work: Callable[[int], None], number: int) -> threading.Thread:
        thread = threading.Thread(target=work, args=(number,), daemon=True)
        thread.start()
        return thread

    def _produce(self, number: int) -> None:
        caller = Caller(self._address)
        at = 0
        while self._producing:
            at += 1
            eid = caller.ask("XADD", "jobs", "*", "producer", str(number), "n", str(at))
            with self._lock:
                self.added.append(eid)
            time.sleep(0.003)

    def _consume(self, number: int) -> None:
        caller = Caller(self._address)
        group = ("XREADGROUP", "GROUP", "workers", f"worker-{number}", "COUNT", "4")
        while self._consuming:
            reply = caller.ask(*group, "BLOCK", "50", "STREAMS", "jobs", ">")
            if isinstance(reply, str):  # the group does not exist yet
                time.sleep(0.02)
                continue
            self._work(caller, reply)
            if number == 0:  # one consumer leaves entries pending, and finds them later
                self._work(caller, caller.ask(*group, "STREAMS", "jobs", "0"))

    def _work(self, caller: Caller, reply: Any) -> None:
        for eid, _ in reply[0][1] if reply else ():
            if int(eid.split(b"-")[1]) % 5 == 4:
                continue
            done = caller.ask("XACK", "jobs", "workers", eid.decode())
            with self._lock:
                self.acknowledged[eid] += done

    def finish(self, port: int) -> None:
        """Consume all entries, and stop all clients."""
        self._producing = False
        for thread in self._producers:
            thread.join(PATIENCE_S)
        time.sleep(0.5)
        self._consuming = False
        for thread in self._consumers:
            thread.join(PATIENCE_S)
        for caller in self._address.callers:
            caller.close()
        with Asker(port) as asker:
            asker.ask("XREADGROUP", "GROUP", "workers", "last", "STREAMS", "jobs", ">")
            while claimed := asker.ask("XAUTOCLAIM jobs workers last 0 - COUNT 1000 JUSTID")[1]:
                for eid in claimed:
                    self.acknowledged[eid] += asker.ask(b"XACK", b"jobs", b"workers", eid)
            assert asker.ask("XPENDING jobs workers")[0] == 0

    def verify(self, port: int) -> None:
        """Check that every acknowledged message exists, and that each message was consumed once."""
        with Asker(port) as asker:
            there = {eid for eid, _ in asker.ask("XRANGE jobs - +")}
        assert set(self.added) <= there
        assert self.acknowledged == Counter(there)


def test_producers_and_consumers_move_to_a_store_without_loss_or_duplicates(
    source: Source, tmp_path: Path
) -> None:
    fill(source, 500)
    address = Address(source.port)
    application = Application(address)
    done = migrate(source.url, tmp_path / "store", "--cutover", "--pause", "60s")
    assert done.returncode == 0, done.stderr
    before = len(application.added)
    server = ServerProcess(tmp_path / "store")
    try:
        address.move(server.port)
        until(lambda: len(application.added) > before + 100)
        application.finish(server.port)
        application.verify(server.port)
    finally:
        server.stop()


def test_producers_and_consumers_move_to_a_server_without_loss_or_duplicates(
    source: Source, tmp_path: Path
) -> None:
    fill(source, 500)
    server = ServerProcess(tmp_path / "store")
    try:
        address = Address(source.port)
        application = Application(address)
        url = f"redis://127.0.0.1:{server.port}"
        done = migrate(source.url, url, "--cutover", "--pause", "60s")
        assert done.returncode == 0, done.stderr
        before = len(application.added)
        address.move(server.port)
        until(lambda: len(application.added) > before + 100)
        application.finish(server.port)
        application.verify(server.port)
    finally:
        server.stop()


# --- what a cut-over leaves ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_store_also_has_the_state_that_is_not_replicated(
    source: Source, tmp_path: Path, seed: int
) -> None:
    fill(source, 100)
    play(source, seed)
    source.ask("XGROUP", "CREATE", "s", "late", "0", "MKSTREAM")
    following = forking.start(
        [
            *MIGRATE,
            *(source.url, str(tmp_path / "store"), "--follow"),
        ],
        env={**os.environ, **ENVIRONMENT},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stderr is not None
    while "following from" not in following.stderr.readline():
        assert following.poll() is None
    play(source, seed + 50)
    for _ in range(3):  # reads of pending entries, which are not replicated
        source.ask("XREADGROUP", "GROUP", "late", "c", "COUNT", 2, "STREAMS", "s", ">")
        source.ask("XREADGROUP", "GROUP", "late", "c", "STREAMS", "s", "0")
    following.kill()
    following.wait()
    following.stderr.close()
    done = migrate(source.url, tmp_path / "store", "--cutover", "--pause", "1s")
    assert done.returncode == 0, done.stderr
    with Store.open(tmp_path / "store") as store:
        ours, theirs = state_of(asking(store.engine)), state_of(source.ask)
        for shown, _ in (*ours.values(), *theirs.values()):
            if isinstance(shown, dict):
                for group in shown["groups"].values():
                    group["read"] = group["read"][0]  # later versions know more lags than 7.0
                    group["seen"] = {name: seen for name, (seen, _) in group["seen"].items()}
        assert ours == theirs
        assert store.keys("kvstream:*") == []
        assert store.check() == []


def test_the_source_accepts_writes_again_after_its_pause(source: Source, tmp_path: Path) -> None:
    fill(source, 10)
    for number, each in enumerate(tries()):
        done = migrate(source.url, tmp_path / f"store{number}", "--cutover", "--pause", "1s")
        assert done.returncode == 0, done.stderr
        began = time.monotonic()
        source.ask("XADD", "s", "*", "f", "v")
        took = time.monotonic() - began
        assert took < 10
        with each:
            assert took > 0.5  # the tool ended soon enough for some of the pause to be left


def test_a_source_that_cannot_be_paused_must_be_idle(source: Source, tmp_path: Path) -> None:
    fill(source, 10)
    source.ask("ACL", "SETUSER", "follower", "on", ">secret", "~*", "+@all", "-client|pause")
    url = f"redis://follower:secret@127.0.0.1:{source.port}"
    done = migrate(url, tmp_path / "store", "--cutover")
    assert done.returncode == 0, done.stderr
    assert "cannot be paused" in done.stderr
    assert "secret" not in done.stderr.replace("password in the", "")


def test_a_user_without_the_right_to_follow_gets_an_error(source: Source, tmp_path: Path) -> None:
    source.ask("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-psync")
    url = f"redis://reader:secret@127.0.0.1:{source.port}"
    done = migrate(url, tmp_path / "store", "--follow")
    assert done.returncode != 0
    assert "PSYNC" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_following_gracefully(source: Source, tmp_path: Path) -> None:
    fill(source, 10)
    following = forking.start(
        [
            *MIGRATE,
            *(source.url, str(tmp_path / "store"), "--follow"),
        ],
        env={**os.environ, **ENVIRONMENT},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stderr is not None
    while "following from" not in following.stderr.readline():
        assert following.poll() is None
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 0, errors
    assert "the same command continues there" in errors
    with Store.open(tmp_path / "store") as store:
        assert store.check() == []


def test_a_source_behind_tls_is_followed(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    port = free_port()
    source = Source(
        tmp_path / "redis",
        *("--save", "", "--tls-port", str(port), "--tls-auth-clients", "no"),
        *("--tls-ca-cert-file", str(tmp_path / "ca.pem")),
        *("--tls-cert-file", str(tmp_path / "server.pem")),
        *("--tls-key-file", str(tmp_path / "server.pem")),
    )
    try:
        fill(source, 10)
        url = f"rediss://localhost:{port}?ssl_ca_certs={tmp_path / 'ca.pem'}"
        done = migrate(url, tmp_path / "store", "--cutover", "--pause", "1s")
        assert done.returncode == 0, done.stderr
    finally:
        source.stop()


def test_the_next_run_completes_a_killed_cut_over(source: Source, tmp_path: Path) -> None:
    fill(source, 2000)
    leading = forking.start(
        [
            *MIGRATE,
            *(source.url, str(tmp_path / "store"), "--cutover"),
        ],
        env={**os.environ, **ENVIRONMENT},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert leading.stderr is not None
    while "copying the state" not in leading.stderr.readline():
        assert leading.poll() is None
    leading.kill()
    leading.communicate()
    source.ask("XADD", "s", "*", "f", "v")  # after the pause has ended by its timeout
    done = migrate(source.url, tmp_path / "store", "--cutover", "--pause", "60s")
    assert done.returncode == 0, done.stderr
    with Store.open(tmp_path / "store") as store:
        ours, theirs = state_of(asking(store.engine)), state_of(source.ask)
        assert ours.keys() == theirs.keys()
        assert all(
            shown["entries"] == theirs[name][0]["entries"]
            for name, (shown, _) in ours.items()
            if isinstance(shown, dict)
        )
        assert store.check() == []
