"""Limits: connections, idle time, output and query buffers, and the memory of the process.

The network layer asks before it accepts a connection and after it has written to one; ``tick`` is
called once a second. The memory figures of INFO and MEMORY are taken here too.
"""

import logging
import os
import resource
import sys
from contextlib import suppress
from ctypes import CDLL
from dataclasses import dataclass
from threading import Thread
from typing import Protocol

from kvstream.commands.replies import ErrorReply
from kvstream.errors import InvalidArgument
from kvstream.logs import DeferredLogger, Throttle
from kvstream.resp.replies import encode
from kvstream.server.options import OutputLimit
from kvstream.server.runtime.client import READ_AHEAD, STRANGER_AHEAD, Client, Server
from kvstream.server.runtime.client_state import ClientState, Event
from kvstream.server.runtime.dispatch import Dispatcher
from kvstream.server.runtime.pubsub import PubSub
from kvstream.server.runtime.reply_queue import ReplyStreaming
from kvstream.server.runtime.xadd_batching import XaddBatch
from kvstream.storage.batch import Family
from kvstream.storage.options import OPEN_FILES_MAX, open_files_max
from kvstream.types.machine import peak_memory
from kvstream.types.options import OUTPUT_MAX

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM_MAX = 200
"""Bytes: seven numbers."""


class LimitedServer(Server, Protocol):
    """The executor as its limits see it."""

    dispatcher: Dispatcher
    streaming: ReplyStreaming
    pubsub: PubSub
    xadd_batches: list[XaddBatch]


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory in use, in bytes."""

    used: int
    """Resident memory of the process."""
    peak: int
    reply_cache: int
    """The cache of encoded entries."""
    blocks: int
    """RocksDB's block cache."""
    memtables: int
    readers: int
    """Indexes and filters of open tables outside the block cache."""
    clients: int
    """Unrun requests and unread replies."""

    @property
    def data(self) -> int:
        return self.reply_cache + self.blocks + self.memtables + self.readers


def memory_of(server: LimitedServer) -> Memory:
    """Return the memory in use."""
    used = resident_bytes()
    database = server.engine.database
    return Memory(
        used=used,
        peak=max(used, peak_memory()),
        reply_cache=server.engine.catalog.reply_cache.memory,
        blocks=database.property_int("rocksdb.block-cache-usage", Family.MESSAGES),
        memtables=_of_families(server, "rocksdb.cur-size-all-mem-tables"),
        readers=_of_families(server, "rocksdb.estimate-table-readers-mem"),
        clients=sum(client_bytes(server, each) for each in server.clients.values()),
    )


def _of_families(server: LimitedServer, name: str) -> int:
    return sum(server.engine.database.property_int(name, family) for family in Family)


def client_bytes(server: LimitedServer, client: Client) -> int:
    """Return the bytes of a client's unrun requests and unread replies."""
    unsent = server.streaming.memory_of(client) + server.pubsub.memory_of(client)
    return client.query + client.pending_output() + unsent


