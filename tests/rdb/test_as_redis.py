"""A real redis-server: its payloads are parsed correctly, and ours are equal to them.

It is a 7.0, so its own type is COUNTERS. It also loads LISTPACKS, and checks payloads with
``sanitize-dump-payload yes``.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream.errors import BadPayload
from kvstream.rdb.payload import dump, dump_string, restore
from kvstream.rdb.streams import StreamReading
from kvstream.rdb.versions import Kind, reduce, target
from kvstream.types.ids import StreamID
from kvstream.types.images import ConsumerImage, GroupImage, StreamState
from tests.operations.implementations import RedisServer
from tests.operations.replies import Error
from tests.rdb import generated
from tests.rdb.generated import Image, entries
from tests.rdb.golden import sealed
from tests.rdb.traffic import Traffic

NATIVE, OLDER = target("redis:7.0"), target("redis:6.2")


@pytest.fixture
def redis(redis_server: RedisServer) -> RedisServer:
    """An empty redis-server that checks payloads completely and does not compress."""
    redis_server("FLUSHALL")
    redis_server("CONFIG", "SET", "sanitize-dump-payload", "yes")
    redis_server("CONFIG", "SET", "rdbcompression", "no")
    redis_server("CONFIG", "SET", "stream-node-max-entries", 100)
    return redis_server


def read(payload: object) -> Image:
    assert isinstance(payload, bytes)
    reading = restore(payload)
    assert isinstance(reading, StreamReading)
    image = Image(list(reading.nodes()), reading.state())
    assert reading.corrections == []
    assert reading.entries == image.state.length
    return image


def made(image: Image, where: Any = NATIVE) -> bytes:
    return b"".join(dump(where, *image, len(image.nodes)))


def full(redis: RedisServer, key: str) -> dict[bytes, Any]:
    """Return XINFO STREAM FULL with its maps as dicts, without the fields of the radix tree."""
    reply = redis("XINFO", "STREAM", key, "FULL", "COUNT", 0)
    assert isinstance(reply, list)
    info = as_map(reply)
    del info[b"radix-tree-nodes"]
    info[b"groups"] = [as_map(group) for group in info[b"groups"]]
    for group in info[b"groups"]:
        group[b"consumers"] = [as_map(consumer) for consumer in group[b"consumers"]]
    return info


def as_map(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def group_info(group: GroupImage) -> dict[bytes, Any]:
    """Return a group as XINFO STREAM FULL shows it, without its lag."""
    rows = [
        [bytes(StreamID.unpack(eid)), owner, time_ms, count]
        for eid, owner, time_ms, count in group.pending
    ]
    return {
        b"name": group.name,
        b"last-delivered-id": bytes(group.last_delivered),
        b"entries-read": group.entries_read,
        b"pel-count": len(rows),
        b"pending": rows,
        b"consumers": [
            {
                b"name": each.name,
                b"seen-time": each.seen_ms,
                b"pel-count": sum(row[1] == each.name for row in rows),
                b"pending": [[row[0], *row[2:]] for row in rows if row[1] == each.name],
            }
            for each in group.consumers
        ],
    }


def described(image: Image) -> dict[bytes, Any]:
    """Return an image as XINFO STREAM FULL shows it, without lags."""
    state = image.state
    return {
        b"length": state.length,
        b"radix-tree-keys": len(image.nodes),
        b"last-generated-id": bytes(state.last),
        b"max-deleted-entry-id": bytes(state.max_deleted or b""),
        b"entries-added": state.entries_added,
        b"recorded-first-entry-id": bytes(state.first or b""),
        b"entries": entries(image),
        b"groups": [group_info(group) for group in state.groups],
    }


def without_lags(info: dict[bytes, Any]) -> dict[bytes, Any]:
    for group in info[b"groups"]:
        del group[b"lag"]
    return info


# --- what it gives ------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["no", "yes"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("deletes", [False, True])
def test_a_dump_of_redis_has_the_state_that_redis_shows(
    redis: RedisServer, seed: int, deletes: bool, compression: str
) -> None:
    redis("CONFIG", "SET", "rdbcompression", compression)
    redis("CONFIG", "SET", "stream-node-max-entries", [100, 3, 7][seed])
    Traffic(redis, seed, deletes=deletes).run(900)
    image = read(redis("DUMP", "s"))
    assert entries(image) == redis("XRANGE", "s", "-", "+")
    assert len(image.state.groups) == 4
    assert any(len(group.pending) for group in image.state.groups)
    assert without_lags(full(redis, "s")) == described(image)
    assert deletes is any(node.appended != len(node.ids) for node in image.nodes)


@pytest.mark.parametrize("seed", range(3))
def test_without_deletions_our_payload_equals_that_of_redis(redis: RedisServer, seed: int) -> None:
    redis("CONFIG", "SET", "stream-node-max-entries", [100, 3, 7][seed])
    Traffic(redis, seed, deletes=False).run(900)
    payload = redis("DUMP", "s")
    assert made(read(payload)) == payload


@pytest.mark.parametrize("seed", range(3))
def test_redis_shows_the_same_state_after_loading_our_payload(
    redis: RedisServer, seed: int
) -> None:
    """Only tombstones inside nodes are lost; a second round changes nothing."""
    Traffic(redis, seed, deletes=True).run(900)
    image = read(redis("DUMP", "s"))
    ours = made(image)
    assert redis("RESTORE", "t", 0, ours) == b"OK"
    assert full(redis, "t") == full(redis, "s")
    assert redis("DUMP", "t") == ours


def test_keys_of_nodes_are_those_of_entries_that_were_deleted(redis: RedisServer) -> None:
    for seq in range(3):
        redis("XADD", "s", f"1000-{5 + seq}", "f", "v")
    redis("XADD", "s", "1001-0", "f", "v")
    redis("XDEL", "s", "1000-5")
    image = read(redis("DUMP", "s"))
    (node,) = image.nodes
    assert node.first == StreamID(1000, 5).packed
    assert [StreamID.unpack(eid) for eid in node.ids] == [(1000, 6), (1000, 7), (1001, 0)]
    assert (node.appended, node.last) == (4, StreamID(1001, 0).packed)
    assert redis("RESTORE", "t", 0, made(image)) == b"OK"
    assert full(redis, "t") == full(redis, "s")


def test_an_empty_stream_with_groups_survives_a_round_trip(redis: RedisServer) -> None:
    redis("XADD", "s", "5-5", "f", "v")
    redis("XGROUP", "CREATE", "s", "7", "0")
    redis("XREADGROUP", "GROUP", "7", "-12", "STREAMS", "s", ">")
    redis("XDEL", "s", "5-5")
    payload = redis("DUMP", "s")
    image = read(payload)
    assert (image.nodes, image.state.last, image.state.max_deleted) == ([], (5, 5), (5, 5))
    assert len(image.state.groups[0].pending) == 1
    assert made(image) == payload


def test_a_stream_without_nodes_has_its_groups(redis: RedisServer) -> None:
    """So the entries of a stream too large for one payload can be added afterwards."""
    Traffic(redis, 1, deletes=True).run(300)
    image = read(redis("DUMP", "s"))
    image.state.last = StreamID(0, 0)
    image.state.max_deleted = None
    image.state.entries_added = 0
    assert redis("RESTORE", "t", 0, made(Image([], image.state))) == b"OK"
    for eid, flat in entries(image):
        redis("XADD", "t", eid, *flat)
    theirs, ours = without_lags(full(redis, "s")), without_lags(full(redis, "t"))
    assert ours[b"entries"] == theirs[b"entries"]
    assert ours[b"groups"] == theirs[b"groups"]


# --- what it takes --------------------------------------------------------------------------------


@settings(max_examples=40)
@given(data=st.data())
def test_every_part_of_an_image_survives_a_round_trip(
    redis_server: RedisServer, data: st.DataObject
) -> None:
    redis_server("CONFIG", "SET", "sanitize-dump-payload", "yes")
    redis_server("CONFIG", "SET", "rdbcompression", "no")
    image = data.draw(generated.streams(Kind.COUNTERS))
    payload = made(image)
    assert redis_server("RESTORE", "s", 0, payload, "REPLACE") == b"OK"
    assert redis_server("DUMP", "s") == payload
    assert redis_server("XRANGE", "s", "-", "+") == entries(image)


@settings(max_examples=20)
@given(data=st.data())
def test_reduced_payloads_of_newer_types_are_accepted(
    redis_server: RedisServer, data: st.DataObject
) -> None:
    redis_server("CONFIG", "SET", "sanitize-dump-payload", "yes")
    where = data.draw(st.sampled_from([NATIVE, OLDER]))
    image = data.draw(generated.streams(Kind.NACKED))
    reduce(image.state, where)
    assert redis_server("RESTORE", "s", 0, made(image, where), "REPLACE") == b"OK"
    assert redis_server("XRANGE", "s", "-", "+") == entries(image)
    assert redis_server("XLEN", "s") == image.state.length


def test_redis_refuses_pending_entries_without_an_owner(redis: RedisServer) -> None:
    """Therefore the export to such a server gives them to a consumer."""
    group = GroupImage(b"g", StreamID(0, 0), None, [ConsumerImage(b"c", 5, 5)])
    group.pending.add(StreamID(1, 0).packed, b"c", 5, 1)
    payload = made(Image([], StreamState(0, StreamID(1, 0), groups=[group])))
    assert redis("RESTORE", "s", 0, payload) == b"OK"
    own = b"\x01" + StreamID(1, 0).packed
    assert payload.endswith(own, 0, -10)
    orphaned = sealed(payload[: -10 - len(own)] + b"\x00")
    assert redis("RESTORE", "t", 0, orphaned) == Error(b"ERR Bad data format")
    with pytest.raises(BadPayload, match="has no owner and was not released"):
        read(orphaned)


@pytest.mark.parametrize("value", [b"", b"12", b"-2147483648", b"2147483648", b"x" * 100])
def test_payloads_of_plain_strings_equal_those_of_redis(redis: RedisServer, value: bytes) -> None:
    redis("SET", "k", value)
    payload = redis("DUMP", "k")
    assert isinstance(payload, bytes)
    assert restore(payload) == value
    assert dump_string(NATIVE, value) == payload


def test_a_wrong_length_that_redis_accepts_is_reported(redis: RedisServer) -> None:
    redis("XADD", "s", "1-0", "f", "v")
    payload = redis("DUMP", "s")
    assert isinstance(payload, bytes)
    length = b"\x01\x01\x00"  # one entry, and the last ID 1-0
    assert payload.count(b"\xff" + length) == 1
    wrong = sealed(payload[:-10].replace(b"\xff" + length, b"\xff\x07\x01\x00"))
    assert redis("RESTORE", "t", 0, wrong) == b"OK"
    assert redis("XLEN", "t") == 7
    reading = restore(wrong)
    assert isinstance(reading, StreamReading)
    assert (reading.state().length, reading.entries) == (7, 1)
