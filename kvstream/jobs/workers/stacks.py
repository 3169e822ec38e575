"""The stack of a running job: requested through the store, and answered by its worker.

A request names the job; each worker reads it, and the one that runs the job adds an entry to
``jobs:workers:reply:<id of the request>``. The frames of a thread are those of
``sys._current_frames``, those of a task are its coroutines'. A process whose job keeps Python's
lock cannot answer: its parent sends it a signal, at which ``faulthandler`` writes the frames of all
threads, in C, to a file that both have open. Frames have the file, line and function, never the
value of a variable.
"""

from __future__ import annotations

import asyncio
import faulthandler
import linecache
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from kvstream.engine.queue_arguments import Duration
from kvstream.jobs.job import to_seconds
from kvstream.jobs.workers.registry import STACK, Place, ask, reply_to
from kvstream.types.clock import monotonic
from kvstream.types.ids import MIN_ID, StreamID

TIMEOUT_S = 5.0
"""How long an answer may take."""
NOT_RUNNING_S = 1.0
"""How long it may take if the job does not seem to run: it may have begun just now."""
REPLY_KEPT_S = 60.0
FRAMES_MAX = 100
"""Frames of a stack, the innermost."""
AWAITED_MAX = 10
"""Tasks of one ``gather`` whose stacks are shown."""
DUMP_S, DUMP_STILL_S, DUMP_LOOK_S = 2.0, 0.1, 0.02
"""How long a dump may take, the pause after which it is complete, and the pause between reads."""
DUMP_MAX = 1 << 20
DUMP_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2 + 2) - 2
"""The signal at which a child writes its frames: one that programs do not use for themselves."""

_OWN = (str(Path(__file__).parent.parent), threading.__file__, asyncio.__path__[0], "<frozen")
"""Where the outermost frames of a job come from, which are not shown."""
_DUMPED = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')
_RUNS_JOBS = {"run_sync", "_run_loop"}
"""Functions of the threads that run jobs."""


class JobStack(NamedTuple):
    """Where a job is in its code, the most recent call last."""

    worker: str
    """The name of the worker that runs the job."""
    kind: str
    """``"thread"``, ``"task"`` (of asyncio), or ``"process"``: the job holds Python's lock, so
    these are the frames of the threads of its worker that run jobs, as its parent sees them."""
    text: str
    """As in a traceback; empty if the job begins or ends just now."""


# --- in the worker --------------------------------------------------------------------------------


def of_thread(ident: int) -> str:
    """Return the stack of a thread of this process; empty if it has ended."""
    frame = sys._current_frames().get(ident)
    return "" if frame is None else _text(_frames_of(frame))


def of_task(task: asyncio.Task[Any], loop_thread: int) -> str:
    """Return the stack of a task of asyncio, with those that it awaits; empty if it has ended."""
    coroutine = task.get_coro()
    if getattr(coroutine, "cr_running", False):
        return of_thread(loop_thread)
    return _of_waiting(task, 0)


