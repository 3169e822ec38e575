"""RDB versions and opcodes, the types of stream objects, and what older servers cannot hold.

::

    file   := magic record* 0xFF crc(u64 LE) byte*    crc of all bytes before it; 0: not computed;
                                                      absent below version 5; no server reads on
    magic  := "REDIS" version(4 digits) | "VALKEY" version(3 digits)
    record := opcode(u8) fields | type(u8) key(STRING) object

Redis and Valkey agree up to version 11. After that they give the same numbers other meanings: magic
and version together tell the dialect. Each type of stream object has the fields of those before it,
and more. A server reads its own type of streams and all before it, in payloads of its own RDB
version or a lower one. Valkey refuses versions 12 to 79, so payloads for it say 11.
"""

from collections import Counter
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import NamedTuple

from kvstream.errors import InvalidArgument
from kvstream.types.ids import MIN_ID
from kvstream.types.images import (
    NEVER,
    QUEUE_PARTS,
    ConsumerImage,
    GroupImage,
    StreamState,
)
from kvstream.types.options import STREAM_IDMP_DURATION_S, STREAM_IDMP_MAXSIZE

MAGIC_BYTES = 9
CRC_BYTES = 8
CRC_SINCE = 5
"""The first version whose files end with a checksum."""
FUNCTIONS_SINCE = 10
"""The first version with libraries of functions."""
SHARED_LAST = 11
"""The last version on which Redis and Valkey agree."""
VERSION_MAX = 16
"""The highest version of Redis: that of payloads of Redis 8.10, whose files say 15."""
VALKEY_VERSION = 80
"""The version of Valkey 9, whose streams are those of Redis 7.2."""


class Dialect(Enum):
    """The server that defines the numbers."""

    SHARED = "shared"
    """Up to version 11: Redis to 7.2, Valkey to 8, and others."""
    REDIS = "Redis"
    VALKEY = "Valkey"


class Opcode(Enum):
    """A record that is not a key, and its fields."""

    AUX = "STRING name, STRING value"
    SELECTDB = "LEN"
    RESIZEDB = "LEN keys, LEN keys with an expiry"
    SLOT_INFO = "LEN slot, LEN keys, LEN keys with an expiry"
    SLOT_IMPORT = "STRING job, LEN ranges, each LEN LEN"
    EXPIRE_MS = "i64 LE, of the next key"
    EXPIRE_S = "i32 LE, of the next key"
    IDLE = "LEN seconds, of the next key"
    FREQ = "u8, of the next key"
    KEY_META = "LEN classes, each u32 and module values to their end; of the next key"
    HASH_TEMPLATE = "LEN number, LEN fields, each STRING"
    MODULE_AUX = "LEN module, module values to their end"
    FUNCTION = "STRING library"
    FUNCTION_PRE_RELEASE = "STRING name, STRING engine, LEN described, STRING description?, STRING"
    EOF = ""


_SHARED = {
    244: Opcode.SLOT_INFO,
    245: Opcode.FUNCTION,
    246: Opcode.FUNCTION_PRE_RELEASE,
    247: Opcode.MODULE_AUX,
    248: Opcode.IDLE,
    249: Opcode.FREQ,
    250: Opcode.AUX,
    251: Opcode.RESIZEDB,
    252: Opcode.EXPIRE_MS,
    253: Opcode.EXPIRE_S,
    254: Opcode.SELECTDB,
    255: Opcode.EOF,
}
OPCODES: dict[Dialect, dict[int, Opcode]] = {
    Dialect.SHARED: _SHARED,
    Dialect.REDIS: {**_SHARED, 243: Opcode.KEY_META, 242: Opcode.HASH_TEMPLATE},
    Dialect.VALKEY: {**_SHARED, 243: Opcode.SLOT_IMPORT},
}
"""By dialect and first byte. Valkey's 242, commands between keys, is refused."""

NUMBERS = {opcode: number for table in OPCODES.values() for number, opcode in table.items()}
"""The byte of each opcode."""


