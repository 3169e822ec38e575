"""The pages of a server: figures, clients, slow log, settings, replicas, archive, migrations."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import pytest
import redis

from kvstream import Store
from kvstream.console import User, app
from kvstream.console.listing import KEPT_S, Listings
from kvstream.console.replies import API
from kvstream.console.server_info import Replica, replicas_in, settings_in
from kvstream.console.shared_calls import SharedCall
from kvstream.migration.items import JOURNAL_PREFIX
from kvstream.operations import strings
from tests.console.browser import Browser
from tests.console.test_api import crawl
from tests.patience import PATIENCE_S, until
from tests.server.conftest import Serve, redis_port, redis_process, serve, served

__all__ = ["redis_port", "redis_process", "serve", "served"]


@pytest.mark.parametrize("kind", ["kvstream", "redis"])
def test_a_server_is_shown_by_sections(kind: str, request: pytest.FixtureRequest) -> None:
    found: Any = request.getfixturevalue("served" if kind == "kvstream" else "redis_port")
    port = found.port if kind == "kvstream" else found
    with redis.Redis(port=port, client_name="<b>worker</b>") as client:
        client.config_set("slowlog-log-slower-than", 0)
        client.config_set("requirepass", "")
        client.xadd("orders", {"card": "4242", "note": "x", "<i>": "1"})
        client.config_set("slowlog-log-slower-than", 1_000_000)
        client.config_set("masterauth", "s3cret")
        console = app(f"redis://127.0.0.1:{port}", auth=_as("admin"), redact=["card"])
        browser = Browser(console)
        try:
            assert "connected_clients" in browser.page("/server").text
            figures = browser.page("/server?q=uptime_in_sec").text
            assert "uptime_in_seconds" in figures
            assert "connected_clients" not in figures
            page = browser.page("/server/clients")
            assert "<b>worker</b>" in page.text
            slow = browser.page("/server/slowlog").text
            assert "card (hidden) note x" in slow
            assert "4242" not in slow
            settings = browser.page("/server/config").text
            assert "slowlog-log-slower-than 1000000" in settings
            assert "masterauth (hidden)" in settings
            assert "s3cret" not in settings
            assert "maxclients" not in browser.page("/server/config?q=slowlog").text
            pages = ("server", "server/clients", "server/slowlog", "server/config", "replicas")
            found = crawl(browser, *(f"{API}/{each}" for each in pages))
            assert found[f"{API}/server/config"]["settings"]["masterauth"] == "(hidden)"
            assert "4242" not in str(found[f"{API}/server/slowlog"])
            names = [each["name"] for each in found[f"{API}/server/clients"]["clients"]]
            assert "<b>worker</b>" in names
        finally:
            console.close()
            client.config_set("masterauth", "")


def _as(role: str) -> Any:
    return lambda _: User("ann", role)


def test_settings_are_for_admins_and_clients_for_operators(full: Store) -> None:
    for role, config, clients in (("viewer", 403, 403), ("operator", 403, 400)):
        browser = Browser(app(full, auth=_as(role)))
        browser.get("/server/config", config)
        browser.get("/server/clients", clients)
        assert "Settings" not in browser.page("/server").text
    text = Browser(app(full, auth=_as("admin"))).page("/server/slowlog", 400).text
    assert "this is a directory" in text


def test_a_pair_shows_its_roles_and_lag(serve: Serve) -> None:
    primary = serve()
    replica = serve()
    with redis.Redis(port=replica.port) as client:
        client.replicaof("127.0.0.1", primary.port)
    with redis.Redis(port=primary.port) as client:
        client.xadd("orders", {"a": "1"})
        until(lambda: client.info("replication").get("connected_slaves") == 1)
        client.wait(1, 10_000)
    for port, words in (
        (primary.port, ("this server is a primary", "online")),
        (replica.port, ("this server is a replica", f"to 127.0.0.1 :{primary.port}", "Link up")),
    ):
        console = app(f"redis://127.0.0.1:{port}", auth=_as("viewer"))
        try:
            page = Browser(console).page("/replicas")
        finally:
            console.close()
        assert "/replicas" in page.links
        for each in words:
            assert each in page.text


def test_replicas_of_redis_and_kvstream_are_read() -> None:
    about = {
        "connected_slaves": 2,
        "slave0": "ip=10.0.0.1,port=6379,state=online,offset=42,lag=1,io-thread=0",
        "slave1": "ip=::1,port=1,state=wait_bgsave",
    }
    assert list(replicas_in(about)) == [
        Replica("10.0.0.1:6379", "online", 42, 1),
        Replica("::1:1", "wait_bgsave", None, None),
    ]


def test_secrets_in_settings_are_hidden() -> None:
    words = [b"requirepass", b"x", b"masterauth", b"", b"archive", b"s3://u:pw@h/a", b"a", b"1"]
    words += [b"archive-key", b"k", b"tls-key-file-pass", b"p"]
    assert dict(settings_in(words)) == {
        **{"requirepass": "(hidden)", "masterauth": "", "archive": "s3://h/a", "a": "1"},
        **{"archive-key": "(hidden)", "tls-key-file-pass": "(hidden)"},
    }


def test_an_archive_is_shown(tmp_path: Path, serve: Serve) -> None:
    url = f"file://{tmp_path / 'archive'}"
    with Store.open(tmp_path / "s", archive=url) as store:
        store.stream("orders").add({"a": "1"})
        browser = Browser(app(store, auth=_as("viewer")))
        page = browser.page("/archive")
        assert "/archive" in page.links
        assert url in page.text
        until(lambda: "follows" in browser.page("/archive").text, look_s=0.1)
        (found,) = crawl(browser, f"{API}/archive").values()
        assert found["archive"]["url"] == url
        assert (
            "/archive"
            not in Browser(app(Store(serve().engine), auth=_as("viewer"))).page("/").links
        )


def test_a_follower_is_shown(full: Store) -> None:
    browser = Browser(app(full, auth=_as("viewer")))
    assert "/migrations" not in browser.page("/").links
    assert "No migration into this database" in browser.page("/migrations").text
    journal = {
        **{"state": "following", "source": "redis://u:pw@old:6379", "replid": "r", "offset": 4321},
        **{"db": 0, "again": [], "skipped": {"<b>PUBLISH": 7}, "refused": {}},
    }
    for name, value in (
        (b"1", json.dumps(journal).encode()),
        (b"2", b"damaged"),
        (b"3", b"[" * 100_000),
    ):
        full.run(strings.put, JOURNAL_PREFIX + name, value)
    browser._app.listings.forget()
    page = browser.page("/migrations")
    assert "/migrations" in page.links
    assert "redis://old:6379 following 4,321" in page.text
    assert "<b>PUBLISH 7" in page.text
    assert "damaged" not in page.text
    assert "JSONDecodeError" in page.text
    assert "RecursionError" in page.text
    (found,) = crawl(browser, f"{API}/migrations").values()
    assert [each["offset"] for each in found["followers"]] == [4321, None, None]


def test_all_who_ask_share_one_call() -> None:
    """Viewers of a store that is away wait for one attempt, not each for those before."""
    calls: list[int] = []
    shared, asking, away = SharedCall[int](), Semaphore(0), Event()

    def fail() -> int:
        calls.append(1)
        asking.release()
        assert away.wait(PATIENCE_S)
        raise ConnectionError("away")

    def ask() -> int:
        asking.release()
        return shared.run(fail)

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(shared.run, fail)
        assert asking.acquire(timeout=PATIENCE_S)
        others = [threads.submit(ask) for _ in range(3)]
        assert all(asking.acquire(timeout=PATIENCE_S) for _ in others)
        until(lambda: shared.waiting == len(others))
        away.set()
        for each in (first, *others):
            with pytest.raises(ConnectionError):
                each.result(PATIENCE_S)
    assert calls == [1]
    assert shared.run(lambda: 7) == 7


def test_a_listing_that_is_too_old_is_better_than_to_wait(full: Store) -> None:
    listings = Listings()
    before = listings.get(full)
    object.__setattr__(before, "taken", before.taken - 2 * KEPT_S)
    begun, go = Event(), Event()

    class Slow:
        def key_infos(self) -> Any:
            begun.set()
            assert go.wait(PATIENCE_S)
            return full.key_infos()

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(listings.get, Slow())  # type: ignore[arg-type]
        assert begun.wait(PATIENCE_S)
        assert listings.get(full) is before
        full.stream("new").add({"a": "1"})
        listings.forget()  # an action has changed something: what is being read is too old
        go.set()
        reading.result(PATIENCE_S)
    assert b"new" in listings.get(full).keys
