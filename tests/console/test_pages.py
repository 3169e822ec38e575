"""Every page of the console: its links, what it shows, and what it costs."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kvstream import ManualClock, Queue, Store
from kvstream.console import User, app, figures, listing
from kvstream.console.names import name_of, segment_of
from kvstream.console.pages import group
from kvstream.console.replies import API
from kvstream.console.routes import ROUTES
from kvstream.engine.engine import Engine
from kvstream.operations import strings
from kvstream.operations.queues import info
from tests.console.browser import Browser, route_of
from tests.console.conftest import HOSTILE, Open
from tests.server.conftest import Served, redis_port, redis_process, serve, served

__all__ = ["redis_port", "redis_process", "serve", "served"]

CALLS_MAX, ROWS_MAX, BYTES_MAX = 60, 500, 256 * 1024
"""What a page may cost, whatever the store has."""


OF_SERVERS = {"/server/clients", "/server/slowlog", "/server/config"}
OF_SERVERS |= {"/replicas", "/archive", "/migrations"}
"""Pages of what a directory without an archive does not have."""


class Counted:
    """The calls of the store, and the rows that they returned."""

    calls = rows = 0

    def note(self, result: Any) -> None:
        self.calls += 1
        self.rows += len(result) if hasattr(result, "entries") or isinstance(result, list) else 0


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    counted, run = Counted(), Engine.run

    def counting_run(engine: Engine, *args: Any, **kwargs: Any) -> Any:
        result = run(engine, *args, **kwargs)
        if "AnyIO" in threading.current_thread().name:  # not the timers of the store
            counted.note(result)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run", counting_run)
        yield counted


@pytest.mark.parametrize("root_path", ["", "/a/b"])
def test_every_link_leads_to_a_page_and_none_writes(
    full: Store, clock: ManualClock, tmp_path: Path, root_path: str
) -> None:
    """The store is read-only, the user is not: a page that writes would fail."""
    full.checkpoint(tmp_path / "copy")
    with Store.open(tmp_path / "copy", read_only=True, clock=clock) as copy:
        pages = Browser(app(copy, auth=lambda _: User("ann", "admin")), root_path).crawl()
    kinds = {route_of(path.removeprefix(root_path)) for path in pages}
    wanted = {route.path for route in ROUTES if "GET" in (route.methods or ())}
    wanted = {each for each in wanted if not each.startswith(API)}  # see test_api
    wanted -= {"/login", "/healthz", "/favicon.ico", "/search", "/events", "/jobs/{id}"}
    wanted -= {"/find/{stream:kvname}"}  # a form leads to it
    wanted -= OF_SERVERS
    assert {each for each in wanted if not each.startswith(("/do/", "/api/"))} <= kinds
    assert len([each for each in kinds if each.startswith("/do/")]) >= 5
    for path, page in pages.items():
        assert "style" not in page.tags, path
        assert page.inline_scripts == [], path
        names = {name for _, name, _ in page.attributes}
        assert not [name for name in names if name == "style" or name.startswith("on")], path


def test_names_of_any_bytes_are_parts_of_urls() -> None:
    for name in (*HOSTILE, b"", b".", b"a.b", b"~", b"~7E", bytes(range(256))):
        segment = segment_of(name)
        assert re.fullmatch(r"[\w.:@~-]+", segment, re.ASCII), segment
        assert segment not in (".", "..")
        assert name_of(segment) == name
    assert segment_of(b"orders:2025") == "orders:2025"


@pytest.mark.parametrize("name", HOSTILE)
def test_names_and_values_of_strangers_are_text(opened: Open, name: bytes) -> None:
    browser = opened()
    for path in ("", "/entries", f"/groups/{segment_of(name)}"):
        reply = browser.get(f"/streams/{segment_of(name)}{path}")
        assert "<script>alert" not in reply.text
        assert "\x00" not in reply.text
        assert "\u202e" not in reply.text
        browser.page(f"/streams/{segment_of(name)}{path}")
    shown = browser.get(f"/streams/{segment_of(name)}/entries").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert r"\u202e" in shown
    assert "ff00" in shown


def test_the_overview_says_what_failed(opened: Open) -> None:
    text = opened("viewer").page("/").text
    assert "Dead letters 9 given up" in text
    assert re.search(r"ConnectionError: refused by smtp-\d mail emails\S* 8", text), text
    assert re.search(r"no such user mail emails\S* 1", text)
    assert "emails 2 priorities" in text
    assert "orders billing 50 70" in text


def test_an_empty_store_says_what_to_do(store: Store) -> None:
    browser = Browser(app(store, auth=lambda _: User("ann")))
    assert "Nothing failed." in browser.page("/").text
    command = f"kvstream --store {store._engine.place} add orders sku=a1"
    assert command in browser.page("/streams").text
    assert " queue put emails to=ann" in browser.page("/queues").text
    assert "Nothing was given up." in browser.page("/dead").text
    assert " schedule set emails nightly" in browser.page("/schedules").text


def test_the_next_times_of_a_schedule_are_shown(opened: Open, full: Store) -> None:
    browser = opened("viewer")
    (found,) = browser.get(f"{API}/schedules").json()["schedules"]
    begun = full.stream("emails").schedules()[0].next
    assert begun is not None
    times = [datetime.fromisoformat(each) for each in found["times"]]
    assert times == [begun + timedelta(days=at) for at in range(5)]
    assert len(re.findall("<time ", browser.get("/schedules").text)) == 5


def test_dead_letters_of_one_kind_are_one_line(opened: Open) -> None:
    browser = opened()
    page = browser.page("/dead/emails:dead")
    (link,) = {each for each in page.links if "ConnectionError" in each}
    assert "9 letters" in page.text
    of_kind = browser.page(link.removeprefix(browser.root_path))
    assert "Letters of this kind" in of_kind.text
    assert of_kind.text.count("fatal") == 8


def test_entries_are_found_by_id_and_time_in_pages(opened: Open, full: Store) -> None:
    browser, orders = opened(), full.stream("orders").range()
    ids = [str(each.id) for each in orders]

    def shown(path: str) -> list[str]:
        links = browser.page(path).links
        return [each.rpartition("/")[2] for each in links if re.search(r"entries/\d+-\d+$", each)]

    assert shown("/streams/orders/entries") == ids[:-51:-1]
    assert shown(f"/streams/orders/entries?at={ids[70]}")[:1] == [ids[70]]
    assert shown(f"/streams/orders/entries?at=({ids[70]}") == ids[69:19:-1]
    assert shown(f"/streams/orders/entries?at=({ids[20]}&dir=newer") == ids[70:20:-1]
    assert shown(f"/streams/orders/entries?at={orders[5].id.ms}") == ids[5::-1]
    page = browser.page(f"/streams/orders/entries/{ids[3]}")
    assert '"at": [ 3 ]' in page.text
    assert "billing pending b1 1" in page.text
    browser.get("/streams/orders/entries?at=nonsense", 400)
    browser.get("/streams/orders/entries/1-1", 404)
    browser.get("/streams/none", 404)
    browser.get("/queues/orders", 404)


def test_the_next_page_of_streams_begins_after_one_that_is_gone(opened: Open) -> None:
    links = opened().page("/streams?after=gone").links
    assert "/streams/orders" in links
    assert "/streams/emails" not in links


def test_pending_entries_are_shown_by_age_and_owner(opened: Open) -> None:
    browser = opened()
    page = browser.page("/streams/orders/groups/billing")
    assert "1 m to 10 m 60 60" in page.text
    assert "under 10 s 10 10" in page.text
    own = browser.page("/streams/orders/groups/billing?consumer=b2")
    assert len([each for each in own.links if "/entries/" in each]) == 10


def test_of_very_many_groups_and_consumers_none_is_read(
    opened: Open, full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server has no command for a part of them: all would be one reply."""
    monkeypatch.setattr(figures, "GROUPS_READ", 0)
    monkeypatch.setattr(group, "CONSUMERS_READ", 1)
    browser = opened()
    text = browser.page("/streams/orders").text
    assert "1 group, too many to list here. To see them: kvstream --store " in text
    assert " group ls orders " in text
    text = browser.page("/streams/orders/groups/billing").text
    assert "2 consumers, too many to list here." in text
    assert "billing" not in browser.page("/").text
    entry = full.stream("orders").range(count=1)[0].id
    assert "billing" not in browser.page(f"/streams/orders/entries/{entry}").text


