"""What a page says while its store is away, and what an action says that could not be done."""

import asyncio
import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import Store
from kvstream.console import Console, User, app, events, listing
from kvstream.console.actions.plan import AUDIT
from kvstream.console.listing import Listings
from kvstream.engine.engine import Engine
from tests import forking
from tests.cli.program import ENVIRONMENT
from tests.console.browser import Browser
from tests.console.test_live import Watcher, until, watching
from tests.faultshim.disk import FaultyDisk
from tests.faultshim.fixtures import fault_library, faulty_disk
from tests.ports import free_port
from tests.serving import ServerProcess

__all__ = ["fault_library", "faulty_disk"]

OWNER = """
import sys
import kvstream
store = kvstream.open(sys.argv[1], shared=True, durability="no")
store.stream("orders").add({"sku": "first"})
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PERIOD_S", 0.1)
    monkeypatch.setattr(events, "AWAY_S", 0.3)


@contextmanager
def owner_of(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program that owns a shared directory."""
    with forking.start(
        [sys.executable, "-c", OWNER, str(folder)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        try:
            yield program
        finally:
            program.kill()


async def see(watcher: Watcher, text: str) -> None:
    await until(lambda: any(text in each for each in watcher.contents))


def test_a_page_goes_on_when_the_owner_of_its_directory_is_killed(tmp_path: Path) -> None:
    with owner_of(tmp_path / "s") as owner:
        console = app(tmp_path / "s", auth=lambda _: User("ann"))

        async def main() -> None:
            async with watching(console, "/streams/orders") as (one,):
                await until(lambda: one.contents)
                owner.send_signal(signal.SIGKILL)
                await asyncio.to_thread(add_when_there, tmp_path / "s")
                await see(one, "2 entries in the last")

        asyncio.run(main())
        console.close()
    with Store.open(tmp_path / "s") as store:
        assert store.check() == []


def add_when_there(folder: Path) -> None:
    """Add an entry as a program does that shares the directory."""
    with kvstream.open(folder, shared=True) as store:
        store.stream("orders").add({"sku": "second"})


def test_a_page_says_that_the_server_is_away_and_comes_back(tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess(tmp_path / "s", "--port", str(port))
    console = app(f"redis://127.0.0.1:{port}", auth=lambda _: User("ann"))
    with kvstream.open(f"redis://127.0.0.1:{port}") as store:
        store.stream("orders").add({"sku": "first"})
    again = []

    async def main() -> None:
        async with watching(console, "/streams/orders") as (one,):
            await until(lambda: one.contents)
            server.process.kill()
            server.process.communicate()
            await until(lambda: "event: trouble" in one.text)
            assert "does not answer" in one.text
            again.append(await asyncio.to_thread(start_again))
            await see(one, "2 entries in the last")

    def start_again() -> ServerProcess:
        started = ServerProcess(tmp_path / "s", "--port", str(port))
        with kvstream.open(f"redis://127.0.0.1:{port}") as store:
            store.stream("orders").add({"sku": "second"})
        return started

    asyncio.run(main())
    console.close()
    again[0].process.kill()
    again[0].process.communicate()


def test_an_action_on_a_full_disk_is_not_done_and_says_so(faulty_disk: FaultyDisk) -> None:
    server = ServerProcess(faulty_disk.root / "store", environment=faulty_disk.environment())
    url = f"redis://127.0.0.1:{server.port}"
    console = app(url, auth=lambda _: User("ann", "admin"))
    browser = Browser(console)
    with kvstream.open(url) as store:
        store.stream("orders").add_many([{"sku": "a"}] * 9)
        path = "/do/trim?stream=orders&maxlen=2"
        (form,) = [each for each in browser.page(path).forms if each["@"] == "post"]
        given = {"csrf": form["csrf"], "typed": "orders"}
        faulty_disk.fail("write", errno.ENOSPC, ".log")
        reply = browser.ask("POST", form[""], data=given)
        assert reply.status_code == 507, reply.text
        assert "Nothing was changed." in reply.text
        assert len(store.stream("orders")) == 9
        assert not store.exists(AUDIT)
        assert "orders" in browser.page("/streams").text
        faulty_disk.heal()
        until_done(browser, form[""], given)
        assert (len(store.stream("orders")), len(store.stream(AUDIT))) == (2, 1)
    console.close()
    server.process.kill()
    server.process.communicate()


def until_done(browser: Browser, path: str, given: dict[str, str]) -> None:
    from tests.patience import until as until_true

    until_true(lambda: browser.ask("POST", path, data=given).status_code == 303)


# --- the price of open pages ----------------------------------------------------------------------


def test_fifty_viewers_cost_as_one(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page is made for all of them, each with at most 60 calls."""
    console, calls, made = app(full, auth=lambda _: User("ann")), list[Any](), list[Any]()
    run, answer = Engine.run, console.answer

    def counting_run(engine: Engine, *args: Any, **options: Any) -> Any:
        calls.append(args)
        return run(engine, *args, **options)

    def counting_answer(page: Any, *args: Any) -> Any:
        made.append(page)
        return answer(page, *args)

    monkeypatch.setattr(Engine, "run", counting_run)
    monkeypatch.setattr(console, "answer", counting_answer)
    monkeypatch.setattr(events, "asyncio", Paced(console, made))

    async def main() -> None:
        async with watching(console, *["/"] * 50) as watchers:
            await until(lambda: len(made) >= 5 and all(each.contents for each in watchers))

    asyncio.run(main())
    assert len(calls) <= 60 * len(made)


class Paced:
    """The module asyncio, in which each pause of the hub checks that it has made one page."""

    def __init__(self, console: Console, made: list[Any]) -> None:
        self._console, self._made, self._before = console, made, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        assert len(self._made) - self._before == 1, "one page for all viewers"
        self._before = len(self._made)
        await asyncio.sleep(seconds)


def test_a_listing_of_many_streams_is_kept_for_longer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of 10,000 keys costs 0.35 s of the processor: it is made each 60 s."""
    assert listing.kept_s(100) == listing.KEPT_S
    assert listing.kept_s(10_000) == 60
    for at in range(1500):
        store.stream(f"s{at}").add({"a": "1"})
    now, calls = [100.0], list[Any]()
    monkeypatch.setattr(listing, "monotonic", lambda: now[0])
    infos = store.key_infos

    def counting_infos() -> Any:
        calls.append(1)
        return infos()

    monkeypatch.setattr(store, "key_infos", counting_infos)
    listings = Listings()
    for _ in range(20):  # two seconds each, as an open page reads
        listings.get(store)
        now[0] += 2
    assert len(calls) == 4
