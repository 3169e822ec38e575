"""An RDB file as a Redis or Valkey of a chosen version loads it, written from beginning to end.

::

    file    := magic aux* section* 0xFF crc
    section := SELECTDB, RESIZEDB, (EXPIRE_MS?, type, key, object)*

What is counted while it is written (the nodes of a stream, the keys of a section) is put in its
place afterwards, and the checksum with it; nothing is read again. Memory is one node and one
buffer. This module knows no store, and of files only that they can be written and wound back.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from kvstream.rdb import skipping
from kvstream.rdb.primitives import (
    FIXED_LENGTH_BYTES,
    crc64,
    encode_fixed_length,
    encode_length,
    encode_string,
    encode_time,
    joined,
)
from kvstream.rdb.streams import encode_stream
from kvstream.rdb.versions import CRC_BYTES, NUMBERS, VALKEY_VERSION, Header, Opcode, Target
from kvstream.types.images import NodeImage, StreamState

BUFFER_BYTES = 1 << 20
"""Bytes gathered before they are summed and written: small streams are put right within it."""

_UNKNOWN = encode_fixed_length(0)
_SELECTDB, _RESIZEDB, _EXPIRE_MS, _AUX, _EOF = (
    bytes((NUMBERS[opcode],))
    for opcode in (Opcode.SELECTDB, Opcode.RESIZEDB, Opcode.EXPIRE_MS, Opcode.AUX, Opcode.EOF)
)
_STRING = bytes((skipping.STRING,))


class FileWriter:
    """Writes keys into a file; ``finish`` makes it one that a server loads.

    The file is opened for writing bytes, can seek, and is empty. Keys of a database may come in
    several runs, but no key twice: no server loads such a file. Nothing is synced; a file that
    must be there whole or not at all goes through ``durable_files.replacing``.
    """

    def __init__(
        self, file: BinaryIO, target: Target, *, compress: bool = True, ctime_s: int | None = None
    ) -> None:
        """``compress`` is Redis's ``rdbcompression``; ``ctime_s`` tells when the data was so."""
        self._out = _Output(file)
        self._target = target
        self._compress = compress
        self._section: _Section | None = None
        magic = "VALKEY" if target.version == VALKEY_VERSION else "REDIS"
        self._out.write(Header(magic, target.version).encode())
        self._describe(ctime_s)

    def _describe(self, ctime_s: int | None) -> None:
        server, _, version = self._target.name.partition(":")
        if version:
            self.aux(f"{server}-ver".encode(), version.encode())
        self.aux(b"redis-bits", b"64")
        if ctime_s is not None:
            self.aux(b"ctime", b"%d" % ctime_s)

    @property
    def size(self) -> int:
        """Bytes of the file so far."""
        return self._out.size

    def aux(self, name: bytes, value: bytes) -> None:
        """Tell something of the server; servers pass over names that they do not know."""
        self._out.write(_AUX + encode_string(name) + encode_string(value))

    def string(self, db: int, key: bytes, value: bytes, expire_at_ms: int = 0) -> None:
        """Write a plain string; ``expire_at_ms`` is in Unix milliseconds, 0 for never."""
        self._key(_STRING, db, key, expire_at_ms)
        self._out.write(encode_string(value, compress=self._compress))

    def stream(
        self,
        db: int,
        key: bytes,
        nodes: Iterable[NodeImage],
        state: StreamState | Callable[[], StreamState],
        expire_at_ms: int = 0,
    ) -> None:
        """Write a stream, whose state may be known after its last node only.

        The state holds nothing that the target cannot (see ``targets.reduce``): ValueError.
        """
        out, kind = self._out, self._target.kind
        self._key(bytes((kind,)), db, key, expire_at_ms)
        at = out.size
        counted = _Counted(nodes)
        for piece in encode_stream(kind, counted, state, compress=self._compress):
            out.write(piece)
        out.put(at, counted.count)

    def finish(self) -> None:
        """Write the end of the file; nothing may follow."""
        self._end_section()
        self._out.write(_EOF)
        self._out.end()

    def _key(self, kind: bytes, db: int, key: bytes, expire_at_ms: int) -> None:
        section = self._section
        if section is None or section.db != db:
            section = self._begin_section(db)
        section.keys += 1
        if expire_at_ms:
            section.expiring += 1
            self._out.write(_EXPIRE_MS + encode_time(expire_at_ms))
        self._out.write(kind + encode_string(key))

    def _begin_section(self, db: int) -> "_Section":
        self._end_section()
        self._out.write(_SELECTDB + encode_length(db) + _RESIZEDB)
        self._section = _Section(db, self._out.size)
        self._out.write(_UNKNOWN + _UNKNOWN)
        return self._section

    def _end_section(self) -> None:
        section, self._section = self._section, None
        if section is not None:
            # From the back: what is put in place may take less room than was kept for it.
            self._out.put(section.at + FIXED_LENGTH_BYTES, section.expiring)
            self._out.put(section.at, section.keys)


class _Section:
    """The keys that are written after one SELECTDB."""

    def __init__(self, db: int, at: int) -> None:
        self.db = db
        self.at = at
        self.keys = self.expiring = 0


class _Counted:
    """Passes nodes on, and counts them."""

    def __init__(self, nodes: Iterable[NodeImage]) -> None:
        self._nodes = nodes
        self.count = 0

    def __iter__(self) -> Iterator[NodeImage]:
        for node in self._nodes:
            self.count += 1
            yield node


class _Output:
    """Gathers bytes, sums them, and puts lengths in their places that were kept for them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = bytearray()
        self._written = 0
        self._crc = 0  # of what was written

    @property
    def size(self) -> int:
        return self._written + len(self._buffer)

    def write(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= BUFFER_BYTES:
            self._flush()

    def put(self, at: int, number: int) -> None:
        """Write ``number`` where ``_UNKNOWN`` was written: in its shortest form if nothing of that
        has been written yet, so that small streams are byte for byte as a server writes them."""
        inside = at - self._written
        if inside >= 0:
            self._buffer[inside : inside + FIXED_LENGTH_BYTES] = encode_length(number)
        else:
            self._flush()
            self._overwrite(at, encode_fixed_length(number))

    def _overwrite(self, at: int, data: bytes) -> None:
        # Sums are linear: that of the difference is what the whole sum changes by.
        change = bytes(old ^ new for old, new in zip(_UNKNOWN, data, strict=True))
        behind = self._written - at - len(data)
        self._crc ^= joined(crc64(change), 0, behind)
        self._file.seek(at)
        self._file.write(data)
        self._file.seek(self._written)

    def _flush(self) -> None:
        data = bytes(self._buffer)
        self._file.write(data)
        self._crc = crc64(data, self._crc)
        self._written += len(data)
        self._buffer.clear()

    def end(self) -> None:
        self._flush()
        self._file.write(self._crc.to_bytes(CRC_BYTES, "little"))
        self._file.flush()
