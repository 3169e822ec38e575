"""A kvstream server follows a source while it is killed, stopped and locked."""

import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trustme

from kvstream.errors import AccessDenied, ServerUnavailable, UnknownOutcome
from kvstream.migration import follow
from kvstream.migration.items import Selection
from kvstream.migration.journal import Phase, followers
from kvstream.migration.places import parse_place
from kvstream.migration.replication.following import Lag
from kvstream.migration.replication.protocol import Position, Received
from kvstream.migration.replication.targets import FollowingServer
from kvstream.migration.server import Server
from tests.migration.dropping import LateProxy
from tests.migration.sources import Source, needs_redis
from tests.migration.states import state_of, without
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.serving import ServerProcess

pytestmark = needs_redis


class Target:
    """A server on one port, restarted repeatedly on the same store."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.port = free_port()
        self._directory = directory
        self._options = ("--port", str(self.port), *options)
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self, *options: str) -> None:
        self.process = ServerProcess(self._directory, *self._options, *options)

    def end(self, how: str) -> None:
        self.process.kill() if how == "kill" else self.process.stop()


class Following:
    """A server that follows a source, in a thread of its own."""

    def __init__(self, source: str, target: str, state: Path) -> None:
        self.said: list[str] = []
        self.error: BaseException | None = None
        self.pair: Any = None
        self.state = state
        self._places = source, target
        self._over = False
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        def is_over(pair: Any) -> bool:
            self.pair = pair
            return self._over

        try:
            follow(*self._places, until=is_over, said=self.said.append, state=self.state)
        except BaseException as error:
            self.error = error

    def is_level(self) -> bool:
        assert self.error is None, (self.error, self.said)
        lag = None if self.pair is None else self.pair.lag()
        return lag is not None and lag[0] == 0

    def wait_for(self, text: str) -> None:
        until(lambda: self.error or any(text in line for line in self.said))

    @property
    def phase(self) -> Phase:
        [found] = followers(self.state)
        return found.phase

    def stop(self) -> None:
        self._over = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    server = Source(tmp_path / "redis", "--appendonly", "yes", "--save", "")
    yield server
    server.stop()


class Producer:
    """Writes commands that reveal each one that is skipped or repeated."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._over = threading.Event()
        self.number = 0
        source.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        client = self._source.connect()
        while not self._over.is_set():
            self.number += 1
            number = self.number
            with client.pipeline(transaction=number % 3 == 0) as pipeline:
                pipeline.execute_command("INCR", f"count:{number % 7}")
                pipeline.execute_command("APPEND", "text", f"{number},")
                pipeline.execute_command("XADD", "s", f"{number}-0", "n", number)
                pipeline.execute_command("SELECT", number % 2)
                words = ("GROUP", "g", "c", "COUNT", 2, "STREAMS", "s", ">")
                pipeline.execute_command("XREADGROUP", *words)
                pipeline.execute(raise_on_error=False)  # each group exists in one database only
            self._over.wait(0.002)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def _word(word: str | bytes | int) -> str | bytes:
    return str(word) if isinstance(word, int) else word


def compare(source: Source, target: Target) -> None:
    with target.process.asker() as asker:
        ours = state_of(lambda *words: asker.ask(*map(_word, words)))
    without(ours, "read", "seen")
    theirs = without(state_of(source.ask), "read", "seen")
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name] == value, name


def test_following_continues_after_the_target_is_killed_or_stopped(
    source: Source, tmp_path: Path
) -> None:
    target = Target(tmp_path / "store")
    producer = Producer(source)
    following = Following(source.url, target.url, tmp_path / "state")
    try:
        for how in ("kill", "stop", "kill"):
            began = producer.number
            until(lambda: following.error or producer.number > began + 300)  # noqa: B023
            until(lambda: following.is_level() or producer.number > began + 900)  # noqa: B023
            target.end(how)
            target.start()
        producer.stop()
        until(following.is_level)
        compare(source, target)
        assert sum("the target is away" in line for line in following.said) >= 3
        assert following.said.count("the source sends a snapshot") == 1
        source.kill()
        source.start()
        source.ask("INCR", "count:0")
        until(following.is_level)
        target.end("kill")
        target.start()
        until(following.is_level)
        compare(source, target)
    finally:
        producer.stop()
        following.stop()
        target.process.end()
    assert following.error is None


SOURCE = "redis://127.0.0.1:1"
REPLID = b"7" * 40


def increment(offset: int) -> tuple[list[Received], Position]:
    """Return the arguments of a commit of one command that must not run twice."""
    return [Received([b"INCR", b"n"], offset)], Position(REPLID, offset)


@pytest.fixture
def late(tmp_path: Path) -> Iterator[LateProxy]:
    process = ServerProcess(tmp_path / "store")
    proxy = LateProxy(process.port)
    yield proxy
    proxy.close()
    process.end()


@pytest.fixture
def server(late: LateProxy) -> Iterator[Server]:
    with closing(Server(parse_place(f"redis://127.0.0.1:{late.port}"))) as server:
        yield server


@pytest.fixture
def target(server: Server) -> Iterator[FollowingServer]:
    with closing(FollowingServer(server, SOURCE, Selection())) as target:
        target.begin()
        target.record_loaded(Position(REPLID, 0))
        target.commit(*increment(10))
        yield target


