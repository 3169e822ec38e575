"""Failed logins, counted so that nobody guesses a password and no stranger locks a user out.

A login counts for its name at its address, for its address, and for its name at all addresses. A
browser that has logged in with this name before counts by itself: while strangers guess from many
addresses, or behind the same proxy, it gets in all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from kvstream.errors import AccessDenied
from kvstream.types.clock import monotonic

TRIES, TRIES_S = 5, 60.0
"""Failed logins that a name and address, or a known browser, may have in a period."""
TRIES_OF_ADDRESS = 50
"""Those that an address may have, for all names."""
TRIES_OF_NAME = 30
"""Those that a name may have, from all addresses."""
TRACKED_MAX = 10_000
"""Keys with failed logins that are kept; beyond them those go that failed longest ago."""
NAME_MAX = 100
"""Characters of a name that are kept: names of strangers may have as many as a form."""


class TooManyTries(Exception):
    """Too many logins of a name or an address have failed: it is to wait."""


class Tries:
    """Counts failed logins. Its cost is bounded, whatever is sent."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._failed: dict[tuple[str, ...], list[float]] = {}

    @contextmanager
    def counted(self, name: str, address: str, known_browser: str = "") -> Iterator[None]:
        """Count a login, unless its block raises another error than AccessDenied, or none.

        It counts from the begin on, so that many at a time do not have more than one after another.
        Raises TooManyTries if it may not even be tried.
        """
        now = monotonic()
        limits = _limits(name[:NAME_MAX], address, known_browser)
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


def _limits(name: str, address: str, known_browser: str) -> dict[tuple[str, ...], int]:
    """Return what a login counts for, with the most failed ones of each."""
    if known_browser:
        return {("browser", name, known_browser): TRIES}
    return {
        ("both", name, address): TRIES,
        ("address", address): TRIES_OF_ADDRESS,
        ("name", name): TRIES_OF_NAME,
    }
