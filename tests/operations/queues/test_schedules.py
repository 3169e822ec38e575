"""KVSTREAM.SCHEDULE: each planned time adds its message once."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from kvstream import ManualClock, NoSuchKey, Store
from kvstream.engine import timer_thread
from kvstream.layout.keys import qualified
from kvstream.meta import timers
from kvstream.meta.txn import Txn
from kvstream.operations.queues import schedules
from kvstream.types import cron
from tests.opening import Stores
from tests.operations.queue_commands import error, ok, opened, step, values

NAME = qualified(0, b"s")
HOUR, DAY = 3_600_000, 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    """The clock starts at a full hour."""
    return ManualClock(1_700_002_800_000)


@pytest.fixture
def quiet(open_store: Stores, clock: ManualClock) -> Store:
    return opened(open_store)


def list_due(store: Store) -> list[int]:
    """Return ``cron:at`` of each message."""
    return [int(entry.fields[b"cron:at"]) for entry in store.stream("s")]


def set_every(store: Store, misfire: str = "", every: str = "10s", name: str = "job") -> int:
    """Set a schedule whose cron expression has blanks, which ``run`` would split."""
    rule, _, most = misfire.partition(" ")

    def operation(txn: Txn) -> schedules.Schedule:
        return schedules.set_schedule(
            *(txn, NAME, name.encode(), f"@every {every}", [b"n", b"1"]),
            misfire=schedules.Misfire(rule or "ONCE"),
            most=int(most or 1),
        )

    made = store.engine.run(operation)
    return made.next_ms


def test_a_schedule_that_fired_ahead_of_the_clock_says_that_it_is_silent(
    quiet: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    set_every(quiet)
    clock.advance(HOUR)
    step(quiet)
    set_every(quiet)
    assert caplog.messages == []
    clock.advance(-HOUR)
    next_ms = set_every(quiet)
    assert next_ms > clock.ms + HOUR
    (said,) = caplog.messages
    assert "'job' of stream 's' fired while the clock was ahead: it is silent for 3600 s" in said
    ok(quiet, "KVSTREAM.SCHEDULE DEL s job")
    assert set_every(quiet) == clock.ms + 10_000
    assert len(caplog.messages) == 1


def test_a_schedule_adds_a_message_at_each_time(quiet: Store, clock: ManualClock) -> None:
    start = clock.ms
    assert ok(quiet, "KVSTREAM.SCHEDULE SET s job @hourly FIELDS n 1 m 2") == start + HOUR
    clock.advance(HOUR - 1)
    step(quiet)
    assert list_due(quiet) == []
    for hour in (1, 2, 3):
        clock.ms = start + hour * HOUR
        step(quiet)
        step(quiet)
        assert list_due(quiet) == [start + n * HOUR for n in range(1, hour + 1)]
    assert quiet.stream("s").range(count=1)[0].flat == (
        *(b"n", b"1", b"m", b"2", b"cron:name", b"job"),
        *(b"cron:at", b"%d" % (start + HOUR)),
    )
    shown = ok(quiet, "KVSTREAM.SCHEDULE LIST s")
    assert [(each["next"], each["last"]) for each in shown] == [(clock.ms + HOUR, clock.ms)]


def test_the_store_s_own_thread_fires_a_schedule(store: Store, clock: ManualClock) -> None:
    group = store.stream("s").create_group("g", mkstream=True)
    set_every(store)
    clock.advance(10_000)
    assert [entry.fields[b"n"] for entry in group.consumer("c").read(block=30)] == [b"1"]


@pytest.mark.parametrize(
    ("misfire", "late_ms", "expected"),
    [
        ("SKIP", 0, [60]),
        ("SKIP", 4999, [60]),
        ("SKIP", 5001, []),
        ("ONCE", 5001, [60]),
        ("ONCE", 0, [60]),
        ("ALL 3", 0, [40, 50, 60]),
        ("ALL 3", 7000, [40, 50, 60]),
        ("ALL 1000", 0, [10, 20, 30, 40, 50, 60]),
    ],
)
def test_times_that_passed_while_the_store_was_closed_follow_the_misfire_rule(
    open_store: Stores, clock: ManualClock, misfire: str, late_ms: int, expected: list[int]
) -> None:
    store, start = opened(open_store), clock.ms
    set_every(store, misfire)
    store.close()
    clock.advance(60_000 + late_ms)
    store = opened(open_store)
    step(store)
    assert list_due(store) == [start + at * 1000 for at in expected]
    clock.ms = start + 70_000
    step(store)
    assert list_due(store) == [start + at * 1000 for at in [*expected, 70]]


def test_years_without_the_store_are_skipped_quickly(
    open_store: Stores, clock: ManualClock
) -> None:
    store = opened(open_store)
    set_every(store, "ALL 5", "1s")
    clock.advance(3 * 365 * DAY)
    step(store)
    assert list_due(store) == [clock.ms - n * 1000 for n in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("day", "times"),
    [
        ((2026, 3, 28), ["28 02:30", "29 03:00", "30 02:30"]),
        ((2026, 10, 24), ["24 02:30", "25 02:30", "26 02:30"]),
    ],
)
def test_days_of_clock_changes_have_one_message_each(
    quiet: Store, clock: ManualClock, day: tuple[int, int, int], times: list[str]
) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    clock.ms = int(datetime(*day, tzinfo=berlin).timestamp() * 1000)
    set_schedule, fields = schedules.set_schedule, [b"n", b"1"]
    quiet.engine.run(set_schedule, NAME, b"night", "30 2 * * *", fields, "Europe/Berlin")
    for _ in range(3 * 24 * 4):
        clock.advance(HOUR // 4)
        step(quiet)
    shown = [datetime.fromtimestamp(at / 1000, berlin) for at in list_due(quiet)]
    assert [f"{at:%d %H:%M}" for at in shown] == times


def test_a_clock_set_back_repeats_no_time(quiet: Store, clock: ManualClock) -> None:
    start = clock.ms
    set_every(quiet)
    clock.advance(10_000)
    step(quiet)
    clock.advance(-8000)
    step(quiet)
    clock.ms = start + 12_000
    step(quiet)
    assert list_due(quiet) == [start + 10_000]


def test_a_schedule_set_again_keeps_its_next_time(quiet: Store, clock: ManualClock) -> None:
    first = set_every(quiet)
    clock.advance(15_000)
    assert set_every(quiet) == first, "a worker that starts again hides no missed time"
    step(quiet)
    assert list_due(quiet) == [first]
    assert set_every(quiet, every="20s") == first + 10_000
    assert len(ok(quiet, "KVSTREAM.SCHEDULE LIST s")) == 1


def test_a_deleted_schedule_fires_no_more(quiet: Store, clock: ManualClock) -> None:
    set_every(quiet)
    set_every(quiet, name="other", every="15s")
    assert ok(quiet, "KVSTREAM.SCHEDULE DEL s job") == 1
    assert ok(quiet, "KVSTREAM.SCHEDULE DEL s job") == 0
    assert ok(quiet, "KVSTREAM.SCHEDULE DEL none job") == 0
    clock.advance(20_000)
    step(quiet)
    assert values(quiet, field=b"cron:name") == ["other"]


def test_run_adds_a_message_now_and_leaves_the_next_time(quiet: Store, clock: ManualClock) -> None:
    due_ms = set_every(quiet)
    clock.advance(3000)
    assert ok(quiet, "KVSTREAM.SCHEDULE RUN s job") == b"%d-0" % clock.ms
    assert list_due(quiet) == [clock.ms]
    assert ok(quiet, "KVSTREAM.SCHEDULE LIST s")[0]["next"] == due_ms
    assert error(quiet, "KVSTREAM.SCHEDULE RUN s nojob") == "no such schedule 'nojob'"
    with pytest.raises(NoSuchKey):
        quiet.engine.run(schedules.run_schedule, qualified(0, b"none"), b"job")


def test_all_settings_are_shown(quiet: Store, clock: ManualClock) -> None:
    ok(quiet, "KVSTREAM.SCHEDULE SET s b @daily TZ Europe/Berlin MISFIRE ALL 7 FIELDS n 1")
    ok(quiet, "KVSTREAM.SCHEDULE SET s a @weekly MISFIRE SKIP FIELDS n 1 n 2")
    found = ok(quiet, "KVSTREAM.SCHEDULE LIST s")
    assert [each.pop("next") > clock.ms for each in found] == [True, True]
    assert [list(each.values()) for each in found] == [
        [b"a", b"@weekly", b"UTC", b"SKIP", 1, 0, b"", [b"n", b"1", b"n", b"2"]],
        [b"b", b"@daily", b"Europe/Berlin", b"ALL", 7, 0, b"", [b"n", b"1"]],
    ]
    assert list(found[0]) == ["name", "cron", "zone", "misfire", "most", "last", "error", "fields"]
    assert ok(quiet, "KVSTREAM.SCHEDULE LIST none") == []


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("SET s job @hourly", "wrong number of arguments"),
        ("SET s job @hourly FIELDS n", "wrong number of arguments"),
        ("SET s job @hourly FIELDS n 1 m", "needs fields and values"),
        ("SET s job @hourly TZ FIELDS n 1", "syntax error"),
        ("SET s job @hourly TZ Mars/Base FIELDS n 1", "the time zone 'Mars/Base' is unknown"),
        ("SET s job @never FIELDS n 1", "the cron expression '@never' is wrong"),
        ("SET s job @hourly MISFIRE SOME FIELDS n 1", "the misfire rule must be SKIP, ONCE, or"),
        ("SET s job @hourly MISFIRE ALL FIELDS n 1", "MISFIRE ALL needs the most messages"),
        ("SET s job @hourly MISFIRE ALL 0 FIELDS n 1", "MISFIRE ALL must be 1 to 1000, not 0"),
        ("SET s job @hourly MISFIRE ALL 1001 FIELDS n 1", "MISFIRE ALL must be 1 to 1000"),
        ("SET s job @hourly FIELDS cron:at 1", "the field cron:at is set by the schedule itself"),
    ],
)
def test_wrong_schedules_are_refused_and_change_nothing(
    quiet: Store, command: str, text: str
) -> None:
    assert text in error(quiet, f"KVSTREAM.SCHEDULE {command}")
    assert not quiet.exists("s")


def test_a_failing_schedule_shows_the_error_and_stops_only_itself(
    quiet: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(quiet, "KVSTREAM.SCHEDULE SET s berlin @hourly TZ Europe/Berlin FIELDS n 1")
    ok(quiet, "KVSTREAM.SCHEDULE SET s utc @hourly FIELDS n 1")
    cron.parse.cache_clear()
    # The time zone no longer exists.
    monkeypatch.setattr("zoneinfo.ZoneInfo", dict[str, str]().__getitem__)
    clock.advance(HOUR)
    step(quiet)
    assert values(quiet, field=b"cron:name") == ["utc"]
    berlin, utc = ok(quiet, "KVSTREAM.SCHEDULE LIST s")
    assert (berlin["next"], utc["error"]) == (0, b"")
    assert b"the time zone 'Europe/Berlin' is unknown" in berlin["error"]
    monkeypatch.undo()
    ok(quiet, "KVSTREAM.SCHEDULE SET s berlin @hourly TZ Europe/Berlin FIELDS n 1")
    clock.advance(HOUR)
    step(quiet)
    assert sorted(values(quiet, field=b"cron:name")) == ["berlin", "utc", "utc"]


def test_many_schedules_of_one_time_take_several_steps(quiet: Store, clock: ManualClock) -> None:
    for number in range(130):
        set_every(quiet, "ALL 20", name=f"job{number:03}")
    clock.advance(200_000)
    sizes, before = [], 0
    while quiet.engine.run(timer_thread.run_due, 500):
        sizes.append(len(quiet.stream("s")) - before)
        before += sizes[-1]
    assert sum(sizes) == 130 * 20
    assert max(sizes) <= schedules.STEP_MESSAGES + 20
    assert len(set(zip(values(quiet, field=b"cron:name"), list_due(quiet), strict=True))) == 2600


def test_a_damaged_schedule_is_found_and_removed(quiet: Store, clock: ManualClock) -> None:
    set_every(quiet)
    set_every(quiet, name="other")

    def damage(txn: Txn) -> None:
        stream = txn.stream(NAME)
        assert stream is not None
        timers.put_row(txn, stream, b"Sjob", b"\xc1")
        timers.take(txn, stream, clock.ms + 10_000, timers.Kind.CRON, b"other")

    quiet.engine.run(damage)
    assert len(quiet.check(repair=True)) == 2
    assert quiet.check() == []
    clock.advance(10_000)
    step(quiet)
    assert values(quiet, field=b"cron:name") == ["other"]
