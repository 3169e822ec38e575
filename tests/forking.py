"""A fork server for the processes of tests: it has imported what they need.

The imports of a new process take a third of a second of the processor, and a run of all tests
starts a thousand processes. ``start`` returns a ``subprocess.Popen``. A forked process is a child
of this one, with its own arguments, environment, streams, signals and exit code.

``start`` makes a new process where a fork would differ from it: see ``_can_fork``. Tests of a start
itself, of imports, or of the command line that the system shows use ``subprocess``.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

IMPORTED = (
    *("kvstream.server.serving", "kvstream.shared", "kvstream.aio", "kvstream.remote"),
    *("kvstream.cli.serve", "kvstream.cli.consume", "kvstream.cli.entries", "kvstream.jobs"),
    *("coverage", "redis", "uvloop"),
)
"""What the fork server imports; none of it starts a thread, which a fork would not have."""

_ROOT = str(Path(__file__).resolve().parent.parent)
_OPTIONS = frozenset({"cwd", "env", "stdin", "stdout", "stderr", "text", "start_new_session"})
"""The options of ``subprocess.Popen`` that forks support."""
_READ_AT_START = ("PYTHON", "KVSTREAM_PURE", "LC_", "LANG", "TZ", "LD_", "MALLOC_")
"""Prefixes of the variables that a process reads when it starts or imports."""
_PRELOAD = "LD_PRELOAD"
"""The one for which there is a fork server of its own: of processes with the fault shim."""
_SUPPORTED = ("PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", _PRELOAD)
"""Those of them that forks support: where imports find and write files, and the fault shim."""
MEASURED = "COVERAGE_PROCESS_CONFIG"
"""The variable with which coverage measures a process; a fork starts that itself."""
_REQUEST_MAX = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36
_READY, _ORPHANED = b"ready", b"orphaned"
_STREAMS = ("stdin", "stdout", "stderr")
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_ENDED = frozenset({"__main__", "builtins", "sys"})
"""Modules that the end of a fork still destroys: ``__main__`` is the program."""
_LOCK = threading.Lock()
_ARGUMENTS = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """Start a Python program as ``subprocess.Popen`` does, by a fork where that is the same."""
    return (_Fork if _can_fork(command, options) else subprocess.Popen)(command, **options)


def run(
    command: Sequence[str], *, timeout: float, **options: Any
) -> "subprocess.CompletedProcess[Any]":
    """Run a Python program to its end, as ``subprocess.run`` does, and capture its output."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with start(command, **pipes) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _can_fork(command: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Return whether a fork of the server is the same as a new process."""
    return (
        sys.platform == "linux"
        and command[0] == sys.executable
        and command[1] in ("-m", "-c")
        and options.keys() <= _OPTIONS
        and _read_at_start(options.get("env") or os.environ) == _SERVER_ENVIRONMENT
        and _PRELOAD not in os.environ
    )


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and name not in _SUPPORTED
    }


_SERVER_ENVIRONMENT = _read_at_start(os.environ)