class Header(NamedTuple):
    """The first nine bytes of a file."""

    magic: str
    """REDIS or VALKEY."""
    version: int

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of the file; None for an unknown version."""
        if self.magic == "VALKEY":
            return Dialect.VALKEY if self.version == VALKEY_VERSION else None
        if self.version <= SHARED_LAST:
            return Dialect.SHARED
        return Dialect.REDIS if self.version <= VERSION_MAX else None

    @property
    def has_checksum(self) -> bool:
        """Whether the file ends with a checksum."""
        return self.version >= CRC_SINCE

    def encode(self) -> bytes:
        """Return the nine bytes."""
        digits = MAGIC_BYTES - len(self.magic)
        return f"{self.magic}{self.version:0{digits}}".encode()

    @classmethod
    def decode(cls, data: bytes) -> "Header | None":
        """Return the header in nine bytes; None if they are not one."""
        for magic in ("REDIS", "VALKEY"):
            digits = data[len(magic) :]
            if data.startswith(magic.encode()) and len(data) == MAGIC_BYTES and digits.isdigit():
                version = int(digits)
                return cls(magic, version) if version else None
        return None


class Kind(IntEnum):
    """The type byte of a stream object; compare it with the type that brought a feature."""

    LISTPACKS = 15
    """Redis 5.0: entries, groups, consumers, pending entries."""
    COUNTERS = 19
    """Redis 7.0: first ID, highest deleted ID, entries added, entries read."""
    ACTIVE_TIMES = 21
    """Redis 7.2 and Valkey: active times of consumers."""
    IDEMPOTENCY = 26
    """Redis 8.6: idempotent producers."""
    NACKED = 27
    """Redis 8.8: entries released by XNACK, which have no owner."""


STREAM_KINDS = frozenset(Kind)


NACKED_CONSUMER = b"kvstream-nacked"
"""Owns the entries released by XNACK if the target requires an owner."""


class Target(NamedTuple):
    """A server version: the type of streams and the RDB version that it writes."""

    name: str
    kind: Kind
    version: int


_SERVERS = [
    ("5.0 6.0 6.2", Kind.LISTPACKS, 9),
    ("7.0", Kind.COUNTERS, 10),
    ("7.2", Kind.ACTIVE_TIMES, 11),
    ("7.4 8.0 8.2 8.4", Kind.ACTIVE_TIMES, 12),
    ("8.6", Kind.IDEMPOTENCY, 13),
    ("8.8", Kind.NACKED, 14),
    ("8.10", Kind.NACKED, 15),
]
_REDIS = [
    Target(f"redis:{release}", kind, version)
    for releases, kind, version in _SERVERS
    for release in releases.split()
]
NEWEST = _REDIS[-1]
VALKEY = Target("valkey", Kind.ACTIVE_TIMES, 11)
TARGETS = {each.name: each for each in (*_REDIS, VALKEY)}


def target(name: str) -> Target:
    """Return the target of a name such as ``redis:7.2``; raise InvalidArgument for another."""
    try:
        return TARGETS[name]
    except KeyError:
        names = ", ".join(TARGETS)
        raise InvalidArgument(f"{name!r} is not a target version: use one of {names}") from None


def target_of(version: str, *, valkey: bool = False) -> Target:
    """Return the newest target that is not newer than a server's version.

    Raises InvalidArgument for servers before 5.0, and for text that is not a version.
    """
    if valkey:
        return VALKEY
    targets = [each for each in _REDIS if _release(each.name[len("redis:") :]) <= _release(version)]
    if not targets:
        raise InvalidArgument(f"a Redis of version {version} has no streams")
    return targets[-1]


def _release(version: str) -> tuple[int, int]:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0] or "0"
    if not (major.isdecimal() and minor.isdecimal()):
        raise InvalidArgument(f"{version!r} is not a version of a server")
    return int(major), int(minor)


# --- losses ---------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """A part of a stream, a whole key or a library that a target cannot hold."""

    name: str
    """A key of LOSSES."""
    affected: int
    """Number of consumers, groups, entries or counters, as the name says; 1 for a whole key."""
    text: str
    """What happens instead, or why it is left out."""
    what: str = ""
    """The type, the database or the library that is left out."""


LOSSES = {
    "active-time": "the active time of a consumer becomes its seen time",
    "entries-added": "entries-added becomes the number of entries",
    "max-deleted": "the greatest deleted ID is forgotten",
    "entries-read": "the target estimates how many entries a group has read",
    "nacked": f"entries released by XNACK go to consumer {NACKED_CONSUMER.decode()!r}, unordered",
    "idempotency": "entries that a producer sends again are added again",
    "idempotency-limits": "the target's own limits apply to idempotent producers",
    "consumers": "consumers with nothing pending are forgotten",
    "policies": "the rules of groups (leases, retries, order, limits) are forgotten",
    "waiting": "entries that wait, for a retry or for another one of their key, are ready at once",
    "delayed": "delayed messages, which are not in the stream yet, are forgotten",
    "schedules": "schedules are forgotten",
    "unique": "unique IDs are forgotten: another message of such an ID is added",
    "lifetimes": "entries stay after their time to live",
    "retention": "the rules of retention are forgotten",
    "redrive": "the redrive of dead letters is forgotten",
    "other-types": "keys of types that kvstream does not have are left out",
    "databases": "keys of databases that the target does not have are left out",
    "long-names": "keys whose names are too long for the target are left out",
    "too-large": "keys with a value or an entry above a limit of the target are left out",
    "repeated-keys": "keys that a file has twice are migrated once, as they come first",
    "functions": "libraries of functions that the target cannot load are left out",
}
"""All losses by name, with what happens instead."""


def _lost_active_times(state: StreamState) -> int:
    consumers = (each for group in state.groups for each in group.consumers)
    return sum(each.active_ms != each.seen_ms for each in consumers)


def _lost_entries_added(state: StreamState) -> bool:
    return state.entries_added not in (None, state.length)


def _lost_max_deleted(state: StreamState) -> bool:
    return state.max_deleted not in (None, MIN_ID)


def _lost_nacked(state: StreamState) -> int:
    return sum(len(group.nacked) for group in state.groups)


def _lost_entries_read(state: StreamState) -> int:
    added = state.length if state.entries_added is None else state.entries_added
    return sum(
        group.entries_read is not None and added - group.entries_read != _lag(state, group)
        for group in state.groups
    )


def _lag(state: StreamState, group: GroupImage) -> int | None:
    """Return the lag that a loader without entries-read computes; None if it cannot."""
    last, first = group.last_delivered, state.first or MIN_ID
    if not state.length:
        return 0
    if last >= state.last:
        return 0 if last == state.last else None
    return None if last > first else state.length - (last == first)


def _lost_iids(state: StreamState) -> int:
    image = state.idempotency
    if image is None:
        return 0
    remembered = sum(len(each.iids) for each in image.producers)
    return remembered or int(image.iids_added > 0 or image.iids_duplicates > 0)


def _lost_limits(state: StreamState) -> bool:
    image = state.idempotency
    usual = (STREAM_IDMP_DURATION_S, STREAM_IDMP_MAXSIZE)
    return image is not None and (image.duration_s, image.maxsize) != usual


_COUNTED: dict[str, tuple[Kind, Callable[[StreamState], int]]] = {
    "active-time": (Kind.ACTIVE_TIMES, _lost_active_times),
    "entries-added": (Kind.COUNTERS, _lost_entries_added),
    "max-deleted": (Kind.COUNTERS, _lost_max_deleted),
    "entries-read": (Kind.COUNTERS, _lost_entries_read),
    "nacked": (Kind.NACKED, _lost_nacked),
    "idempotency": (Kind.IDEMPOTENCY, _lost_iids),
    "idempotency-limits": (Kind.IDEMPOTENCY, _lost_limits),
}
"""The first type that holds a part, and a function that counts what older types lose."""


def losses(state: StreamState, target: Target) -> list[Loss]:
    """Return what a stream loses at a target, which is another server than kvstream."""
    return [*format_losses(state, target), *queue_losses(state)]


def queue_losses(state: StreamState) -> list[Loss]:
    """Return what a stream has as a queue, of which Redis's formats and commands have nothing."""
    counts = Counter([QUEUE_PARTS[key[:1]] for key, _ in state.queue or ()])
    return [Loss(name, counts[name], text) for name, text in LOSSES.items() if counts[name]]


def format_losses(state: StreamState, target: Target) -> list[Loss]:
    """Return what the format of a target cannot hold, apart from ``queue_losses``."""
    return [
        Loss(name, affected, LOSSES[name])
        for name, (held_from, count) in _COUNTED.items()
        if target.kind < held_from and (affected := count(state))
    ]


def reduce(state: StreamState, target: Target) -> None:
    """Remove from a state what a target cannot hold, as ``losses`` describes.

    Fields that the target's type merely does not write stay.
    """
    if target.kind < Kind.IDEMPOTENCY:
        state.idempotency = None
    if target.kind < Kind.NACKED:
        for group in state.groups:
            _give_away(group)


def _give_away(group: GroupImage) -> None:
    if not group.nacked:
        return
    for eid in group.nacked:
        group.pending.give(eid, NACKED_CONSUMER)
    group.nacked = []
    if all(each.name != NACKED_CONSUMER for each in group.consumers):
        group.consumers.append(ConsumerImage(NACKED_CONSUMER, 0, NEVER))
