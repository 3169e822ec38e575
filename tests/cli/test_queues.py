"""Queues from the command line: messages, rules, dead letters, delayed messages and schedules."""

import re
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace

import pytest
from click.testing import CliRunner

import kvstream
from kvstream import Jobs, ManualClock, Queue, Store
from kvstream.cli import main
from kvstream.cli.session import DirectorySession
from kvstream.cli.tables import cells
from kvstream.cli.top import view
from kvstream.cli.top.samples import (
    GroupSample,
    QueueSample,
    Sample,
    Sampler,
    StreamSample,
    with_rates,
)
from kvstream.cli.top.screen import Screen
from kvstream.jobs import Worker
from kvstream.remote.engine import RemoteEngine
from kvstream.types.ids import StreamID
from tests.cli.program import Program, RemoteProgram
from tests.patience import until

pytestmark = pytest.mark.places("store", "server")

ANN, BOB = "1700000006000-0", "1700000007000-0"
TICKET = re.compile(r"@\d{13}-\d+")


def counts_of(emails: Program) -> dict[str, int]:
    info = emails.one("queue", "info", "emails")
    return {name: info[name] for name in ("ready", "leased", "waiting", "delayed", "dead")}


# --- queues ---------------------------------------------------------------------------------------


def test_queue_ls_counts_messages_by_state(emails: Program) -> None:
    (row,) = emails.json("queue", "ls")
    assert row.pop("oldest_age") > 9e7
    assert row == {
        "queue": "emails",
        "group": "workers",
        "ready": 3,
        "delayed": 1,
        "leased": 0,
        "waiting": 1,
        "held": 0,
        "dead": 2,
        "paused": False,
    }
    title, line = emails.lines("queue", "ls")
    assert title.split()[:7] == ["queue", "group", "ready", "leased", "waiting", "dead", "oldest"]
    assert line.split()[:6] == ["emails", "workers", "3", "0", "1", "2"]


def test_queue_ls_lists_groups_without_rules_only_with_all(orders: Program) -> None:
    assert orders.json("queue", "ls") == []
    (row,) = orders.json("queue", "ls", "--all")
    assert (row["queue"], row["group"], row["leased"], row["ready"]) == ("orders", "billing", 2, 3)
    assert orders.json("queue", "ls", "none*", "--all") == []


def test_a_paused_queue_is_marked_and_delivers_nothing(emails: Program) -> None:
    emails("queue", "pause", "emails")
    assert "paused" in emails.lines("queue", "ls")[0]
    read = ["read", "emails", "--group", "workers", "--consumer", "v", "--count", "10"]
    emails(*read, code=1)
    emails("queue", "resume", "emails")
    assert "paused" not in emails.lines("queue", "ls")[0]
    fields = [row["fields"]["to"] for row in emails.json(*read)]
    assert fields == ["dan", "eve", "fay"]  # dan comes first, since its lease has ended


def test_queue_info_shows_the_rules(emails: Program) -> None:
    lines = emails.lines("queue", "info", "emails")
    assert "lease           30.0 s" in lines
    assert "dead letters    emails:dead" in lines
    policy = emails.one("queue", "info", "emails")["policy"]
    assert (policy["lease_ms"], policy["max_deliveries"]) == (30_000, 3)


def test_put_shows_an_id_or_a_ticket(emails: Program) -> None:
    (eid,) = emails.lines("queue", "put", "emails", "to=hal")
    assert re.fullmatch(r"\d{13}-\d+", eid)
    made = emails.one("queue", "put", "emails", "to=ivy", "--delay", "1h")
    assert made["id"] is None
    assert TICKET.fullmatch(made["ticket"])
    at = emails.one("queue", "put", "emails", "to=joy", "--at", "2090-01-31T12:00")
    assert at["ticket"].startswith("@3789547200000-")
    assert counts_of(emails) | {"ready": 4, "delayed": 3} == counts_of(emails)
    assert (
        "not both"
        in emails("queue", "put", "emails", "a=b", "--delay", "1", "--at", "now", code=2).stderr
    )
    assert (
        "go with --unique"
        in emails("queue", "put", "emails", "a=b", "--window", "1", code=2).stderr
    )


