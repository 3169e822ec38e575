"""Writing of RDB files that a Redis or Valkey of a chosen version loads.

::

    file    := magic aux* FUNCTION* section* 0xFF crc
    section := SELECTDB, RESIZEDB, (EXPIRE_MS?, type, key, object)*

Counts of nodes and keys are not known before their data is written. Room is left for them, and the
writer seeks back to fill it; the checksum is corrected without reading. Memory is one node and one
buffer.
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
    join_crcs,
)
from kvstream.rdb.streams import encode_stream
from kvstream.rdb.versions import (
    CRC_BYTES,
    NUMBERS,
    VALKEY_VERSION,
    Header,
    Opcode,
    Target,
)
from kvstream.types.images import NodeImage, StreamState

BUFFER_BYTES = 1 << 20
"""Bytes that are buffered before they are written: counts of small streams change in the buffer."""

_UNKNOWN = encode_fixed_length(0)
_SELECTDB, _RESIZEDB, _EXPIRE_MS, _AUX, _FUNCTION, _EOF = (
    bytes((NUMBERS[Opcode[name]],))
    for name in ("SELECTDB", "RESIZEDB", "EXPIRE_MS", "AUX", "FUNCTION", "EOF")
)
_STRING = bytes((skipping.STRING,))


class FileWriter:
    """Writes keys into a file; ``finish`` makes it complete.

    The file is binary, seekable and empty. Keys of a database may come in several runs, but no key
    twice: no server loads such a file. Nothing is synced; ``storage.files.replacing`` makes a file
    atomic.
    """

    def __init__(
        self,
        file: BinaryIO,
        target: Target,
        *,
        compress: bool = True,
        ctime_s: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """``compress`` is Redis's ``rdbcompression``; ``ctime_s`` the Unix time of the data."""
        self._out = _Output(file, buffer_bytes)
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
        """Write a field about the server; servers ignore names that they do not know."""
        self._out.write(_AUX + encode_string(name) + encode_string(value))

    def function(self, text: bytes) -> None:
        """Write a library of functions; targets have them since ``versions.FUNCTIONS_SINCE``."""
        self._end_section()
        self._out.write(_FUNCTION + encode_string(text, compress=self._compress))

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
    ) -> int:
        """Write a stream, and return its number of entries.

        A callable ``state`` is called after the last node.
        Raises ValueError if the state has something that the target cannot hold
        (``versions.reduce`` removes it).
        """
        out, kind = self._out, self._target.kind
        self._key(bytes((kind,)), db, key, expire_at_ms)
        at = out.size
        counted = _Counted(nodes)
        for piece in encode_stream(kind, counted, state, compress=self._compress):
            out.write(piece)
        out.put(at, counted.nodes)
        return counted.entries

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
            # Last one first: a count may take fewer bytes than its room.
            self._out.put(section.at + FIXED_LENGTH_BYTES, section.expiring)
            self._out.put(section.at, section.keys)


class _Section:
    """The keys after one SELECTDB."""

    def __init__(self, db: int, at: int) -> None:
        self.db = db
        self.at = at
        self.keys = self.expiring = 0


class _Counted:
    """Passes nodes on, and counts them and their entries."""

    def __init__(self, nodes: Iterable[NodeImage]) -> None:
        self._given = nodes
        self.nodes = self.entries = 0

    def __iter__(self) -> Iterator[NodeImage]:
        for node in self._given:
            self.nodes += 1
            self.entries += node.count
            yield node


class _Output:
    """Buffers bytes, sums them, and fills in counts."""

    def __init__(self, file: BinaryIO, buffer_bytes: int) -> None:
        self._file = file
        self._buffer_bytes = buffer_bytes
        self._buffer = bytearray()
        self._written = 0
        self._crc = 0  # of what was written

    @property
    def size(self) -> int:
        return self._written + len(self._buffer)

    def write(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= self._buffer_bytes:
            self._flush()

    def put(self, at: int, number: int) -> None:
        """Replace the ``_UNKNOWN`` at an offset by ``number``.

        In the buffer it takes its shortest form, so small streams equal those of a server.
        """
        inside = at - self._written
        if inside >= 0:
            self._buffer[inside : inside + FIXED_LENGTH_BYTES] = encode_length(number)
        else:
            self._flush()
            self._overwrite(at, encode_fixed_length(number))

    def _overwrite(self, at: int, data: bytes) -> None:
        # CRCs are linear: the CRC changes by that of the difference.
        change = bytes(old ^ new for old, new in zip(_UNKNOWN, data, strict=True))
        behind = self._written - at - len(data)
        self._crc ^= join_crcs(crc64(change), 0, behind)
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
