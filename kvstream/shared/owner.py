"""The owner of a shared store: the engine, and the Unix socket by which others use it.

::

    <store>/shared.sock      the socket, mode 0600; a killed owner leaves it behind

An owner locks the layout file before it opens the store, and until it has closed it. So a lock
without a socket shows that an owner is starting or ending, not that the store is not shared. The
requests of the socket run in a thread with an event loop of its own.

The modes of directory and socket keep other users out. Where the system names the user of a
connection, the owner also refuses the connections of other users, except root's.
"""

import asyncio
import fcntl
import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import quote

from kvstream.engine.engine import Engine
from kvstream.errors import KVStreamError, StoreError, StoreLocked, StoreReadOnly
from kvstream.inprocess.host import COMMANDS, OPTIONS
from kvstream.logs import DeferredLogger, Throttle
from kvstream.server.net.asyncio_server import BACKLOG, Connection, Listener
from kvstream.server.runtime.executor import Executor
from kvstream.server.serving import hand_over
from kvstream.storage import directory as directories
from kvstream.storage import files
from kvstream.storage.directory import LAYOUT_FILE
from kvstream.storage.files import FILE_MODE
from kvstream.types.clock import monotonic
from kvstream.types.options import StoreOptions

SOCKET = "shared.sock"
GRACE_S = 1.0
"""Seconds to wait for the lock of a store that nobody seems to share: the locks of a killed process
end one after another."""
IDLE_S = 5.0
"""Seconds without a client after which a process that owns a store for others ends."""
_LOOK_S = 0.5
HAND_OVER_S = 10.0
"""Seconds for clients to take their last replies when the owner closes."""
_SETTLE_STEPS = 3
"""Iterations of the event loop until an accepted connection is a client, or a closed one gone."""
_PATH_MAX = 100
"""Bytes of a socket's path that every system takes; Linux takes 108."""
_DESCRIPTORS = Path("/proc/self/fd")
_REFUSED_S = 1.0
"""Seconds that a refused connection stays open, so that its client can read why."""
_LINUX_PEER = struct.Struct("3i")
"""``struct ucred``: the process, the user and the group."""
_BSD_PEER = struct.Struct("2I")
"""The beginning of ``struct xucred``: a version and the user."""
_SOL_LOCAL, _BSD_PEER_SIZE = 0, 76

_log = DeferredLogger(__name__)
_refusals = Throttle()


class Place:
    """The directory of a shared store, and the path of its socket."""

    def __init__(self, directory: Path, trusts_group: bool = False) -> None:
        """``trusts_group``: the group may have write permission (StoreOptions.trust_group)."""
        self.directory = Path(os.path.realpath(directory))
        self._trusts_group = trusts_group
        self._descriptor: int | None = None
        self._link: Path | None = None
        self._made: os.stat_result | None = None
        """The socket that this process has made."""

    @property
    def address(self) -> str:
        """A path of the socket that is short enough.

        A long one leads through a descriptor of the directory, which stays open, or on a system
        without such paths through a link in a private folder of temporary files.
        """
        path = self.directory / SOCKET
        if len(os.fsencode(path)) <= _PATH_MAX:
            return str(path)
        if not _DESCRIPTORS.is_dir():
            return str(self._link_path() / SOCKET)
        if self._descriptor is None:
            self._descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return str(_DESCRIPTORS / str(self._descriptor) / SOCKET)

    def _link_path(self) -> Path:
        """Return a short link to the directory."""
        if self._link is None:
            folder = Path(tempfile.mkdtemp(prefix="kvstream-"))
            self._link = folder / "s"
            self._link.symlink_to(self.directory)
        if len(os.fsencode(self._link / SOCKET)) > _PATH_MAX:
            raise StoreError(
                f"{self.directory} is too long for the path of a socket, and so is "
                f"{self._link.parent}: open the store by a shorter path, or set TMPDIR to one"
            )
        return self._link

    @property
    def url(self) -> str:
        return f"unix://{quote(self.address)}"

    def listen(self) -> socket.socket:
        """Return a new socket in place of one that a killed owner has left."""
        path = self.address
        listening = socket.socket(socket.AF_UNIX)
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)
            listening.bind(path)
            os.chmod(path, FILE_MODE)  # before listen: until then nobody gets in
            self._made = os.stat(path)
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            raise StoreError(f"no socket can be made in {self.directory}: {error}") from None
        return listening

    def check(self) -> None:
        """Raise UnsafeDirectory if directory or socket belong to another user."""
        for path in (self.directory, self.directory / SOCKET):
            with suppress(FileNotFoundError):
                status = os.stat(path, follow_symlinks=False)
                directories.refuse_foreign(path, status, self._trusts_group)

    def remove_socket(self) -> None:
        """Remove the socket that this process has made, unless another owner has replaced it."""
        with suppress(OSError):
            if self._made and os.path.samestat(self._made, os.stat(self.address)):
                os.unlink(self.address)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        link, self._link = self._link, None
        if link is not None:
            files.remove(link.parent)