def test_a_unique_message_is_added_once(emails: Program) -> None:
    put = ["queue", "put", "emails", "to=kim", "--unique", "welcome:7"]
    (first,) = emails.lines(*put)
    assert emails.lines(*put, "--window", "1d", "--on-conflict", "skip") == [first]
    assert counts_of(emails)["ready"] == 4
    (other,) = emails.lines(*put, "--on-conflict", "replace")
    assert other != first
    assert counts_of(emails)["ready"] == 4


def test_a_message_with_a_time_to_live_expires(emails: Program) -> None:
    emails("queue", "put", "emails", "to=lou", "--ttl", "1ms")
    resume = ["queue", "resume", "emails"]  # opens a store for writing, so that timers fire
    until(lambda: emails(*resume) and counts_of(emails)["ready"] == 3)


def test_put_creates_the_stream(emails: Program) -> None:
    emails("queue", "put", "new", "a=b", "--delay", "1h")
    assert emails.one("len", "new") == {"length": 0}


def test_a_queue_that_no_worker_has_read_is_shown_and_purged(emails: Program) -> None:
    emails("queue", "put", "new", "n=1")
    emails("queue", "put", "new", "n=2", "--delay", "1h")
    (row,) = emails.json("queue", "ls", "new")
    assert (row["group"], row["ready"], row["delayed"]) == (None, 1, 1)
    assert emails.lines("queue", "ls", "new")[1].split()[:3] == ["new", "-", "1"]
    assert emails.one("queue", "info", "new")["group"] is None
    assert emails.lines("queue", "info", "new")[:2] == ["group    -", "ready    1"]
    assert [row["fields"] for row in emails.json("queue", "peek", "new")] == [{"n": "1"}]
    assert emails.one("queue", "purge", "new", "--dry-run")["deleted"] == 2
    assert emails.one("queue", "purge", "new")["deleted"] == 2
    (row,) = emails.json("queue", "ls", "new")
    assert (row["ready"], row["delayed"]) == (0, 0)


def test_peek_shows_the_next_messages_without_delivering_them(emails: Program) -> None:
    before = counts_of(emails)
    rows = emails.json("queue", "peek", "emails")
    assert [row["fields"]["to"] for row in rows] == ["eve", "fay"]
    assert len(emails.json("queue", "peek", "emails", "--count", "1")) == 1
    assert counts_of(emails) == before


def test_purge_deletes_messages_and_keeps_rules_and_dead_letters(emails: Program) -> None:
    planned = emails.one("queue", "purge", "emails", "--dry-run")
    assert planned == {"deleted": 5, "dry_run": True}
    assert counts_of(emails)["ready"] == 3
    assert emails.lines("queue", "purge", "emails") == ["5 messages deleted"]
    counts = counts_of(emails)
    assert (counts["ready"], counts["delayed"], counts["dead"]) == (0, 0, 2)
    assert emails.one("queue", "policy", "emails")["max_deliveries"] == 3


# --- rules ----------------------------------------------------------------------------------------


def test_policy_changes_only_the_given_rules(emails: Program) -> None:
    words = ["--backoff", "1s..1h", "--jitter", "20", "--rate", "100/1m", "--order-by", "to"]
    done = emails.one("queue", "policy", "emails", *words, "--max-in-flight", "7", "--reap", "2d")
    assert done["stream"] == "emails"
    shown = {name: done[name] for name in ("backoff_ms", "backoff_cap_ms", "jitter_percent")}
    assert shown == {"backoff_ms": [1000], "backoff_cap_ms": 3_600_000, "jitter_percent": 20}
    assert (done["rate_count"], done["rate_ms"], done["order_by"]) == (100, 60_000, "to")
    assert (done["max_in_flight"], done["reap_idle_ms"]) == (7, 172_800_000)
    assert (done["lease_ms"], done["max_deliveries"]) == (30_000, 3)
    text = "\n".join(emails.lines("queue", "policy", "emails"))
    assert "backoff         1.0 s, doubled up to 1h, up to 20% less" in text
    assert "rate            100 in 1m" in text
    listed = emails.one("queue", "policy", "emails", "--backoff", "1s,10s,1m", "--rate", "0")
    assert (listed["backoff_ms"], listed["rate_count"]) == ([1000, 10_000, 60_000], 0)
    assert emails.one("queue", "policy", "emails", "--backoff", "0")["backoff_ms"] == []


