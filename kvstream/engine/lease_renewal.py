"""What ``listen`` needs: leases on what was read, when to stop, and to go on after an outage.

An entry that was read is pending, and its idle time grows, although the program has not come to it
yet. Another consumer would get it. A ``Lease`` sets the idle time back, in the background: a
thread, or in asyncio a task, as ``AnyEngine.every`` says.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar, cast

from kvstream.engine.interface import AnyEngine
from kvstream.engine.waiters import Flag
from kvstream.errors import (
    InvalidArgument,
    KVStreamError,
    ServerUnavailable,
    StoreLocked,
    UnknownOutcome,
    show,
)
from kvstream.types.clock import monotonic

T = TypeVar("T")
R = TypeVar("R")

RENEW_S, RENEW_S_MIN = 1.0, 0.05
"""Seconds between two renewals, unless a third of the listener's own idle time is less."""

AWAY_S, AWAY_S_MAX = 0.1, 5.0
"""The first and the longest pause before a server that is away is asked again."""
LOOK_S = 0.05
"""Pause between two looks whether ``stop`` is set."""

_log = logging.getLogger(__name__)


class Stop(Protocol):
    """A ``threading.Event``, an ``asyncio.Event``, or what ``stop_on_signals`` gives."""

    def is_set(self) -> bool: ...


def stop_check(stop: Stop | None) -> Callable[[], bool]:
    """Return the function that tells whether ``stop`` is set; TypeError if it is no event."""
    if stop is None:
        return lambda: False
    is_set: Any = getattr(stop, "is_set", None)
    if not callable(is_set):
        raise TypeError(
            "stop is a threading.Event, an asyncio.Event, or the event of stop_on_signals(), not "
            f"{show(stop)}"
        )
    return cast(Callable[[], bool], is_set)


def wait_until_set(stop: Stop, seconds: float) -> bool:
    """Wait for an event for ``seconds`` at most; return whether it is set.

    One that a thread cannot wait for, such as an asyncio.Event, is looked at again and again.
    """
    if isinstance(stop, threading.Event | Flag):
        return stop.wait(seconds)
    until = monotonic() + seconds
    while not stop.is_set():
        rest = until - monotonic()
        if rest <= 0:
            return False
        time.sleep(min(rest, LOOK_S))
    return True


class SignalStop(Flag):
    """Says whether the process has received a signal to stop."""

    received: signal.Signals | None = None


@contextmanager
def stop_on_signals(*signals: signal.Signals) -> Iterator[SignalStop]:
    """Give an event that is set when the process receives one of ``signals``.

    Without any these are SIGTERM and SIGINT (Ctrl-C). A second signal acts as it did before the
    block. Works in the main thread only, in asyncio too. ::

        with kvstream.stop_on_signals() as stop:
            for job in worker.listen(stop=stop):
                ...
    """
    stop = SignalStop()
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def note(number: int, frame: FrameType | None) -> None:
        stop.received = signal.Signals(number)
        stop.set()
        restore()

    if threading.current_thread() is not threading.main_thread():
        raise InvalidArgument("stop_on_signals works in the main thread: others get no signals")
    try:
        for number in signals or (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, note)
        yield stop
    finally:
        restore()


def every_in_thread(seconds: float, call: Callable[[], object]) -> Callable[[], None]:
    """Call a function every ``seconds`` in a thread; return the function that ends it."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(seconds):
            call()

    threading.Thread(target=run, name="kvstream-lease", daemon=True).start()
    return stopped.set


class Outages:
    """Repeats the calls of one listener while the server, or the owner of the store, is away.

    Errors of a store that this process owns are raised: they do not pass.
    """

    def __init__(self, engine: AnyEngine, stopped: Callable[[], bool] = lambda: False) -> None:
        """``stopped`` tells whether the listener is to end."""
        self._engine, self._stopped = engine, stopped

    def outlast(
        self, call: Callable[[], R], recover: Callable[[float], R] | None = None
    ) -> R | None:
        """Call until the server answers, and return the result; None once the listener is to end.

        ``recover`` is called instead once a reply was lost, with the time of the first call
        (``monotonic``).
        """
        begun, pause, away = monotonic(), AWAY_S, False
        while not (away and self._stopped()):
            try:
                result = call()
            except (ServerUnavailable, UnknownOutcome, StoreLocked) as error:
                if self._engine.own_engine is not None:
                    raise
                if not away:
                    _log.warning("%s is away, and is waited for: %s", self._engine.place, error)
                away = True
                if recover is not None and isinstance(error, UnknownOutcome):
                    call = partial(recover, begun)
                self._rest(pause)
                pause = min(2 * pause, AWAY_S_MAX)
            else:
                if away:
                    _log.info("%s is back", self._engine.place)
                return result
        return None

    def _rest(self, seconds: float) -> None:
        """Pause, or return once the listener is to end."""
        until = monotonic() + seconds
        while (rest := until - monotonic()) > 0 and not self._stopped():
            self._engine.sleep(min(rest, LOOK_S))


class Lease(Generic[T]):
    """Keeps the entries that a consumer has read leased until the program is done with them."""

    def __init__(
        self,
        engine: AnyEngine,
        renew: Callable[[Sequence[T]], Iterable[T]],
        every_s: float = RENEW_S,
        outages: Outages | None = None,
    ) -> None:
        """``renew`` sets idle times back, and returns which entries are still the consumer's."""
        self._engine, self._renew = engine, renew
        self._outages = outages or Outages(engine)
        self._every_s = max(RENEW_S_MIN, every_s)
        self._entries: Sequence[T] = ()
        self._at = 0
        """The index in ``_entries`` of the entry that the program works on."""
        self._lost: set[T] = set()
        self._renewed = 0.0
        self._end: Callable[[], None] | None = None

    def hold(self, entries: Sequence[T]) -> None:
        """Keep these entries, which were delivered just now, and no others."""
        self._at, self._entries, self._lost, self._renewed = 0, entries, set(), monotonic()
        if entries and self._end is None:
            self._end = self._engine.every(self._every_s, self.renew)

    def begin(self, at: int) -> bool:
        """Release the entries before index ``at``; return whether that one is still the consumer's.

        Return False, too, if the listener is to end while the server is away.
        """
        self._at = at
        if self._is_late() and self._engine.own_engine is not None:  # the process stood still
            self.renew()
        elif self._is_late():  # or the server was away: others may get the entries at its return
            self._outages.outlast(self._renew_all)
            return not self._is_late() and self._entries[at] not in self._lost
        return self._entries[at] not in self._lost

    def _is_late(self) -> bool:
        return monotonic() - self._renewed > 2 * self._every_s

    def renew(self) -> None:
        """Set the idle time of the entries back; note which are not the consumer's any more."""
        with suppress(KVStreamError):  # the next call of the program gets the error too
            self._renew_all()

    def _renew_all(self) -> None:
        entries, lost = self._entries[self._at :], self._lost
        if not entries or monotonic() - self._renewed < self._every_s / 2:
            return
        begun = monotonic()
        kept = self._renew(entries)
        lost.update(set(entries).difference(kept))
        self._renewed = begun

    def end(self) -> None:
        """End the leases of all entries."""
        self._entries = ()
        if self._end is not None:
            self._end()
