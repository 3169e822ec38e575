"""The log of a server: events, levels, formats; the library logs nothing."""

import errno
import json
import logging
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream.commands.replies import internal_error
from kvstream.errors import StoreFull, StoreReadOnly
from kvstream.logs import (
    WINDOW_LINES,
    WINDOW_S,
    JsonFormatter,
    TextFormatter,
    Throttle,
    emit_deferred,
)
from kvstream.operations import keyspace
from kvstream.storage.directory import Directory
from kvstream.storage.write_guard import WriteGuard
from tests.cli.program import ENVIRONMENT
from tests.faultshim.disk import FaultyDisk
from tests.patience import PATIENCE_S, until
from tests.server.asking import Failure
from tests.server.conftest import Served
from tests.serving import ServerProcess

LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (DEBUG|VERBOSE|NOTICE|WARNING|ERROR) [a-z.]+: \S.*"
)


class Logged:
    """A server that logs into a file."""

    def __init__(self, folder: Path, *arguments: str, level: str = "notice", **more: Any) -> None:
        self.path = folder / "log"
        given = ["--logfile", str(self.path), "--loglevel", level, *arguments]
        self.server = ServerProcess(more.pop("store", folder / "store"), *given, **more)

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    def with_(self, text: str) -> list[str]:
        """Return the lines that contain a text, once there is one."""
        until(lambda: self.path.exists() and text in self.path.read_text(), text)
        return [line for line in self.lines if text in line]


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Logged]:
    started = Logged(tmp_path)
    yield started
    started.server.end()


