"""Login by the users of a server: roles, limits, the end, and keys that are refused."""

from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest
import redis

from kvstream import AccessDenied, InvalidArgument, ServerUnavailable
from kvstream.console import Console, Role, User
from kvstream.console.logins import sessions
from kvstream.console.logins import tries as limits
from kvstream.console.logins.passwords import PasswordLogin, role_of_user
from kvstream.console.logins.sessions import Sessions
from kvstream.console.logins.tries import TooManyTries, Tries
from kvstream.opening import open as open_store
from kvstream.types.urls import with_login
from tests.console.browser import Browser
from tests.server.conftest import redis_port, redis_process, serve, served

__all__ = ["redis_port", "redis_process", "serve", "served"]

USERS = {
    "ann": ">a1 on +@all ~* &*",
    "bob": ">b1 on +@read +info +xadd +xack +xdel +multi +exec ~orders* ~kvstream:audit",
    "eve": ">e1 on +@read +@connection ~orders*",
    "nobody": ">n1 on +@read +@connection resetkeys",
    "open": "nopass on +@read ~*",
}
"""An admin, an operator, a viewer, a viewer without keys, and one whom everybody can be."""


@pytest.fixture(params=["kvstream", "redis"])
def port(request: pytest.FixtureRequest) -> int:
    """The port of a server with users, streams and a group."""
    kind = request.param == "kvstream"
    found: int = request.getfixturevalue("served" if kind else "redis_port")
    return found.port if kind else found  # type: ignore[attr-defined]


@pytest.fixture
def admin(port: int) -> Iterator[Any]:
    with redis.Redis(port=port, decode_responses=True) as client:
        for name, rules in USERS.items():
            client.execute_command("ACL", "SETUSER", name, *rules.split())
        client.xadd("orders", {"sku": "a1"})
        client.xgroup_create("orders", "billing", "0")
        client.xadd("secrets", {"pin": "1234"})
        yield client


Log = Callable[..., Browser]


@pytest.fixture
def log_in(port: int, admin: Any) -> Iterator[Log]:
    url = f"redis://127.0.0.1:{port}"
    console = Console(url, PasswordLogin(url, "c"))

    def log_in(name: str, password: str, code: int = 303, browser: Browser | None = None) -> Any:
        browser = browser or Browser(console)
        (form,) = browser.page("/login").forms
        data = {"csrf": form["csrf"], "name": name, "password": password}
        reply = browser.ask("POST", "/login", data=data)
        assert reply.status_code == code, reply.text[:500]
        browser.last = reply  # type: ignore[attr-defined]
        return browser

    yield log_in
    console.close()


def footer(browser: Browser) -> str:
    return browser.page("/streams").text


def test_the_role_of_a_user_is_that_of_the_rights(log_in: Log) -> None:
    assert "ann, admin" in footer(log_in("ann", "a1"))
    assert "bob, operator" in footer(log_in("bob", "b1"))
    assert "eve, viewer" in footer(log_in("eve", "e1"))
    for name, password in (("ann", "wrong"), ("none", "x"), ("open", "x"), ("", ""), ("eve", "")):
        page = log_in(name, password, 401).last.text  # type: ignore[attr-defined]
        assert "does not let in this name with this password" in page


def test_keys_that_are_refused_are_not_shown(log_in: Log, admin: Any) -> None:
    ann, eve, nobody = log_in("ann", "a1"), log_in("eve", "e1"), log_in("nobody", "n1")
    assert "secrets" in ann.page("/streams").text
    for browser, shown in ((eve, "orders"), (nobody, "No streams yet.")):
        for path in ("/", "/streams?all=1", "/streams?q=s", "/queues", "/dead"):
            assert "secrets" not in browser.page(path).text, path
        assert shown in browser.page("/streams").text
        assert "No stream has this name." in browser.page("/search?q=secrets").text
        for path in ("/streams/secrets", "/streams/secrets/entries"):
            refused = browser.page(path, 403)
            assert "permissions to access" in refused.text
            assert "1234" not in refused.text
    assert "permissions to run" in eve.page("/server/slowlog", 403).text
    # each refusal is a line of the server's log: the next pages ask for no refused key
    admin.execute_command("ACL", "LOG", "RESET")
    for browser in (eve, nobody):
        browser.page("/streams")
    about = [str(each) for each in admin.execute_command("ACL", "LOG")]
    assert not [each for each in about if "secrets" in each and "type" in each]
    assert "bob, operator" in footer(log_in("bob", "b1"))