def peer_user(end: socket.socket) -> int | None:
    """Return the user of the process that made a connection; None if the system does not tell."""
    with suppress(OSError, struct.error):
        if hasattr(socket, "SO_PEERCRED"):
            size = _LINUX_PEER.size
            user: int = _LINUX_PEER.unpack(
                end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            )[1]
            return user
        if hasattr(socket, "LOCAL_PEERCRED"):  # macOS and BSDs
            found = end.getsockopt(_SOL_LOCAL, socket.LOCAL_PEERCRED, _BSD_PEER_SIZE)
            return cast(int, _BSD_PEER.unpack_from(found)[1])
    return None


class _Refused(asyncio.Protocol):
    """A refused connection, which ends when the client sends something."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.close()


class OwnConnection(Connection):
    """A connection of a process of the owner's user, or of root."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        user = peer_user(transport.get_extra_info("socket"))
        if user in (None, 0, os.geteuid()):
            super().connection_made(transport)
            return
        where = transport.get_extra_info("sockname")
        said = "a process of user %d may not use the shared store at %s"
        _refusals.log(_log, logging.WARNING, said, user, where)
        refused = cast(asyncio.Transport, transport)
        refused.write(
            b"-DENIED the shared store is that of user %d, and open to this user and root alone, "
            b"not to user %d\r\n" % (os.geteuid(), user)
        )
        refused.set_protocol(_Refused(refused))
        asyncio.get_running_loop().call_later(_REFUSED_S, refused.close)


async def _settle() -> None:
    for _ in range(_SETTLE_STEPS):
        await asyncio.sleep(0)


class OwnerBusy(StoreLocked):
    """Another process opens or closes the shared store."""