def test_policy_drop_removes_all_rules(emails: Program) -> None:
    assert emails.lines("queue", "policy", "emails", "--drop") == [
        "group workers of stream emails has no rules"
    ]
    assert emails.json("queue", "ls") == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backoff", "soon"], "write 1s,10s,1m or 1s..1h"),
        (["--backoff", "1h..1s"], "write 1s,10s,1m or 1s..1h"),
        (["--rate", "100"], "write 100/1m"),
        (["--jitter", "10"], "--backoff 1s..1h"),
        (["--max-per-key", "2"], "goes with --order-by"),
        (["--drop", "--lease", "1m"], "no other option"),
    ],
)
def test_an_invalid_rule_is_wrong_usage(emails: Program, words: list[str], message: str) -> None:
    assert message in emails("queue", "policy", "emails", *words, code=2).stderr


def test_retention_is_set_shown_and_removed(emails: Program) -> None:
    def shown() -> list[str]:
        return emails.lines("queue", "retention", "emails")

    emails("queue", "retention", "emails", "--off")
    assert shown() == ["stream emails keeps all entries"]
    emails("queue", "retention", "emails", "--acked", "--max-length", "5", "--force")
    rules = emails.one("queue", "retention", "emails", "--max-age", "7d", "--latest", "to")
    assert (rules["max_age_ms"], rules["max_length"], rules["acked"]) == (604_800_000, 0, False)
    assert shown() == ["max age  7d", "latest   of each value of to"]
    emails("queue", "retention", "emails", "--off")
    assert shown() == ["stream emails keeps all entries"]
    for words in (["--off", "--acked"], ["--force"], ["--max-length", "0"]):
        emails("queue", "retention", "emails", *words, code=2)
    assert "none" in emails("queue", "retention", "none", code=1).stderr


def test_the_error_for_a_stream_without_a_group_explains_how_to_create_one(orders: Program) -> None:
    errors = orders("queue", "info", "orders:2025", code=1).stderr
    assert "has no group" in errors
    assert "kvstream queue policy orders:2025 --create --lease 30s" in errors
    orders("queue", "policy", "orders:2025", "--create", "--lease", "30s")
    assert orders.one("queue", "info", "orders:2025")["group"] == "workers"
    assert "no stream 'nothing'" in orders("queue", "info", "nothing", code=1).stderr


def test_the_group_must_be_named_if_there_are_several(emails: Program) -> None:
    emails("group", "create", "emails", "audit")
    assert emails.one("queue", "info", "emails")["group"] == "workers"  # the group with rules
    emails("queue", "policy", "emails", "--group", "audit", "--lease", "1m")
    assert "audit, workers" in emails("queue", "info", "emails", code=2).stderr
    assert emails.one("queue", "info", "emails", "--group", "audit")["group"] == "audit"


# --- dead letters ---------------------------------------------------------------------------------


def test_dead_ls_and_show_have_the_reason(emails: Program) -> None:
    rows = emails.json("dead", "ls", "emails")
    assert [(row["id"], row["fields"]["to"], row["reason"]) for row in rows] == [
        (ANN, "ann", "fatal"),
        (BOB, "bob", "fatal"),
    ]
    assert rows[0]["error"] == "ConnectionError: no such host"
    assert rows[0]["at"] == 1_700_000_006_000
    assert emails.json("dead", "ls", "emails:dead") == rows
    assert emails.json("dead", "ls", "emails", "--count", "1") == rows[:1]
    groups = emails.json("dead", "ls", "emails", "--by-error")
    assert sum(group["count"] for group in groups) == len(rows)
    newest = emails("dead", "ls", "emails", "--by-error", "--count", "1", "--json")
    assert (
        newest.stderr
        == f"looked at the newest 1 dead letter; go on with --after {rows[-1]['id']}\n"
    )
    older = emails.json("dead", "ls", "emails", "--by-error", "--after", rows[-1]["id"])
    assert [group["example"] for group in older] == [row["id"] for row in rows[-2::-1]]
    emails("dead", "ls", "emails", "--by-error", "--where", "a=b", code=2)
    emails("dead", "ls", "emails", "--after", "1-1", code=2)
    lines = emails.lines("dead", "show", "emails", ANN)
    assert "error       ConnectionError: no such host" in lines
    assert "fields      to=ann" in lines
    assert "  Traceback (most recent call last):" in lines
    assert emails.one("dead", "show", "emails", BOB)["traceback"] == ""
    missing = emails("dead", "show", "emails", ANN, "5-5", code=1)
    assert missing.stderr == "not found: 5-5\n"


