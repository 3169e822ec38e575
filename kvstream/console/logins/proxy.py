"""Users whom a proxy has logged in, and names in a header: ``kvstream console --auth proxy``.

The header is believed only from the addresses that were named, and only if it is there once: what a
browser sends as a second one must not count. The proxy has to remove the header from requests of
browsers, as oauth2-proxy and the ``proxy_set_header`` of nginx do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, TypeAlias

from starlette.exceptions import HTTPException

from kvstream.console.access import Role, User, role_of
from kvstream.errors import InvalidArgument, show

if TYPE_CHECKING:
    from starlette.requests import Request

USER_HEADER, GROUPS_HEADER = "X-Forwarded-User", "X-Forwarded-Groups"
"""Those of oauth2-proxy."""
NAME_MAX = 200
"""Characters of the name of a user, which the audit keeps."""
EVERYBODY = "*"
GROUP = "@"
"""What the name of a group begins with, in the table of roles."""

Network: TypeAlias = IPv4Network | IPv6Network


class ProxyLogin:
    """Returns the user whom a proxy names; it is the ``auth`` of a console."""

    def __init__(
        self,
        peers: Iterable[str],
        roles: Mapping[str, str],
        *,
        hosts: Collection[str] = (),
        user_header: str = USER_HEADER,
        groups_header: str = GROUPS_HEADER,
    ) -> None:
        """``hosts``: the names by which browsers reach the proxy, as in the header Host.

        ``peers``: addresses or networks of proxies, such as "127.0.0.1" and "10.1.0.0/16".

        ``roles``: the role of a user, of a group ("@ops") or of everybody else ("*"). A user has
        the highest of the own role and those of the groups, else that of "*", else none.
        """
        self._peers = [_network(each) for each in peers]
        self._roles = {name: role_of(role) for name, role in roles.items()}
        self.hosts = hosts
        self._user_header, self._groups_header = user_header, groups_header
        if not self._peers or not self._roles:
            raise InvalidArgument("a login by a proxy needs its address, and the role of its users")

    def __call__(self, request: Request) -> User | None:
        """Return the user; None if the proxy names none. HTTPException 403 for all others."""
        self._check_peer("" if request.client is None else request.client.host)
        name = _only(request, self._user_header)
        if not name or len(name) > NAME_MAX:
            return None
        groups = [each.strip() for each in _only(request, self._groups_header).split(",")]
        role = self._role_of(name, groups)
        if role is None:
            raise HTTPException(403, f"{name} has no role here")
        return User(name, role)

    def _check_peer(self, host: str) -> None:
        """Refuse a peer that is not the proxy: it could claim to be any user."""
        try:
            address = ip_address(host)
        except ValueError:  # a Unix socket, or a server that does not say it
            raise HTTPException(403, "requests are taken from the proxy alone") from None
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if not any(address in each for each in self._peers):
            raise HTTPException(403, f"requests are taken from the proxy alone, not from {address}")

    def _role_of(self, name: str, groups: Iterable[str]) -> Role | None:
        names = [name] if not name.startswith((GROUP, EVERYBODY)) else []
        names += [GROUP + each for each in groups if each]
        found = [role for each in names if (role := self._roles.get(each)) is not None]
        return max(found, default=self._roles.get(EVERYBODY))


def _network(address: str) -> Network:
    try:
        return ip_network(address)
    except ValueError:
        raise InvalidArgument(
            f"the address of a proxy is one such as 127.0.0.1 or 10.1.0.0/16, not {show(address)}"
        ) from None


def _only(request: Request, header: str) -> str:
    """Return the value of a header; empty if it is not there. HTTPException if it repeats."""
    values = request.headers.getlist(header)
    if len(values) > 1:
        raise HTTPException(400, f"the header {header} is there {len(values)} times")
    return values[0].encode("latin-1").decode("utf-8", "replace").strip() if values else ""
