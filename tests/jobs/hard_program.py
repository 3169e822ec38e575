"""An application whose jobs are hard on their workers; see ``test_hard_jobs``."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from kvstream import Jobs, current_job

jobs = Jobs(os.environ["KVSTREAM_TEST_PLACE"], shared=os.environ.get("KVSTREAM_TEST_SHARED") == "1")
FILE = os.environ.get("KVSTREAM_TEST_FILE", "")
LEASE_S = float(os.environ.get("KVSTREAM_TEST_LEASE", "10"))
"""The lease of all jobs: the shortest timeout."""


def said(text: str) -> None:
    """Append a line to the file that the test reads; one write is atomic."""
    with open(FILE, "a") as file:
        file.write(f"{text}\n")


@jobs.task(timeout=LEASE_S)
def quick(number: int) -> int:
    print("a line of output", number, flush=True)
    return number


@jobs.task
def innocent(number: int) -> int:
    said(f"innocent {number}")
    time.sleep(0.05)
    return number


@jobs.task
def killer() -> None:
    said("killer")
    time.sleep(0.1)
    if current_job().attempt % 2:
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.task
def keeps_the_lock(seconds: int) -> str:
    said("keeps the lock")
    ctypes.PyDLL(None).sleep(seconds)  # as a C extension that never releases it
    return "done"


@jobs.task(timeout=LEASE_S, retries=1, backoff=0)
def keeps_the_lock_for_too_long() -> None:
    said("too long")
    ctypes.PyDLL(None).sleep(3600)


@jobs.task
def reads_stdin() -> int:
    return subprocess.run(["cat"], capture_output=True, check=False).returncode


@jobs.task
def reads_stdin_itself() -> str:
    return sys.stdin.read() + repr(os.read(0, 1))


@jobs.task
def descriptors_of_a_program() -> list[str]:
    """Return the descriptors that a program has which inherits all it can."""
    text = "import os; print([n for n in range(3, 200) if os.path.exists(f'/proc/self/fd/{n}')])"
    run = [sys.executable, "-c", f"{text}"]
    done = subprocess.run(run, capture_output=True, text=True, close_fds=False, check=True)
    return [done.stdout.strip()]


class _Odd(BaseException):
    pass


@jobs.task
def raises(name: str) -> None:
    raise {
        "SystemExit": SystemExit(3),
        "KeyboardInterrupt": KeyboardInterrupt(),
        "CancelledError": asyncio.CancelledError(),
        "GeneratorExit": GeneratorExit(),
        "_Odd": _Odd("odd"),
    }[name]


@jobs.task
async def raises_async(name: str) -> None:
    raises(name)


@jobs.task
async def leaves_the_loop() -> str:
    async def exits() -> None:
        raise SystemExit(4)

    started = asyncio.create_task(exits())
    await asyncio.sleep(0.01)
    return type(started.exception()).__name__


@jobs.task
async def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)


@jobs.task
def forks(then: str) -> int:
    """Return how the other process ended, which leaves the function too."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if then == "raises":
        raise RuntimeError("in the other process")
    if then == "exits":
        sys.exit(5)
    return 7


@jobs.task
async def forks_async() -> int:
    return forks("exits")


@jobs.task
def leaves_a_thread() -> None:
    threading.Thread(target=time.sleep, args=[3600]).start()


@jobs.task
def changes_folder() -> None:
    os.chdir("/")


@jobs.task
def closes(what: str) -> int:
    """Close descriptors, or the streams of Python; return the number of the try."""
    attempt: int = current_job().attempt
    if attempt == 1 and what == "standard":
        for number in range(3):
            os.close(number)
    elif attempt == 1 and what == "streams":
        for stream in (sys.stdout, sys.stderr, sys.stdin):
            stream.close()
    elif attempt == 1:
        os.closerange(3, 1000)
    time.sleep(0.5 if attempt == 1 else 0)
    return attempt
