"""The replication of one server: what commands, INFO and the turns see of it."""

import logging
from functools import partial
from math import inf

from kvstream.commands.command import Answer
from kvstream.engine.following import Source
from kvstream.errors import ArchiveTaken, ReplicationRefused
from kvstream.layout.history import History, Place
from kvstream.logs import NOTICE
from kvstream.meta.txn import Txn
from kvstream.replicas.follower import Follower, Link
from kvstream.server.inert_settings import number_of
from kvstream.server.runtime.blocked_clients import BlockedClients
from kvstream.server.runtime.client import Client, Server
from kvstream.server.runtime.dispatch import Dispatcher
from kvstream.server.runtime.loop import Loop
from kvstream.server.runtime.replication.acks import ReplicaAcks
from kvstream.server.runtime.replication.failover import Failover
from kvstream.server.runtime.replication.recovery import Asking, Notes, Recovery, is_ahead
from kvstream.server.runtime.replication.replicas import NO_LOG, Replicas, introduce
from kvstream.server.runtime.replication.role import Role
from kvstream.server.runtime.replication.states import (
    ALLOWED,
    SUSPECT,
    OfPrimary,
    OfReplica,
    State,
    lease_end,
    lease_s,
    next_change,
    state_of,
)
from kvstream.server.runtime.replication.waits import Wait, Waits
from kvstream.storage.changes import read_history
from kvstream.types.clock import monotonic

ACK_LOOK_S = 0.25
"""How often to check whether a write has waited for replicas for too long."""
FAILOVER_LOOK_S = 0.05
"""How often to step a failover when nothing arrives."""

_log = logging.getLogger(__name__)


