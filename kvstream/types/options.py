"""Limits and defaults with their reasons, and the options of a store."""

from dataclasses import dataclass
from enum import StrEnum

from kvstream.errors import InvalidArgument

MEGABYTE = 1 << 20

STREAM_NODE_MAX_ENTRIES = 100
"""Entries of one node, deleted ones included: Redis's ``stream-node-max-entries``."""

STREAM_NODE_MAX_BYTES = 4096
"""Bytes of one node as Redis would hold it: Redis's ``stream-node-max-bytes``."""

STREAM_IDMP_DURATION_S = 100
"""Seconds for which idempotent IDs are remembered: Redis's ``stream-idmp-duration``."""

STREAM_IDMP_MAXSIZE = 100
"""Idempotent IDs remembered per producer: Redis's ``stream-idmp-maxsize``."""

DATABASES = 16
"""Numbered databases of a store, as in Redis."""

DATABASES_MAX = 1 << 16
"""The number of a database takes two bytes of every key."""

KEY_BYTES_MAX = 1 * MEGABYTE
"""Longest name of a stream, group or consumer: it is part of the keys of rows."""

ENTRY_BYTES_MAX = 512 * MEGABYTE
"""Largest entry: Redis's ``proto-max-bulk-len``; RocksDB's limit is higher."""

DUMP_TARGET_AUTO = "auto"
"""DUMP writes the oldest format that loses nothing."""

SWEEP_ENTRIES = 1000
"""Trimmed entries that share one ``delete_range``: range tombstones slow down reads."""

FREE_SPACE_RESERVE = 128 * MEGABYTE
"""Free space below which writes that grow the store are refused, so that trims still work: twice
the write buffers, and the log."""


class Durability(StrEnum):
    """The failures that acknowledged writes survive: the levels of Redis's ``appendfsync``."""

    ALWAYS = "always"
    """fsync before the acknowledgement: writes survive power loss."""
    EVERYSEC = "everysec"
    """fsync once a second: writes survive kill -9; power loss loses at most a second."""
    NO = "no"
    """No fsync: writes survive kill -9; power loss loses what the system has not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store is opened; sizes in bytes."""

    durability: Durability = Durability.EVERYSEC
    read_only: bool = False
    following: bool = False
    """Read beside the process that writes, without its knowledge. Reads see the state of the last
    ``Database.catch_up``, parts of which may be of different moments."""
    create: bool = True
    """Create the directory and the store if they do not exist."""
    accept_loss: bool = False
    """Open although acknowledged writes are missing; only for ``kvstream recover``."""
    databases: int = DATABASES
    block_cache_bytes: int = 64 * MEGABYTE
    write_buffer_bytes: int = 16 * MEGABYTE
    """Size of each of three buffers for entries; at most two wait for their flush."""
    tree_write_buffer_bytes: int = 4 * MEGABYTE
    """Small, so that deleted pending rows leave the memtable soon."""
    wal_bytes_max: int = 64 * MEGABYTE
    free_space_reserve: int = FREE_SPACE_RESERVE
    stall_seconds_max: float = 10.0
    """How long a write waits for flushes and compaction that make no progress, before it fails with
    WriteStalled."""
    stream_node_max_entries: int = STREAM_NODE_MAX_ENTRIES
    stream_node_max_bytes: int = STREAM_NODE_MAX_BYTES
    stream_idmp_duration_s: int = STREAM_IDMP_DURATION_S
    stream_idmp_maxsize: int = STREAM_IDMP_MAXSIZE
    dump_target: str = DUMP_TARGET_AUTO
    """The server that payloads of DUMP are for, such as ``redis:7.2`` or ``valkey``."""

    def access(self) -> dict[str, bool]:
        """Return the options with which the directory is opened."""
        return {
            "create": self.create,
            "read_only": self.read_only,
            "locks": not self.following,
        }

    def __post_init__(self) -> None:
        if self.following and not self.read_only:
            raise InvalidArgument("following is for a store that is opened read-only")
        if not 1 <= self.databases <= DATABASES_MAX:
            raise InvalidArgument(f"databases must be between 1 and {DATABASES_MAX}")
