"""The objects of an archive, as bytes.

::

    PREFIX/log/NUMBER          pieces: a fence, or bytes of logs; numbered without gaps, from 0
    PREFIX/merged/NUMBER-NUMBER  the pieces of these numbers, both included, as they were put
    PREFIX/fences/NUMBER       nothing: the piece of this number may be a fence, and is kept
    PREFIX/snapshots/NUMBER    the files of the store at the commit before the piece of this number
    PREFIX/tables/SHA256       the content of one file, as it is
    PREFIX/pins/NAME           somebody restores: nothing is deleted meanwhile
    NUMBER := 16 hexadecimal digits

    object := magic kind(u8) version(u8) size(u32) head body sum
      magic  "KVSA"
      kind   1 a piece, 2 a snapshot, 3 merged pieces
      size   bytes of the head
      head   a msgpack map: the fields of Piece, Snapshot or Merged
      body   of a piece zstd: the bytes of its parts; of merged pieces the objects that they were,
             one after another; of a snapshot empty
      sum    SHA-256 of all before it
    integers are big-endian

In an encrypted archive each object is in the envelope of ``encryption.py``, and tables have other
names.

A piece has the SHA-256 of the piece before it: so a history can be verified as a whole, and two
histories are never mixed. A piece may be there as an object, in a merged one, or as both: then the
merged one counts. Merged objects of the same numbers have the same bytes, whoever has made them. A
fence is never deleted: a former owner that was stopped for long must
find its next number taken. A snapshot is not named by its commit: a history that begins anew may do
so at a commit that has a snapshot already, which does not lead to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from struct import Struct
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgpack

from kvstream.archive.keys import WHERE
from kvstream.errors import ArchiveDamaged, UnknownLayout, WrongArchiveKey

VERSION = 1
_MAGIC = b"KVSA"
ENCRYPTED = b"KVCR"
"""With this an object of an encrypted archive begins (encryption.py)."""
_HEAD = Struct(">4sBBI")
_SUM_BYTES = 32
_LEVEL = 1
"""Of zstd. Logs of text entries become 0.12 of their size; level 3 takes twice the time for 0.1."""
RAW_MAX = 16 << 20
"""Bytes of logs in one piece: what the archiver holds in memory."""

LOG, MERGED, FENCES = "log/", "merged/", "fences/"
SNAPSHOTS, TABLES, PINS = "snapshots/", "tables/", "pins/"


class Part(NamedTuple):
    """Bytes of one log file in the body of a piece."""

    log: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the history: commits, or a fence, with which an owner begins."""

    kind: ClassVar[int] = 1
    number: int
    archive: str
    """The name of the archive: 32 hexadecimal digits."""
    epoch: str
    """The name of the owner's opening; a fence begins it."""
    before: bytes
    """The SHA-256 of the piece before this one; nothing in the first."""
    last: int
    """The sequence number of the last commit up to here."""
    position: tuple[int, int]
    """The log and the offset in it behind that commit."""
    base: int
    """The number of the fence at which the history begins, or began anew: no snapshot of before
    leads to here."""
    written_ms: int
    bytes_before: int
    """The bytes of all pieces before this one, as objects."""
    parts: list[Part] = field(default_factory=list)
    """None in a fence."""
    times: list[tuple[int, int]] = field(default_factory=list)
    """(Unix ms, sequence number): by then this commit was the last one."""
    owner: str = ""
    """The host, the process and the directory of the owner, for people."""

    @property
    def is_base(self) -> bool:
        """Whether the history begins here, or begins anew."""
        return self.base == self.number

    @property
    def latest_ms(self) -> int:
        """The last time that is noted in it."""
        return max([self.written_ms, *(ms for ms, _ in self.times[-1:])])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a store whose logs, from ``first_log`` on, are in pieces."""

    kind: ClassVar[int] = 2
    archive: str
    epoch: str
    sequence: int
    """All commits up to this one are in the files, or in the pieces before ``piece``."""
    written_ms: int
    piece: int
    """The number of the piece behind that with the commit ``sequence``."""
    first_piece: int
    """The number of the first piece with bytes of ``first_log``."""
    first_log: int
    tables: dict[str, tuple[str, int]]
    """Names of files, the names of their objects, and their sizes. A name is the SHA-256 of the
    content; in an encrypted archive one that is derived from that with the key."""
    files: dict[str, bytes]
    """Names and contents of the small files."""
    base: int
    """That of the piece before ``piece``."""
    bytes_before: int
    """That of ``piece``."""
    owner: str = ""
    """Who has made it, for people."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Pieces that follow one another, in one object."""

    kind: ClassVar[int] = 3
    first: int
    """The number of the first one."""
    sizes: list[int]
    """The bytes of each."""


T = TypeVar("T", Piece, Snapshot, Merged)


def piece_key(number: int) -> str:
    """Return the key of a piece."""
    return f"{LOG}{number:016x}"


def merged_key(first: int, last: int) -> str:
    """Return the key of the object with the pieces of these numbers, both included."""
    return f"{MERGED}{first:016x}-{last:016x}"


def merged_numbers(key: str) -> tuple[int, int]:
    """Return the first and the last number in the key of merged pieces; ValueError for another."""
    first, _, last = key.removeprefix(MERGED).partition("-")
    return number_of(first), number_of(last)