def resident_bytes() -> int:
    """Return the resident memory of the process."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY)  # 6 us; read_text() takes 25
    except OSError:  # not Linux
        return peak_memory()
    try:
        return int(os.read(file, _STATM_MAX).split()[1]) * PAGE_BYTES
    finally:
        os.close(file)


def give_back() -> None:
    """Return free memory to the system, in a thread: it may take a while."""
    trim = getattr(CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        Thread(target=trim, args=(0,), name="kvstream-trim", daemon=True).start()


BEHIND_WAIT = 2 * READ_AHEAD
"""Bytes that a blocked client may send before its socket is paused. More than READ_AHEAD: the end
of a connection is noticed only after the bytes before it are read."""
STRANGER_UNREAD = 64 << 10
"""Bytes of unread replies of an unauthenticated client: only errors, and few."""
OTHER_FILES = 64
"""File descriptors of neither clients nor open tables: logs, tables that are being written,
listening sockets, checkpoints. A server at rest has 27."""
DESCRIPTORS = OPEN_FILES_MAX + OTHER_FILES
"""File descriptors reserved for the store and the server, beside those of clients."""
CLIENTS_LEAST = 8
"""Clients that are allowed although the store may need their descriptors."""
FILES_LEAST = 64
"""File descriptors without which no server starts: those at rest, ``CLIENTS_LEAST`` and some for
tables of the store."""
FIRST_BYTES_A_SECOND = 1024
"""A client whose first request arrives more slowly than this is not a Redis client."""
LOOKS_AT_CLIENTS = 16
"""How often the memory of clients is summed per ``maxmemory-clients`` bytes of traffic."""
WARN_S = 60.0
"""Seconds between two warnings of the same kind."""
MONITORS = OutputLimit(OUTPUT_MAX)
"""The limit of MONITOR clients if their class has none."""
_HTTP = frozenset({b"post", b"host:"})
"""The first words of HTTP lines: a browser was made to talk to this port."""
FULL = ErrorReply("ERR", "max number of clients reached")
_PROTECTED = ErrorReply(
    "DENIED",
    "Redis is running in protected mode because no password is set for the default user: this "
    "server takes connections from its own machine alone. To have it take others 1) start it with "
    "a password (requirepass), or set one from this machine by CONFIG SET requirepass; or 2) let "
    "users have passwords by ACL SETUSER and switch the default user off; or 3) where nobody else "
    "can reach this port, switch the protection off by CONFIG SET protected-mode no.",
)

_log = DeferredLogger(__name__)


class Limits:
    """The limits of one server, by its current options."""

    def __init__(self, server: LimitedServer) -> None:
        self._server = server
        self.entering = 0
        """Connections whose TLS handshake is under way."""
        self._refusals, self._cuts = Throttle(), Throttle()
        self._http = Throttle(1, WARN_S)
        self._evicted_at = -WARN_S
        self.measured = self.measure_at = 0
        """The bytes received and sent when the clients' memory was summed last, and when it is
        summed again."""
        """Bytes received and sent when the memory of clients was last summed."""
        self.recent_input = self.recent_output = 0
        """The most bytes of unrun requests, and of unread replies, of a client at the last sum."""
        self.near = 0
        """Bytes of unread replies below which no limit can be exceeded."""
        self.paused: dict[Client, None] = {}
        """Clients whose sockets are paused until their requests have run."""

    def has_room(self) -> bool:
        """Return whether one more client may connect."""
        server = self._server
        return len(server.clients) + self.entering < server.options.maxclients

    def refuse(self, address: str, error: ErrorReply) -> None:
        """Count and log a refused connection."""
        self._server.statistics.rejected_connections += 1
        why = "maxclients has been reached" if error is FULL else "protected mode, see its options"
        self._refusals.log(_log, logging.WARNING, "a connection of %s is refused: %s", address, why)

    def refusal(self, is_local: bool, address: str = "this process") -> bytes | None:
        """Return the error with which a new connection is refused, or None."""
        server, default = self._server, self._server.acl.default
        if not self.has_room():
            refusal = FULL
        elif server.options.protected_mode and not is_local and default.nopass and default.on:
            refusal = _PROTECTED
        else:
            return None
        self.refuse(address, refusal)
        return encode(refusal, 2)

    def admits(self, client: Client) -> bool:
        """Check a client's unread replies; return False if the client is to be disconnected."""
        pending = client.pending_output()
        if client.subscriptions is not None:
            pending += self._server.pubsub.unread_of(client)
        if not pending:
            client.output_over_since = None
            return True
        limit = self._output_limit(client)
        refused = not client.authenticated and pending > STRANGER_UNREAD
        if refused or 0 < limit.hard < pending or self._is_over_soft(client, limit, pending):
            self._server.statistics.output_disconnections += 1
            text = "%s is cut off: it has not read %d bytes of replies"
            self._cuts.log(_log, logging.WARNING, text, client.address, pending)
            client.handle(Event.CUT_OFF)
            return False
        return True

    def _output_limit(self, client: Client) -> OutputLimit:
        """Return the limit on a client's unread replies, by its class.

        A MONITOR client always has one: its replies have no end, and it may stop reading.
        """
        limits = self._server.options.output_limits
        limit = limits[b"normal" if client.subscriptions is None else b"pubsub"]
        return MONITORS if client.monitors and not (limit.hard or limit.soft) else limit

    def _is_over_soft(self, client: Client, limit: OutputLimit, pending: int) -> bool:
        if not 0 < limit.soft < pending:
            client.output_over_since = None
            return False
        now = self._server.clock()
        if client.output_over_since is None:
            client.output_over_since = now
        return now - client.output_over_since >= limit.seconds

    def pause_if_ahead(self, client: Client) -> None:
        """Pause a client's socket if too many of its requests have not run."""
        most = READ_AHEAD if client.authenticated else STRANGER_AHEAD
        client.look_at = client.bytes_in + most
        self.bound_clients()
        waiting = client.unread.size
        if client.block is not None and waiting <= BEHIND_WAIT:
            return
        waiting += client.parsed_bytes
        batches = (each for each in self._server.xadd_batches if each.client is client)
        waiting += sum(len(data) for each in batches for data, _names in each.entries)
        if waiting > most and client not in self.paused:
            self.paused[client] = None
            client.pause()

    def release(self) -> None:
        """Resume the sockets of paused clients whose requests have run."""
        waiting = {batch.client for batch in self._server.xadd_batches}
        for client in list(self.paused):
            over = not (client.requests or client.unread or client in waiting)
            waits = client.block is not None and client.unread.size <= BEHIND_WAIT
            if over or waits or client.closing:
                del self.paused[client]
                client.resume()

    def lets_queue(self, client: Client) -> bool:
        """Check the size of a client's MULTI queue; drop the client if it is too large."""
        queue = client.queue
        if queue is None or queue.size <= client.reader.query_max:
            return True
        self._server.statistics.input_disconnections += 1
        self._server.drop(client)
        return False

    def look_soon(self) -> None:
        """Sum the memory of clients after this turn."""
        self.measured = self.measure_at = sys.maxsize

    def bound_clients(self, look: bool = False) -> None:
        """Close the largest clients while all together exceed ``maxmemory-clients``.

        Their memory grows only with bytes received or sent, so it is summed again only after enough
        of those, or with ``look``.
        """
        server = self._server
        most, counted = server.options.clients_memory_max, server.statistics
        moved, step = counted.bytes_in + counted.bytes_out, most // LOOKS_AT_CLIENTS
        looks = look or not 0 <= moved - self.measured < step
        if most and not looks:
            self.measure_at = self.measured + step
            return
        self.measured, self.measure_at = moved, moved + step if most else sys.maxsize
        if not look and not most:
            return
        sizes = self._measure_clients()
        total = sum(sizes.values())
        if not most or total <= most:
            return
        for client in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if client.no_evict:
                continue
            self._note_evicted(client, sizes[client], total, most)
            server.drop(client)
            total -= sizes[client]
            if total <= most:
                return

    def _measure_clients(self) -> dict[Client, int]:
        """Return the bytes that each client takes, and note the largest buffers for INFO."""
        clients = self._server.clients.values()
        of_reply, of_channels = self._server.streaming.memory_of, self._server.pubsub.memory_of
        inputs = [client.query for client in clients]
        outputs = [client.pending_output() for client in clients]
        self.recent_input, self.recent_output = max(inputs, default=0), max(outputs, default=0)
        each = zip(clients, inputs, outputs, strict=True)
        return {
            client: sent + unread + of_reply(client) + of_channels(client)
            for client, sent, unread in each
        }

    def _note_evicted(self, client: Client, size: int, total: int, most: int) -> None:
        server = self._server
        server.statistics.evicted_clients += 1
        if server.clock() - self._evicted_at >= WARN_S:
            self._evicted_at = server.clock()
            _log.warning(
                "clients take %d bytes, more than the maxmemory-clients of %d: closed %s, which "
                "takes %d",
                *(total, most, client.address, size),
            )

    def drops_http(self, client: Client, word: bytes) -> bool:
        """Close a connection that speaks HTTP, so that the body of a POST is never run."""
        if word.lower() not in _HTTP:
            return False
        server = self._server
        text = "%s sends HTTP, maybe by somebody else's will: connection closed"
        self._http.log(_log, logging.WARNING, text, client.address)
        server.drop(client)
        return True

    def tick(self) -> None:
        """Close clients that are idle too long, or read or authenticate too slowly."""
        server = self._server
        now = server.clock()
        self.bound_clients(look=True)
        soft = server.options.output_limits[b"normal"].soft > 0
        for client in list(server.clients.values()):
            if self._is_over(client, now):
                server.drop(client)
            elif (soft or client.subscriptions is not None) and not self.admits(client):
                client.abort()

    def look_at_memory(self) -> None:
        """Refuse commands flagged DENYOOM while the process exceeds ``maxmemory``."""
        server = self._server
        most = server.options.maxmemory
        over_maxmemory = 0 < most < resident_bytes()
        if over_maxmemory is not server.dispatcher.over_maxmemory:
            text = "more than maxmemory is in use: commands that add are refused"
            _log.warning(text if over_maxmemory else "less than maxmemory is in use again")
        server.dispatcher.over_maxmemory = over_maxmemory

    def bound_replies(self) -> None:
        """Set the largest reply that operations may make, from the output buffer limit."""
        limits = self._server.options.output_limits
        self._server.engine.catalog.limits.reply_max = limits[b"normal"].hard
        used = (limits[b"normal"], limits[b"pubsub"])
        sizes = [size for limit in used for size in (limit.hard, limit.soft) if size > 0]
        self.near = min([*sizes, STRANGER_UNREAD])

    def fit_open_files(self) -> None:
        """Raise the limit of open files for ``maxclients``, or lower ``maxclients`` to it.

        A lowered ``maxclients`` is logged: the operator asked for more.
        """
        options = self._server.options
        wanted = options.maxclients
        possible = clients_possible(wanted)
        if possible == wanted:
            return
        options.maxclients = possible
        allowed, needed = _open_files_allowed(), wanted + DESCRIPTORS
        text = (
            "maxclients is lowered from %d to %d: this process may open %d files, and needs %d "
            "file descriptors, %d of them for the store. Raise the limit (ulimit -n, LimitNOFILE "
            "of systemd)"
        )
        if allowed < possible + OTHER_FILES + open_files_max():
            text += "; with so few the store may fail"
        _log.warning(text, wanted, possible, allowed, needed, DESCRIPTORS)

    def _is_over(self, client: Client, now: float) -> bool:
        options = self._server.options
        age = now - client.created
        if 0 < options.authentication_s <= age and _is_stranger(client, age):
            return True
        if client.state is not ClientState.RUNNABLE or client.monitors:
            return False
        if client.subscriptions is not None:
            return False
        return 0 < options.timeout <= now - client.last_used


