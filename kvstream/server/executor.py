"""The executor: the requests of many clients, run in turns of one commit each. No sockets.

A turn takes the requests that have arrived, client by client, and runs each by the table.
Replies are kept until the turn is committed, and with durability ``always`` until it is on disk.
Where a turn fails, each of its units is run again in a turn of its own, so that damage or a full
disk is told to the one whom it concerns.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from threading import get_ident
from time import monotonic, perf_counter

from kvstream.commands.command import Blocked, Command, Container, Flag
from kvstream.commands.replies import ErrorReply, Reply, Simple
from kvstream.commands.table import find
from kvstream.engine import Engine
from kvstream.errors import RequestError
from kvstream.server.acl import Acl
from kvstream.server.appends import Appends
from kvstream.server.bursts import PlainBurst, burst_of, requests_of
from kvstream.server.calls import Calls, name_of
from kvstream.server.client import Argv, Client
from kvstream.server.descriptions import every
from kvstream.server.limits import Limits
from kvstream.server.options import ServerOptions
from kvstream.server.outbox import Kept, Operation, Outbox, Slot, told
from kvstream.server.queues import run_queue
from kvstream.server.saving import Saving
from kvstream.server.waits import Waits
from kvstream.turn import Turn, TurnFailed

TURN_S = 0.010
"""A turn takes no new request after this time, so that the loop is never held for long."""
TURN_REQUESTS = 2000
"""Nor after so many: their replies wait for the commit."""
LONG_REST_S = 0.0075
"""A turn ends so much sooner after a long call: the reply is long, too, and kept until the end."""
LOOKS = 32
"""After so many requests of one client, and after each long one, the time is looked at."""

QUEUED = Simple("QUEUED")
_EXEC_ALONE = ErrorReply("ERR", "EXEC without MULTI")
_EXECABORT = ErrorReply("EXECABORT", "Transaction discarded because of previous errors.")


class Executor:
    """All clients of a server, and the store that they share."""

    def __init__(
        self,
        engine: Engine,
        commands: Mapping[bytes, Command | Container],
        clock: Callable[[], float] = monotonic,
        post: Callable[[Callable[[], None]], None] | None = None,
        options: ServerOptions | None = None,
    ) -> None:
        """``post`` has a function called in the executor's thread; other threads use it."""
        self.engine = engine
        self.commands = commands
        self.options = replace(options or ServerOptions())
        self.acl = Acl(commands, self.options.requirepass, self.options.aclfile)
        self.calls = Calls(self.options, every(commands), perf_counter)
        self.statistics, self.slowlog = self.calls.statistics, self.calls.slowlog
        self.monitors = self.calls.monitors
        self.limits = Limits(self)
        self.saving = Saving(engine, self.options.checkpoint_dir, self.options.checkpoints_kept)
        self.stop: Callable[[], None] = lambda: None
        """Has the server stop soon."""
        self.started_at = int(time.time())
        self.clock = clock
        self.clients: dict[int, Client] = {}
        self.ready: dict[Client, None] = {}
        """Clients with requests to be run, first come first served."""
        self.bursts: list[PlainBurst] = []
        """What else is to be run, before those."""
        self.waits = Waits(engine, self, self.calls)
        self.blocked = self.waits.blocked
        self.pause = self.waits.pause
        self.post = post or (lambda function: function())
        self._turn: Turn | None = None
        self._runner = 0
        self._until = 0.0
        self._slots: list[Kept] = []
        self._appends = Appends(engine, self.calls, self.options, lambda: self.clock())
        self._outbox = Outbox(engine.committer, self)

    # --- what comes in --------------------------------------------------------------------------

    def add(self, client: Client) -> None:
        self.clients[client.id] = client
        self.statistics.connections += 1
        client.reader.bulk_max = self.options.bulk_max
        client.reader.query_max = self.options.query_max
        client.settle()

    def received(self, client: Client, data: bytes) -> None:
        """Take what a client has sent; what is whole runs in the next turn."""
        self.statistics.bytes_in += len(data)
        client.bytes_in += len(data)
        if client.bytes_in > client.look_at:
            self.limits.look(client)
        if client.direct:
            burst = burst_of(client, data)
            if burst is not None:
                self.bursts.append(burst)
                return
            client.direct = False
        elif client.closing:
            return
        client.last_used = self.clock()
        client.receive(data)
        if client.block is not None:
            if client.unread.size > client.reader.query_max:
                self.drop(client)
        elif client.has_work:
            self.ready[client] = None

    def ended(self, client: Client) -> bool:
        """Note that a client sends no more: it is closed behind its last reply; False: at once.

        Nobody reads what a blocked command would answer.
        """
        asked = client.has_work or any(each.client is client for each in self.bursts)
        if client.block is not None or not (asked or self.is_answering):
            return False
        client.direct, client.leaving = False, True
        self.ready[client] = None
        return True

    def gone(self, client: Client) -> None:
        """Forget a client whose connection has ended."""
        client.closing, client.direct = True, False
        client.requests.clear()
        client.unread.clear()
        self.monitors.pop(client, None)
        self.ready.pop(client, None)
        self.clients.pop(client.id, None)
        self.waits.cancel(client)

    def drop(self, client: Client) -> None:
        """Close a client's connection without a word; what it has not read is let go."""
        self.gone(client)
        client.abort()

    @property
    def is_answering(self) -> bool:
        """Tell whether replies wait until what they tell of is durable."""
        return self._outbox.is_waiting

    # --- turns ----------------------------------------------------------------------------------

    def run(self) -> bool:
        """Run one turn over what has arrived; return whether something is left for the next."""
        if not self.pending:
            return False
        self._until = until = self.clock() + TURN_S
        left = TURN_REQUESTS
        self._runner = get_ident()
        try:
            self._turn = turn = Turn(self.engine)
            try:
                if self.bursts:
                    left -= self._run_bursts(left)
                while self.ready and left > 0 and self.clock() < until:
                    client = next(iter(self.ready))
                    del self.ready[client]
                    left -= self._run_requests(turn, client, min(left, TURN_REQUESTS))
                self._finish(turn)
            except TurnFailed:
                self._run_alone()
        except BaseException:  # KeyboardInterrupt, where a client's own thread runs the turn
            self._abandon()
            raise
        finally:
            self._turn = None
            self.statistics.requests += TURN_REQUESTS - left
        if self.limits.held:
            self.limits.release()
        return self.pending

    @property
    def pending(self) -> bool:
        """Whether there is something to be run."""
        return bool(self.ready or self.bursts)

    def _run_bursts(self, most: int) -> int:
        """Have bursts wait for the end of the turn, or their requests run one by one."""
        taken, others, entries = self._appends.take_bursts(self.bursts, most)
        self._slots += taken
        for burst in reversed(others):
            client = burst.client
            if not client.closing:
                client.requests.extendleft(reversed(requests_of(burst)))
                self.ready[client] = None
        return entries

    def _abandon(self) -> None:
        """Undo a turn that was cut short, and forget what it has to answer."""
        if self._turn is None:
            self.engine.abandon_turn()
        else:
            self._turn.abandon()
        self._appends.clear()
        self._slots.clear()

    def _run_requests(self, turn: Turn, client: Client, most: int) -> int:
        """Run a client's requests until it blocks or has none; return how many."""
        requests = client.requests
        count, more = 0, True
        while count < most and client.block is None and not client.closing:
            if requests:
                count += 1
                self._request(turn, client, requests.popleft())
                if not (self.calls.took_long or not count % LOOKS):
                    continue
            elif not (more := client.take_in()):
                break
            if self._is_late():
                break
        if client.block is None and not client.closing:
            if more:
                self.ready[client] = None
            elif client.fault is not None:
                self._slots.append(Slot(client, ErrorReply.of(client.fault)))
                client.closing = True
            elif client.leaving:
                self._slots.append(Slot(client, None, told=False))  # what it is closed behind
                client.closing = True
            else:
                client.settle()
        elif client.block is not None and client.leaving:
            self.drop(client)
        return count

    def _is_late(self) -> bool:
        rest = LONG_REST_S if self.calls.took_long else 0.0
        self.calls.took_long = False
        return self.clock() >= self._until - rest

    def _request(self, turn: Turn, client: Client, argv: Argv) -> None:
        """Run one request, or queue it for EXEC; its reply goes into a slot."""
        waits = self._appends.take(client, argv)
        if waits is not None:
            self._slots.append(waits)
            return
        if self._appends.waiting:
            self._appends.flush(turn)
            return self._request(turn, client, argv)
        try:
            command = find(argv, self.commands)
        except RequestError as error:
            if self.limits.drops_http(client, argv[0]):
                return
            name = name_of(argv, self.commands)
            self._answer(client, self.calls.refused(client, name, ErrorReply.of(error)))
            return
        refusal = self.calls.refusal(client, command, argv)
        if refusal is not None:
            self._answer(client, self.calls.refused(client, command.name, refusal))
        elif self.calls.paused and self.pause.holds(client, command):
            self.pause.hold(turn, client, argv)
        elif client.queue is not None and Flag.IMMEDIATE not in command.flags:
            client.queue.commands.append((command, argv))
            self._answer(client, QUEUED)
        else:
            self._call(turn, client, command, argv)

    def _call(self, turn: Turn, client: Client, command: Command, argv: Argv) -> None:
        if Flag.LOCAL in command.flags:
            reply = self.calls.answer_at_once(client, command, argv, turn.txn)
            assert not isinstance(reply, Blocked)
            self._answer(client, reply)
            return
        if command.name == "exec":
            self._exec(turn, client)
            return
        if Flag.DENYOOM in command.flags:
            turn.grows = True
        self._run_unit(turn, client, partial(self.calls.answer, client, command, argv))

    def _run_unit(self, turn: Turn, client: Client, unit: Operation) -> None:
        slot = Slot(client, None, unit, client.db, client.protocol)
        self._slots.append(slot)
        slot.reply = turn.run(unit)
        self._settle(turn, slot)

    def _settle(self, turn: Turn, slot: Slot) -> None:
        """Block the client where its unit said so; let others have the news that it made."""
        client = slot.client
        if isinstance(slot.reply, Blocked):
            self.waits.begin(turn, client, slot.reply)
        else:
            slot.told = client.wants(slot.reply)
        if turn.txn.signals:
            turn.serve()

    def _finish(self, turn: Turn) -> None:
        if self._appends.waiting:
            self._appends.flush(turn)
        sequence = turn.commit()
        for waiter, outcome in turn.served:
            waiter.deliver(outcome)
        slots, self._slots = self._slots, []
        if slots:
            self._outbox.send(sequence, slots)

    def _run_alone(self) -> None:
        """Run each unit of a failed turn again, in a turn of its own."""
        self._appends.clear()
        kept, self._slots = self._slots, []
        slots = [slot for each in kept for slot in self._appends.apart(each)]
        for slot in slots:
            if isinstance(slot.reply, Blocked):  # its waiter went with the turn
                self.waits.end(slot.client)
        for slot in slots:
            if slot.unit is None:
                self._slots.append(slot)
                continue
            self._run_again(slot, slot.unit)
        rest, self._slots = self._slots, []
        if rest:
            self._outbox.send(self.engine.last_sequence, rest)

    def _run_again(self, slot: Slot, unit: Operation) -> None:
        client, db = slot.client, slot.client.db
        client.select(slot.db)
        self._turn = turn = Turn(self.engine)
        kept, self._slots = self._slots, [slot]
        try:
            slot.reply = turn.run(unit)
            self._settle(turn, slot)
            turn.commit()
            for waiter, outcome in turn.served:
                waiter.deliver(outcome)
        except TurnFailed as failure:
            if client.block is not None:
                self.waits.end(client)
            slot.reply = told(failure)
            self._slots = [slot]
        finally:
            client.select(db)
            self._slots = kept + self._slots

    # --- replies --------------------------------------------------------------------------------

    def _answer(self, client: Client, reply: Reply, keeps: bool = False) -> None:
        told, protocol = client.wants(reply), client.protocol
        self._slots.append(Slot(client, reply, None, 0, protocol, keeps, told))

    # --- transactions ---------------------------------------------------------------------------

    def _exec(self, turn: Turn, client: Client) -> None:
        """Run what MULTI has queued as one unit: whole, or not at all."""
        queue, watched = client.queue, client.watched
        if queue is None:
            self._answer(client, self.calls.failed("exec", _EXEC_ALONE))
            return
        client.queue, client.watched = None, {}
        if queue.failed:
            self._answer(client, self.calls.failed("exec", _EXECABORT))
        else:
            turn.grows |= any(Flag.DENYOOM in command.flags for command, _ in queue.commands)
            self._run_unit(turn, client, partial(run_queue, self.calls, client, queue, watched))

    # --- waiting --------------------------------------------------------------------------------

    @property
    def in_turn(self) -> bool:
        """Tell whether this thread runs a turn."""
        return self._turn is not None and self._runner == get_ident()

    def tell(self, client: Client, reply: Reply) -> None:
        """Answer a client that has waited: with the turn, or where there is none at once."""
        if isinstance(reply, ErrorReply):
            self.statistics.failed(client.last_command, reply.code)
        if self.in_turn:
            self._answer(client, reply, keeps=True)
            return
        slots, self._slots = self._slots, []
        self._answer(client, reply, keeps=True)
        self._outbox.send(self.engine.last_sequence, self._slots)
        self._slots = slots

    def due(self) -> float | None:
        """Return when ``expire`` has something to do, on the clock; None: never."""
        return self.waits.due()

    def expire(self) -> None:
        """End the waits whose time is over, and let those try again whose time has come."""
        self.waits.expire()
