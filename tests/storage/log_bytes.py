"""Bytes of RocksDB's log format, made by hand, and logs that RocksDB itself has written."""

from collections.abc import Iterable
from pathlib import Path
from struct import pack, unpack_from

from rocksdict import Options, Rdict, WriteBatch

from kvstream.storage import log
from kvstream.storage.log import DELETE, DELETE_RANGE, PUT, Row

HEAD = 7
FAMILY = "rows"


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def part(content: bytes) -> bytes:
    return varint(len(content)) + content


def encode_row(row: Row) -> bytes:
    family, kind, key, value = row
    head = bytes([{DELETE: 4, PUT: 5, DELETE_RANGE: 14}[kind]]) + varint(family)
    return (head if family else bytes([kind])) + part(key) + (b"" if value is None else part(value))


def encode_record(sequence: int, rows: Iterable[Row]) -> bytes:
    encoded = [encode_row(row) for row in rows]
    return pack("<QI", sequence, len(encoded)) + b"".join(encoded)


def fragment(kind: int, content: bytes) -> bytes:
    crc = log.crc32c_in_python(bytes([kind]) + content)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return pack("<IHB", masked, len(content), kind) + content


def written(payloads: Iterable[bytes], at: int = 0) -> bytes:
    """Return payloads as RocksDB writes them from an offset on."""
    out = bytearray()
    for payload in payloads:
        begin = True
        while True:
            left = log.BLOCK - (at + len(out)) % log.BLOCK
            if left < HEAD:
                out += bytes(left)
                left = log.BLOCK
            piece, payload = payload[: left - HEAD], payload[left - HEAD :]
            kind = (1 if begin else 4) if not payload else (2 if begin else 3)
            out += fragment(kind, piece)
            begin = False
            if not payload:
                break
    return bytes(out)


def fragments(data: bytes) -> list[tuple[int, int]]:
    """Return type and length of each fragment of a sound log, zeros left out."""
    at, found = 0, []
    while at < len(data):
        if log.BLOCK - at % log.BLOCK < HEAD:
            at += log.BLOCK - at % log.BLOCK
            continue
        _, length, kind = unpack_from("<IHB", data, at)
        found.append((kind, length))
        at += HEAD + length
    return found


def opened(path: Path, ttl_s: int = 0, size_mb: int = 0) -> Rdict:
    """Open a RocksDB with the family ``rows`` besides ``default``, and limits of kept logs."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_ttl_seconds(ttl_s)
    options.set_wal_size_limit_mb(size_mb)
    return Rdict(str(path), options, {FAMILY: Options(raw_mode=True)})


def write(database: Rdict, rows: Iterable[Row]) -> None:
    """Write rows as one batch; the family 1 is ``rows``."""
    batch = WriteBatch(True)
    handle = database.get_column_family_handle(FAMILY)
    for family, kind, key, value in rows:
        of = (handle,) if family else ()
        if kind == PUT:
            batch.put(key, value or b"", *of)
        elif kind == DELETE:
            batch.delete(key, *of)
        else:
            batch.delete_range(key, value or b"", *of)
    database.write(batch)


def logs(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*.log") if path.stem.isdigit())


def log_of(directory: Path) -> bytes:
    """Return the newest log."""
    return logs(directory)[-1].read_bytes()
