"""The thread that takes a sample every ten seconds, while the console runs.

It begins with the first page that is read, and takes the store that the pages use. It opens one
itself only if each user has connections of their own (``--auth acl``), and the console has a name
and password of its own. Several consoles of one store share the work: the second one in a
step finds the sample there and reads nothing more. A read-only console, and a server that is no
kvstream, have none.
"""

from __future__ import annotations

import logging
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, cast

from kvstream.console.history.samples import FINEST, SPANS, Sample, Span, read, write, written_ms
from kvstream.console.history.taking import take
from kvstream.console.shared_calls import SharedCall
from kvstream.errors import (
    AccessDenied,
    KVStreamError,
    RequestError,
    StoreClosed,
    StoreReadOnly,
)

if TYPE_CHECKING:
    from kvstream.console.listing import Listings
    from kvstream.store import Store

_log = logging.getLogger("kvstream.console")

REFUSED_MS = 60_000
"""Pause after a store has refused a write, as a replica does."""
ENDING_S = 2.0
"""How long ``close`` waits for a sample: a server that hangs must not keep the program."""


class Recorder:
    """Takes the samples of a console."""

    def __init__(
        self, place: Any, listings: Listings, application: str | None, *, opens: bool = False
    ) -> None:
        """``opens``: whether the store is opened here, since no page does so."""
        self._place, self._listings, self._application = place, listings, application
        self._opens = opens
        self._level = logging.WARNING if opens else logging.DEBUG
        """The level of the log line of a refusal: a console with a name of its own warns once."""
        self._lock = Lock()
        self._stop = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin to take samples, unless the thread runs already."""
        if self._thread is not None and self._thread.is_alive():
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._stop = Event()
                self._thread = Thread(
                    target=self._run, args=(self._stop,), name="kvstream-samples", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(ENDING_S)

    def _store(self) -> Store | None:
        """Return the store that is sampled; None if no page has opened it yet."""
        if not self._opens:
            found: Store | None = self._place.current()
            return found
        with self._place.reading() as own:
            return cast("Store", own)

    def _run(self, stop: Event) -> None:
        wait_ms = 0
        while not stop.wait(wait_ms / 1000):
            wait_ms = FINEST.step_ms
            try:
                store = self._store()
                if store is None:
                    continue
                wait_ms -= store.now_ms() % FINEST.step_ms
                record(store, self._listings, self._application)
            except StoreClosed as error:
                _log.info("no more samples are taken: %s", error)
                return
            except (AccessDenied, RequestError, StoreReadOnly) as error:
                # The thread stays: a new one for each page would read all again.
                _log.log(self._level, "a sample was refused: %s", error)
                self._level, wait_ms = logging.DEBUG, REFUSED_MS
            except KVStreamError as error:  # the store is away or full: the next one may work
                _log.debug("a sample was not taken: %s", error)


def record(store: Store, listings: Listings, application: str | None = None) -> bool:
    """Take and write the sample of the step that has ended; False if it is there already."""
    now_ms = store.now_ms()
    at_ms = now_ms - now_ms % FINEST.step_ms
    newest = written_ms(store)
    if newest >= at_ms:
        return False
    since_ms = max(newest, at_ms - 2 * FINEST.step_ms)
    return write(store, at_ms, take(store, listings.get(store), since_ms, application))


class Histories:
    """The samples that pages show, each span read once in a step for all viewers."""

    def __init__(self, place: Any = None) -> None:
        """``place``: where they are read with the rights of the console; None: with the user's."""
        self._place = place
        self._reading: dict[Span, SharedCall[list[Sample]]] = {each: SharedCall() for each in SPANS}
        self._read: dict[Span, tuple[int, list[Sample]]] = {}

    def get(self, store: Store, span: Span, now_ms: int) -> list[Sample]:
        step = now_ms // FINEST.step_ms
        known = self._read.get(span)
        if known is None or known[0] != step:
            samples = self._reading[span].run(lambda: self._samples(store, span, now_ms))
            known = self._read[span] = step, samples
        return known[1]

    def _samples(self, store: Store, span: Span, now_ms: int) -> list[Sample]:
        if self._place is None:
            return read(store, span, now_ms)
        try:
            with self._place.reading() as own:
                return read(own, span, now_ms)
        except KVStreamError as error:  # a page is worth more than its plots
            _log.debug("no samples were read: %s", error)
            return []


__all__ = ["SPANS", "Histories", "Recorder", "record"]
