"""Values of message rows that kvstream never wrote: each raises Corruption, and quickly."""

import time
from collections.abc import Callable
from struct import pack

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream import Corruption, Store, StreamID
from kvstream.layout.values import decode_checked, decode_fields, decode_page, encode_fields
from kvstream.storage.batch import Batch, Family

MEGABYTE = 1 << 20
SOUND = encode_fields({"a": "1"})[0]

BOMBS = {
    "nothing at all": b"",
    "no content": b"\x01",
    "an unknown format": b"\x03\x81\xa1a\xa11",
    "the format of another type": b"\xa11\x81\xa1a\xa11",
    "an array where a map should be": b"\x01\x92\xa1a\xa11",
    "a map where an array should be": b"\x02\x81\xa1a\xa11",
    "a number where a map should be": b"\x01\x05",
    "a nil where a map should be": b"\x01\xc0",
    "text where a map should be": b"\x01\xa1a",
    "an odd array": b"\x02\x93\xa1a\xa11\xa1b",
    "an array of maps": b"\x02\x92\x80\x80",
    "a map with maps for names": b"\x01\x81\x80\xa11",
    "a map with a number for a name": b"\x01\x81\x05\xa11",
    "a map with binary for a name": b"\x01\x81\xc4\x01a\xa11",
    "a map with binary for a value": b"\x01\x81\xa1a\xc4\x011",
    "an array with a number for a name": b"\x02\x94\x05\xa11\xa1a\xa11",
    "an array with a number for a value": b"\x02\x94\xa1a\xa11\xa1a\x05",
    "an array with a number for the value of a name to come": b"\x02\x94\xa1a\x05\xa1a\xa11",
    "an extension": b"\x01" + msgpack.packb(msgpack.ExtType(5, b"x" * 100)),
    "a timestamp": b"\x01\xd6\xff\x00\x00\x00\x01",
    "a timestamp of no time": b"\x01\xc7\x0c\xff" + b"\xff" * 12,
    "two contents": b"\x01\x81\xa1a\xa11\x81\xa1a\xa11",
    "the byte that is never used": b"\x01\xc1",
    "a map cut off": b"\x01\x82\xa1a\xa11",
    "a claim of four billion pairs": b"\x01\xdf\xff\xff\xff\xff",
    "a claim of four billion elements": b"\x02\xdd\xff\xff\xff\xff",
    "a claim of four gigabytes of text": b"\x01\x81\xa1a\xdb\xff\xff\xff\xff",
    "a claim of four gigabytes of binary": b"\x01\x81\xa1a\xc6\xff\xff\xff\xff",
    "a million arrays in each other": b"\x01" + b"\x91" * 1_000_000,
    "a million maps in each other": b"\x01" + b"\x81\xa1a" * 1_000_000,
    "five megabytes of empty arrays": b"\x01" + b"\x90" * 5 * MEGABYTE,
    "five megabytes of empty arrays in one": b"\x01\xdd"
    + pack(">I", 5 << 20)
    + b"\x90" * (5 << 20),
}
bombs = pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())


@bombs
def test_a_bomb_raises_corruption_within_a_second_of_work(bomb: bytes) -> None:
    before = time.thread_time()
    with pytest.raises(Corruption, match=r"^a message's value "):
        decode_fields(bomb)
    assert time.thread_time() - before < 1


@bombs
def test_a_bomb_among_sound_rows_raises_corruption(bomb: bytes) -> None:
    with pytest.raises(Corruption, match=r"^a message's value "):
        decode_page([SOUND, bomb, SOUND])


ODD = {
    "no fields": b"\x01\x80",
    "no fields that repeat": b"\x02\x90",
    "a number for a value": b"\x01\x81\xa1a\x05",
    "a fraction for a value": b"\x01\x82\xa1a\xa11\xa1b\xca\x00\x00\x00\x00",
    "a nil for a value": b"\x01\x81\xa1a\xc0",
    "a truth for a value": b"\x01\x81\xa1a\xc3",
    "an array for a value": b"\x01\x81\xa1a\x91\xa11",
    "a map for a value": b"\x01\x81\xa1a\x81\xa1a\xa11",
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_msgpack_values_that_kvstream_never_writes_raise_when_decoded(
    odd: bytes,
) -> None:
    for decode in (lambda: decode_fields(odd), lambda: decode_checked([SOUND, odd, SOUND])):
        with pytest.raises(Corruption, match=r"^a message's value holds "):
            decode()


@given(st.binary(max_size=40) | st.binary(max_size=40).map(b"\x01".__add__))
def test_any_bytes_decode_to_fields_or_raise_corruption(value: bytes) -> None:
    try:
        fields = decode_fields(value)
    except Corruption:
        return
    assert isinstance(fields, dict)
    assert fields
    assert {type(part) for pair in fields.items() for part in pair} == {bytes}


@pytest.mark.parametrize(
    "bomb", ["a number where a map should be", "an array of maps", "a million maps in each other"]
)
def test_a_stored_bomb_stops_every_read_of_its_entry_and_of_no_other(
    store: Store, reopen: Callable[[Store], Store], bomb: str
) -> None:
    stream = store.stream("s")
    ids = [stream.add({"n": n}) for n in range(3)]
    stream.create_group("g", start="0").consumer("c").read()
    overwrite(store, ids[1], BOMBS[bomb])
    stream = reopen(store).stream("s")  # the memory cached the last entries
    group = stream.group("g")
    for read in (
        stream.range,
        stream.revrange,
        lambda: stream.get(ids[1]),
        lambda: list(stream.scan()),
        lambda: stream.read(after="0"),
        lambda: group.consumer("c").history(),
        lambda: group.claim("d", ids[1]),
        lambda: stream.info_full(),
    ):
        with pytest.raises(Corruption, match=r"^a message's value "):
            read()
    assert [entry.id for entry in stream.range(count=1)] == [ids[0]]
    assert [entry.id for entry in stream.revrange(count=1)] == [ids[2]]
    assert group.ack(ids[1]) == 1
    assert stream.trim(maxlen=0) == 3
    assert stream.range() == []


def test_a_stored_number_for_a_value_raises_when_pending_entries_are_read(
    store: Store,
) -> None:
    stream = store.stream("s")
    eid = stream.add({"n": 1})
    group = stream.create_group("g", start="0")
    group.consumer("c").read()
    overwrite(store, eid, ODD["a number for a value"])
    for read in (
        lambda: group.consumer("c").history(),
        lambda: group.claim("d", eid),
        lambda: group.autoclaim("d"),
    ):
        with pytest.raises(Corruption, match=r"^a message's value holds "):
            read()
    assert [fault.message for fault in store.check()] == [f"an entry cannot be decoded: {eid}"]
    stream.trim(maxlen=0)


def overwrite(store: Store, eid: StreamID, value: bytes) -> None:
    """Replace the message of ``eid`` with ``value``, without the store's knowledge."""
    database = store.engine.database
    batch = Batch(database)
    for key, _ in database.page(Family.MESSAGES, b"", b"\xff", 10):
        if key.endswith(eid.packed):
            batch.put(Family.MESSAGES, key, value)
    assert batch.puts[Family.MESSAGES]
    database.write(batch)
