"""Live pages: what the hub reads, and when it sleeps."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kvstream import Store
from kvstream.console import Console, User, app, events
from tests.console.browser import Browser
from tests.patience import PATIENCE_S

STATIC = Path(events.__file__).parent / "static"


class Watcher:
    """A viewer of a page: the messages that it has got."""

    def __init__(self, console: Console, page: str, last: str = "") -> None:
        self.status = 0
        self.text = ""
        self._gone = asyncio.Event()
        headers = [(b"host", b"console.test"), (b"last-event-id", last.encode())]
        scope = {
            **{
                "type": "http",
                "method": "GET",
                "path": "/events",
                "root_path": "",
                "scheme": "http",
            },
            **{"http_version": "1.1", "headers": headers, "raw_path": b"/events"},
            **{"query_string": f"page={page}".encode(), "server": ("console.test", 80)},
            **{"client": ("127.0.0.1", 1), "asgi": {"version": "3.0", "spec_version": "2.0"}},
        }
        self.task = asyncio.create_task(console(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"").decode()

    @property
    def contents(self) -> list[str]:
        """The contents of the page that were sent."""
        found = self.text.split("event: main\ndata: ")[1:]
        return [json.loads(each.partition("\n")[0]) for each in found]

    async def leave(self) -> None:
        self._gone.set()
        await self.task


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watching(console: Console, *pages: str, last: str = "") -> AsyncIterator[list[Watcher]]:
    watchers = [Watcher(console, page, last) for page in pages]
    try:
        yield watchers
    finally:
        for each in watchers:
            await each.leave()


@pytest.fixture
def console(full: Store, monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setattr(events, "PERIOD_S", 0.02)
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.3)
    made = app(full, auth=lambda _: User("ann"))
    monkeypatch.setattr(made.listings, "get", made.listings.get)
    return made


def test_viewers_get_what_changes(console: Console, full: Store) -> None:
    rendered: list[Any] = []
    answer = console.answer

    def counting_answer(page: Any, *args: Any) -> Any:
        rendered.append(page)
        return answer(page, *args)

    console.answer = counting_answer  # type: ignore[method-assign, assignment]

    async def main() -> None:
        page = "/streams/orders"
        async with watching(console, page, page, page) as (one, two, three):
            await until(lambda: one.contents and two.contents and three.contents)
            assert "120" in one.contents[0]
            assert not console.hub.is_asleep
            before = len(rendered)
            full.stream("orders").add({"sku": "new"})
            await until(lambda: len(one.contents) == len(two.contents) == len(three.contents) == 2)
            assert "121" in one.contents[1]
            # three viewers, one reader
            assert len(set(map(id, rendered))) == 1
            await until(lambda: ": alive" in one.text)
            assert len(one.contents) == 2
            assert len(rendered) - before >= 1
            last = one.text.split("id: ")[-1].partition("\n")[0]
        await until(lambda: console.hub.is_asleep)
        async with watching(console, page, last=last) as (again,):
            await until(lambda: ": alive" in again.text)
            assert again.contents == []
        async with watching(console, page, last="another") as (other,):
            await until(lambda: other.contents)

    asyncio.run(main())


def test_other_pages_are_not_live(console: Console) -> None:
    async def main() -> None:
        pages = ("/nothing", "/do/pause%3Fqueue%3Demails", "/events", "//evil", "")
        async with watching(console, *pages) as watchers:
            await until(lambda: all(each.task.done() for each in watchers))
            assert [each.status for each in watchers] == [404] * len(pages)
        assert console.hub.is_asleep

    asyncio.run(main())


def test_the_number_of_viewers_is_limited(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "VIEWERS_MAX", 2)

    async def main() -> None:
        async with watching(console, "/queues", "/dead") as watchers:
            await until(lambda: all(each.contents for each in watchers))
            async with watching(console, "/jobs") as (third,):
                await until(third.task.done)
                assert third.status == 503

    asyncio.run(main())


def test_a_slow_page_delays_no_other(
    console: Console, full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are rendered side by side, at most some at a time, each once for all its viewers."""
    monkeypatch.setattr(events, "RENDERED_MAX", 2)
    answer, end, lock = console.answer, threading.Event(), threading.Lock()
    running: Counter[str] = Counter()
    most: list[int] = []

    def watched_answer(page: Any, request: Any, *args: Any) -> Any:
        path = request.url.path
        with lock:
            running[path] += 1
            most.append(running.total())
            assert running[path] == 1
        try:
            if path == "/queues":
                assert end.wait(PATIENCE_S)
            return answer(page, request, *args)
        finally:
            with lock:
                running[path] -= 1

    console.answer = watched_answer  # type: ignore[method-assign, assignment]

    async def main() -> None:
        pages = ["/queues", *["/streams/orders"] * 3, "/streams", "/dead", "/schedules"]
        async with watching(console, *pages) as (slow, *others):
            await until(lambda: all(each.contents for each in others))
            full.stream("orders").add({"sku": "new"})
            await until(lambda: all("121" in each.contents[-1] for each in others[:3]))
            assert slow.contents == []
            end.set()
            await until(lambda: slow.contents)
        await until(lambda: console.hub.is_asleep)
        assert max(most) == 2

    asyncio.run(main())


def test_trouble_is_told(console: Console, full: Store) -> None:
    async def main() -> None:
        async with watching(console, "/streams/orders") as (one,):
            await until(lambda: one.contents)
            console.place.reading = None  # type: ignore[assignment, method-assign]
            await until(lambda: "event: trouble" in one.text)

    asyncio.run(main())


def test_scripts_are_small_and_have_nothing_that_the_policy_forbids(full: Store) -> None:
    scripts = {each.name: each.read_text() for each in STATIC.glob("*.js")}
    assert sum(map(len, scripts.values())) < 40_000
    for name, text in scripts.items():
        assert not {"eval(", "new Function", ".style", "http://", "https://"} & {
            word
            for word in ("eval(", "new Function", ".style", "http://", "https://")
            if word in text
        }, name
        reply = Browser(app(full, auth=lambda _: None)).get(f"/static/{name}")
        assert "javascript" in reply.headers["content-type"]
