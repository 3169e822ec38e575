"""Who is let in, and what no request may do."""

from typing import Any

import pytest

import kvstream.console
from kvstream import InvalidArgument, Store
from kvstream.console import Console, Role, User, app
from kvstream.console.guard import POLICY
from kvstream.console.logins.sessions import TokenLogin
from kvstream.console.routes import ROUTES
from tests.console.browser import Browser
from tests.console.conftest import Open


def test_nobody_is_let_in_by_default(store: Store) -> None:
    with pytest.raises(TypeError, match="auth"):
        app(store)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="auth is a function"):
        app(store, auth=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="a role is one of viewer, operator, admin"):
        User("ann", "root")
    with pytest.raises(InvalidArgument, match="a console shows a Store"):
        app(7, auth=lambda _: None)


def test_every_route_says_who_may_use_it() -> None:
    """An endpoint without ``requires`` has no role; one that takes POST is no viewer's."""
    for route in ROUTES:
        assert hasattr(route.endpoint, "role"), route.path
        methods = route.methods or set()
        assert methods <= {"GET", "HEAD"} or methods == {"POST"}, route.path
        if route.endpoint.role is None:
            assert route.path in ("/login", "/healthz", "/favicon.ico")
        elif methods == {"POST"} and route.path != "/logout":
            assert route.endpoint.role >= Role.OPERATOR, route.path


def paths_of(method: str) -> list[str]:
    """Return the paths of the table, with names of streams that exist."""
    names = {"{stream:kvname}": "orders", "{queue:kvname}": "emails", "{group:kvname}": "billing"}
    found = []
    for route in ROUTES:
        path = route.path
        for part, name in names.items():
            path = path.replace(part, name)
        if method in (route.methods or ()):
            found.append(path.replace("{id}", "1-1"))
    return found


def test_who_is_not_known_sees_nothing(full: Store) -> None:
    async def nobody(_: Any) -> User | None:
        return None

    browser = Browser(app(full, auth=nobody))
    for path in paths_of("GET"):
        if path not in ("/login", "/healthz", "/favicon.ico"):
            reply = browser.get(path, 401)
            assert "orders" not in reply.text
            assert "emails" not in reply.text
    browser.get("/login", 404)
    assert browser.ask("POST", "/logout").status_code == 401
    assert browser.ask("POST", "/login").status_code == 404


def test_the_reply_of_auth_must_be_a_user(full: Store) -> None:
    browser = Browser(app(full, auth=lambda _: True))  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidArgument, match="auth returns a"):
        browser.get("/")


@pytest.mark.parametrize("path", ["/", "/streams/orders", "/nothing", "/static/console.css"])
def test_every_reply_has_the_headers(opened: Open, path: str) -> None:
    headers = opened().ask("GET", path).headers
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_other_names_of_the_host_are_refused(full: Store) -> None:
    console = app(full, auth=lambda _: User("ann"), hosts=["console.test"])
    Browser(console).get("/")
    Browser(console, host="evil.test").get("/", 421)


def test_a_login_works_once(full: Store) -> None:
    offered: list[str] = []
    sessions = TokenLogin(User("local", "admin"), "c", offered.append)
    sessions.offer()
    console = Console(full, sessions)
    ann, bob = Browser(console), Browser(console)
    assert "prints a login URL" in ann.get("/", 401).text
    assert ann.ask("POST", "/login", data={"name": "local"}).status_code == 404
    ann.get("/login?token=wrong", 401)
    reply = ann.get("/" + offered[0])
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    ann.get("/")
    bob.get("/" + offered[0], 401)
    bob.get("/", 401)
    bob.get("/" + offered[1])
    (form,) = [each for each in bob.page("/").forms if each[""] == "/logout"]
    bob.ask("POST", "/logout", data={"csrf": form["csrf"]})
    bob.get("/", 401)
    assert len(offered) == 3


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_get_and_post_are_known(opened: Open, method: str) -> None:
    assert opened().ask(method, "/").status_code == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil.test"},
        {"origin": "null"},
        {"sec-fetch-site": ""},
    ],
)
def test_forms_of_other_sites_are_refused(opened: Open, headers: dict[str, str]) -> None:
    reply = opened().ask("POST", "/", headers=headers, data={"csrf": "x"})
    assert reply.status_code == 403


def test_a_form_that_is_too_long_is_refused(opened: Open) -> None:
    assert opened().ask("POST", "/", data={"a": "x" * 70_000}).status_code == 413


def test_the_package_is_there_as_an_attribute() -> None:
    assert kvstream.console.app is app
