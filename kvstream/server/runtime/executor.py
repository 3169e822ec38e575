"""The executor: the requests of many clients, run in turns of one commit each. No sockets.

A turn takes the requests that have arrived, client by client, and runs each by the table.
Replies are kept until the turn is committed, and with durability ``always`` until it is on disk.
Where a turn fails, each of its units is run again in a turn of its own, so that damage or a full
disk is told to the one whom it concerns.

What MULTI has queued, as EXEC runs it: one unit of a turn.

How long a turn may go on: the loop has sockets to look after.
"""

from collections.abc import Callable, Mapping
from functools import partial
from threading import get_ident
from time import monotonic, perf_counter
from typing import Final, Protocol

from kvstream.commands.command import LATER, Blocked, Command, Container, Later, Stepwise
from kvstream.commands.replies import NULL_ARRAY, ErrorReply, Paged, Reply, Simple
from kvstream.commands.reply_pages import given_up, memory_of
from kvstream.commands.table import find
from kvstream.engine.engine import Engine, Turn, TurnFailed
from kvstream.errors import RequestError, UnknownOutcome
from kvstream.meta.filling import Limits
from kvstream.meta.reply_cache import Hot
from kvstream.meta.txn import Txn
from kvstream.operations.keyspace import Watched
from kvstream.operations.pages import SHORT_BYTES
from kvstream.resp.replies import write_rows
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.blocked_clients import Waits
from kvstream.server.runtime.client import Answers, Argv, Client, Queue
from kvstream.server.runtime.clients import Arrivals
from kvstream.server.runtime.dispatch import Calls, name_of
from kvstream.server.runtime.incremental_commands import Works
from kvstream.server.runtime.reply_queue import OF_ROWS, Again, Kept, Operation, Outbox, Slot, told
from kvstream.server.runtime.xadd_batching import WORDS_MIN, Appends
from kvstream.server.runtime.xadd_requests import requests_of

TURN_S: Final = 0.010
"""A turn takes no new request after this time, so that the loop is never held for long."""
TURN_REQUESTS: Final = 2000
"""Nor after so many: their replies wait for the commit."""
LONG_REST_S: Final = 0.0075
"""A turn ends so much sooner after a long call: the reply is long, too, and kept until the end."""
LOOKS: Final = 32
"""After so many requests of one client, and after each long one, the time is looked at."""


class Clocked(Protocol):
    """Whose clock it is."""

    clock: Callable[[], float]


class Pace:
    """The time of one turn after the other."""

    def __init__(self, owner: Clocked, calls: Calls) -> None:
        self._owner = owner
        self._calls = calls
        self._until = 0.0

    def begin(self) -> float:
        """Begin a turn; return when its time is over, on the clock."""
        self._until = until = self._owner.clock() + TURN_S
        return until

    def is_late(self) -> bool:
        """Tell whether the turn is to end behind the last request."""
        rest = LONG_REST_S if self._calls.took_long else 0.0
        self._calls.took_long = False
        return self._owner.clock() >= self._until - rest


SMALL = 1 << 10
"""A reply of no more bytes than this is told in any case."""
_UNTOLD = frozenset({Blocked, Later, Stepwise})
"""What is no reply; the last two are answered outside of EXEC alone."""
_EXEC_ALONE = ErrorReply("ERR", "EXEC without MULTI")
_EXECABORT = ErrorReply("EXECABORT", "Transaction discarded because of previous errors.")