def test_an_action_has_the_rights_of_the_user(log_in: Log, admin: Any) -> None:
    consumer = {"groupname": "billing", "consumername": "b1", "streams": {"orders": ">"}}
    ((_, ((entry, _),)),) = admin.xreadgroup(**consumer)
    action = f"/do/ack?stream=orders&group=billing&id={entry}"
    log_in("eve", "e1").get(action, 403)
    bob = log_in("bob", "b1")
    (form,) = [each for each in bob.page(action).forms if each[""].startswith("/do/")]
    assert bob.ask("POST", form[""], data={"csrf": form["csrf"]}).status_code == 303
    ((_, fields),) = admin.xrange("kvstream:audit")
    assert (fields["who"], fields["what"]) == ("bob", "ack")
    bob.get("/do/delete-stream?stream=orders", 403)


def test_a_login_has_a_new_secret_and_ends(log_in: Log, admin: Any) -> None:
    ann, other = log_in("ann", "a1"), log_in("ann", "a1")
    before = dict(ann.cookies)
    log_in("ann", "a1", browser=ann)
    assert before != dict(ann.cookies)
    earlier = Browser(ann._app)
    earlier.cookies = httpx.Cookies(before)
    earlier.get("/", 401)  # a second login of a browser ends its first one
    stolen = Browser(ann._app)
    stolen.cookies = httpx.Cookies(ann.cookies)
    (form,) = [each for each in ann.page("/").forms if each[""] == "/logout"]
    assert ann.ask("POST", "/logout", data={"csrf": "x"}).status_code == 403
    assert ann.ask("POST", "/logout", data={"csrf": form["csrf"]}).status_code == 303
    stolen.get("/", 401)
    assert "Log in" in ann.page("/", 401).text
    other.get("/")  # the same user in another browser


def test_a_user_who_is_deleted_is_logged_out(log_in: Log, admin: Any) -> None:
    ann = log_in("ann", "a1")
    admin.execute_command("ACL", "DELUSER", "ann")
    assert ann.ask("GET", "/").status_code == 403
    ann.get("/", 401)


@pytest.mark.parametrize("port", ["redis"], indirect=True)
def test_logins_are_limited(log_in: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e6]
    for module in (sessions, limits):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    for _ in range(limits.TRIES):
        log_in("ann", "wrong", 401)
    assert "wait a minute" in log_in("ann", "a1", 429).last.text  # type: ignore[attr-defined]
    ann = log_in("bob", "b1")
    now[0] += limits.TRIES_S + 1
    log_in("ann", "a1")
    for at in range(limits.TRIES_OF_ADDRESS):
        fail(ann._app.auth._tries, f"x{at}", "127.0.0.1")
    log_in("eve", "e1", 429)
    now[0] += sessions.SESSION_S
    ann.get("/", 401)


def fail(tries: Tries, name: str, address: str) -> None:
    with suppress(AccessDenied), tries.counted(name, address):
        raise AccessDenied("wrong")


def test_strangers_do_not_lock_a_user_out() -> None:
    """From many addresses a name is guessed 30 times a minute; a browser of the user gets in."""
    tries = Tries()
    for at in range(limits.TRIES_OF_NAME):
        fail(tries, "ann", f"10.0.0.{at}")
    with pytest.raises(TooManyTries), tries.counted("ann", "10.0.1.1"):
        pass
    with tries.counted("ann", "10.0.1.1", "a browser"), tries.counted("bob", "10.0.1.1"):
        pass
    for _ in range(limits.TRIES):
        with suppress(AccessDenied), tries.counted("ann", "10.0.0.1", "stolen"):
            raise AccessDenied("wrong")
    with pytest.raises(TooManyTries), tries.counted("ann", "10.0.0.1", "stolen"):
        pass


@pytest.mark.parametrize("port", ["redis"], indirect=True)
def test_a_browser_that_was_logged_in_is_known(log_in: Log) -> None:
    """Also when it has logged out, and all come from the address of one proxy."""
    ann = log_in("ann", "a1")
    (form,) = [each for each in ann.page("/").forms if each[""] == "/logout"]
    ann.ask("POST", "/logout", data={"csrf": form["csrf"]})
    for _ in range(limits.TRIES):
        log_in("ann", "wrong", 401)
    log_in("ann", "a1", 429)
    log_in("ann", "a1", browser=ann)
    log_in("bob", "b1", browser=ann)  # a browser is known for its last user alone
    log_in("ann", "a1", 429, browser=ann)


