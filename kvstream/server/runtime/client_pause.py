"""CLIENT PAUSE: for some time no command is run, or none that writes; who sends one waits."""

from typing import Protocol

from kvstream.commands.command import Blocked, Command, Flag
from kvstream.engine.engine import Turn
from kvstream.meta.txn import Txn
from kvstream.server.runtime.client import Argv, Client
from kvstream.server.runtime.dispatch import Calls

_TOKEN = b"p"
"""What those wait for who are held: not the name of any key, and never news."""


def _never(txn: Txn) -> None:
    """Nothing is found: the end of the pause ends the wait."""


class Expiry(Protocol):
    """What deletes keys that have expired."""

    paused: bool


class Waits(Protocol):
    """Where clients wait."""

    def now(self) -> float: ...

    def begin(self, turn: Turn, client: Client, wait: Blocked) -> None: ...

    def cancel(self, client: Client) -> None: ...


class Pause:
    """The pause of one server, if there is one."""

    def __init__(self, waits: Waits, calls: Calls, expiry: Expiry) -> None:
        self._waits = waits
        self._calls = calls
        self._expiry = expiry
        self.until: float | None = None
        """When it ends, on the loop's clock; None: there is none."""
        self._every = False
        self._held: dict[Client, None] = {}

    def begin(self, seconds: float, every: bool) -> None:
        """Hold every command for a time, or those that write.

        A pause that there is goes on as long as it was to, and holds no less than it did.
        """
        until = self._waits.now() + seconds
        self.until = until if self.until is None else max(until, self.until)
        self._every = every or (self._every and self._calls.paused)
        self._calls.paused = self._expiry.paused = True
        self._go_on()

    def end(self) -> None:
        """Let all run who were held, first come first served."""
        self.until = None
        self._calls.paused = self._expiry.paused = False
        self._go_on()

    def _go_on(self) -> None:
        held, self._held = self._held, {}
        for client in held:
            self._waits.cancel(client)

    def holds(self, client: Client, command: Command) -> bool:
        """Tell whether a command has to wait."""
        if self._every or Flag.WRITE in command.flags:
            return True
        queue = client.queue
        return (
            command.name == "exec"
            and queue is not None
            and any(Flag.WRITE in queued.flags for queued, _ in queue.commands)
        )

    def has(self, client: Client) -> bool:
        """Tell whether a client waits for the end of the pause, and for nothing else."""
        return client in self._held

    def let_go(self, client: Client) -> None:
        """Have a client run what it waits to run; where the pause goes on it is held again."""
        if self.has(client):
            del self._held[client]
            self._waits.cancel(client)

    def hold(self, turn: Turn, client: Client, argv: Argv) -> None:
        """Have a client wait for the end of the pause, and then run a request."""
        client.requests.appendleft(argv)
        self._waits.begin(turn, client, Blocked([_TOKEN], _never, None))
        self._held[client] = None
