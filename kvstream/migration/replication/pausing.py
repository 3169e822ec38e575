"""CLIENT PAUSE WRITE on a source: nobody writes to it while this is held, whatever becomes of us.

A pause ends by itself after a few seconds and is prolonged meanwhile: should we be killed, the
source goes on serving.
"""

import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from kvstream.errors import KVStreamError, RequestError
from kvstream.remote.connection import Connection

PAUSE_MS = 6_000
"""How long the source stands still after we have died; no pause that was begun is shorter."""
PROLONG_S = 1.5


class PauseRefused(RequestError):
    """The source cannot be paused, or not by this user."""


class Paused:
    """Holds writes of all clients of a source back, from ``with`` to its end."""

    def __init__(self, connection: Connection) -> None:
        """``connection`` is used by nobody else meanwhile."""
        self._connection = connection
        self._over = threading.Event()
        self._error: KVStreamError | None = None
        self._thread = threading.Thread(target=self._prolong, daemon=True)

    def __enter__(self) -> Self:
        try:
            self._pause(PAUSE_MS)
        except RequestError as error:
            raise PauseRefused(f"the source cannot be paused: {error}") from None
        self._thread.start()
        return self

    def _pause(self, ms: int) -> None:
        self._connection.do("CLIENT", "PAUSE", ms, "WRITE")

    def _prolong(self) -> None:
        while not self._over.wait(PROLONG_S):
            try:
                self._pause(PAUSE_MS)
            except KVStreamError as error:
                self._error = error
                return

    def check(self) -> None:
        """Raise what has ended the pause, if anything has."""
        if self._error is not None:
            raise self._error

    def leave(self, seconds: float) -> None:
        """Let the pause end by itself so many seconds from now, or when it would have anyway.

        There is no moment in between: whoever waits to write would do so in it.
        """
        self._stop()
        self.check()
        self._pause(max(1, round(seconds * 1000)))

    def _stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def end(self) -> None:
        """Let everybody write again."""
        self._stop()
        with suppress(KVStreamError):  # it ends by itself soon
            self._connection.do("CLIENT", "UNPAUSE")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.end()
        else:
            self._stop()
