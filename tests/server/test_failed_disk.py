"""A server with a failed disk: reads are served, and writes are refused with the reason."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import redis

from kvstream import Store
from tests import forking
from tests.cli.program import ENVIRONMENT
from tests.faultshim.disk import FaultyDisk
from tests.patience import PATIENCE_S, until
from tests.server.asking import Asker, Failure
from tests.serving import ServerProcess

LEVELS = ("always", "everysec", "no")
FAILURES = {
    "failed fsync": ("sync", errno.EIO),
    "failed write": ("write", errno.EIO),
    "full disk": ("write", errno.ENOSPC),
}
READS: dict[str, Any] = {
    "PING": b"PONG",
    "ECHO x": b"x",
    "XLEN s": 1,
    "XRANGE s 1-1 1-1": [[b"1-1", [b"f", b"v"]]],
    "XREAD COUNT 1 STREAMS s 0": [[b"s", [[b"1-1", [b"f", b"v"]]]]],
    "XREAD BLOCK 10 STREAMS s 9-9": None,
    "XPENDING s g": [0, None, None, None],
    "GET k": b"v",
    "GET expired": None,
    "TTL k": -1,
    "EXISTS k expired": 1,
    "TYPE s": b"stream",
    "AUTH password": Failure(
        "ERR AUTH <password> called without any password configured for the default user. Are you "
        "sure your configuration is correct?"
    ),
    "CONFIG SET slowlog-max-len 10": b"OK",
    "CONFIG GET slowlog-max-len": [b"slowlog-max-len", b"10"],
    "CLIENT GETNAME": None,
    "SELECT 0": b"OK",
    "WATCH k": b"OK",
    "MULTI": b"OK",
    "DISCARD": b"OK",
    "SLOWLOG LEN": int,
    "LASTSAVE": int,
    "DBSIZE": int,
    "DUMP s": bytes,
    "SCAN 0": list,
    "XINFO STREAM s FULL": list,
    "INFO": bytes,
    "CLIENT LIST": bytes,
    "HELLO 2": list,
    "COMMAND COUNT": int,
}
"""Commands served from a failed disk, with their replies; a type accepts any value."""
WRITES = (
    "XADD s * f v",
    "XADD s MAXLEN 1 * f v",
    "XDEL s 1-1",
    "XTRIM s MAXLEN 0",
    "XREADGROUP GROUP g c STREAMS s >",
    "XGROUP CREATE s other $",
    "XGROUP SETID s g 0",
    "SET k w",
    "DEL k",
    "INCR n",
    "EXPIRE k 100",
    "RENAME k l",
)


class Crippled:
    """A server that holds a few keys, on a disk that can be made to fail."""

    def __init__(self, disk: FaultyDisk, *arguments: str) -> None:
        self.disk = disk
        self.server = ServerProcess(disk.root / "store", *arguments, environment=disk.environment())
        with self.asker() as asker:
            for words in (
                "DEBUG SET-ACTIVE-EXPIRE 0",  # no background write meets the failure first
                *("XADD s 1-1 f v", "XGROUP CREATE s g 0", "SET k v", "SET expired v PX 1"),
            ):
                assert not isinstance(asker.ask(words), Failure)

    def asker(self) -> Asker:
        return Asker(self.server.port)

    def fail(self, kind: str) -> Any:
        """Make the disk fail; return the reply to the first write."""
        call, number = FAILURES[kind]
        self.disk.fail(call, number, ".log")
        with self.asker() as asker:
            reply = asker.ask("XADD met 1-1 f v")
            asker.ask("WAITAOF 1 0 0")  # with everysec and no a client must request the fsync
            until(lambda: b"aof_last_write_status:err" in asker.ask("INFO persistence"))
        return reply

    def end(self, how: int = signal.SIGTERM) -> tuple[int, str]:
        """End the server; return its exit code and its log."""
        self.server.process.send_signal(how)
        errors = self.server.process.communicate(timeout=PATIENCE_S)[1]
        return self.server.process.returncode, errors


@pytest.fixture
def crippled(faulty_disk: FaultyDisk, request: pytest.FixtureRequest) -> Iterator[Crippled]:
    """A server of a durability; ``always`` by default."""
    started = Crippled(faulty_disk, "--durability", getattr(request, "param", "always"))
    yield started
    started.server.process.kill()
    started.server.process.communicate()


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("crippled", LEVELS, indirect=True)
def test_reads_continue_and_writes_are_refused(crippled: Crippled, kind: str) -> None:
    found = crippled.fail(kind)
    if kind == "failed write":  # the write may be stored or not
        assert found.startswith("ERR IO error: While appending to file")
    with crippled.asker() as asker:
        for words, expected in READS.items():
            reply = asker.ask(words)
            if isinstance(expected, type):
                assert isinstance(reply, expected), (words, reply)
            else:
                assert reply == expected, words
        for words in WRITES:
            reply = asker.ask(words)
            assert isinstance(reply, Failure), (words, reply)
            assert reply.startswith("MISCONF "), (words, reply)
        for words in ("MULTI", "XLEN s", "GET k", "PING"):
            asker.ask(words)
        assert asker.ask("EXEC") == [1, b"v", b"PONG"]
        asker.ask("MULTI")
        asker.ask("XADD s * f v")
        reply = asker.ask("EXEC")
        assert reply.startswith(("EXECABORT ", "MISCONF ")), reply
        assert asker.ask("XLEN s") == 1
        assert asker.ask("XPENDING s g") == [0, None, None, None]


def test_the_write_that_meets_a_failed_fsync_has_an_unknown_outcome(crippled: Crippled) -> None:
    with crippled.asker() as waiting, crippled.asker() as other:
        waiting.send("XREAD", "BLOCK", "0", "STREAMS", "met", "$")
        other.send("XREAD", "BLOCK", "100", "STREAMS", "nothing", "$")
        until(lambda: b"blocked_clients:2" in _info(crippled, "clients"))
        reply = crippled.fail("failed fsync")
        assert reply.startswith("ERR the log cannot be made durable: ")
        assert waiting.read().startswith("ERR the log cannot be made durable: ")
        assert other.read() is None
    with crippled.asker() as asker:  # reads show the state in memory, as it may be on the disk
        assert asker.ask("XLEN met") == 1
        assert asker.ask("XADD met * f v").startswith("MISCONF the disk failed")
        asker.ask("MULTI")
        assert asker.ask("SET k w").startswith("MISCONF ")
        assert asker.ask("EXEC").startswith("EXECABORT ")
        for level in ("everysec", "always"):  # jobs end, too
            assert asker.ask(f"CONFIG SET appendfsync {level}") == b"OK"
            for words in ("WAITAOF 1 0 0", "DEBUG RELOAD", "SAVE"):
                assert isinstance(asker.ask(words), Failure)
            assert asker.ask("XLEN s") == 1


def test_a_group_gets_no_entries_that_a_full_disk_refuses(crippled: Crippled) -> None:
    """Replies with entries are made before the commit: if it fails, they must not be sent."""
    crippled.fail("full disk")
    with crippled.asker() as asker:
        for _ in range(2):
            reply = asker.ask("XREADGROUP GROUP g c STREAMS s >")
            assert isinstance(reply, Failure), reply
        crippled.disk.heal()
        until(lambda: not isinstance(asker.ask("SET k w"), Failure))
        assert asker.ask("XREADGROUP GROUP g c STREAMS s >") == [[b"s", [[b"1-1", [b"f", b"v"]]]]]


def _info(crippled: Crippled, section: str) -> bytes:
    with crippled.asker() as asker:
        found: bytes = asker.ask("INFO", section)
    return found


@pytest.mark.parametrize(("kind", "code"), [("failed fsync", 1), ("full disk", 0)])
def test_the_exit_code_shows_whether_all_writes_are_durable(
    crippled: Crippled, kind: str, code: int
) -> None:
    crippled.fail(kind)
    with crippled.asker() as asker:
        asker.send("SHUTDOWN")
        assert asker.is_closed()
    assert crippled.server.process.wait(PATIENCE_S) == code
    errors = crippled.server.process.communicate()[1]
    assert ("the log cannot be made durable" in errors) is (code == 1)


def test_a_server_ends_properly_after_a_full_disk(crippled: Crippled) -> None:
    crippled.fail("full disk")
    ended, found = crippled.end()
    assert ended == 0
    assert "the log cannot be made durable" not in found


def test_all_entries_can_be_read_after_a_failed_fsync(crippled: Crippled, tmp_path: Path) -> None:
    with crippled.asker() as asker:
        for number in range(2, 300):
            asker.ask(f"XADD s {number}-1 f v")
        asker.ask("XREADGROUP GROUP g c COUNT 7 STREAMS s >")
    crippled.fail("failed fsync")
    url = f"redis://127.0.0.1:{crippled.server.port}"
    command = [sys.executable, "-m", "kvstream", "migrate", "run", url, str(tmp_path / "saved")]
    moved = forking.run(
        command,
        env={**os.environ, **ENVIRONMENT},
        text=True,
        timeout=PATIENCE_S,
    )
    assert moved.returncode == 0, moved.stderr
    with Store.open(tmp_path / "saved") as store:
        assert len(store.stream("s")) == 299
        assert store.stream("s").group("g").pending().count == 7
    with redis.Redis(port=crippled.server.port, decode_responses=True) as client:
        copied = {key: client.xrange(key) for key in client.scan_iter(_type="stream")}
    assert len(copied["s"]) == 299


IN_PROCESS = """
import errno, sys
from pathlib import Path
import redis
import kvstream
from tests.faultshim.disk import FaultyDisk
from tests.patience import until

