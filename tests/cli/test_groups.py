"""Groups and consumers: created, moved, listed, deleted."""

import pytest

import kvstream
from tests.cli.program import FIRST, Program

pytestmark = pytest.mark.places("store", "server", "redis")

LAST = "1700000004000-0"


def test_a_group_starts_at_an_id_a_time_or_the_end(orders: Program) -> None:
    assert orders.one("group", "create", "orders", "end")["last_delivered_id"] == LAST
    assert orders.one("group", "create", "orders", "all", "--start", "0") == {
        "group": "all",
        "last_delivered_id": "0-0",
    }
    time = ["--start", "2023-11-14T22:13:22Z"]
    orders("group", "create", "orders", "time", *time)
    rows = orders.json("read", "orders", "--group", "time", "--consumer", "c")
    assert rows[0]["id"] == "1700000002000-0"
    assert orders("group", "create", "orders", "all", code=1).stderr == (
        "Error: Consumer Group name already exists: group 'all' of stream 'orders'\n"
    )


def test_group_create_creates_the_stream_by_default(orders: Program) -> None:
    assert orders("group", "create", "new", "g", "--no-mkstream", code=1).stderr
    orders("group", "create", "new", "g")
    assert orders.one("len", "new") == {"length": 0}


def test_group_ls_shows_lag_and_exact_backlog(orders: Program) -> None:
    assert orders.json("group", "ls", "orders") == [
        {
            "name": "billing",
            "consumers": 2,
            "pending": 2,
            "last_delivered_id": "1700000001000-0",
            "entries_read": 2,
            "lag": 3,
            "backlog": 3,
        }
    ]
    orders("group", "setid", "orders", "billing", "1700000002000-0")
    row = orders.json("group", "ls", "orders")[0]
    assert (row["lag"], row["backlog"]) == (None, 2)
    assert "unknown" in orders.lines("group", "ls", "orders")[1]


def test_setid_moves_a_group_and_keeps_pending_entries(orders: Program) -> None:
    moved = orders.one("group", "setid", "orders", "billing", "$")
    assert moved["last_delivered_id"] == LAST
    orders("group", "setid", "orders", "billing", "0", "--entries-read", "0")
    row = orders.json("group", "ls", "orders")[0]
    assert (row["pending"], row["lag"]) == (2, 5)


def test_destroy_deletes_a_group_and_reports_pending_entries(orders: Program) -> None:
    assert orders.lines("group", "destroy", "orders", "billing") == [
        "group billing deleted, with 2 entries pending"
    ]
    assert (
        "has no group 'billing'" in orders("group", "destroy", "orders", "billing", code=1).stderr
    )
    assert orders.one("len", "orders") == {"length": 5}


def test_reset_needs_an_explicit_choice_for_pending_entries(orders: Program) -> None:
    shown = orders("group", "reset", "orders", "billing", "--to", "0", code=2).stderr
    assert "--keep-pending or --drop-pending" in shown
    assert orders("group", "reset", "orders", "billing", "--drop-pending", code=2).stderr


def test_reset_to_a_time_delivers_from_that_time_on(orders: Program) -> None:
    done = orders.one(
        "group", "reset", "orders", "billing", "--to", "2023-11-14T22:13:23", "--keep-pending"
    )
    assert (done["backlog_before"], done["backlog_after"]) == (3, 2)
    assert (done["pending"], done["dropped"]) == (2, 0)
    rows = orders.json("read", "orders", "--group", "billing", "--consumer", "c")
    assert rows[0]["id"] == "1700000003000-0"


@pytest.mark.places("store", "server")
def test_reset_drops_pending_entries_also_those_given_back(orders: Program) -> None:
    orders("nack", "orders", "billing", FIRST)
    done = orders.one("group", "reset", "orders", "billing", "--to", "0", "--drop-pending")
    assert (done["pending"], done["dropped"], done["backlog_after"]) == (0, 2, 5)
    assert orders.one("pending", "orders", "billing")["pending"] == 0
    names = [row["name"] for row in orders.json("consumer", "ls", "orders", "billing")]
    assert names == ["idle-worker", "worker-1"]


