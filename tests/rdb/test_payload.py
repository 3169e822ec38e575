"""Payloads of real servers, read and written, and refused payloads."""

import pytest

from kvstream.errors import BadPayload
from kvstream.layout.values import encode_flat
from kvstream.rdb.payload import dump, dump_string, restore
from kvstream.rdb.primitives import encode_string
from kvstream.rdb.streams import StreamReading
from kvstream.rdb.versions import NEWEST, VALKEY, Kind, Target, target
from kvstream.types.ids import StreamID
from kvstream.types.images import ConsumerImage, IdempotencyImage, PendingImage, StreamState
from tests.rdb.golden import GOLDEN, OF_REDIS_8_6, PRODUCERS_OF_REDIS_8_6, sealed

CASES = pytest.mark.parametrize(
    ("target", "payload"), GOLDEN.items(), ids=[target.name for target in GOLDEN]
)
WRONG_FOOTER = "ERR DUMP payload version or checksum are wrong"

HASH_OF_A_HELLO = bytes.fromhex("5f857f36e01106f774d5dff8a2ac0903")
"""What Redis 8.6 makes of the entry {a: hello} for IDMPAUTO."""


def reading(payload: bytes) -> StreamReading:
    found = restore(payload)
    assert isinstance(found, StreamReading)
    return found


@CASES
def test_a_payload_of_a_real_server_is_read(target: Target, payload: bytes) -> None:
    stream = reading(payload)
    (node,) = stream.nodes()
    assert [StreamID.unpack(eid) for eid in node.ids] == [(1, 1), (2, 0), (2, 1)]
    assert node.values[2] == encode_flat([b"b", b"-70000", b"c", b"007"])[0]
    assert (node.first, node.last) == (StreamID(1, 1).packed, StreamID(2, 1).packed)
    assert (node.names, node.appended, node.size) == ((b"a",), 3, 70)
    state = stream.state()
    assert (state.length, state.last, stream.entries, stream.corrections) == (3, (2, 1), 3, [])
    (group,) = state.groups
    assert (group.name, group.last_delivered, group.nacked) == (b"g", (2, 0), [])
    assert list(group.pending) == [PendingImage(StreamID(1, 1).packed, b"c1", 1_700_000_000_000, 1)]


@CASES
def test_values_that_an_old_type_lacks_are_unknown(target: Target, payload: bytes) -> None:
    stream = reading(payload)
    state = stream.state()
    found = (state.first, state.max_deleted, state.entries_added, state.groups[0].entries_read)
    known = ((1, 1), (0, 0), 3, 2)
    assert found == ((None,) * 4 if target.kind < Kind.COUNTERS else known)
    active_ms = 1_700_000_000_500 if target.kind < Kind.ACTIVE_TIMES else 1_700_000_000_000
    assert state.groups[0].consumers == [ConsumerImage(b"c1", 1_700_000_000_500, active_ms)]
    assert state.idempotency is None


@CASES
def test_a_stream_is_written_as_the_server_writes_it(target: Target, payload: bytes) -> None:
    stream = reading(next(reversed(GOLDEN.values())))
    nodes = list(stream.nodes())
    assert b"".join(dump(target, nodes, stream.state(), len(nodes))).hex() == payload.hex()


def test_a_payload_of_redis_8_6_is_read_and_written() -> None:
    stream = reading(OF_REDIS_8_6)
    (node,) = stream.nodes()
    state = stream.state()
    assert node.ids == [StreamID(1, 0).packed]
    assert node.values == [encode_flat([b"k", b"v"])[0]]
    assert state == StreamState(
        1, StreamID(1, 0), StreamID(1, 0), StreamID(0, 0), 1, [], IdempotencyImage(100, 100)
    )
    assert b"".join(dump(target("redis:8.6"), [node], state, 1)) == OF_REDIS_8_6


def test_the_producers_of_redis_8_6_are_read_and_written() -> None:
    stream = reading(PRODUCERS_OF_REDIS_8_6)
    nodes = list(stream.nodes())
    state = stream.state()
    assert state.idempotency is not None
    producers = {each.pid: each.iids for each in state.idempotency.producers}
    first = 1795299842411
    assert producers == {
        b"7": [(b"-12", StreamID(first + 72, 0))],
        b"p1": [(b"i1", StreamID(first, 0)), (HASH_OF_A_HELLO, StreamID(first + 26, 0))],
    }
    limits = state.idempotency.duration_s, state.idempotency.maxsize
    counts = state.idempotency.iids_added, state.idempotency.iids_duplicates
    assert (limits, counts) == ((5000, 77), (3, 1))
    made = b"".join(dump(target("redis:8.6"), nodes, state, len(nodes)))
    assert made == PRODUCERS_OF_REDIS_8_6


