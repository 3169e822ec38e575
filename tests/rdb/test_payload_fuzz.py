"""Damaged payloads give our error or a sound stream; KVSTREAM_FUZZ_ROUNDS sets the rounds.

The checksums are right again, so that the damage reaches the readers.
"""

import time
import tracemalloc
from random import Random

import pytest

from kvstream.errors import BadPayload
from kvstream.layout.values import decode_checked, encode_flat
from kvstream.rdb.nodes import encode
from kvstream.rdb.payload import dump, restore
from kvstream.rdb.primitives import Reader, encode_id, encode_length, encode_string
from kvstream.rdb.streams import StreamReading, encode_stream
from kvstream.rdb.versions import TARGETS, Kind, Target, reduce
from kvstream.types.ids import StreamID
from kvstream.types.images import GroupImage, NodeImage, StreamState
from kvstream.types.options import MEGABYTE
from tests.operations.implementations import RedisServer
from tests.rdb.generated import Image, entries, entry
from tests.rdb.golden import GOLDEN, sealed
from tests.rdb.mutating import ROUNDS, SEED, damaged
from tests.rdb.traffic import Traffic

SECONDS_MAX = 5.0
"""Of this thread, for one payload of some kilobytes."""


def read(payload: bytes) -> Image | bytes:
    found = restore(payload)
    if isinstance(found, bytes):
        return found
    return Image(list(found.nodes()), found.state())


def check(payload: bytes) -> bool:
    """Read a payload and check the stream; return False if the payload is refused."""
    began = time.thread_time()
    image: Image | bytes
    refused: BadPayload | None = None
    try:
        image = read(payload)
    except BadPayload as error:
        refused, image = error, b""
    assert time.thread_time() - began < SECONDS_MAX
    if refused is not None:
        assert refused.offset is None or 0 <= refused.offset <= len(payload)
        return False
    if isinstance(image, Image):
        for node in image.nodes:
            assert len(node.ids) == len(decode_checked(node.values)) > 0
        kind = Kind(payload[0])
        again = b"".join(encode_stream(kind, *image, len(image.nodes)))
        found = read(sealed(payload[:1] + again))
        assert isinstance(found, Image)
        assert [node.values for node in found.nodes] == [node.values for node in image.nodes]
        assert found.state.groups == image.state.groups
        assert found.state.idempotency == image.state.idempotency
    return True


def refusals(payloads: list[bytes]) -> int:
    refused = 0
    for seed in range(SEED, SEED + ROUNDS):
        chance = Random(seed)
        payload = sealed(damaged(chance.choice(payloads)[:-10], chance))
        try:
            refused += not check(payload)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {payload.hex()}") from error
    return refused


def real_payloads(redis_server: RedisServer) -> list[bytes]:
    """Return payloads of a server, with and without tombstones and LZF."""
    payloads = []
    for seed in range(4):
        redis_server("FLUSHALL")
        redis_server("CONFIG", "SET", "rdbcompression", ["no", "yes"][seed % 2])
        redis_server("CONFIG", "SET", "stream-node-max-entries", 7)
        Traffic(redis_server, seed, deletes=seed > 1).run(100)
        payload = redis_server("DUMP", "s")
        assert isinstance(payload, bytes)
        assert check(payload)
        payloads.append(payload)
    return payloads


def test_damaged_payloads_of_a_real_server_are_refused_or_sound(
    redis_server: RedisServer,
) -> None:
    assert ROUNDS // 2 < refusals(real_payloads(redis_server)) < ROUNDS


def test_a_damaged_payload_that_redis_refuses_is_refused(
    redis_server: RedisServer,
) -> None:
    """If both accept the payload, both read the same stream."""
    payloads = real_payloads(redis_server)
    redis_server("CONFIG", "SET", "sanitize-dump-payload", "yes")
    taken = 0
    for seed in range(SEED, SEED + ROUNDS):
        chance = Random(seed)
        payload = sealed(damaged(chance.choice(payloads)[:-10], chance))
        try:
            image = read(payload)
        except BadPayload:
            continue
        assert redis_server("RESTORE", "s", 0, payload, "REPLACE") == b"OK", payload.hex()
        taken += 1
        if isinstance(image, Image):
            assert redis_server("XRANGE", "s", "-", "+") == entries(image), payload.hex()
    assert taken


