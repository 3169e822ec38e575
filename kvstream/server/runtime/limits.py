"""What clients may cost: how many, how long idle, how much unread; and who may come in at all.

The shell asks before it lets a connection in and after it has written to one; ``tick`` is called
once a second.

What the process takes of memory, and for what: the figures of INFO and MEMORY.
"""

import logging
import os
import resource
import sys
from collections.abc import Callable
from ctypes import CDLL
from dataclasses import dataclass
from threading import Thread
from typing import Protocol

from kvstream.commands.replies import ErrorReply
from kvstream.engine.engine import Engine
from kvstream.logs import Throttle
from kvstream.resp.replies import encode
from kvstream.resp.requests import ARGUMENT_BYTES
from kvstream.server.acl import Acl
from kvstream.server.options import OutputLimit, ServerOptions
from kvstream.server.runtime.client import READ_AHEAD, STRANGER_AHEAD, Client
from kvstream.server.runtime.dispatch import Calls
from kvstream.server.runtime.reply_streaming import Paging
from kvstream.server.runtime.xadd_requests import PlainBurst
from kvstream.server.stats import Statistics
from kvstream.storage.batch import Family

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM_MAX = 200
"""Bytes: seven numbers."""


class Server(Protocol):
    """Whose memory is looked at."""

    engine: Engine
    clients: dict[int, Client]
    paging: Paging


@dataclass(frozen=True, slots=True)
class Memory:
    """What is taken at one moment, in bytes."""

    used: int
    """By the whole process."""
    peak: int
    """The most that it ever took."""
    hot: int
    """By entries that are kept as they were sent."""
    blocks: int
    """By RocksDB's cache."""
    memtables: int
    readers: int
    """By the indexes and filters of open tables that are not in the cache."""
    clients: int
    """By what clients have sent or have yet to read."""

    @property
    def data(self) -> int:
        return self.hot + self.blocks + self.memtables + self.readers


def memory_of(server: Server) -> Memory:
    """Look at what is taken now."""
    used = resident_bytes()
    database = server.engine.database
    return Memory(
        used=used,
        peak=max(used, _peak_bytes()),
        hot=server.engine.catalog.hot.memory,
        blocks=database.property_int("rocksdb.block-cache-usage", Family.MESSAGES),
        memtables=_of_families(server, "rocksdb.cur-size-all-mem-tables"),
        readers=_of_families(server, "rocksdb.estimate-table-readers-mem"),
        clients=sum(held_by(server, each) for each in server.clients.values()),
    )


def _of_families(server: Server, name: str) -> int:
    return sum(server.engine.database.property_int(name, family) for family in Family)


def held_by(server: Server, client: Client) -> int:
    """Return the bytes of what a client has sent that has yet to be run, and of its replies."""
    return client.query + client.pending_output() + server.paging.memory_of(client)