def test_the_figures_of_many_groups_are_read_in_part(
    opened: Open, full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list has those of the first 100 groups; the page of a queue finds any group."""
    fan = full.stream("fan")
    for at in range(120):
        fan.create_group(f"g{at:03d}", mkstream=True)
    fan.create_group("w1").set_policy(lease=30)
    fan.create_group("w2").set_policy(lease=60)
    read: list[bytes] = []
    figure = info.group_queue

    def counting(txn: Any, name: bytes, stream: Any, group: Any) -> Any:
        read.append(group.name)
        return figure(txn, name, stream, group)

    monkeypatch.setattr(info, "group_queue", counting)
    browser = opened()
    assert "fan" not in browser.page("/queues").text
    assert len([each for each in read if each.startswith((b"g", b"w"))]) <= 100 + 2
    read.clear()
    assert "other group w2" in browser.page("/queues/fan").text
    assert len(read) == 122
    for path in ("/streams/fan/groups/w2", "/do/policy?queue=fan&group=w2"):
        read.clear()
        browser.get(path)
        assert read == [b"w2"]


def test_the_search_leads_to_a_stream(opened: Open) -> None:
    browser = opened()
    assert browser.get("/search?q=orders", 303).headers["location"] == "/streams/orders"
    assert "emails:dead" in browser.page("/search?q=email").text


def test_lists_hide_strings_and_what_kvstream_keeps_for_itself(opened: Open, full: Store) -> None:
    full.stream("kvstream:samples:10s").add({"orders": "1"})
    full.run(strings.put, "orders:note", b"text")
    browser = opened()
    for path in ("/search?q=s:", "/streams?q=s:"):
        page = browser.page(path)
        assert "samples" not in page.text
        assert "1 stream of single jobs and of kvstream hidden" in page.text
        assert "orders:note" not in page.text
        assert "kvstream:samples:10s" in browser.page(path + "&all=1").text
    assert "kvstream:samples:10s" in browser.page("/streams?q=kvstream:sam*").text
    assert "kvstream:samples:10s" in browser.page("/search?q=kvstream:sam").text


def test_the_cost_of_a_page_does_not_grow(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(300):
        full.stream(f"many:{at:03d}").create_group("g")
        full.stream(f"many:{at:03d}").add({"a": "1"})
    for name in ("q1", "q2", "q3", "q4"):
        queue = Queue(full, name, max_deliveries=1)
        queue.get()
        queue.put_many([{"n": str(at)} for at in range(150)])
        for message in queue.get(120):
            message.nack(fatal=True, error="x" * 3000)
    wide = full.stream("wide")
    wide.add_many([[(f"f{at}" * 20, "<&>" * 400) for at in range(50)] for _ in range(60)])
    full.stream("large").add_many([{"a": b"<" * 3_000_000} for _ in range(12)])
    browser = Browser(app(full, auth=lambda _: User("ann")))
    paths = [
        "/",
        "/queues",
        "/queues/q1",
        "/dead",
        "/dead/q1:dead",
        "/streams",
        "/streams/many:007",
    ]
    paths += ["/streams/wide/entries", "/streams/large/entries", "/streams/orders", "/schedules"]
    paths += ["/streams/orders/groups/billing", "/search?q=many"]
    paths += ["/find/orders?where=sku", "/find/wide?where=f1*", "/find/large?where=a"]
    paths += ["/server", "/replicas", "/archive", "/migrations"]
    paths += [
        f"/streams/{name}/entries/{full.stream(name).revrange(count=1)[0].id}"
        for name in ("wide", "large")
    ]
    paths += [f"{API}{'/overview' if path == '/' else path}" for path in paths]
    for path in paths:
        browser._app.listings.forget()
        with counting(monkeypatch) as counted:
            reply = browser.get(path)
        # a listing is one call for a thousand keys, which five seconds of all viewers share
        assert counted.calls <= CALLS_MAX, path
        assert counted.calls or path.startswith(API), path  # the menu of a page needs a listing
        assert counted.rows - len(full.keys()) <= ROWS_MAX, path
        assert len(reply.content) <= BYTES_MAX, (path, len(reply.content))


def test_a_listing_of_some_keys_says_so(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = opened()
    for path in ("/", "/queues", "/dead"):
        assert "keys alone" not in browser.page(path).text, path
    monkeypatch.setattr(listing, "KEYS_MAX", 3)
    browser._app.listings.forget()
    for path in ("/", "/queues", "/dead"):
        assert "Of the first 20,000 keys alone." in browser.page(path).text, path


def test_a_listing_is_shared_by_all_viewers(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "KEPT_S", float("inf"))
    console = app(full, auth=lambda _: User("ann"))
    Browser(console).get("/streams?q=nothing")
    with counting(monkeypatch) as counted:
        Browser(console).get("/streams?q=nothing")
    assert counted.calls == 0


def test_a_directory_is_shared_or_read_only(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", durability="no") as store:
        store.stream("orders").add({"a": "1"})
        console = app(tmp_path / "s", auth=lambda _: User("ann"))
        refused = Browser(console).page("/", 503)
        assert (
            "another process" in refused.text
            or "StoreLocked" in refused.text
            or "open" in refused.text
        )
    for read_only in (True, False):
        console = app(tmp_path / "s", auth=lambda _: User("ann"), read_only=read_only)
        assert "orders" in Browser(console).page("/streams").text
        assert ("read-only" in Browser(console).page("/").text) is read_only
        console.close()
    with Store.open(tmp_path / "s") as store:
        assert store.check() == []
    missing = app(tmp_path / "none", auth=lambda _: User("ann"))
    Browser(missing).get("/", 404)


def test_a_server_is_shown(served: Served) -> None:
    url = f"redis://127.0.0.1:{served.port}"
    queue = Queue(Store(served.engine), "emails", max_deliveries=1)
    queue.get()
    queue.put({"to": "ann"})
    queue.get()[0].nack(fatal=True, error="no such user")
    console = app(url, auth=lambda _: User("ann", "admin"))
    try:
        pages = Browser(console).crawl()
    finally:
        console.close()
    assert "no such user" in pages["/"].text
    assert re.search(r"Up for \d+ \w, no checkpoint since, \d+ slow requests?", pages["/"].text)
    assert {"/server", "/server/clients", "/server/slowlog", "/server/config"} <= set(pages)


def test_a_redis_is_shown_without_queues(redis_port: int) -> None:
    import redis

    with redis.Redis(port=redis_port) as client:
        client.xadd("orders", {"sku": "a1"})
        client.xgroup_create("orders", "billing", "0")
    console = app(f"redis://127.0.0.1:{redis_port}", auth=lambda _: User("ann"))
    try:
        pages = Browser(console).crawl()
    finally:
        console.close()
    assert "No queues" in pages["/queues"].text
    assert "billing" in pages["/streams/orders"].text


def test_every_address_is_in_the_table_once() -> None:
    addresses = [(route.path, method) for route in ROUTES for method in route.methods or ()]
    assert len(addresses) == len(set(addresses))
