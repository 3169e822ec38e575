"""The checks of a server before it opens its store, and its warnings when it starts.

A file that the settings name and that cannot be used is an error: a server that goes on without it
would run with other users, other certificates or no checkpoints, and nobody would notice.
"""

import errno
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from ssl import SSLContext

from kvstream.errors import InvalidArgument
from kvstream.server.acl import Acl
from kvstream.server.commands import TABLE
from kvstream.server.net import tls
from kvstream.server.net.asyncio_server import is_local
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.executor import Executor

_log = logging.getLogger(__name__)


def check(options: ServerOptions) -> SSLContext | None:
    """Check every file and folder that the options name; return the context of TLS, if it is used.

    Raises InvalidArgument, which names the option, the path and the reason.
    """
    context = tls.load(options) if options.tls_port else None
    if context is None:
        tls.check_files(options)
    _check_users(options)
    if options.unixsocket is not None:
        _check_folder("unixsocket", options.unixsocket, options.unixsocket.parent)
    if options.checkpoint_dir is not None:
        _check_folder(
            "checkpoint-dir", options.checkpoint_dir, _find_existing(options.checkpoint_dir)
        )
    return context


def _check_users(options: ServerOptions) -> None:
    if options.aclfile is None:
        return
    try:
        Acl(TABLE, file=options.aclfile)
    except InvalidArgument as error:
        missing = isinstance(error.__cause__, FileNotFoundError)
        advice = ". To start without users, create an empty file" if missing else ""
        raise InvalidArgument(f"aclfile: {error}{advice}") from None


def _check_folder(option: str, path: Path, folder: Path) -> None:
    """Raise InvalidArgument unless files can be made in a folder, which ``path`` needs."""
    try:
        mode = folder.stat().st_mode
    except OSError as error:
        reason = error.errno
    else:
        reason = errno.EACCES if stat.S_ISDIR(mode) else errno.ENOTDIR
        if reason == errno.EACCES and os.access(folder, os.W_OK | os.X_OK):
            return
    raise InvalidArgument(f"{option} {path}: the folder {folder}: {os.strerror(reason or 0)}")


def _find_existing(path: Path) -> Path:
    """Return the path itself if it exists, else the lowest folder above it that does."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def warn_of_access(executor: Executor, hosts: Iterable[str]) -> None:
    """Warn if more clients can connect to ``hosts``, the served addresses, than it seems."""
    options, default = executor.options, executor.acl.default
    if options.aclfile is not None and options.requirepass:
        _log.warning("requirepass is without effect: the users are those of %s", options.aclfile)
    if options.tls_port == 0 and tls.list_files(options):
        _log.warning("tls-port is 0: no connection uses TLS, though certificates are named")
    if not executor.acl.is_open:
        return
    if options.aclfile is not None and default.free:
        text = "in %s the user default needs no password and may do everything"
        _log.warning(text, options.aclfile)
    if all(is_local((host,)) for host in hosts):
        return
    if options.protected_mode:
        _log.warning(
            "protected mode: clients of other machines are refused, as the user default needs no "
            "password. Set requirepass, or passwords in an aclfile, or give --no-protected-mode"
        )
    else:
        _log.warning(
            "clients of other machines need no password: protected mode is off, and neither "
            "requirepass nor an aclfile asks for one"
        )