class Room:
    """The memory that the replies of one EXEC may take: they are one reply, with one limit."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.held = 0
        """Bytes that they take."""
        self.is_long = False
        """Whether the whole is to be written page by page."""

    def take(self, command: Command, reply: Reply) -> Reply:
        """Count a reply and return it, or an error instead where it is one too many.

        What a command has written is told in any case.
        """
        limits, size = self._limits, memory_of(reply)
        held = self.held + size
        if size > SMALL and 0 < limits.reply_max < held and not command.writes:
            return ErrorReply.of(limits.too_large())
        self.held = limits.reply_held = held
        if type(reply) is Paged or held > SHORT_BYTES:
            self.is_long = True
        return reply

    def leave(self) -> None:
        """Let the replies of others have their own limits."""
        self._limits.reply_held = 0


def refusal_of_exec(calls: Calls, client: Client) -> ErrorReply | None:
    """End a client's MULTI; return why what it has queued is not to be run, where it is not."""
    queue = client.queue
    if queue is None:
        return calls.failed("exec", _EXEC_ALONE)
    client.end_queue()
    return calls.failed("exec", _EXECABORT) if queue.failed else None


def run_queue(calls: Calls, client: Client, queue: Queue, watched: Watched, txn: Txn) -> Reply:
    """Run queued commands; the error of one does not stop the others."""
    begun = calls.clock()
    if watched.is_changed(txn):
        return NULL_ARRAY
    room = Room(txn.catalog.limits)
    tracking = calls.trackers.clients.get(client)
    caching = tracking is not None and tracking.caching
    replies: list[Reply] = []
    client.in_exec = True
    try:
        for command, argv in queue.commands:
            if tracking is not None:
                tracking.caching = caching  # CLIENT CACHING is about all of them
            reply = _answer(calls, client, command, argv, txn)
            replies.append(room.take(command, reply))
    finally:
        client.in_exec = False
        room.leave()
        client.last_command = "exec"
    if client.answers is Answers.SKIP_NEXT:  # the one of EXEC is as a whole
        client.answers = Answers.SKIP
    calls.statistics.ran("exec", calls.clock() - begun)
    return given_up(replies, room.held) if client.pages and room.is_long else replies


def _answer(calls: Calls, client: Client, command: Command, argv: Argv, txn: Txn) -> Reply:
    client.last_command = "exec"
    if client.user.free and not calls.crowded:
        reply = calls.answer(client, command, argv, txn)
    else:  # rights may have changed since
        refusal = calls.refusal_in_exec(client, command, argv)
        reply = refusal or calls.answer(client, command, argv, txn)
    if type(reply) in _UNTOLD:
        assert isinstance(reply, Blocked)
        return reply.expired
    return reply  # type: ignore[return-value]


QUEUED = Simple("QUEUED")
_HELD = (Blocked, Later, Stepwise)
_HOLDING: Final = frozenset({*_HELD, Paged})
"""Answers after which nothing more of a client runs for now."""
_SEEN_TO: Final = _HOLDING | OF_ROWS
"""Answers with which there is something to be done before the commit."""


