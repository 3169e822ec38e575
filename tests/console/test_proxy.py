"""The login by a proxy: who is believed, and which role a user has."""

import asyncio
from typing import Any

import httpx
import pytest

from kvstream import InvalidArgument, Store
from kvstream.console import app
from kvstream.console.logins.proxy import ProxyLogin
from tests.console.browser import HOST

ROLES = {"ann": "admin", "@ops": "operator", "@all": "viewer"}


class Proxy:
    """Asks a console from an address, with headers."""

    def __init__(self, store: Store, *peers: str, **roles: str) -> None:
        login = ProxyLogin(peers or ["10.1.0.0/16", "::1"], roles or ROLES)
        self.console = app(store, auth=login)

    async def _ask(self, headers: Any, address: str, path: str) -> httpx.Response:
        transport = httpx.ASGITransport(self.console, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url=HOST) as client:
            return await client.get(path, headers=headers)

    def ask(self, headers: Any, address: str = "10.1.2.3", path: str = "/") -> httpx.Response:
        return asyncio.run(self._ask(headers, address, path))


@pytest.fixture
def proxy(store: Store) -> Proxy:
    return Proxy(store)


@pytest.mark.parametrize(
    ("name", "groups", "shown"),
    [
        ("ann", "", "ann, admin"),
        ("bob", "all, ops", "bob, operator"),
        ("bob", "all", "bob, viewer"),
        ("zoë", "all", "zoë, viewer"),
    ],
)
def test_the_role_is_that_of_the_user_or_a_group(
    proxy: Proxy, name: str, groups: str, shown: str
) -> None:
    reply = proxy.ask(
        {"X-Forwarded-User": name.encode(), "X-Forwarded-Groups": groups}, path="/streams"
    )
    assert reply.status_code == 200
    assert shown in reply.text


def test_who_has_no_role_is_refused(proxy: Proxy, store: Store) -> None:
    assert proxy.ask({"X-Forwarded-User": "bob"}).status_code == 403
    for name in ("@ops", "*"):  # the name of a user is none of a group
        assert proxy.ask({"X-Forwarded-User": name}).status_code == 403
    assert proxy.ask({}).status_code == 401
    assert proxy.ask({"X-Forwarded-User": " "}).status_code == 401
    assert proxy.ask({"X-Forwarded-Groups": "ops"}).status_code == 401
    everybody = Proxy(store, "10.1.2.3", **{"*": "viewer", "ann": "admin"})
    assert "bob, viewer" in everybody.ask({"X-Forwarded-User": "bob"}).text
    assert "ann, admin" in everybody.ask({"X-Forwarded-User": "ann"}).text


@pytest.mark.parametrize("path", ["/", "/api/v1/streams", "/events?page=/", "/nothing-of-it"])
def test_other_addresses_are_not_believed(proxy: Proxy, path: str) -> None:
    for address in ("10.2.0.1", "127.0.0.1", "::2", "", "testclient"):
        reply = proxy.ask({"X-Forwarded-User": "ann"}, address, path)
        assert reply.status_code in (403, 404), address
        assert "ann, admin" not in reply.text
    told = proxy.ask({"X-Forwarded-User": "ann", "X-Forwarded-For": "10.1.2.3"}, "10.2.0.1", "/")
    assert "from the proxy alone, not from 10.2.0.1" in told.text
    for address in ("::1", "::ffff:10.1.9.9"):
        assert proxy.ask({"X-Forwarded-User": "ann"}, address).status_code == 200


def test_a_header_that_repeats_is_refused(proxy: Proxy) -> None:
    """The proxy has added its own to that of a browser: which is which is not known."""
    twice = [("X-Forwarded-User", "bob"), ("X-Forwarded-User", "ann")]
    assert proxy.ask(twice).status_code == 400


def test_a_proxy_has_an_address_and_its_users_roles() -> None:
    for peers, roles, said in (
        ([], ROLES, "needs its address"),
        (["::1"], {}, "needs its address, and the role"),
        (["localhost"], ROLES, "the address of a proxy is one such as"),
        (["10.0.0.1/8"], ROLES, "the address of a proxy is one such as"),
        (["::1"], {"ann": "root"}, "a role is one of viewer, operator, admin"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            ProxyLogin(peers, roles)
