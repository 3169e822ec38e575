"""Blocking commands: what they wait for, what they return, and that nothing is lost.

The store's clock moves only when the test advances it; BLOCK uses the machine's clock.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from kvstream.commands.command import Blocked
from kvstream.commands.table import find
from kvstream.engine.engine import Engine
from tests.commands.conftest import Say, speaker, words
from tests.commands.dispatcher import Dispatcher
from tests.patience import PATIENCE_S, until

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


@pytest.mark.parametrize(
    "options", ["BLOCK 0", "COUNT 1 BLOCK 0", "BLOCK 0 COUNT 1", "count 9 block 0"]
)
def test_a_read_waits_wherever_its_options_stand(ask: Ask, say: Say, options: str) -> None:
    say("XADD s 1-1 f v")
    future = ask(f"XREAD {options} STREAMS s 1-1")
    assert not future.done()
    say("XADD s 2-1 f v")
    assert reply_of(future) == [[b"s", [entry("2-1", "f", "v")]]]


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
