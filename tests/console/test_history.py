"""The samples that the console keeps in the store, and the plots of them."""

import threading
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import redis

import kvstream
from kvstream import Jobs, ManualClock, Queue, Store, StoreReadOnly
from kvstream.console import Console, User, app
from kvstream.console.history import plots, recorder, samples, taking
from kvstream.console.history.recorder import Recorder, record
from kvstream.console.history.samples import FINEST, SPANS, Sample, read, write
from kvstream.console.listing import Listings, is_internal
from kvstream.console.logins.passwords import PasswordLogin
from kvstream.console.replies import API
from kvstream.engine.engine import Engine
from kvstream.operations import strings
from kvstream.types.urls import has_login
from tests.console.browser import Browser
from tests.console.conftest import REAL_START
from tests.patience import until
from tests.server.conftest import Served, redis_port, redis_process, serve, served

__all__ = ["redis_port", "redis_process", "serve", "served"]

START_MS = 1_700_006_400_000
"""A whole hour."""
CALLS_MAX = 60
"""Calls of one sample, whatever the store has."""


def sample(store: Store, clock: ManualClock, listings: Listings | None = None) -> bool:
    """Take the sample of the next step."""
    clock.ms += FINEST.step_ms - clock.ms % FINEST.step_ms
    return record(store, listings or Listings())


def test_a_sample_has_queues_groups_letters_and_jobs(full: Store, clock: ManualClock) -> None:
    assert sample(full, clock)
    full.stream("orders").add_many([{"sku": "b"}] * 7)
    Queue(full, "emails", consumer="w1", max_deliveries=3).get(1)[0].nack(fatal=True, error="x")
    assert sample(full, clock)
    first, last = read(full, FINEST, clock.ms)
    assert last.at_ms - first.at_ms == FINEST.step_ms
    orders = last.values[b"sorders"]
    assert (orders["added"], orders["waiting"]) == (127, 57)
    assert first.values[b"sorders"]["added"] == 120
    assert last.values[b"semails"]["failed"] == 1
    assert b"semails:dead" not in last.values
    points = plots.points_of([first, last], [b"sorders"], "added", FINEST, clock.ms)
    assert list(points[-2:]) == [None, 7]


def test_a_step_has_one_sample_whoever_takes_it(full: Store, clock: ManualClock) -> None:
    """Two consoles of one store: the second reads one entry, and nothing more."""
    assert sample(full, clock)
    assert not record(full, Listings())
    assert not write(full, clock.ms - clock.ms % FINEST.step_ms, {b"sx": {"waiting": 1}})
    assert len(full.stream(FINEST.key)) == 1


def test_coarser_steps_are_merged_and_all_are_bounded(store: Store, clock: ManualClock) -> None:
    clock.ms = START_MS
    steps = 2 * SPANS[-1].step_ms // FINEST.step_ms
    for at in range(1, steps + 1):
        clock.ms = START_MS + at * FINEST.step_ms
        figures = {"added": 3 * at, "waiting": at % 50, "failed": 1}
        assert write(store, clock.ms, {b"sq": figures})
    found = {span.title: read(store, span, clock.ms) for span in SPANS}
    assert {title: len(rows) for title, rows in found.items()} == {
        **{"15m": 91, "2h": 120, "1d": 8, "1w": 2}
    }
    assert found["1w"][-1] == Sample(
        START_MS + 2 * 3_600_000, {b"sq": {"added": 3 * steps, "waiting": 49, "failed": 360}}
    )
    per_hour = plots.points_of(found["1w"], [b"sq"], "added", SPANS[-1], clock.ms)
    assert list(per_hour[-2:]) == [None, 3 * 360]
    for span in SPANS:
        assert len(store.stream(span.key)) <= span.rows + 1
        assert is_internal(span.key)


