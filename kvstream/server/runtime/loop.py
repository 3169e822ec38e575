"""What runs an executor: the event loop of a server, or the threads of a program."""

from collections.abc import Callable
from typing import Protocol

from kvstream.types.clock import monotonic


class Loop(Protocol):
    """What runs an executor: an event loop, or threads of the program."""

    suspends_turns: bool
    """Whether a turn may be suspended: an event loop runs the next slice."""

    def clock(self) -> float: ...

    def post(self, function: Callable[[], None]) -> None:
        """Call a function in the executor's thread; other threads use it."""
        ...

    def after_reads(self, function: Callable[[], None]) -> None:
        """Call a function after the reads of the next iteration of the event loop."""
        ...

    def stop(self) -> None:
        """Stop the server soon."""
        ...

    def set_level(self, name: str) -> None:
        """Set the log level of a server process; elsewhere the program decides."""
        ...


class NoLoop:
    """Runs an executor in the threads that call it."""

    suspends_turns = False

    def clock(self) -> float:
        return monotonic()

    def post(self, function: Callable[[], None]) -> None:
        function()

    def after_reads(self, function: Callable[[], None]) -> None:
        function()

    def stop(self) -> None: ...

    def set_level(self, name: str) -> None: ...
