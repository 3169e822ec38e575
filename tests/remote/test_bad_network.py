"""Each write of the library behind a bad network: an error that says "not done" is true.

A call whose request may have reached the server ends well, with UnknownOutcome, or with the error
of a transaction that did nothing. Whatever happens, it is done once or not at all.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import kvstream
import kvstream.aio
import kvstream.shared.engine
from kvstream import KVStreamError, Store, StoreError, UnknownOutcome
from tests.network import WAITED_FOR, Harm, Proxy, between
from tests.patience import PATIENCE_S
from tests.peers import PeerProcess
from tests.remote.loops import Loop
from tests.remote.writes import OURS, PLAIN, Write, fill, state
from tests.serving import ServerProcess

SILENT_S = 0.05
"""How long an impatient client waits for a reply."""
LATE_S = 1.0
"""How late the proxy may see a request that an impatient client has given up."""

Run = Callable[[Callable[[], Any]], Any]


class Place:
    """A store behind a proxy."""

    def __init__(self, direct: Store, proxy: Proxy, ours: bool) -> None:
        self.direct, self.proxy, self.ours = direct, proxy, ours
        self.users: dict[tuple[str, bool], tuple[Store, Run]] = {}
        """The stores behind the proxy, and how they are called: by a thread, or by tasks; patient
        or not."""


def _open_both(place: Place, ends: ExitStack, patient: bool, where: Any, **options: Any) -> None:
    store = ends.enter_context(kvstream.open(where, **options))
    place.users["thread", patient] = store, lambda call: call()
    loop = Loop()
    ends.callback(loop.close)

    async def opened() -> Any:
        return await kvstream.aio.open(where, **options)

    tasks = loop.run(opened())
    ends.callback(lambda: loop.run(tasks.close()))

    def run(call: Callable[[], Any]) -> Any:
        return loop.run(tasks._engine.task_call(call))

    place.users["task", patient] = tasks._sync, run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("served") / "store"
    process = ServerProcess(directory, "--durability", "no")
    try:
        with ExitStack() as ends:
            proxy = Proxy(("127.0.0.1", process.port))
            ends.callback(proxy.close)
            direct = ends.enter_context(kvstream.open(f"redis://127.0.0.1:{process.port}"))
            place = Place(direct, proxy, True)
            url = f"redis://127.0.0.1:{proxy.port}"
            _open_both(place, ends, True, url)
            _open_both(place, ends, False, f"{url}?socket_timeout={SILENT_S}")
            yield place
    finally:
        process.stop()
    with Store.open(directory) as store:
        assert store.check() == []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory: Path = tmp_path_factory.mktemp("shared") / "store"
    with ExitStack() as ends:
        patch = ends.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(kvstream.shared.engine, "REPLY_S_MIN", SILENT_S)
        options: Any = {"shared": True, "durability": "no"}
        direct = ends.enter_context(kvstream.open(directory, **options))
        proxy = between(directory / "shared.sock", directory.parent / "served.sock")
        ends.callback(proxy.close)
        place = Place(direct, proxy, True)
        _open_both(place, ends, True, directory, **options)
        _open_both(place, ends, False, directory, **options, wait_s=SILENT_S)
        yield place
    with Store.open(directory) as store:
        assert store.check() == []


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ExitStack() as ends:
        peer = PeerProcess("redis-7.0", tmp_path_factory.mktemp("redis"))
        ends.callback(peer.stop)
        proxy = Proxy(("127.0.0.1", peer.port))
        ends.callback(proxy.close)
        direct = ends.enter_context(kvstream.open(f"redis://127.0.0.1:{peer.port}"))
        place = Place(direct, proxy, False)
        url = f"redis://127.0.0.1:{proxy.port}"
        _open_both(place, ends, True, url)
        _open_both(place, ends, False, f"{url}?socket_timeout={SILENT_S}")
        yield place


class Case:
    """A call of one user."""

    def __init__(self, place: Place, user: str, patient: bool, write: Write) -> None:
        self._place, self._write = place, write
        self._store, self._run = place.users[user, patient]

    def make(self) -> None:
        """Make the state before the call, and what it needs."""
        while True:
            self._place.direct.flush_all()
            fill(self._place.direct, self._place.ours)
            try:
                self._needed = self._run(lambda: self._write.prepare(self._store))
                return
            except StoreError:  # an impatient client, on a busy machine
                pass

    def state(self) -> dict[bytes, Any]:
        return state(self._place.direct, self._place.ours)

    def call(self) -> Any:
        return self._run(lambda: self._write.call(self._store, self._needed))


def check(place: Place, user: str, write: Write) -> None:
    """Harm each burst of a call, one at a time, and compare what is said with what was done."""
    proxy = place.proxy
    good = Case(place, user, True, write)
    for _ in range(2):  # what the first call asks for once is known to the second
        good.make()
        before = good.state()
        proxy.arm(Harm.REPLY_IN_PARTS, 1000)
        result = good.call()
        proxy.heal()
    after, bursts = good.state(), len(proxy.bursts)
    assert bursts
    Case(place, user, False, write).make()
    for harm, at in product(Harm, range(bursts)):
        case = Case(place, user, harm not in WAITED_FOR, write)
        case.make()
        proxy.arm(harm, at)
        begun, error, found = time.monotonic(), None, None
        try:
            found = case.call()
        except KVStreamError as raised:
            error = raised
        took_s = time.monotonic() - begun
        was_harmed = proxy.harmed.wait(LATE_S)
        proxy.heal()
        there = case.state()
        if error is None:
            same = there == after or write.is_counted
            right = same and type(found) is type(result)
        elif isinstance(error, UnknownOutcome):
            right = there in (before, after) or write.has_parts
        else:
            right = there == before
        assert right, f"{harm}, burst {at} of {bursts}, {error!r}: {changes(before, there)}"
        assert was_harmed or harm in WAITED_FOR, f"{harm}, burst {at} of {bursts}, {error!r}"
        assert took_s < PATIENCE_S / 2, f"{harm}, burst {at} of {bursts}, {error!r}: {took_s} s"


def changes(before: dict[bytes, Any], there: dict[bytes, Any]) -> dict[bytes, Any]:
    """Return the keys that have changed."""
    names = before.keys() | there.keys()
    both = {name: (before.get(name), there.get(name)) for name in names}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


ALL = {**PLAIN, **OURS}
BY_TASKS = (
    *("add", "add with idmp", "add large", "add_many", "read", "transaction", "get"),
    *("message ack", "message transaction", "put into a new queue"),
)
"""Tasks send the same requests as threads, over connections of another kind."""
CALLS = [("thread", name) for name in ALL] + [("task", name) for name in BY_TASKS]
ON_REDIS = ("add", "add_many", "nack", "claim", "read", "read and wait", "rename", "transaction")
"""Calls whose requests are others than those to kvstream's server, and a few alike."""


@pytest.mark.parametrize(("user", "name"), CALLS)
def test_what_a_call_on_a_server_says_is_true(server: Place, user: str, name: str) -> None:
    check(server, user, ALL[name])


@pytest.mark.parametrize(("user", "name"), CALLS)
def test_what_a_call_on_a_shared_store_says_is_true(shared: Place, user: str, name: str) -> None:
    check(shared, user, ALL[name])


@pytest.mark.parametrize("name", ON_REDIS)
def test_what_a_call_on_redis_says_is_true(redis: Place, name: str) -> None:
    check(redis, "thread", PLAIN[name])
