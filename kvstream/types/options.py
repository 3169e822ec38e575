"""Limits and defaults with their reasons, and the options of a store."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Literal, Self, get_args

from kvstream.errors import InvalidArgument, ReplyTooLarge, no_choice
from kvstream.types.machine import usable_cores

MEGABYTE = 1 << 20

STREAM_NODE_MAX_ENTRIES = 100
"""Entries of one node, deleted ones included: Redis's ``stream-node-max-entries``."""

STREAM_NODE_MAX_BYTES = 4096
"""Bytes of one node as Redis would hold it: Redis's ``stream-node-max-bytes``."""

STREAM_IDMP_DURATION_S = 100
"""Seconds for which idempotent IDs are remembered: Redis's ``stream-idmp-duration``."""

STREAM_IDMP_MAXSIZE = 100
"""Idempotent IDs remembered per producer: Redis's ``stream-idmp-maxsize``."""

IDMP_DURATION_MAX_S, IDMP_MAXSIZE_MAX = 86_400, 10_000
"""Redis's bounds of both; each is at least 1."""

DATABASES = 16
"""Numbered databases of a store, as in Redis."""

DATABASES_MAX = 1 << 15
"""The number of a database takes two bytes of every key; a flush gives it one of the upper half."""

KEY_BYTES_MAX = 1 * MEGABYTE
"""Longest name of a stream, group or consumer: it is part of the keys of rows."""

ENTRY_BYTES_MAX = 512 * MEGABYTE
"""Largest entry: Redis's ``proto-max-bulk-len``; RocksDB's limit is higher."""

DUMP_TARGET_AUTO = "auto"
"""DUMP writes the oldest format that loses nothing."""

FULL_COUNT = 10
"""Entries and pending entries that XINFO STREAM FULL shows by default."""

OnConflict = Literal["skip", "replace", "debounce", "after", "throttle"]
CONFLICTS: tuple[OnConflict, ...] = get_args(OnConflict)
"""What a put does if a message with its unique ID is there."""

Misfire = Literal["skip", "once", "all"]
MISFIRES: tuple[Misfire, ...] = get_args(Misfire)
"""What becomes of the times of a schedule that passed while nobody had the store open."""

CUTOVER_PAUSE_S = 60.0
"""How long the source stays paused after a cut-over, so that producers can be redirected."""
PAUSE_MIN_S = 6
"""The shortest such pause: the source is paused for so long at a time during the cut-over."""

MAXCLIENTS = 10_000

OUTPUT_MAX = 256 * MEGABYTE
"""Bytes of unread replies above which a client is disconnected. Redis has no such limit for normal
clients: one slow reader can take all of its memory."""

STREAM_ENTRY_MAX_BYTES = 64 * MEGABYTE
"""Bytes of an entry that XADD accepts. Packing, logging and storing it takes three times its size
besides the request, and the loop does nothing else for about 4 ms a megabyte."""

SHUTDOWN_TIMEOUT_S = 10
"""Redis's ``shutdown-timeout``: seconds for clients to read their replies when the server stops."""

METRICS_STREAMS = 200
"""Streams with metrics of their own: six time series each, and six for each of their groups."""

SWEEP_ENTRIES = 1000
"""Trimmed entries that share one ``delete_range``: range tombstones slow down reads."""

TREE_WRITE_BUFFER_SIZE = 4 * MEGABYTE
"""Small, so that deleted pending rows leave the memtable soon."""


_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""The memory of a container: of control groups of version 2, and of version 1."""


@cache
def machine_memory(limits: tuple[Path, ...] = _CGROUP_LIMITS) -> int:
    """Return the bytes of memory that the process may use: the machine's, or the container's."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in limits:
        try:
            return min(memory, int(limit.read_text()))
        except (OSError, ValueError):  # the file says "max" if there is no limit
            continue
    return memory


def block_cache_size() -> int:
    """Return a 256th of the memory, of 64 to 128 MB: the system caches files, too."""
    return min(max(machine_memory() >> 8, 64 * MEGABYTE), 128 * MEGABYTE)


