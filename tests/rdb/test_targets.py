"""The format that each server reads, and what it cannot store: losses are reported beforehand."""

import pytest

from kvstream.errors import InvalidArgument
from kvstream.rdb.streams import encode_stream
from kvstream.rdb.versions import (
    LOSSES,
    NACKED_CONSUMER,
    NEWEST,
    TARGETS,
    VALKEY,
    Kind,
    losses,
    reduce,
    target,
    target_of,
)
from kvstream.types.ids import StreamID
from kvstream.types.images import (
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    PendingImage,
    ProducerImage,
    StreamState,
)

ONE, TWO, THREE = (StreamID(n, 0).packed for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("5.0.14", "redis:5.0"),
        ("6.0.16", "redis:6.0"),
        ("6.2.7", "redis:6.2"),
        ("7.0.15", "redis:7.0"),
        ("7.1.241", "redis:7.0"),
        ("7.2.4", "redis:7.2"),
        ("7.4.1", "redis:7.4"),
        ("8.4.0", "redis:8.4"),
        ("8.5", "redis:8.4"),
        ("8.6.2", "redis:8.6"),
        ("8.10.0", "redis:8.10"),
        ("8.12", "redis:8.10"),
        ("9", "redis:8.10"),
    ],
)
def test_a_version_between_two_releases_gets_the_older_format(version: str, name: str) -> None:
    assert target_of(version) is target(name)


def test_each_target_has_the_type_and_version_that_it_writes_itself() -> None:
    found = {(each.kind.value, each.version) for each in TARGETS.values()}
    assert found == {(15, 9), (19, 10), (21, 11), (21, 12), (26, 13), (27, 14), (27, 15)}
    assert target("redis:8.10") is NEWEST


def test_every_valkey_gets_version_11() -> None:
    """Valkey refuses versions 12 to 79, although Redis 7.4 writes the same stream."""
    for version in ("7.2.8", "8.0.1", "9.0.0"):
        assert target_of(version, valkey=True) is VALKEY
    assert (VALKEY.kind, VALKEY.version) == (Kind.ACTIVE_TIMES, 11)


@pytest.mark.parametrize("version", ["4.0.14", "0", "x", "7.x", "", "unstable"])
def test_a_server_without_streams_or_version_is_no_target(version: str) -> None:
    with pytest.raises(InvalidArgument):
        target_of(version)


def test_the_error_for_an_unknown_target_names_all_targets() -> None:
    with pytest.raises(InvalidArgument, match=r"redis:5\.0, .*, redis:8\.10, valkey"):
        target("redis:7.1")


def full() -> StreamState:
    """A stream with every feature that some server cannot store."""
    group = GroupImage(
        b"g",
        StreamID(2, 0),
        11,
        [ConsumerImage(b"a", 5, 5), ConsumerImage(b"b", 5, -1), ConsumerImage(b"c", 9, 8)],
    )
    group.pending.add(ONE, b"a", 7, 1)
    group.pending.add(TWO, None, 0, 3)
    group.pending.add(THREE, None, 0, 1)
    group.nacked = [THREE, TWO]
    producer = ProducerImage(b"p", [(b"i", StreamID(1, 0)), (b"j", StreamID(2, 0))])
    return StreamState(
        3,
        StreamID(9, 0),
        StreamID(1, 0),
        StreamID(8, 0),
        12,
        [group],
        IdempotencyImage(100, 50, [producer], 2, 1),
    )


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        (
            "redis:6.2",
            {
                "active-time": 2,
                "entries-added": 1,
                "max-deleted": 1,
                "entries-read": 1,
                "nacked": 2,
                "idempotency": 2,
                "idempotency-limits": 1,
            },
        ),
        ("redis:7.0", {"active-time": 2, "nacked": 2, "idempotency": 2, "idempotency-limits": 1}),
        ("redis:8.4", {"nacked": 2, "idempotency": 2, "idempotency-limits": 1}),
        ("valkey", {"nacked": 2, "idempotency": 2, "idempotency-limits": 1}),
        ("redis:8.6", {"nacked": 2}),
        ("redis:8.8", {}),
        ("redis:8.10", {}),
    ],
)
def test_losses_are_named_and_counted(name: str, lost: dict[str, int]) -> None:
    state = full()
    found = losses(state, target(name))
    assert {each.name: each.affected for each in found} == lost
    assert all(each.text == LOSSES[each.name] for each in found)
    assert state == full()


def test_values_that_the_target_computes_are_no_loss() -> None:
    """A plain stream goes to the oldest server as it is."""
    state = StreamState(3, StreamID(3, 0), StreamID(1, 0), StreamID(0, 0), 3)
    state.idempotency = IdempotencyImage(100, 100)
    state.groups = [
        GroupImage(b"new", StreamID(0, 0), 0),
        GroupImage(b"one", StreamID(1, 0), 1),
        GroupImage(b"all", StreamID(3, 0), 3),
        GroupImage(b"unknown", StreamID(2, 0), None),
    ]
    assert losses(state, target("redis:5.0")) == []
    state.groups.append(GroupImage(b"between", StreamID(2, 0), 2))
    state.groups.append(GroupImage(b"ahead", StreamID(4, 0), 3))
    assert [(each.name, each.affected) for each in losses(state, target("redis:5.0"))] == [
        ("entries-read", 2)
    ]


def test_an_empty_stream_loses_no_place_of_a_group() -> None:
    state = StreamState(0, StreamID(3, 0), StreamID(0, 0), StreamID(0, 0), 0)
    state.groups = [GroupImage(b"g", StreamID(2, 0), 0)]
    assert losses(state, target("redis:5.0")) == []


def test_a_producer_known_only_by_its_count_is_a_loss() -> None:
    state = StreamState(0, StreamID(0, 0))
    state.idempotency = IdempotencyImage(100, 100, [], 5, 0)
    assert [each.name for each in losses(state, VALKEY)] == ["idempotency"]


def test_entries_given_back_go_to_their_own_consumer() -> None:
    """Servers before 8.8 refuse a whole payload in which a pending entry has no owner."""
    state = full()
    reduce(state, target("redis:8.6"))
    (group,) = state.groups
    assert list(group.pending) == [
        PendingImage(ONE, b"a", 7, 1),
        PendingImage(TWO, NACKED_CONSUMER, 0, 3),
        PendingImage(THREE, NACKED_CONSUMER, 0, 1),
    ]
    assert group.nacked == []
    assert group.consumers[-1] == ConsumerImage(NACKED_CONSUMER, 0, -1)
    assert state.idempotency is not None


def test_the_consumer_of_entries_given_back_is_made_once() -> None:
    state = full()
    state.groups[0].consumers.append(ConsumerImage(NACKED_CONSUMER, 5, 5))
    reduce(state, VALKEY)
    assert [each.name for each in state.groups[0].consumers].count(NACKED_CONSUMER) == 1


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_reduced_can_be_written(name: str) -> None:
    state, where = full(), target(name)
    reduce(state, where)
    assert {each.name for each in losses(state, where)}.isdisjoint({"nacked", "idempotency"})
    assert b"".join(encode_stream(where.kind, [], state, 0))


def test_the_newest_target_loses_nothing() -> None:
    state = full()
    reduce(state, NEWEST)
    assert state == full()
