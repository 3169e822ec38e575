"""A forked process of tests is the same as a new process."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import forking
from tests.cli.program import ROOT
from tests.faultshim.disk import FaultyDisk
from tests.faultshim.fixtures import fault_library, faulty_disk
from tests.patience import PATIENCE_S

__all__ = ["fault_library", "faulty_disk"]

PRINTING = """
import atexit, os, signal, sys, threading
class Object:
    def __del__(self):
        print("destroyed at the end")
kept = Object()
atexit.register(print, "at exit")
print(sys.argv, sys.orig_argv, sys.path, os.getcwd(), ascii(os.environ["GIVEN"]))
print(__name__, __spec__ and __spec__.name)
print(os.getsid(0) == os.getpid(), threading.active_count(), sys.stdin.read())
print(signal.getsignal(signal.SIGINT), sys.stdout.isatty())
for each in (sys.stdin, sys.stdout, sys.stderr):
    print(each.encoding, each.errors, each.line_buffering, each.write_through)
print(os.listdir("/proc/self/fd"))
print("\\u1234", file=sys.stderr)
threading.Timer(0.1, print, ["a last thread"]).start()
sys.exit(7)
"""
STARTS = pytest.mark.parametrize("start", [forking.start, subprocess.Popen])
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")


def output_of(start: Callable[..., Any], *words: str, **options: Any) -> tuple[str, str, int]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, *words]
    with start(command, text=True, **{**pipes, **options}) as process:
        out, err = process.communicate("input", timeout=PATIENCE_S)
    return out, err, process.returncode


@pytest.mark.parametrize("path", [{}, {"PYTHONPATH": f"{ROOT}:/elsewhere"}])
@pytest.mark.parametrize("session", [True, False])
def test_a_fork_is_as_a_new_process(tmp_path: Path, session: bool, path: dict[str, str]) -> None:
    (tmp_path / "teller.py").write_text(PRINTING)
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env = {**others, **path, "GIVEN": "\udcff and so on"}
    options = {"cwd": tmp_path, "env": env, "start_new_session": session}
    for words in (("-c", PRINTING, "a", "b c"), ("-m", "teller", "a"), ("-m", "missing")):
        forked = output_of(forking.start, *words, **options)
        assert forked == output_of(subprocess.Popen, *words, **options)
        if "missing" in words:
            assert forked[2] == 1
            continue
        assert forked[0].splitlines()[-3:] == ["a last thread", "at exit", "destroyed at the end"]
        assert forked[2] == 7


@STARTS
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_itself(start: Callable[..., Any], number: int) -> None:
    program = "import time; print(flush=True); time.sleep(600)"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start([sys.executable, "-c", program], **pipes) as process:
        assert process.stdout.readline() == b"\n"
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == -number
    assert not Path(f"/proc/{process.pid}").exists()


@STARTS
def test_a_new_session_can_be_killed_at_once(start: Callable[..., Any]) -> None:
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    for _ in range(20):
        with start(words, start_new_session=True) as process:
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait(PATIENCE_S) == -signal.SIGKILL


@STARTS
def test_the_parent_of_a_process_is_this_one(start: Callable[..., Any]) -> None:
    program = "import os, sys; sys.stdin.read(); print(os.getppid())"
    assert output_of(start, "-c", program) == (f"{os.getpid()}\n", "", 0)


@STARTS
def test_a_process_has_the_faulty_disk_of_its_environment(
    start: Callable[..., Any], faulty_disk: FaultyDisk
) -> None:
    program = "import sys; from pathlib import Path; print(Path(sys.argv[1]).write_text('x'))"
    failing, whole = (str(faulty_disk.root / name) for name in ("a.log", "a"))
    faulty_disk.fail("write", errno.EIO, ".log")
    assert (
        "Input/output error"
        in output_of(*(start, "-c", program, failing), env=faulty_disk.environment())[1]
    )
    assert output_of(start, "-c", program, failing) == ("1\n", "", 0)
    assert output_of(start, "-c", program, whole, env=faulty_disk.environment())[0] == "1\n"
    died = output_of(start, "-c", program, whole, env=faulty_disk.environment(die_at=1))
    assert died == ("", "", -signal.SIGKILL)
    assert faulty_disk.syncs() == 0


def test_what_a_start_reads_makes_a_new_process() -> None:
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    program = ("-c", "print(hash('x'))")
    assert output_of(forking.start, *program, env=env) == output_of(
        subprocess.Popen, *program, env=env
    )


def test_run_is_that_of_subprocess() -> None:
    words = [sys.executable, "-c", "import sys; print(1); sys.exit('no')"]
    done = forking.run(words, timeout=PATIENCE_S, text=True)
    same = subprocess.run(words, capture_output=True, text=True, check=False)
    assert vars(done) == vars(same)
    with pytest.raises(subprocess.TimeoutExpired):
        forking.run([sys.executable, "-c", "import time; time.sleep(600)"], timeout=0.1)
