"""What the process takes of memory, and for what: the figures of INFO and MEMORY."""

import os
import resource
from ctypes import CDLL
from dataclasses import dataclass
from threading import Thread
from typing import Protocol

from kvstream.engine import Engine
from kvstream.server.client import Client
from kvstream.server.paging import Paging
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
