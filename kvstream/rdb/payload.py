"""Payloads of DUMP and RESTORE, the value of one key, and of FUNCTION DUMP and RESTORE.

::

    payload   := type(u8) object version(u16) crc(u64)           little-endian
    functions := (245(u8) STRING)* version(u16) crc(u64)

The CRC-64 is of all before it. A plain string is type 0, and its object a STRING.
"""

from collections.abc import Iterable, Iterator
from struct import Struct

from kvstream.errors import BadPayload
from kvstream.rdb.primitives import Reader, crc64, encode_string
from kvstream.rdb.skipping import STRING
from kvstream.rdb.streams import StreamReading, encode_stream
from kvstream.rdb.versions import (
    CRC_BYTES,
    NUMBERS,
    STREAM_KINDS,
    VALKEY_VERSION,
    VERSION_MAX,
    Opcode,
    Target,
)
from kvstream.types.images import NodeImage, StreamState

_FOOTER = Struct("<HQ")
_WRONG_FOOTER = "DUMP payload version or checksum are wrong"


def restore(payload: bytes) -> StreamReading | bytes:
    """Return the stream of a payload, still to be read, or the value of a plain string.

    Raises BadPayload, here or while the stream is read, for damage, another type or an unknown
    version.
    """
    reader = _verify(payload, 1)
    kind = reader.byte()
    if kind in STREAM_KINDS:
        return StreamReading(reader, kind, alone=True)
    if kind != STRING:
        raise BadPayload(f"type {kind} is neither a stream nor a string", 0)
    value = reader.string()
    if not reader.is_at_end():
        raise reader.bad("bytes follow the string")
    return value


def _verify(payload: bytes, least: int) -> Reader:
    """Check the footer; return a reader of the ``least`` or more bytes before it."""
    end = len(payload) - _FOOTER.size
    if end < least:
        raise BadPayload(f"{len(payload)} bytes are not a payload", message=_WRONG_FOOTER)
    version, crc = _FOOTER.unpack_from(payload, end)
    if version > VERSION_MAX and version != VALKEY_VERSION:
        raise BadPayload(f"version {version} is not known", end, _WRONG_FOOTER)
    if crc64(memoryview(payload)[:-CRC_BYTES]) != crc:
        raise BadPayload("the checksum is wrong", end + 2, _WRONG_FOOTER)
    return Reader(payload, stop=end)


def restore_functions(payload: bytes) -> list[bytes]:
    """Return the texts of the libraries of a payload; raise BadPayload as ``restore`` does."""
    reader = _verify(payload, 0)
    texts = []
    while not reader.is_at_end():
        at = reader.offset
        if (opcode := reader.byte()) != NUMBERS[Opcode.FUNCTION]:
            raise BadPayload(f"{opcode} is no function", at, "given type is not a function")
        try:
            texts.append(reader.string())
        except BadPayload as error:
            failed = "failed loading the given functions payload"
            raise BadPayload(error.reason, error.offset, failed) from None
    return texts


def dump_functions(target: Target, texts: Iterable[bytes]) -> bytes:
    """Return the payload of libraries."""
    opcode = bytes((NUMBERS[Opcode.FUNCTION],))
    return _seal(target, b"".join(opcode + encode_string(text, compress=True) for text in texts))


def dump(
    target: Target, nodes: Iterable[NodeImage], state: StreamState, node_count: int
) -> Iterator[bytes]:
    """Yield the payload of a stream in pieces; raises ValueError as ``encode_stream`` does."""
    head = bytes((target.kind,))
    crc = crc64(head)
    yield head
    for piece in encode_stream(target.kind, nodes, state, node_count):
        crc = crc64(piece, crc)
        yield piece
    yield _footer(target, crc)


def dump_string(target: Target, value: bytes) -> bytes:
    """Return the payload of a plain string."""
    return _seal(target, bytes((STRING,)) + encode_string(value))


def _seal(target: Target, body: bytes) -> bytes:
    return body + _footer(target, crc64(body))


def _footer(target: Target, crc: int) -> bytes:
    version = target.version.to_bytes(2, "little")
    return version + crc64(version, crc).to_bytes(CRC_BYTES, "little")
