"""What runs an executor: the event loop of a server, or the threads of a program."""

from collections.abc import Callable
from typing import Protocol

from kvstream.errors import ReplicationRefused
from kvstream.replicas.feeds import Outgoing
from kvstream.server.runtime.client import Client
from kvstream.types.clock import monotonic


class ReplicaLink(Protocol):
    """The connection of a replica: one frame is sent at a time."""

    def send(self, frame: Outgoing) -> None:
        """Begin to send a frame; the one before must be sent. OSError if the link is lost."""
        ...

    def flush(self) -> bool:
        """Send what is left; return whether that is all. OSError if the link is lost."""
        ...

    def close(self) -> None:
        """Close this end of the link."""
        ...


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

    def call_later(self, seconds: float, function: Callable[[], None]) -> object:
        """Call a function in the executor's thread after some time."""
        ...

    def link_to(self, client: Client) -> ReplicaLink:
        """Return a link that writes to the socket of a client."""
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

    def call_later(self, seconds: float, function: Callable[[], None]) -> object:
        raise ReplicationRefused("replicas need a server")

    def link_to(self, client: Client) -> ReplicaLink:
        raise ReplicationRefused("replicas need a server")

    def stop(self) -> None: ...

    def set_level(self, name: str) -> None: ...
