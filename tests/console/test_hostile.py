"""Data and requests that are made to break the console: none does more than it may."""

import asyncio
import re
from pathlib import Path
from typing import Any

import anyio
import pytest

import kvstream
from kvstream import Queue, Store, StoreLocked
from kvstream.console import Console, User, app, events
from kvstream.console.actions.plan import AUDIT
from kvstream.console.actions.table import ACTIONS
from kvstream.console.failures import newest
from kvstream.console.reading import BYTES, read_slice
from kvstream.console.serving import ConsoleServer, hosts_of
from tests.console.browser import Browser
from tests.console.conftest import Open
from tests.console.test_actions import audit_of, do
from tests.console.test_live import until, watching
from tests.patience import PATIENCE_S


@pytest.fixture
def browser(opened: Open) -> Browser:
    return opened()


def test_half_a_character_of_json_breaks_no_page(browser: Browser, full: Store) -> None:
    half = full.stream("half").add({"a": b'{"a": "\\ud800"}'})
    assert r"\ud800" in browser.page(f"/streams/half/entries/{half}").text
    full.stream(b"\xff:ended").add({"a": "1"})
    browser.page("/jobs")
    browser.page("/jobs?tag=%FF&name=%ED%A0%80")
    browser.page("/schedules?from=" + "9" * 5000)
    browser.get("/do/trim?stream=orders&maxlen=" + "9" * 5000, 400)
    browser.get("/events?page=//%5B", 404)


def test_no_action_changes_the_audit(browser: Browser, full: Store) -> None:
    do(browser, "/do/pause?queue=emails")
    entry = full.stream(AUDIT).range()[0].id
    for name in ACTIONS:
        if not name.endswith(("-jobs", "-all")):  # those name no stream; no list has the audit
            names = "&".join(f"{each}=kvstream:audit" for each in ("stream", "queue", "worker"))
            refused = f"/do/{name}?{names}&group=g&schedule=s&id={entry}&maxlen=1"
            assert "not changed by the console" in browser.page(refused, 400).text, name
    assert audit_of(full) == [("ann", "pause", "emails", 1)]


def test_all_that_was_chosen_is_changed(browser: Browser, full: Store) -> None:
    far = full.stream("far")
    far.add_many([{"n": str(at)} for at in range(1300)])
    group = far.create_group("g", "0")
    ids = [each.id for each in group.consumer("c").read(1300)]
    group.ack(ids[7])
    chosen = "".join(f"&id={each}" for each in (ids[0], ids[7], ids[700], ids[1299]))
    page = do(browser, f"/do/ack?stream=far&group=g{chosen}")
    assert "acknowledges 3 pending entries" in page.text
    assert "Left out, not pending any more: 1 entry" in page.text
    assert group.pending().count == 1296
    chosen = "".join(f"&id={each}" for each in ids[:50])
    do(browser, f"/do/delete-entries?stream=far{chosen}", typed="far")
    assert len(far) == 1250
    assert [each[3] for each in audit_of(full)] == [3, 50]


def test_letters_that_arrive_after_the_preview_stay(browser: Browser, full: Store) -> None:
    page = browser.page("/dead/emails:dead")
    kind = next(each for each in page.links if "ConnectionError" in each)
    (link,) = {each for each in browser.page(kind).links if "/do/redrive" in each}
    emails = Queue(full, "emails", consumer="w1", max_deliveries=3, priorities=("high", "normal"))
    (message,) = emails.get(1)
    message.nack(fatal=True, error=ConnectionError("refused by smtp-7"))
    assert len(full.stream("emails:dead")) == 10
    assert "moves 8 dead letters back" in do(browser, link).text
    assert len(full.stream("emails:dead")) == 2