def small() -> Image:
    group = GroupImage(b"g", StreamID(2, 0), 1)
    image = Image([], StreamState(1, StreamID(2, 0), groups=[group]))
    eid = StreamID(1, 0).packed
    image.nodes.append(NodeImage(eid, (b"f",), [eid], [encode_flat([b"f", b"v"])[0]], 1, 0))
    return image


@pytest.mark.parametrize("where", TARGETS.values(), ids=TARGETS)
def test_damaged_payloads_of_every_type_are_refused_or_sound(where: Target) -> None:
    image = small()
    reduce(image.state, where)
    payloads = [b"".join(dump(where, *image, 1))]
    payloads += [payload for each, payload in GOLDEN.items() if each.kind == where.kind]
    assert 0 < refusals(payloads) < ROUNDS


# --- bombs ----------------------------------------------------------------------------------------


def node(data: bytes) -> bytes:
    """A stream of one node, given as a STRING."""
    key = encode_string(StreamID(1, 0).packed)
    return b"\x0f\x01" + key + data + b"\x01" + encode_id(StreamID(1, 0)) + b"\x00"


def lzf_bomb(size: int, compressed: bytes) -> bytes:
    return b"\xc3" + encode_length(len(compressed)) + encode_length(size) + compressed


LONG_NAME = encode(
    [2000, 0, 1, b"n" * 30_000, 0, *(part for seq in range(2000) for part in entry(2, 0, seq, 1))]
)
BOMBS = {
    "a length of a gigabyte": node(encode_length(1 << 30) + b"x"),
    "a length of 64 bits": node(encode_length((1 << 64) - 1) + b"x"),
    "a gigabyte in a few compressed bytes": node(lzf_bomb(1 << 30, b"\x00x" + b"\xe0\xff\x00" * 9)),
    "more than was said, compressed": node(lzf_bomb(100, b"\x00x" + b"\xe0\xff\x00" * 5000)),
    "zeros that are no listpack": node(
        lzf_bomb(264 * 10_000 + 1, b"\x00\x00" + b"\xe0\xff\x00" * 10_000)
    ),
    "a long name in two thousand values": node(encode_string(LONG_NAME)),
    "that name compressed": node(encode_string(LONG_NAME, compress=True)),
    "so many nodes": b"\x0f" + encode_length((1 << 64) - 1),
    "so many groups": b"\x0f\x00\x00\x00\x00" + encode_length(100_000),
    "so many pending entries": b"\x0f\x00\x00\x00\x00\x01\x01g\x00\x00" + encode_length(1 << 60),
    "so many consumers": b"\x0f\x00\x00\x00\x00\x01\x01g\x00\x00\x00" + encode_length(1 << 60),
    "so many idempotent IDs": (
        b"\x1a" + bytes(9) + b"\x32\x32\x01\x01p" + encode_length(1 << 60) + b"\x01i\x00\x00"
    ),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_decompression_bombs_are_refused_before_they_take_memory(bomb: bytes) -> None:
    payload = sealed(bomb)
    began = time.thread_time()
    tracemalloc.start()
    try:
        with pytest.raises(BadPayload):
            read(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * MEGABYTE
    assert time.thread_time() - began < SECONDS_MAX


def test_a_long_stream_is_read_in_the_memory_of_one_node() -> None:
    image = small()
    value = encode_flat([b"f", b"v" * 1000])[0]

    def nodes(count: int) -> list[NodeImage]:
        ids = [StreamID(n + 1, 0).packed for n in range(count)]
        return [NodeImage(eid, (b"f",), [eid], [value], 1, 0) for eid in ids]

    count = 4000
    data = b"".join(encode_stream(Kind.NACKED, nodes(count), image.state, count))
    tracemalloc.start()
    try:
        reading = StreamReading(Reader(data), Kind.NACKED)
        for _ in reading.nodes():
            pass
        assert reading.state().last == (count, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reading.entries == count
    assert peak < MEGABYTE // 2 < len(data) // 8
