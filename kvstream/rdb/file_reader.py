"""The keys of an RDB file, read from its beginning to its end, however large it is.

All records are walked; their grammar is in opcodes.py. Streams and plain strings come out to be
read, other objects are passed over and named. What nobody knows is an error: nothing tells where
it would end. This module knows no store, and of files only that they can be read.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

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
    """What a server wrote of itself: ``redis-ver``, ``ctime``, ``repl-id`` and the like."""

    name: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class FunctionRecord:
    """A library of functions, which was passed over."""


@dataclass(frozen=True, slots=True)
class ModuleAuxRecord:
    """What a module keeps beside all keys, which was passed over."""

    module: str
    """Its name and version."""


@dataclass(slots=True)
class KeyRecord:
    """What every key has."""

    db: int
    key: bytes
    expire_at_ms: int | None
    """Unix milliseconds, above 0; they may have passed."""
    idle_s: int | None
    """Seconds since its last use, where the server evicts keys by that."""
    freq: int | None
    """Redis's counter of its uses, where the server evicts keys by that."""
    offset: int
    """Where in the file its object begins."""


@dataclass(slots=True)
class StreamRecord(KeyRecord):
    """A stream. What of it is not read before the next record is passed over."""

    type: int
    stream: StreamReading


@dataclass(slots=True)
class StringRecord(KeyRecord):
    """A plain string. If it is not read before the next record it is passed over."""

    _reader: Reader | None

    def value(self) -> bytes:
        """Read the string, once."""
        if self._reader is None:
            raise ValueError("the string has been read, or passed over")
        reader, self._reader = self._reader, None
        return reader.string()

    def skip(self) -> None:
        """Pass over the string if it is unread."""
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.skip_string()


@dataclass(slots=True)
class OtherRecord(KeyRecord):
    """A key that is neither, which was passed over."""

    kind: str
    """As TYPE says: list, set, zset, hash, array or module."""
    encoding: str
    """As OBJECT ENCODING says; of a module its name and version."""
    size: int
    """Bytes of the object in the file."""


Record = AuxRecord | FunctionRecord | ModuleAuxRecord | StreamRecord | StringRecord | OtherRecord


