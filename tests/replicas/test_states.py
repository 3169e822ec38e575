"""The states of a server: each follows from what is known, and the table says what it allows."""

from math import inf

import pytest

from kvstream.server.runtime.replication.states import (
    ALLOWED,
    OfPrimary,
    OfReplica,
    State,
    lease_end,
    lease_s,
    next_change,
    state_of,
)


def primary(acked: float = inf, heard: float = inf, degrades: bool = False) -> OfPrimary:
    return OfPrimary(True, acked, heard, degrades, False)


def replica(copying: bool = False, lacks: bool = False, valid: float = inf) -> OfReplica:
    return OfReplica(True, copying, lacks, valid)


@pytest.mark.parametrize(
    ("known", "state"),
    [
        (OfPrimary(False, inf, inf, False, False), State.ALONE),
        (primary(), State.PRIMARY),
        (primary(acked=10.0), State.PRIMARY),
        (primary(acked=9.9), State.FENCED),
        (primary(heard=9.9), State.FENCED),
        (primary(acked=9.9, degrades=True), State.DEGRADED),
        (primary(acked=9.9, heard=9.9, degrades=True), State.FENCED),
        (OfPrimary(True, 9.9, inf, True, True), State.SUSPECT),
        (OfReplica(False, True, False, inf), State.SYNCING),
        (replica(), State.REPLICA),
        (replica(valid=10.0), State.REPLICA),
        (replica(valid=9.9), State.BEHIND),
        (replica(copying=True), State.BEHIND),
        (replica(lacks=True), State.BEHIND),
    ],
)
def test_a_state_follows_from_what_is_known(known: OfPrimary | OfReplica, state: State) -> None:
    assert state_of(known, 10.0) is state


def test_each_state_has_a_row() -> None:
    assert set(ALLOWED) == set(State)
    writable = {state for state, allowed in ALLOWED.items() if allowed.writes is None}
    assert writable == {State.ALONE, State.PRIMARY, State.DEGRADED}
    promotable = {state for state, allowed in ALLOWED.items() if allowed.may_be_promoted}
    assert not promotable & {State.SYNCING, State.BEHIND}


@pytest.mark.parametrize(
    ("echoes", "wanted", "end"),
    [
        ([], 0, inf),
        ([], 1, -inf),
        ([5.0], 1, 6.0),
        ([5.0, 7.0], 1, 8.0),
        ([5.0, 7.0], 2, 6.0),
        ([5.0, 7.0], 3, -inf),
    ],
)
def test_a_lease_ends_with_the_answers_of_enough_replicas(
    echoes: list[float], wanted: int, end: float
) -> None:
    assert lease_end(echoes, wanted, 1.0) == end


def test_the_shorter_of_two_limits_counts_and_zero_is_none() -> None:
    assert lease_s(10, 1000) == 1.0
    assert lease_s(1, 0) == 1.0
    assert lease_s(0, 0) == inf


def test_a_lease_that_has_ended_is_not_waited_for() -> None:
    assert next_change([1.0, 3.0, inf], 2.0) == 3.0
    assert next_change([1.0], 2.0) == inf
