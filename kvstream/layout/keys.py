"""The keys of every column family.

::

    name       := db(u16) key                          db is the stored number: SWAPDB and FLUSHDB
                                                       change which database has it

    messages   row   := prefix id | prefix number(u32)  the latter of large strings
                                                       (kvstream.meta.strings)
               prefix := db(u16) length(u32) key generation(u64)
               id    := ms(u64) seq(u64)

    metadata   row   := "A"                            allocator: next tree ID or generation (u64)
                      | "B"                            rows being ingested (unfinished_loads.py)
                      | "C" db(u16)                    number of keys of a database (u64)
                      | "D"                            numbers of databases (meta/keyspace.py)
                      | "F" db(u16)                    empty; flushed (meta/deleted_keys.py)
                      | "G" db(u16) generation(u64)    what DEL has left (meta/deleted_keys.py)
                      | "L" generation(u64)            a load (meta/unfinished_loads.py)
                      | "N" db(u16) generation(u64)    key; the order of SCAN
                      | "O" client                     last request (meta/idempotency.py)
                      | "R"                            whose history this is (replicas/history.py)
                      | "S" name                       record of a stream (meta/records.py)
                                                       or a string (kvstream.meta.strings)
                      | "T" at_ms(u64) name            empty; streams by their first timer
                      | "U" library                    functions (operations/functions.py)
                      | "X" at_ms(u64) name            empty; the order of expiry

    trees      row   := tree(u64) name-of-group-or-consumer
                      | tree(u64) id
                      | tree(u64) suffix of the tree's own kind

All numbers are big-endian, so that bytes sort as numbers do. The length before the key prevents
that one prefix is the beginning of another. A generation is never used twice, so the rows of a
deleted stream need not be removed at once, and a renamed stream keeps its prefix. Streams that a
bulk load creates share a number of that load in place of a generation, with the highest bit set;
their keys tell them apart.
"""

from functools import lru_cache
from struct import Struct
from struct import error as StructError

from kvstream.errors import Corruption

ALLOCATOR_KEY = b"A"
INGESTED_KEY = b"B"
KEY_COUNT_TAG = b"C"
NUMBERS_KEY = b"D"
FLUSHED_TAG = b"F"
UNLINKED_TAG = b"G"
LOAD_TAG = b"L"
SCAN_TAG = b"N"
REQUEST_TAG = b"O"
HISTORY_KEY = b"R"
STREAM_TAG = b"S"
TIMER_TAG = b"T"
FUNCTION_TAG = b"U"
EXPIRY_TAG = b"X"

ID_BYTES = 16
COUNTED_MAX = (1 << 64) - (1 << 32)
"""Bound of valid counters: no counter reaches it by increments."""
U16 = Struct(">H")
U64 = Struct(">Q")
_MESSAGE_HEAD = Struct(">HI")
_SCAN = Struct(">cHQ")

SHARED = 1 << 63
"""The bit of a number that several prefixes share in place of a generation."""

ID_FIRST = b"\x00" * ID_BYTES
ID_LAST = b"\xff" * ID_BYTES


def decode_number(row: bytes, value: bytes | None, missing: int = 0) -> int:
    """Return the number in a row, ``missing`` if there is no row; raise Corruption for damage."""
    if value is None:
        return missing
    try:
        (number,) = U64.unpack(value)
    except StructError:
        number = COUNTED_MAX
    if number >= COUNTED_MAX:
        raise Corruption(f"the number in the row {row!r} is damaged: {value[:32].hex()}")
    return int(number)


def qualified(db: int, key: bytes) -> bytes:
    """Return the name of ``key`` in database ``db``."""
    return U16.pack(db) + key


def database_of(name: bytes) -> int:
    return int(U16.unpack_from(name)[0])


def key_of(name: bytes) -> bytes:
    return name[2:]


def beside(name: bytes, key: bytes) -> bytes:
    """Return the name of a key in the database of another name."""
    return name[: U16.size] + key


def message_prefix(name: bytes, generation: int) -> bytes:
    """Return the prefix of the message keys of a stream."""
    key = name[2:]
    return _MESSAGE_HEAD.pack(database_of(name), len(key)) + key + U64.pack(generation)


def generation_in(prefix: bytes, stored_db: int) -> int | None:
    """Return the generation in a prefix; None if it is not a prefix of that database."""
    end = len(prefix) - U64.size
    if end < _MESSAGE_HEAD.size:
        return None
    if _MESSAGE_HEAD.unpack_from(prefix) != (stored_db, end - _MESSAGE_HEAD.size):
        return None
    return int(U64.unpack_from(prefix, end)[0])


def key_in(prefix: bytes) -> bytes:
    """Return the key in a prefix."""
    return prefix[_MESSAGE_HEAD.size : -U64.size]


def is_shared(prefix: bytes) -> bool:
    """Return whether a prefix has the number of a bulk load."""
    return prefix[-U64.size] >= 0x80


def database_bounds(db: int) -> tuple[bytes, bytes]:
    """Return the bounds of the message keys of a database."""
    prefix = U16.pack(db)
    return prefix, prefix + b"\xff" * 4  # above every length of a key


def stream_row(name: bytes) -> bytes:
    return STREAM_TAG + name


@lru_cache(maxsize=16)
def key_count_row(db: int) -> bytes:
    return KEY_COUNT_TAG + U16.pack(db)


def flushed_row(db: int) -> bytes:
    return FLUSHED_TAG + U16.pack(db)


def record_bounds(db: int) -> tuple[bytes, bytes]:
    """Return the bounds of the records of a database's keys."""
    first = stream_row(U16.pack(db))
    return first, successor(first)


def scan_bounds(db: int, generation: int = 0) -> tuple[bytes, bytes]:
    """Return the bounds of a database's rows for SCAN, from a generation on."""
    return scan_row(db, generation), successor(scan_row(db, (1 << 64) - 1))


def unlinked_row(db: int, generation: int) -> bytes:
    return _SCAN.pack(UNLINKED_TAG, db, generation)


def load_row(generation: int) -> bytes:
    return LOAD_TAG + U64.pack(generation)


def scan_row(db: int, generation: int) -> bytes:
    return _SCAN.pack(SCAN_TAG, db, generation)


def expiry_row(at_ms: int, name: bytes) -> bytes:
    return EXPIRY_TAG + U64.pack(at_ms) + name


def timer_row(at_ms: int, name: bytes) -> bytes:
    return TIMER_TAG + U64.pack(at_ms) + name


def database_of_row(row: bytes) -> int:
    """Return the number of the database in a metadata row whose tag it follows."""
    return int(U16.unpack_from(row, 1)[0])


def generation_of_row(row: bytes) -> int:
    """Return the generation in a row of ``scan_row`` or ``unlinked_row``."""
    return int(U64.unpack_from(row, 3)[0])


def time_of_row(row: bytes) -> int:
    """Return the time in a row of ``expiry_row`` or ``timer_row``."""
    return int(U64.unpack_from(row, 1)[0])


def name_of_row(row: bytes) -> bytes:
    """Return the stored name in a row of ``expiry_row`` or ``timer_row``."""
    return row[1 + U64.size :]


def request_row(client: bytes) -> bytes:
    return REQUEST_TAG + client


def function_row(library: bytes) -> bytes:
    return FUNCTION_TAG + library


def tree_prefix(tree: int) -> bytes:
    return U64.pack(tree)


def successor(prefix: bytes) -> bytes:
    """Return the least key above every key that begins with ``prefix``."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        raise ValueError("no key lies above a prefix of 0xff bytes alone")
    return stripped[:-1] + bytes([stripped[-1] + 1])
