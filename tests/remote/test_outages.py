"""Listeners go on by themselves when their server comes back."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

import kvstream
import kvstream.aio
from kvstream import AccessDenied, KVStreamError, LeaseLost, NoGroup, Queue, Store
from kvstream.aio import AsyncQueue
from tests.network import Harm, Proxy
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.serving import ServerProcess

POLL_S = 0.05
LOGGER = "kvstream.engine.lease_renewal"


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    port = int(url.rpartition(":")[2])
    with closing(Proxy(("127.0.0.1", port))) as made:
        yield made


@pytest.fixture
def direct(url: str) -> Iterator[Store]:
    """The store without the proxy, with a stream, its group, and a queue."""
    with kvstream.open(url) as store:
        store.stream("s").create_group("g")
        yield store


def of_queue(store: Store, stop: threading.Event) -> Iterator[Any]:
    for message in Queue(store, "q").listen(poll=POLL_S, stop=stop):
        message.ack()
        yield message


def of_consumer(store: Store, stop: threading.Event) -> Iterator[Any]:
    yield from store.stream("s").group("g").consumer("c").listen(poll=POLL_S, stop=stop)


def of_tail(store: Store, stop: threading.Event) -> Iterator[Any]:
    for entry in store.stream("s").tail("0", poll=POLL_S):
        yield entry
        if stop.is_set():
            return


class Listener(threading.Thread):
    """A thread that listens, in an event loop if its store is opened so."""

    def __init__(self, heard: Callable[["Listener"], None]) -> None:
        super().__init__(daemon=True)
        self._heard = heard
        self.stop = threading.Event()
        self.got: list[bytes] = []
        self.error: KVStreamError | None = None
        self.start()

    def run(self) -> None:
        try:
            self._heard(self)
        except KVStreamError as error:
            self.error = error

    def note(self, each: Any) -> None:
        self.got.append(each.fields[b"n"])

    def end(self) -> None:
        self.stop.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()


def by_thread(url: str, listen: Callable[[Store, threading.Event], Iterator[Any]]) -> Listener:
    def heard(listener: Listener) -> None:
        with kvstream.open(url) as store:
            for each in listen(store, listener.stop):
                listener.note(each)

    return Listener(heard)


def by_tasks(url: str, listen: Callable[[Any, threading.Event], AsyncIterator[Any]]) -> Listener:
    async def main(listener: Listener) -> None:
        async with kvstream.aio.open(url) as store:
            async for each in listen(store, listener.stop):
                listener.note(each)

    return Listener(lambda listener: asyncio.run(main(listener)))


async def of_async_queue(store: Any, stop: threading.Event) -> AsyncIterator[Any]:
    async for message in AsyncQueue(store, "q").listen(poll=POLL_S, stop=stop):
        await message.ack()
        yield message


async def of_async_consumer(store: Any, stop: threading.Event) -> AsyncIterator[Any]:
    async for each in store.stream("s").group("g").consumer("c").listen(poll=POLL_S, stop=stop):
        yield each


async def of_async_tail(store: Any, stop: threading.Event) -> AsyncIterator[Any]:
    async for each in store.stream("s").tail("0", poll=POLL_S):
        yield each
        if stop.is_set():
            return


LISTENERS: dict[str, Callable[[str], Listener]] = {
    "queue": lambda url: by_thread(url, of_queue),
    "consumer": lambda url: by_thread(url, of_consumer),
    "tail": lambda url: by_thread(url, of_tail),
    "async queue": lambda url: by_tasks(url, of_async_queue),
    "async consumer": lambda url: by_tasks(url, of_async_consumer),
    "async tail": lambda url: by_tasks(url, of_async_tail),
}


def add(store: Store, number: int) -> None:
    Queue(store, "q").put({"n": number})
    store.stream("s").add({"n": number})


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    records = [each for each in caplog.records if (each.name, each.levelno) == (LOGGER, level)]
    return [each.getMessage() for each in records]  # a handler may not have set `message` yet


@pytest.mark.parametrize("name", LISTENERS)
def test_a_listener_goes_on_when_its_server_is_back(
    direct: Store, proxy: Proxy, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    place = f"127.0.0.1:{proxy.port}"
    listener = LISTENERS[name](f"redis://{place}")
    add(direct, 1)
    until(lambda: listener.got == [b"1"])
    for number in (2, 3):
        caplog.clear()
        proxy.drop()
        until(lambda: lines(caplog, logging.WARNING))
        add(direct, number)
        proxy.heal()
        until(lambda: len(listener.got) == number)  # noqa: B023
        (warned,) = lines(caplog, logging.WARNING)
        assert warned.startswith(f"{place} is away, and is waited for: ")
        assert lines(caplog, logging.INFO) == [f"{place} is back"]
    listener.stop.set()
    add(direct, 4)
    listener.end()
    assert listener.error is None
    assert listener.got[:3] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("name", ["queue", "consumer", "async queue", "async consumer"])
def test_a_listener_may_be_stopped_while_its_server_is_away(
    direct: Store, proxy: Proxy, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    listener = LISTENERS[name](f"redis://127.0.0.1:{proxy.port}")
    add(direct, 1)
    until(lambda: listener.got)
    proxy.drop()
    until(lambda: lines(caplog, logging.WARNING))
    listener.end()
    assert listener.error is None


def test_a_listener_survives_restarts_of_its_server(tmp_path: Path) -> None:
    port = ("--port", str(free_port()))
    server = ServerProcess(tmp_path / "store", *port)
    listener = LISTENERS["queue"](f"redis://127.0.0.1:{server.port}")
    try:
        for number in range(3):
            with kvstream.open(f"redis://127.0.0.1:{server.port}") as store:
                Queue(store, "q").put({"n": number})
            until(lambda: len(listener.got) == number + 1)  # noqa: B023
            if number < 2:
                server.stop() if number else server.kill()
                server = ServerProcess(tmp_path / "store", *port)
        listener.end()
    finally:
        server.end()
    assert (listener.got, listener.error) == ([b"0", b"1", b"2"], None)


def test_errors_that_do_not_pass_end_a_listener(direct: Store, proxy: Proxy, url: str) -> None:
    place = f"redis://127.0.0.1:{proxy.port}"
    listener = LISTENERS["consumer"](place)
    add(direct, 1)
    until(lambda: listener.got)
    direct.stream("s").group("g").destroy()
    listener.join(PATIENCE_S)
    assert isinstance(listener.error, NoGroup)
    listener = LISTENERS["queue"](place)
    add(direct, 2)
    until(lambda: listener.got)
    with redis.Redis.from_url(url) as client:
        client.config_set("requirepass", "secret")
        try:
            proxy.drop()
            proxy.heal()
            listener.join(PATIENCE_S)
        finally:
            client.config_set("requirepass", "")
    assert isinstance(listener.error, AccessDenied)


@pytest.mark.parametrize("harm", [Harm.RESET_AFTER, Harm.CUT_REPLY])
def test_an_entry_whose_reply_was_lost_is_yielded(direct: Store, proxy: Proxy, harm: Harm) -> None:
    stream = direct.stream("s")
    with kvstream.open(f"redis://127.0.0.1:{proxy.port}") as store:
        heard: Any = store.stream("s").group("g").consumer("c").listen(poll=POLL_S)
        ids = []
        for n in range(3):
            ids.append(stream.add({"n": n}))
            if n == 1:
                proxy.arm(harm)
            assert next(heard).id == ids[-1]
        assert proxy.harmed.is_set()
        heard.close()
    rows = stream.group("g").pending_range("-", "+", 10)
    assert [(row.id, row.deliveries) for row in rows] == [(eid, 1) for eid in ids]


def test_a_message_that_another_got_meanwhile_is_not_yielded(direct: Store, proxy: Proxy) -> None:
    other = Queue(direct, "q", consumer="bob", lease=0.3)
    other.put_many([{"n": n} for n in range(2)])
    with kvstream.open(f"redis://127.0.0.1:{proxy.port}") as store:
        heard: Any = Queue(store, "q", consumer="ann", lease=0.3).listen(2, poll=POLL_S)
        first = next(heard)
        proxy.drop()
        taken: list[Any] = []

        def take() -> bool:
            taken.extend(other.get(2))
            return len(taken) == 2

        until(take)
        assert [each.deliveries for each in taken] == [2, 2]
        other.ack(*taken)
        proxy.heal()
        with pytest.raises(LeaseLost):
            first.ack()
        new = other.put({"n": 2})
        assert next(heard).id == new
        heard.close()
