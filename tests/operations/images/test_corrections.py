"""Wrong or missing values of a source are computed from its entries."""

from dataclasses import replace

import pytest

from kvstream import ManualClock, Store, connect
from kvstream.layout.values import encode_fields
from kvstream.meta.txn import Txn
from kvstream.operations.images import load
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.images import (
    NEVER,
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    NodeImage,
    PendingTable,
    ProducerImage,
    StreamState,
)
from tests.operations.images.kept import Kept, take_image


def pack(n: int) -> bytes:
    return StreamID(n, 0).packed


VALUE = encode_fields({"f": "v"})[0]
IDS = [pack(n) for n in range(10, 20)]
NODE = NodeImage(IDS[0], (b"f",), IDS, [VALUE] * 10, 10, 50)
RIGHT = StreamState(
    length=10,
    last=StreamID(30, 0),
    first=StreamID(10, 0),
    max_deleted=StreamID(5, 0),
    entries_added=12,
)


def correction_of(store: Store, state: StreamState) -> str:
    """Load ten entries with a wrong state; return the correction."""
    (correction,) = store.load("s", Kept([NODE], state)).corrections
    assert store.check() == []
    assert len(store.stream("s")) == 10
    return correction


def test_right_values_are_kept(store: Store) -> None:
    assert store.load("s", Kept([NODE], RIGHT)).corrections == []
    assert replace(take_image(store, "s").rest, groups=[]) == replace(RIGHT, queue=[])


@pytest.mark.parametrize(
    ("wrong", "right", "words"),
    [
        ({"length": 12}, {}, "the length was 12, but there are 10 entries"),
        ({"first": StreamID(9, 0)}, {}, "the first entry was given as 9-0, but is 10-0"),
        (
            {"last": StreamID(15, 0)},
            {"last": StreamID(19, 0)},
            "the last ID was 15-0, below 19-0",
        ),
        (
            {"entries_added": 3},
            {"entries_added": 10},
            "3 entries were said to be added, but there are 10",
        ),
        (
            {"entries_added": (1 << 64) - 1},
            {"entries_added": (1 << 63) - 1},
            "18446744073709551615 entries were said to be added, which nothing can count",
        ),
    ],
)
def test_wrong_counters_are_corrected(
    store: Store, wrong: dict[str, object], right: dict[str, object], words: str
) -> None:
    assert correction_of(store, replace(RIGHT, **wrong)) == words  # type: ignore[arg-type]
    expected = {name: getattr(RIGHT, name) for name in wrong} | right
    found = take_image(store, "s").rest
    assert {name: getattr(found, name) for name in expected} == expected


def test_counters_at_their_maximum_wrap_around(store: Store) -> None:
    most = (1 << 64) - 1
    memory = IdempotencyImage(100, 100, [], iids_added=most, iids_duplicates=most)
    store.load("s", Kept([NODE], replace(RIGHT, entries_added=most, idempotency=memory)))
    with connect(store) as client:
        client.xadd("s", {"f": "v"})
        client.execute_command("XADD", "s", "IDMP", "p", "i", "*", "f", "v")
        info = client.execute_command("XINFO", "STREAM", "s")
    assert info[b"entries-added"] == -(1 << 63) + 1
    assert info[b"iids-added"] == -(1 << 63)
    assert store.check() == []


def test_names_and_sizes_are_taken_from_the_entries(store: Store) -> None:
    odd = NODE._replace(names=(b"other", b"names"), size=9999, appended=3)
    assert store.load("s", Kept([odd], RIGHT)).corrections == []
    store.load("t", Kept([NODE], RIGHT))
    assert take_image(store, "s") == take_image(store, "t")


def group(name: bytes, pending: list[tuple[int, bytes | None]], **more: object) -> GroupImage:
    table = PendingTable()
    for number, owner in pending:
        table.add(pack(number), owner, 1000 if owner is not None else 0, 1)
    image = GroupImage(name, StreamID(14, 0), 7, pending=table)
    for key, value in more.items():
        setattr(image, key, value)
    return image


C, D = ConsumerImage(b"c", 5, NEVER), ConsumerImage(b"d", 6, 7)


def test_owners_without_a_consumer_are_created(store: Store) -> None:
    state = replace(RIGHT, groups=[group(b"g", [(3, b"c"), (11, b"lost")], consumers=[C])])
    assert "b'lost' has pending entries, but was no consumer" in correction_of(store, state)
    names = [consumer.name for consumer in store.stream("s").group("g").consumers()]
    assert names == [b"c", b"lost"]


