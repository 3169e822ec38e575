"""Who may see and do what: users, roles, and tokens against forgery.

A mounted console asks the ``auth`` of its program; ``kvstream console`` has ``sessions``.
"""

from __future__ import annotations

import hmac
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException

from kvstream.console.guard import BODY_MAX
from kvstream.errors import InvalidArgument, show

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

SECURE_COOKIE = "__Host-"
"""Browsers take a cookie with this prefix by TLS alone, and from no other host of the domain."""
FORM_TOKEN = "csrf"
"""The field of a form that has the token against forgery."""


class Role(IntEnum):
    """What a user may do: each role may do what those before it may."""

    VIEWER = 1
    """See everything."""
    OPERATOR = 2
    """Retry, redrive, cancel, pause, claim and acknowledge."""
    ADMIN = 3
    """Trim and delete."""


def role_of(role: Role | str) -> Role:
    """Return the role of a name; InvalidArgument if no role has it."""
    names = {each.name.lower(): each for each in Role}
    found = names.get(role) if isinstance(role, str) else Role(role)
    if found is None:
        raise InvalidArgument(f"a role is one of {', '.join(names)}, not {show(role)}")
    return found


@dataclass(frozen=True, slots=True)
class User:
    """A user of the console; ``role`` is "viewer", "operator" or "admin"."""

    name: str
    """Who it is, in the audit log and on the page."""
    role: Role | str = Role.VIEWER
    """What the user may do: each role may do what the ones before it may."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", role_of(self.role))

    def may(self, role: Role) -> bool:
        """Tell whether the user may do what a role may."""
        return isinstance(self.role, Role) and self.role >= role


Auth: TypeAlias = Callable[["Request"], "User | Awaitable[User | None] | None"]


def cookie_in(request: Request, name: str) -> str:
    """Return a cookie of the console; empty if there is none."""
    return request.cookies.get(SECURE_COOKIE + name) or request.cookies.get(name, "")


def form_token(secret: str) -> str:
    """Return the token that a form must have, for the secret in the cookie of its browser."""
    return hmac.digest(secret.encode(), b"kvstream console form", "sha256").hex()


async def user_of(auth: Auth, request: Request) -> User | None:
    """Return the user of a request; None if nobody is known."""
    found = auth(request)
    user = await found if inspect.isawaitable(found) else found
    if user is None or isinstance(user, User):
        return user
    raise InvalidArgument(f"auth returns a kvstream.console.User or None, not {show(user)}")


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, whose length a server may not have said (HTTP/2)."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_MAX:
            raise HTTPException(413, "the form is too long")
    return dict(parse_qsl(body.decode("ascii", "replace"), True))


def check_form(form: Mapping[str, str], secret: str) -> None:
    """Refuse a form without the token that fits the secret of its browser."""
    given = form.get(FORM_TOKEN, "")
    if not secret or not hmac.compare_digest(given.encode(), form_token(secret).encode()):
        raise HTTPException(403, "the form is too old: go back, reload, try again")


Page: TypeAlias = Callable[..., Any]
Endpoint: TypeAlias = Callable[["Request"], Awaitable["Response"]]


def requires(role: Role) -> Callable[[Page], Endpoint]:
    """Make a page or an action an endpoint for users of a role; it runs in a thread.

    A coroutine function gets the console, the request and the user instead of a View.

    This is the only place where roles are checked. Endpoints that change something get forms whose
    token fits the browser; see ``guard`` for their origin.
    """

    def decorate(page: Page) -> Endpoint:
        @wraps(page)
        async def endpoint(request: Request) -> Response:
            console: Any = request.app.state.console
            user = await user_of(console.auth, request)
            if user is None:
                raise HTTPException(401)
            if not user.may(role):
                raise HTTPException(403, f"this needs the role {role.name.lower()}")
            form = None
            if request.method == "POST":
                if console.read_only and role > Role.VIEWER:
                    raise HTTPException(403, "this console is read-only")
                form = await form_of(request)
                check_form(form, console.secret_of(request))
            if inspect.iscoroutinefunction(page):
                reply: Response = await page(console, request, user)
                return reply
            answer: Response = await console.run(page, request, user, form)
            return answer

        endpoint.role, endpoint.page = role, page  # type: ignore[attr-defined]
        return endpoint

    return decorate


def public(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint that everybody may see: the login and the files of the page."""
    endpoint.role = None  # type: ignore[attr-defined]
    return endpoint
