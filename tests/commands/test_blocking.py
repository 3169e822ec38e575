"""Blocking commands: what they wait for, what they return, and that nothing is lost.

The store's clock moves only when the test advances it; BLOCK uses the machine's clock.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from kvstream import ManualClock
from kvstream.commands.command import Blocked
from kvstream.commands.table import find
from kvstream.engine.engine import Engine
from tests.commands.conftest import Say, speaker, words
from tests.commands.dispatcher import Dispatcher
from tests.patience import PATIENCE_S, until

NO_GROUP = "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"
Ask = Callable[[str], "Future[Any]"]


@pytest.fixture
def engine(dispatcher: Dispatcher) -> Engine:
    return dispatcher.engine


@pytest.fixture
def ask(engine: Engine) -> Iterator[Ask]:
    """Run a command that will wait, in a thread of its own; return when it waits."""
    pool = ThreadPoolExecutor(max_workers=8)

    def run(line: str) -> "Future[Any]":
        waiting = engine.run(lambda txn: len(engine.waiters))  # none being served
        future = pool.submit(speaker(Dispatcher(engine)), line)
        until(lambda: len(engine.waiters) != waiting or future.done(), f"{line} to wait or answer")
        return future

    yield run
    pool.shutdown(wait=False)


def reply_of(future: "Future[Any]") -> Any:
    return future.result(timeout=PATIENCE_S)


def entry(eid: str, *flat: str) -> list[Any]:
    return [eid.encode(), [part.encode() for part in flat]]


def test_a_read_that_finds_something_does_not_wait(say: Say) -> None:
    say("XADD s 1-1 f v")
    assert say("XREAD BLOCK 0 STREAMS s 0") == [[b"s", [entry("1-1", "f", "v")]]]


def test_a_read_that_may_not_wait_returns_null(say: Say) -> None:
    began = time.monotonic()
    assert say("XREAD STREAMS s $") is None
    assert say("XREAD BLOCK 30 STREAMS s $") is None
    assert time.monotonic() - began >= 0.03


@pytest.mark.parametrize(
    "options", ["BLOCK 0", "COUNT 1 BLOCK 0", "BLOCK 0 COUNT 1", "count 9 block 0"]
)
def test_a_read_waits_wherever_its_options_stand(ask: Ask, say: Say, options: str) -> None:
    say("XADD s 1-1 f v")
    future = ask(f"XREAD {options} STREAMS s 1-1")
    assert not future.done()
    say("XADD s 2-1 f v")
    assert reply_of(future) == [[b"s", [entry("2-1", "f", "v")]]]


@pytest.mark.parametrize("options", ["COUNT 1 BLOCK -1", "BLOCK -1 COUNT 1", "BLOCK -1"])
def test_a_wrong_timeout_is_refused_although_there_are_entries(say: Say, options: str) -> None:
    say("XADD s 1-1 f v")
    say("XGROUP CREATE s g 0")
    for read in ("XREAD {} STREAMS s 0", "XREADGROUP GROUP g c {} STREAMS s >"):
        assert say(read.format(options)) == "ERR timeout is negative"
        unreadable = options.replace("-1", "x")
        assert say(read.format(unreadable)) == "ERR timeout is not an integer or out of range"


@pytest.mark.parametrize("noack", ["", " NOACK"])
@pytest.mark.parametrize(
    "options", ["BLOCK 0", "COUNT 1 BLOCK 0", "BLOCK 0 COUNT 1", "count 9 block 0"]
)
def test_a_read_of_a_group_waits_wherever_its_options_stand(
    ask: Ask, say: Say, options: str, noack: str
) -> None:
    say("XGROUP CREATE s g $ MKSTREAM")
    future = ask(f"XREADGROUP GROUP g c {options}{noack} STREAMS s >")
    assert not future.done()
    say("XADD s 2-1 f v")
    assert reply_of(future) == [[b"s", [entry("2-1", "f", "v")]]]
    assert say("XPENDING s g")[0] == (0 if noack else 1)


def test_one_append_serves_every_reader_of_the_key(ask: Ask, say: Say) -> None:
    futures = [ask("XREAD BLOCK 0 STREAMS s $") for _ in range(3)]
    say("XADD s 5-5 f v")
    assert [reply_of(future) for future in futures] == [[[b"s", [entry("5-5", "f", "v")]]]] * 3


def test_the_dollar_is_resolved_when_the_command_arrives(ask: Ask, say: Say) -> None:
    say("XADD s 5-0 f v")
    future = ask("XREAD BLOCK 0 STREAMS other s $ $")
    say("XADD s 6-0 f v")
    assert reply_of(future) == [[b"s", [entry("6-0", "f", "v")]]]


def test_plus_waits_for_the_first_entry_of_an_empty_stream(ask: Ask, say: Say) -> None:
    say("XADD s 5-0 f v")
    say("XDEL s 5-0")
    future = ask("XREAD BLOCK 0 STREAMS s +")
    say("XADD s 6-0 f v")
    assert reply_of(future) == [[b"s", [entry("6-0", "f", "v")]]]
    assert say("XREAD BLOCK 0 STREAMS s +") == [[b"s", [entry("6-0", "f", "v")]]]


def test_a_read_keeps_waiting_when_its_key_is_deleted(ask: Ask, say: Say) -> None:
    say("XADD s 100-0 f v")
    future = ask("XREAD BLOCK 0 STREAMS s 100-0")
    say("DEL s")
    assert not future.done()
    say("XADD s 101-0 f v")
    assert reply_of(future) == [[b"s", [entry("101-0", "f", "v")]]]


def test_an_entry_deleted_in_the_same_turn_wakes_no_client(
    ask: Ask, say: Say, engine: Engine
) -> None:
    future = ask("XREAD BLOCK 0 STREAMS s 666")
    with engine.transaction():
        say("XADD s 667 f v")
        say("XDEL s 667")
    assert not future.done()
    with engine.transaction():
        say("XADD s 668 f v")
        say("XADD s 669 f v")
    assert reply_of(future) == [[b"s", [entry("668-0", "f", "v"), entry("669-0", "f", "v")]]]


def test_consumers_of_a_group_are_served_in_the_order_of_their_arrival(ask: Ask, say: Say) -> None:
    say("XGROUP CREATE s g $ MKSTREAM")
    first = ask("XREADGROUP GROUP g c1 COUNT 1 BLOCK 0 STREAMS s >")
    second = ask("XREADGROUP GROUP g c2 COUNT 1 BLOCK 0 STREAMS s >")
    say("XADD s 1-0 f v")
    assert reply_of(first) == [[b"s", [entry("1-0", "f", "v")]]]
    assert not second.done()
    say("XADD s 2-0 f v")
    assert reply_of(second) == [[b"s", [entry("2-0", "f", "v")]]]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("DEL s", NO_GROUP),
        ("FLUSHALL", NO_GROUP),
        ("FLUSHDB", NO_GROUP),
        ("XGROUP DESTROY s g", NO_GROUP),
        ("RENAME s t", NO_GROUP),
        ("RENAME bare s", NO_GROUP),
        ("PEXPIRE s 0", NO_GROUP),
        ("RENAME full s", [[b"s", [entry("9-9", "f", "v")]]]),
    ],
)
def test_a_waiting_consumer_gets_an_error_when_its_group_is_deleted(
    line: str, answer: object, ask: Ask, say: Say
) -> None:
    say("XGROUP CREATE s g $ MKSTREAM")
    say("XADD bare 1-1 f v")
    say("XADD full 9-9 f v")
    say("XGROUP CREATE full g 0")
    future = ask("XREADGROUP GROUP g c BLOCK 0 STREAMS s >")
    say(line)
    assert reply_of(future) == answer


def test_a_missing_group_is_an_error_at_once(say: Say) -> None:
    assert say("XREADGROUP GROUP g c BLOCK 0 STREAMS s >") == NO_GROUP


def test_history_never_waits(say: Say) -> None:
    say("XGROUP CREATE s g $ MKSTREAM")
    assert say("XREADGROUP GROUP g c BLOCK 0 STREAMS s 0") == [[b"s", []]]


@pytest.mark.filterwarnings("ignore:block does not wait")
def test_no_command_waits_inside_a_transaction(say: Say, engine: Engine) -> None:
    say("XGROUP CREATE s g $ MKSTREAM")
    with engine.transaction():
        assert say("XREAD BLOCK 0 STREAMS s $") is None
        assert say("XREADGROUP GROUP g c BLOCK 0 STREAMS s >") is None
        assert say("XADD s 1-1 f v") == b"1-1"
        assert say("XREADGROUP GROUP g c BLOCK 0 STREAMS s >") is not None
        assert say("XREADGROUP GROUP nog c BLOCK 0 STREAMS s >").startswith("NOGROUP")
    assert say("XPENDING s g")[0] == 1


def test_the_changes_of_a_failed_transaction_are_undone(say: Say, engine: Engine) -> None:
    def append_and_fail() -> None:
        with engine.transaction():
            assert say("XADD s 1-1 f v") == b"1-1"
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        append_and_fail()
    assert say("EXISTS s") == 0


def test_a_claiming_reader_is_woken_when_an_entry_has_been_pending_long_enough(
    ask: Ask, say: Say, clock: ManualClock
) -> None:
    say("XADD s 1-1 f v")
    say("XGROUP CREATE s g 0")
    say("XREADGROUP GROUP g dead STREAMS s >")
    future = ask("XREADGROUP GROUP g c BLOCK 0 CLAIM 1000 STREAMS s >")
    clock.advance(999)
    time.sleep(0.05)
    assert not future.done()
    clock.advance(1)
    assert reply_of(future) == [[b"s", [[*entry("1-1", "f", "v"), 1000, 1]]]]


def test_a_claiming_reader_is_woken_by_an_entry_given_back(ask: Ask, say: Say) -> None:
    say("XADD s 1-1 f v")
    say("XGROUP CREATE s g 0")
    say("XREADGROUP GROUP g dead STREAMS s >")
    future = ask("XREADGROUP GROUP g c BLOCK 0 CLAIM 100000 STREAMS s >")
    assert say("XNACK s g FAIL IDS 1 1-1") == 1
    assert reply_of(future)[0][1][0][:2] == entry("1-1", "f", "v")


def test_a_blocking_handler_returns_its_wait_as_a_value(dispatcher: Dispatcher) -> None:
    say = speaker(dispatcher)
    say("XGROUP CREATE s g $ MKSTREAM")
    argv = words("XREADGROUP GROUP g c BLOCK 250 CLAIM 1000 STREAMS s >")
    wait = dispatcher.engine.run(find(argv).run, dispatcher.session, argv)
    assert isinstance(wait, Blocked)
    assert wait.names == [b"\x00\x00s"]
    assert wait.timeout_ms == 250
    assert wait.retry_at is not None
    assert dispatcher.engine.run(wait.retry_at) == dispatcher.engine.clock.now_ms() + 1000
    assert dispatcher.engine.run(wait.attempt) is None
    say("XADD s 1-1 f v")
    assert dispatcher.engine.run(wait.attempt) is not None


def test_no_append_is_lost_between_the_first_try_and_the_wait(engine: Engine) -> None:
    appends = 200

    def append() -> None:
        say = speaker(Dispatcher(engine))
        for number in range(1, appends + 1):
            say(f"XADD s {number} f v")

    writer = threading.Thread(target=append)
    say = speaker(Dispatcher(engine))
    seen, last = 0, "0"
    writer.start()
    while seen < appends:
        reply = say(f"XREAD COUNT 1 BLOCK 10000 STREAMS s {last}")
        assert reply is not None, f"nothing came after {last}"
        seen += 1
        last = reply[0][1][0][0].decode()
        assert last == f"{seen}-0"
    writer.join()
