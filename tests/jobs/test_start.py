"""``kvstream work`` at its start: it waits for a store that is away, and not for a wrong one."""

import logging
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvstream import Jobs, Store
from kvstream.cli.exit_codes import ExitCode
from kvstream.errors import ServerUnavailable
from kvstream.jobs.job_log import log_problem, logger_of
from kvstream.jobs.starting import begin
from tests import forking
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.server.conftest import Served
from tests.server.net.authorities import Authority
from tests.serving import ServerProcess

ROOT = Path(__file__).parents[2]
Process = subprocess.Popen[str]


@pytest.fixture
def work() -> Iterator[Callable[..., Process]]:
    """Start ``kvstream work`` for the tests' application on a place."""
    with ExitStack() as ends:

        def start(place: str, *, shared: bool = False) -> Process:
            command = [sys.executable, "-m", "kvstream", "work", "tests.jobs.program:jobs"]
            settings = {"KVSTREAM_TEST_PLACE": place, "KVSTREAM_TEST_SHARED": str(int(shared))}
            process = forking.start(
                [*command, "--processes", "1"],
                cwd=ROOT,
                env={**os.environ, **settings},
                stderr=subprocess.PIPE,
                text=True,
            )
            ends.callback(process.kill)
            return process

        yield start


def line_with(process: Process, text: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}")


def wait_for_end(process: Process) -> tuple[int, str]:
    _, log = process.communicate(timeout=PATIENCE_S)
    return process.returncode, log


def job_on(monkeypatch: pytest.MonkeyPatch, place: str, *, shared: bool = False) -> Any:
    monkeypatch.setenv("KVSTREAM_TEST_PLACE", place)
    monkeypatch.setenv("KVSTREAM_TEST_SHARED", str(int(shared)))
    return runpy.run_path(str(ROOT / "tests" / "jobs" / "program.py"))


def test_workers_wait_for_their_server(
    work: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    url = f"redis://:pw@127.0.0.1:{port}"
    process = work(url)
    assert "pw@" not in line_with(process, "WARNING jobs.starting: the store is away")
    server = ServerProcess(tmp_path / "store", "--port", str(port), "--requirepass", "pw")
    program = job_on(monkeypatch, url)
    with program["jobs"]:
        assert program["pid"].enqueue().result(PATIENCE_S) > 0
    process.send_signal(signal.SIGTERM)
    code, log = wait_for_end(process)
    assert (code, "the store is there after" in log) == (0, True)
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_that_wait_are_stopped_by_a_signal(
    work: Callable[..., Process], number: signal.Signals
) -> None:
    process = work(f"redis://127.0.0.1:{free_port()}")
    line_with(process, "the store is away")
    process.send_signal(number)
    code, log = wait_for_end(process)
    assert (code, "stopped before the store was there" in log) == (0, True)


def test_workers_wait_for_a_directory_that_another_program_holds(
    work: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "data")
    with Store.open(place):
        process = work(place, shared=True)
        line_with(process, "the store is away")
    program = job_on(monkeypatch, place, shared=True)
    with program["jobs"]:
        assert program["pid"].enqueue().result(PATIENCE_S) > 0
    process.send_signal(signal.SIGTERM)
    assert wait_for_end(process)[0] == 0


@pytest.mark.parametrize(
    ("form", "code", "says"),
    [
        ("redis://:wrong@127.0.0.1:{}", ExitCode.UNAVAILABLE, "password"),
        ("redis://127.0.0.1:{}", ExitCode.UNAVAILABLE, "password"),
        ("redis://127.0.0.1:{}/x", ExitCode.USAGE, "not a URL of a server"),
    ],
)
def test_workers_do_not_wait_for_what_no_time_mends(
    work: Callable[..., Process], tmp_path: Path, form: str, code: ExitCode, says: str
) -> None:
    server = ServerProcess(tmp_path / "store", "--requirepass", "pw")
    got, log = wait_for_end(work(form.format(server.port)))
    assert got == code
    assert log.startswith("Error: ")
    assert says in log
    assert "away" not in log
    server.stop(warned="wrong name or password")


def test_workers_do_not_wait_for_a_server_that_tls_does_not_reach(
    work: Callable[..., Process], tmp_path: Path
) -> None:
    host = Authority(tmp_path / "authority").certify("localhost")
    files = {"tls_cert_file": Path(host.certificate), "tls_key_file": Path(host.key)}
    served = Served(tmp_path / "store", tls=True, tls_auth_clients="no", **files)
    try:
        plain, untrusted = (
            work(f"rediss://localhost:{port}") for port in (served.port, served.tls_port)
        )
        for process, says in ((plain, "SSL"), (untrusted, "CERTIFICATE_VERIFY_FAILED")):
            code, log = wait_for_end(process)
            assert (code, log.startswith("Error: ")) == (ExitCode.UNAVAILABLE, True), log
            assert says in log
            assert "away" not in log
    finally:
        served.stop()


def test_a_server_that_goes_away_is_one_line_of_the_log(
    work: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ServerProcess(tmp_path / "store")
    url = f"redis://127.0.0.1:{server.port}"
    process = work(url)
    with job_on(monkeypatch, url)["jobs"] as jobs:
        assert jobs.tasks["pid"].enqueue().result(PATIENCE_S) > 0
    server.kill()
    line = line_with(process, "WARNING jobs.worker: no jobs can be taken for now: ")
    assert "server" in line or "no connection" in line
    process.send_signal(signal.SIGTERM)
    code, log = wait_for_end(process)
    assert (code, "Traceback" in log) == (0, False), log


def test_the_log_has_the_message_of_an_error_and_the_traceback_of_a_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logger_of("kvstream.jobs.test")
    for error in (ServerUnavailable("the server is away"), ValueError("a value")):
        log_problem(logger, logging.ERROR, "%d jobs were not written", 2, error=error)
    first, second = caplog.records
    assert (first.getMessage(), first.exc_info) == (
        "2 jobs were not written: the server is away",
        None,
    )
    assert (second.getMessage(), second.exc_info is None) == ("2 jobs were not written", False)


@pytest.mark.parametrize(
    ("name", "value"),
    [("--url", "redis://h"), ("--store", "x"), ("--db", "1"), ("--wait", "3s")],
)
def test_a_place_of_the_command_line_is_refused(name: str, value: str) -> None:
    for words in ([name, value, "work", "app:jobs"], ["work", "app:jobs", f"{name}={value}"]):
        command = [sys.executable, "-m", "kvstream", *words]
        done = forking.run(command, text=True, timeout=PATIENCE_S)
        assert done.returncode == ExitCode.USAGE
        assert f"work takes no {name}: the place is that of the Jobs in app" in done.stderr


def test_the_log_says_that_a_variable_does_not_choose_the_place(
    work: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSTREAM_URL", "redis://:pw@nowhere.invalid")
    process = work(str(tmp_path / "data"))
    line = line_with(process, "KVSTREAM_URL")
    assert "the place is that of tests.jobs.program:jobs, not that of KVSTREAM_URL" in line
    line_with(process, "workers of jobs begin")
    process.send_signal(signal.SIGTERM)
    code, log = wait_for_end(process)
    assert (code, "pw" in log) == (0, False)


def test_a_call_is_not_made_once_it_is_stopped() -> None:
    assert begin(lambda: 1, lambda: True) is None
    assert begin(lambda: Jobs("nowhere").name, lambda: False) == "jobs"
