"""Reading of RDB files of any size, record by record.

The grammar of records is in versions.py. Streams and plain strings can be read; other objects are
skipped and named. An unknown record is an error: nothing tells where it ends.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, assert_never

from kvstream.errors import BadPayload
from kvstream.rdb import skipping
from kvstream.rdb.primitives import CHUNK_BYTES, Reader, crc64
from kvstream.rdb.skipping import (
    HASH_BY_TEMPLATE,
    MODULE,
    OBJECT_TYPES,
    STRING,
    ObjectType,
    Templates,
)
from kvstream.rdb.streams import StreamReading
from kvstream.rdb.versions import (
    CRC_BYTES,
    MAGIC_BYTES,
    NUMBERS,
    OPCODES,
    STREAM_KINDS,
    VALKEY_VERSION,
    VERSION_MAX,
    Dialect,
    Header,
    Opcode,
)
from kvstream.types.options import DATABASES_MAX

_NO_EXPIRY = -1
_MS = 1000
_LONG_AGO_MS = 1


@dataclass(frozen=True, slots=True)
class AuxRecord:
    """A field about the server: ``redis-ver``, ``ctime``, ``repl-id`` and the like."""

    name: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class FunctionRecord:
    """A library of functions."""

    text: bytes


@dataclass(frozen=True, slots=True)
class ModuleAuxRecord:
    """Data that a module keeps outside keys, which was skipped."""

    module: str
    """Its name and version."""


@dataclass(slots=True)
class KeyRecord:
    """The fields that all kinds of keys have."""

    db: int
    key: bytes
    expire_at_ms: int | None
    """Unix milliseconds, above 0; they may be past."""
    idle_s: int | None
    """Seconds since its last use, if the server evicts by LRU."""
    freq: int | None
    """Redis's counter of its uses, if the server evicts by LFU."""
    offset: int
    """Offset of its object in the file."""


@dataclass(slots=True)
class StreamRecord(KeyRecord):
    """A stream; the part that is unread when the next record is asked for is skipped."""

    type: int
    stream: StreamReading


@dataclass(slots=True)
class StringRecord(KeyRecord):
    """A plain string; it is skipped if it is unread when the next record is asked for."""

    _reader: Reader | None

    def value(self) -> bytes:
        """Read the string, once."""
        if self._reader is None:
            raise ValueError("the string has been read or skipped")
        reader, self._reader = self._reader, None
        return reader.string()

    def skip(self) -> None:
        """Skip the string if it is unread."""
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.skip_string()


@dataclass(slots=True)
class OtherRecord(KeyRecord):
    """A key of another type, which was skipped."""

    kind: str
    """As TYPE names it: list, set, zset, hash, array or module."""
    encoding: str
    """As OBJECT ENCODING names it; for a module its name and version."""
    size: int
    """Bytes of the object in the file."""


Record = AuxRecord | FunctionRecord | ModuleAuxRecord | StreamRecord | StringRecord | OtherRecord