def test_all_entries_given_back_have_a_rank(store: Store) -> None:
    given_back = group(
        b"g",
        [(3, None), (10, b"c"), (11, None), (12, None)],
        consumers=[C],
        nacked=[pack(12), pack(10), pack(11), pack(99)],
    )
    assert "the order of entries given back was not whole" in correction_of(
        store, replace(RIGHT, groups=[given_back])
    )
    (found,) = take_image(store, "s").rest.groups
    assert found.nacked == [pack(12), pack(11), pack(3)]


@pytest.mark.parametrize("twice", ["group", "consumer"])
def test_a_repeated_value_counts_once(store: Store, twice: str) -> None:
    groups = [group(b"g", [], consumers=[C])]
    if twice == "group":
        groups.append(group(b"g", [], consumers=[D]))
    else:
        groups[0].consumers.append(ConsumerImage(b"c", 9, 9))
    assert "came twice" in correction_of(store, replace(RIGHT, groups=groups))
    (found,) = take_image(store, "s").rest.groups
    assert found.consumers == [C]


def test_impossible_entries_read_are_unknown(store: Store) -> None:
    state = replace(RIGHT, groups=[group(b"g", [], entries_read=1 << 63)])
    assert "was said to have read" in correction_of(store, state)
    assert store.stream("s").group("g").info().entries_read is None


@pytest.mark.parametrize(
    ("delivered", "read", "lag"),
    [(0, 0, 10), (9, 0, 10), (10, 1, 9), (14, 5, 5), (19, 10, 0), (30, 10, 0), (31, None, None)],
)
def test_counters_missing_from_old_formats_are_computed(
    store: Store, delivered: int, read: int | None, lag: int | None
) -> None:
    groups = [group(b"g", [], last_delivered=StreamID(delivered, 0), entries_read=None)]
    old = StreamState(length=10, last=StreamID(30, 0), groups=groups)
    assert store.load("s", Kept([NODE], old)).corrections == []
    info = store.stream("s").info()
    assert (info.entries_added, info.max_deleted_entry_id) == (10, MIN_ID)
    assert info.recorded_first_entry_id == StreamID(10, 0)
    found = store.stream("s").group("g").info()
    assert (found.entries_read, found.lag) == (read, lag)


def test_producers_are_kept_within_their_limits(store: Store, clock: ManualClock) -> None:
    now = clock.now_ms()
    iids = [(b"%d" % n, StreamID(now, n)) for n in range(5)]
    producers = [ProducerImage(b"p", [*iids, (b"0", StreamID(now, 9))]), ProducerImage(b"q", [])]
    state = replace(RIGHT, idempotency=IdempotencyImage(90_000, 3, producers, 8, 2))
    corrections = store.load("s", Kept([NODE], state)).corrections
    assert len(corrections) == 2
    found = take_image(store, "s").rest.idempotency
    assert found is not None
    assert (found.duration_s, found.maxsize) == (86_400, 3)
    assert (found.iids_added, found.iids_duplicates) == (8, 2)
    assert found.producers == [
        ProducerImage(b"p", [(b"3", iids[3][1]), (b"4", iids[4][1]), (b"0", StreamID(now, 9))])
    ]
    clock.advance(86_400_001)
    assert store.stream("s").info().iids_tracked == 0


def test_the_groups_of_a_stream_are_replaced_by_those_of_a_state(store: Store) -> None:
    stream = store.stream("s")
    stream.add_many([{"f": "v"}] * 10)
    stream.create_group("old", "0").consumer("c").read(count=5)
    state = take_image(store, "s").rest
    first = take_image(store, "s").found[0].ids[0]
    table = PendingTable()
    table.add(first, b"d", 77, 3)
    new = GroupImage(b"new", StreamID.unpack(first), 1, [D], table)
    restated = replace(state, groups=[new], entries_added=15)

    def restate(txn: Txn) -> load.Loaded:
        return load.restate(txn, b"\0\0s", restated)

    assert store.engine.run(restate).corrections == []
    assert take_image(store, "s").rest == restated
    assert store.check() == []
    assert [entry.id for entry in stream.group("new").consumer("d").read(count=2)]
