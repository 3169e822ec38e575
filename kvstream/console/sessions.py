"""Browsers that have logged in: by a URL with a token, or by a name and password of the server.

An object of this module is the ``auth`` of ``kvstream console`` and of ``--console-port``.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from kvstream import opening
from kvstream.console.access import Role, User, cookie_in
from kvstream.console.applications import Applications
from kvstream.console.history.recorder import Histories
from kvstream.console.listing import Listings
from kvstream.console.places import OpenedPlace
from kvstream.console.server_info import ServerInfo
from kvstream.errors import AccessDenied, InvalidArgument, KVStreamError, RequestError
from kvstream.remote.replies import is_key_refusal
from kvstream.types.clock import monotonic
from kvstream.types.urls import server_url, with_login

if TYPE_CHECKING:
    from starlette.requests import Request

    from kvstream.store import Store

SESSION_S = 12 * 3600.0
SESSIONS_MAX = 1000
"""Sessions that are kept; the oldest goes first."""
ACCOUNTS_MAX = 100
"""Sessions by password that are kept: each user has connections of its own."""
TRIES, TRIES_S = 5, 60.0
"""Failed logins that a name and address may have in a period."""
TRIES_OF_ADDRESS = 50
"""Those that an address may have, for all names."""
TRACKED_MAX = 10_000
"""Names and addresses with failed logins that are kept; beyond them the oldest go."""
NAME_MAX = 100
"""Characters of a name that are kept: names of strangers may have as many as a form."""


class Sessions:
    """The browsers that have logged in, each with a random ID in its cookie."""

    def __init__(self, cookie: str, most: int = SESSIONS_MAX) -> None:
        self.cookie = cookie
        self._most = most
        self._lock = Lock()
        self._sessions: dict[str, tuple[User, float]] = {}

    def begin(self, user: User) -> str:
        """Return the ID of a new session."""
        session, now = secrets.token_urlsafe(32), monotonic()
        with self._lock:
            ended = [each for each, (_, until) in self._sessions.items() if until <= now]
            ended += list(self._sessions)[
                : max(0, len(self._sessions) - len(ended) - self._most + 1)
            ]
            users = [self._sessions.pop(each)[0] for each in dict.fromkeys(ended)]
            self._sessions[session] = user, now + SESSION_S
        for each in users:
            self._leave(each)
        return session

    def end(self, session: str) -> None:
        """End a session, if it is one: its browser is not known any more."""
        with self._lock:
            found = self._sessions.pop(session, None)
        if found is not None:
            self._leave(found[0])

    def end_all_of(self, user: User) -> None:
        """End the sessions of a user, whom the server does not let in any more."""
        with self._lock:
            for each in [each for each, (own, _) in self._sessions.items() if own is user]:
                del self._sessions[each]
        self._leave(user)

    def _leave(self, user: User) -> None:
        """Do what is due once a session of a user has ended."""

    def _is_known(self, user: User) -> bool:
        with self._lock:
            return any(own is user for own, _ in self._sessions.values())

    def __call__(self, request: Request) -> User | None:
        user, until = self._sessions.get(cookie_in(request, self.cookie), (None, 0.0))
        return user if monotonic() < until else None


class TokenLogin(Sessions):
    """Sessions of one user, each of which begins with a URL that works once."""

    def __init__(self, user: User, cookie: str, announce: Callable[[str], object]) -> None:
        """``announce`` is called with the path of each new login."""
        super().__init__(cookie)
        self._user, self._announce = user, announce
        self._token = ""

    def offer(self) -> str:
        """Make a new login, which works once; return its path."""
        self._token = secrets.token_urlsafe(32)
        path = f"login?token={self._token}"
        self._announce(path)
        return path

    def log_in(self, token: str) -> str | None:
        """Return the ID of a new session; None if the token is wrong or was used."""
        with self._lock:
            if not self._token or not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
            self._token = ""
        session = self.begin(self._user)
        self.offer()
        return session


class TooManyTries(Exception):
    """Too many logins of a name or an address have failed: it is to wait."""


class Tries:
    """Counts failed logins by name and address. Its cost is bounded, whatever is sent."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._failed: dict[tuple[str, ...], list[float]] = {}

    @contextmanager
    def counted(self, name: str, address: str) -> Iterator[None]:
        """Count a login, unless its block raises another error than AccessDenied, or none.

        It counts from the begin on, so that many at a time do not have more than one after another.
        Raises TooManyTries if it may not even be tried.
        """
        now = monotonic()
        limits = {(name[:NAME_MAX], address): TRIES, (address,): TRIES_OF_ADDRESS}
        with self._lock:
            if any(self._recent(key, now) >= most for key, most in limits.items()):
                raise TooManyTries
            for key in limits:
                self._failed[key] = [*self._failed.pop(key, ()), now][-limits[key] :]
            while len(self._failed) > TRACKED_MAX:
                del self._failed[next(iter(self._failed))]
        try:
            yield
        except AccessDenied:
            raise
        except BaseException:
            self._forget(limits, now)
            raise
        self._forget(limits, now)

    def _recent(self, key: tuple[str, ...], now: float) -> int:
        return sum(each > now - TRIES_S for each in self._failed.get(key, ()))

    def _forget(self, keys: Iterable[tuple[str, ...]], when: float) -> None:
        with self._lock:
            for key in keys:
                if when in self._failed.get(key, ()):
                    self._failed[key].remove(when)


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
        self._tries = Tries()
        self._passwords: dict[Account, str] = {}

    def log_in(self, name: str, password: str, address: str) -> str | None:
        """Return the ID of a new session; None if the server does not let this user in.

        Raises TooManyTries, and ServerUnavailable.
        """
        if not name or not password:
            return None
        place = AccountPlace(with_login(self._url, name, password), **self._options)
        try:
            with self._tries.counted(name, address), place.reading() as store:
                if not _has_password(store, self._url, name):
                    raise AccessDenied("this user has no password")
                role = role_of(store)
        except AccessDenied:
            place.end()
            return None
        except BaseException:
            place.end()
            raise
        return self.begin(self._account(name, password, role, place))

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


def role_of(store: Store) -> Role:
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
