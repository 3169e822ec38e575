"""The executor: run the requests of many clients in turns, one commit each. No sockets.

A turn takes the requests that have arrived, client by client, and runs them by the command table.
Replies are kept until the turn is committed, and with durability ``always`` until it is on disk. If
a turn fails, each of its requests runs again in a turn of its own, so that damage or a full disk is
reported to the client that it concerns.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import Final

from kvstream.commands.command import LATER, Blocked, Command, Flag, Later, Stepwise, Table, every
from kvstream.commands.replies import ErrorReply, Paged, Pushes, Reply, internal_error
from kvstream.commands.table import find
from kvstream.engine.engine import Engine
from kvstream.engine.turns import Turn, TurnFailed
from kvstream.errors import RequestError
from kvstream.logs import DeferredLogger
from kvstream.meta.reply_cache import ReplyCache
from kvstream.resp.replies import write_rows
from kvstream.server.acl import Acl
from kvstream.server.options import ServerOptions
from kvstream.server.runtime import transactions
from kvstream.server.runtime.arrivals import Arrivals
from kvstream.server.runtime.blocked_clients import BlockedClients
from kvstream.server.runtime.busy import Busy
from kvstream.server.runtime.call_recorder import CallRecorder
from kvstream.server.runtime.checkpoints import Checkpoints
from kvstream.server.runtime.client import Argv, Client, PendingReplies, ReplyMode
from kvstream.server.runtime.client_state import ClientState, ConnectionState, Event
from kvstream.server.runtime.dispatch import Dispatcher, name_of
from kvstream.server.runtime.functions import Functions
from kvstream.server.runtime.incremental_commands import IncrementalCommands
from kvstream.server.runtime.limits import Limits, resident_bytes
from kvstream.server.runtime.loop import Loop, NoLoop
from kvstream.server.runtime.pipelines import (
    CLIENT_REQUESTS,
    Pipelines,
    record_collected,
    run_ready,
)
from kvstream.server.runtime.pipelines import run as run_pipeline
from kvstream.server.runtime.pubsub import Notifications, PubSub
from kvstream.server.runtime.replication.replication import Replication
from kvstream.server.runtime.reply_queue import (
    HOLDING,
    Operation,
    PendingReply,
    ReplyQueue,
    ReplyStreaming,
    Requeued,
)
from kvstream.server.runtime.scripts import Scripts
from kvstream.server.runtime.tracking import Trackers
from kvstream.server.runtime.turn_retries import Retries
from kvstream.server.runtime.uploads import Uploads
from kvstream.server.runtime.xadd_batching import (
    WORDS_MIN,
    BatchedXadds,
    XaddBatch,
    requests_of,
)
from kvstream.types.clock import perf_counter

_log = DeferredLogger(__name__)

TURN_REQUESTS: Final = 2000
"""The most requests of a turn: their replies wait for the commit."""


class Executor:
    """All clients of a server, the turns that run their requests, and their replies."""

    def __init__(
        self,
        engine: Engine,
        commands: Table,
        options: ServerOptions,
        loop: Loop | None = None,
    ) -> None:
        """``loop`` runs the turns; without one, whoever calls ``run`` does."""
        self.engine: Engine = engine
        self.commands = commands
        self.options: ServerOptions = replace(options)
        loop = loop or NoLoop()
        self.clock: Callable[[], float] = loop.clock
        self.post: Callable[[Callable[[], None]], None] = loop.post
        self.stop, self.set_level = loop.stop, loop.set_level
        self.started_at, self.memory_at_start = int(time.time()), resident_bytes()

        self.clients: dict[int, Client] = {}
        self.acl = Acl(
            *(commands, self.options.requirepass, self.options.aclfile),
            changed=self._update_paths,
        )
        self.ready: dict[Client, None] = {}
        """Clients with requests to run, in the order of arrival."""
        self.xadd_batches: list[XaddBatch] = []
        """XADD batches, which run before the requests of ``ready``."""
        self.first: list[Client] = []
        """Clients whose next request runs first in the next turn."""

        self.streaming = ReplyStreaming(self)
        self.pubsub = PubSub(self._deliver, self.streaming.under_way, engine.thresholds)
        self.trackers = Trackers(self)
        self.notifications = Notifications(self, self.pubsub.publish)
        usage = engine.catalog.index.usage
        usage.begin(engine.clock.now_ms())
        listeners = self.trackers, self.notifications, self.pubsub
        self.recorder = recorder = CallRecorder(self.options, every(commands), usage, *listeners)
        self.statistics = recorder.statistics
        self.slowlog, self.latency = recorder.slowlog, recorder.latency
        self.busy = Busy(lambda: self.options.busy_reply_ms, loop.suspends_turns)
        own = self.options, perf_counter, recorder, *listeners
        self.dispatcher = dispatcher = Dispatcher(*own, self.busy.prepare, commands)
        self.scripts = Scripts(self, dispatcher, commands, self.busy)
        self.functions = Functions(self.scripts)
        self.limits = Limits(self)
        self.receive = Arrivals(self)
        directory, copies = self.options.checkpoint_dir, self.options.checkpoints_kept
        self.checkpoints = Checkpoints(engine, directory, copies)
        self.uploads = Uploads(engine)
        self.blocking = clients = BlockedClients(self, dispatcher, self.functions.only_reads)
        self.blocked, self.pause, self.due = clients.blocked, clients.pause, clients.due
        self.replication = Replication(self, dispatcher, clients, loop)
        self.incremental = IncrementalCommands(self, dispatcher, self.pause, self.run_step)
        acks = self.replication.acks
        self.reply_queue = ReplyQueue(engine.committer, self, self.streaming, self.pubsub, acks)
        if loop.suspends_turns:
            self.reply_queue.ask_together(loop.after_reads)

        self._turn: Turn | None = None
        self._until = 0.0
        """The time after which the turn takes no new request."""
        self._runner = 0
        self._replies: list[PendingReplies] = []
        self._xadds = BatchedXadds(engine, dispatcher, self.options)
        self._pipelines = Pipelines(dispatcher, self._xadds, commands)
        self._queueable = transactions.queueable(commands)
        self._retries = Retries(self, self._xadds, self._pipelines)
        self._guard = engine.database.write_guard
        engine.catalog.limits.entry_max_bytes = self.options.stream_entry_max_bytes
        engine.catalog.cache_replies(ReplyCache(self.options.hot_memory, write_rows))

    # --- clients --------------------------------------------------------------------------------

    def add(self, client: Client) -> None:
        """Take a new client."""
        self.clients[client.id] = client
        _log.debug("client %d connects from %s", client.id, client.address)
        self.statistics.connections += 1
        client.reader.bulk_max = self.options.bulk_max
        client.reader.query_max = self.options.query_max

    def _update_paths(self) -> None:
        """Decide anew, after a change of users, which clients may take the short path."""
        for client in self.clients.values():
            client.update_path()

    def receive_unusual(self, client: Client, data: bytes) -> None:
        """Take counted bytes that are not whole requests of a client on the short path."""
        if client.closing:
            return
        client.last_used = self.clock()
        client.receive(data)
        if client.state is ClientState.BLOCKED:
            if client.unread.size > client.reader.query_max:
                self.statistics.input_disconnections += 1
                self.drop(client)
        elif client.has_work:
            self.ready[client] = None
        else:
            client.update_path()

    def end_subscriptions(self, client: Client) -> None:
        """End MONITOR, CLIENT TRACKING and the subscriptions of a client."""
        self.pubsub.monitors.pop(client, None)
        self.trackers.end(client)
        self.pubsub.leave(client)

    def end_input(self, client: Client) -> bool:
        """Note the end of a client's input; return False if the connection may close at once.

        Otherwise it closes after the last reply. A blocked client leaves its queue at once: it
        would not read an entry that the next turn delivers.
        """
        asked = client.has_work or any(each.client is client for each in self.xadd_batches)
        if client.state is ClientState.BLOCKED:
            client.handle(Event.CLOSE)
            self.blocking.cancel(client)
            return False
        if not (asked or client.reply_unfinished or self.reply_queue.is_waiting()):
            return False
        client.handle(Event.END_INPUT)
        self.ready[client] = None
        return True

    def forget(self, client: Client) -> None:
        """Forget a client whose connection has ended."""
        if client.id in self.clients:
            _log.debug("client %d of %s is gone", client.id, client.address)
        client.requests.clear()
        client.unread.clear()
        self.end_subscriptions(client)
        if client.replica is not None:
            self.replication.replicas.leave(client)
        self.pubsub.forget(client)
        self.clients.pop(client.id, None)
        self.blocking.cancel(client)
        client.handle(Event.DISCONNECT)
        self.ready.pop(client, None)
        self.streaming.forget(client)
        if client in self.first:
            self.first.remove(client)
        self.incremental.forget(client)

    def drop(self, client: Client) -> None:
        """Close a client's connection at once, and discard its unread replies."""
        self.forget(client)
        client.abort()

    # --- between turns --------------------------------------------------------------------------

    def tick(self) -> None:
        """Do the periodic work; call it once a second."""
        self.statistics.sample(self.clock())
        if self.busy.is_on:
            return
        self.streaming.tick()
        self._send_invalidations()
        self.checkpoints.save_if_due(self.options.save_points, self.statistics.changes)
        self.limits.tick()
        self.replication.tick()

    def expire(self) -> None:
        """End the waits that time out, and retry those that are due."""
        if not self.busy.is_on:
            self.blocking.expire()

    def _work_between_turns(self) -> None:
        """Do the work between two turns."""
        if self.replication.is_busy:
            self.replication.after_turn()
        if self.incremental.has_step():
            self.incremental.run()
        if self.limits.paused:
            self.limits.release()
        counted, limits = self.statistics, self.limits
        moved = counted.bytes_in + counted.bytes_out
        if not limits.measured <= moved < limits.measure_at:
            limits.bound_clients()
        if self.trackers.clients:
            self._send_invalidations()
        if self.pubsub.queue or self.pubsub.behind:
            self.pubsub.send_some()

    def _send_invalidations(self) -> None:
        replies = self.trackers.messages()
        if replies:
            self.reply_queue.send(self.engine.seen_sequence, replies)

    # --- turns ----------------------------------------------------------------------------------

    def run(self) -> bool:
        """Run one turn; return whether requests are left for the next one.

        Under an event loop, a turn with a long script is suspended and continues in slices.
        """
        if self.busy.takes_turns:
            return self._run_in_slices()
        if not (self.ready or self._has_work()):
            return False
        begun = self.dispatcher.ended = perf_counter()
        self._until = begun + self.engine.thresholds.turn_s
        if begun > self.replication.lease_until:
            self.replication.apply_state()
        if self.options.maxmemory:
            self.limits.look_at_memory()
        if self._guard.is_shut is (self.dispatcher.read_only is None):
            shut = self._guard.failure or self._guard.replica
            self.dispatcher.note_failure(shut if self._guard.is_shut else None)
        left = TURN_REQUESTS
        self.dispatcher.update_path()
        self._runner = get_ident()
        try:
            self._turn = turn = Turn(self.engine)
            turn.txn.keeps_expired |= self.dispatcher.paused  # nothing writes in this turn
            try:
                if self.first:
                    left -= self._run_first(turn)
                if self.xadd_batches:
                    left -= self._run_batches(left)
                if self.ready:
                    left -= self._run_ready(turn, left)
                self._finish(turn)
            except TurnFailed as failure:
                self._run_alone(failure)
            except Exception as defect:
                if turn.is_committed or not self._replies:
                    raise
                turn.abandon()
                self._run_alone(defect)
        except BaseException:  # KeyboardInterrupt, if a client's own thread runs the turn
            self._abandon()
            raise
        finally:
            self._turn = None
            self.statistics.count_turn(TURN_REQUESTS - left, perf_counter() - begun)
        self._work_between_turns()
        return self._has_work()

    @property
    def pending(self) -> bool:
        """Whether there are requests to run."""
        return self._has_work()

    def _has_work(self) -> bool:
        if self.ready or self.xadd_batches or self.first or self.pubsub.queue or self.busy.is_on:
            return True
        return self.incremental.has_step()

    def _run_in_slices(self) -> bool:
        """Run a turn that may be suspended, or the next slice of one that is."""
        if not self.busy.is_on:
            return self.busy.run(self.run)
        self._answer_meanwhile()
        return self.busy.resume()

    def _answer_meanwhile(self) -> None:
        """Answer other clients while a turn is suspended, most of them with BUSY."""
        turn = self._turn
        assert turn is not None
        self._queue_batches(self.xadd_batches)
        self.xadd_batches.clear()
        suspended, self._replies = self._replies, []
        waiting = {pending.client for pending in suspended}
        for client in list(self.ready):
            if client not in waiting and client.state is ClientState.RUNNABLE:
                del self.ready[client]
                self._after_requests(client, self._answer_busy(turn, client))
        replies, self._replies = self._replies, suspended
        if replies:
            self.reply_queue.send(0, replies)

    def _answer_busy(self, turn: Turn, client: Client) -> bool:
        """Answer a client's requests while a turn is suspended; return whether there are more."""
        requests, dispatcher = client.requests, self.dispatcher
        for _ in range(TURN_REQUESTS):
            while not requests:
                if client.closing or not client.take_in():
                    return False
            if client.closing or type(requests[0]) is Requeued:
                break
            argv = requests.popleft()
            try:
                command = find(argv, self.commands)
            except RequestError as error:
                name = name_of(argv, self.commands)
                self._answer(client, dispatcher.refuse(client, name, ErrorReply.of(error)))
                continue
            client.last_command = command.name
            refusal = dispatcher.refusal(client, command, argv)
            if refusal is None and not (command.is_local and Flag.ALLOW_BUSY in command.flags):
                refusal = self.busy.error
            if refusal is not None:
                self._answer(client, dispatcher.refuse(client, command.name, refusal))
            else:
                self._call(turn, client, command, argv)
        return True

    def _run_ready(self, turn: Turn, most: int) -> int:
        """Run the requests of all clients, some of each at a time; return how many ran."""
        ready, dispatcher, left = self.ready, self.dispatcher, most
        while ready and left > 0 and dispatcher.ended < self._until:
            client: Client | None
            if dispatcher.needs_general_path:
                client = next(iter(ready))
                del ready[client]
            else:
                ran, client, unanswered = run_ready(
                    self._pipelines, turn, ready, left, self._until, self._replies
                )
                left -= ran
                if unanswered is not None:
                    self._replies.append(unanswered)
                    self._suspend_and_serve(turn, unanswered)
            if client is not None:
                left -= self._run_requests(turn, client, left)
                dispatcher.ended = perf_counter()
        return most - left

    def _run_first(self, turn: Turn) -> int:
        """Run the requests that were put off to the start of this turn."""
        count = 0
        for _ in range(len(self.first)):
            client = self.first.pop(0)
            client.handle(Event.RESUME)
            count += self._run_requests(turn, client, 1)
        return count

    def _run_batches(self, most: int) -> int:
        """Take batches for the end of the turn, or queue their requests; count the entries."""
        taken, others, entries = self._xadds.take_batches(self.xadd_batches, most)
        self._replies += taken
        if others:
            self._queue_batches(others)
        return entries

    def _queue_batches(self, batches: list[XaddBatch]) -> None:
        """Queue the requests of batches before the other requests of their clients."""
        for batch in reversed(batches):
            client = batch.client
            if not client.closing:
                client.requests.extendleft(reversed(requests_of(batch)))
                self.ready[client] = None

    def _abandon(self) -> None:
        """Undo an interrupted turn and forget its replies."""
        turn, self._turn = self._turn, None  # blocked clients that it has served are answered
        (self.engine.abandon_turn if turn is None else turn.abandon)()
        self._xadds.clear()
        self.recorder.forget()
        self._replies.clear()

    def _run_requests(self, turn: Turn, client: Client, most: int) -> int:
        """Run a client's requests until it blocks or has none; return how many ran."""
        try:
            count, more = self._run_some(turn, client, most)
        except TurnFailed:
            self.ready[client] = None  # for the requests after the failed one
            raise
        self._after_requests(client, more)
        return count

    def _after_requests(self, client: Client, more: bool) -> None:
        """Queue a client again if it has more requests; close it if its input has ended.

        A client that waits becomes ready when it resumes.
        """
        if not client.may_run:
            return
        if more:
            self.ready[client] = None
        elif client.fault is not None:
            self._close(client, ErrorReply.of(client.fault))
        elif client.connection is ConnectionState.HALF_CLOSED:
            self._close(client)
        else:
            client.update_path()

    def _close(self, client: Client, error: ErrorReply | None = None) -> None:
        """Close a client after the replies so far, and the error if there is one."""
        self._replies.append(PendingReply(client, error, is_sent=None if error else False))
        client.handle(Event.CLOSE)

    def _run_some(self, turn: Turn, client: Client, most: int) -> tuple[int, bool]:
        """Run requests until the turn is over; return how many ran, and whether there may be more.

        While others wait, a client runs CLIENT_REQUESTS or one piece of bytes; an unauthenticated
        one a single request.
        """
        requests, pipelines = client.requests, self._pipelines
        count = 0
        while count < most and client.may_run:
            may_go_on = False
            if requests:
                ran, unanswered = 0, None
                room = min(most - count, CLIENT_REQUESTS - count % CLIENT_REQUESTS)
                general = self.dispatcher.needs_general_path
                if not general and (client.queue or transactions.is_multi(requests[0])):
                    ran = self._queue(turn, client, most - count)
                elif not general and client.is_plain and pipelines.has_next(client):
                    if self._xadds.waiting:
                        self._xadds.flush(turn)
                    ran, unanswered = run_pipeline(
                        pipelines, turn, client, room, self._until, self._replies
                    )
                if unanswered is not None:
                    self._replies.append(unanswered)
                    self._suspend_and_serve(turn, unanswered)
                elif not ran:
                    self.recorder.record_collected(turn.txn)
                    self._attempt(turn, client, requests.popleft())
                    self.dispatcher.update_path()
                    client.update_path()
                may_go_on = (ran or 1) < room and client.authenticated
                count += ran or 1
            elif not client.take_in():
                return count, False
            if perf_counter() >= self._until or (self.ready and not may_go_on):
                break
        return count, True

    def _attempt(self, turn: Turn, client: Client, argv: Argv) -> None:
        """Run one request; answer with an error if a defect shows before its call."""
        before = len(self._replies)
        try:
            self._request(turn, client, argv)
        except TurnFailed:
            raise
        except Exception as defect:
            if len(self._replies) > before:
                raise
            name = name_of(argv, self.commands)
            self._answer(client, self.dispatcher.refuse(client, name, internal_error(defect)))

    def _request(self, turn: Turn, client: Client, argv: Argv) -> None:
        """Run one request, or queue it for EXEC; its reply goes into a pending reply."""
        xadds = self._xadds
        if len(argv) >= WORDS_MIN and (waits := xadds.take(client, argv)) is not None:
            self._replies.append(waits)
            return
        if xadds.waiting:
            xadds.make_way(turn, client, argv)
            return self._request(turn, client, argv)
        if type(argv) is Requeued:
            return self._run_requeued(turn, client, argv.pending)
        try:
            command = find(argv, self.commands)
        except RequestError as error:
            if self.limits.drops_http(client, argv[0]):
                return
            name = name_of(argv, self.commands)
            self._answer(client, self.dispatcher.refuse(client, name, ErrorReply.of(error)))
            return
        dispatcher = self.dispatcher
        client.last_command = command.name
        refusal = dispatcher.refusal(client, command, argv)
        if refusal is not None:
            self._answer(client, dispatcher.refuse(client, command.name, refusal))
        elif dispatcher.paused and self.pause.holds(turn.txn, client, command, argv):
            if self._may_block(client):
                self.pause.hold(turn, client, argv)
        elif client.queue is not None and not command.is_immediate:
            client.queue.add(command, argv)
            if self.limits.lets_queue(client):
                self._answer(client, transactions.QUEUED)
        else:
            self._call(turn, client, command, argv)

    def _call(self, turn: Turn, client: Client, command: Command, argv: Argv) -> None:
        if command.is_local:
            reply = self.dispatcher.answer_at_once(client, command, argv, turn.txn)
            assert not isinstance(reply, Blocked | Later | Stepwise)
            self._answer(client, reply)
            return
        if command.name == "exec":
            self._exec(turn, client)
            self.recorder.show(client, argv)  # after the commands that it ran
            return
        if command.grows:
            turn.grows = True
        unit = partial(self.dispatcher.answer, client, command, argv)
        pending = self._run_unit(turn, client, unit, command.depends, not command.writes)
        if command.is_immediate:  # WATCH
            pending.unit = None  # must not run again: its client may be in MULTI by then

    def _run_unit(
        self,
        turn: Turn,
        client: Client,
        unit: Operation,
        depends: bool,
        reads: bool,
        head: bytes = b"",
    ) -> PendingReply:
        is_sent = client.reply_mode is ReplyMode.ON or None  # an EXEC may change the mode
        pending = PendingReply(
            client, None, unit, client.db, client.protocol, depends, is_sent, reads, head
        )
        self._replies.append(pending)
        pending.reply = reply = turn.run(unit)
        if not is_sent or type(reply) in HOLDING or turn.txn.signals:
            self._suspend_and_serve(turn, pending)  # most requests do not need it
        return pending

    def _suspend_and_serve(self, turn: Turn, pending: PendingReply) -> None:
        """Suspend the client if its answer asks for it; serve clients blocked on changed keys."""
        if type(pending.reply) in HOLDING:
            self._suspend(turn, pending)
        else:
            pending.is_wanted()
        if turn.txn.signals:
            turn.serve()

    def _suspend(self, turn: Turn, pending: PendingReply) -> None:
        """Block a client, put its command off, run it in steps, or stream its reply."""
        client, reply = pending.client, pending.reply
        if isinstance(reply, Blocked):
            if self._may_block(client):
                assert isinstance(pending.unit, partial)  # of Dispatcher.answer
                self.blocking.begin(turn, client, reply, pending.unit.args[1:])
            return
        if reply is LATER:
            pending.reply = None
            client.requests.appendleft(Requeued(pending))
            self._replies.remove(pending)
            self.first.append(client)
            client.handle(Event.PUT_OFF)
            return
        if isinstance(reply, Stepwise):
            self._replies.remove(pending)
            self.incremental.add(pending, reply)
            return
        assert isinstance(reply, Paged)
        if pending.head:
            before = transactions.reply_of_lines(client, pending.head)
            self._replies.insert(self._replies.index(pending), before)
            pending.head = b""
        if pending.is_wanted():
            client.handle(Event.STREAM)

    def _may_block(self, client: Client) -> bool:
        """Return whether a client may block; close one whose peer has closed its side.

        Nobody would read the reply.
        """
        if client.may_run and client.connection is not ConnectionState.OPEN:
            self._close(client)
        return client.may_run

    def run_step(self, pending: PendingReply) -> None:
        """Run the next step of a command in a turn of its own; the last step answers."""
        assert pending.unit is not None
        self._runner = get_ident()
        try:
            sequence, replies = self.run_again(pending, pending.unit)
        finally:
            self._turn = None
        if pending.client.state is ClientState.RUNNABLE:
            self.ready[pending.client] = None
        if replies:
            self.reply_queue.send(sequence, replies)

    def _finish(self, turn: Turn) -> None:
        if self._xadds.waiting:
            self._xadds.flush(turn)
        record_collected(self._pipelines, turn.txn)
        if turn.txn.events:
            self.notifications.publish(turn.txn)
        sequence = turn.commit()
        if turn.served:
            turn.deliver(sequence)
        replies, self._replies = self._replies, []
        if replies:
            self.reply_queue.send(sequence, replies)

    def _run_alone(self, failure: Exception) -> None:
        """Run each unit of a failed turn again, in a turn of its own."""
        failed, self._replies = self._replies, []
        sequence, replies = self._retries.run(failure, failed)
        if replies:
            self.reply_queue.send(sequence, replies)

    def _run_requeued(self, turn: Turn, client: Client, pending: PendingReply) -> None:
        """Run a unit that was put off, or had to wait after its turn failed."""
        self._replies.append(pending)
        if pending.unit is None:
            return
        db = client.db
        client.select(pending.db)
        assert isinstance(pending.unit, partial)
        if pending.unit.func is not transactions.run_queue:  # which checks the ACL itself
            pending.unit = partial(self.dispatcher.answer_later, *pending.unit.args)
        try:
            pending.reply = turn.run(pending.unit)
            self._suspend_and_serve(turn, pending)
        finally:
            client.select(db)

    def run_again(self, pending: PendingReply, unit: Operation) -> tuple[int, list[PendingReplies]]:
        """Run a unit in a turn of its own.

        Return the sequence number that the replies wait for, and the replies: its own, and those to
        clients that it has unblocked.
        """
        client, db = pending.client, pending.client.db
        client.select(pending.db)
        self._turn = turn = Turn(self.engine)
        if pending.reads and self.engine.database.failure is not None:
            turn.txn.read_only = turn.txn.keeps_expired = True  # a write would fail
        self._replies = [pending]
        try:
            pending.reply = turn.run(unit)
            self._suspend_and_serve(turn, pending)
            if turn.txn.events:
                self.notifications.publish(turn.txn)
            sequence = turn.commit()
            turn.deliver(sequence)
        except Exception as failure:
            if turn.is_committed:
                raise
            turn.abandon()
            self._retries.give_up(pending, failure)
            sequence, self._replies = self.engine.seen_sequence, [pending]
        finally:
            client.select(db)
            client.update_path()
        replies, self._replies = self._replies, []
        return sequence, replies

    # --- replies --------------------------------------------------------------------------------

    def _answer(self, client: Client, reply: Reply) -> None:
        self._replies.append(self._reply_to(client, reply))

    def _reply_to(self, client: Client, reply: Reply, depends: bool = False) -> PendingReply:
        # Pushes are sent in every mode of CLIENT REPLY.
        is_sent, protocol = client.wants_next() or type(reply) is Pushes, client.protocol
        if type(reply) is Paged and is_sent:
            client.handle(Event.STREAM)
        return PendingReply(client, reply, None, 0, protocol, depends, is_sent)

    def _deliver(self, replies: PendingReplies) -> None:
        """Send a message or reply at the end of this thread's turn, or else at once."""
        if self.in_turn:
            self._replies.append(replies)
        else:
            self.reply_queue.send(self.engine.seen_sequence, [replies])
            self.pubsub.send_some()

    def configure_notifications(self) -> None:
        """Publish the keyspace events that the options name, from the current call on."""
        self.notifications.configure()
        if self._turn is not None:
            self._turn.txn.wanted_events = self.engine.catalog.wanted_events

    # --- transactions ---------------------------------------------------------------------------

    def _queue(self, turn: Turn, client: Client, most: int) -> int:
        """Run MULTI, queue the requests after it that need no check, and run EXEC if it is next.

        Returns how many ran.
        """
        begins = client.is_plain and client.queue is None
        if begins:
            if self._xadds.waiting:
                self._xadds.flush(turn)
            transactions.begin(self.dispatcher, client)
        elif client.queue is None:
            return 0
        count = transactions.queue_plain(client, self._queueable, most - begins)
        if not (count or begins) or not self.limits.lets_queue(client):
            return count + begins
        lines, requests = transactions.lines_to_queued(count, begins), client.requests
        ends = begins and bool(requests) and transactions.is_exec(requests[0])
        if ends:
            requests.popleft()
            self._exec(turn, client, lines)
        else:
            self._replies.append(transactions.reply_of_lines(client, lines))
        client.update_path()
        return count + begins + ends

    def _exec(self, turn: Turn, client: Client, head: bytes = b"") -> None:
        """Run the queue of a MULTI as one unit, atomically; ``head`` is sent before its reply."""
        queue, watched = client.queue, client.watched
        refusal = transactions.refusal_of_exec(self.dispatcher, client)
        if queue is None or refusal is not None:
            self._answer(client, refusal)
            return
        turn.grows |= queue.grows
        unit = partial(transactions.run_queue, self.dispatcher, client, queue, watched)
        self._run_unit(turn, client, unit, True, not queue.writes, head)

    @property
    def in_turn(self) -> bool:
        """Whether the current thread runs a turn."""
        return self._turn is not None and self._runner == get_ident()

    def is_alone(self, client: Client) -> bool:
        """Whether no other client has run a request in this turn."""
        return not (self._xadds.waiting or any(k.client is not client for k in self._replies))

    def answer_blocked(self, client: Client, reply: Reply) -> None:
        """Answer a client that was blocked: at the end of this thread's turn, or else at once."""
        if isinstance(reply, ErrorReply):
            self.statistics.count_failure(client.last_command, reply.code)
        self._deliver(self._reply_to(client, reply, depends=True))


# --- for commands -------------------------------------------------------------------------------


def server_of(client: Client) -> Executor:
    """Return the server that a client is connected to."""
    assert isinstance(client.server, Executor)
    return client.server


def disconnect(client: Client, other: Client) -> None:
    """Close the connection of ``other`` for a client's command; its own closes after the reply."""
    if other is client:
        client.handle(Event.CLOSE)
    else:
        server_of(client).drop(other)
