"""The console in Chromium: no error, no other host, keys, live content, narrow and without scripts.

Few tests, since a browser takes seconds to start; what needs none is in the other files.
"""

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvstream import Queue, Store
from kvstream.console import User, app
from kvstream.console.history.samples import FINEST, write
from kvstream.console.serving import ConsoleServer
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.server.conftest import Served, serve, served

__all__ = ["serve", "served"]

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
PATIENCE_MS = PATIENCE_S * 1000
PATHS = ["/", "/queues", "/queues/emails", "/dead", "/dead/emails:dead", "/jobs", "/workers"]
PATHS += ["/streams", "/streams/orders", "/streams/orders/entries", "/schedules"]
PATHS += ["/streams/orders/groups/billing", "/do/pause?queue=emails"]
PATHS += ["/server", "/find/orders?where=sku"]


@contextmanager
def serving(console: Any) -> Iterator[str]:
    """Serve an app in a thread; yield its address."""
    port = free_port()
    server = ConsoleServer(console, port=port)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("browser") / "s", durability="no") as opened:
        emails = Queue(opened, "emails", max_deliveries=1)
        emails.get()
        emails.put_many(
            [{"to": f"user{at}", "html": "<img src=x onerror=alert(1)>"} for at in range(9)]
        )
        for message in emails.get(6):
            message.nack(fatal=True, error=ConnectionError("refused by <b>smtp</b>"))
        opened.stream("orders").add_many([{"sku": f"a{at}", "note": "x" * 90} for at in range(60)])
        opened.stream("orders").create_group("billing", "0").consumer("b1").read(20)
        opened.stream("emails").schedule("nightly", "0 3 * * *", {"task": "clean"})
        now_ms = opened.now_ms() // FINEST.step_ms * FINEST.step_ms
        for at in range(-30, 1):
            figures = {"added": 900 + at, "waiting": 30 + at, "oldest_ms": 1000, "failed": 1}
            values = {b"semails": figures, b"sorders": figures}
            assert write(opened, now_ms + at * FINEST.step_ms, values)
        yield opened
        assert opened.check() == []


@pytest.fixture(scope="module")
def address(store: Store) -> Iterator[str]:
    with serving(app(store, auth=lambda _: User("ann", "admin"))) as served:
        yield served


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1":
            pytest.fail("chromium is required here: apt-get install chromium")
        pytest.skip("chromium is not installed: apt-get install chromium")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


@contextmanager
def page_of(chromium: Any, address: str, **options: Any) -> Iterator[Any]:
    """Yield a page; afterwards nothing was complained of, and no other host was asked."""
    context = chromium.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda asked: None if asked.url.startswith(address) else problems.append(asked.url),
    )
    yield page
    context.close()
    assert problems == []


@pytest.mark.parametrize(
    "options",
    [
        {"viewport": {"width": 1280, "height": 800}},
        {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"},
        {"viewport": {"width": 1280, "height": 800}, "java_script_enabled": False},
    ],
    ids=["wide", "narrow", "no-scripts"],
)
def test_every_page_fits_and_has_no_errors(
    chromium: Any, address: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    width = options["viewport"]["width"]
    with page_of(chromium, address, **options) as page:
        for path in PATHS:
            reply = page.goto(address + path)
            assert reply.status == 200, path
            if options.get("java_script_enabled", True):
                size = page.evaluate(
                    "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
                )
                assert size[0] <= width, (path, size)
                if path == "/" and width == 1280:
                    assert size[1] <= 800, size
            assert page.locator("h1").count() == 1, path
            assert page.locator("th:not([scope])").count() == 0, path
            unnamed = "main input:not([type=hidden]):not([aria-label]):not(label input)"
            assert page.locator(unnamed).count() == 0, path


def test_pages_of_a_server_fit_a_telephone(chromium: Any, served: Served) -> None:
    """Names and values of settings are long words."""
    console = app(f"redis://127.0.0.1:{served.port}", auth=lambda _: User("ann", "admin"))
    options = {"viewport": {"width": 390, "height": 800}}
    with serving(console) as address, page_of(chromium, address, **options) as page:
        for path in ("/server", "/server/clients", "/server/slowlog", "/server/config"):
            assert page.goto(address + path).status == 200, path
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, (path, width)


def test_a_page_renews_itself_and_knows_keys(chromium: Any, address: str, store: Store) -> None:
    expect = sync_api.expect
    expect.set_options(timeout=PATIENCE_MS)
    with page_of(chromium, address) as page:
        page.goto(address + "/queues/emails")
        card = page.locator(".card", has_text="Ready")
        expect(card).to_contain_text("3")
        expect(page.locator("body")).to_have_attribute("data-state", "live")
        store.stream("emails").add_many([{"to": "x"}] * 4)
        expect(card).to_contain_text("7")
        page.keyboard.press("?")
        expect(page.locator("dialog")).to_be_visible()
        page.keyboard.press("?")
        page.keyboard.press("t")
        expect(page.locator("td time").first).to_contain_text("Z")
        page.keyboard.press("t")
        page.keyboard.press("t")
        page.goto(address + "/dead")
        expect(page.locator("body")).to_have_attribute("data-state", "live")
        page.keyboard.press("j")
        expect(page.locator("tr[aria-selected=true]")).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text("emails:dead")
        expect(page.locator("body")).to_have_attribute("data-state", "live")
        page.keyboard.press("/")
        expect(page.locator("input[type=search]")).to_be_focused()


def test_a_redrive_by_hand(chromium: Any, address: str, store: Store) -> None:
    with page_of(chromium, address) as page:
        page.goto(address + "/dead/emails:dead")
        page.locator("input[name=id]").first.check()
        page.get_by_role("button", name="Redrive selected").click()
        sync_api.expect(page.locator("main")).to_contain_text("moves 1 dead letter back")
        page.get_by_role("button", name="Redrive dead letters").click()
        sync_api.expect(page.locator("h1")).to_contain_text("5 letters")
    assert len(store.stream("emails:dead")) == 5
