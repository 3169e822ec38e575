"""The processes of ``kvstream work``: a parent that watches its children, each with a Worker.

On a directory the parent opens the store as a shared one and so serves the children, unless another
process does already. By URL each child has connections of its own. A child that dies is started
again after a pause. SIGTERM and Ctrl-C are passed on: the first lets jobs finish, the second gives
them back at once. A child also stops when its parent is gone: a socket joins them (``renewal``).
The stdin of a child is /dev/null, since programs that jobs start may read it.

    python -m kvstream.jobs.processes '{"target": "app:jobs", "control": 5, ...}'   a child
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from queue import SimpleQueue
from select import select
from types import FrameType
from typing import Any, Protocol

from kvstream.engine.waiters import Flag, Interrupt
from kvstream.errors import InvalidArgument, KVStreamError, StoreClosed, show
from kvstream.jobs import job_log
from kvstream.jobs.application import Jobs
from kvstream.jobs.flow.rules import queues_of_pools
from kvstream.jobs.job import TASK, has_id
from kvstream.jobs.renewal import Beats, Control, Renewal, beat_s, fill_streams
from kvstream.jobs.starting import begin
from kvstream.jobs.workers import registry
from kvstream.jobs.workers.registration import Fields, Requests, command_of, is_for, job_in
from kvstream.jobs.workers.stacks import Dump, JobStack, answer, dump_on_signal, of_dump
from kvstream.logs import NOTICE, logging_to
from kvstream.types.clock import monotonic
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.urls import refuse_url

PAUSE_S, PAUSE_MAX_S = 1.0, 30.0
"""The first and the longest pause before a dead child is started again."""
PAUSE_BEGUN_MAX_S = 5.0
"""The longest pause if the child had begun to work: a job has killed it, and others wait."""
STEADY_S = 10.0
"""A child that has lived for so long is started again after the first pause."""
LOOK_S, STOPPING_LOOK_S = 0.5, 0.05
"""Pauses between two checks of the children: while they work, and while they stop."""
LATE_S = 5.0
"""Seconds that a child has to end beyond the grace of its jobs; then it is killed."""
REQUESTS_S = 10.0
"""Longest single wait for a request, and the pause after an error."""
ANSWER_S = 1.0
"""How long a child has to answer before its parent does."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STUCK = 75
"""Exit code of a child whose threads all hang."""
LEFT = 76
"""Exit code of a child that a request has ended; it is not started again."""
SPENT = 77
"""Exit code of a child that has drained by ``max_jobs`` or ``max_memory``; it is replaced."""

_log = job_log.logger_of("kvstream.jobs.processes")  # a child runs this module as __main__


@dataclass(frozen=True)
class WorkOptions:
    """The options of a child process."""

    target: str
    """``module:name`` of the Jobs."""
    concurrency: int = 8
    queues: tuple[str, ...] = ()
    grace: float = 30.0
    log_format: str = "text"
    log_level: str = "notice"
    job_log: bool = True
    """Whether starts and successes of jobs are logged."""
    folder: str = "."
    """The folder that is searched for modules first."""
    declares: bool = True
    """Whether a child stores the schedules: a new one of an older version must not."""
    program: str = ""
    """The name of the parent in the registry of workers."""
    app_version: str = ""
    max_jobs: int | None = None
    max_memory: int | None = None
    """Bounds after which a child is replaced; see ``Worker``."""


def jobs_of(target: str, folder: str = ".") -> Jobs:
    """Import the Jobs at ``module:name``; InvalidArgument if there is none."""
    refuse_url(target)  # its name in a message may have a password
    module_name, _, name = target.partition(":")
    if (path := os.path.abspath(folder)) not in sys.path:
        sys.path.insert(0, path)
    try:
        member: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InvalidArgument(f"there is no module {module_name} in {path} or installed") from None
    for part in (name or "jobs").split("."):
        member = getattr(member, part, None)
    if not isinstance(member, Jobs):
        raise InvalidArgument(f"{show(target)} is not a Jobs: give module:name, such as app:jobs")
    return member