def test_a_read_of_new_and_given_back_messages_has_no_unknown_numbers(emails: Program) -> None:
    reading = ("read", "emails", "--group", "workers", "--consumer", "w")
    (first,) = emails.json(*reading, "-n", "1")
    emails("nack", "emails", "workers", first["id"], "--mode", "silent")
    text = "\n".join(emails.lines(*reading, "-n", "2"))
    assert "deliveries" in text
    assert "never" not in text
    assert "unknown" not in text


@pytest.mark.parametrize(
    ("where", "found"),
    [("to=bob", [BOB]), ("dead:reason=fatal", [ANN, BOB]), ("dead:consumer=x", []), ("to=", [])],
)
def test_where_selects_the_same_letters_for_ls_and_redrive(
    emails: Program, where: str, found: list[str]
) -> None:
    code = 0 if found else 1
    rows = emails.json("dead", "ls", "emails", "--where", where, code=code)
    assert [row["id"] for row in rows] == found
    planned = emails.one("dead", "redrive", "emails", "--where", where, "--dry-run", code=code)
    assert (planned["moved"], planned["state"]) == (len(found), "dry-run")


def test_a_redrive_without_a_selection_is_a_dry_run(emails: Program) -> None:
    assert emails.lines("dead", "redrive", "emails") == [
        "2 dead letters would move (to emails 2); to move them, name IDs, --where or --all"
    ]
    assert counts_of(emails)["dead"] == 2


def test_a_redrive_moves_the_named_letters(emails: Program) -> None:
    assert emails.lines("dead", "redrive", "emails", BOB) == ["1 dead letter moved (to emails 1)"]
    assert [row["id"] for row in emails.json("dead", "ls", "emails")] == [ANN]
    done = emails.one("dead", "redrive", "emails", "--all", "--to", "later")
    assert (done["moved"], done["streams"], done["dead"]) == (1, {"later": 1}, "emails:dead")
    assert "no dead letters" in emails("dead", "ls", "emails").stderr
    assert emails.one("dead", "status", "emails")["state"] == "done"
    emails("dead", "redrive", "emails", "--all", code=1)
    assert counts_of(emails) | {"ready": 4, "dead": 0} == counts_of(emails)
    assert "--all moves all" in emails("dead", "redrive", "emails", ANN, "--all", code=2).stderr


def test_a_slow_redrive_continues_until_it_is_cancelled(emails: Program) -> None:
    words = ["dead", "redrive", "emails", "--all", "--rate", "1/1d", "--no-wait"]
    assert emails.lines(*words)[0].startswith("1 dead letter moved so far; the redrive goes on")
    assert emails.one("dead", "status", "emails")["state"] == "running"
    assert "is running" in emails(*words, code=1).stderr
    assert emails.lines("dead", "cancel", "emails") == ["the redrive is cancelled"]
    assert emails.lines("dead", "cancel", "emails", code=1) == ["no redrive runs"]
    assert counts_of(emails)["dead"] == 1


def test_a_redrive_with_a_rate_finally_moves_all(emails: Program) -> None:
    emails("dead", "redrive", "emails", "--all", "--rate", "1/50ms")
    until(lambda: emails.one("dead", "status", "emails")["state"] == "done")
    assert counts_of(emails)["dead"] == 0


def test_a_queue_without_dead_letters_is_reported(orders: Program) -> None:
    errors = orders("dead", "ls", "orders", code=1).stderr
    assert "queue 'orders' has no dead letters: there is no stream 'orders:dead'" in errors