def test_a_payload_for_valkey_says_version_11() -> None:
    """Valkey refuses versions 12 to 79, although the stream inside is the same."""
    stream = reading(next(reversed(GOLDEN.values())))
    nodes = list(stream.nodes())
    made = b"".join(dump(VALKEY, nodes, stream.state(), 1))
    assert made in GOLDEN.values()
    assert made[-10:-8] == b"\x0b\x00"


@pytest.mark.parametrize("version", [1, 9, 15, 16, 80])
def test_versions_up_to_our_own_are_read_and_that_of_valkey_9(version: int) -> None:
    payload = next(reversed(GOLDEN.values()))[:-10]
    assert reading(sealed(payload, version)).state().length == 3


@pytest.mark.parametrize("version", [17, 79, 81, 65535])
def test_an_unknown_version_is_refused(version: int) -> None:
    payload = next(reversed(GOLDEN.values()))[:-10]
    with pytest.raises(BadPayload, match=f"version {version} is not known") as caught:
        restore(sealed(payload, version))
    assert caught.value.reply == WRONG_FOOTER


@CASES
def test_the_checksum_detects_every_wrong_byte(target: Target, payload: bytes) -> None:
    for at in range(len(payload)):
        wrong = bytearray(payload)
        wrong[at] ^= 1
        with pytest.raises(BadPayload) as caught:
            restore(bytes(wrong))
        assert caught.value.reply == WRONG_FOOTER


@pytest.mark.parametrize("payload", [b"", b"\x0f", bytes(10)])
def test_a_payload_that_is_too_short_is_refused(payload: bytes) -> None:
    with pytest.raises(BadPayload) as caught:
        restore(payload)
    assert caught.value.reply == WRONG_FOOTER


def test_a_checksum_of_zero_is_checked_too() -> None:
    """In a file a checksum of zero means that there is none."""
    with pytest.raises(BadPayload, match="the checksum is wrong"):
        restore(next(iter(GOLDEN.values()))[:-8] + bytes(8))


@CASES
def test_bytes_after_the_stream_are_refused(target: Target, payload: bytes) -> None:
    stream = reading(sealed(payload[:-10] + b"\x00"))
    with pytest.raises(BadPayload, match="bytes follow the stream"):
        stream.state()
    stream = reading(sealed(payload[:-10] + b"\x00"))
    with pytest.raises(BadPayload, match="bytes follow the stream"):
        stream.skip()


@CASES
def test_a_payload_truncated_anywhere_raises_our_error(target: Target, payload: bytes) -> None:
    for end in range(1, len(payload) - 10):
        stream = reading(sealed(payload[:end]))
        with pytest.raises(BadPayload):
            stream.state()
        stream = reading(sealed(payload[:end]))
        with pytest.raises(BadPayload):
            stream.skip()


@CASES
def test_a_stream_can_be_skipped(target: Target, payload: bytes) -> None:
    reading(payload).skip()
    begun = reading(payload)
    next(begun.nodes())
    begun.skip()


@pytest.mark.parametrize("kind", [1, 2, 14, 16, 20, 22, 25, 28, 255])
def test_other_types_are_refused(kind: int) -> None:
    """Each type only adds bytes, but those of the next type are unknown."""
    body = bytes((kind,)) + next(iter(GOLDEN.values()))[1:-10]
    with pytest.raises(BadPayload, match=f"type {kind} is neither") as caught:
        restore(sealed(body))
    assert caught.value.reply == "ERR Bad data format"


@pytest.mark.parametrize("value", [b"", b"12", b"-70000", b"007", b"text", b"x" * 1000])
def test_a_plain_string_survives_a_round_trip(value: bytes) -> None:
    assert restore(dump_string(NEWEST, value)) == value
    assert restore(sealed(b"\x00" + encode_string(value, compress=True))) == value


def test_bytes_after_a_plain_string_are_refused() -> None:
    with pytest.raises(BadPayload, match="bytes follow the string"):
        restore(sealed(b"\x00\x01ab"))
