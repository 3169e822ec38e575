"""A replica takes over the log of its primary: both then have the same rows.

KVSTREAM_CRASH_ROUNDS sets the number of mixed loads.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstream import Store, restore
from kvstream.engine.following import Source
from kvstream.errors import LostWrites, ReplicaReadOnly
from kvstream.replicas.sending import locate
from kvstream.storage.changes import log_numbers
from tests.archive.test_moments import Load
from tests.crash.rounds import rounds
from tests.patience import until
from tests.replicas.conftest import Piping, copy_to, history_of, place_of, reopened, sum_of

STEPS = 300


def test_a_replica_has_the_rows_of_its_primary(pair: tuple[Store, Store]) -> None:
    primary, replica = pair
    piping = Piping(primary, replica)
    orders = primary.stream("orders")
    orders.add_many([{"n": n} for n in range(1000)])
    orders.create_group("workers", start="0").consumer("ann").read(count=10)
    piping.catch_up()
    assert sum_of(replica) == sum_of(primary)
    assert len(replica.stream("orders")) == 1000
    assert replica.stream("orders").group("workers").pending().count == 10
    assert place_of(replica) == place_of(primary)
    piping.close()


@pytest.mark.parametrize("seed", range(rounds(2)))
def test_a_mixed_load_makes_equal_rows(
    open_one: Callable[[str], Store], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    primary, replica = open_one("primary"), open_one("replica")
    load = Load(primary, tmp_path, chance)
    for _ in range(STEPS // 4):
        load.step()
    primary.engine.following.begin_epoch()
    replica.engine.following.follow(Source("primary.example", 1))
    copy_to(primary, replica)
    piping = Piping(primary, replica)
    for _ in range(STEPS):
        load.step()
        if chance.random() < 0.2:
            piping.catch_up(chance.choice((100, 5_000, 1 << 20)))
        if chance.random() < 0.02:  # it is at a position that is a row of its own
            piping.close()
            piping = Piping(primary, replica)
    primary.engine.timers.follows = primary.engine.expiry.follows = True
    with primary.engine.hold():
        piping.catch_up()
        assert sum_of(replica) == sum_of(primary)
    assert replica.check() == []
    piping.close()


def test_readers_see_what_arrives(pair: tuple[Store, Store]) -> None:
    primary, replica = pair
    piping = Piping(primary, replica)
    for n in range(5):
        primary.stream("orders").add({"n": n})
        piping.catch_up()
        assert len(replica.stream("orders")) == n + 1
        assert [entry.fields[b"n"] for entry in replica.stream("orders").range()][-1] == b"%d" % n
    piping.close()


def test_a_replica_refuses_writes_and_hides_expired_keys(pair: tuple[Store, Store]) -> None:
    primary, replica = pair
    piping = Piping(primary, replica)
    primary.stream("brief").add({"n": 1})
    primary.engine.expiry.follows = True  # it deletes nothing, either
    primary.expire("brief", 0.001)
    piping.catch_up()
    with pytest.raises(ReplicaReadOnly):
        replica.stream("first").add({"n": 2})
    with pytest.raises(ReplicaReadOnly):
        replica.delete("first")
    until(lambda: not replica.exists("brief"), "expired")
    assert sum_of(replica) == sum_of(primary)
    piping.close()


def test_the_role_is_kept_until_it_is_promoted(pair: tuple[Store, Store]) -> None:
    replica = pair[1]
    again = reopened(replica)
    assert again.engine.following.source == Source("primary.example", 1)
    with pytest.raises(ReplicaReadOnly):
        again.stream("first").add({"n": 2})
    before = history_of(again)
    again.engine.following.promote()
    again.stream("first").add({"n": 2})
    after = history_of(again)
    assert (after.epoch, after.base) == (before.epoch + 1, before.lsn)
    assert after.former[-1] == (before.epoch, before.branch, before.lsn)
    again = reopened(again)
    assert again.engine.following.source is None
    assert again.engine.following.is_set
    again.close()


def test_the_archive_of_a_replica_sleeps_until_it_is_promoted(tmp_path: Path) -> None:
    with Store.open(tmp_path / "one", archive=f"file://{tmp_path}/bucket") as store:
        archiving, following = store.engine.archiving, store.engine.following
        following.follow(Source("primary.example", 1))
        assert archiving.status() is None
        with pytest.raises(ReplicaReadOnly):
            store.stream("first").add({"n": 1})
        following.promote()
        store.stream("first").add({"n": 1})
        until(lambda: (found := archiving.status()) and found.snapshot_ms, "the snapshot")
    restore(f"file://{tmp_path}/bucket", tmp_path / "two")
    with Store.open(tmp_path / "two") as restored:
        assert len(restored.stream("first")) == 1


def test_a_new_epoch_of_the_primary_is_one_of_the_replica(pair: tuple[Store, Store]) -> None:
    primary, replica = pair
    piping = Piping(primary, replica)
    primary.stream("orders").add({"n": 1})
    epoch = primary.engine.following.begin_epoch()
    primary.stream("orders").add({"n": 2})
    piping.catch_up()
    assert history_of(replica).branch == epoch.branch
    assert history_of(replica).former == epoch.former
    assert place_of(replica) == place_of(primary)
    piping.close()


def test_a_gap_in_the_log_is_refused(pair: tuple[Store, Store]) -> None:
    primary, replica = pair
    piping = Piping(primary, replica)
    primary.stream("orders").add({"n": 1})
    part = piping.tail.part(1 << 20)
    assert part is not None
    piping.tail.sent(part.size)
    primary.stream("orders").add({"n": 2})
    before = sum_of(replica)
    with pytest.raises(LostWrites):
        piping.catch_up()
    assert sum_of(replica) == before
    piping.close()


def test_what_a_timer_writes_at_an_opening_has_a_position_of_its_own(
    open_one: Callable[[str], Store],
) -> None:
    """A power cut may have taken rows of the same number that a replica has."""
    primary = open_one("primary")
    primary.stream("orders").add({"n": 1}, delay=0.2)
    epoch = primary.engine.following.begin_epoch()
    primary.close()
    time.sleep(0.2)
    primary = open_one("primary")
    until(lambda: len(primary.stream("orders")) == 1, "the message")
    assert history_of(primary).branch != epoch.branch
    assert place_of(primary).lsn > history_of(primary).lsn


def test_a_bulk_load_ends_a_history_that_nobody_follows(
    open_one: Callable[[str], Store], tmp_path: Path
) -> None:
    primary = open_one("primary")
    primary.engine.following.begin_epoch()
    primary = reopened(primary)  # by a program, not a server
    load = Load(primary, tmp_path, random.Random(0))
    load._bulk_load()
    assert primary.engine.following.begin_epoch().former == ()
    primary.close()


def test_each_row_is_found_in_the_logs(open_one: Callable[[str], Store]) -> None:
    primary = open_one("primary")
    database = primary.engine.database
    ends = [database.sequence]
    for n in range(30):
        primary.stream("orders").add({"n": n, "text": "x" * (n * 5_000)})
        ends.append(database.sequence)
        if n % 10 == 9:
            primary.engine.flush()
    path = database.directory
    assert len(log_numbers(path)) > 2
    places = [locate(path, end, ends[-1]) for end in ends[1:]]
    assert None not in places
    assert places == sorted({place for place in places if place is not None})
    assert locate(path, ends[-1] + 100, ends[-1]) is None
    database.trim_logs("test", log_numbers(path)[-1])
    assert locate(path, ends[1], ends[-1]) is None
    assert locate(path, ends[-1], ends[-1]) is not None
