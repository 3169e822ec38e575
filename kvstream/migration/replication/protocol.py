"""The replica's side of Redis replication, sans-IO: bytes in, events out.

::

    replica    handshake := PING REPLCONF-listening-port REPLCONF-capa REPLCONF-version PSYNC
               PSYNC     := "PSYNC" replid offset      the next byte wanted; "?" and -1: any
               ack       := "REPLCONF" "ACK" offset
    source     replies   := a line for each request of the handshake; then
               sync      := "+FULLRESYNC" replid offset CRLF snapshot stream
                          | "+CONTINUE" [replid] CRLF stream
               snapshot  := LF* "$" length CRLF byte*length
                          | LF* "$EOF:" mark(40) CRLF byte* mark
               stream    := request*                   without replies

An offset counts the bytes of the stream; that of a command is after its last byte. Lines and
requests have a maximum length. The connection is authenticated before the handshake.

The version is that of Valkey. From 9 on Valkey takes a replica that does not tell its version for
an old one, and makes it no snapshot of what is new, such as fields of hashes that expire. Redis
does not know the option; its error is ignored.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from kvstream.errors import ProtocolError, ReplicationRefused, SourceNotReady
from kvstream.resp.requests import Request, RequestReader, request_bytes

NO_HISTORY: Final = b"?"
LINE_MAX: Final = 64 << 10
"""Bytes of a line of the handshake."""
REPLID_BYTES: Final = 40
MARK_BYTES: Final = 40
TEMPORARY = (b"NOMASTERLINK", b"LOADING", b"MASTERDOWN", b"BUSY", b"TRYAGAIN")
"""Error codes of a source that is not ready yet."""
_EOF_HEAD: Final = b"EOF:"
_VERSION: Final = [b"REPLCONF", b"version", b"9.0.0"]
"""The version of Valkey whose snapshots are read."""


class Position(NamedTuple):
    """A position in the history of a server: the stream up to the offset is applied."""

    replid: bytes
    offset: int


NOWHERE = Position(NO_HISTORY, -1)


class FullSync(NamedTuple):
    """A snapshot of the data at this position follows."""

    position: Position


class SnapshotData(NamedTuple):
    data: bytes


class SnapshotEnd(NamedTuple):
    """The snapshot is complete; the stream follows after an acknowledgement."""


class Continued(NamedTuple):
    """The stream continues at the position asked for, maybe with another replid."""

    position: Position


class Received(NamedTuple):
    """A command, and the offset after it."""

    argv: Request
    end: int


Event: TypeAlias = FullSync | SnapshotData | SnapshotEnd | Continued | Received


def request(*words: bytes) -> bytes:
    """Return the bytes of a request."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class Replica:
    """The protocol of one connection to a source.

    ``feed`` the bytes received and handle the events in order; send the bytes of ``outgoing``. The
    object is not usable after an error.
    """

    def __init__(self, position: Position = NOWHERE) -> None:
        self.position = position
        """The position after the last command returned."""
        self._steps = self._handshake()
        self._buffer = b""
        self._outgoing = bytearray()
        self._read: Callable[[list[Event]], bool] = self._greeting
        self._reader = RequestReader()
        self._missing = 0
        self._mark = b""
        self._say()

    def _handshake(self) -> list[list[bytes]]:
        replid, offset = self.position
        return [
            [b"PING"],
            [b"REPLCONF", b"listening-port", b"0"],  # this replica accepts no connections
            [b"REPLCONF", b"capa", b"eof", b"capa", b"psync2"],
            _VERSION,
            [b"PSYNC", replid, b"%d" % (offset if replid == NO_HISTORY else offset + 1)],
        ]

    def _say(self) -> None:
        self._outgoing += request(*self._steps[0])

    def outgoing(self) -> bytes:
        """Return the bytes to send, once."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    def feed(self, data: bytes) -> list[Event]:
        """Return the events in the next bytes.

        Raises ReplicationRefused for a refusal, SourceNotReady for a temporary one, and
        ProtocolError for bytes that are not the protocol.
        """
        events: list[Event] = []
        self._buffer += data
        while self._buffer and self._read(events):
            pass
        return events

    @staticmethod
    def ack(offset: int) -> bytes:
        """Return the bytes of an acknowledgement."""
        return request(b"REPLCONF", b"ACK", b"%d" % offset)

    # --- lines ----------------------------------------------------------------------------------

    def _line(self) -> bytes | None:
        """Take a line, or None if it is incomplete; empty lines only keep the link alive."""
        self._buffer = self._buffer.lstrip(b"\n")
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > LINE_MAX:
                raise ProtocolError("the source sends an endless line: is it a Redis server?")
            return None
        line, self._buffer = self._buffer[:end].removesuffix(b"\r"), self._buffer[end + 1 :]
        return line

    def _greeting(self, events: list[Event]) -> bool:
        line = self._line()
        if line is None:
            return False
        said = self._steps.pop(0)
        if line[:1] == b"-" and said is not _VERSION:
            self._raise_refusal(said[0], line[1:])
        if line[:1] not in b"+-":
            raise ProtocolError(f"the source replies to {said[0].decode()} with {_show(line)}")
        if self._steps:
            self._say()
        else:
            self._begin(line[1:], events)
        return True

    def _raise_refusal(self, word: bytes, error: bytes) -> None:
        """Raise the error for a refusal."""
        text = f"the source refuses {word.decode()}: {_show(error)}"
        raise (SourceNotReady if error.split(b" ")[0] in TEMPORARY else ReplicationRefused)(text)

    def _begin(self, line: bytes, events: list[Event]) -> None:
        words = line.split()
        if words[:1] == [b"FULLRESYNC"] and len(words) == 3 and words[2].isdigit():
            self.position = Position(_replid(words[1]), int(words[2]))
            events.append(FullSync(self.position))
            self._read = self._snapshot_head
        elif words[:1] == [b"CONTINUE"] and self.position.replid != NO_HISTORY:
            replid = _replid(words[1]) if len(words) > 1 else self.position.replid
            self.position = Position(replid, self.position.offset)
            events.append(Continued(self.position))
            self._read = self._commands
        else:
            raise ProtocolError(f"the source replies to PSYNC with {_show(line)}")

    # --- the snapshot ---------------------------------------------------------------------------

    def _snapshot_head(self, events: list[Event]) -> bool:
        line = self._line()
        if line is None:
            return False
        size = line[1:]
        if line[:1] == b"-":
            raise SourceNotReady(f"the source cannot make a snapshot: {_show(line[1:])}")
        if line[:1] == b"$" and size.isdigit() and len(size) < 20:
            self._missing = int(size)
            self._read = self._snapshot_by_length
            return self._snapshot_by_length(events) if not self._missing else True
        if line[:1] == b"$" and size.startswith(_EOF_HEAD) and len(size) == 4 + MARK_BYTES:
            self._mark = size[len(_EOF_HEAD) :]
            self._read = self._snapshot_by_mark
            return True
        raise ProtocolError(f"the source begins a snapshot with {_show(line)}")

    def _snapshot_by_length(self, events: list[Event]) -> bool:
        data, self._buffer = self._buffer[: self._missing], self._buffer[self._missing :]
        self._missing -= len(data)
        if data:
            events.append(SnapshotData(data))
        if not self._missing:
            self._end_snapshot(events)
        return True

    def _snapshot_by_mark(self, events: list[Event]) -> bool:
        at = self._buffer.find(self._mark)
        if at < 0:
            held = MARK_BYTES - 1
            if len(self._buffer) > held:
                events.append(SnapshotData(self._buffer[:-held]))
                self._buffer = self._buffer[-held:]
            return False
        if at:
            events.append(SnapshotData(self._buffer[:at]))
        self._buffer = self._buffer[at + MARK_BYTES :]
        self._end_snapshot(events)
        return True

    def _end_snapshot(self, events: list[Event]) -> None:
        events.append(SnapshotEnd())
        self._read = self._commands

    # --- the stream -----------------------------------------------------------------------------

    def _commands(self, events: list[Event]) -> bool:
        self._reader.feed(self._buffer)
        self._buffer = b""
        replid, offset = self.position
        while requests := self._reader.take():
            for argv in requests:
                offset += request_bytes(argv)
                events.append(Received(argv, offset))
        self.position = Position(replid, offset)
        return False


def _replid(word: bytes) -> bytes:
    if len(word) != REPLID_BYTES or not word.isalnum():
        raise ProtocolError(f"the source sends an invalid replication ID: {_show(word)}")
    return word


def _show(line: bytes) -> str:
    return line[:120].decode("utf-8", "backslashreplace")