class Replication:
    """The replication of one server."""

    def __init__(
        self,
        server: Server,
        dispatcher: Dispatcher,
        blocking: BlockedClients,
        loop: Loop,
    ) -> None:
        self._server, self._engine = server, server.engine
        self._dispatcher, self._loop = dispatcher, loop
        self.waits: Waits
        own = (lambda: self.lsn, lambda: self.confirmed, lambda: self.waits.is_any())
        self.replicas = Replicas(server, loop, *own, self._note_replicas)
        self.role = Role(server, blocking, loop, self.replicas, self._note_link)
        self.failover = Failover(self._engine, blocking.pause, self.role, self.replicas)
        self.waits = Waits(self._engine, self.replicas.online, lambda: self.lsn)
        self.acks = ReplicaAcks()
        self.lease_until = inf
        """When to compute the state again: the answers of replicas are too old then."""
        self._needs_answers = False
        """Whether the state depends on what replicas answer."""
        self.is_waited_for = True
        """A stop waits until the replicas have all writes."""
        self.is_busy = False
        """Whether ``after_turn`` has anything to do."""
        self._asks = False
        """A client has begun to wait in this turn."""
        self._arrived: list[tuple[Client, Place]] = []
        """Those that asked for the log in this turn, with their positions."""
        self._watches_acks = self._watches_failover = self._changes_role = False
        self.history: History | None = None
        self._notes = Notes(self._engine.database.own_path)
        self._recovery: Recovery | None = None
        """What replicas have said since a power loss; None: there was none, or it is over."""
        self._asking: Asking | None = None
        self._takes_back = False
        """In this turn a user has given the archive to this server."""
        self._last_online: dict[Source, float] = {}
        """When each replica had the log last."""

    # --- the server -----------------------------------------------------------------------------

    def start(self) -> None:
        """Take the role that the store has."""
        self.replicas.is_running = True
        self.role.start()
        self.refresh()
        if self.follower is None:
            known = self._notes.known
            self._last_online = dict.fromkeys(known.replicas, monotonic())
            if known.has_lost_power and self.history is not None:
                self._become_suspect()
            else:
                self._note_known()
        self.refresh()

    def stop(self) -> None:
        """End the links: the server stops."""
        self.role.stop()
        self._stop_asking()
        for replica in self.replicas:
            self.replicas.leave(replica.client)
        self.replicas.is_running = False

    def tick(self) -> None:
        """Do the periodic work, once a second."""
        if not self.replicas.is_running:
            return
        self.replicas.drop_silent()
        self._end_recovery()
        self.refresh()
        self._note_known()
        if self._is_left_alone():
            self._engine.following.end_history()
            self.refresh()
        needed = NO_LOG if self.history is None else self.replicas.first_log_needed()
        self._engine.database.trim_logs("replicas", needed)

    def _is_left_alone(self) -> bool:
        """Return whether a primary has had no replica for ``repl-backlog-ttl``; 0: for ever."""
        if self.history is None or not self.history.is_followed or len(self.replicas):
            return False
        if self._recovery is not None or self._is_replaced:
            return False
        return monotonic() - self.replicas.alone_since > self.setting("repl-backlog-ttl") > 0

    def setting(self, name: str) -> int:
        """Return a setting of CONFIG that is a number."""
        return number_of(self._server.options, name)

    def note_end(self) -> None:
        """Note that all is durable, and that the server stops."""
        if self._recovery is None and self.follower is None:
            self._notes.keep(self._notes.known.replicas, closed=True)

    # --- after a power loss ---------------------------------------------------------------------

    def _become_suspect(self) -> None:
        known = self._notes.known.replicas
        self._recovery = Recovery(known, monotonic())
        self._engine.following.work(False)
        names = ", ".join(f"{host}:{port}" for host, port in sorted(known))
        _log.warning("the machine has lost power: waits for what the replicas have: %s", names)
        self._asking = Asking(known, self.role.link_options, self._post_primary)
        self._asking.start()

    def _post_primary(self, source: Source, lsn: int) -> None:
        self._server.post(partial(self._note_primary, source, lsn))

    def _note_primary(self, source: Source, lsn: int) -> None:
        """Follow a former replica that was promoted, if it lacks nothing."""
        if self._recovery is not None and self.source is None and lsn >= self.lsn:
            _log.log(NOTICE, "the former replica %s:%d is the primary now", *source)
            self.change_role(source)
            self._go_on()

    def trust(self) -> None:
        """Be a primary whatever the replicas have: a user has decided that."""
        if self._is_replaced and self.source is None:
            self._engine.archiving.take()
            self.is_busy = self._takes_back = True
        if self._recovery is not None:
            self._recovery = Recovery(frozenset(), monotonic())
            self.is_busy = True

    def _end_recovery(self) -> None:
        """Be a primary, if no replica has more; the caller is between two turns."""
        recovery, timeout_s = self._recovery, self.setting("replica-recovery-timeout")
        if recovery is not None and recovery.is_over(monotonic(), timeout_s):
            _log.log(NOTICE, "no replica is known to have more: goes on as the primary")
            self._recovery = None
            self._stop_asking()
            self._engine.following.work(True)
            self.refresh()
            self._note_known()

    def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.stop()
            self._asking = None

    def _hear(self, client: Client, place: Place) -> bool:
        """Note the position of a replica; return whether it may have the log."""
        recovery, history = self._recovery, self.history
        if recovery is None or history is None:
            return recovery is None
        asks = introduce(client)
        recovery.hear(Source(asks.address, asks.port), is_ahead(place, history, self.lsn))
        self._end_recovery()
        return self._recovery is None

    def _note_known(self) -> None:
        """Note which replicas could have what a power loss takes from this server."""
        if self.follower is not None or self._recovery is not None:
            return
        now, validity_s = monotonic(), self._validity_s
        for each in self.replicas.online():
            self._last_online[Source(each.address, each.port)] = now
        self._last_online = {
            source: at for source, at in self._last_online.items() if now - at < validity_s
        }
        self._notes.keep(frozenset(self._last_online))

    def _forget_known(self) -> None:
        """Forget who has followed: another server is the primary now, or was until now."""
        self._last_online = {}
        self._notes.keep(frozenset())

    @property
    def _validity_s(self) -> float:
        return self.setting("replica-validity") or inf

    # --- the state ------------------------------------------------------------------------------

    @property
    def source(self) -> Source | None:
        """The primary that this server follows, as it was asked for last."""
        return self.role.source

    @property
    def follower(self) -> Follower | None:
        """What follows the primary; None: this server is one."""
        return self.role.follower

    def change_role(self, source: Source | None) -> None:
        """Follow a primary, or become one, behind the present turn; errors as of ``Role``."""
        self.role.change(source)
        self.is_busy = True

    @property
    def state(self) -> State:
        """The state of this server at the moment."""
        return state_of(self._known(), monotonic())

    def _known(self) -> OfReplica | OfPrimary:
        follower = self.follower
        if follower is not None:
            return OfReplica(
                follower.place is not None,
                follower.bytes_left > 0,
                follower.confirmed_lsn > self.lsn,
                inf if self.link_is_up else follower.down_since + self._validity_s,
            )
        return OfPrimary(
            self.history is not None,
            self._lease_end(self.setting("replica-acks")),
            self._lease_end(self.setting("min-replicas-to-write")),
            bool(self.setting("replica-acks-degrade")),
            self._recovery is not None,
            self._is_replaced,
        )

    @property
    def _is_replaced(self) -> bool:
        """Whether another server owns the archive now."""
        return isinstance(self._engine.database.failure, ArchiveTaken)

    def _lease_end(self, wanted: int) -> float:
        echoes = (each.echo for each in self.replicas.online())
        return lease_end(echoes, wanted, self._lease_s())

    def _lease_s(self) -> float:
        return lease_s(self.setting("min-replicas-max-lag"), self.setting("replica-lease-ms"))

    def count_good(self) -> int:
        """Return how many replicas are not behind for longer than ``min-replicas-max-lag``."""
        oldest = monotonic() - self._lease_s()
        return sum(each.echo >= oldest for each in self.replicas.online())

    def refresh(self) -> None:
        """Read the history of the store, and apply what the present state allows."""
        self.history = read_history(self._engine.database)
        self.apply_state()

    def apply_state(self) -> None:
        """Let clients do what the present state allows, until the next lease ends."""
        now, known, dispatcher = monotonic(), self._known(), self._dispatcher
        state = state_of(known, now)
        allowed, acks = ALLOWED[state], 0
        self.lease_until, self._needs_answers, reads = inf, False, allowed.reads
        if isinstance(known, OfPrimary):
            ends = known.acked_until, known.heard_until
            self.lease_until, self._needs_answers = next_change(ends, now), min(ends) < inf
            acks = 0 if state is State.DEGRADED else self.setting("replica-acks")
        elif not (self.link_is_up or self.setting("replica-serve-stale-data")):
            reads = allowed.stale_reads
        self.acks.want(acks)
        self.is_busy = self.is_busy or acks > 0
        if (dispatcher.refuses_writes, dispatcher.unavailable) != (allowed.writes, reads):
            dispatcher.refuses_writes, dispatcher.unavailable = allowed.writes, reads
            dispatcher.update_path()

    def end_link(self) -> bool:
        """End the link to the primary, which is made anew; return whether there was one."""
        return self.follower is not None and self.follower.end_link()

    # --- replicas -------------------------------------------------------------------------------

    def _note_replicas(self) -> None:
        """Note that a replica has come or gone."""
        if self._changes_role:  # what waits for them is answered behind that
            return
        self.is_busy = True
        self.refresh()
        self._note_known()

    def _note_link(self) -> None:
        """Note that the link to the primary has changed."""
        self.refresh()
        self._go_on()

    def attach(self, client: Client, place: Place, hands_over: bool) -> None:
        """Begin to send to a replica at a position, behind this turn; it gets the answer then.

        If it ``hands_over`` this server becomes the primary first. Raises ReplicationRefused in a
        replica of another server or history.
        """
        if not self._loop.suspends_turns:
            raise ReplicationRefused("replicas need a server")
        if self.source is not None:
            self._refuse_follower(place, hands_over)
            _log.log(NOTICE, "%s hands over: it was the primary", client.address)
            self.change_role(None)
        self._arrived.append((client, place))
        self.is_busy = True

    def _refuse_follower(self, place: Place, hands_over: bool) -> None:
        if not hands_over:
            raise ReplicationRefused("a replica cannot be followed: follow its primary")
        history = self.history
        if history is None or history.fork(place, history.lsn) is None:
            raise ReplicationRefused("this replica has not the history of the server that asks it")

    def acknowledge(self, client: Client, said: tuple[int, int, int], txn: Txn) -> None:
        """Take what a replica says that it has: lsn, durable lsn, and the clock's echo."""
        replica = self.replicas.linked.get(client)
        if replica is None:
            return
        replica.take(*said)
        if self._needs_answers:
            self.apply_state()
        if self.acks.wanted:
            self._reach()
        if self.waits:
            self.waits.serve(txn)

    def _reach(self) -> None:
        """Send the replies that waited for what all replicas have now."""
        lsns = [each.lsn for each in self.replicas.online()]
        if self.history is not None and len(lsns) >= self.acks.wanted:
            self.acks.reach(self.history.sequence_of(min(lsns)))

    def wait(self, wait: Wait, txn: Txn, timeout_ms: int | None) -> Answer:
        """Return the reply of WAIT or WAITAOF, or what blocks its client until it is due."""
        answer = self.waits.begin(wait, txn, timeout_ms)
        if wait.blocked is not None:
            self._asks = self.is_busy = True
        return answer

    # --- turns ----------------------------------------------------------------------------------

    def after_turn(self) -> None:
        """Send what is due, and change the role if that was asked for."""
        self._change_role()
        self._end_recovery()
        for client, place in self._arrived:
            if client.id not in self._server.clients:
                continue
            if self.source is not None:  # or its promotion has failed
                self.replicas.turn_away(client, "this server is a replica")
            elif self._hear(client, place):
                self.replicas.attach(client, place)
            else:
                self.replicas.turn_away(client, SUSPECT.text)
        self._arrived.clear()
        if self.waits:
            self.waits.set_goals()
        if self.acks.wanted and self.acks.note(self._engine.database.sequence):
            self._asks = True
            self._watch_acks()
        if self._asks:
            self._asks = False
            self.replicas.ask()
        else:
            self.replicas.send_soon()
        self.is_busy = bool(len(self.replicas) or self.waits or self.acks.wanted)

    def _change_role(self) -> None:
        before = self.follower
        self._changes_role = True
        try:
            if self.role.is_due:
                self.role.take()
            if self.failover.is_under_way:
                self.failover.step()
                self._watch_failover()
        finally:
            self._changes_role = False
        if self._takes_back:
            self._takes_back = False
            self.refresh()
        if self.follower is not before:
            self._dispatcher.note_failure(None)  # the next turn looks anew
            self.acks.restart(self.follower is None or self.failover.keeps_all)
            self.waits.restart()
            self._recovery = None
            self._stop_asking()
            self._forget_known()
            self.refresh()

    def _go_on(self) -> None:
        """Do what is due between two turns, now or behind the turn that is suspended."""
        if self._server.in_turn:
            self.is_busy = True
        else:
            self.after_turn()

    def _watch_failover(self) -> None:
        if not self._watches_failover and self.failover.is_under_way:
            self._watches_failover = True
            self._loop.call_later(FAILOVER_LOOK_S, self._look_at_failover)

    def _look_at_failover(self) -> None:
        self._watches_failover = False
        self._go_on()

    def _watch_acks(self) -> None:
        """Give up writes that replicas do not confirm within ``replica-ack-timeout``."""
        if not self._watches_acks:
            self._watches_acks = True
            self._loop.call_later(min(self._ack_timeout_s, ACK_LOOK_S), self._check_acks)

    def _check_acks(self) -> None:
        self._watches_acks = False
        self.acks.give_up(self._ack_timeout_s)
        if self.acks.is_waiting:
            self._watch_acks()

    @property
    def _ack_timeout_s(self) -> float:
        return self.setting("replica-ack-timeout") / 1000

    # --- figures --------------------------------------------------------------------------------

    @property
    def priority(self) -> int:
        """The priority for Sentinel; 0 while it must not be promoted."""
        return self.setting("replica-priority") if ALLOWED[self.state].may_be_promoted else 0

    @property
    def lsn(self) -> int:
        """The lsn of the last commit; 0 without a history."""
        follower, history = self.follower, self.history
        if follower is not None:
            return 0 if follower.place is None else follower.place.lsn
        return 0 if history is None else history.lsn_of(self._engine.database.sequence)

    @property
    def confirmed(self) -> int:
        """The last row that clients know to be on replicas; 0 if they know of none."""
        history, reached = self.history, self.acks.reached
        acked = history.lsn_of(reached) if history is not None and reached else 0
        return max(acked, self.waits.confirmed)

    @property
    def link_is_up(self) -> bool:
        """Whether this replica gets the log of its primary; true for a primary."""
        return self.follower is None or self.follower.link is Link.CONNECTED

    @property
    def lag_rows(self) -> int:
        """How many rows the slowest replica lacks, or this one."""
        if self.follower is not None:
            return max(self.follower.primary_lsn - self.lsn, 0)
        return max((max(self.lsn - each.lsn, 0) for each in self.replicas), default=0)

    @property
    def lag_s(self) -> float:
        """How old the oldest of the replicas' last answers is, or what this replica heard last."""
        if self.follower is not None:
            return monotonic() - self.follower.last_io
        return max((monotonic() - each.at for each in self.replicas), default=0.0)
