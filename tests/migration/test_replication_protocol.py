"""The replica's side of the protocol, on plain bytes."""

from collections.abc import Iterable

import pytest

from kvstream.errors import ProtocolError, ReplicationRefused, SourceNotReady
from kvstream.migration.replication.protocol import (
    Continued,
    Event,
    FullSync,
    Position,
    Received,
    Replica,
    SnapshotData,
    SnapshotEnd,
    request,
)
from kvstream.resp.requests import request_bytes

REPLID = b"8f60fdbb052db08282667bd40b052842d239eea8"
MARK = b"0123456789abcdef0123456789abcdef01234567"
GREETING = b"+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n"
FULL = b"+FULLRESYNC %b 1000\r\n" % REPLID
STREAM = request(b"SELECT", b"3") + request(b"XADD", b"s", b"1-1", b"f", b"x" * 2000)
COMMANDS = [
    Received([b"SELECT", b"3"], 1023),
    Received([b"XADD", b"s", b"1-1", b"f", b"x" * 2000], 1000 + len(STREAM)),
]


def joined(events: Iterable[Event]) -> list[Event]:
    """Return the events with the pieces of a snapshot joined."""
    whole: list[Event] = []
    for event in events:
        if isinstance(event, SnapshotData) and whole and isinstance(whole[-1], SnapshotData):
            whole[-1] = SnapshotData(whole[-1].data + event.data)
        else:
            whole.append(event)
    return whole


def fed(replica: Replica, data: bytes, size: int) -> list[Event]:
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return joined(event for piece in pieces for event in replica.feed(piece))


SNAPSHOT = b"REDIS0010\r\n\n" + bytes(range(256)) + MARK[:39] + b"\xff12345678"
BY_LENGTH = b"\n\n$%d\r\n" % len(SNAPSHOT) + SNAPSHOT
BY_MARK = b"\n$EOF:%b\r\n" % MARK + SNAPSHOT + MARK


@pytest.mark.parametrize("size", [1, 2, 7, 41, 1000, 1 << 20])
@pytest.mark.parametrize("snapshot", [BY_LENGTH, BY_MARK], ids=["by length", "by mark"])
def test_a_full_synchronisation_is_read_from_any_pieces(snapshot: bytes, size: int) -> None:
    replica = Replica()
    events = fed(replica, GREETING + FULL + snapshot + STREAM, size)
    began = FullSync(Position(REPLID, 1000))
    assert events == [began, SnapshotData(SNAPSHOT), SnapshotEnd(), *COMMANDS]
    assert replica.position == Position(REPLID, 1000 + len(STREAM))


def test_an_empty_snapshot_ends_at_its_start() -> None:
    events = Replica().feed(GREETING + FULL + b"$0\r\n" + STREAM)
    assert events == [FullSync(Position(REPLID, 1000)), SnapshotEnd(), *COMMANDS]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("reply", "replid"), [(b"+CONTINUE\r\n", REPLID), (b"+CONTINUE %b\r\n" % MARK, MARK)]
)
def test_a_history_continues_at_its_offset(reply: bytes, replid: bytes, size: int) -> None:
    replica = Replica(Position(REPLID, 1000))
    events = fed(replica, GREETING + reply + STREAM, size)
    assert events == [Continued(Position(replid, 1000)), *COMMANDS]
    assert replica.position == Position(replid, 1000 + len(STREAM))


def test_the_handshake_proceeds_line_by_line_and_requests_the_next_byte() -> None:
    replica = Replica(Position(REPLID, 1000))
    said = []
    for reply in (b"+PONG\r\n", b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", b""):
        said.append(replica.outgoing())
        replica.feed(reply)
    assert said == [
        request(b"PING"),
        request(b"REPLCONF", b"listening-port", b"0"),
        request(b"REPLCONF", b"capa", b"eof", b"capa", b"psync2"),
        request(b"REPLCONF", b"version", b"9.0.0"),
        request(b"PSYNC", REPLID, b"1001"),
    ]
    assert replica.outgoing() == b""


def test_without_a_history_any_is_requested() -> None:
    replica = Replica()
    replica.feed(GREETING)
    assert replica.outgoing().endswith(request(b"PSYNC", b"?", b"-1"))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"-NOAUTH Authentication required.\r\n", ReplicationRefused),
        (b"+PONG\r\n-NOPERM this user has no permissions\r\n", ReplicationRefused),
        (GREETING + b"-ERR unknown command 'PSYNC'\r\n", ReplicationRefused),
        (GREETING + b"-NOMASTERLINK Can't SYNC\r\n", SourceNotReady),
        (GREETING + b"-LOADING Redis is loading\r\n", SourceNotReady),
        (GREETING + FULL + b"-ERR BGSAVE failed\r\n", SourceNotReady),
        (b"HTTP/1.1 400 Bad Request\r\n", ProtocolError),
        (b"x" * 70_000, ProtocolError),
        (GREETING + b"+CONTINUE\r\n", ProtocolError),  # no continuation was requested
        (GREETING + b"+FULLRESYNC short 1\r\n", ProtocolError),
        (GREETING + b"+FULLRESYNC %b -1\r\n" % REPLID, ProtocolError),
        (GREETING + FULL + b"$-5\r\n", ProtocolError),
        (GREETING + FULL + b"$99999999999999999999999\r\n", ProtocolError),
        (GREETING + FULL + b"$EOF:short\r\n", ProtocolError),
        (GREETING + FULL + b"*1\r\n", ProtocolError),
        (GREETING + FULL + b"$0\r\n*1\r\n$-1\r\n", ProtocolError),
        (GREETING + FULL + b"$0\r\n*9999999999\r\n", ProtocolError),
    ],
)
def test_refusals_and_invalid_bytes_are_errors(data: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Replica().feed(data)


def test_a_request_has_its_encoded_length() -> None:
    for argv in (
        [b"ping"],
        [b""],
        [b"x" * size for size in (9, 10, 99, 100, 12345)],
        [b"a"] * 1000,
    ):
        assert request_bytes(argv) == len(request(*argv))
