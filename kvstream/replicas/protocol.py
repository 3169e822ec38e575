"""The bytes between a primary and its replica, without any socket.

A replica connects as a client, authenticates, and says by REPLCONF where it listens. Then::

    request  := KVSTREAM.SYNC version epoch branch lsn [FAILOVER]      as any request
    reply    := "+CONTINUE " epoch branch lsn sequence families CRLF       frames of the log follow
              | "+COPY " fork CRLF                                         frames of a copy follow
              | "-" error CRLF
      epoch, branch (20 bytes in hexadecimal) and lsn    the replica's position in a request;
                in a reply it may be lower: what is there already comes again in one commit
      FAILOVER  the replica was the primary until now: it hands over to the server that it asks,
                which was its replica, has its history, and becomes the primary first
      sequence  the number that the row ``lsn`` has in the log of the primary
      families  number:name, separated by commas
      fork      the lsn up to which the replica has the primary's history, "-" if nothing is known

    frame    := kind(u8) a(u64) b(u64) length(u32) payload
      LOG   1   a log, b offset: bytes of that file; they follow those before them, or a begins
      BEAT  2   a the primary's clock in ns, b its last lsn; a is echoed. payload confirmed(u64),
                the last lsn that clients know to be on replicas; older primaries send none
      FILES 3   payload JSON: [[name, size, SHA-256 in hexadecimal]...], the files of the copy
      FILE  4   a index, b offset: bytes of one of the files
      DONE  5   all the files that were asked for have been sent
    integers are big-endian

After FILES the replica asks for those that it lacks. Behind each heartbeat, once it has committed
what was before it, it acknowledges. Both are requests without a reply::

    REPLCONF NEED index*
    REPLCONF ACK received-lsn durable-lsn echo

The replica opens the copy as a store, and asks again by KVSTREAM.SYNC, from the copy's position.
"""

import json
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from kvstream.errors import ProtocolError, ReplicationRefused, SourceNotReady
from kvstream.layout.history import BRANCH_BYTES, Place

VERSION = 1
COMMAND = b"KVSTREAM.SYNC"
FAILOVER = b"FAILOVER"
LOG, BEAT, FILES, FILE, DONE = 1, 2, 3, 4, 5
_HEAD = Struct(">BQQI")
_LSN = Struct(">Q")
HEAD_BYTES = _HEAD.size
PAYLOAD_MAX = 16 << 20
"""Bytes of a payload that a replica accepts: FILES of 100,000 files has some 10 MB."""
LINE_MAX = 4096
NO_PLACE = Place(0, bytes(BRANCH_BYTES), 0)
"""The position of a store without a history."""


class Frame(NamedTuple):
    """One frame."""

    kind: int
    a: int
    b: int
    payload: bytes


class Continue(NamedTuple):
    """The primary goes on from the replica's position."""

    place: Place
    """That position, in the primary's present epoch or a former one."""
    sequence: int
    """The number of its row in the primary's log."""
    families: dict[int, str]


class Copy(NamedTuple):
    """The primary sends all its files."""

    fork: int | None
    """The lsn up to which the replica has the primary's history; None: unknown."""


class File(NamedTuple):
    """One file of a copy."""

    name: str
    size: int
    sum: str
    """Its SHA-256, in hexadecimal."""


def encode_head(kind: int, a: int, b: int, length: int) -> bytes:
    """Return the head of a frame."""
    return _HEAD.pack(kind, a, b, length)


def encode_beat(clock_ns: int, lsn: int, confirmed: int) -> bytes:
    """Return a heartbeat."""
    return _HEAD.pack(BEAT, clock_ns, lsn, _LSN.size) + _LSN.pack(confirmed)


def decode_confirmed(beat: Frame) -> int:
    """Return the last lsn that clients know to be on replicas; 0 if a heartbeat has none."""
    confirmed: int = _LSN.unpack_from(beat.payload)[0] if len(beat.payload) >= _LSN.size else 0
    return confirmed


