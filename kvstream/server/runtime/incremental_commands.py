"""Long commands under way: done step by step, between turns, while their clients wait.

Each step is a turn of its own. A client of whom a command is under way is held: nothing else of it
runs until it has been answered. Sans-IO, as the executor is, which runs the steps.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from kvstream.commands.command import Command, Stepwise
from kvstream.commands.replies import ErrorReply
from kvstream.engine.engine import Engine, Turn, TurnFailed
from kvstream.errors import KVStreamError
from kvstream.meta.txn import Txn
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.client_pause import Pause
from kvstream.server.runtime.dispatch import Calls
from kvstream.server.runtime.reply_queue import Again, Slot

STEPS_S = 0.002
"""Steps are run for so long between two turns."""


@dataclass(slots=True)
class Work:
    """A command under way."""

    slot: Slot
    command: Command
    undo: Callable[[Txn], None] | None


class Owner(Protocol):
    """What is needed of the executor."""

    calls: Calls
    clock: Callable[[], float]
    engine: Engine
    pause: Pause

    def run_step(self, slot: Slot) -> None: ...


class Works:
    """The long commands of one server's clients."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._under_way: dict[Client, Work] = {}
        self._left: list[Callable[[Txn], None]] = []
        """What is to take away the traces of commands whose clients have gone."""

    @property
    def is_busy(self) -> bool:
        """Tell whether there is something to be done."""
        return bool(self._left or (self._under_way and self._next() is not None))

    def _next(self) -> Client | None:
        """Return the client whose command has its next step now; a pause holds steps, too."""
        if not self._owner.calls.paused:
            return next(iter(self._under_way), None)
        holds = self._owner.pause.holds
        found = (each for each, work in self._under_way.items() if not holds(each, work.command))
        return next(found, None)

    def add(self, slot: Slot, reply: Stepwise) -> None:
        """Have the next step of a command run, behind those of others."""
        unit = slot.unit
        assert isinstance(unit, partial)  # of Calls.answer or answer_later
        client, command, argv = unit.args
        step = replace(command, run=reply.step)
        following = partial(self._owner.calls.answer_later, client, step, argv)
        again = Slot(client, None, following, slot.db, slot.protocol, reads=slot.reads)
        self._under_way[client] = Work(again, command, reply.undo)

    def forget(self, client: Client) -> None:
        """Have no more steps run for a client that has gone."""
        work = self._under_way.pop(client, None)
        if work is not None and work.undo is not None:
            self._left.append(work.undo)

    def put_back(self, client: Client) -> None:
        """Have a command whose last step was undone go on as the next request of its client."""
        work = self._under_way.pop(client, None)
        if work is not None:
            client.requests.appendleft(Again(work.slot))
            client.paged = False

    def run(self) -> None:
        """Run steps for a while."""
        clock = self._owner.clock
        until = clock() + STEPS_S
        while self._left:
            self._take_away(self._left.pop())
        while (client := self._next()) is not None:
            work = self._under_way.pop(client)
            client.last_used = clock()
            self._owner.run_step(work.slot)
            if work.undo is not None and isinstance(work.slot.reply, ErrorReply):
                self._left.append(work.undo)
            if clock() >= until:
                return

    def _take_away(self, undo: Callable[[Txn], None]) -> None:
        """Undo what steps have left; where that fails it is swept at the next opening."""
        with suppress(TurnFailed, KVStreamError):
            turn = Turn(self._owner.engine)
            turn.run(undo)
            turn.commit()