def test_large_entries_make_a_short_page(full: Store) -> None:
    large = full.stream("large:dead")
    large.add_many([{"a": b"x" * 500_000} for _ in range(40)])
    found, has_more = read_slice(large, "", 200)
    assert has_more
    assert len(found) * 500_000 <= 2 * BYTES
    again, _ = read_slice(large, f"({found[-1].id}", 200)
    assert again[0].id == large.revrange(f"({found[-1].id}", count=1)[0].id
    assert newest(full, b"large:dead") == []


def test_what_is_in_work_is_said_of_long_queues(browser: Browser, full: Store) -> None:
    queue = Queue(full, "long")
    queue.get()
    queue.put_many([{"n": str(at)} for at in range(300)])
    queue.get(300)
    assert browser.page("/queues/long").text.count(" in work ") >= 20


def test_a_console_that_reads_only_never_keeps_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "s", durability="no") as store:
        store.stream("orders").add({"a": "1"})
    found = kvstream.open

    def open_locked(place: Any, **options: Any) -> Any:
        """The owner ends right after it was seen."""
        if options.get("read_only"):
            raise StoreLocked("another process has it")
        return found(place, **options)

    monkeypatch.setattr("kvstream.console.places.opening.open", open_locked)
    console = app(tmp_path / "s", auth=lambda _: User("ann", "admin"), read_only=True)
    assert "orders" in Browser(console).page("/streams").text
    with Store.open(tmp_path / "s") as store:
        assert store.check() == []


def test_a_form_of_unknown_length_is_bounded(full: Store) -> None:
    console, parts = app(full, auth=lambda _: User("ann", "admin")), [0]
    sent: list[Any] = []

    async def receive() -> Any:
        parts[0] += 1
        return {"type": "http.request", "body": b"x" * 10_000, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        **{"type": "http", "method": "POST", "path": "/do/pause", "root_path": ""},
        **{"scheme": "https", "http_version": "2", "raw_path": b"/do/pause", "query_string": b""},
        **{"headers": [(b"sec-fetch-site", b"same-origin")], "server": ("h", 443)},
        **{"client": ("127.0.0.1", 1), "asgi": {"version": "3.0"}},
    }
    asyncio.run(console(scope, receive, send))
    assert sent[0]["status"] == 413
    assert parts[0] < 10


def test_a_store_that_is_away_keeps_no_threads_of_the_program(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PERIOD_S", 0.02)
    monkeypatch.setattr(events, "AWAY_S", 0.1)
    console: Console = app(full, auth=lambda _: User("ann"))
    answer, back = console.answer, asyncio.Event()

    def wait(*args: Any) -> Any:
        anyio.from_thread.run(back.wait)
        return answer(*args)

    async def main() -> None:
        async with watching(console, "/queues", "/dead") as (one, two):
            await until(lambda: one.contents and two.contents)
            console.answer = wait  # type: ignore[method-assign, assignment]
            await until(lambda: "trouble" in one.text and "trouble" in two.text)
            before = len(one.contents), len(two.contents)
            assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
            back.set()
            await until(lambda: len(one.contents) > before[0] and len(two.contents) > before[1])

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_the_command_knows_the_names_of_its_machine(full: Store) -> None:
    assert hosts_of("::1", 9122) == {"127.0.0.1:9122", "localhost:9122", "[::1]:9122"}
    assert "localhost" in hosts_of("127.0.0.1", 80)
    server = ConsoleServer(app(full, auth=lambda _: None), port=1)
    assert not server.config.proxy_headers  # X-Forwarded-For would be written into the audit


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_texts_have_the_contrast_of_wcag_aa() -> None:
    css = (Path(events.__file__).parent / "static" / "console.css").read_text()
    light, dark = css.split("@media (prefers-color-scheme: dark)")[:2]
    for text in (light, dark):
        colours = dict(re.findall(r"--([\w-]+): (#\w{6});", text))
        for ink in ("ink", "soft", "faint", "accent", "bad", "warn"):
            for ground in ("ground", "raised", "sunk"):
                one, other = sorted((luminance(colours[ink]), luminance(colours[ground])))
                assert (other + 0.05) / (one + 0.05) >= 4.5, (ink, ground)
