"""Which servers read which bytes of a stream, and what an older one cannot hold.

A server reads its own type of streams and all before it, in payloads of its own RDB version or a
lower one. Valkey takes versions above 11 and below 80 for foreign, so that what is for it says 11.

The numbers that frame an RDB file: its magic, its opcodes, and which server gave them a meaning.

::

    file   := magic record* 0xFF crc(u64 LE) byte*    crc of all bytes before it; 0: not computed;
                                                      absent below version 5; no server reads on
    magic  := "REDIS" version(4 digits) | "VALKEY" version(3 digits)
    record := opcode(u8) fields | type(u8) key(STRING) object

Redis and Valkey agree on everything up to version 11. From then on they give the same numbers other
meanings, so what a number says depends on the dialect, which is told by magic and version together.

The types of stream objects. Each has all that those before it have, and something more.
"""

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import NamedTuple

from kvstream.errors import InvalidArgument
from kvstream.types.ids import MIN_ID
from kvstream.types.images import NEVER, ConsumerImage, GroupImage, StreamState
from kvstream.types.options import STREAM_IDMP_DURATION_S, STREAM_IDMP_MAXSIZE

MAGIC_BYTES = 9
CRC_BYTES = 8
CRC_SINCE = 5
"""The first version whose files end with a checksum."""
SHARED_LAST = 11
"""The last version on which Redis and Valkey agree."""
VERSION_MAX = 16
"""The highest version of Redis: met in payloads of Redis 8.10, whose files say 15."""
VALKEY_VERSION = 80
"""The version of Valkey 9, whose streams are those of Redis 7.2. It leaves 12 to 79 to Redis."""


class Dialect(Enum):
    """Whose meaning the numbers have."""

    SHARED = "shared"
    """Up to version 11: Redis to 7.2, Valkey to 8, and others."""
    REDIS = "Redis"
    VALKEY = "Valkey"


class Opcode(Enum):
    """A record that is no key, and its fields."""

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
"""By dialect and first byte. Valkey's 242 carries commands between the keys and is not here: a file
that has it is refused."""

NUMBERS = {opcode: number for table in OPCODES.values() for number, opcode in table.items()}
"""The byte of each opcode."""


class Header(NamedTuple):
    """The first nine bytes of a file."""

    magic: str
    """REDIS or VALKEY."""
    version: int

    @property
    def dialect(self) -> Dialect | None:
        """Whose numbers the file has; None for a version that no known server writes."""
        if self.magic == "VALKEY":
            return Dialect.VALKEY if self.version == VALKEY_VERSION else None
        if self.version <= SHARED_LAST:
            return Dialect.SHARED
        return Dialect.REDIS if self.version <= VERSION_MAX else None

    @property
    def has_checksum(self) -> bool:
        """Whether a checksum follows the end."""
        return self.version >= CRC_SINCE

    def encode(self) -> bytes:
        """Return the nine bytes."""
        digits = MAGIC_BYTES - len(self.magic)
        return f"{self.magic}{self.version:0{digits}}".encode()

    @classmethod
    def decode(cls, data: bytes) -> "Header | None":
        """Return the header in nine bytes, None where they are none."""
        for magic in ("REDIS", "VALKEY"):
            digits = data[len(magic) :]
            if data.startswith(magic.encode()) and len(data) == MAGIC_BYTES and digits.isdigit():
                version = int(digits)
                return cls(magic, version) if version else None
        return None


class Kind(IntEnum):
    """The byte that says how a stream is written; compares with what a feature came with."""

    LISTPACKS = 15
    """Redis 5.0: entries, groups, consumers, pending entries."""
    COUNTERS = 19
    """Redis 7.0: first ID, highest deleted ID, entries added, entries read."""
    ACTIVE_TIMES = 21
    """Redis 7.2 and Valkey: when a consumer was last given anything."""
    IDEMPOTENCY = 26
    """Redis 8.6: idempotent producers."""
    NACKED = 27
    """Redis 8.8: entries given back, which belong to nobody."""


STREAM_KINDS = frozenset(Kind)


NACKED_CONSUMER = b"kvstream-nacked"
"""Has what was given back by XNACK where the target cannot leave it without an owner."""


class Target(NamedTuple):
    """A kind of server: the type of streams and the RDB version that it writes itself."""

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
    """Return the target of a name such as ``redis:7.2``; InvalidArgument names all."""
    try:
        return TARGETS[name]
    except KeyError:
        names = ", ".join(TARGETS)
        raise InvalidArgument(f"{name!r} is no target version: take one of {names}") from None


def target_of(version: str, *, valkey: bool = False) -> Target:
    """Return the target of a server that tells this version: the newest that it is not older than.

    InvalidArgument for a server before 5.0, and for text that is no version.
    """
    if valkey:
        return VALKEY
    found = [each for each in _REDIS if _release(each.name[len("redis:") :]) <= _release(version)]
    if not found:
        raise InvalidArgument(f"a Redis of version {version} has no streams")
    return found[-1]


def _release(version: str) -> tuple[int, int]:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0] or "0"
    if not (major.isdecimal() and minor.isdecimal()):
        raise InvalidArgument(f"{version!r} is no version of a server")
    return int(major), int(minor)


# --- what is lost ---------------------------------------------------------------------------------


class Loss(NamedTuple):
    """Something of a stream that a target cannot hold."""

    name: str
    """By which it is allowed."""
    affected: int
    """Consumers, groups, entries or counters, as the name says."""
    text: str
    """What is done instead."""


LOSSES = {
    "active-time": "consumers were last active when they were last seen",
    "entries-added": "the entries there are count as all that were ever added",
    "max-deleted": "no entry counts as deleted",
    "entries-read": "the target works out itself, or not, how much a group has read",
    "nacked": f"what was given back is consumer {NACKED_CONSUMER.decode()!r}'s, in no order",
    "idempotency": "entries that a producer sends again are added again",
    "idempotency-limits": "the target's own limits hold for idempotent producers",
}
"""All names, and what is done instead."""


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
    """Return how far a loader that is not told takes a group to be behind, if it can tell."""
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
"""The type that a loss ends with, and how many things are lost before it."""


def losses(state: StreamState, target: Target) -> list[Loss]:
    """Return what a stream loses on the way to a target; nothing is changed."""
    return [
        Loss(name, affected, LOSSES[name])
        for name, (held_from, count) in _COUNTED.items()
        if target.kind < held_from and (affected := count(state))
    ]


def reduce(state: StreamState, target: Target) -> None:
    """Take out of a state what a target cannot hold, in the way that ``losses`` tells.

    What a type merely does not write stays as it is.
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
