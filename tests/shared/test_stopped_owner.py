"""An owner of a shared store whose process is stopped: calls end in time, and say what is known."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kvstream
import kvstream.shared.engine
from kvstream import Queue, ServerUnavailable, Store, StoreError, UnknownOutcome
from tests.patience import PATIENCE_S, until
from tests.shared.conftest import Holder, kill

WAIT_S = 0.3
Start = Callable[[], Holder]


@pytest.fixture(autouse=True)
def short_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvstream.shared.engine, "REPLY_S_MIN", WAIT_S)


def shared(directory: Path, wait_s: float = WAIT_S) -> Store:
    return kvstream.open(directory, shared=True, durability="no", wait_s=wait_s)


def stop(owner: Holder) -> None:
    """Stop the process of an owner; return once it has stopped, some time after the signal."""
    os.kill(owner.pid, signal.SIGSTOP)
    state = Path(f"/proc/{owner.pid}/stat")
    until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")


@contextmanager
def stopped(owner: Holder) -> Iterator[None]:
    stop(owner)
    try:
        yield
    finally:
        os.kill(owner.pid, signal.SIGCONT)


def raised(call: Callable[[], Any]) -> StoreError:
    """Return the error of a call, which comes in a fraction of the timeout of a server's reply."""
    errors: list[StoreError] = []

    def run() -> None:
        with pytest.raises(StoreError) as caught:
            call()
        errors.append(caught.value)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(kvstream.remote.connection.REPLY_S / 2)
    assert errors, "the call takes too long"
    return errors[0]


WRITES: dict[str, Callable[[Store], Any]] = {
    "add": lambda store: store.stream("s").add({"n": 1}),
    "add with an ID": lambda store: store.stream("s").add({"n": 1}, id="5-5"),
    "add with idmp": lambda store: store.stream("s").add({"n": 1}, idmp=("p", "1")),
    "add_many": lambda store: store.stream("s").add_many([{"n": 1}]),
    "ack": lambda store: store.stream("s").group("g").ack("1-1"),
    "claim": lambda store: store.stream("s").group("g").claim("c", "1-1"),
    "put": lambda store: Queue(store, "q", keep=True).put({"n": 1}),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_has_an_unknown_outcome(directory: Path, holder: Start, name: str) -> None:
    owner = holder()
    with shared(directory) as store:
        store.stream("s").add({"n": 0}, id="1-1")
        store.stream("s").create_group("g", "0")
        with stopped(owner):
            assert type(raised(lambda: WRITES[name](store))) is UnknownOutcome
        key = "q" if name == "put" else "s"
        wanted = 1 if name in ("put", "ack", "claim") else 2
        until(lambda: len(store.stream(key)) == wanted)


def test_reads_and_openings_find_no_owner(directory: Path, holder: Start) -> None:
    owner = holder()
    with shared(directory) as store:
        with stopped(owner):
            assert type(raised(lambda: len(store.stream("s")))) is ServerUnavailable
            assert type(raised(lambda: store.stream("s").read(block=PATIENCE_S))) is (
                ServerUnavailable
            )
            assert type(raised(lambda: shared(directory))) is ServerUnavailable
        until(lambda: store.size() == 0)


def test_threads_wait_for_a_stopped_owner_at_the_same_time(directory: Path, holder: Start) -> None:
    owner, errors = holder(), list[StoreError]()
    with shared(directory) as store, stopped(owner):
        threads = [
            threading.Thread(
                target=lambda: errors.append(raised(lambda: len(store.stream("s")))), daemon=True
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [ServerUnavailable] * 8


def test_a_transaction_says_whether_its_end_was_sent(directory: Path, holder: Start) -> None:
    owner = holder()

    def commit(store: Store, inside: Callable[[], Any]) -> None:
        with store.transaction():
            store.stream("s").add({"n": 1})
            inside()

    with shared(directory) as store:
        with pytest.raises(UnknownOutcome):
            commit(store, lambda: stop(owner))
        os.kill(owner.pid, signal.SIGCONT)
        until(lambda: len(store.stream("s")) == 1)
        with stopped(owner):
            assert type(raised(lambda: commit(store, lambda: None))) is ServerUnavailable
        assert len(store.stream("s")) == 1


def test_a_listener_goes_on_with_its_owner_or_the_next(
    directory: Path, holder: Start, caplog: pytest.LogCaptureFixture
) -> None:
    owner = holder()
    got: list[Any] = []
    stop = threading.Event()

    def listen() -> None:
        for message in Queue(store, "q").listen(poll=0.05, stop=stop):
            message.ack()
            got.append(message.fields[b"n"])

    with shared(directory) as store, shared(directory, PATIENCE_S) as other:
        queue = Queue(other, "q")
        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        queue.put({"n": 1})
        until(lambda: got == [b"1"])
        with stopped(owner):
            until(lambda: "is away, and is waited for" in caplog.text)
        queue.put({"n": 2})
        until(lambda: got == [b"1", b"2"])
        kill(owner)
        queue.put({"n": 3})
        until(lambda: got == [b"1", b"2", b"3"])
        stop.set()
        listener.join(PATIENCE_S)
        assert not listener.is_alive()
