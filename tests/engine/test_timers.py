"""Timers of streams: each fires once when due, after any change of its stream."""

from collections.abc import Callable
from random import Random

import pytest

from kvstream import ManualClock, Store
from kvstream.engine import timer_thread
from kvstream.layout.keys import qualified
from kvstream.meta import timers
from kvstream.meta.records import StreamMeta
from kvstream.meta.timers import Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.types.thresholds import Thresholds
from tests.opening import Stores
from tests.patience import until

NAME = qualified(0, b"s")


class Fired(list[tuple[bytes, bytes]]):
    """The (stream, rest) of each timer of kind RETRY that has fired."""

    def __call__(self, txn: Txn, name: bytes, stream: StreamMeta, due: list[Timer]) -> None:
        self.extend((name[2:], timer.rest) for timer in due)


@pytest.fixture
def fired(quiet: Store) -> Fired:
    fired = Fired()
    quiet.engine.timers.kinds = {Kind.RETRY: fired}
    return fired


@pytest.fixture
def quiet(open_store: Stores) -> Store:
    """A store whose timer thread does nothing: the test makes the steps."""
    store = open_store("own", Thresholds(failed_pause_s=0.01, damaged_pause_s=0.2))
    store.engine.timers.paused = True
    return store


def put(store: Store, at_ms: int, rest: bytes, key: str = "s") -> None:
    def operation(txn: Txn) -> None:
        stream = txn.stream(qualified(0, key.encode()))
        assert stream is not None
        timers.put(txn, stream, at_ms, Kind.RETRY, rest, b"value of " + rest)

    if not store.exists(key):
        store.stream(key).create_group("g", mkstream=True)
    store.engine.run(operation)


def step(store: Store, limit: int = 100) -> int:
    return store.engine.run(timer_thread.run_due, limit, (), store.engine.timers.kinds)


def test_a_timer_fires_once_when_due(quiet: Store, clock: ManualClock, fired: Fired) -> None:
    now = clock.now_ms()
    put(quiet, now + 10, b"second")
    put(quiet, now + 5, b"first")
    assert step(quiet) == 0
    clock.advance(9)
    assert (step(quiet), fired) == (1, [(b"s", b"first")])
    clock.advance(1)
    assert (step(quiet), step(quiet)) == (1, 0)
    assert fired == [(b"s", b"first"), (b"s", b"second")]
    assert quiet.check() == []


def test_the_thread_fires_a_timer_on_its_own(
    quiet: Store, clock: ManualClock, fired: Fired
) -> None:
    quiet.engine.timers.paused = False
    put(quiet, clock.now_ms() + 50, b"x")
    clock.advance(50)
    until(lambda: fired == [(b"s", b"x")], "the timer to fire")


def test_a_removed_timer_does_not_fire(quiet: Store, clock: ManualClock, fired: Fired) -> None:
    at_ms = clock.now_ms() + 5
    put(quiet, at_ms, b"x")

    def operation(txn: Txn) -> tuple[bytes | None, bytes | None]:
        stream = txn.stream(NAME)
        assert stream is not None
        taken = [timers.take(txn, stream, at_ms, Kind.RETRY, b"x") for _ in range(2)]
        return taken[0], taken[1]

    assert quiet.engine.run(operation) == (b"value of x", None)
    clock.advance(5)
    assert step(quiet) == 1  # it finds nothing and sets the time again
    assert (step(quiet), fired) == (0, [])
    assert quiet.check() == []


def test_a_step_fires_at_most_its_limit_of_timers(
    quiet: Store, clock: ManualClock, fired: Fired
) -> None:
    for number in range(250):
        put(quiet, clock.now_ms() + number % 7, b"%03d" % number)
    clock.advance(7)
    assert [step(quiet) for _ in range(4)] == [100, 100, 50, 0]
    assert [rest for _, rest in fired] == sorted(
        [rest for _, rest in fired], key=lambda rest: (int(rest) % 7, rest)
    )
    assert quiet.check() == []


@pytest.mark.parametrize(
    ("change", "fires"),
    [
        (lambda store: store.rename("s", "t"), [(b"t", b"x")]),
        (lambda store: store.delete("s"), []),
        (lambda store: store.flush(), []),
        (lambda store: store.copy("s", "t"), [(b"s", b"x")]),
    ],
    ids=["RENAME moves it", "DEL", "FLUSHDB", "COPY leaves it"],
)
def test_timers_are_moved_and_deleted_with_their_stream(
    quiet: Store,
    clock: ManualClock,
    fired: Fired,
    change: Callable[[Store], object],
    fires: Fired,
) -> None:
    put(quiet, clock.now_ms() + 5, b"x")
    change(quiet)
    assert quiet.check() == []
    clock.advance(5)
    step(quiet)
    step(quiet)
    assert fired == fires
    assert quiet.check() == []


