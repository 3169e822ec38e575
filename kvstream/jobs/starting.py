"""The start of workers while their store is away: they wait for it.

A server may start later than its workers, and the owner of a shared directory may be gone or about
to close it. What waiting does not mend ends the worker at once: a wrong password or URL, and a
certificate that is refused.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from kvstream.errors import ServerUnavailable, StoreLocked, UnknownOutcome
from kvstream.logs import NOTICE, Throttle
from kvstream.remote.server_errors import is_tls_refusal
from kvstream.types.clock import monotonic

T = TypeVar("T")

PAUSE_S, PAUSE_MAX_S = 0.2, 5.0
"""The first pause and the longest one; each is twice as long as the one before."""
LINE_S = 30.0
"""The wait is logged at most once in this time."""
_LOOK_S = 0.05
_AWAY = (ServerUnavailable, StoreLocked, UnknownOutcome)
_log = logging.getLogger(__name__)


def begin(call: Callable[[], T], is_stopped: Callable[[], bool]) -> T | None:
    """Repeat a call until its store is there, and return its result; None if it is stopped before.

    ``call`` must be one that may be repeated.
    """
    begun, pause, lines = monotonic(), PAUSE_S, Throttle(1, LINE_S)
    while not is_stopped():
        try:
            done = call()
        except _AWAY as error:
            if is_tls_refusal(error):
                raise
            lines.log(_log, logging.WARNING, "the store is away, and is waited for: %s", error)
        else:
            if pause > PAUSE_S:
                _log.log(NOTICE, "the store is there after %.1f s", monotonic() - begun)
            return done
        until = monotonic() + pause
        pause = min(2 * pause, PAUSE_MAX_S)
        while monotonic() < until and not is_stopped():
            time.sleep(_LOOK_S)
    _log.log(NOTICE, "stopped before the store was there")
    return None