library, root, notes, level = sys.argv[1:]
disk = FaultyDisk(Path(library), Path(root), Path(notes))
store = kvstream.Store.open(Path(root) / "store", durability=level)
client = kvstream.connect(store, decode_responses=True)
client.xadd("s", {"f": "v"}, id="1-1")
client.xgroup_create("s", "g", 0)
client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)  # nothing else meets the failure first
client.set("expired", "v", px=1)
disk.fail("sync", errno.EIO, ".log")
try:
    client.xadd("s", {"f": "v"}, id="2-1")
    store.sync()
except (redis.ResponseError, kvstream.UnknownOutcome) as error:
    assert "the log cannot be made durable" in str(error), error
else:
    raise AssertionError("durable")
assert client.ping()
assert client.info("persistence")["aof_last_write_status"] == "err"
assert client.xlen("s") == len(store.stream("s")) == 2
assert client.get("expired") is None and not store.exists("expired")
assert client.xread({"s": "2-1"}, block=10) == []
assert store.stream("s").read(after="2-1", block=0.01) == []
for write in ("XADD s * f v", "XREADGROUP GROUP g c STREAMS s >"):
    try:
        client.execute_command(*write.split())
    except redis.ResponseError as error:
        assert str(error).startswith("MISCONF the disk failed"), error
    else:
        raise AssertionError("written")