def test_what_was_not_sampled_is_a_gap_and_not_a_zero(store: Store, clock: ManualClock) -> None:
    clock.ms = START_MS
    for at in (0, 1, 2, 7, 8):
        write(store, START_MS + at * FINEST.step_ms, {b"sq": {"added": 10 * at, "waiting": at}})
    clock.ms = START_MS + 8 * FINEST.step_ms
    rows = read(store, FINEST, clock.ms)
    waiting = plots.points_of(rows, [b"sq"], "waiting", FINEST, clock.ms)
    assert list(waiting[-9:]) == [0, 1, 2, None, None, None, None, 7, 8]
    # the average of the gap, not all of it at once
    added = plots.points_of(rows, [b"sq"], "added", FINEST, clock.ms)
    assert list(added[-9:]) == [None, 10, 10, None, None, None, None, 10, 10]
    # a stream that was made anew
    write(store, clock.ms + FINEST.step_ms, {b"sq": {"added": 1}})
    clock.ms += FINEST.step_ms
    rows = read(store, FINEST, clock.ms)
    assert plots.points_of(rows, [b"sq"], "added", FINEST, clock.ms)[-1] is None


def test_scales_are_round() -> None:
    assert [plots._top(each, False) for each in (0, 2, 3, 9, 11, 400, 401)] == [
        *(2, 2, 4, 10, 20, 400, 1000)
    ]
    assert [plots._top(each, True) for each in (0, 900, 59_000, 90_000_000)] == [
        *(100, 1000, 60_000, 172_800_000)
    ]


def test_pages_show_them_without_scripts_and_after_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A second console of the same directory, which has seen nothing, draws the same."""
    clock.ms = START_MS
    with Store.open(tmp_path / "s", durability="no", clock=clock) as store:
        queue = Queue(store, "emails", max_deliveries=1)
        queue.get()
        for at in range(12):
            queue.put_many([{"to": "ann"}] * (at + 1))
            sample(store, clock)
        shown = Browser(app(store, auth=lambda _: User("ann"))).page("/queues/emails").text
    with Store.open(tmp_path / "s", durability="no", clock=clock) as store:
        browser = Browser(app(store, auth=lambda _: User("ann")))
        page = browser.page("/queues/emails")
        assert page.text == shown
        assert "Waiting 78" in page.text
        labels = [
            value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")
        ]
        assert "Waiting: 78 now, at most 78 in the last 15m" in labels
        assert "Added: 12 now, at most 12 in the last 15m" in labels
        for path in ("/", "/streams/emails", "/jobs"):
            for past in ("15m", "2h", "1d", "1w", "nonsense"):
                browser.page(f"{path}?past={past}")
        assert "kvstream:samples" not in browser.get("/streams").text
        assert store.check() == []


def test_the_cost_of_a_sample_is_bounded(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(60):
        queue = Queue(store, f"q{at}", max_deliveries=1)
        queue.get()
        queue.put({"n": "1"})
        queue.get()[0].nack(fatal=True)
    for at in range(30):
        store.stream("jobs:ended").add({"status": "done", "task": f"t{at}"})
        store.stream(f"jobs:ended:done:t{at}").add_many([{"id": "x", "took": "5"}] * 70)
    listings, calls = Listings(), list[Any]()
    listings.get(store)
    run = Engine.run

    def counting_run(engine: Engine, *args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return run(engine, *args, **kwargs)

    monkeypatch.setattr(Engine, "run", counting_run)
    assert sample(store, clock, listings)
    assert taking.STREAMS + taking.DEAD <= len(calls) <= CALLS_MAX
    calls.clear()
    assert not record(store, listings)
    assert len(calls) == 1


def test_durations_and_ends_of_jobs_are_sampled(clock: ManualClock) -> None:
    jobs = Jobs("unused", shared=False)

    @jobs.task
    def add(a: int) -> int:
        if a < 0:
            raise ValueError("negative")
        return a

    with jobs.test(start_ms=START_MS) as testing:
        for at in (1, 2, -1):
            add.enqueue(at)
        testing.clock.advance(FINEST.step_ms)
        assert record(jobs.store, Listings())
        (found,) = read(jobs.store, FINEST, testing.clock.ms)
        figures = found.values[b"jjobs"]
        assert (figures["done"], figures["failed"]) == (2, 1)
        assert {"median_ms", "slowest_ms"} <= figures.keys()
        shown = Browser(app(jobs, auth=lambda _: User("ann"))).page("/jobs").text
        assert "Failed in each 10s 1" in shown


def test_the_console_records_while_it_runs(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "start", REAL_START)
    monkeypatch.setattr(recorder, "FINEST", FINEST._replace(step_ms=20))
    console = app(full, auth=lambda _: User("ann"))
    try:
        assert not full.exists(FINEST.key)
        Browser(console).get("/")
        until(lambda: full.exists(FINEST.key))
        assert sum(each.name == "kvstream-samples" for each in threading.enumerate()) == 1
    finally:
        console.close()
    assert not [each for each in threading.enumerate() if each.name == "kvstream-samples"]


def test_a_console_that_may_not_write_records_nothing(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "start", REAL_START)
    console = app(full, auth=lambda _: User("ann"), read_only=True)
    text = Browser(console).page("/queues/emails").text
    assert not [each for each in threading.enumerate() if each.name == "kvstream-samples"]
    assert "Waiting" not in text


def test_a_store_that_refuses_writes_is_left_alone(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not each page makes a thread that reads all again, only to be refused."""
    tried: list[int] = []

    def refuse(*_: object) -> bool:
        tried.append(1)
        raise StoreReadOnly("this is a replica")

    monkeypatch.setattr(Recorder, "start", REAL_START)
    monkeypatch.setattr(recorder, "FINEST", FINEST._replace(step_ms=20))
    monkeypatch.setattr(recorder, "record", refuse)
    console = app(full, auth=lambda _: User("ann"))
    try:
        browser = Browser(console)
        browser.get("/")
        until(lambda: bool(tried))
        for _ in range(3):
            browser.get("/streams")
        assert len(tried) == 1
        assert console.recorder._thread is not None
        assert console.recorder._thread.is_alive()
    finally:
        console.close()