class FileReader:
    """Iterates over the records of a file; BadPayload, with offset and key, where it is damaged.

    ``file`` is anything with ``read``, and stays the caller's. Damage is noticed where it stands,
    except for what the checksum alone can tell: that comes in place of the last step. Whoever must
    not begin before that calls ``verify``. Bytes behind the end are not looked at, as no server
    does: an append-only file has its commands there, a diskless sync its mark.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._reader = Reader(file.read)
        self._ended = False
        self._summed = False
        self._open: StreamRecord | StringRecord | None = None
        self._templates = Templates()
        self._db = 0
        self._forget()
        self.header, dialect = _header(self._reader)
        self._opcodes = OPCODES[dialect]
        self._types = OBJECT_TYPES[dialect]

    def _forget(self) -> None:
        """Begin with a key of which nothing is known."""
        self._expire_at_ms: int | None = None
        self._idle_s: int | None = None
        self._freq: int | None = None
        self._reader.key = None

    @property
    def offset(self) -> int:
        """Bytes of the file that were walked; after the last record, those of the RDB itself."""
        return self._reader.offset

    @property
    def summed(self) -> bool:
        """Whether the file had a checksum, and it was right: known at the end."""
        return self._summed

    def __iter__(self) -> Iterator[Record]:
        """Give the records; once more begun, go on where it was left."""
        while not self._ended:
            self._pass_over()
            if self._reader.ended():
                raise self._reader.bad("the file has no end: it was cut off")
            at = self._reader.offset
            number = self._reader.byte()
            opcode = self._opcodes.get(number)
            if opcode is None:
                yield self._key(number, at)
            elif opcode is Opcode.EOF:
                self._finish()
            elif (record := _READ[opcode](self)) is not None:
                yield record

    def _pass_over(self) -> None:
        """Get behind the key that was given out last."""
        record, self._open = self._open, None
        if isinstance(record, StreamRecord):
            record.stream.skip()
        elif record is not None:
            record.skip()
        self._reader.key = None

    def _finish(self) -> None:
        """Hold the file against its checksum."""
        self._ended = True
        found, at = self._reader.crc, self._reader.offset
        if self.header.has_checksum:
            told = self._reader.little(CRC_BYTES)
            self._summed = _agree(told, found, at)

    # --- records that are no keys ---------------------------------------------------------------

    def _aux(self) -> AuxRecord:
        return AuxRecord(self._reader.string(), self._reader.string())

    def _function(self) -> FunctionRecord:
        self._reader.skip_string()
        return FunctionRecord()

    def _function_pre_release(self) -> FunctionRecord:
        skipping.skip_function_pre_release(self._reader)
        return FunctionRecord()

    def _module_aux(self) -> ModuleAuxRecord:
        return ModuleAuxRecord(skipping.skip_module(self._reader))

    def _selectdb(self) -> None:
        self._db = self._reader.length(DATABASES_MAX - 1)

    def _resizedb(self) -> None:
        skipping.skip_lengths(self._reader, 2)

    def _slot_info(self) -> None:
        skipping.skip_lengths(self._reader, 3)

    def _slot_import(self) -> None:
        skipping.skip_slot_import(self._reader)

    def _hash_template(self) -> None:
        self._templates.learn(self._reader)

    # --- what is told of the next key -----------------------------------------------------------

    def _expire_ms(self) -> None:
        self._expire(self._reader.time(), 1)

    def _expire_s(self) -> None:
        self._expire(self._reader.little(4, signed=True), _MS)

    def _expire(self, at: int, unit_ms: int) -> None:
        # 0 says "never" everywhere else, but not in a file.
        self._expire_at_ms = None if at == _NO_EXPIRY else max(at * unit_ms, _LONG_AGO_MS)

    def _idle(self) -> None:
        self._idle_s = self._reader.length()

    def _frequency(self) -> None:
        self._freq = self._reader.byte()

    def _key_meta(self) -> None:
        skipping.skip_key_metadata(self._reader)

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
        """Pass over an object; return its encoding and size."""
        reader, encoding = self._reader, kind.encoding
        at = reader.offset
        if number == MODULE:
            encoding = skipping.skip_module(reader)
        elif number == HASH_BY_TEMPLATE:
            self._templates.skip_hash(reader)
        elif kind.skip is None:
            raise reader.bad(f"where a {kind.name} {kind.encoding} ends cannot be told", at)
        else:
            kind.skip(reader)
        return encoding, reader.offset - at

    def _unknown(self, number: int, at: int) -> BadPayload:
        """Return the error of a byte without a meaning, with the key that may follow it."""
        told = f"{self.header.magic} version {self.header.version}"
        error = self._reader.bad(f"object type or opcode {number} is unknown in {told}", at)
        with suppress(BadPayload):  # it may be no key
            error.key = self._reader.string(_SHOWN_KEY_MAX)
        return error


_SHOWN_KEY_MAX = 1 << 16
"""Bytes of a key that are worth reading to name it in an error."""

_READ: dict[Opcode, Callable[[FileReader], Record | None]] = {
    Opcode.AUX: FileReader._aux,
    Opcode.FUNCTION: FileReader._function,
    Opcode.FUNCTION_PRE_RELEASE: FileReader._function_pre_release,
    Opcode.MODULE_AUX: FileReader._module_aux,
    Opcode.SELECTDB: FileReader._selectdb,
    Opcode.RESIZEDB: FileReader._resizedb,
    Opcode.SLOT_INFO: FileReader._slot_info,
    Opcode.SLOT_IMPORT: FileReader._slot_import,
    Opcode.HASH_TEMPLATE: FileReader._hash_template,
    Opcode.EXPIRE_MS: FileReader._expire_ms,
    Opcode.EXPIRE_S: FileReader._expire_s,
    Opcode.IDLE: FileReader._idle,
    Opcode.FREQ: FileReader._frequency,
    Opcode.KEY_META: FileReader._key_meta,
}


def _header(reader: Reader) -> tuple[Header, Dialect]:
    try:
        header = Header.decode(reader.take(MAGIC_BYTES))
    except BadPayload:  # shorter than that
        header = None
    if header is None:
        raise BadPayload("no RDB file begins like this", 0)
    dialect = header.dialect
    if dialect is None:
        raise BadPayload(
            f"{header.magic} files of version {header.version} are not known: known are REDIS 1 to "
            f"{VERSION_MAX} and VALKEY {VALKEY_VERSION}",
            0,
        )
    return header, dialect


def _agree(told: int, found: int, at: int) -> bool:
    """Tell whether there is a checksum; BadPayload where it is wrong."""
    if told not in (0, found):
        raise BadPayload(f"the checksum is {told:016x}, of these bytes it is {found:016x}", at)
    return told != 0


def verify(file: BinaryIO) -> bool:
    """Tell whether a file ends with the checksum of all before it; it is read in one pass.

    False says little: it may have none, or be damaged, or have more bytes behind its end. Only
    walking through it tells which. BadPayload where no RDB file begins like this.
    """
    reader = Reader(file.read)
    header, _ = _header(reader)
    if not header.has_checksum:
        return False
    crc, held = reader.crc, reader.rest()
    while chunk := file.read(CHUNK_BYTES):
        ready = max(len(held) - CRC_BYTES, 0)
        crc = crc64(held[:ready], crc)
        held = held[ready:] + chunk
    body, told = held[:-CRC_BYTES], held[-CRC_BYTES:]
    is_ended = body[-1:] == bytes((NUMBERS[Opcode.EOF],))
    return is_ended and crc64(body, crc) == int.from_bytes(told, "little")