try:
    store.stream("s").add({"f": "v"})
except kvstream.StoreReadOnly:
    pass
else:
    raise AssertionError("written")
with client.pipeline() as pipe:
    assert pipe.xlen("s").ping().execute() == [2, True]
client.close()
store.close()
print("done")
"""


@pytest.mark.parametrize("level", ["always", "everysec"])
def test_reads_continue_in_the_process_of_the_store(faulty_disk: FaultyDisk, level: str) -> None:
    ended = forking.run(
        [
            sys.executable,
            "-c",
            IN_PROCESS,
            *map(str, (faulty_disk.library, faulty_disk.root, faulty_disk.notes)),
            level,
        ],
        env=faulty_disk.environment(),
        cwd=Path(__file__).parents[2],
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.stdout == "done\n", ended.stderr


def test_health_and_metrics_report_a_failed_disk(faulty_disk: FaultyDisk) -> None:
    pytest.importorskip("prometheus_client")
    started = Crippled(faulty_disk, "--durability", "always", "--metrics-port", "0")
    try:
        with started.asker() as asker:
            port = int(asker.ask("CONFIG GET metrics-port")[1])
        assert _page(port, "healthz")[0] == 200
        started.fail("failed fsync")
        status, body = _page(port, "healthz")
        assert status == 503
        assert "the store is read-only" in body
        assert 'kvstream_store_state{state="failed"} 1' in _page(port, "metrics")[1]
    finally:
        started.server.process.kill()
        started.server.process.communicate()


def _page(port: int, name: str) -> tuple[int, str]:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", f"/{name}")
    response = connection.getresponse()
    try:
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_the_store_is_sound_after_the_next_start(crippled: Crippled) -> None:
    crippled.fail("failed fsync")
    ended, reply = crippled.end()
    assert ended == 1
    assert "the log cannot be made durable" in reply
    crippled.disk.heal()
    again = ServerProcess(shutil.copytree(crippled.disk.root / "store", crippled.disk.root / "b"))
    with again.asker() as asker:
        assert asker.ask("XADD s 2-1 f v") == b"2-1"
        assert asker.ask("XLEN s") == 2
        assert asker.ask("XLEN met") in (0, 1)  # both results are valid for an unknown outcome
    again.end()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk on which the reserve of free space leaves room for some 100 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256m,mode=0700", "tmpfs", str(mounted)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount here")
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


@pytest.mark.parametrize("how", ["DEL", "XTRIM", "XDEL"])
def test_writes_continue_after_deletes_on_a_full_disk(small_disk: Path, how: str) -> None:
    """/healthz and the log report both changes; after XDEL, BGREWRITEAOF is needed."""
    log = small_disk.parent / "log"
    words = "--metrics-port", "0", "--logfile", str(log), "--log-level", "warning"
    server = ServerProcess(small_disk / "store", *words)
    assert server.process.stdout is not None
    shown = [server.process.stdout.readline() for _ in range(3)]
    url = shown[-1].removeprefix("metrics at ").strip().replace("/metrics", "/healthz")
    with server.asker() as asker:

        def grow() -> Any:
            return asker.ask("XADD", "s", "*", "f", os.urandom(100_000))

        def is_full() -> bool:
            while not isinstance(refusal := grow(), Failure):
                pass
            assert "DEL, XTRIM and FLUSHDB free space" in refusal
            assert "BGREWRITEAOF or `kvstream compact`" in refusal
            sleep(0.5)  # obsolete logs and tables are deleted
            return isinstance(grow(), Failure) and status(url) == 503

        until(is_full, "the disk to be full")
        if how == "DEL":
            assert asker.ask("DEL s") == 1
        elif how == "XTRIM":
            assert asker.ask("XTRIM s MAXLEN 100") > 0
        else:
            ids = [entry[0] for entry in asker.ask("XRANGE s - + COUNT 700")]
            assert asker.ask("XDEL", "s", *ids) == len(ids)
            assert asker.ask("BGREWRITEAOF") is not None
        until(lambda: not isinstance(grow(), Failure), "writes to succeed")
        until(lambda: status(url) == 200, "/healthz to be well")
    server.end()  # by then the log has every line
    lines = log.read_text()
    refusals = lines.count("writes that take space are refused: the disk is full")
    assert refusals == lines.count("there is free space again: writes go on") > 0


def status(url: str) -> int:
    """Return the status of a page."""
    try:
        with urlopen(url) as answer:
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code
