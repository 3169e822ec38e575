"""The pages as JSON: each has the fields of its form, in their kinds, and what the page has."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from kvstream import Queue, Store
from kvstream.console import User, app
from kvstream.console.api.fields import Field
from kvstream.console.api.forms import FORMS
from kvstream.console.api.routes import path_of
from kvstream.console.names import name_of
from kvstream.console.reference import reference
from kvstream.console.replies import API
from kvstream.console.routes import PAGES
from tests.cli.program import ROOT
from tests.console.browser import Browser, route_of
from tests.console.conftest import HOSTILE, Open

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
KINDS: dict[str, Callable[[Any], bool]] = {
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: type(value) is bool,
    "text": lambda value: type(value) is str,
    "name": lambda value: type(value) is str or list(value) == ["base64"],
    "time": lambda value: TIME.fullmatch(value) is not None,
    "ID": lambda value: re.fullmatch(r"@?\d+-\d+", value) is not None,
    "link": lambda value: value.startswith(API + "/"),
    "data": lambda value: json.dumps(value) != "",
    "value": lambda value: (
        list(value) == ["name", "value", "size"]
        and KINDS["name"](value["name"])
        and KINDS["name"](value["value"])
        and KINDS["integer"](value["size"])
    ),
    "object of figures": lambda value: all(type(it) in (int, float, str) for it in value.values()),
    "object of figures of each section": lambda value: all(
        map(KINDS["object of figures"], value.values())
    ),
}
"""What a value of each kind is like, as the page of the docs says it."""


def check(fields: Any, found: dict[str, Any], place: str) -> None:
    """Check an object against the fields of its form."""
    assert list(found) == [each.name for each in fields], place
    for each in fields:
        _check_value(each, found[each.name], f"{place}.{each.name}")


def _check_value(field: Field, value: Any, place: str) -> None:
    if value is None:
        assert field.is_optional, place
        return
    title = field.kind.title
    values = value if title.startswith("list of ") else [value]
    for each in values:
        if field.kind.record is not None:
            check(field.kind.record.fields, each, place)
        else:
            known = KINDS[title.removeprefix("list of ")]
            assert known(each) or (each is None and place.endswith(".values")), (place, each)


def read(browser: Browser, path: str, code: int = 200) -> Any:
    reply = browser.get(path, code)
    assert reply.headers["content-type"] == "application/json", path
    assert "set-cookie" not in reply.headers, path
    return json.loads(reply.content, parse_constant=pytest.fail)


def links_in(found: Any) -> list[str]:
    """Return the links of a reply: those to rows, and those to other parts of the page."""
    if isinstance(found, list):
        return [link for each in found for link in links_in(each)]
    if not isinstance(found, dict):
        return [found] if isinstance(found, str) and found.startswith(API + "/") else []
    return [link for each in found.values() for link in links_in(each)]


def crawl(browser: Browser, *paths: str) -> dict[str, Any]:
    """Read JSON from page to page, some of each kind; check each reply against its form."""
    forms = {path_of(path): form for path, form in FORMS.items()}
    waiting, found, seen = list(paths), dict[str, Any](), dict[str, int]()
    while waiting:
        path = waiting.pop(0)
        kind = route_of(path)
        seen[kind] = seen.get(kind, 0) + 1
        if path in found or seen[kind] > 12:
            continue
        found[path] = made = read(browser, path)
        links = made.pop("links")
        assert links["self"].partition("?")[0] == path.partition("?")[0]
        check(forms[kind].fields, made, path)
        waiting += links_in(made)
    return found


def test_each_page_has_its_form(opened: Open) -> None:
    paths = [path_of(each.path) for each in PAGES if "{" not in each.path]
    of_servers = ("clients", "slowlog", "config")
    found = crawl(
        opened(),
        *(each for each in paths if not each.endswith(of_servers) and "search" not in each),
        *(f"{API}/search?q=email", f"{API}/find/orders?where=sku%3Da1*"),
        *(f"{API}/queues/emails", f"{API}/streams/orders/entries?at=now-1d&dir=newer"),
    )
    kinds = {route_of(path) for path in found}
    missing = (
        {path_of(path) for path in FORMS} - kinds - {f"{API}/server/{it}" for it in of_servers}
    )
    assert missing == {f"{API}/jobs/{{id}}"}
    assert set(FORMS) == {each.path for each in PAGES}


def test_it_says_what_the_page_says(opened: Open, full: Store) -> None:
    browser = opened()
    overview = read(browser, f"{API}/overview")
    assert overview["dead"] == 9
    first = overview["failures"][0]
    assert (first["queue"], first["task"], first["letters"]) == ("emails:high", "mail", 8)
    assert read(browser, first["url"])["letters"][0]["reason"] == "fatal"
    queue = read(browser, f"{API}/queues/emails")["queue"]
    assert queue["streams"] == ["emails:high", "emails"]
    entries = read(browser, f"{API}/streams/orders/entries")
    assert len(entries["entries"]) == 50
    older = read(browser, entries["older"])
    ids = [str(each.id) for each in full.stream("orders").revrange(count=100)]
    assert [each["id"] for each in (*entries["entries"], *older["entries"])] == ids
    note, size = '{"at": [119]}', 13
    assert entries["entries"][0]["fields"][1] == {"name": "note", "value": note, "size": size}
    pending = read(browser, f"{API}/streams/orders/groups/billing?consumer=b2")
    assert [each["consumer"] for each in pending["pending"]] == ["b2"] * 10


def test_names_and_values_of_strangers_are_text_or_base64(opened: Open) -> None:
    browser = opened()
    rows = read(browser, f"{API}/streams")["streams"]
    known = {json.dumps(each["name"]): each["url"] for each in rows}
    for name in HOSTILE:
        text = json.dumps({"base64": "/wA="} if name == b"\xff\x00" else name.decode())
        segment = known[text].rpartition("/")[2]
        assert name_of(segment) == name
        (entry,) = read(browser, known[text] + "/entries")["entries"]
        assert [each["name"] for each in entry["fields"]][-2:] == ["f", "f"]


def test_errors_are_json(opened: Open, full: Store) -> None:
    browser = opened()
    for path, code, text in (
        ("/streams/none", 404, "no such key"),
        ("/streams/kvstream:audit/entries", 404, "no such key"),
        ("/streams/orders/entries?at=nonsense", 400, "nonsense"),
        ("/nothing", 404, "Nothing is at this address."),
        ("/server/slowlog", 400, "this is a directory"),
    ):
        error = read(browser, API + path, code)["error"]
        assert error["status"] == code
        assert text.lower() in error["text"].lower(), error
    nobody = Browser(app(full, auth=lambda _: None))
    assert read(nobody, f"{API}/overview", 401)["error"]["title"] == "Not logged in"
    assert browser.ask("POST", f"{API}/queues").status_code == 405
    browser.get(f"/events?page={API}/queues", 404)


def test_the_page_of_the_docs_is_that_of_the_forms() -> None:
    made = "\n".join(reference()) + "\n"
    assert (ROOT / "docs" / "console-api.md").read_text() == made, (
        "run: python -m kvstream.console.reference > docs/console-api.md"
    )
    headings = re.findall(r"^### (.*)", made, re.MULTILINE)
    assert len(headings) == len(set(headings))


def test_links_stay_under_the_path_of_the_console(opened: Open) -> None:
    browser = opened(root_path="/a/b")
    found = read(browser, f"{API}/overview")
    assert found["failures"][0]["url"].startswith(f"/a/b{API}/dead/")
    reply = browser.get(f"{API}/search?q=orders", 303)
    assert reply.headers["location"] == f"/a/b{API}/streams/orders"


def test_long_values_are_cut_and_say_their_size(store: Store) -> None:
    large = store.stream("large")
    large.add([("a", "é" * 30_000), ("b", "x" * 100)])
    queue = Queue(store, "q", max_deliveries=1)
    queue.get()
    browser = Browser(app(store, auth=lambda _: User("ann")))
    (entry,) = read(browser, f"{API}/streams/large/entries")["entries"]
    assert entry["fields"][0] == {"name": "a", "value": "é" * 100, "size": 60_000}
    first, second = read(browser, entry["url"])["fields"]
    assert (len(first["value"]), first["size"]) == (20_000, 60_000)
    assert second == {"name": "b", "value": "", "size": 100}
