"""Commands of consumers: read, ack, nack, pending, claim, autoclaim."""

import pytest

from tests.cli.program import FIRST, Program

pytestmark = pytest.mark.places("store", "server", "redis")

SECOND = "1700000001000-0"
THIRD = "1700000002000-0"
LAST = "1700000004000-0"
AS_WORKER = ("--group", "billing", "--consumer", "worker-2")


def ids(rows: list[dict[str, str]]) -> list[str]:
    return [row["id"] for row in rows]


def test_a_plain_read_shows_the_entries_after_an_id(orders: Program) -> None:
    assert len(orders.json("read", "orders")) == 5
    assert ids(orders.json("read", "orders", "--after", THIRD, "-n", "1")) == ["1700000003000-0"]
    assert ids(orders.json("read", "orders", "--after", "2023-11-14T22:13:24Z")) == [LAST]
    assert orders.json("read", "orders", "--after", "$", code=1) == []
    assert orders.json("read", "missing", code=1) == []


@pytest.mark.places("store", "server")
def test_a_plain_read_can_show_the_last_entry(orders: Program) -> None:
    assert ids(orders.json("read", "orders", "--after", "+")) == [LAST]


def test_several_streams_are_labelled(orders: Program) -> None:
    rows = orders.json("read", "orders", "orders:2025", "-n", "1")
    assert [row["stream"] for row in rows] == ["orders", "orders:2025"]
    lines = orders.lines("read", "orders", "orders:2025", "-n", "1")
    assert lines[0].split()[0] == "stream"
    assert [line.split()[0] for line in lines[1:]] == ["orders", "orders:2025"]


def test_a_consumer_reads_new_entries_until_none_is_left(orders: Program) -> None:
    assert ids(orders.json("read", "orders", *AS_WORKER, "-n", "2")) == [
        THIRD,
        "1700000003000-0",
    ]
    assert ids(orders.json("read", "orders", *AS_WORKER, "--noack")) == [LAST]
    assert orders("read", "orders", *AS_WORKER, code=1).stdout == ""
    assert orders.one("pending", "orders", "billing")["pending"] == 4


def test_the_history_shows_the_pending_entries_again(orders: Program) -> None:
    mine = ("--group", "billing", "--consumer", "worker-1", "--history")
    assert ids(orders.json("read", "orders", *mine)) == [FIRST, SECOND]
    assert ids(orders.json("read", "orders", *mine, "--after", FIRST)) == [SECOND]
    orders("del", "orders", SECOND)
    assert orders.json("read", "orders", *mine)[1] == {"id": SECOND, "fields": None}
    assert orders.lines("read", "orders", *mine)[2].endswith("(deleted)")
    assert orders.json("read", "orders", *AS_WORKER, "--history", code=1) == []


@pytest.mark.places("store", "server")
def test_a_read_with_claim_shows_idle_times_and_deliveries(
    orders: Program,
) -> None:
    rows = orders.json("read", "orders", *AS_WORKER, "--claim", "1s", "-n", "3")
    assert ids(rows) == [FIRST, SECOND, THIRD]
    assert [row["deliveries"] for row in rows] == [1, 1, 0]
    lines = orders.lines("read", "orders", *AS_WORKER, "--claim", "0s", "-n", "1")
    assert lines[0].split() == ["id", "time", "idle", "deliveries", "fields"]


def test_a_blocked_read_gives_up_at_its_deadline(orders: Program) -> None:
    assert orders("read", "orders", "--after", "$", "--block", "50ms", code=1).stdout == ""


@pytest.mark.parametrize(
    "options",
    [
        ["--group", "billing"],
        ["--consumer", "c"],
        ["--noack"],
        ["--history"],
        ["--claim", "1s"],
        [*AS_WORKER, "--after", "0"],
        [*AS_WORKER, "--history", "--after", "$"],
    ],
)
def test_conflicting_options_of_a_read_are_refused(orders: Program, options: list[str]) -> None:
    assert "Usage:" in orders("read", "orders", *options, code=2).stderr


def test_ack_counts_and_exits_with_1_if_nothing_was_pending(orders: Program) -> None:
    assert orders.one("ack", "orders", "billing", FIRST, THIRD) == {"acknowledged": 1}
    assert orders.lines("ack", "orders", "billing", FIRST, code=1) == ["0 entries acknowledged"]


def test_ids_that_were_read_can_be_piped_into_ack(orders: Program) -> None:
    rows = orders.json("read", "orders", *AS_WORKER)
    piped = "".join(f"{eid}\n" for eid in ids(rows))
    assert orders.one("ack", "orders", "billing", "-", input=piped) == {"acknowledged": 3}


