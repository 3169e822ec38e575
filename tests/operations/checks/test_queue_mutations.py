"""Damage any row of a queue in any way: each call returns, or raises an error of ours.

As in test_mutations.py, whose store has no queue. No timer fires by itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kvstream import ManualClock, Queue, Store, Ticket
from kvstream.engine import timer_thread
from kvstream.layout.keys import qualified, timer_row, tree_prefix
from kvstream.meta import policy, timers
from kvstream.meta.keyed import ENTRY, HELD, KEY, Counts
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import HELD_MS, Run
from kvstream.meta.timers import Kind
from kvstream.operations import delayed, unique
from kvstream.operations.images import copy
from kvstream.operations.queues import image, redrive, retention, schedules
from kvstream.types.thresholds import Thresholds
from tests.opening import Stores
from tests.operations.checks.mutating import Call, Damaged, Target, target_of
from tests.operations.checks.seeding import METADATA, TREES, Rows

JOBS, DEAD, GROUP = b"jobs", b"jobs:dead", b"workers"
NAME, DEAD_NAME = qualified(0, JOBS), qualified(0, DEAD)


def _queue(store: Store) -> Queue:
    return Queue(store, JOBS, consumer="ann")


def fill(store: Store, clock: ManualClock) -> None:
    """Use every feature of queues that writes rows."""
    rules: dict[str, Any] = {"max_deliveries": 3, "backoff": [60], "rate": (100, 60)}
    queue = Queue(store, JOBS, consumer="ann", order_by="user", lease=30, keep=False, **rules)
    (stream,) = queue.streams()
    queue.put_many([{"n": n, "user": "abcabdee"[n % 8]} for n in range(16)])
    _, failed, fatal, *_ = queue.get(4)
    failed.nack(error="no")
    fatal.nack(fatal=True, error="never")
    queue.put_many([{"n": n} for n in range(4)])
    for message in queue.get(100)[-4:]:
        message.nack(fatal=True)
    queue.put({"n": 0}, unique="done")
    queue.get()[0].ack()
    queue.put({"n": 0}, unique="last")
    queue.put({"n": 1}, delay=60, ttl=60, unique="later")
    queue.put({"n": 2}, delay=90)
    queue.put({"n": 3}, ttl=60, unique="window", window=600)
    stream.schedule("nightly", "0 3 * * *", {"kind": "report"}, tz="Europe/Berlin")
    stream.set_retention(acked=True, max_age=3600, latest="n")
    store.engine.run(retention.run, NAME)
    letters = queue.dead()
    queue.redrive(*letters[:3], rate=(1, 60))
    stream.create_group("later", "$")
    latest = store.stream("latest")
    latest.add_many([{"n": n % 3} for n in range(9)])
    latest.set_retention(latest="n")
    store.engine.run(retention.run, qualified(0, b"latest"))


def targets(store: Store) -> dict[str, Target]:
    """Return one row of each kind that queues write."""
    rows = Rows(store)
    jobs, dead, latest = (rows.stream(key) for key in (JOBS, DEAD, b"latest"))
    group = rows.group_of(jobs, GROUP)
    assert group.policy is not None
    runs = {run: run for run in (Run.decode(*row) for row in rows.tree(group.runs.id))}

    def within(tree: int, suffix: bytes, *free: str, **how: Any) -> Target:
        key = next(key for key, _ in rows.tree(tree) if key.startswith(suffix))
        found = target_of(TREES, tree_prefix(tree) + key, **how)
        return replace(found, free=frozenset(free), may_miss="row" in free)

    def timer(stream: StreamMeta, kind: Kind, *free: str, **how: Any) -> Target:
        (first, *_) = (each for each in timers_of(rows, stream) if each.kind == kind)
        return within(stream.queue_tree, timers.suffix_of(*first[:3]), *free, **how)

    def row(stream: StreamMeta, suffix: bytes, *free: str, **how: Any) -> Target:
        return within(stream.queue_tree, suffix, *free, **how)

    def keyed(suffix: bytes, *free: str, **how: Any) -> Target:
        assert group.policy is not None
        return within(group.policy.keyed_tree, suffix, *free, **how)

    def run(wanted: Callable[[Run], bool]) -> Target:
        anchor = next(run.anchor for run in runs if wanted(run))
        return within(
            *(group.runs.id, anchor, "deliveries", "packed", "time_ms", "rank", "row"),
            decode=lambda value: Run.decode(anchor, value),
        )

    def of_stream(value: bytes) -> object:
        """Return what is of queues; the time of the first timer may be too early."""
        stream = StreamMeta.decode(jobs.name, value)
        return stream.queue_tree, max(stream.due_at, jobs.due_at)

    def of_delayed(value: bytes) -> unique.Row:
        """Return a unique row; an entry that is done may be its holder as well."""
        row = unique.decode(b"later", value)
        return row if isinstance(row.holder, Ticket) else row._replace(holder=sound.holder)

    later = next(v for k, v in rows.tree(jobs.queue_tree) if k == unique.ROW_TAG + b"later")
    sound = unique.decode(b"later", later)
    return {
        "a stream": target_of(METADATA, jobs.row, decode=of_stream),
        "a stream by its first timer": target_of(METADATA, timer_row(jobs.due_at, jobs.name)),
        "a group": target_of(
            TREES,
            group.row,
            decode=lambda value: GroupMeta.decode(GROUP, group.row, value),
            free={"last_delivered", "entries_read", "nack_rank", "activity", "policy", "rated"},
        ),
        "a run": run(lambda run: run.owned),
        "a run that waits": run(lambda run: run.waits and run.time_ms != HELD_MS),
        "a run that is held": run(lambda run: run.time_ms == HELD_MS),
        "an entry with a key": keyed(ENTRY),
        "a key": keyed(KEY, "first", decode=Counts.decode),
        "a held entry": keyed(HELD),
        "a delayed message": timer(jobs, Kind.DELAYED, "ttl_ms", "value", decode=delayed.decode),
        "a retry": timer(jobs, Kind.RETRY, "all"),
        "the time of a schedule": timer(jobs, Kind.CRON, "all"),
        "the time of retention": timer(jobs, Kind.RETENTION, "all"),
        "the time of a reaping": timer(jobs, Kind.REAP, "all"),
        "the time of a redrive": timer(dead, Kind.REDRIVE, "all"),
        "the end of a life": timer(jobs, Kind.EXPIRED, "all", "row"),
        "the end of a unique ID": timer(jobs, Kind.UNIQUE, "all"),
        "the number of delayed messages": row(jobs, delayed.COUNT_ROW),
        "a start": row(jobs, unique.START_TAG, "all", "row"),
        "rules": row(jobs, policy.RULES_ROW, "all", "row"),
        "the next retention": row(jobs, policy.TIMER_ROW),
        "the next reaping": row(jobs, policy.REAP_ROWS),
        "a cursor": row(latest, policy.CURSOR_ROW, "all", "row"),
        "a latest entry": row(latest, policy.LATEST_ROWS, "all", "row"),
        "a schedule": row(jobs, schedules.ROW_TAG, "all", "row"),
        "a unique ID": row(jobs, unique.ROW_TAG + b"last", "all", "row"),
        "a unique ID of a delayed message": row(
            jobs, unique.ROW_TAG + b"later", "until_ms", "row", decode=of_delayed
        ),
        "a redrive": row(dead, redrive.JOB, "all", "row"),
        "the letters of a redrive": row(dead, redrive.IDS, "all", "row"),
    }


def timers_of(rows: Rows, stream: StreamMeta) -> list[timers.Timer]:
    tree = rows.tree(stream.queue_tree)
    return [timers.decode(*row) for row in tree if row[0].startswith(timers.TIMER)]


def _put(**options: Any) -> Call:
    return lambda store: _queue(store).put({"n": 1, "user": "a"}, **options)


def _each(call: Callable[[Any], object]) -> Call:
    """Settle each message that can be had: the ones at hand, and new ones."""
    return lambda store: [call(message) for message in _queue(store).get(100)]


def _later(store: Store) -> None:
    """Let all that is due within a day happen."""
    clock = store.engine.clock
    assert isinstance(clock, ManualClock)
    before = clock.ms
    try:
        for _ in range(4):
            clock.advance(6 * 3_600_000)
            while store.engine.run(timer_thread.run_due, 100):
                pass
            _queue(store).get(100)
    finally:
        clock.ms = before


def _image(store: Store) -> None:
    for name in (NAME, DEAD_NAME):
        rows, _ = store.engine.run(image.page, name, b"", 1000)
        store.engine.run(image.restore, name, rows)


def _of_stream(call: Callable[[Any], object]) -> Call:
    return lambda store: call(store.stream(JOBS))


def _of_delayed(call: Callable[[Any, Any], object]) -> Call:
    return lambda store: [
        call(store.stream(JOBS), each.ticket) for each in store.stream(JOBS).delayed()
    ]


CALLS: dict[str, Call] = {
    "put": _put(),
    "put later": _put(delay=5),
    "put for a while": _put(ttl=5),
    "put once": _put(unique="new"),
    "put done": _put(unique="done"),
    "put last": _put(unique="last", on_conflict="replace"),
    "put last after": _put(unique="last", on_conflict="after"),
    "put in a window": _put(unique="window", window=5),
    "put one that is delayed": _put(unique="later", delay=5, on_conflict="debounce"),
    "replace one that is delayed": _put(unique="later", on_conflict="replace"),
    "get": lambda store: _queue(store).get(100),
    "ack": _each(lambda message: message.ack()),
    "nack": _each(lambda message: message.nack()),
    "nack later": _each(lambda message: message.nack(delay=5)),
    "nack for good": _each(lambda message: message.nack(fatal=True)),
    "extend": _each(lambda message: message.extend()),
    "ack by ID": _of_stream(lambda s: s.group(GROUP).ack(_pending(s))),
    "nack by ID": _of_stream(lambda s: s.group(GROUP).nack(_pending(s))),
    "claim": _of_stream(lambda s: s.group(GROUP).claim("bob", _pending(s))),
    "a day": _later,
    "info": lambda store: _queue(store).info(),
    "purge": lambda store: _queue(store).purge(),
    "pause": lambda store: _queue(store).pause(),
    "resume": lambda store: _queue(store).resume(),
    "groups": _of_stream(lambda s: (s.groups(), s.group(GROUP).info(), s.group(GROUP).backlog())),
    "policy": _of_stream(lambda s: s.group(GROUP).policy()),
    "order by another field": _of_stream(lambda s: s.group(GROUP).set_policy(order_by="n")),
    "order by none": _of_stream(lambda s: s.group(GROUP).set_policy(order_by="")),
    "more of a key": _of_stream(
        lambda s: s.group(GROUP).set_policy(order_by="user", max_per_key=2)
    ),
    "reap others": _of_stream(lambda s: s.group(GROUP).set_policy(reap=1)),
    "remove a consumer": _of_stream(lambda s: s.group(GROUP).remove_consumer("ann")),
    "delete a consumer": _of_stream(lambda s: s.group(GROUP).delete_consumer("ann")),
    "seek": _of_stream(lambda s: s.group(GROUP).set_id("0")),
    "destroy": _of_stream(lambda s: s.group(GROUP).destroy()),
    "delayed": _of_stream(lambda s: (s.delayed(), s.delayed_count())),
    "move": _of_delayed(lambda s, ticket: s.move(ticket, delay=7)),
    "cancel": _of_delayed(lambda s, ticket: s.cancel(ticket)),
    "schedules": _of_stream(lambda s: s.schedules()),
    "schedule": _of_stream(lambda s: s.schedule("nightly", "0 4 * * *", {"kind": "report"})),
    "run a schedule": _of_stream(lambda s: s.run_schedule("nightly")),
    "delete a schedule": _of_stream(lambda s: s.delete_schedule("nightly")),
    "retention": _of_stream(lambda s: s.retention()),
    "set retention": _of_stream(lambda s: s.set_retention(max_length=3, force=True)),
    "drop retention": _of_stream(lambda s: s.drop_retention()),
    "retain": lambda store: store.engine.run(retention.run, NAME),
    "retain the latest": lambda store: store.engine.run(retention.run, qualified(0, b"latest")),
    "retain by changes": lambda store: store.engine.run(retention.check_changed_streams),
    "other latest": lambda store: store.stream("latest").set_retention(latest="m"),
    "dead letters": lambda store: _queue(store).dead(),
    "redrive": lambda store: (_queue(store).cancel_redrive(), _queue(store).redrive()),
    "redrive in vain": lambda store: _queue(store).redrive(dry_run=True),
    "redrive status": lambda store: _queue(store).redrive_status(),
    "trim": _of_stream(lambda s: s.trim(maxlen=2)),
    "delete entries": _of_stream(lambda s: s.delete([e.id for e in s.range()][::2])),
    "delete": lambda store: store.delete(JOBS, DEAD),
    "rename": lambda store: store.rename(JOBS, "other"),
    "rename over": lambda store: store.rename(JOBS, DEAD),
    "copy": lambda store: store.engine.run(copy.copy, NAME, qualified(0, b"other")),
    "copy dead": lambda store: store.engine.run(copy.copy, DEAD_NAME, NAME, replace=True),
    "image": _image,
    "flush": lambda store: store.flush(),
}


def _pending(stream: Any) -> list[Any]:
    return [each.id for each in stream.group(GROUP).pending_range(count=1000)]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    clock = ManualClock()
    stores = Stores(tmp_path_factory.mktemp("queue-mutations"), clock)
    store = stores("store", Thresholds(cycle_pause_s=3600))  # no sweep in the background
    store.engine.timers.paused = True
    fill(store, clock)
    store.sync()
    assert store.check() == []
    yield Damaged(store, targets(store))
    stores.finish()


TITLES = (
    *("a stream", "a stream by its first timer", "a group", "a run", "a run that waits"),
    *("a run that is held", "an entry with a key", "a key", "a held entry", "a delayed message"),
    *("a retry", "the time of a schedule", "the time of retention", "the time of a reaping"),
    *("the time of a redrive", "the end of a life", "the end of a unique ID"),
    *("the number of delayed messages", "a start", "rules", "the next retention"),
    *("the next reaping", "a cursor", "a latest entry", "a schedule", "a unique ID"),
    *("a unique ID of a delayed message", "a redrive", "the letters of a redrive"),
)


def test_every_kind_of_row_is_damaged(damaged: Damaged) -> None:
    assert list(damaged.targets) == list(TITLES)
    assert {name: damaged.outcome(call) for name, call in CALLS.items()} == dict.fromkeys(CALLS)


@pytest.mark.parametrize("title", TITLES)
def test_each_call_on_a_damaged_row_returns_or_raises_an_error_of_ours(
    damaged: Damaged, title: str
) -> None:
    assert damaged.foreign_errors(title, CALLS) == []


@pytest.mark.parametrize("title", TITLES)
def test_a_check_reports_each_damaged_row_and_a_repair_does_what_it_reports(
    damaged: Damaged, title: str
) -> None:
    assert damaged.unseen_and_unmended(title) == ([], [])
