"""The row that says whose history a store has, and how far."""

import pytest

from kvstream.errors import Corruption
from kvstream.layout.history import FORMER_MAX, History, Place

BEGUN = History.begin(100)


def test_a_row_is_read_as_it_was_written() -> None:
    history = BEGUN.begin_epoch(150).begin_epoch(170)
    assert History.decode(history.encode()) == history
    assert History.decode(BEGUN.at(120).encode()) == BEGUN.at(120)


@pytest.mark.parametrize(
    "damage",
    [b"", b"\x01", BEGUN.encode()[:-1], b"\x02" + BEGUN.encode()[1:]],
    ids=["empty", "only a version", "cut", "of another version"],
)
def test_a_damaged_row_is_refused(damage: bytes) -> None:
    with pytest.raises(Corruption):
        History.decode(damage)


def test_the_epochs_of_a_primary_count_the_same_rows() -> None:
    second = BEGUN.begin_epoch(150)
    assert (BEGUN.lsn_of(150), second.lsn_of(150), second.lsn_of(151)) == (150, 150, 151)
    assert (second.base, second.epoch, second.lsn) == (100, 2, 151)
    assert second.former == (Place(1, BEGUN.branch, 150),)
    assert second.branch != BEGUN.branch


def test_a_promoted_replica_goes_on_from_its_position() -> None:
    replica = BEGUN.at(140)
    promoted = replica.begin_epoch(77)  # it has joined commits: its own numbers are others
    assert (promoted.lsn, promoted.base, promoted.sequence) == (141, 140, 78)
    assert promoted.lsn_of(80) == 143
    assert promoted.sequence_of(143) == 80


def test_an_epoch_without_rows_is_forgotten_by_who_follows() -> None:
    idle = BEGUN.begin_epoch(150).begin_epoch(151).begin_epoch(152)
    place = idle.as_replica(153).place(0)
    assert place == Place(1, BEGUN.branch, 150)
    assert idle.as_replica(153).former == ()
    assert idle.as_replica(154).place(0) == Place(4, idle.branch, 154)
    replica = BEGUN.at(140)
    assert replica.as_replica(7) == replica
    assert replica.begin_epoch(77).as_replica(78).place(0) == replica.place(0)


def test_the_fork_of_two_histories_is_found() -> None:
    replica = BEGUN.at(140)
    promoted = replica.begin_epoch(77)
    last = promoted.lsn_of(100)
    assert promoted.fork(replica.place(0), last) == 140
    assert promoted.fork(Place(1, BEGUN.branch, 190), last) == 140
    assert promoted.fork(Place(2, promoted.branch, 150), last) == 150
    assert promoted.fork(Place(2, promoted.branch, 10_000), last) == last
    assert promoted.fork(Place(1, bytes(20), 140), last) is None


def test_former_epochs_are_bounded() -> None:
    history = BEGUN
    for n in range(FORMER_MAX + 5):
        history = history.begin_epoch(200 + n)
    assert len(history.former) == FORMER_MAX
    assert len(history.encode()) < 4096
