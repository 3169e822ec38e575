"""The login by the name and password of a user of the server, with the rights of this user."""

from __future__ import annotations

import hmac
import secrets
from base64 import b64decode
from collections.abc import Awaitable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from anyio import to_thread
from starlette.exceptions import HTTPException

from kvstream import opening
from kvstream.console.access import Role, User
from kvstream.console.applications import Applications
from kvstream.console.history.recorder import Histories
from kvstream.console.listing import Listings
from kvstream.console.logins.sessions import Sessions
from kvstream.console.logins.tries import TooManyTries, Tries
from kvstream.console.places import OpenedPlace
from kvstream.console.replies import is_api
from kvstream.console.server_info import ServerInfo
from kvstream.errors import AccessDenied, InvalidArgument, KVStreamError, RequestError
from kvstream.remote.replies import is_key_refusal
from kvstream.types.urls import has_login, server_url, with_login

if TYPE_CHECKING:
    from starlette.requests import Request

    from kvstream.store import Store

ACCOUNTS_MAX = 100
"""Sessions by password that are kept: each user has connections of its own."""
BROWSERS_MAX = 1000
"""Browsers of which it is known who has logged in there."""
BASIC = "basic "
"""How the header of a program begins."""
WAIT = "Too many logins have failed: wait a minute."


class AccountPlace(OpenedPlace):
    """A server with the name and password of one user, until nobody is logged in as this user."""

    _has_ended = False

    def end(self) -> None:
        self._has_ended = True
        self.close()

    def _open(self) -> Store:
        if self._has_ended:
            raise AccessDenied("you have logged out")
        return super()._open()


@dataclass(frozen=True, slots=True, eq=False)
class Account(User):
    """A user of the server: the console acts with the rights and on connections of this user."""

    place: AccountPlace = field(kw_only=True)
    histories: Histories = field(kw_only=True, default_factory=Histories)
    listings: Listings = field(kw_only=True, default_factory=Listings)
    applications: Applications = field(kw_only=True, default_factory=lambda: Applications(None))
    server_info: ServerInfo = field(kw_only=True, default_factory=ServerInfo)


class PasswordLogin(Sessions):
    """Sessions of the users of a server, who give the name and password that it knows."""

    def __init__(self, url: str, cookie: str, **options: Any) -> None:
        """``options`` are those of ``kvstream.open``."""
        super().__init__(cookie, ACCOUNTS_MAX)
        if server_url(url) is None:
            raise InvalidArgument("users with a password are those of a server: give its URL")
        self._url, self._options = url, options
        self.has_own = has_login(url)
        """Whether the console itself has a name and password on the server."""
        self._tries = Tries()
        self._browsers: dict[str, str] = {}
        """The names with which browsers have logged in, by the last session of each."""
        self._programs: dict[bytes, str] = {}
        """The sessions of programs that give name and password with each request."""
        self._passwords: dict[Account, str] = {}

    def log_in(self, name: str, password: str, address: str, browser: str = "") -> str | None:
        """Return the ID of a new session; None if the server does not let this user in.

        ``browser`` is the secret in its cookie, which may be that of a session that has ended.
        Raises TooManyTries, and ServerUnavailable.
        """
        if not name or not password:
            return None
        place = AccountPlace(with_login(self._url, name, password), **self._options)
        try:
            known = browser if self._browsers.get(browser) == name else ""
            with self._tries.counted(name, address, known), place.reading() as store:
                if not _has_password(store, self._url, name):
                    raise AccessDenied("this user has no password")
                role = role_of_user(store)
        except AccessDenied:
            place.end()
            return None
        except BaseException:
            place.end()
            raise
        session = self.begin(self._account(name, password, role, place))
        with self._lock:
            self._browsers.pop(browser, None)
            self._browsers[session] = name
            while len(self._browsers) > BROWSERS_MAX:
                del self._browsers[next(iter(self._browsers))]
        return session

    def __call__(self, request: Request) -> User | Awaitable[User | None] | None:
        """Return the user of a session; of a program that asks for JSON, that of its header."""
        header = request.headers.get("authorization", "")
        if header[: len(BASIC)].lower() == BASIC and is_api(request.scope):
            return self._user_of_program(header, request.client.host if request.client else "")
        return super().__call__(request)

    async def _user_of_program(self, header: str, address: str) -> User | None:
        key = sha256(header.encode()).digest()
        user = self.user_of(self._programs.get(key, ""))
        if user is not None:
            return user
        try:
            given = b64decode(header[len(BASIC) :], validate=True).decode()
        except ValueError:
            return None
        name, _, password = given.partition(":")
        try:
            session = await to_thread.run_sync(self.log_in, name, password, address)
        except TooManyTries:
            raise HTTPException(429, WAIT) from None
        except KVStreamError as error:
            raise HTTPException(503, str(error)) from None
        if session is None:
            return None
        with self._lock:
            self._programs[key] = session
            while len(self._programs) > ACCOUNTS_MAX:
                del self._programs[next(iter(self._programs))]
        return self.user_of(session)

    def _account(self, name: str, password: str, role: Role, place: AccountPlace) -> Account:
        """Return the account of a user who has logged in before, or a new one."""
        with self._lock:
            for account, known in self._passwords.items():
                same = hmac.compare_digest(known.encode(), password.encode())
                if account.name == name and account.role == role and same:
                    break
            else:
                account = Account(name, role, place=place)
                self._passwords[account] = password
        if account.place is not place:
            place.end()
        return account

    def _leave(self, user: User) -> None:
        if isinstance(user, Account) and not self._is_known(user):
            with self._lock:
                self._passwords.pop(user, None)
            user.place.end()


_NO_KEY = b"kvstream:no-such-key"


def role_of_user(store: Store) -> Role:
    """Return the role that fits the rights of a user on a server, which has the last word anyway.

    Who may write is an operator, who may also see the users of the server an admin. Both questions
    change nothing.
    """

    def may(*words: str | bytes) -> bool:
        try:
            store._engine.connection().ask(*words)  # type: ignore[attr-defined]
        except RequestError as error:
            return is_key_refusal(error) or "permissions" not in str(error)
        except KVStreamError:  # a replica, which refuses all writes
            return True
        return True

    if not may("XDEL", _NO_KEY, "0-1"):
        return Role.VIEWER
    return Role.ADMIN if may("ACL", "USERS") else Role.OPERATOR


def _has_password(store: Store, url: str, name: str) -> bool:
    """Return whether a user has a password; to one without, a server lets everybody in."""
    try:
        about = store._engine.connection().ask("ACL", "GETUSER", name)  # type: ignore[attr-defined]
    except RequestError:
        return not _lets_in(with_login(url, name, secrets.token_urlsafe(16)))
    facts: dict[bytes, Any] = dict(zip(about[::2], about[1::2], strict=True))
    return b"nopass" not in facts.get(b"flags", ())


def _lets_in(url: str) -> bool:
    try:
        opening.open(url).close()
    except AccessDenied:
        return False
    return True
