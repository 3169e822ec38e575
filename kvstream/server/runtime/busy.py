"""Long scripts: they run in slices, and between two slices other clients get BUSY errors.

A turn that may run scripts runs in a greenlet. When its script has run for ``busy-reply-threshold``
milliseconds, the hook of the interpreter switches back to the event loop. The loop answers the
others, and continues the script for SLICE_S at a time. The turn stays open meanwhile, and keeps the
engine's lock: nothing else may enter the engine. A client with a request in the turn, or with a
streamed reply, is answered when the turn is over.
"""

from collections.abc import Callable, Sequence
from typing import Final

from greenlet import getcurrent, greenlet

from kvstream.commands.replies import ErrorReply
from kvstream.errors import RequestError
from kvstream.logs import DeferredLogger
from kvstream.server.scripting.sandbox import KILLED, STOPPED
from kvstream.types.clock import monotonic

_log = DeferredLogger(__name__)

SLICE_S: Final = 0.005
"""Seconds after which a script that runs for long returns to the event loop."""
SCRIPT_KILL: Final = "SCRIPT KILL"
FUNCTION_KILL: Final = "FUNCTION KILL"


class NotBusy(RequestError):
    """SCRIPT KILL while no script runs for long."""

    code = "NOTBUSY"

    def __init__(self) -> None:
        super().__init__("No scripts in execution right now.")


class Unkillable(RequestError):
    """SCRIPT KILL of a script that has written."""

    code = "UNKILLABLE"

    def __init__(self) -> None:
        super().__init__(
            "Sorry the script already executed write commands against the dataset. You can either "
            "wait the script termination or kill the server in a hard way using the SHUTDOWN "
            "NOSAVE command."
        )


class BusyError(RequestError):
    """A request that must wait until the script has ended."""

    code = "BUSY"

    def __init__(self, kill: str) -> None:
        super().__init__(
            f"Redis is busy running a script. You can only call {kill} or SHUTDOWN NOSAVE."
        )


class Stopped(Exception):
    """The server stops while a script that has written runs: its turn is undone."""


class Busy:
    """The long script of one server, if one runs."""

    __slots__ = (
        "_began",
        "_end",
        "_kill",
        "_name",
        "_pause_at",
        "_threshold_ms",
        "_turn",
        "awaits_first",
        "has_written",
        "is_on",
        "is_slow",
        "is_stopping",
        "request",
        "takes_turns",
    )

    def __init__(self, threshold_ms: Callable[[], int], suspends_turns: bool) -> None:
        """``threshold_ms`` returns the time after which others get BUSY; 0: never."""
        self._threshold_ms = threshold_ms
        self._turn: greenlet | None = None
        """The greenlet of the turn that runs."""
        self._name = b""
        self.request: Sequence[bytes] = ()
        """The request that has started a function; empty for a script."""
        self._began = 0.0
        self._kill = SCRIPT_KILL
        """The command that ends the script."""
        self.is_slow = False
        """It has reached the threshold."""
        self._pause_at = 0.0
        """When the script returns to the event loop."""
        self._end: int | None = None
        """The number of the error that ends the script at its next look at the clock."""
        self.has_written = False
        """The script has run a command that writes."""
        self.awaits_first = suspends_turns
        """No script was sent yet, and the event loop can suspend turns."""
        self.takes_turns = False
        """The next turn runs in a greenlet: a script was sent. False inside of the greenlet."""
        self.is_on = False
        """A script runs for long, and waits for its next slice."""
        self.is_stopping = False
        """The server stops: no script runs any more."""

    # --- the event loop's side ------------------------------------------------------------------

    def prepare(self) -> bool:
        """Make the next turns suspendable; return False if they are already, or cannot be."""
        if not self.awaits_first:
            return False
        self.awaits_first, self.takes_turns = False, True
        return True

    @property
    def may_suspend(self) -> bool:
        """Whether the current turn runs in a greenlet."""
        return self._turn is not None

    def run(self, turn: Callable[[], bool]) -> bool:
        """Run a turn until it ends or its script has run for long; return whether more is left."""
        self._turn = greenlet(turn)
        return self._switch()

    def resume(self) -> bool:
        """Run the next slice of the script, and the rest of its turn if the script ends."""
        self._pause_at = monotonic() + SLICE_S
        return self._switch()

    def _switch(self) -> bool:
        turn = self._turn
        assert turn is not None
        self.is_on = self.takes_turns = False
        try:
            more: bool = turn.switch()
        finally:
            self.takes_turns = True
            if turn.dead:
                self._turn = None
        self.is_on = self._turn is not None
        return more

    @property
    def error(self) -> ErrorReply:
        """The reply to others while a script runs for long."""
        return ErrorReply.of(BusyError(self._kill))

    def kill(self, command: str) -> None:
        """End the script, or raise the reason why ``command`` does not end it."""
        if not self.is_on:
            raise NotBusy
        if self.has_written:
            raise Unkillable
        if command != self._kill:
            raise BusyError(self._kill)
        self._end = KILLED

    @property
    def function(self) -> tuple[bytes, int] | None:
        """The long function and its milliseconds so far; BusyError if a script runs instead."""
        if not self.is_on:
            return None
        if self._kill == SCRIPT_KILL:
            raise BusyError(self._kill)
        return self._name, int((monotonic() - self._began) * 1000)

    def stop(self) -> None:
        """End the script, as the server stops; if it has written, its turn is undone."""
        self.is_stopping, self._end = True, STOPPED

    # --- the script's side ----------------------------------------------------------------------

    def begin(self, name: bytes, kill: str) -> None:
        """Note the start of a script, which the command ``kill`` ends.

        Its time counts from its first look at the clock; most scripts end before that.
        """
        self._name, self._kill, self._end, self._pause_at = name, kill, None, 0.0
        self.has_written = self.is_slow = False

    def tick(self) -> int | None:
        """Pause a slow script, so that other clients get replies; return the error that ends it."""
        turn = self._turn
        if not self._pause_at:
            self._pause_at = monotonic() + self._threshold_ms() / 1000
        if turn is None or monotonic() < self._pause_at or not self._threshold_ms():
            return None
        if getcurrent() is not turn or turn.parent is None:
            return None
        if not self.is_slow:
            self.is_slow = True
            text = "slow script: it runs for %d ms by now, and %s may end it. Its name is: %s"
            _log.warning(text, self._threshold_ms(), self._kill, self._name.decode())
        turn.parent.switch(True)
        if self._end is not None and self.is_stopping and self.has_written:
            raise Stopped
        return self._end