class Executor(Arrivals):
    """What clients have sent, run in turns; and its replies."""

    def __init__(
        self,
        engine: Engine,
        commands: Mapping[bytes, Command | Container],
        clock: Callable[[], float] = monotonic,
        post: Callable[[Callable[[], None]], None] | None = None,
        options: ServerOptions | None = None,
    ) -> None:
        """``post`` has a function called in the executor's thread; other threads use it."""
        super().__init__(engine, commands, clock, options)
        self.waits = Waits(engine, self, self.calls)
        self.blocked = self.waits.blocked
        self.pause = self.waits.pause
        self.due, self.expire = self.waits.due, self.waits.expire
        self.post = post or (lambda function: function())
        self._turn: Turn | None = None
        self._runner = 0
        self._pace = Pace(self, self.calls)
        self._slots: list[Kept] = []
        self._appends = Appends(engine, self.calls, self.options, lambda: self.clock())
        self.works = Works(self)
        self.outbox = Outbox(engine.committer, self, self.paging)
        engine.catalog.limits.entry_max_bytes = self.options.stream_entry_max_bytes
        self._gate = engine.database.gate
        engine.catalog.hot = Hot(self.options.hot_memory, write_rows)

    # --- turns ----------------------------------------------------------------------------------

    def run(self) -> bool:
        """Run one turn over what has arrived; return whether something is left for the next."""
        if not self.pending:
            return False
        begun, until = perf_counter(), self._pace.begin()
        if self.options.maxmemory:
            self.limits.look_at_memory()
        if self._gate.is_shut is (self.calls.read_only is None):
            self.calls.note_failure(self._gate.failure if self._gate.is_shut else None)
        left = TURN_REQUESTS
        self._runner = get_ident()
        try:
            self._turn = turn = Turn(self.engine)
            turn.txn.keeps_expired |= self.calls.paused  # nothing writes in this turn
            try:
                if self.first:
                    left -= self._run_first(turn)
                if self.bursts:
                    left -= self._run_bursts(left)
                ready, clock = self.ready, self.clock
                while ready and left > 0 and clock() < until:
                    client = next(iter(ready))
                    del ready[client]
                    left -= self._run_requests(turn, client, left)
                self._finish(turn)
            except TurnFailed as failure:
                self._run_alone(failure)
        except BaseException:  # KeyboardInterrupt, where a client's own thread runs the turn
            self._abandon()
            raise
        finally:
            self._turn = None
            self.statistics.turned(TURN_REQUESTS - left, perf_counter() - begun)
        self.look_after()
        return self.pending

    @property
    def pending(self) -> bool:
        """Whether there is something to be run."""
        return bool(self.ready or self.bursts or self.first or self.works.is_busy)

    def _run_first(self, turn: Turn) -> int:
        """Run the requests that were to come before all else."""
        count = 0
        for _ in range(len(self.first)):
            client = self.first.pop(0)
            client.paged = False
            count += self._run_requests(turn, client, 1)
        return count

    def _run_bursts(self, most: int) -> int:
        """Have bursts wait for the end of the turn, or their requests run one by one."""
        taken, others, entries = self._appends.take_bursts(self.bursts, most)
        self._slots += taken
        for burst in reversed(others):
            client = burst.client
            if not client.closing:
                client.direct = False  # what it sends next comes behind them
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
        if client.paged:  # it will be here again
            return 0
        try:
            count, more = self._run_some(turn, client, most)
        except TurnFailed:
            self.ready[client] = None  # what comes behind the one that has failed is to be run
            raise
        if client.paged:
            return count
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

    def _run_some(self, turn: Turn, client: Client, most: int) -> tuple[int, bool]:
        """Run requests while there is time; return how many, and whether there may be more.

        Where others wait a client has LOOKS requests or one piece of bytes, and a stranger has one
        request: then it is their turn.
        """
        requests = client.requests
        count, more = 0, True
        while count < most and client.block is None and not client.closing and not client.paged:
            if requests:
                count += 1
                self._request(turn, client, requests.popleft())
                if count % LOOKS and client.authenticated:
                    if self.calls.took_long and self._pace.is_late():
                        break
                    continue
            elif not (more := client.take_in()):
                break
            if self._pace.is_late() or self.ready:
                break
        return count, more

    def _request(self, turn: Turn, client: Client, argv: Argv) -> None:
        """Run one request, or queue it for EXEC; its reply goes into a slot."""
        appends = self._appends
        if len(argv) >= WORDS_MIN and (waits := appends.take(client, argv)) is not None:
            self._slots.append(waits)
            return
        if appends.waiting:
            appends.make_way(turn, client, argv)
            return self._request(turn, client, argv)
        if type(argv) is Again:
            return self._again(turn, client, argv.slot)
        try:
            command = find(argv, self.commands)
        except RequestError as error:
            if self.limits.drops_http(client, argv[0]):
                return
            name = name_of(argv, self.commands)
            self._answer(client, self.calls.refused(client, name, ErrorReply.of(error)))
            return
        calls = self.calls
        client.last_command = command.name
        refusal = calls.refusal(client, command, argv)
        if refusal is not None:
            self._answer(client, calls.refused(client, command.name, refusal))
        elif calls.paused and self.pause.holds(client, command):
            self.pause.hold(turn, client, argv)
        elif client.queue is not None and not command.is_immediate:
            client.queue.add(command, argv)
            if self.limits.lets_queue(client):
                self._answer(client, QUEUED)
        else:
            self._call(turn, client, command, argv)

    def _call(self, turn: Turn, client: Client, command: Command, argv: Argv) -> None:
        if command.is_local:
            reply = self.calls.answer_at_once(client, command, argv, turn.txn)
            assert not isinstance(reply, _HELD)
            self._answer(client, reply)
            return
        if command.name == "exec":
            self._exec(turn, client)
            self.calls.show(client, argv)  # behind what it ran, however it ended
            return
        if command.grows:
            turn.grows = True
        unit = partial(self.calls.answer, client, command, argv)
        slot = self._run_unit(turn, client, unit, command.tells, not command.writes)
        if command.name == "watch":
            slot.unit = None  # should the turn fail: its client is in MULTI by then, or behind it

    def _run_unit(
        self, turn: Turn, client: Client, unit: Operation, keeps: bool, reads: bool
    ) -> Slot:
        told = client.answers is Answers.ON or None  # an EXEC may change it: from its end on
        slot = Slot(client, None, unit, client.db, client.protocol, keeps, told, b"", reads)
        self._slots.append(slot)
        slot.reply = reply = turn.run(unit)
        if not told or type(reply) in _SEEN_TO or turn.txn.signals:
            self._settle(turn, slot)  # most need nothing of it
        return slot

    def _settle(self, turn: Turn, slot: Slot) -> None:
        """Block the client where its unit said so; let others have the news that it made."""
        kind = type(slot.reply)
        if kind in _HOLDING:
            self._hold(turn, slot)
        elif slot.is_wanted() and kind in OF_ROWS:
            slot.make()
        if turn.txn.signals:
            turn.serve()

    def _hold(self, turn: Turn, slot: Slot) -> None:
        """Have a client wait for what its command waits for, or until its reply is written."""
        client, reply = slot.client, slot.reply
        client.direct = False  # a request that runs again may be the first to hold it
        if isinstance(reply, Blocked):
            if not client.closing:  # nor gone
                assert isinstance(slot.unit, partial)  # of Calls.answer or answer_later
                self.waits.begin(turn, client, reply, slot.unit.args[1:])
            return
        if reply is LATER:
            slot.reply = None
            client.requests.appendleft(Again(slot))
            self._slots.remove(slot)
            self.first.append(client)
            client.paged = True
            return
        if isinstance(reply, Stepwise):
            self._slots.remove(slot)
            self.works.add(slot, reply)
            client.paged = True
            return
        assert isinstance(reply, Paged)
        client.paged = slot.is_wanted()

    def run_step(self, slot: Slot) -> None:
        """Run the next step of a command as a turn of its own, and answer behind the last one."""
        assert slot.unit is not None
        self._runner = get_ident()
        try:
            sequence = self._run_again(slot, slot.unit)
        finally:
            self._turn = None
        slots, self._slots = self._slots, []
        if not isinstance(slot.reply, Stepwise):
            if not (isinstance(slot.reply, Paged) and slot.told):
                slot.client.paged = False
            if not slot.client.paged and slot.client.block is None:
                self.ready[slot.client] = None
        if slots:  # the answer, and those of others whom the step has woken
            self.outbox.send(sequence, slots)

    def _finish(self, turn: Turn) -> None:
        if self._appends.waiting:
            self._appends.flush(turn)
        sequence = turn.commit()
        if turn.served:
            turn.tell(sequence)
        slots, self._slots = self._slots, []
        if slots:
            self.outbox.send(sequence, slots)

    def _run_alone(self, failure: TurnFailed) -> None:
        """Run each unit of a failed turn again, in a turn of its own.

        Where nobody knows whether the write of the turn is there, units that write are told so.
        """
        is_unknown = isinstance(failure.__cause__, UnknownOutcome)
        self._appends.clear()
        kept, self._slots = self._slots, []
        slots = [slot for each in kept for slot in self._appends.apart(each)]
        slots += map(self.taken_back, list(self.first))  # put off again and again they had no end
        for slot in slots:
            self.let_go(slot)
        behind: dict[Client, list[Argv]] = {}
        sequence = self.engine.seen_sequence
        for slot in slots:
            client = slot.client
            if client.block is not None or client.paged:  # by one that was just run again
                behind.setdefault(client, []).append(Again(slot))
            elif slot.unit is None:
                self._slots.append(slot)
            elif is_unknown and not slot.reads:
                slot.reply, slot.made = told(failure), b""
                slot.is_wanted()
                self._slots.append(slot)
            else:
                sequence = max(sequence, self._run_again(slot, slot.unit))
        for client, requests in behind.items():
            if client in self.first:
                requests.insert(0, client.requests.popleft())
            client.requests.extendleft(reversed(requests))
        rest, self._slots = self._slots, []
        if rest:
            self.outbox.send(sequence, rest)

    def _again(self, turn: Turn, client: Client, slot: Slot) -> None:
        """Answer a request that could not be answered when it was to be run again."""
        self._slots.append(slot)
        if slot.unit is None:
            return
        db, slot.made = client.db, b""
        client.select(slot.db)
        assert isinstance(slot.unit, partial)
        if slot.unit.func is not run_queue:  # that looks at the rights by itself
            slot.unit = partial(self.calls.answer_later, *slot.unit.args)
        try:
            slot.reply = turn.run(slot.unit)
            self._settle(turn, slot)
        finally:
            client.select(db)

    def _run_again(self, slot: Slot, unit: Operation) -> int:
        """Run a unit in a turn of its own; return the number of the write to be waited for."""
        client, db = slot.client, slot.client.db
        client.select(slot.db)
        slot.made = b""
        self._turn = turn = Turn(self.engine)
        if slot.reads and self.engine.database.failure is not None:
            turn.txn.read_only = turn.txn.keeps_expired = True  # to tidy up would make it fail
        kept, self._slots = self._slots, [slot]
        try:
            slot.reply = turn.run(unit)
            self._settle(turn, slot)
            sequence = turn.commit()
            turn.tell(sequence)
            return sequence
        except TurnFailed as failure:
            if client.block is not None:
                self.waits.end(client)
            if client in self.first:
                self.taken_back(client)
            self.works.forget(client)
            self.paging.release(client)
            slot.reply, slot.made = told(failure), b""
            slot.is_wanted()
            self._slots = [slot]
            return self.engine.seen_sequence
        finally:
            client.select(db)
            self._slots = kept + self._slots

    # --- replies --------------------------------------------------------------------------------

    def _answer(self, client: Client, reply: Reply, keeps: bool = False) -> None:
        told, protocol = client.wants_next(), client.protocol
        if type(reply) is Paged:
            client.paged = told
        self._slots.append(Slot(client, reply, None, 0, protocol, keeps, told))

    # --- transactions ---------------------------------------------------------------------------

    def _exec(self, turn: Turn, client: Client) -> None:
        """Run what MULTI has queued as one unit: whole, or not at all."""
        queue, watched = client.queue, client.watched
        refusal = refusal_of_exec(self.calls, client)
        if queue is None or refusal is not None:
            self._answer(client, refusal)
            return
        turn.grows |= any(command.grows for command, _ in queue.commands)
        reads = not any(command.writes for command, _ in queue.commands)
        unit = partial(run_queue, self.calls, client, queue, watched)
        self._run_unit(turn, client, unit, True, reads)

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
        self.outbox.send(self.engine.seen_sequence, self._slots)
        self._slots = slots
