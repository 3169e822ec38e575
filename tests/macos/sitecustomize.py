"""Take from Python what it lacks on macOS: every process with this folder in PYTHONPATH loads it.

F_FULLFSYNC, which Linux lacks, is counted, and done as an fsync.
"""

import builtins
import fcntl
import io
import os
import resource
import select
from collections.abc import Callable
from typing import Any

for name in ("epoll", "EPOLLIN", "EPOLLOUT"):  # before ``socket`` imports ``selectors``
    if hasattr(select, name):
        delattr(select, name)

import socket  # noqa: E402

LACKING: dict[Any, tuple[str, ...]] = {
    os: (
        *("getxattr", "listxattr", "removexattr", "setxattr"),
        *("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate"),
        *("memfd_create", "eventfd", "pidfd_open", "copy_file_range", "splice", "pipe2"),
        *("O_DIRECT", "O_PATH", "O_TMPFILE", "O_NOATIME"),
    ),
    resource: ("RUSAGE_THREAD", "prlimit"),
    socket: ("SO_PEERCRED", "MSG_MORE", "TCP_USER_TIMEOUT", "TCP_QUICKACK", "TCP_CORK"),
}
FULL_SYNC = 51
synced = 0
"""How often the drive was asked to write its cache out."""


def _without_proc(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function on paths for which there is no /proc."""

    def call(path: Any = ".", *args: Any, **options: Any) -> Any:
        if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *args, **options)

    return call


_fcntl = fcntl.fcntl


def _sync_or(descriptor: Any, command: int, *args: Any) -> Any:
    global synced
    if command != FULL_SYNC:
        return _fcntl(descriptor, command, *args)
    synced += 1
    os.fsync(descriptor)
    return 0


for module, names in LACKING.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in ("stat", "lstat", "open", "listdir", "readlink", "scandir"):
    setattr(os, name, _without_proc(getattr(os, name)))
builtins.open = io.open = _without_proc(io.open)
setattr(fcntl, "F_FULLFSYNC", FULL_SYNC)  # noqa: B010
setattr(fcntl, "fcntl", _sync_or)  # noqa: B010