def test_a_queue_has_no_dead_letters_yet(emails: Program) -> None:
    emails("queue", "put", "new", "to=ann")
    emails("dead", "redrive", "emails", "--all")
    for queue in ("new", "emails"):
        listed = emails("dead", "ls", queue)
        assert (listed.stdout, listed.stderr.strip()) == ("", "no dead letters")
        assert emails.json("dead", "ls", queue) == []
    emails("dead", "ls", "missing", code=1)


def test_dead_letters_of_a_shared_stream_are_those_of_each_queue(emails: Program) -> None:
    for name, number in (("a", 2), ("b", 1), ("c", 0)):
        emails("queue", "policy", name, "--dead-letter", "lost", "--create")
        for at in range(number):
            emails("queue", "put", name, f"n={at}")
            (entry,) = emails.json("read", name, "--group", "workers", "--consumer", "w")
            emails("nack", name, "workers", entry["id"], "--mode", "fatal")
    assert emails.one("queue", "retention", "a")["acked"] is True
    rows = {row["queue"]: row["dead"] for row in emails.json("queue", "ls")}
    assert rows == {"a": 2, "b": 1, "c": 0, "emails": 2}
    assert emails.one("queue", "info", "a")["dead"] == 2


def test_dead_ls_of_none_takes_the_name_of_priorities_and_of_dead_letters(emails: Program) -> None:
    emails("queue", "put", "new", "to=ann")
    emails("queue", "policy", "own", "--dead-letter", "lost", "--create")
    emails("queue", "policy", "plain", "--max-deliveries", "3", "--create")
    for name in ("new", "new:dead", "new:high", "own", "lost", "own:low", "plain:dead"):
        listed = emails("dead", "ls", name)
        assert (listed.stdout, listed.stderr.strip()) == ("", "no dead letters")
        assert emails.json("dead", "ls", name) == []
    for name in ("missing:dead", "missing:high", "own:other", "orders", "emails:dead:dead"):
        emails("dead", "ls", name, code=1)
    assert len(emails.json("dead", "ls", "emails:high")) == 2  # those of its queue


def test_the_library_and_queue_ls_count_the_same_dead_letters(emails: Program) -> None:
    with Jobs(emails.place[1]) as jobs:
        plain = jobs.task(name="plain")(_fail)
        own = jobs.task(name="own", max_in_flight=1)(_fail)
        jobs.task(name="none", max_in_flight=1, dead_letter="jobs:other")(_fail)
        stop = threading.Event()
        worker = threading.Thread(target=Worker(jobs).run, args=(stop,))
        worker.start()
        plain.with_options(priority="high").enqueue()
        for task in (plain, plain, own):
            task.enqueue()
        until(lambda: len(jobs.store.stream("jobs:dead").range()) == 4)
        stop.set()
        worker.join()
        assert [queue.info().dead for queue in jobs.queues()] == [3, 1, 0]
    rows = {row["queue"]: row["dead"] for row in emails.json("queue", "ls") if row["dead"]}
    assert rows == {"emails": 2, "jobs": 2, "jobs:high": 1, "jobs:own": 1}
    assert emails.one("queue", "info", "jobs")["dead"] == 2


def _fail() -> None:
    raise ValueError


# --- delayed messages and schedules ---------------------------------------------------------------


def test_delayed_messages_are_listed_moved_and_cancelled(emails: Program) -> None:
    (row,) = emails.json("delayed", "ls", "emails")
    assert (row["fields"], row["due_ms"]) == ({"to": "gil"}, 4_000_000_000_000)
    first = row["ticket"]
    assert emails.lines("delayed", "ls", "emails")[1].split()[0] == first
    (moved,) = emails.lines("delayed", "move", "emails", first, "--at", "2090-01-31")
    assert moved.startswith("@3789504000000-")
    errors = emails("delayed", "move", "emails", first, "--delay", "1h", code=1).stderr
    assert f"no delayed message {first}" in errors
    assert "new ticket" in errors
    assert "1 not found" in emails.lines("delayed", "cancel", "emails", first, code=1)[0]
    assert emails.lines("delayed", "cancel", "emails", moved) == ["1 delayed message cancelled"]
    assert emails.json("delayed", "ls", "emails") == []