def test_a_sample_that_hangs_does_not_keep_the_program(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def hang(*_: object) -> bool:
        begun.set()
        return goes_on.wait()

    monkeypatch.setattr(recorder, "ENDING_S", 0.01)
    monkeypatch.setattr(recorder, "record", hang)
    console = app(full, auth=lambda _: User("ann"))
    with console.place.reading():
        REAL_START(console.recorder)
    assert begun.wait(60)
    console.close()
    thread = console.recorder._thread
    assert thread is not None
    assert thread.daemon
    assert thread.is_alive()
    goes_on.set()
    thread.join(60)
    assert not thread.is_alive()


def test_samples_are_kept_by_a_server(served: Served, clock: ManualClock) -> None:
    with kvstream.open(f"redis://127.0.0.1:{served.port}") as store:
        Queue(store, "emails").put({"to": "ann"})
        Queue(store, "emails").get()
        hour_ms = SPANS[-1].step_ms
        now_ms = (store.now_ms() // hour_ms - 1) * hour_ms
        for at in range(-40, 1):
            assert write(store, now_ms + at * FINEST.step_ms, {b"sq": {"added": at + 40}})
        assert not write(store, now_ms, {b"sq": {"added": 1}})
        assert [len(read(store, span, now_ms)) for span in SPANS] == [41, 7, 1, 1]
        assert record(store, Listings())
        assert read(store, FINEST, store.now_ms())[-1].values[b"semails"]["in_work"] == 1


def test_a_redis_gets_no_samples(redis_port: int) -> None:
    with kvstream.open(f"redis://127.0.0.1:{redis_port}") as store:
        stream = store.stream("orders")
        stream.add({"sku": "a"})
        stream.create_group("g", "0")
        record(store, Listings())
        assert [each.key for each in store.key_infos()] == [b"orders"]


def test_values_of_strangers_in_samples_do_no_harm(store: Store, clock: ManualClock) -> None:
    store.stream(samples.FINEST.key).add(
        {b"sq": b"waiting=x =3 \xff added oldest_ms=" + b"9" * 5000}, f"{clock.ms}-0"
    )
    (found,) = read(store, FINEST, clock.ms)
    assert found.values == {b"sq": {}}
    store.delete(samples.FINEST.key)
    store.run(strings.put, samples.FINEST.key, b"x")
    browser = Browser(app(store, auth=lambda _: User("ann")))
    for path in ("/", "/queues", "/jobs", "/streams"):
        browser.get(path)


SAMPLER = "on >s1 +@read +@connection +@transaction +info +time +xadd %R~* ~kvstream:samples:*"
"""The rights that the docs name for the console itself."""


def test_each_user_sees_samples_of_the_own_streams(served: Served) -> None:
    """Under --auth acl the console writes and reads them with a name of its own."""
    with redis.Redis(port=served.port) as admin:
        for name, rules in {
            "sampler": SAMPLER,
            "ann": "on >a1 +@all ~* &*",
            "bob": "on >b1 +@read +@connection ~orders* ~none*",
        }.items():
            admin.execute_command("ACL", "SETUSER", name, *rules.split())
        for name, count in (("orders", 5), ("secrets", 7)):
            admin.xgroup_create(name, "workers", "0", mkstream=True)
            for _ in range(count):
                admin.xadd(name, {"a": "1"})
        admin.xadd("none:ended", {"status": "done", "task": "t"})
        admin.xadd("jobs:ended", {"status": "done", "task": "t"})
        url = f"redis://sampler:s1@127.0.0.1:{served.port}"
        console = Console(url, PasswordLogin(url, "c"))
        try:
            REAL_START(console.recorder)
            until(lambda: admin.exists(FINEST.key) == 1)
            assert admin.execute_command("ACL", "LOG") == []
            for name, waiting in (("ann", 12), ("bob", 5)):
                given = b64encode(f"{name}:{name[0]}1".encode()).decode()
                program = {"authorization": f"Basic {given}"}
                browser = Browser(console, **program)

                def figures(path: str, browser: Browser = browser) -> dict[str, Any]:
                    found = browser.get(f"{API}{path}").json()["history"]["figures"]
                    return {each["name"]: each["values"][-1] for each in found}

                assert figures("/overview")["waiting"] == waiting
                assert figures("/streams/orders")["waiting"] == 5
                assert figures("/jobs?name=none")["done"] == 0
            browser.get(f"{API}/streams/secrets", 403)
            hidden = browser.ask("GET", f"{API}/jobs?name=jobs")
            assert hidden.status_code == 403 or hidden.json()["history"] is None
        finally:
            console.close()


def test_a_refused_sample_is_told_once(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "REFUSED_MS", 20)
    with redis.Redis(port=served.port) as admin:
        admin.execute_command("ACL", "SETUSER", "eve", "on", ">e1", "+@read", "+@connection", "~*")
        admin.xadd("orders", {"a": "1"})
        admin.xgroup_create("orders", "g", "0")
        url = f"redis://eve:e1@127.0.0.1:{served.port}"
        console = Console(url, PasswordLogin(url, "c"))
        try:
            REAL_START(console.recorder)
            until(lambda: len(admin.execute_command("ACL", "LOG")) > 0)
            until(lambda: "a sample was refused" in caplog.text)
            refused = int(admin.execute_command("ACL", "LOG")[0][b"count"])
            until(lambda: int(admin.execute_command("ACL", "LOG")[0][b"count"]) > refused)
        finally:
            console.close()
        assert caplog.text.count("a sample was refused") == 1


@pytest.mark.parametrize(
    ("url", "has"),
    [
        ("redis://h:1/2", False),
        ("redis://u:p@h", True),
        ("redis://:p@h/0", True),
        ("redis://h/?username=a&password=b", True),
        ("redis://h/0?client_name=a@b", False),
        ("redis+sentinel://u:p@h1,h2:3/m/1", True),
    ],
)
def test_a_url_has_a_login_or_none(url: str, has: bool) -> None:
    assert has_login(url) is has