def test_a_reset_drops_any_number_of_pending_entries(orders: Program) -> None:
    with kvstream.open(orders.place[1]) as store:
        stream = store.stream("orders")
        stream.add_many([{"n": n} for n in range(10_000)])  # more than one page
        assert len(stream.group("billing").consumer("c").read()) == 10_003
    done = orders.one("group", "reset", "orders", "billing", "--to", "-", "--drop-pending")
    assert (done["pending"], done["dropped"], done["backlog_after"]) == (0, 10_005, 10_005)
    assert orders.one("pending", "orders", "billing")["pending"] == 0


def test_a_dry_run_shows_what_a_reset_would_do_and_changes_nothing(orders: Program) -> None:
    before = orders.json("group", "ls", "orders")
    arguments = ["group", "reset", "orders", "billing", "--to", "$", "--drop-pending"]
    planned = orders.one(*arguments, "--dry-run")
    assert orders.json("group", "ls", "orders") == before
    assert orders.one("pending", "orders", "billing")["pending"] == 2
    assert (
        "would move from 1700000001000-0 (2023-11-14 22:13:21.000Z) to"
        in (orders.lines(*arguments, "--dry-run")[0])
    )
    assert orders.one(*arguments) == {**planned, "dry_run": False}


def test_consumers_are_listed_with_their_pending_entries(orders: Program) -> None:
    rows = {row["name"]: row for row in orders.json("consumer", "ls", "orders", "billing")}
    assert rows["worker-1"]["pending"] == 2
    assert rows["idle-worker"]["pending"] == 0


@pytest.mark.places("store", "server")
def test_a_consumer_without_deliveries_is_marked(orders: Program) -> None:
    row = orders.json("consumer", "ls", "orders", "billing")[0]
    assert (row["name"], row["inactive"]) == ("idle-worker", -1)
    assert "never" in orders.lines("consumer", "ls", "orders", "billing")[1]


@pytest.mark.places("redis")
def test_values_missing_from_an_older_server_are_unknown(orders: Program) -> None:
    row = orders.json("consumer", "ls", "orders", "billing")[0]
    assert row["inactive"] is None
    assert orders.lines("consumer", "ls", "orders", "billing")[1].endswith("unknown")


def test_a_consumer_can_be_created_before_it_reads(orders: Program) -> None:
    assert orders.one("consumer", "create", "orders", "billing", "c") == {"created": True}
    assert orders.one("consumer", "create", "orders", "billing", "c", code=1) == {"created": False}


def test_a_consumer_with_pending_entries_is_deleted_only_if_they_may_be_lost(
    orders: Program,
) -> None:
    refused = orders("consumer", "del", "orders", "billing", "worker-1", code=1).stderr
    assert "2 entries pending" in refused
    assert "--drop-pending" in refused
    assert orders.one("pending", "orders", "billing")["pending"] == 2
    gone = orders.one("consumer", "del", "orders", "billing", "worker-1", "--drop-pending")
    assert gone == {"deleted": True, "pending": 2}
    assert orders.one("consumer", "del", "orders", "billing", "idle-worker")["pending"] == 0
    assert "has no consumer" in orders("consumer", "del", "orders", "billing", "x", code=1).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["group", "setid", "orders", "x", "0"],
        ["group", "reset", "orders", "x", "--to", "0", "--keep-pending"],
        ["consumer", "ls", "orders", "x"],
        ["consumer", "create", "orders", "x", "c"],
        ["pending", "orders", "x"],
        ["read", "orders", "--group", "x", "--consumer", "c"],
        ["ack", "orders", "x", FIRST],
        ["nack", "orders", "x", FIRST],
        ["claim", "orders", "x", "c", FIRST],
        ["autoclaim", "orders", "x", "c"],
    ],
)
def test_the_error_for_a_missing_group_has_advice(orders: Program, arguments: list[str]) -> None:
    shown = orders(*arguments, code=1).stderr
    advice = "list the groups with: kvstream group ls STREAM"
    assert f"stream 'orders' has no group 'x' ({advice})" in shown