@pytest.mark.places("store", "server")
def test_ack_can_delete_in_the_same_commit(orders: Program) -> None:
    rows = orders.json("ack", "orders", "billing", FIRST, LAST, "--delete")
    assert [row["outcome"] for row in rows] == ["deleted", "missing"]
    assert orders.one("len", "orders") == {"length": 4}
    assert "needs --delete" in (
        orders("ack", "orders", "billing", FIRST, "--ref-policy", "acked", code=2).stderr
    )


@pytest.mark.places("store", "server")
def test_nack_gives_back_and_sets_the_delivery_count(orders: Program) -> None:
    assert orders.one("nack", "orders", "billing", FIRST, "--mode", "fatal") == {"released": 1}
    assert orders.one("nack", "orders", "billing", SECOND, "--retrycount", "7") == {"released": 1}
    rows = orders.json("pending", "orders", "billing", "--list")
    assert [(row["consumer"], row["idle_ms"]) for row in rows] == [("", None), ("", None)]
    assert rows[0]["deliveries"] > 1_000_000
    assert rows[1]["deliveries"] == 7
    shown = orders.lines("pending", "orders", "billing", "--list")[1].split()
    assert shown[3:5] == ["(none)", "-"]
    assert orders.one("nack", "orders", "billing", LAST, code=1) == {"released": 0}
    assert orders.one("nack", "orders", "billing", LAST, "--force") == {"released": 1}


def test_pending_shows_a_summary_or_the_entries(orders: Program) -> None:
    assert orders.one("pending", "orders", "billing") == {
        "pending": 2,
        "min_id": FIRST,
        "max_id": SECOND,
        "consumers": [{"consumer": "worker-1", "pending": 2}],
    }
    lines = orders.lines("pending", "orders", "billing")
    assert lines[0] == f"2 entries pending, {FIRST} to {SECOND}"
    assert lines[2].split() == ["worker-1", "2"]
    assert ids(orders.json("pending", "orders", "billing", "--start", f"({FIRST}")) == [SECOND]
    assert ids(orders.json("pending", "orders", "billing", "-n", "1")) == [FIRST]
    assert orders.json("pending", "orders", "billing", "--consumer", "idle-worker") == []
    assert ids(orders.json("pending", "orders", "billing", "--min-idle", "1h")) == [FIRST, SECOND]
    orders("ack", "orders", "billing", FIRST, SECOND)
    assert orders.lines("pending", "orders", "billing") == ["0 entries pending"]


def test_claim_transfers_pending_entries_to_a_consumer(orders: Program) -> None:
    claim = ("claim", "orders", "billing", "worker-2")
    assert ids(orders.json(*claim, FIRST, LAST)) == [FIRST]
    assert orders.json(*claim, LAST, code=1) == []
    assert ids(orders.json(*claim, LAST, "--force", "--justid")) == [LAST]
    assert orders.json(*claim, FIRST, "--min-idle", "1h", code=1) == []
    options = ["--idle", "2h", "--retrycount", "9"]
    assert ids(orders.json(*claim, FIRST, *options)) == [FIRST]
    row = orders.json("pending", "orders", "billing")[0]
    assert row["consumers"] == [
        {"consumer": "worker-1", "pending": 1},
        {"consumer": "worker-2", "pending": 2},
    ]
    listed = orders.json("pending", "orders", "billing", "--min-idle", "1h")
    assert [row["deliveries"] for row in listed] == [9, 1]


def test_claim_accepts_a_time_and_moves_the_group_forward(orders: Program) -> None:
    claim = ("claim", "orders", "billing", "worker-2", FIRST)
    orders(*claim, "--time", "2023-11-14", "--last-id", LAST)
    assert orders.json("group", "ls", "orders")[0]["last_delivered_id"] == LAST
    rows = orders.json("pending", "orders", "billing", "--consumer", "worker-2")
    assert rows[0]["idle_ms"] > 1_000_000_000


def test_autoclaim_continues_from_its_cursor(orders: Program) -> None:
    autoclaim = ("autoclaim", "orders", "billing", "worker-2")
    step = orders.one(*autoclaim, "-n", "1")
    assert ids(step["entries"]) == [FIRST]
    assert step["cursor"] == SECOND
    lines = orders.lines(*autoclaim, "-n", "1", "--justid")
    assert lines[-2:] == ["1 entry claimed", f"continue with --start {SECOND}"]


def test_autoclaim_can_step_through_everything(orders: Program) -> None:
    orders("del", "orders", FIRST)
    done = orders.lines("autoclaim", "orders", "billing", "worker-2", "-n", "1", "--all")
    assert done[-2:] == ["1 entry claimed", "1 deleted entry dropped"]
    assert orders.one("autoclaim", "orders", "billing", "c", "--min-idle", "1h") == {
        "cursor": "0-0",
        "entries": [],
        "deleted": [],
    }