def resident_bytes() -> int:
    """Return the memory that the process takes now."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY)  # 6 us, read_text() 25: it is in each turn
    except OSError:  # no Linux: the most that it ever took
        return _peak_bytes()
    try:
        return int(os.read(file, _STATM_MAX).split()[1]) * PAGE_BYTES
    finally:
        os.close(file)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def give_back() -> None:
    """Begin to return free memory to the system, in a thread: it may take a while."""
    trim = getattr(CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        Thread(target=trim, args=(0,), name="kvstream-trim", daemon=True).start()


BEHIND_WAIT = 2 * READ_AHEAD
"""Bytes that a client may send behind a command that waits. The end of a connection is seen behind
what was sent alone, so there must be room for what a client may mean."""
STRANGER_UNREAD = 64 << 10
"""Bytes of replies that may wait for a client that needs a password and has not given it: refusals
alone, and nobody sends that many requests before the password."""
DESCRIPTORS = 512
"""Open files beside those of clients: what the store has open, and some to spare."""
FIRST_BYTES_A_SECOND = 1024
"""A first request that comes more slowly than this is not sent by any client of Redis."""
LOOKS_AT_CLIENTS = 16
"""How often clients are looked at while so many bytes come and go as all of them may take."""
WARN_S = 60.0
"""Between two warnings of HTTP, which browsers send by the thousand."""
_HTTP = frozenset({b"post", b"host:"})
"""How a request of HTTP begins, or goes on: a browser that was made to talk to this port."""
FULL = ErrorReply("ERR", "max number of clients reached")
_PROTECTED = ErrorReply(
    "DENIED",
    "Redis is running in protected mode because no password is set for the default user: this "
    "server takes connections from its own machine alone. To have it take others 1) start it with "
    "a password (requirepass), or set one from this machine by CONFIG SET requirepass; or 2) let "
    "users have passwords by ACL SETUSER and switch the default user off; or 3) where nobody else "
    "can reach this port, switch the protection off by CONFIG SET protected-mode no.",
)

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """What is needed of the executor."""

    engine: Engine
    options: ServerOptions
    acl: Acl
    calls: Calls
    statistics: Statistics
    clients: dict[int, Client]
    paging: Paging
    bursts: list[PlainBurst]
    clock: Callable[[], float]

    def drop(self, client: Client) -> None: ...


class Limits:
    """The limits of one server, as its options have them now."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.entering = 0
        """Connections that are no clients yet: those whose handshake is under way."""
        self._refusals, self._cuts = Throttle(), Throttle()
        self._http = Throttle(1, WARN_S)
        self._evicted_at = -WARN_S
        self._moved = 0
        """Bytes that had been read and written when clients were last looked at."""
        self.near = 0
        """Bytes below which no limit of what clients have not read can be met."""
        self.held: dict[Client, None] = {}
        """Clients of whom no more is read until what they have sent has been run."""

    def has_room(self) -> bool:
        """Tell whether one more client may come."""
        owner = self._owner
        return len(owner.clients) + self.entering < owner.options.maxclients

    def refuse(self, address: str, error: ErrorReply) -> None:
        """Count a connection that was not let in."""
        self._owner.statistics.rejected_connections += 1
        why = "maxclients has been reached" if error is FULL else "protected mode, see its options"
        self._refusals.log(_log, logging.WARNING, "a connection of %s is refused: %s", address, why)

    def refusal(self, is_local: bool, address: str = "this process") -> bytes | None:
        """Return what a new connection is told before it is closed; None: it may come in."""
        owner, default = self._owner, self._owner.acl.default
        if not self.has_room():
            refusal = FULL
        elif owner.options.protected_mode and not is_local and default.nopass and default.on:
            refusal = _PROTECTED
        else:
            return None
        self.refuse(address, refusal)
        return encode(refusal, 2)

    def admits(self, client: Client) -> bool:
        """Tell whether the replies that a client has not read may wait on; False: cut it off."""
        pending = client.pending_output()
        if not pending:
            client.output_over_since = None
            return True
        limit = self._owner.options.output_limits[b"normal"]
        refused = not client.authenticated and pending > STRANGER_UNREAD
        if refused or 0 < limit.hard < pending or self._is_over_soft(client, limit, pending):
            self._owner.statistics.output_disconnections += 1
            text = "%s is cut off: it has not read %d bytes of replies"
            self._cuts.log(_log, logging.WARNING, text, client.address, pending)
            client.lost = True
            return False
        return True

    def _is_over_soft(self, client: Client, limit: OutputLimit, pending: int) -> bool:
        if not 0 < limit.soft < pending:
            client.output_over_since = None
            return False
        now = self._owner.clock()
        if client.output_over_since is None:
            client.output_over_since = now
        return now - client.output_over_since >= limit.seconds

    def look(self, client: Client) -> None:
        """Hold a client up where too much of what it has sent has not been run."""
        most = READ_AHEAD if client.authenticated else STRANGER_AHEAD
        client.look_at = client.bytes_in + most
        self.bound_clients()
        waiting = client.unread.size
        if client.block is not None and waiting <= BEHIND_WAIT:
            return
        waiting += sum(sum(map(len, argv)) + len(argv) * ARGUMENT_BYTES for argv in client.requests)
        bursts = (each for each in self._owner.bursts if each.client is client)
        waiting += sum(len(data) for each in bursts for data, _names in each.entries)
        if waiting > most and client not in self.held:
            self.held[client] = None
            client.pause()

    def release(self) -> None:
        """Read again from clients whose requests have been run, and forget those who have gone."""
        waiting = {burst.client for burst in self._owner.bursts}
        for client in list(self.held):
            over = not (client.requests or client.unread or client in waiting)
            waits = client.block is not None and client.unread.size <= BEHIND_WAIT
            if over or waits or client.closing:
                del self.held[client]
                client.resume()

    def lets_queue(self, client: Client) -> bool:
        """Tell whether what a client has queued by MULTI is not too much; drop it otherwise."""
        queue = client.queue
        if queue is None or queue.size <= client.reader.query_max:
            return True
        self._owner.statistics.input_disconnections += 1
        self._owner.drop(client)
        return False

    def look_soon(self) -> None:
        """Have clients looked at behind this turn."""
        self._moved = sys.maxsize

    def bound_clients(self, look: bool = False) -> None:
        """Close clients that take most of the memory while all of them take too much.

        They cannot take much more without as many bytes having been read or written: until then
        nobody looks, unless told to.
        """
        owner = self._owner
        most, counted = owner.options.clients_memory_max, owner.statistics
        moved = counted.bytes_in + counted.bytes_out
        if not most or (not look and 0 <= moved - self._moved < most // LOOKS_AT_CLIENTS):
            return
        self._moved = moved
        sizes = {client: held_by(owner, client) for client in owner.clients.values()}
        total = sum(sizes.values())
        if total <= most:
            return
        for client in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if client.no_evict:
                continue
            self._note_evicted(client, sizes[client], total, most)
            owner.drop(client)
            total -= sizes[client]
            if total <= most:
                return

    def _note_evicted(self, client: Client, size: int, total: int, most: int) -> None:
        owner = self._owner
        owner.statistics.evicted_clients += 1
        client.lost = True
        if owner.clock() - self._evicted_at >= WARN_S:
            self._evicted_at = owner.clock()
            _log.warning(
                "clients take %d bytes, more than the maxmemory-clients of %d: closed %s, which "
                "takes %d",
                *(total, most, client.address, size),
            )

    def drops_http(self, client: Client, word: bytes) -> bool:
        """Close a connection that speaks HTTP, so that nothing in the body of a POST is run."""
        if word.lower() not in _HTTP:
            return False
        owner = self._owner
        text = "%s sends HTTP, maybe by somebody else's will: connection closed"
        self._http.log(_log, logging.WARNING, text, client.address)
        owner.drop(client)
        return True

    def tick(self) -> None:
        """Close those that are idle for too long, or read or authenticate too slowly."""
        owner = self._owner
        now = owner.clock()
        self.bound_clients(look=True)
        soft = owner.options.output_limits[b"normal"].soft > 0
        for client in list(owner.clients.values()):
            if self._is_over(client, now):
                owner.drop(client)
            elif soft and not self.admits(client):
                client.abort()

    def look_at_memory(self) -> None:
        """Have commands that add refused where the process takes more than it may."""
        owner = self._owner
        most = owner.options.maxmemory
        crowded = 0 < most < resident_bytes()
        if crowded is not owner.calls.crowded:
            text = "more than maxmemory is in use: commands that add are refused"
            _log.warning(text if crowded else "less than maxmemory is in use again")
        owner.calls.crowded = crowded

    def bound_replies(self) -> None:
        """Have the store refuse a reply that nobody may be sent, before it is made."""
        limit = self._owner.options.output_limits[b"normal"]
        self._owner.engine.catalog.limits.reply_max = limit.hard
        self.near = min(size for size in (limit.hard, limit.soft, STRANGER_UNREAD) if size > 0)

    def make_room(self) -> None:
        """Have as many descriptors as clients may come, or let as many come as there may be."""
        options = self._owner.options
        least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = options.maxclients + DESCRIPTORS
        if most != resource.RLIM_INFINITY:
            wanted = min(wanted, most)
        if least != resource.RLIM_INFINITY and least < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        options.maxclients = max(min(options.maxclients, wanted - DESCRIPTORS), 1)

    def _is_over(self, client: Client, now: float) -> bool:
        options = self._owner.options
        age = now - client.created
        if 0 < options.authentication_s <= age and _is_stranger(client, age):
            return True
        if client.block is not None or client.paged or client.monitors:
            return False
        return 0 < options.timeout <= now - client.last_used


def _is_stranger(client: Client, age: float) -> bool:
    """Tell whether a client has not come to know the server: no password, no whole request."""
    if not client.authenticated:
        return True
    if client.commands_run or not client.reader.buffered:
        return False
    return client.bytes_in < age * FIRST_BYTES_A_SECOND