@functools.cache
def _fork_server(of: int, preload: str | None) -> socket.socket:
    """Start a fork server of this process, ``of``; return a socket for requests to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = f"import tests.forking; tests.forking.serve({theirs.fileno()})"
    environment = {x: y for x, y in os.environ.items() if not x.startswith(_READ_AT_START)}
    environment.pop(MEASURED, None)
    if preload is not None:
        environment[_PRELOAD] = preload
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment | _SERVER_ENVIRONMENT | {"PYTHONPATH": _ROOT},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    theirs.close()
    assert ours.recv(64) == _READY, "the fork server has not started"

    def end() -> None:
        if os.getpid() == of:
            ours.close()
            process.kill()
            process.wait()

    atexit.register(end)
    return ours


class _Fork(subprocess.Popen[Any]):
    """A process that the fork server has made for this one."""

    def _execute_child(self, *values: Any) -> None:
        given = _ARGUMENTS.bind(self, *values).arguments
        request = {
            "command": [str(word) for word in given["args"]],
            "directory": os.fspath(given["cwd"] or os.getcwd()),
            "environment": dict(given["env"] or os.environ),
            "new_session": given["start_new_session"],
        }
        ends = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [number if end == -1 else end for number, end in enumerate(ends)]
        preload = request["environment"].get(_PRELOAD)
        self.pid = _forked(json.dumps(request).encode(), streams, preload)
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in _PIPES))  # type: ignore[attr-defined]


def _forked(request: bytes, streams: Sequence[int], preload: str | None) -> int:
    """Ask for a fork, and return its process ID; it is a child of this process.

    The server forks twice, and the process between ends. Linux gives the orphan to its nearest
    ancestor that is a subreaper: this process, for that moment.
    """
    with _LOCK:
        channel = _fork_server(os.getpid(), preload)
        _become_subreaper(True)
        try:
            socket.send_fds(channel, [request], streams)
            answers = {channel.recv(64), channel.recv(64)}  # in any order
            assert _ORPHANED in answers, "the fork server has ended"
        finally:
            _become_subreaper(False)
    (number,) = answers - {_ORPHANED}
    return int(number)


def _become_subreaper(does: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(does), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def serve(descriptor: int) -> None:
    """Fork for each request from a socket, until that is closed: the program of the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the tests
    channel = socket.socket(fileno=descriptor)
    preload(IMPORTED)  # where no server is installed, or no coverage, some are missing
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has no thread but the one that forks"
    channel.send(_READY)
    while (received := socket.recv_fds(channel, _REQUEST_MAX, 3))[0]:
        between = os.fork()
        if not between and not os.fork():
            request = json.loads(received[0])
            if request.pop("new_session"):
                os.setsid()  # before `start` returns, after which a test may kill the group
            channel.send(str(os.getpid()).encode())
            channel.close()
            become(**request, streams=received[1])
            return
        if not between:
            os._exit(0)
        os.waitpid(between, 0)
        channel.send(_ORPHANED)
        for stream in received[1]:
            os.close(stream)


def preload(names: Sequence[str]) -> None:
    """Import the modules that are installed, and let no fork take them, or their imports, apart.

    Python ends with the destruction of all modules. In a fork that copies nearly every page that it
    shares with the server: a twentieth of a second of the processor, ten times what the fork costs.
    What the program itself has made is destroyed as ever.
    """
    kept: dict[str, ModuleType] = {}

    def end() -> None:
        for name in kept:
            sys.modules.pop(name, None)

    atexit.register(end)  # before those of the modules, so that it runs after them
    for name in names:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    kept.update((name, each) for name, each in sys.modules.items() if name not in _ENDED)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    gc.collect()
    gc.freeze()


def _open(number: int) -> None:
    """Make a standard stream for its new descriptor, as the start of Python does."""
    name = _STREAMS[number]
    before = getattr(sys, name)
    file: Any = io.FileIO(number, "w" if number else "r", closefd=False)
    if not before.write_through:  # PYTHONUNBUFFERED is not set
        file = io.BufferedWriter(file) if number else io.BufferedReader(file)
    lines = not before.write_through and (name == "stderr" or os.isatty(number))
    stream = io.TextIOWrapper(
        *(file, before.encoding, before.errors),
        line_buffering=lines,
        write_through=before.write_through,
    )
    for each in (name, f"__{name}__"):
        setattr(sys, each, stream)


def become(
    command: list[str],
    directory: str,
    environment: dict[str, str],
    streams: Sequence[int],
) -> None:
    """Run ``python -m module ...`` or ``python -c program ...`` in this process, a fork.

    The fork server was started with ``-c`` and its root as PYTHONPATH.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    if library := environment.get(_PRELOAD):
        ctypes.CDLL(library).faultshim_start()
    for number, stream in enumerate(streams):
        os.dup2(stream, number, inheritable=True)
        os.close(stream)
        _open(number)
    _, how, what, *arguments = sys.orig_argv = command
    # The first two are those of the server: its own folder, and the root.
    searched = environment.get("PYTHONPATH", "")
    sys.path[:2] = ["" if how == "-c" else os.getcwd(), *filter(None, searched.split(":"))]
    sys.pycache_prefix = environment.get("PYTHONPYCACHEPREFIX")
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    sys.argv = [how, *arguments]
    if MEASURED in environment:
        importlib.import_module("coverage").process_startup()
    if how == "-m":
        runpy._run_module_as_main(what)  # type: ignore[attr-defined]
    else:
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