def test_a_message_moved_to_now_is_added(emails: Program) -> None:
    (row,) = emails.json("delayed", "ls", "emails")
    emails("delayed", "move", "emails", row["ticket"], "--delay", "0")
    until(
        lambda: emails("queue", "resume", "emails") and not emails.json("delayed", "ls", "emails")
    )
    assert [row["fields"]["to"] for row in emails.json("queue", "peek", "emails")][-1] == "gil"


def test_a_wrong_ticket_is_wrong_usage(emails: Program) -> None:
    errors = emails("delayed", "cancel", "emails", ANN, code=2).stderr
    assert "is no ticket" in errors
    assert "in its stream already: use del" in errors


def test_many_delayed_messages_are_listed_in_pages(emails: Program) -> None:
    with kvstream.open(emails.place[1]) as store:
        queue = Queue(store, "emails")
        for number in range(1001):  # more than one page
            queue.put({"n": number}, delay=3600 + number)
    rows = emails.json("delayed", "ls", "emails")
    assert [row["fields"].get("n") for row in rows] == [*map(str, range(1001)), None]
    assert len(emails.json("delayed", "ls", "emails", "--count", "3")) == 3


@pytest.mark.places("store")
def test_a_schedule_that_fired_ahead_of_the_clock_is_named(emails: Program) -> None:
    assert emails("schedule", "ls").stderr == ""
    clock = ManualClock(4_000_000_000_000)
    with Store.open(emails.directory, durability="no", clock=clock) as store:
        store.stream("reports").schedule("early", "@every 10s", {"kind": "early"})
        clock.advance(10_000)
        until(lambda: len(store.stream("reports")) == 1)
    said = emails("schedule", "ls", "reports").stderr
    assert "'early' of 'reports' fired at 2096-10-02 07:06:50" in said
    assert "is silent until then: delete it and set it anew" in said


def test_schedules_are_set_listed_run_and_deleted(emails: Program) -> None:
    assert [row["name"] for row in emails.json("schedule", "ls")] == ["nightly"]
    made = emails.one(
        *("schedule", "set", "reports", "weekly", "0 6 * * 1", "kind=week", "--tz"),
        *("Europe/Berlin", "--misfire", "all", "--most", "3"),
    )
    assert (made["cron"], made["zone"], made["misfire"]) == ("0 6 * * 1", "Europe/Berlin", "all")
    assert made["next"] > 1_700_000_000_000
    assert made["fields"] == {"kind": "week"}
    rows = emails.json("schedule", "ls")
    assert {(row["stream"], row["name"]) for row in rows} == {
        ("emails", "nightly"),
        ("reports", "weekly"),
    }
    emails("schedule", "run", "reports", "weekly")
    (entry,) = emails.json("range", "reports")
    assert entry["fields"]["cron:name"] == "weekly"
    emails("schedule", "rm", "reports", "weekly")
    errors = emails("schedule", "run", "reports", "weekly", code=1).stderr
    assert "has no schedule 'weekly': it has none" in errors
    assert "it has nightly" in emails("schedule", "rm", "emails", "night", code=1).stderr
    assert emails("schedule", "set", "emails", "x", "not cron", "a=b", code=2).stderr


# --- top ------------------------------------------------------------------------------------------


def test_top_shows_queues_if_there_are_any(emails: Program) -> None:
    (shown,) = emails.json("top", "--once", "--match", "emails")
    (stream,) = shown["streams"]
    assert stream["delayed"] == 1
    queue = stream["groups"][0]["queue"]
    assert queue.pop("oldest_age_ms") > 9 * 10**10
    assert queue.pop("next_ms") > 0
    assert queue == {
        "ready": 3,
        "leased": 0,
        "waiting": 1,
        "held": 0,
        "dead": 2,
        "paused": False,
        "done": 2,
        "done_rate": None,
        "dead_letter": "",
    }
    lines = emails.lines("top", "--once")
    at = next(n for n, line in enumerate(lines) if line.startswith("stream "))
    assert lines[at].split()[2:8] == ["ready", "leased", "waiting", "dead", "oldest", "delayed"]
    assert lines[at + 1].split()[:6] == ["emails", "workers", "3", "0", "1", "2"]
    assert "1 delayed, 1 waiting, 2 dead" in lines[at - 1]