class Signals:
    """Counts stop signals.

    The first lets jobs finish, the second gives them back, the third has the default action.
    """

    def __init__(self) -> None:
        self.count = 0
        self.stop, self.at_once = Flag(), Flag()

    def receive(self) -> None:
        """Receive SIGTERM and SIGINT from now on, in the main thread."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def stop_now(self) -> None:
        """Stop as after the first signal."""
        self.count = max(self.count, 1)
        self.stop.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.stop.set()
        if self.count == 2:
            self.at_once.set()
        if self.count > 2:
            signal.signal(number, signal.SIG_DFL)


# --- a child ------------------------------------------------------------------------------------


def work(options: WorkOptions, control: int, dump: int) -> int:
    """Run a Worker in this process until a signal, or until the parent is gone.

    ``control`` is the descriptor of the socket to the parent, and ``dump`` that of a file for the
    frames of all threads.
    """
    from kvstream.jobs.worker import Worker

    signals = Signals()
    signals.receive()
    parent = Control(control, signals.stop_now)
    dump_on_signal(dump)
    with logging_to(None, options.log_format, options.log_level):
        job_log.show(options.job_log, options.log_level)
        jobs = jobs_of(options.target, options.folder)
        jobs.share()
        parent.begin(jobs.consumer, beat_s(jobs))
        make = partial(
            Worker,
            jobs,
            concurrency=options.concurrency,
            queues=options.queues,
            grace=options.grace,
            declares=options.declares,
            app_version=options.app_version,
            max_jobs=options.max_jobs,
            max_memory=options.max_memory,
        )
        worker = begin(make, signals.stop.is_set)
        if worker is None:
            return 0
        worker.program = options.program
        worker.run(signals.stop, signals.at_once)
        if worker.given_back:
            _log.log(NOTICE, "%d jobs were given back unfinished", worker.given_back)
        jobs.close()
        if worker.is_stuck:
            _log.error("the worker hangs in jobs that have taken too long: starting anew")
            return STUCK
        if worker.has_left:
            return LEFT
        return SPENT if worker.is_spent else 0


class _Output(io.FileIO):
    """The descriptor of a standard stream. It drops what is refused: no job fails by a print.

    A job may close the descriptor, and then a connection to the store gets its number: what is
    written is dropped, too.
    """

    def __init__(self, descriptor: int, mode: str, closefd: bool = True) -> None:
        super().__init__(descriptor, mode, closefd)
        self._was_socket = self._is_socket()

    def _is_socket(self) -> bool:
        return stat.S_ISSOCK(os.fstat(self.fileno()).st_mode)

    def write(self, data: Any) -> int:
        try:
            if self._is_socket() and not self._was_socket:
                return len(data)
            while (written := super().write(data)) is None:  # it is non-blocking and full
                select([], [self], [])
            return written
        except OSError:
            return len(data)


class _Stream(io.TextIOWrapper):
    """Stdout or stderr of a child; jobs share it, so none can close it."""

    def close(self) -> None:
        self.flush()


def _keep_output() -> None:
    """Write prints of jobs line by line, and drop them once nobody reads the output."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is not None:
            buffer = io.BufferedWriter(_Output(number, "w", closefd=False))
            text = _Stream(buffer, stream.encoding, stream.errors, line_buffering=True)
            setattr(sys, name, text)


def main(settings: str) -> None:
    """Run ``work`` with the options in JSON ``settings``; end the process with all its threads."""
    options = json.loads(settings)
    control, dump = options.pop("control"), options.pop("dump")
    _keep_output()
    code = work(WorkOptions(**{**options, "queues": tuple(options["queues"])}), control, dump)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a job may have closed or replaced it
            stream.flush()
    os._exit(code)  # a thread that hangs would keep the process


# --- the parent ---------------------------------------------------------------------------------


