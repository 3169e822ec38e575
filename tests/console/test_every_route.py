"""Every route of the table, HTML and JSON: who may use it, from where, and what it hides."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kvstream import Jobs, Queue
from kvstream.console import Role, User, app
from kvstream.console.redaction import HIDDEN
from kvstream.console.replies import API
from kvstream.console.routes import ROUTES
from tests.console.browser import HOST, Browser

SECRET = "4111-1111-1111-1111"
PUBLIC = {"/login", "/healthz", "/favicon.ico"}
ENDLESS = {"/events"}


class Place:
    """Jobs with a secret wherever a value may be, and paths of the table with names of theirs."""

    def __init__(self, jobs: Jobs) -> None:
        @jobs.task
        def charge(card: str, nested: dict[str, Any]) -> dict[str, str]:
            return {"card": card}

        nested = {"deep": [{"card": SECRET}]}
        self.jobs, store = jobs, jobs.store
        self.job = charge.enqueue(SECRET, nested).id
        charge.with_options(delay=3600).enqueue(card=SECRET, nested=nested)
        secret = {"card": SECRET, "body": json.dumps({"card": [SECRET]})}
        emails = Queue(store, "emails", consumer="w1", max_deliveries=1)
        emails.get()
        emails.put_many([secret] * 3)
        emails.get(2)[0].nack(fatal=True, error="refused")
        emails.put(secret, delay=3600)
        emails.streams()[0].schedule("nightly", "0 3 * * *", secret)
        self.entry = str(store.stream("emails").range(count=1)[0].id)

    def paths(self, method: str) -> Iterator[tuple[Any, str]]:
        """Yield each route that takes a method, with a path of it."""
        names = {"stream:kvname": "emails", "queue:kvname": "emails", "group:kvname": "workers"}
        for route in ROUTES:
            if method in (route.methods or ()):
                path = route.path
                for part, name in names.items():
                    path = path.replace(f"{{{part}}}", name)
                yield route, path.replace("{id}", self.job if "jobs" in path else self.entry)

    def browser(self, role: str | None, **options: Any) -> Browser:
        user = None if role is None else User("ann", role)
        return Browser(app(self.jobs, auth=lambda _: user, hosts=["console.test"], **options))


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    jobs = Jobs("unused", shared=False)
    with jobs.test():
        yield Place(jobs)
        assert jobs.store.check() == []


def test_each_route_has_the_role_that_it_names(place: Place) -> None:
    """The JSON of a page has the role of the page."""
    roles = {route.path: route.endpoint.role for route, _ in place.paths("GET")}
    for path, role in roles.items():
        if path.startswith(API):
            page = path.removeprefix(API)
            assert role is roles["/" if page == "/overview" else page], path
    for asking in (None, *Role):
        browser = place.browser(None if asking is None else asking.name.lower())
        for method in ("GET", "POST"):
            for route, path in place.paths(method):
                if route.path in PUBLIC | ENDLESS:
                    continue
                reply, role = browser.ask(method, path), route.endpoint.role
                if asking is None:
                    assert reply.status_code == 401, path
                    assert SECRET not in reply.text
                elif asking < role:
                    assert (reply.status_code, "needs the role" in reply.text) == (403, True), path
                elif method == "POST":  # without the token of a form
                    assert (reply.status_code, "too old" in reply.text) == (403, True), path
                else:
                    assert reply.status_code not in (401, 403, 500), (path, reply.status_code)


def test_no_request_of_another_site_or_name_is_taken(place: Place) -> None:
    browser = place.browser("admin")
    token = {"csrf": browser.page("/do/put?stream=emails&id=" + place.entry).forms[-1]["csrf"]}
    for method in ("GET", "POST"):
        for _, path in place.paths(method):
            headers = {"host": "evil.test"}
            assert browser.ask(method, path, headers=headers).status_code == 421, path
    for _, path in place.paths("POST"):
        for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "http://evil.test"}):
            reply = browser.ask("POST", path, headers=headers, data=token)
            assert reply.status_code == 403, path
            assert "another site" in reply.text, path
    for route, path in place.paths("GET"):
        if route.path not in ENDLESS:
            reply = browser.ask("GET", path, headers={"origin": "http://evil.test"})
            assert not [each for each in reply.headers if each.startswith("access-control")], path
    reading = place.browser("admin", read_only=True)
    for route, path in place.paths("POST"):
        if route.path not in PUBLIC and route.path != "/logout":
            assert "read-only" in reading.ask("POST", path, headers={"origin": HOST}).text, path


def shown(place: Place, browser: Browser) -> dict[str, str]:
    """Return what all routes for reading show, and the downloads."""
    found = {}
    more = [f"{root}/jobs?status=scheduled" for root in ("", API)]
    more += [f"{root}/find/emails?where=card" for root in ("", API)]
    more += [f"{root}/dead/emails:dead" for root in ("", API)]
    more += [f"/do/put?stream={each}&id={place.entry}" for each in ("emails", "emails:dead")]
    for path in [*(path for route, path in place.paths("GET") if route.path not in ENDLESS), *more]:
        found[path] = browser.ask("GET", path).text
    form = browser.page("/streams/emails/entries").forms[-1]
    for path in ("/export/emails", "/export/emails?format=csv", "/export-jobs"):
        found[path] = browser.ask("POST", path, data={"csrf": form.get("csrf", "")}).text
    return found


VALUES = {"/queues/emails", "/dead/emails:dead", "/streams/emails/entries", "/find/emails"}
VALUES |= {"/schedules", "/jobs?status=scheduled"}


def test_what_is_hidden_is_hidden_on_every_route(place: Place) -> None:
    plain = shown(place, place.browser("admin"))
    values = [root + path for root in ("", API) for path in (*VALUES, f"/jobs/{place.job}")]
    assert [path for path in values if SECRET not in plain[path]] == []
    assert SECRET in plain["/export/emails"]
    assert SECRET in plain["/export-jobs"]
    for browser in (
        place.browser("admin", redact=["card*"]),
        place.browser("viewer", hide_values=True),
    ):
        hidden = shown(place, browser)
        assert [path for path, text in hidden.items() if SECRET in text] == []
        assert [path for path in values if HIDDEN not in hidden[path]] == []
