"""Browsers that have logged in, each with a random ID in its cookie, and the login by a URL.

An object of this package is the ``auth`` of ``kvstream console`` and of ``--console-port``.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from threading import Lock
from typing import TYPE_CHECKING

from kvstream.console.access import User, cookie_in
from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    from starlette.requests import Request

SESSION_S = 12 * 3600.0
SESSIONS_MAX = 1000
"""Sessions that are kept; the oldest goes first."""


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

    def __call__(self, request: Request) -> User | Awaitable[User | None] | None:
        return self.user_of(cookie_in(request, self.cookie))

    def user_of(self, session: str) -> User | None:
        """Return the user of a session; None if it is none, or has ended."""
        user, until = self._sessions.get(session, (None, 0.0))
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