class Claim:
    """The lock on the layout file of a shared store."""

    def __init__(self, directory: Path) -> None:
        """Take the lock; raise StoreLocked if another process has it.

        A directory that holds no store yet has no lock: its first openers meet at the store's own.
        """
        self._descriptor = -1
        self._path = directory / LAYOUT_FILE
        self.take()
        directories.register(self)

    def take(self) -> None:
        if self._descriptor >= 0:
            return
        with suppress(OSError):  # the opening tells what is wrong
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holders = ", ".join(map(str, directories.holders_of(descriptor)))
                os.close(descriptor)
                raise OwnerBusy(
                    f"process {holders or '?'} is opening or closing the shared store in "
                    f"{self._path.parent}"
                ) from None
            self._descriptor = descriptor

    def release(self) -> None:
        directories.unregister(self)
        self.refuse_after_fork()

    def refuse_after_fork(self) -> None:
        """Close the descriptor: in a child, the lock then ends with the parent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Owner:
    """The open store of this process, served to the others."""

    def __init__(
        self, place: Place, options: StoreOptions, engine_type: type[Engine] = Engine
    ) -> None:
        """Open the store; raise StoreLocked if another process has it, by whatever means."""
        self._place = place
        self._claim = Claim(place.directory)
        try:
            self.engine = engine_type(place.directory, options)
            try:
                self._claim.take()  # of a store that was made just now
                self._server = SocketServer(self.engine, place.listen())
            except BaseException:
                self.engine.close()
                raise
        except BaseException:
            self._claim.release()
            raise

    @property
    def clients(self) -> int:
        """The number of connections."""
        return self._server.clients

    def close(self) -> None:
        """Finish the requests that have come, close the store, and let another process have it."""
        self._place.remove_socket()
        try:
            self._server.stop()
        finally:
            try:
                with suppress(StoreReadOnly):  # the next write of each client raises it
                    self.engine.close()
            finally:
                self._claim.release()


class OwnerProcess:
    """A process that owns a store for processes that cannot.

    A process that was forked after its parent had opened a store lacks the threads of RocksDB, so
    it cannot open one itself.
    """

    def __init__(self, directory: Path, options: StoreOptions) -> None:
        settings = pickle.dumps((directory, options)).hex()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvstream.shared.owner", settings],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the program
        )

    def is_over(self) -> bool:
        """Return whether it has ended since another one owns the store; StoreError if it failed."""
        code = self._process.poll()
        if code:
            message = self._process.communicate()[1].decode(errors="replace").strip()
            raise StoreError(f"no process can own the shared store: {message}")
        return code is not None


class SocketServer:
    """A thread that serves a store on a Unix socket."""

    def __init__(self, engine: Engine, listening: socket.socket) -> None:
        self._engine, self._socket = engine, listening
        self._executor: Executor | None = None
        self._ready, self._stopping = threading.Event(), asyncio.Event()
        self._error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._loop.time = monotonic  # type: ignore[method-assign]  # a frozen clock fires no timer
        directories.register(self)
        self._thread = threading.Thread(target=self._run, name="kvstream-shared", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            directories.unregister(self)
            raise StoreError(f"the shared store cannot be served: {self._error}") from self._error

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        # Finalizers of the program may run in this thread, between any two steps of the executor.
        self._engine.entered[threading.get_ident()] = True
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:
            self._error = error
            raise
        finally:
            self._engine.entered.pop(threading.get_ident(), None)
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        listener = Listener(self._engine, COMMANDS, OPTIONS)
        executor = self._executor = listener.executor
        server = await self._loop.create_unix_server(
            partial(OwnConnection, listener), sock=self._socket, backlog=BACKLOG
        )
        self._ready.set()
        await self._stopping.wait()
        listener.stop_accepting()
        self._loop.remove_reader(self._socket)
        await _settle()  # a closed server leaves the socket of a new connection open (CPython)
        server.close()
        await hand_over(executor, HAND_OVER_S)
        await _settle()

    @property
    def clients(self) -> int:
        return 0 if self._executor is None else len(self._executor.clients)

    def stop(self) -> None:
        """Take no more connections, finish the requests of the present ones, and end the thread."""
        with suppress(RuntimeError):  # the thread has failed, and closed its loop
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        directories.unregister(self)

    def refuse_after_fork(self) -> None:
        """Detach the child from the parent's sockets, so that they end with the parent.

        Their numbers stay taken: the child must not close others under the same numbers.
        """
        directories.leak(self)
        clients = () if self._executor is None else self._executor.clients.values()
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in (self._socket.fileno(), *(client.descriptor for client in clients)):
            if descriptor >= 0:
                os.dup2(null, descriptor, inheritable=False)
        os.close(null)


def main(settings: str) -> int:
    """Own a store, unless another process does, until it has had no client for a while."""
    directory, options = pickle.loads(bytes.fromhex(settings))
    until = monotonic() + GRACE_S
    owner = None
    while owner is None:
        try:
            owner = Owner(Place(directory, options.trust_group), options)
        except OwnerBusy:
            return 0
        except KVStreamError as error:
            if not isinstance(error, StoreLocked) or monotonic() >= until:
                print(error, file=sys.stderr)
                return 1
            time.sleep(_LOOK_S / 10)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stderr.fileno())  # nobody reads it any more
    idle_at = monotonic() + IDLE_S
    while monotonic() < idle_at:
        if owner.clients:
            idle_at = monotonic() + IDLE_S
        time.sleep(_LOOK_S)
    owner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