def test_a_new_stream_does_not_inherit_timers(
    quiet: Store, clock: ManualClock, fired: Fired
) -> None:
    put(quiet, clock.now_ms() + 5, b"old")
    quiet.flush()
    put(quiet, clock.now_ms() + 9, b"new")
    clock.advance(5)
    step(quiet)
    assert fired == []
    clock.advance(4)
    step(quiet)
    assert fired == [(b"s", b"new")]


def test_timers_survive_a_restart(open_store: Stores, clock: ManualClock, fired: Fired) -> None:
    store = open_store("restarted")
    put(store, clock.now_ms() + 5, b"x")
    store = open_store.reopen(store)
    store.engine.timers.kinds = {Kind.RETRY: fired}
    clock.advance(5)
    store.engine.timers.wake()
    until(lambda: fired == [(b"s", b"x")], "the timer to fire")
    assert store.check() == []


def test_a_failing_step_is_undone_and_repeated(quiet: Store, clock: ManualClock) -> None:
    tries: list[bytes] = []

    def fire(txn: Txn, name: bytes, stream: StreamMeta, found: list[Timer]) -> None:
        tries.append(found[0].rest)
        if len(tries) == 1:
            raise RuntimeError("once")

    quiet.engine.timers.kinds = {Kind.RETRY: fire}
    put(quiet, clock.now_ms(), b"x")
    with pytest.raises(RuntimeError, match="once"):
        step(quiet)
    assert (step(quiet), step(quiet)) == (1, 0)
    assert tries == [b"x", b"x"]


def test_random_timers_fire_in_order(quiet: Store, clock: ManualClock, fired: Fired) -> None:
    random = Random(7)
    left: list[tuple[int, bytes]] = []
    expected: list[bytes] = []
    for number in range(300):
        at_ms = clock.now_ms() + random.randrange(40)
        put(quiet, at_ms, b"%05d" % number)
        left.append((at_ms, b"%05d" % number))
        if random.random() < 0.2:
            clock.advance(random.randrange(20))
            while step(quiet, 7):
                pass
            due_now = sorted(each for each in left if each[0] <= clock.now_ms())
            left = [each for each in left if each[0] > clock.now_ms()]
            expected += [rest for _, rest in due_now]
            assert [rest for _, rest in fired] == expected
    assert quiet.check() == []


def test_check_finds_a_time_that_is_too_late_and_repairs_it(
    quiet: Store, clock: ManualClock, fired: Fired
) -> None:
    put(quiet, clock.now_ms() + 5, b"x")

    def too_late(txn: Txn) -> None:
        stream = txn.stream(NAME)
        assert stream is not None
        timers.set_due(txn, stream, clock.now_ms() + 5000)

    quiet.engine.run(too_late)
    assert [fault.message.partition(":")[0] for fault in quiet.check(repair=True)] == [
        "the time of the first timer is wrong"
    ]
    assert quiet.check() == []
    clock.advance(5)
    step(quiet)
    assert fired == [(b"s", b"x")]


def test_the_thread_survives_an_exception(quiet: Store, clock: ManualClock) -> None:
    tries: list[bytes] = []

    def fire(txn: Txn, name: bytes, stream: StreamMeta, found: list[Timer]) -> None:
        tries.append(found[0].rest)
        if len(tries) == 1:
            raise ZeroDivisionError("a bug")

    quiet.engine.timers.kinds = {Kind.RETRY: fire}
    quiet.engine.timers.paused = False
    put(quiet, clock.now_ms(), b"x")
    until(lambda: tries == [b"x", b"x"], "the second try")


def test_damaged_timers_of_one_stream_hold_up_no_other(
    quiet: Store, clock: ManualClock, fired: Fired
) -> None:
    store, now = quiet, clock.now_ms()
    store.engine.timers.paused = False
    put(store, now + 5, b"x", "damaged")
    put(store, now + 6, b"y", "sound")

    def damage(txn: Txn) -> None:
        stream = txn.stream(qualified(0, b"damaged"))
        assert stream is not None
        timers.put(txn, stream, now + 4, 99, b"unknown")

    store.engine.run(damage)
    clock.advance(10)
    until(lambda: fired == [(b"sound", b"y")], "the timer of the other stream")
    store.engine.timers.kinds = {Kind.RETRY: fired, 99: lambda *_: None}
    until(lambda: (b"damaged", b"x") in fired, "another try")