def fence_key(number: int) -> str:
    """Return the key that keeps a fence."""
    return f"{FENCES}{number:016x}"


def snapshot_key(piece: int) -> str:
    """Return the key of a snapshot by the number of the piece behind it."""
    return f"{SNAPSHOTS}{piece:016x}"


def table_key(name: str) -> str:
    """Return the key of a table by its name (``Objects.table_names``)."""
    return f"{TABLES}{name}"


def number_of(key: str) -> int:
    """Return the number in the key of a piece or snapshot; ValueError for another key."""
    digits = key.rpartition("/")[2]
    if len(digits) != 16:
        raise ValueError(key)
    return int(digits, 16)


def encode(head: Piece | Snapshot, raw: bytes = b"") -> bytes:
    """Return an object; ``raw`` is compressed."""
    return _encode(head, _compress(raw) if raw else b"")


def encode_merged(first: int, pieces: Sequence[bytes]) -> bytes:
    """Return one object with the objects of pieces from a number on."""
    return _encode(Merged(first, [len(data) for data in pieces]), *pieces)


def _encode(head: Piece | Snapshot | Merged, *body: bytes) -> bytes:
    packed = msgpack.packb(asdict(head))
    parts = _HEAD.pack(_MAGIC, head.kind, VERSION, len(packed)), packed, *body
    hashed = sha256()
    for part in parts:
        hashed.update(part)
    return b"".join((*parts, hashed.digest()))


def split_merged(key: str, data: bytes) -> Iterator[bytes]:
    """Yield the objects of the pieces in a merged one; raise ArchiveDamaged if it is damaged."""
    head, body = decode(Merged, key, data)
    first, last = merged_numbers(key)
    if (head.first, len(head.sizes), sum(head.sizes)) != (first, last - first + 1, len(body)):
        raise damaged(key, "it has other pieces than its name and its head say")
    at = 0
    for size in head.sizes:
        yield body[at : at + size]
        at += size


def is_plain(data: bytes) -> bool:
    """Return whether this is the beginning of a piece or snapshot that is not encrypted."""
    return data[:4] == _MAGIC


def sum_of(data: bytes) -> bytes:
    """Return the SHA-256 at the end of an object."""
    return data[-_SUM_BYTES:]


def decode(kind: type[T], key: str, data: bytes) -> tuple[T, bytes]:
    """Return the head of an object, and its body, which is compressed.

    Raises ArchiveDamaged, with the key, for any other bytes; UnknownLayout for a later version;
    WrongArchiveKey for an object that is encrypted.
    """
    view = memoryview(data)
    if data[:4] == ENCRYPTED:
        raise WrongArchiveKey(
            f"the archive is encrypted, as its object {key}: give its key ({WHERE})"
        )
    if len(data) < _HEAD.size + _SUM_BYTES or data[:4] != _MAGIC:
        raise damaged(key, "it is no object of an archive, or cut short")
    if sha256(view[:-_SUM_BYTES]).digest() != data[-_SUM_BYTES:]:
        raise damaged(key, "its SHA-256 does not match")
    _, found, version, size = _HEAD.unpack_from(data)
    if version > VERSION:
        raise UnknownLayout(
            f"{key} was written by a later version of kvstream (format {version}, this one reads "
            f"up to {VERSION}): use that version"
        )
    start = _HEAD.size + size
    if found != kind.kind or start > len(data) - _SUM_BYTES:
        raise damaged(key, f"it is no {kind.__name__.lower()}")
    head = _decode_head(kind, key, data[_HEAD.size : start])
    return head, data[start:-_SUM_BYTES]


def _decode_head(kind: type[T], key: str, packed: bytes) -> T:
    known = {each.name for each in fields(kind)}
    try:
        values: Mapping[str, Any] = msgpack.unpackb(packed)
        head = kind(**{name: values[name] for name in known & values.keys()})
    except (ValueError, TypeError, AttributeError) as error:
        raise damaged(key, f"its head cannot be read: {error}") from None
    if isinstance(head, Piece):
        object.__setattr__(head, "parts", [Part(*part) for part in head.parts])
    return head


def raw_of(key: str, piece: Piece, body: bytes) -> bytes:
    """Return the decompressed body of a piece; raise ArchiveDamaged if it has another size."""
    size = sum(part.size for part in piece.parts)
    if not size:
        return b""
    try:
        raw = _decompress(body, size)
    except ValueError as error:
        raise damaged(key, str(error)) from None
    if len(raw) != size:
        raise damaged(key, f"it has {len(raw)} bytes in place of {size}")
    return raw


def damaged(key: str, reason: str) -> ArchiveDamaged:
    """Return the error for a damaged object."""
    return ArchiveDamaged(f"the object {key} of the archive is damaged: {reason}")


def _compress(raw: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL).compress(raw)


def _decompress(body: bytes, size: int) -> bytes:
    import zstandard

    try:
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(f"it cannot be decompressed: {error}") from None


__all__ = [
    "ENCRYPTED",
    "RAW_MAX",
    "Merged",
    "Part",
    "Piece",
    "Snapshot",
    "damaged",
    "decode",
    "encode",
    "encode_merged",
    "fence_key",
    "is_plain",
    "merged_key",
    "merged_numbers",
    "number_of",
    "piece_key",
    "raw_of",
    "snapshot_key",
    "split_merged",
    "sum_of",
    "table_key",
]
