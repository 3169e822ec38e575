"""Incremental commands: long commands run in steps between turns, each a turn of its own.

No other request of the client runs until its command is answered.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kvstream.commands.command import Command, Stepwise
from kvstream.commands.replies import ErrorReply
from kvstream.engine.turns import Turn, TurnFailed
from kvstream.errors import KVStreamError
from kvstream.operations.plans import Stepped
from kvstream.server.runtime.blocked_clients import Pause
from kvstream.server.runtime.client import Client, Server
from kvstream.server.runtime.client_state import Event
from kvstream.server.runtime.dispatch import Dispatcher
from kvstream.server.runtime.reply_queue import PendingReply, Requeued


@dataclass(slots=True)
class IncrementalCommand:
    """A command that runs in steps."""

    pending: PendingReply
    command: Command
    work: Stepped[Any]


class IncrementalCommands:
    """The incremental commands of one server's clients."""

    def __init__(
        self,
        server: Server,
        dispatcher: Dispatcher,
        pause: Pause,
        run_step: Callable[[PendingReply], None],
    ) -> None:
        """``run_step`` runs the unit of a pending reply as a turn of its own."""
        self._server = server
        self._dispatcher = dispatcher
        self._pause = pause
        self._run_step = run_step
        self._under_way: dict[Client, IncrementalCommand] = {}
        self._abandoned: list[Stepped[Any]] = []
        """Plans of ended commands whose staged rows are still to be removed."""

    @property
    def is_busy(self) -> bool:
        """Whether a step can run now."""
        return self.has_step()

    def has_step(self) -> bool:
        """Return ``is_busy``; a turn asks, and a property takes five times as long as a method."""
        return bool(self._abandoned or (self._under_way and self._next() is not None))

    def _next(self) -> Client | None:
        """Return the client whose step runs next; CLIENT PAUSE holds steps too."""
        if not self._dispatcher.paused:
            return next(iter(self._under_way), None)
        holds = self._pause.holds_steps
        clients = (each for each, work in self._under_way.items() if not holds(work.command))
        return next(clients, None)

    def add(self, pending: PendingReply, reply: Stepwise[Any]) -> None:
        """Queue the next step of a command."""
        unit = pending.unit
        assert isinstance(unit, partial)  # of Dispatcher.answer
        client, command, argv = unit.args
        step = replace(command, run=reply.run)
        following = partial(self._dispatcher.answer_later, client, step, argv)
        again = PendingReply(
            client, None, following, pending.db, pending.protocol, reads=pending.reads
        )
        client.handle(Event.STEP)
        self._under_way[client] = IncrementalCommand(again, command, reply.work)

    def forget(self, client: Client) -> None:
        """Abandon the command of a client that is gone."""
        command = self._under_way.pop(client, None)
        if command is not None:
            self._abandon(command.work)

    def put_back(self, client: Client) -> None:
        """Make the rolled back step of a client its next request."""
        command = self._under_way.pop(client, None)
        if command is not None:
            client.requests.appendleft(Requeued(command.pending))

    def run(self) -> None:
        """Run steps for the time that they have between two turns."""
        clock = self._server.clock
        until = clock() + self._server.engine.thresholds.steps_s
        while self._abandoned:
            self._undo(self._abandoned.pop())
        while (client := self._next()) is not None:
            command = self._under_way.pop(client)
            client.handle(Event.RESUME)  # to run the step
            client.last_used = clock()
            self._run_step(command.pending)
            if isinstance(command.pending.reply, ErrorReply):
                self._abandon(command.work)
            if clock() >= until:
                return

    def _abandon(self, work: Stepped[Any]) -> None:
        if work.has_staged:
            self._abandoned.append(work)

    def _undo(self, work: Stepped[Any]) -> None:
        """Remove what steps have staged; if that fails, the next opening of the store does it."""
        engine = self._server.engine
        with suppress(TurnFailed, KVStreamError):
            turn = Turn(engine)
            try:
                turn.run(work.abandon)
                names = list(turn.txn.signals)
                turn.commit()
            except BaseException:  # a refusal, for a group that is gone, leaves the turn open
                turn.abandon()
                raise
            if names:
                engine.serve(names)
