"""Search over fields and IDs, and downloads: bounded, redacted, and in the audit."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from kvstream import Jobs, Store
from kvstream.console import User, app, finding
from kvstream.console.actions.plan import AUDIT
from tests.console.browser import Browser
from tests.console.conftest import HOSTILE, Open

SECRET = "card"


@pytest.fixture
def browser(opened: Open) -> Browser:
    return opened(redact=[SECRET])


def ids_on(page: Any) -> list[str]:
    return [each.rpartition("/")[2] for each in page.links if "/entries/" in each]


def test_entries_are_found_by_their_fields(browser: Browser, full: Store) -> None:
    orders = full.stream("orders").range()
    page = browser.page("/find/orders?where=sku%3Da1?%20note")
    assert ids_on(page) == [str(each.id) for each in orders[19:9:-1]]
    assert "10 entries found. Looked at 120 entries" in page.text
    assert ": all of them." in page.text
    page = browser.page("/find/orders?where=sku!%3Da*")
    assert "Nothing found. Looked at 120 entries" in page.text
    assert " find --reverse --count 50 orders 'sku!=a*' " in page.text
    page = browser.page("/find/orders?where=a;id%20%24(id)")  # a link that somebody has made
    assert " find --reverse --count 50 orders 'a;id' '$(id)' " in page.text
    for wrong in ("%27open", "%3Dx", "+".join(["a"] * 11)):
        browser.get(f"/find/orders?where={wrong}", 400)
    browser.get("/find/none?where=a", 404)
    assert "/find/orders" in {each[""] for each in browser.page("/streams/orders/entries").forms}


def test_a_search_is_bounded_and_goes_on(
    browser: Browser, full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "LOOKED_MAX", 50)
    found, path, pages = [], "/find/orders?where=sku%3Da1*", 0
    while path:
        page = browser.page(path)
        found += ids_on(page)
        pages += 1
        assert "Looked at 50 entries" in page.text or "Looked at 20 entries" in page.text
        path = next((each for each in page.links if "at=%28" in each), "")
    assert pages == 3
    wanted = [each for each in full.stream("orders").range() if each.fields[b"sku"][:2] == b"a1"]
    assert found == [str(each.id) for each in reversed(wanted)]
    # the time is looked at after each entry, and a condition is short: none takes for ever
    full.stream("long").add({"f": "a" * finding.VALUE_MAX + "b"})
    assert "Nothing found." in browser.page("/find/long?where=f%3D*b").text
    assert "1 entry found." in browser.page("/find/long?where=f%3Da*").text
    assert "at most 200 bytes" in browser.page(f"/find/long?where=f%3D*{'a' * 200}b*", 400).text
    ticks = iter(range(1000))
    with monkeypatch.context() as slow:
        slow.setattr(finding, "monotonic", lambda: next(ticks))
        assert "Looked at 9 entries" in browser.page("/find/orders?where=sku%3Dx").text
    monkeypatch.setattr(finding, "LOOKED_S", 0)
    assert "Nothing found. Looked at 0 entries" in browser.page("/find/orders?where=sku").text


def test_no_search_tells_a_value_that_is_hidden(full: Store) -> None:
    full.stream("pay").add({SECRET: "4242", "json": '{"card": "4242"}', "sku": "a1"})
    operator = Browser(app(full, auth=lambda _: User("ann", "operator"), redact=[SECRET]))
    viewer = Browser(app(full, auth=lambda _: User("bob"), hide_values=True))
    for browser, where in (
        (operator, "card%3D42*"),
        (operator, "json%3D*4242*"),
        (viewer, "sku%3Da1"),
    ):
        page = browser.page(f"/find/pay?where={where}")
        assert "Nothing found." in page.text
        assert "4242" not in page.text.replace(where, "").replace("42*", "").replace("*4242*", "")
    assert "1 entry found." in operator.page("/find/pay?where=card").text


def download(browser: Browser, path: str, code: int = 200) -> Any:
    token = browser.page("/streams/orders/entries").forms[-1]["csrf"]
    reply = browser.ask("POST", path, data={"csrf": token})
    assert reply.status_code == code, reply.text[:500]
    return reply


def test_a_page_is_downloaded_as_json_lines_and_csv(browser: Browser, full: Store) -> None:
    orders = full.stream("orders").range()
    reply = download(browser, "/export/orders")
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["content-disposition"] == 'attachment; filename="orders.jsonl"'
    lines = [json.loads(each) for each in reply.text.splitlines()]
    assert [each["id"] for each in lines] == [str(each.id) for each in reversed(orders)]
    assert lines[0]["fields"]["sku"] == "a119"
    reply = download(browser, f"/export/orders?format=csv&at={orders[3].id}&where=sku%3Da[02]")
    rows = list(csv.reader(io.StringIO(reply.text)))
    assert rows[0] == ["id", "sku", "note"]
    assert [row[1] for row in rows[1:]] == ["a2", "a0"]
    audit = [each.fields for each in full.stream(AUDIT).range()]
    assert [(each[b"what"], each[b"target"], each[b"count"]) for each in audit] == [
        (b"export", b"orders", b"120"),
        (b"export", b"orders", b"2"),
    ]
    assert json.loads(audit[1][b"facts"])["where"] == "sku=a[02]"


def test_downloads_hide_secrets_and_disarm_formulas(browser: Browser, full: Store) -> None:
    full.stream("s").add(
        [
            ("=1+1", "=cmd|' /C calc'!A0"),
            ("card", "4242"),
            ("n", "-5"),
            ("w", "\uff1d1"),
            ("p", "a;=1"),
        ]
    )
    text = download(browser, "/export/s?format=csv").text
    assert "4242" not in text
    _, row = csv.reader(io.StringIO(text))
    assert row[1:] == ["'=cmd|' /C calc'!A0", "(hidden)", "'-5", "'\uff1d1", "a;=1"]
    assert '"a;=1"' in text  # one cell where the semicolon separates
    assert download(browser, "/export/s").text.count("(hidden)") == 1
    for name in HOSTILE:  # bytes, repeated names
        path = browser.page("/streams").links
        (link,) = {each for each in path if each.endswith(_segment(name))}
        reply = download(browser, link.replace("/streams/", "/export/"))
        assert json.loads(reply.text)["fields"]
        assert "\n" not in reply.headers["content-disposition"]
        refused = download(browser, link.replace("/streams/", "/export/") + "?format=csv", 400)
        assert "choose JSON lines" in refused.text


def _segment(name: bytes) -> str:
    from kvstream.console.names import segment_of

    return "/streams/" + segment_of(name)


def test_downloads_are_for_operators_with_a_form(opened: Open) -> None:
    viewer = opened("viewer")
    assert "Download" not in viewer.page("/streams/orders/entries").text
    assert viewer.ask("POST", "/export/orders", data={}).status_code == 403
    operator = opened("operator")
    assert operator.ask("POST", "/export/orders", data={"csrf": "x"}).status_code == 403
    assert operator.ask("GET", "/export/orders").status_code == 405


def test_jobs_are_downloaded_as_csv(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "data", shared=False, durability="no")

    @jobs.task
    def mail(to: str, card: str = "") -> str:
        if to == "=bad":
            raise ValueError("no such user")
        return to

    mail.enqueue("ann", card="4242")
    mail.enqueue("=bad")
    browser = Browser(app(jobs, auth=lambda _: User("ann", "admin"), redact=[SECRET]))
    (form,) = [each for each in browser.page("/jobs").forms if each[""].startswith("/export-jobs")]
    reply = browser.ask("POST", form[""], data={"csrf": form["csrf"]})
    assert reply.status_code == 200, reply.text
    rows = list(csv.reader(io.StringIO(reply.text)))
    assert rows[0][:3] == ["id", "status", "task"]
    assert {row[2] for row in rows[1:]} == {mail.name}
    assert "4242" not in reply.text
    assert "(hidden)" in reply.text
    (entry,) = jobs.store.stream(AUDIT).range()
    assert entry.fields[b"count"] == b"2"
    assert jobs.store.check() == []
    jobs.close()


def test_the_search_finds_an_entry_by_its_id(browser: Browser, full: Store) -> None:
    entry = full.stream("orders").range(count=6)[5].id
    reply = browser.get(f"/search?q={entry}", 303)
    assert reply.headers["location"] == f"/streams/orders/entries/{entry}"
    full.stream("copy").add({"a": "1"}, id=entry)
    browser._app.listings.forget()
    page = browser.page(f"/search?q={entry}")
    assert f"/streams/copy/entries/{entry}" in page.links
    assert f"/streams/orders/entries/{entry}" in page.links
    assert "No entry has this ID" in browser.page("/search?q=1-1").text
