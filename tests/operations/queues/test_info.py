"""KVSTREAM.INFO: the figures of a stream as a queue, and of its groups."""

import pytest

from kvstream import ManualClock, Queue, Store
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.operations.delivery import ordering
from kvstream.operations.groups import Reader, consumer_of, existing_group
from tests.opening import Stores, change_thresholds
from tests.operations.queue_commands import error, ok, opened

NAME = qualified(0, b"s")
START_MS = 1_700_000_000_000


@pytest.fixture
def quiet(open_store: Stores) -> Store:
    return opened(open_store)


def test_a_plain_stream_has_no_rules_and_no_groups(quiet: Store) -> None:
    ok(quiet, "XADD s 1-0 f v")
    assert ok(quiet, "KVSTREAM.INFO s") == {
        **{"length": 1, "entries_added": 1, "delayed": 0, "schedules": 0},
        **{"groups": [], "retention": {}},
    }


def test_a_missing_stream_is_an_error(quiet: Store) -> None:
    assert "no such key" in error(quiet, "KVSTREAM.INFO none")


def test_groups_are_read_in_pages(quiet: Store, open_store: Stores) -> None:
    for name in "dbcae":
        ok(quiet, f"XGROUP CREATE s {name} 0 MKSTREAM")

    def names(options: str) -> list[str]:
        return [each["name"].decode() for each in ok(quiet, f"KVSTREAM.INFO s {options}")["groups"]]

    assert names("") == ["a", "b", "c", "d", "e"]
    assert names("COUNT 2") == ["a", "b"]
    assert names("FROM b COUNT 2") == ["b", "c"]
    assert names("from bb count 9") == ["c", "d", "e"]
    assert names("FROM f") == []
    for wrong in ("COUNT 0", "COUNT x", "FROM", "NEXT a"):
        assert error(quiet, f"KVSTREAM.INFO s {wrong}")


def test_each_entry_is_counted_where_it_is(quiet: Store, clock: ManualClock) -> None:
    for seq in range(10):
        ok(quiet, f"XADD s {START_MS}-{seq} f v")
    ok(quiet, "KVSTREAM.ADD s DELAY 60000 f v")
    ok(quiet, "XGROUP CREATE s g 0")
    ok(quiet, "XGROUP CREATE s done $")
    ok(quiet, "XREADGROUP GROUP g c COUNT 6 STREAMS s >")
    ok(quiet, f"XACK s g {START_MS}-0")
    ok(quiet, f"XNACK s g FAIL IDS 2 {START_MS}-4 {START_MS}-5")
    clock.advance(5000)
    ok(quiet, "KVSTREAM.RETENTION SET s MAXLEN 100")
    info = ok(quiet, "KVSTREAM.INFO s")
    assert (info["length"], info["delayed"]) == (10, 1)
    assert info["retention"]["max_length"] == 100
    done, group = info["groups"]
    assert group == {
        **{"name": b"g", "consumers": 1, "ready": 6, "leased": 3, "waiting": 0},
        **{"held": 0, "dead": 0, "oldest_ms": 5000, "policy": {}, "next_ms": None},
    }
    assert (done["ready"], done["leased"], done["oldest_ms"]) == (0, 0, 0)


def test_entries_held_for_their_key_are_counted_apart(quiet: Store) -> None:
    ok(quiet, "XADD s 1-0 user a")
    ok(quiet, "XGROUP CREATE s g 0")
    ok(quiet, "KVSTREAM.POLICY SET s g ORDERBY user")
    for ms in range(2, 6):
        ok(quiet, f"XADD s {ms}-0 user a")

    def read(txn: Txn) -> None:
        stream, group = existing_group(txn, NAME, b"g")
        reader = Reader(NAME, stream, group, consumer_of(txn, NAME, group, b"c"))
        ordering.take_new(txn, reader, 10)

    quiet.engine.run(read)
    (group,) = ok(quiet, "KVSTREAM.INFO s")["groups"]
    assert (group["leased"], group["held"], group["waiting"], group["ready"]) == (1, 4, 0, 0)
    assert group["policy"]["order_by"] == b"user"


def test_entries_that_wait_for_another_delivery_are_counted_apart(quiet: Store) -> None:
    for ms in range(1, 6):
        ok(quiet, f"XADD s {ms}-0 f v")
    ok(quiet, "XGROUP CREATE s g 0")
    ok(quiet, "KVSTREAM.POLICY SET s g LEASE 60000")
    ok(quiet, "XREADGROUP GROUP g c COUNT 4 STREAMS s >")
    ok(quiet, "KVSTREAM.NACK s g c DELAY 60000 2-0 1")
    ok(quiet, "KVSTREAM.NACK s g c DELAY 5000 1-0 1")
    (group,) = ok(quiet, "KVSTREAM.INFO s")["groups"]
    assert group["next_ms"] == 5000
    assert (group["leased"], group["held"], group["waiting"], group["ready"]) == (2, 0, 2, 1)


@pytest.mark.parametrize("is_released", [False, True])
def test_very_many_entries_given_back_are_of_their_kind(quiet: Store, is_released: bool) -> None:
    change_thresholds(quiet.engine, given_back_runs=5)
    queue = Queue(quiet, "s", order_by="k", backoff=60, consumer="c")
    queue.put_many([{"k": "a"}] * 400)
    queue.put_many([{"k": n} for n in range(4)])
    for message in queue.get(5)[2:]:
        message.nack()
    if is_released:
        queue.groups()[0].set_policy(order_by="")
    counts = queue.info()
    ready, held = (399, 0) if is_released else (0, 399)
    assert (counts.ready, counts.leased, counts.waiting, counts.held) == (ready, 2, 3, held)


def test_schedules_are_counted(quiet: Store) -> None:
    ok(quiet, "XADD s 1-0 f v")
    ok(quiet, "KVSTREAM.SCHEDULE SET s nightly @daily FIELDS f v")
    assert ok(quiet, "KVSTREAM.INFO s")["schedules"] == 1


def test_dead_letters_of_a_group_are_counted(quiet: Store) -> None:
    ok(quiet, "XADD s 1-0 f v")
    ok(quiet, "XGROUP CREATE s g 0")
    ok(quiet, "KVSTREAM.POLICY SET s g DELIVERIES 3")
    ok(quiet, "XADD s:dead 1-0 f v")
    (group,) = ok(quiet, "KVSTREAM.INFO s")["groups"]
    assert group["dead"] == 1


def test_an_unknown_lag_is_counted_from_the_nodes_if_they_are_few(quiet: Store) -> None:
    for ms in range(1, 500):
        ok(quiet, f"XADD s {ms}-0 f v")
    ok(quiet, "XDEL s 300-0")
    ok(quiet, "XGROUP CREATE s g 100-0")
    (group,) = ok(quiet, "KVSTREAM.INFO s")["groups"]
    assert group["ready"] == 398
    change_thresholds(quiet.engine, counted_nodes=3)
    (group,) = ok(quiet, "KVSTREAM.INFO s")["groups"]
    assert group["ready"] is None