def clients_possible(wanted: int) -> int:
    """Return how many clients the limit of open files allows, after raising it."""
    raise_open_files(wanted + DESCRIPTORS)
    left = _open_files_allowed() - OTHER_FILES - open_files_max()
    return min(wanted, max(left, CLIENTS_LEAST))


def require_open_files(clients: int) -> None:
    """Raise the limit of open files for so many clients; InvalidArgument if it is too low for any.

    Such a server would accept no connection, or its store would fail.
    """
    raise_open_files(clients + DESCRIPTORS)
    allowed = _open_files_allowed()
    if allowed < FILES_LEAST:
        raise InvalidArgument(
            f"this process may open {allowed} files, and a server needs at least {FILES_LEAST}, or "
            f"{clients + DESCRIPTORS} for {clients} clients: raise the limit (ulimit -n, "
            "LimitNOFILE of systemd)"
        )


def raise_open_files(wanted: int) -> None:
    """Raise the soft limit of open files to a number, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the system may allow less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _open_files_allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _is_stranger(client: Client, age: float) -> bool:
    """Return whether a client has neither authenticated nor sent its first request in time."""
    if not client.authenticated:
        return True
    if client.commands_run or not client.reader.buffered:
        return False
    return client.bytes_in < age * FIRST_BYTES_A_SECOND