class FileReader:
    """Iterates over the records of a file; raises BadPayload, with offset and key, for damage.

    ``file`` is anything with ``read``; the caller closes it. The checksum is compared at the end:
    call ``verify`` to check it first. Bytes after the end are ignored: an append-only file has its
    commands there, a diskless replication its end mark.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._reader = Reader(file.read)
        self._ended = False
        self._open: StreamRecord | StringRecord | None = None
        self._templates = Templates()
        self._db = 0
        self._forget()
        self.header, dialect = _header(self._reader)
        self._opcodes = OPCODES[dialect]
        self._types = OBJECT_TYPES[dialect]

    def _forget(self) -> None:
        """Reset the fields of the next key."""
        self._expire_at_ms: int | None = None
        self._idle_s: int | None = None
        self._freq: int | None = None
        self._reader.key = None

    @property
    def offset(self) -> int:
        """Bytes of the file that were read; after the last record, the size of the RDB itself."""
        return self._reader.offset

    def __iter__(self) -> Iterator[Record]:
        """Yield the records; a second iteration continues the first."""
        while not self._ended:
            self._skip_open()
            if self._reader.is_at_end():
                raise self._reader.bad("the file has no end: it is truncated")
            at = self._reader.offset
            number = self._reader.byte()
            opcode = self._opcodes.get(number)
            if opcode is None:
                yield self._key(number, at)
            elif (record := self._read(opcode)) is not None:
                yield record

    def _skip_open(self) -> None:
        """Skip the unread part of the last record."""
        record, self._open = self._open, None
        if isinstance(record, StreamRecord):
            record.stream.skip()
        elif record is not None:
            record.skip()
        self._reader.key = None

    def _finish(self) -> None:
        """Compare the checksum; 0 means that there is none."""
        self._ended = True
        crc, at = self._reader.crc, self._reader.offset
        stored = self._reader.little(CRC_BYTES) if self.header.has_checksum else 0
        if stored not in (0, crc):
            raise BadPayload(f"the checksum is {stored:016x}, but {crc:016x} is computed", at)

    # --- records that are not keys --------------------------------------------------------------

    def _read(self, opcode: Opcode) -> Record | None:
        """Read a record that is not a key; None if it only changes the keys that follow."""
        reader = self._reader
        match opcode:
            case Opcode.AUX:
                return AuxRecord(reader.string(), reader.string())
            case Opcode.FUNCTION:
                return FunctionRecord(reader.string())
            case Opcode.FUNCTION_PRE_RELEASE:
                return self._function_pre_release()
            case Opcode.MODULE_AUX:
                return ModuleAuxRecord(skipping.skip_module(reader))
            case Opcode.SELECTDB:
                self._db = reader.length(DATABASES_MAX - 1)
            case Opcode.RESIZEDB:
                skipping.skip_lengths(reader, 2)
            case Opcode.SLOT_INFO:
                skipping.skip_lengths(reader, 3)
            case Opcode.SLOT_IMPORT:
                skipping.skip_slot_import(reader)
            case Opcode.HASH_TEMPLATE:
                self._templates.learn(reader)
            case Opcode.EXPIRE_MS:
                self._expire(reader.time(), 1)
            case Opcode.EXPIRE_S:
                self._expire(reader.little(4, signed=True), _MS)
            case Opcode.IDLE:
                self._idle_s = reader.length()
            case Opcode.FREQ:
                self._freq = reader.byte()
            case Opcode.KEY_META:
                skipping.skip_key_metadata(reader)
            case Opcode.EOF:
                self._finish()
            case _:
                assert_never(opcode)
        return None

    def _function_pre_release(self) -> FunctionRecord:
        """Read a library of release candidates of Redis 7.0, which had its name beside it."""
        name, engine = self._reader.string(), self._reader.string()
        if self._reader.length():
            self._reader.skip_string()  # a description
        return FunctionRecord(b"#!%b name=%b\n%b" % (engine, name, self._reader.string()))

    def _expire(self, at: int, unit_ms: int) -> None:
        # In a file a time of 0 is long ago; in kvstream 0 means never.
        self._expire_at_ms = None if at == _NO_EXPIRY else max(at * unit_ms, _LONG_AGO_MS)

    # --- keys -----------------------------------------------------------------------------------

    def _key(self, number: int, at: int) -> Record:
        reader = self._reader
        kind = self._types.get(number)
        if kind is None and number not in STREAM_KINDS:
            raise self._unknown(number, at)
        key = reader.string()
        head = (self._db, key, self._expire_at_ms, self._idle_s, self._freq, reader.offset)
        self._forget()
        reader.key = key
        if kind is None:
            self._open = StreamRecord(*head, number, StreamReading(reader, number))
        elif number == STRING:
            self._open = StringRecord(*head, reader)
        else:
            return OtherRecord(*head, kind.name, *self._other(number, kind))
        return self._open

    def _other(self, number: int, kind: ObjectType) -> tuple[str, int]:
        """Skip an object; return its encoding and size."""
        reader, encoding = self._reader, kind.encoding
        at = reader.offset
        if number == MODULE:
            encoding = skipping.skip_module(reader)
        elif number == HASH_BY_TEMPLATE:
            self._templates.skip_hash(reader)
        elif kind.skip is None:
            raise reader.bad(f"the end of a {kind.name} {kind.encoding} cannot be found", at)
        else:
            kind.skip(reader)
        return encoding, reader.offset - at

    def _unknown(self, number: int, at: int) -> BadPayload:
        """Return the error for an unknown byte, with the key that may follow it."""
        version = f"{self.header.magic} version {self.header.version}"
        error = self._reader.bad(f"object type or opcode {number} is unknown in {version}", at)
        with suppress(BadPayload):  # it may not be a key
            error.key = self._reader.string(_SHOWN_KEY_MAX)
        return error


_SHOWN_KEY_MAX = 1 << 16
"""Longest key that an error names."""


def _header(reader: Reader) -> tuple[Header, Dialect]:
    try:
        header = Header.decode(reader.take(MAGIC_BYTES))
    except BadPayload:  # too short
        header = None
    if header is None:
        raise BadPayload("the file does not begin as an RDB file does", 0)
    dialect = header.dialect
    if dialect is None:
        raise BadPayload(
            f"{header.magic} version {header.version} is not known: known are REDIS 1 to "
            f"{VERSION_MAX} and VALKEY {VALKEY_VERSION}",
            0,
        )
    return header, dialect


def verify(file: BinaryIO) -> bool:
    """Return whether a file ends with the right checksum, in one pass without decoding.

    False has several causes: no checksum, damage, or bytes after the end. Only FileReader tells
    them apart. Raises BadPayload if the file does not begin as an RDB file does.
    """
    reader = Reader(file.read)
    header, _ = _header(reader)
    if not header.has_checksum:
        return False
    crc, tail = reader.crc, reader.rest()
    while chunk := file.read(CHUNK_BYTES):
        ready = max(len(tail) - CRC_BYTES, 0)
        crc = crc64(tail[:ready], crc)
        tail = tail[ready:] + chunk
    body, stored = tail[:-CRC_BYTES], tail[-CRC_BYTES:]
    is_ended = body[-1:] == bytes((NUMBERS[Opcode.EOF],))
    return is_ended and crc64(body, crc) == int.from_bytes(stored, "little")
