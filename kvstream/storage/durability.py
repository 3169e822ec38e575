"""When a write counts as durable, and who is told.

The committer owns the one thread that makes the log durable; it knows sequence numbers, not rows.
"""

import threading
from collections.abc import Callable

from kvstream.errors import UnknownOutcome
from kvstream.options import Durability
from kvstream.storage.database import Database

FLUSH_INTERVAL_S = 1.0


class Committer:
    """Makes the writes of one database as durable as its level promises."""

    def __init__(self, database: Database, level: Durability) -> None:
        self.level = level
        self.durable_sequence = database.sequence
        self._database = database
        self._always = level is Durability.ALWAYS
        self._changed = threading.Condition()
        self._wanted = 0
        self._stopping = False
        self._failure: Exception | None = None
        self._callbacks: list[tuple[int, Callable[[], None]]] = []
        self._thread = threading.Thread(target=self._run, name="kvstream-committer", daemon=True)
        if level is not Durability.NO:
            self._thread.start()

    def wait(self, sequence: int) -> None:
        """Return when the write of that sequence number is as durable as the level promises.

        Raises UnknownOutcome when the log cannot be made durable.
        """
        if self._always and sequence > self.durable_sequence:
            self._await(sequence)

    def after(self, sequence: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the write is as durable as the level promises."""
        if self._always:
            with self._changed:
                if sequence > self.durable_sequence:
                    self._callbacks.append((sequence, callback))
                    self._wanted = max(self._wanted, sequence)
                    self._changed.notify_all()
                    return
        callback()

    def sync(self) -> int:
        """Make every write so far durable, at any level; return the durable sequence number."""
        if self._thread.is_alive():
            self._await(self._database.sequence)
        else:
            self._flush()
        return self.durable_sequence

    def close(self) -> None:
        """Make all writes durable and end the thread; idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _await(self, sequence: int) -> None:
        with self._changed:
            self._wanted = max(self._wanted, sequence)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.durable_sequence >= sequence or self._failure)
        if self._failure and self.durable_sequence < sequence:
            raise UnknownOutcome(str(self._failure))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopping or self._wanted > self.durable_sequence,
                    None if self._always else FLUSH_INTERVAL_S,
                )
                stopping = self._stopping
            if self._database.sequence > self.durable_sequence:
                self._flush()
            if stopping or self._failure:
                return

    def _flush(self) -> None:
        reached = self._database.sequence
        try:
            self._database.flush_wal()
        except Exception as error:
            self._failure = error
        else:
            self.durable_sequence = reached
        with self._changed:
            self._changed.notify_all()
            ready = [call for call in self._callbacks if call[0] <= self.durable_sequence]
            self._callbacks = [call for call in self._callbacks if call[0] > self.durable_sequence]
        for _, callback in ready:
            callback()