def test_a_position_is_reached_once_its_commands_are_done(
    late: LateProxy, target: FollowingServer
) -> None:
    late.holds = True
    with pytest.raises(UnknownOutcome):
        target.commit(*increment(20))
    assert target.journal.position.offset == 10
    late.deliver()
    target.recover()
    assert target.journal.position.offset == 20


@pytest.mark.parametrize("when", ["before the next commit", "after it"])
def test_a_transaction_that_arrives_late_does_not_run_twice(
    late: LateProxy, server: Server, target: FollowingServer, when: str
) -> None:
    late.holds = True
    with pytest.raises(UnknownOutcome):
        target.commit(*increment(20))
    target.recover()
    if when == "after it":
        target.commit(*increment(20))
        late.deliver()
    else:
        late.deliver()
        with pytest.raises(ServerUnavailable, match="arrived late"):
            target.commit(*increment(20))
    target.recover()
    assert target.journal.position.offset == 20
    target.commit(*increment(30))
    assert server.connection(0).ask("GET", "n") == b"3"


def test_a_new_history_of_a_source_restarts_the_lag() -> None:
    lag = Lag()
    lag.note(1000, 1.0)
    lag.note(10, 2.0)
    assert lag.behind(4, 5.0) == (6, 3.0)
    assert lag.behind(10, 5.0) == (0, 0.0)


def test_a_target_killed_while_it_loads_a_snapshot_is_loaded_again(
    source: Source, tmp_path: Path
) -> None:
    for number in range(1500):
        source.ask("XADD", f"s{number % 500}", f"{number + 1}-0", "n", number)
    target = Target(tmp_path / "store")
    following = Following(source.url, target.url, tmp_path / "state")
    try:
        following.wait_for("loading a snapshot")
        target.end("kill")
        following.wait_for("the target is away")
        target.start()
        until(following.is_level)
        compare(source, target)
    finally:
        following.stop()
        target.process.end()
    assert following.error is None


def test_an_absent_target_is_reported_and_awaited(source: Source, tmp_path: Path) -> None:
    source.ask("XADD", "s", "1-1", "n", 1)
    target = Target(tmp_path / "store")
    following = Following(source.url, target.url, tmp_path / "state")
    try:
        until(following.is_level)
        target.end("stop")
        source.ask("XADD", "s", "2-1", "n", 2)
        following.wait_for("the target is away")
        [line] = [line for line in following.said if "away" in line]
        assert str(target.port) in line or "does not answer" in line or "may or may not" in line
        assert "waiting until it is back" in line
        assert "every 5 s" in line
        until(lambda: following.phase is Phase.AWAITING)
        target.start()
        following.wait_for("the target is back, at offset")
        until(following.is_level)
        compare(source, target)
        target.end("stop")
        source.ask("XADD", "s", "3-1", "n", 3)
        until(lambda: sum("away" in line for line in following.said) == 2)
    finally:
        following.stop()  # during the wait
    assert following.error is None


def test_a_changed_password_of_the_target_ends_it(source: Source, tmp_path: Path) -> None:
    target = Target(tmp_path / "store")
    following = Following(source.url, target.url, tmp_path / "state")
    try:
        until(following.is_level)
        target.end("stop")
        target.start("--requirepass", "secret")
        source.ask("XADD", "s", "1-1", "n", 1)
        until(lambda: following.error)
        assert isinstance(following.error, AccessDenied)
    finally:
        following.stop()
        target.process.end()


def certificate(authority: trustme.CA, path: Path) -> list[str]:
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(path.with_suffix(".key"))
    issued.cert_chain_pems[0].write_to_path(path.with_suffix(".crt"))
    files = str(path.with_suffix(".crt")), str(path.with_suffix(".key"))
    return ["--tls-cert-file", files[0], "--tls-key-file", files[1]]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_certificate_that_is_no_longer_trusted_ends_it(tmp_path: Path, side: str) -> None:
    good, other, port = trustme.CA(), trustme.CA(), free_port()
    good.cert_pem.write_to_path(tmp_path / "ca.pem")
    reply = f"rediss://localhost:{port}?ssl_ca_certs={tmp_path / 'ca.pem'}"
    secured = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    before, after = certificate(good, tmp_path / "one"), certificate(other, tmp_path / "two")
    auth = ["--tls-ca-cert-file", str(tmp_path / "ca.pem")]
    is_source = side == "source"
    source = Source(tmp_path / "redis", *(secured + auth + before if is_source else []))
    target = Target(tmp_path / "store", *([] if is_source else secured + before))
    places = (reply, target.url) if is_source else (source.url, reply)
    following = Following(*places, tmp_path / "state")
    try:
        until(following.is_level)
        if is_source:
            source.kill()
            source.options = (*secured, *auth, *after)
            source.start()
        else:
            target.end("kill")
            target.start(*after)
            source.ask("XADD", "s", "1-1", "n", 1)
        until(lambda: following.error)
        assert isinstance(following.error, ServerUnavailable)
        assert "CERTIFICATE_VERIFY_FAILED" in str(following.error)
    finally:
        following.stop()
        target.process.process.send_signal(signal.SIGKILL)
        target.process.process.communicate()
        source.stop()