def test_top_without_queues_has_no_queue_columns(orders: Program) -> None:
    (shown,) = orders.json("top", "--once")
    assert all("delayed" not in stream for stream in shown["streams"])
    assert all("queue" not in group for each in shown["streams"] for group in each["groups"])


@pytest.fixture
def sampler(emails: Program) -> Iterator[Sampler]:
    """Create a sampler of ``top`` on the queue."""
    if not isinstance(emails, RemoteProgram):
        yield Sampler(DirectorySession(emails.directory).reading, "here")
        return
    with closing(RemoteEngine(emails.url)) as engine:
        yield Sampler(lambda: nullcontext(Store(engine, engine.db)), "here")


def test_top_shows_the_rate_of_done_messages(emails: Program, sampler: Sampler) -> None:
    before = sampler.sample()
    (entry,) = emails.json("read", "emails", "--group", "workers", "--consumer", "v", "-n", "1")
    emails("ack", "emails", "workers", entry["id"])  # dan, whose lease has ended
    after = replace(sampler.sample(), taken=before.taken + 2)
    stream = next(each for each in with_rates(after, before).streams if each.name == b"emails")
    assert stream.groups[0].queue is not None
    assert stream.groups[0].queue.done_rate == 0.5


@pytest.mark.parametrize("width", [60, 80, 120])
def test_queues_are_complete_in_top_on_terminals_of_any_width(width: int) -> None:
    queue = QueueSample(77_000, 856_000, 1_234, 7, 98, 12_000_000, False, 10, 345.0)
    group = GroupSample(b"workers", 3, None, 857_234, 90_000_000, queue)
    stream = StreamSample(b"mail" * 20, 10**6, 1, StreamID(1, 1), 10**9, [group], delayed=65_000)
    sample = Sample("here", 0.0, 1, None, [stream])
    drawn = view.live(sample, Screen("name"), width, 24).plain.splitlines()
    shown = set(" ".join(drawn).split())
    assert {"77,000", "856,000", "1,234", "98", "3h", "20m", "65,000"} <= shown
    assert all(cells(line) <= width for line in drawn)


def test_top_counts_shared_dead_letters_once() -> None:
    sample = Sample("here", 0.0, 1, None, [])
    for name, shared in ((b"a", b"lost"), (b"b", b"lost"), (b"c", b"")):
        queue = QueueSample(4, 0, 1, 0, 3, None, False, 0, dead_letter=shared)
        group = GroupSample(b"workers", 1, None, 0, None, queue)
        sample.streams.append(StreamSample(name, 4, 4, StreamID(1, 1), 0, [group]))
    assert view.head(sample)[-1] == (
        "3 streams, 3 groups   12 ready   0 pending   0 delayed, 3 waiting, 6 dead"
    )


def test_the_shell_completes_groups_and_schedules(emails: Program) -> None:
    if isinstance(emails, RemoteProgram):
        return
    for words, offered in (
        ("kvstream queue info emails --group w", ["plain,workers"]),
        ("kvstream schedule run emails n", ["plain,nightly"]),
        ("kvstream schedule ls em", ["plain,emails", "plain,emails:dead"]),
    ):
        env = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        env |= {"_KVSTREAM_COMPLETE": "bash_complete", "KVSTREAM_STORE": str(emails.directory)}
        done = CliRunner().invoke(main, env=env, prog_name="kvstream")
        assert done.stdout.split() == offered


@pytest.mark.places("redis")
def test_the_error_for_redis_says_that_it_has_no_queues(orders: Program) -> None:
    for words in (["queue", "info", "orders"], ["queue", "ls"], ["delayed", "ls", "orders"]):
        errors = orders(*words, code=1).stderr
        assert "is a command of kvstream" in errors
        assert len(errors.splitlines()) == 1
    (sample,) = orders.json("top", "--once")
    assert "delayed" not in sample["streams"][0]