def encode_request(*words: bytes | str | int) -> bytes:
    """Return a request as a client sends it."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def encode_sync(place: Place, hands_over: bool = False) -> bytes:
    """Return the request of a replica at a position; if it ``hands_over`` it was the primary."""
    words = COMMAND, VERSION, place.epoch, place.branch.hex(), place.lsn
    return encode_request(*words, *([FAILOVER] if hands_over else []))


def decode_sync(argv: list[bytes]) -> tuple[Place, bool]:
    """Return the position in a request, and whether its sender hands over.

    Raises ReplicationRefused if it is not understood.
    """
    try:
        version, epoch, lsn = int(argv[1]), int(argv[2]), int(argv[4])
        branch = bytes.fromhex(argv[3].decode("ascii"))
    except (ValueError, IndexError):
        raise ReplicationRefused("KVSTREAM.SYNC takes a version, epoch, branch and lsn") from None
    if version != VERSION:
        raise ReplicationRefused(
            f"the replica speaks version {version} of the replication protocol, this server "
            f"{VERSION}: upgrade the older of both"
        )
    if len(branch) != BRANCH_BYTES or epoch < 0 or lsn < 0:
        raise ReplicationRefused("KVSTREAM.SYNC has no valid position")
    if argv[5:] not in ([], [FAILOVER]):
        raise ReplicationRefused(f"KVSTREAM.SYNC has an unknown option: {argv[5][:80]!r}")
    return Place(epoch, branch, lsn), bool(argv[5:])


def encode_continue(found: Continue) -> bytes:
    """Return the reply to a replica that goes on."""
    place = found.place
    families = ",".join(f"{number}:{name}" for number, name in sorted(found.families.items()))
    words = place.epoch, place.branch.hex(), place.lsn, found.sequence, families
    return ("+CONTINUE " + " ".join(map(str, words)) + "\r\n").encode()


def encode_copy(fork: int | None) -> bytes:
    """Return the reply to a replica that gets a copy."""
    return f"+COPY {'-' if fork is None else fork}\r\n".encode()


def decode_reply(line: bytes) -> Continue | Copy:
    """Return the reply to KVSTREAM.SYNC; raise an error for a refusal, or for another reply."""
    words = line.decode("utf-8", "replace").split(" ")
    if words[0].startswith("-"):
        raise _refusal(line[1:].decode("utf-8", "replace"))
    try:
        if words[0] == "+COPY":
            return Copy(None if words[1] == "-" else int(words[1]))
        if words[0] == "+CONTINUE":
            families = dict(each.split(":", 1) for each in words[5].split(","))
            place = Place(int(words[1]), bytes.fromhex(words[2]), int(words[3]))
            named = {int(number): name for number, name in families.items()}
            return Continue(place, int(words[4]), named)
    except (ValueError, IndexError):
        pass
    raise ProtocolError(f"no reply to KVSTREAM.SYNC: {line[:80]!r}")


def _refusal(text: str) -> ReplicationRefused | SourceNotReady:
    if text.startswith(("LOADING", "MASTERDOWN", "BUSY", "NOTREADY")):
        return SourceNotReady(text)
    if "unknown command" in text:
        return ReplicationRefused(
            f"the server is not kvstream, or an older one ({text}): kvstream migrate --follow "
            "follows a Redis"
        )
    return ReplicationRefused(text)


def encode_files(files: list[File]) -> bytes:
    """Return the frame that names the files of a copy."""
    payload = json.dumps([list(file) for file in files]).encode()
    return encode_head(FILES, 0, 0, len(payload)) + payload


def decode_files(payload: bytes) -> list[File]:
    """Return the files of a copy; ProtocolError for names that lead elsewhere."""
    try:
        found = [File(str(name), int(size), str(sum_)) for name, size, sum_ in json.loads(payload)]
    except (ValueError, TypeError):
        raise ProtocolError("the files of a copy are not understood") from None
    for file in found:
        if "/" in file.name or file.name in ("", ".", "..") or file.size < 0:
            raise ProtocolError(f"a copy has a file of an unsafe name: {file.name!r}")
    return found


class FrameReader:
    """Takes the bytes that a replica receives: lines first, then frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Take received bytes."""
        self._bytes += data

    def line(self) -> bytes | None:
        """Return the next line without its end; None if it is not whole."""
        end = self._bytes.find(b"\r\n")
        if end < 0:
            if len(self._bytes) > LINE_MAX:
                raise ProtocolError("a line of the primary does not end")
            return None
        line = bytes(self._bytes[:end])
        del self._bytes[: end + 2]
        return line

    def frames(self) -> Iterator[Frame]:
        """Yield the frames that are whole; ProtocolError for what is none."""
        at, size = 0, len(self._bytes)
        try:
            while size - at >= HEAD_BYTES:
                kind, a, b, length = _HEAD.unpack_from(self._bytes, at)
                if not LOG <= kind <= DONE or length > PAYLOAD_MAX:
                    raise ProtocolError(f"a frame of kind {kind} and {length} bytes")
                end = at + HEAD_BYTES + length
                if end > size:
                    return
                payload = bytes(self._bytes[at + HEAD_BYTES : end])
                at = end
                yield Frame(kind, a, b, payload)
        finally:
            del self._bytes[:at]