def write_buffer_size() -> int:
    """Return a 256th of the memory, of 16 to 32 MB.

    A load of 6,000,000 entries into 5,000 streams writes 2.3 GB with 16 MB and 1.7 GB with 32, and
    takes three quarters of the processor time. With 64 MB it writes 1.5 GB.
    """
    return min(max(machine_memory() >> 8, 16 * MEGABYTE), 32 * MEGABYTE)


def log_size() -> int:
    """Return the size of the log: with a smaller one write buffers are flushed half full."""
    return max(64 * MEGABYTE, 3 * write_buffer_size())


def free_space_reserve() -> int:
    """Return the free space below which writes that grow the store are refused.

    It holds twice the write buffers, and the log, so that trims still work.
    """
    return 2 * (write_buffer_size() + 2 * TREE_WRITE_BUFFER_SIZE) + log_size() + 16 * MEGABYTE


def background_jobs() -> int:
    """Return the flushes and compactions that may run at a time: one more than processors.

    With three at least, level 0 does not wait for lower levels.
    """
    return min(max(3, usable_cores() + 1), 8)


class Durability(StrEnum):
    """The failures that acknowledged writes survive: the levels of Redis's ``appendfsync``."""

    ALWAYS = "always"
    """fsync before the acknowledgement: writes survive power loss."""
    EVERYSEC = "everysec"
    """fsync once a second: writes survive kill -9; power loss loses at most a second."""
    ARCHIVE = "archive"
    """fsync, and a piece in the archive, before the acknowledgement: writes survive the loss of the
    machine."""
    NO = "no"
    """No fsync: writes survive kill -9; power loss loses what the system has not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store is opened; sizes in bytes."""

    durability: Durability = Durability.EVERYSEC
    """When an acknowledged write is on disk."""
    read_only: bool = False
    """Open without writing, beside a process that writes: what was there at the opening."""
    following: bool = False
    """Read beside the process that writes, without its knowledge. Reads see the state of the last
    ``Database.catch_up``, parts of which may be of different moments."""
    create: bool = True
    """Create the directory and the store if they do not exist."""
    accept_loss: bool = False
    """Open although acknowledged writes are missing; only for ``kvstream recover``."""
    trust_group: bool = False
    """Open a directory to which its group can write, as Kubernetes' ``fsGroup`` leaves it at every
    mount; an opening for writing takes these permissions away again."""
    databases: int = DATABASES
    """The number of numbered databases."""
    block_cache_bytes: int = field(default_factory=block_cache_size)
    """The size of the cache of blocks that were read from disk."""
    write_buffer_bytes: int = field(default_factory=write_buffer_size)
    """Size of each of three buffers for entries; at most two wait for their flush."""
    tree_write_buffer_bytes: int = TREE_WRITE_BUFFER_SIZE
    """The size of each buffer for groups, pending entries and other rows that are no entries."""
    wal_bytes_max: int = field(default_factory=log_size)
    """The size of the log on disk above which buffers are flushed, so that it can be removed."""
    free_space_reserve: int = field(default_factory=free_space_reserve)
    """The free space of the disk below which writes that grow the store are refused."""
    rocksdb: Mapping[str, object] = field(default_factory=dict, hash=False)
    """RocksDB's own options by their names, which outdo these: {"max_background_jobs": 4,
    "messages.write_buffer_size": "128M"}; ``storage.options`` lists them."""
    stall_seconds_max: float = 10.0
    """How long a write waits for flushes and compaction that make no progress, before it fails with
    WriteStalled."""
    stream_node_max_entries: int = STREAM_NODE_MAX_ENTRIES
    """The most entries of a node, as Redis's ``stream-node-max-entries``."""
    stream_node_max_bytes: int = STREAM_NODE_MAX_BYTES
    """The most bytes of a node, as Redis's ``stream-node-max-bytes``."""
    stream_idmp_duration_s: int = STREAM_IDMP_DURATION_S
    """Seconds for which idempotent IDs are remembered, unless a stream has its own."""
    stream_idmp_maxsize: int = STREAM_IDMP_MAXSIZE
    """The most idempotent IDs of a producer, unless a stream has its own."""
    dump_target: str = DUMP_TARGET_AUTO
    """The server that payloads of DUMP are for, such as ``redis:7.2`` or ``valkey``."""
    archive: str = ""
    """The URL of the archive that follows the store, such as ``s3://bucket/orders``; "" is none."""
    archive_key: str = field(default="", repr=False)
    """The key that encrypts the archive, 32 bytes in base64 or hexadecimal digits. Behind it, after
    a comma, those that did before. By default that of ``KVSTREAM_ARCHIVE_KEY``, if it is set."""
    archive_key_command: str = ""
    """A command that writes the key to its standard output, by default that of
    ``KVSTREAM_ARCHIVE_KEY_COMMAND``. It is run at each opening, without a shell."""
    archive_interval_s: float = 1.0
    """How often new commits are put into the archive."""
    archive_keep_s: float = 7 * 24 * 3600.0
    """How far back the archive can be restored; what is older is deleted from it."""
    take_over: bool = False
    """Where the directory holds no store: take the archive over from its owner, and go on from its
    end."""

    def access(self) -> dict[str, bool]:
        """Return the options with which the directory is opened."""
        return {
            "create": self.create,
            "read_only": self.read_only,
            "locks": not self.following,
            "trusts_group": self.trust_group,
        }

    def __post_init__(self) -> None:
        if self.following and not self.read_only:
            raise InvalidArgument("following is for a store that is opened read-only")
        if not self.archive and (self.take_over or self.durability is Durability.ARCHIVE):
            raise InvalidArgument("take_over and the durability archive need the URL of an archive")
        if not self.archive and (self.archive_key or self.archive_key_command):
            raise InvalidArgument("a key of an archive needs its URL: archive")
        if not 1 <= self.databases <= DATABASES_MAX:
            raise InvalidArgument(
                f"databases must be between 1 and {DATABASES_MAX}, not {self.databases}"
            )
        bounds = {
            "stream_idmp_duration_s": (self.stream_idmp_duration_s, IDMP_DURATION_MAX_S),
            "stream_idmp_maxsize": (self.stream_idmp_maxsize, IDMP_MAXSIZE_MAX),
        }
        for name, (value, most) in bounds.items():
            if not 1 <= value <= most:
                raise InvalidArgument(f"{name} must be between 1 and {most}, not {value}")