class Child:
    """A process of a Worker, which is started again when it dies."""

    def __init__(self, options: WorkOptions) -> None:
        self._settings = asdict(options)
        self.process: subprocess.Popen[bytes] | None = None
        self.beats: Beats | None = None
        self.dump: Dump | None = None
        self.kill_at = inf
        """When to kill it: it was asked to stop and cannot."""
        self.is_leaving = self.has_left = False
        """Whether it was asked to end, and whether it has ended: it is not started again then, even
        if a job has killed it meanwhile."""
        self._is_killed = False
        self._begun = 0.0
        self._pause_s = PAUSE_S
        self._again_at = 0.0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self._begun = monotonic()
        self._is_killed = False
        ours, theirs = socket.socketpair()
        self.dump, self.kill_at = Dump(), inf
        passed = {"control": theirs.fileno(), "dump": self.dump.fileno()}
        settings = json.dumps({**self._settings, **passed})
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kvstream.jobs.processes", settings],
                stdin=subprocess.DEVNULL,
                pass_fds=[*passed.values()],
                start_new_session=True,  # Ctrl-C is for the parent, which passes it on
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.beats = Beats(ours)

    def restart_if_dead(self) -> str:
        """Start the process again, after a pause, if it has died.

        Return the name of the worker that has just died, or an empty string.
        """
        if self.is_running or self.has_left:
            return ""
        now, dead = monotonic(), ""
        if self.process is not None:
            has_worked = self.beats is not None and self.beats.has_begun()
            dead = self.name if has_worked else ""
            code, self.process = self._reap(self.process), None
            if code == LEFT or self.is_leaving:
                self.has_left = True
                return dead
            lived = now - self._begun
            longest = PAUSE_BEGUN_MAX_S if has_worked else PAUSE_MAX_S
            self._pause_s = PAUSE_S if lived >= STEADY_S else min(2 * self._pause_s, longest)
            is_at_once = code in (STUCK, SPENT) or self._is_killed
            self._again_at = now + (0 if is_at_once else self._pause_s)
            if code != SPENT:
                _log.error("a worker has ended with code %s and is started anew", code)
        if now >= self._again_at:
            self.start()
        return dead

    @property
    def name(self) -> str:
        """The name of its worker, once it has begun to work."""
        return "" if self.beats is None else self.beats.consumer.decode()

    def kill(self) -> None:
        """Kill the process, which hangs; it is started again without a pause."""
        self._is_killed = True
        self.send(signal.SIGKILL)

    def _reap(self, process: subprocess.Popen[bytes]) -> int:
        if self.beats is not None:
            self.beats.close()
        if self.dump is not None:
            self.dump.close()
        return process.wait()

    def send(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def end(self) -> None:
        """Kill the process if it still runs; wait for its end."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            process.kill()
        self._reap(process)


class AnyConsole(Protocol):
    """The web console beside the workers, which the command line gives."""

    def start(self, place: Any) -> None: ...

    def stop(self) -> None: ...


class Supervisor:
    """The parent of ``kvstream work``."""

    def __init__(
        self,
        options: WorkOptions,
        processes: int,
        *,
        reload: bool = False,
        console: AnyConsole | None = None,
    ) -> None:
        self._options, self._console = options, console
        program = f"{socket.gethostname()}-{os.getpid()}"
        self._program = program
        of_child = replace(options, declares=reload, program=program)  # else the parent declares
        self._children = [Child(of_child) for _ in range(processes)]
        self._sources = Sources(Path(options.folder)) if reload else None
        self._ended = threading.Event()
        self._ending = Interrupt()
        """Ends the thread that reads requests."""
        self._dead: SimpleQueue[str] = SimpleQueue()
        """Names of workers that have died, whose entries in the registry are to be removed."""

    @property
    def pids(self) -> list[int]:
        """The processes of the children that run."""
        return [each.process.pid for each in self._children if each.process and each.is_running]

    def run(self, signals: Signals) -> None:
        """Keep the children running until a signal comes and all have ended."""
        jobs = jobs_of(self._options.target, self._options.folder)
        jobs.share()
        renewal = begin(partial(self._declare, jobs), signals.stop.is_set)
        if renewal is None:
            jobs.close()
            return
        _log.log(
            NOTICE,
            "workers of %s begin: processes: %d, jobs at a time in each: %d, queues: %s",
            jobs.name,
            len(self._children),
            self._options.concurrency,
            ", ".join(queues_of_pools(jobs.tasks.values(), self._options.queues)),
        )
        keeper = threading.Thread(
            target=self._renew, args=(renewal,), name="kvstream-jobs-renewal", daemon=True
        )
        keeper.start()
        reader = threading.Thread(
            target=self._read_requests, args=(jobs,), name="kvstream-jobs-requests", daemon=True
        )
        reader.start()
        if self._console is not None:
            self._console.start(jobs)
        try:
            while not signals.stop.is_set():
                for child in self._children:
                    self._end_if_late(child, renewal)
                    if dead := child.restart_if_dead():
                        self._dead.put(dead)
                if all(child.has_left for child in self._children):
                    _log.log(NOTICE, "all workers have ended, as was asked through the store")
                    return
                if self._sources is not None and self._sources.have_changed():
                    _log.log(NOTICE, "a source file has changed: starting the workers anew")
                    self._stop_children(signals, renewal)
                signals.stop.wait(LOOK_S)
            _log.log(NOTICE, "stopping: jobs have %g s to finish", self._options.grace)
            self._stop_children(signals, renewal)
        finally:
            for child in self._children:
                child.end()
            self._ended.set()
            self._ending.set()
            keeper.join(LATE_S)
            self._forget_dead(renewal)
            if self._console is not None:
                self._console.stop()
            jobs.close()

    def _declare(self, jobs: Jobs) -> Renewal:
        renewal = Renewal(jobs, self._options.queues)  # InvalidArgument for an unknown queue
        jobs.declare()
        return renewal

    def _renew(self, renewal: Renewal) -> None:
        """Renew the leases of children that live and are silent."""
        while not self._ended.wait(renewal.every_s):
            for child in self._children:
                beats = child.beats
                if beats is not None and child.is_running:
                    try:
                        renewal.renew(beats, child.kill)
                        self._forget_dead(renewal)
                    except Exception as error:  # this thread keeps the leases of all children
                        text = "leases are not renewed as they should be"
                        job_log.log_problem(_log, logging.ERROR, text, error=error)

    def _end_if_late(self, child: Child, renewal: Renewal) -> None:
        """End a child that was asked through the store to stop, and cannot: give its jobs back."""
        if monotonic() < child.kill_at or not child.is_running or child.beats is None:
            return
        _log.error("worker %s does not stop: killing it", child.name)
        beats, name = child.beats, child.name
        child.has_left, child.kill_at = True, inf
        child.end()
        renewal.give_back(beats)
        self._dead.put(name)

    def _read_requests(self, jobs: Jobs) -> None:
        """Obey requests for children whose jobs hold Python's lock, until the end."""
        requests = Requests(jobs, self._ending)
        while not self._ending.is_set():
            try:
                requests.begin()
                for request, fields in requests.read(REQUESTS_S):
                    self._obey(jobs, request, fields)
            except StoreClosed:
                return
            except Exception as error:  # the workers are to stay reachable
                if not isinstance(error, KVStreamError):
                    job_log.log_problem(_log, logging.ERROR, "a request has failed", error=error)
                self._ending.wait(REQUESTS_S)

    def _obey(self, jobs: Jobs, request: StreamID, fields: Fields) -> None:
        command = command_of(fields)
        if command in (registry.DRAIN, registry.STOP):
            for child in self._children:
                if is_for(fields, child.name, self._program):
                    child.is_leaving = True
                    if command == registry.STOP:
                        child.kill_at = monotonic() + self._options.grace + LATE_S
        elif command == registry.STACK:
            self._answer_for_silent(jobs, request, job_in(fields))

    def _answer_for_silent(self, jobs: Jobs, request: StreamID, job_id: str) -> None:
        """Answer with a dump if a child has the job and does not answer itself."""
        if registry.reply_to(jobs, request).read(MIN_ID, block=ANSWER_S):
            return
        for child in self._children:
            function = function_of(jobs, child.name, job_id) if child.is_running else None
            if function is not None and child.process is not None and child.dump is not None:
                text = of_dump(child.dump.read(child.process), function)
                if text:
                    answer(jobs, request, JobStack(child.name, "process", text))
                return

    def _forget_dead(self, renewal: Renewal) -> None:
        """Remove workers that have died from the registry."""
        while not self._dead.empty():
            renewal.forget(self._dead.get())

    def _stop_children(self, signals: Signals, renewal: Renewal) -> None:
        """Pass stop signals on to the children; kill those that are late."""
        deadline = monotonic() + self._options.grace + LATE_S
        sent = 1
        self._send(signal.SIGTERM)
        while any(child.is_running for child in self._children) and monotonic() < deadline:
            if signals.at_once.is_set() and sent < 2:
                sent = 2
                deadline = min(deadline, monotonic() + LATE_S)
                self._send(signal.SIGTERM)
            time.sleep(STOPPING_LOOK_S)
        for child in self._children:
            hangs, beats = child.is_running, child.beats
            child.end()
            if hangs and beats is not None:
                renewal.give_back(beats)
                renewal.forget(beats.consumer.decode())

    def _send(self, number: int) -> None:
        for child in self._children:
            child.send(number)


def function_of(jobs: Jobs, consumer: str, job_id: str) -> str | None:
    """Return the name of the function of a job that a worker has in work; None if it has not."""
    for queue in jobs.queues() if consumer else ():
        for message in queue.messages_of(consumer.encode()):
            if has_id(message.fields, message.id, job_id):
                name = message.fields.get(TASK, b"").decode("utf-8", "replace")
                task = jobs.find_task(name)
                return "" if task is None else getattr(task.function, "__name__", "")
    return None


class Sources:
    """The Python files of a folder, whose changes restart the workers in development."""

    _SKIPPED = frozenset({"__pycache__", ".git", ".venv", "venv", "node_modules"})

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._times = self._modification_times()

    def _modification_times(self) -> dict[str, int]:
        times: dict[str, int] = {}
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [each for each in folders if each not in self._SKIPPED]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    with suppress(OSError):
                        times[path] = os.stat(path).st_mtime_ns
        return times

    def have_changed(self) -> bool:
        """Return whether a file has changed, come or gone since the last call."""
        before, self._times = self._times, self._modification_times()
        return before != self._times


def supervise(
    options: WorkOptions,
    processes: int,
    *,
    reload: bool = False,
    unused: Sequence[str] = (),
    console: AnyConsole | None = None,
) -> None:
    """Run workers in ``processes`` children until SIGTERM or Ctrl-C; the program ends then.

    ``unused``: environment variables that name another place; the log says that they are ignored.
    ``console`` shows the Jobs while the workers run.
    """
    fill_streams()
    signals = Signals()
    signals.receive()
    with logging_to(None, options.log_format, options.log_level):
        job_log.show(options.job_log, options.log_level)
        for name in unused:
            _log.log(NOTICE, "the place is that of %s, not that of %s", options.target, name)
        Supervisor(options, processes, reload=reload, console=console).run(signals)
        for number in _SIGNALS:  # a late one must not end the program with an error
            signal.signal(number, signal.SIG_IGN)


def queue_list(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names in options such as ``--queues mail,images``."""
    return tuple(each.strip() for name in names for each in name.split(",") if each.strip())


if __name__ == "__main__":
    main(sys.argv[1])