def test_start_and_stop_of_a_server_are_logged_on_stderr(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store", "--loglevel", "notice", "--durability", "always")
    server.process.send_signal(signal.SIGTERM)
    errors = server.process.communicate(timeout=PATIENCE_S)[1].splitlines()
    assert all(LINE.fullmatch(line) for line in errors), errors
    assert {line.split(" ", 4)[3] for line in errors} == {"server.serving:"}
    texts = [line.split(" ", 4)[4] for line in errors]
    pid = server.process.pid
    assert re.fullmatch(
        rf"kvstream \S+, process {pid}, opens {tmp_path}/store with durability always", texts[0]
    )
    assert texts[1:] == [
        f"ready for clients at 127.0.0.1, port {server.port}",
        "SIGTERM has come",
        "stops; clients to be answered and let go: 0",
        "the store is closed, everything is durable",
    ]


def test_levels_filter_and_can_be_changed(tmp_path: Path) -> None:
    config = tmp_path / "kvstream.toml"
    config.write_text("timeout = 0\n")
    log = tmp_path / "log"
    options = "--config", str(config), "--logfile", str(log), "--loglevel", "nothing"
    server = ServerProcess(tmp_path / "store", *options)
    with server.asker() as asker:
        assert asker.ask("CONFIG GET loglevel") == [b"loglevel", b"nothing"]
        asker.ask("AUTH nobody x")
        assert log.read_text() == ""
        assert asker.ask("CONFIG SET loglevel debug") == b"OK"
        server.asker().close()
        until(lambda: "DEBUG server.runtime.executor: client" in log.read_text())
        assert "SET" in log.read_text()
        assert isinstance(asker.ask("CONFIG SET loglevel loud"), Failure)
        assert asker.ask("CONFIG SET loglevel warning") == b"OK"
        asker.ask("CONFIG SET timeout 0")
        asker.ask("AUTH nobody x")
        until(lambda: "wrong name or password" in log.read_text())
        assert '"timeout"' not in log.read_text()
        assert asker.ask("CONFIG REWRITE") == b"OK"
        assert asker.ask("CONFIG GET logfile") == [b"logfile", str(log).encode()]
        assert isinstance(asker.ask("CONFIG SET logfile x"), Failure)
    assert config.read_text() == 'timeout = 0\nloglevel = "warning"\n'
    server.end()


def test_lines_are_json_on_demand(tmp_path: Path) -> None:
    started = Logged(tmp_path, "--log-format", "json")
    with started.server.asker() as asker:
        assert asker.ask("CONFIG GET log-format") == [b"log-format", b"json"]
        asker.ask("AUTH", "no\nbody", "x")
    started.server.end()
    shown = [json.loads(line) for line in started.lines]
    assert {tuple(each) for each in shown} == {("time", "level", "logger", "message")}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", shown[0]["time"])
    assert {each["level"] for each in shown} == {"notice", "warning"}
    assert all(each["logger"].startswith("kvstream.server.") for each in shown)
    assert [each for each in shown if r'"no\nbody"' in each["message"]]


def test_failed_logins_are_logged_at_a_limited_rate_without_passwords(logged: Logged) -> None:
    with logged.server.asker() as asker:
        for number in range(5 * WINDOW_LINES):
            assert isinstance(asker.ask("AUTH", "who\n2026", f"guess{number}"), Failure)
        asker.ask("HELLO 3 AUTH default guess")
    logged.with_("wrong name or password")
    logged.server.end()
    found = logged.with_("wrong name or password")
    assert WINDOW_LINES <= len(found) <= 3 * WINDOW_LINES
    assert r"127.0.0.1:" in found[0]
    assert r'user "who\n2026"' in found[0]
    assert "guess" not in logged.path.read_text()
    assert all(LINE.fullmatch(line) for line in logged.lines)


def test_missing_rights_are_logged_at_verbose(tmp_path: Path) -> None:
    logged = Logged(tmp_path, level="verbose")
    with logged.server.asker() as asker:
        asker.ask("ACL SETUSER ann on nopass ~a* +get")
        asker.ask("AUTH ann x")
        asker.ask("SET a 1")
        asker.ask("GET b")
    logged.with_('user "ann", has no right to command "set"')
    logged.with_('user "ann", has no right to key "b"')
    logged.server.end()


def test_refused_clients_are_logged(tmp_path: Path) -> None:
    logged = Logged(tmp_path, "--maxclients", "1")
    with logged.server.asker(), logged.server.asker() as second:
        assert second.read().startswith("ERR max number of clients")
    logged.with_("is refused: maxclients has been reached")
    logged.server.end()


def test_settings_slow_requests_and_checkpoints_are_logged(logged: Logged) -> None:
    with logged.server.asker() as asker:
        asker.ask("CONFIG SET slowlog-log-slower-than 0 requirepass s3cret")
        asker.ask("AUTH s3cret")
        asker.ask("XADD", "s", "*", "f", "v" * 1000)
        asker.ask("MGET", *(f"k{number}" for number in range(100)))
        asker.ask("BGSAVE")
        logged.with_("the save took")
        asker.ask("BGREWRITEAOF")
        logged.with_("the compaction took")
    assert logged.with_('"requirepass" "(redacted)"')
    [slow] = logged.with_('XADD "s"')
    assert re.search(r"took \d+\.\d{3} ms: XADD \"s\" \(arguments: 4, bytes: 1007\)$", slow)
    assert logged.with_("ms: AUTH (arguments: 1, bytes: 10)")
    assert logged.with_("ms: CONFIG SET (arguments: 5, ")
    [many] = logged.with_('MGET "k0" "k1"')
    assert many.endswith('(70 more arguments)" (arguments: 100, bytes: 294)'), many


def test_no_value_and_no_password_is_logged(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these requests has SECRET as a value or password, and causes a log line."""

    def unthrottled(
        throttle: Throttle, logger: logging.Logger, *args: Any, error: Any = None
    ) -> None:
        logger.log(*args, exc_info=error)

    def fail(*_: object) -> None:
        raise KeyError("SEC" + "RET")

    monkeypatch.setattr(Throttle, "log", unthrottled)
    caplog.set_level(logging.DEBUG)
    with served.asker() as asker, served.asker() as other:
        asker.ask("CONFIG SET slowlog-log-slower-than 0")
        asker.ask("XADD s * f SECRET")
        dump = asker.ask("DUMP s")
        for words in (
            ("SET k SECRET",),
            ("XADD s * f SECRET",),
            ("XADD s 1-0 f SECRET",),
            ("XADD s MAXLEN SECRET * f v",),
            ("MSET k SECRET l SECRET",),
            ("APPEND k SECRET",),
            ("INCR k",),
            ("GETSET k SECRET",),
            ("ECHO SECRET",),
            ("SECRET x",),
            ("EVAL SECRET 0",),
            ("RESTORE", "t", "0", dump + b"SECRET"),
            ("AUTH SECRET",),
            ("AUTH nobody SECRET",),
            ("HELLO 3 AUTH nobody SECRET",),
            ("ACL SETUSER ann on >SECRET ~* +@all",),
            ("ACL SETUSER bob SECRET",),
            ("AUTH ann SECRET",),
            ("CONFIG SET requirepass SECRET",),
            ("CONFIG SET tls-key-file-pass SECRET masterauth SECRET",),
            ("MIGRATE 127.0.0.1 1 k 0 1 AUTH SECRET",),
            ("ACL SETUSER ann resetkeys ~a*",),
            ("SET k SECRET",),
        ):
            asker.ask(*words)
        for line in ("AUTH SECRET", "MULTI", "SET a SECRET", "EXEC"):
            other.ask(line)
        monkeypatch.setattr(keyspace, "exists", fail)
        assert other.ask("EXISTS a").startswith("ERR internal error: KeyError")
        other.send_bytes(b"POST / HTTP/1.1\r\nHost: SECRET\r\n\r\nSECRET")
        asker.send_bytes(b"*1\r\n$SECRET\r\n")
    until(lambda: len(re.findall(r"client [12] of .* is gone", caplog.text)) == 2)
    log = "\n".join(map(JsonFormatter().format, caplog.records))
    assert "SECRET" not in log
    for name in ("XADD", "SET", "MSET", "APPEND", "INCR", "RESTORE", "ACL", "AUTH", "HELLO"):
        assert f"ms: {name} " in log, name
    for text in ("wrong name or password", "has no right", "failed inside", "sends HTTP"):
        assert text in log, text


def test_connections_are_logged_at_debug(tmp_path: Path) -> None:
    logged = Logged(tmp_path, level="debug")
    with logged.server.asker():
        [line] = logged.with_(" connects from 127.0.0.1:")
        assert "DEBUG server.runtime.executor: client " in line
    logged.with_(" is gone")
    logged.server.end()


def test_a_moved_log_file_is_created_again(logged: Logged) -> None:
    old = logged.path.rename(logged.path.with_name("log.1"))
    with logged.server.asker() as asker:
        asker.ask("CONFIG SET timeout 0")
    logged.with_('"timeout"')
    assert "ready for clients" in old.read_text()
    assert '"timeout"' not in old.read_text()


def test_a_logfile_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    words = "--dir", tmp_path / "store", "--port", 0, "--logfile", tmp_path / "none" / "log"
    ended = subprocess.run(
        [sys.executable, "-m", "kvstream", "serve", *map(str, words)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 2
    assert "No such file or directory" in ended.stderr
    assert not (tmp_path / "store").exists()


def test_a_full_disk_and_its_end_are_logged_once(faulty_disk: FaultyDisk, tmp_path: Path) -> None:
    logged = Logged(
        tmp_path, store=faulty_disk.root / "store", environment=faulty_disk.environment()
    )
    with logged.server.asker() as asker:
        asker.ask("SET k v")
        faulty_disk.fail("write", errno.ENOSPC, ".log")
        for _ in range(3):
            assert isinstance(asker.ask("SET k w"), Failure)
        faulty_disk.heal()
        until(lambda: asker.ask("SET k w") == b"OK")
        faulty_disk.fail("write", errno.EIO, ".log")
        assert isinstance(asker.ask("SET k x"), Failure)
        assert isinstance(asker.ask("SET k x"), Failure)
    guard = "storage.write_guard: the disk"
    assert len(logged.with_(f"WARNING {guard} is full, writes are refused until it is not")) == 1
    assert len(logged.with_(f"WARNING {guard} has space again")) == 1
    assert len(logged.with_(f"ERROR {guard} failed, so the store is read-only")) == 1
    logged.server.process.kill()
    logged.server.process.communicate()


def test_internal_errors_are_logged_with_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ValueError, match="inside") as raised:
        raise ValueError("inside")
    assert internal_error(raised.value).text == "internal error: ValueError"
    emit_deferred()
    [record] = caplog.records
    text = TextFormatter().format(record)
    assert LINE.fullmatch(text.splitlines()[0])
    assert "in test_internal_errors" in text
    assert text.endswith("\nValueError")  # the text of the exception may be data of a client
    assert json.loads(JsonFormatter().format(record))["exception"].endswith("\nValueError")


def test_a_traceback_has_its_causes_but_no_values() -> None:
    def fail() -> None:
        try:
            try:
                raise OSError(errno.EIO, "broken", "a-file")
            except OSError as error:
                raise KeyError("SECRET") from error
        except KeyError:
            raise ValueError("SECRET") from None

    with pytest.raises(ValueError, match="SECRET") as hidden:
        fail()
    error, names = RuntimeError("SECRET"), ["OSError", "KeyError", "RuntimeError"]
    error.__cause__ = hidden.value.__context__
    for raised, found in ((hidden.value, ["ValueError"]), (error, names)):
        text = TextFormatter().formatException((type(raised), raised, raised.__traceback__))
        assert "SECRET" not in text.replace('("SECRET")', "")  # a line of the source
        starts = [line.partition(":")[0] for line in text.splitlines() if line[:1] not in " T"]
        assert [each for each in starts if each] == found
        assert ("broken" in text) == ("OSError" in found)


def test_repeated_lines_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    throttle, logger = Throttle(clock=lambda: now), logging.getLogger("kvstream.tests")
    for number in range(WINDOW_LINES + 3):
        throttle.log(logger, logging.WARNING, "line %d", number)
    assert len(caplog.messages) == WINDOW_LINES
    now += WINDOW_S
    throttle.log(logger, logging.WARNING, "line %d", 99)
    assert caplog.messages[-1] == "line 99 (3 more were not logged)"
    throttle.log(logger, logging.WARNING, "line %d", 100)
    assert caplog.messages[-1] == "line 100"


def test_states_of_a_store_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory.acquire(tmp_path / "store", read_only=False, create=True)
    gate, free = WriteGuard(directory, 100), 50
    monkeypatch.setattr(directory, "free_bytes", lambda: free)
    for _ in range(2):
        with pytest.raises(StoreFull):
            gate.admit(frees=False)
    free = 200
    gate.admit(frees=False)
    full = Exception("IO error: No space left on device")
    for _ in range(2):
        gate.stop_writes(full, recovers=True)
    gate.resume_writes()
    for _ in range(2):
        gate.stop_writes(Exception("IO error: broken"), recovers=False)
    assert isinstance(gate.failure, StoreReadOnly)
    emit_deferred()
    starts = ("writes that", "there is", "the disk is full", "the disk has", "the disk failed")
    for message, start in zip(caplog.messages, starts, strict=True):
        assert message.startswith(start)
    directory.release()


def test_a_library_configures_nothing(tmp_path: Path) -> None:
    program = (
        "import logging, sys, kvstream\n"
        "with kvstream.Store.open(sys.argv[1]) as store:\n"
        "    store.stream('s').add({'f': 'v'})\n"
        "logging.getLogger('kvstream.storage').error('not shown')\n"
        "handlers = logging.getLogger('kvstream').handlers\n"
        "assert [type(each) for each in handlers] == [logging.NullHandler], handlers\n"
        "assert not logging.getLogger().handlers and not logging.getLogger('asyncio').handlers\n"
        "assert logging.getLogger('kvstream').level == logging.NOTSET\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