class RefPolicy(StrEnum):
    """What happens to the groups' references when an entry is deleted."""

    KEEPREF = "KEEPREF"
    """They stay and dangle, as after XDEL."""
    DELREF = "DELREF"
    """They are removed with the entry."""
    ACKED = "ACKED"
    """They protect it: only an entry that every group has read and acknowledged is deleted."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise no_choice("a policy is one of KEEPREF, DELREF or ACKED", value, cls)


class NackMode(StrEnum):
    """What XNACK says about the failed attempt."""

    SILENT = "SILENT"
    """It was not made: the delivery count decreases by one."""
    FAIL = "FAIL"
    """It failed: the delivery count stays."""
    FATAL = "FATAL"
    """It must not be repeated: the delivery count becomes the greatest number."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise no_choice("mode must be SILENT, FAIL, or FATAL", value, cls)


@dataclass(slots=True)
class Limits:
    """The settings in force; they may change while the store is open."""

    node_max_entries: int
    node_max_bytes: int
    idmp_duration_s: int
    idmp_maxsize: int
    dump_target: str
    """The server that DUMP writes payloads for, or ``auto``."""
    entry_max_bytes: int = ENTRY_BYTES_MAX
    """Bytes of names and values that XADD accepts in one entry; RESTORE accepts more."""
    reply_max: int = 0
    """Bytes of memory that the reply of one read may take; 0 means any number."""
    reply_held: int = 0
    """Bytes of memory that earlier replies of the same EXEC take, which count together."""

    @property
    def reply_left(self) -> int:
        """Return the bytes of memory that the next reply may take; 0 means any number."""
        return max(self.reply_max - self.reply_held, 1) if self.reply_max else 0

    def too_large(self) -> ReplyTooLarge:
        """Return the error for a reply that would take more."""
        return ReplyTooLarge.beyond(self.reply_max)

    @classmethod
    def of(cls, options: StoreOptions) -> Self:
        """Return the limits of a store's options."""
        return cls(
            options.stream_node_max_entries,
            options.stream_node_max_bytes,
            options.stream_idmp_duration_s,
            options.stream_idmp_maxsize,
            options.dump_target,
        )