@pytest.mark.parametrize("port", ["redis"], indirect=True)
def test_a_program_gives_name_and_password_for_json(log_in: Log, admin: Any) -> None:
    console = log_in("ann", "a1")._app

    def ask(path: str, name: str, password: str) -> httpx.Response:
        given = b64encode(f"{name}:{password}".encode()).decode()
        return Browser(console).ask("GET", path, headers={"authorization": f"Basic {given}"})

    before = len(console.auth._sessions)
    for _ in range(3):
        assert ask("/api/v1/streams/orders", "eve", "e1").json()["length"] == 1
    assert len(console.auth._sessions) == before + 1
    assert ask("/api/v1/streams/secrets", "eve", "e1").status_code == 403
    assert ask("/streams/orders", "eve", "e1").status_code == 401
    for _ in range(limits.TRIES):
        assert ask("/api/v1/overview", "eve", "wrong").status_code == 401
    assert ask("/api/v1/overview", "eve", "wrong").status_code == 429
    assert ask("/api/v1/overview", "eve", "e1").status_code == 200
    for header in (b"Basic \xff", b"Basic eA==", b"Bearer x"):
        reply = Browser(console).ask("GET", "/api/v1/server", headers={"authorization": header})
        assert reply.status_code == 401, header
    admin.execute_command("ACL", "DELUSER", "eve")
    assert ask("/api/v1/overview", "eve", "e1").status_code == 403
    assert ask("/api/v1/overview", "eve", "e1").status_code in (401, 429)


def test_logins_at_a_time_are_as_few_as_those_in_a_row() -> None:
    """Each counts from its begin on; only those that fail go on to count."""
    tries = Tries()
    with ExitStack() as running:
        for _ in range(limits.TRIES):
            running.enter_context(tries.counted("ann", "10.0.0.1"))
        with pytest.raises(TooManyTries), tries.counted("ann", "10.0.0.1"):
            pass
        with tries.counted("ann", "10.0.0.2"), tries.counted("bob", "10.0.0.1"):
            pass
    with pytest.raises(ServerUnavailable), tries.counted("ann", "10.0.0.1"):
        raise ServerUnavailable("away")
    for _ in range(limits.TRIES):
        fail(tries, "ann", "10.0.0.1")
    with pytest.raises(TooManyTries), tries.counted("ann", "10.0.0.1"):
        pass


def test_what_is_kept_of_logins_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries()
    monkeypatch.setattr(limits, "TRACKED_MAX", 10)
    for at in range(50):
        fail(tries, f"n{at}" * 1000, f"10.0.0.{at}")
    assert len(tries._failed) == 10
    assert max(len(part) for key in tries._failed for part in key) == limits.NAME_MAX
    ids, kept = [], Sessions("c", most=3)
    for _ in range(5):
        ids.append(kept.begin(User("ann")))
    assert list(kept._sessions) == ids[2:]


def test_a_login_needs_a_server_and_a_form_of_this_browser(log_in: Log) -> None:
    with pytest.raises(InvalidArgument, match="give its URL"):
        PasswordLogin("data", "c")
    browser = Browser(log_in("ann", "a1")._app)
    data = {"csrf": "x", "name": "ann", "password": "a1"}
    assert browser.ask("POST", "/login", data=data).status_code == 403
    headers = {"sec-fetch-site": "cross-site"}
    assert browser.ask("POST", "/login", data=data, headers=headers).status_code == 403


def test_a_cookie_behind_tls_is_of_this_host_alone(log_in: Log) -> None:
    browser = Browser(log_in("ann", "a1")._app)
    (form,) = browser.page("/login").forms
    data = {"csrf": form["csrf"], "name": "ann", "password": "a1"}
    reply = browser.ask("POST", "/login", data=data, headers={"origin": "https://console.test"})
    cookie = reply.headers["set-cookie"]
    assert cookie.startswith("__Host-c=")
    assert "Secure" in cookie
    assert "Path=/;" in cookie


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("redis://h:1/2", "redis://u:p%2F@h:1/2"),
        ("redis://a:b@h", "redis://u:p%2F@h"),
        (
            "rediss://:b@h/?username=a&password=b&socket_timeout=3",
            "rediss://u:p%2F@h/?socket_timeout=3",
        ),
        ("unix:///s.sock?db=1", "unix://u:p%2F@/s.sock?db=1"),
        ("redis+sentinel://a:b@h1,h2:3/m/1", "redis+sentinel://u:p%2F@h1,h2:3/m/1"),
    ],
)
def test_the_url_of_another_user(url: str, wanted: str) -> None:
    assert with_login(url, "u", "p/") == wanted


@pytest.mark.parametrize("port", ["redis"], indirect=True)
def test_who_may_do_all_but_write_sees(admin: Any, port: int) -> None:
    admin.execute_command("ACL", "SETUSER", "watch", ">w", "on", "+@all", "-@write", "~*")
    with open_store(with_login(f"redis://127.0.0.1:{port}", "watch", "w")) as store:
        assert role_of_user(store) == Role.VIEWER
