"""Every limit and default, each with its reason, and the options of a store."""

from dataclasses import dataclass
from enum import StrEnum

from kvstream.errors import InvalidArgument

MEGABYTE = 1 << 20

STREAM_NODE_MAX_ENTRIES = 100
"""Entries of one node, deleted ones included: Redis's ``stream-node-max-entries``."""

STREAM_NODE_MAX_BYTES = 4096
"""Bytes of one node as Redis would hold it: Redis's ``stream-node-max-bytes``."""

STREAM_IDMP_DURATION_S = 100
"""Seconds for which an idempotent ID is remembered: Redis's ``stream-idmp-duration``."""

STREAM_IDMP_MAXSIZE = 100
"""Idempotent IDs remembered for one producer: Redis's ``stream-idmp-maxsize``."""

DATABASES = 16
"""Numbered databases of a store, as in Redis."""

DATABASES_MAX = 1 << 16
"""A database's number takes two bytes of every key."""

KEY_BYTES_MAX = 1 * MEGABYTE
"""Longest name of a stream, group or consumer: it is part of every row's key."""

ENTRY_BYTES_MAX = 512 * MEGABYTE
"""Largest entry: Redis's ``proto-max-bulk-len``; RocksDB itself would take a gigabyte."""

DUMP_TARGET_AUTO = "auto"
"""A payload of DUMP is of the oldest form that loses nothing of what it holds."""

SWEEP_ENTRIES = 1000
"""Trimmed entries that wait for one ``delete_range``: range tombstones cost every reader."""

FREE_SPACE_RESERVE = 128 * MEGABYTE
"""Free space below which writes that grow the store are refused, so that trims still work: twice
the write buffers, and the log."""


class Durability(StrEnum):
    """What an acknowledged write has survived: the levels of Redis's ``appendfsync``."""

    ALWAYS = "always"
    """fsync before the acknowledgement: it survives power loss."""
    EVERYSEC = "everysec"
    """fsync once a second: it survives kill -9; power loss takes a second at most."""
    NO = "no"
    """No fsync of ours: it survives kill -9; power loss takes what the system had not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store is opened; sizes in bytes."""

    durability: Durability = Durability.EVERYSEC
    read_only: bool = False
    following: bool = False
    """Beside the process that writes, which is not asked and not told; for reading alone. What is
    read is of the last ``Database.catch_up``, perhaps in parts of different moments."""
    create: bool = True
    """Make the directory and the store where there is none."""
    accept_loss: bool = False
    """Open although acknowledged writes are missing; for ``kvstream recover`` alone."""
    databases: int = DATABASES
    block_cache_bytes: int = 64 * MEGABYTE
    write_buffer_bytes: int = 16 * MEGABYTE
    """One of three of the entries' family; two wait to be flushed at the most."""
    tree_write_buffer_bytes: int = 4 * MEGABYTE
    """Small, so that dead pending rows leave the memtable soon."""
    wal_bytes_max: int = 64 * MEGABYTE
    free_space_reserve: int = FREE_SPACE_RESERVE
    stall_seconds_max: float = 10.0
    """How long flushes and compaction may make no progress before a write that waits for them is
    refused with WriteStalled; while they go on it waits."""
    stream_node_max_entries: int = STREAM_NODE_MAX_ENTRIES
    stream_node_max_bytes: int = STREAM_NODE_MAX_BYTES
    stream_idmp_duration_s: int = STREAM_IDMP_DURATION_S
    stream_idmp_maxsize: int = STREAM_IDMP_MAXSIZE
    dump_target: str = DUMP_TARGET_AUTO
    """The server that payloads of DUMP are meant for, such as ``redis:7.2`` or ``valkey``."""

    def access(self) -> dict[str, bool]:
        """Return how the directory is taken."""
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