def _of_waiting(task: asyncio.Task[Any], depth: int) -> str:
    """Return the stack of a task that is suspended."""
    found: list[tuple[FrameType, int]] = []
    at: Any = task.get_coro()
    while at is not None and len(found) < FRAMES_MAX:
        frame = _first(at, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            found.append((frame, frame.f_lineno))
        at = _first(at, "cr_await", "gi_yieldfrom", "ag_await")
    text = _text(_entries(found))
    awaited = getattr(task, "_fut_waiter", None)
    others = [awaited, *(getattr(awaited, "_children", None) or ())][: AWAITED_MAX + 1]
    for each in others if depth < AWAITED_MAX else ():
        if isinstance(each, asyncio.Task) and not each.done():
            text += f"  awaits the task {each.get_name()}:\n{_of_waiting(each, depth + 1)}"
    return text


def _first(value: object, *names: str) -> Any:
    return next((found for name in names if (found := getattr(value, name, None))), None)


def _frames_of(frame: FrameType) -> list[traceback.FrameSummary]:
    """Return the frames of a stack that runs, the outermost first."""
    return _entries(reversed([*traceback.walk_stack(frame)]))


def _entries(frames: Iterable[tuple[FrameType, int]]) -> list[traceback.FrameSummary]:
    return [_entry(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames]


def _entry(file: str, line: int, function: str) -> traceback.FrameSummary:
    return traceback.FrameSummary(file, line, function, lookup_line=False)


def _text(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return the text of frames, without those of the worker itself."""
    linecache.checkcache()
    own = [not frame.filename.startswith(_OWN) for frame in frames]
    first = own.index(True) if True in own else 0
    return "".join(traceback.StackSummary.from_list(frames[first:][-FRAMES_MAX:]).format())


def answer(jobs: Place, request: StreamID, stack: JobStack) -> None:
    """Add the answer to a request."""
    stream = reply_to(jobs, request)
    stream.add(stack._asdict())
    jobs.store.expire(stream.key, REPLY_KEPT_S)


# --- a process that holds Python's lock -----------------------------------------------------------


class Dump:
    """The file into which a child writes the frames of its threads at a signal."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open while the child lives

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def read(self, process: subprocess.Popen[bytes]) -> str:
        """Return what a process writes; empty if it writes nothing in time, or has ended."""
        self._file.truncate(0)
        self._file.seek(0)  # also for the child, which shares the position
        process.send_signal(DUMP_SIGNAL)  # to no other process: one that has ended is left alone
        until, size, still = monotonic() + DUMP_S, 0, monotonic()
        while monotonic() < until and (not size or monotonic() < still + DUMP_STILL_S):
            time.sleep(DUMP_LOOK_S)
            if (now := os.fstat(self._file.fileno()).st_size) != size:
                size, still = now, monotonic()
        return os.pread(self._file.fileno(), DUMP_MAX, 0).decode("utf-8", "replace")


def dump_on_signal(descriptor: int) -> None:
    """Write the frames of all threads to a file at each ``DUMP_SIGNAL`` from now on."""
    os.set_inheritable(descriptor, False)
    faulthandler.register(DUMP_SIGNAL, file=descriptor, all_threads=True)


def of_dump(dump: str, function: str) -> str:
    """Return the stacks in a dump that run ``function``, or else those that run any job."""
    found: list[list[traceback.FrameSummary]] = []
    for block in dump.split("\n\n"):
        lines = [_DUMPED.match(line) for line in block.splitlines()]
        frames = [
            _entry(each["file"], int(each["line"]), each["name"])
            for each in reversed(lines)
            if each is not None
        ]
        if any(frame.name in _RUNS_JOBS for frame in frames):
            found.append(frames)
    of_job = [frames for frames in found if any(frame.name == function for frame in frames)]
    texts = [_text(frames) for frames in of_job or found]
    if len(texts) < 2:
        return "".join(texts)
    return "".join(f"  thread {n} of {len(texts)}\n{text}" for n, text in enumerate(texts, 1))


# --- the program that asks ------------------------------------------------------------------------


def ask_stack(jobs: Place, job_id: str, timeout: Duration, status: Callable[[], str]) -> JobStack:
    """Return the stack of a job; TimeoutError if no worker answers.

    ``status`` returns that of the job.
    """
    timeout_s = to_seconds(timeout, "timeout")
    request = ask(jobs, STACK, job=job_id)
    replies, begun = reply_to(jobs, request), monotonic()
    found = replies.read(MIN_ID, block=max(0.001, min(timeout_s, NOT_RUNNING_S)))
    is_running = found or (state := status()) == "running"
    rest_s = begun + timeout_s - monotonic()
    if not found and is_running and rest_s > 0:
        found = replies.read(MIN_ID, block=rest_s)
    if found:
        texts = {name: value.decode("utf-8", "replace") for name, value in found[0].fields.items()}
        return JobStack(texts[b"worker"], texts[b"kind"], texts[b"text"])
    if not is_running:
        raise TimeoutError(f"no worker runs the job {job_id}: it is {state}")
    raise TimeoutError(
        f"no worker has answered within {timeout_s:g} s: that of the job {job_id} is away, or the "
        "job holds Python's lock and no kvstream work is the worker's parent"
    )
