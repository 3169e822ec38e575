"""The role of a server: its replicas, or the primary that it follows, and who waits for replicas.

It sends in the loop, between turns, at most each SEND_S, or at once if a client waits for replicas:
sending after each commit takes a seventh of the primary's processor time, a thread that is woken by
commits more than nine tenths of its throughput. It owns no sockets: ``Loop.link_to`` makes a link.

A role changes between two turns too, in the order of docs/internals.md, "Replicas".
"""

import logging
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import inf

from kvstream.commands.command import Answer, Blocked
from kvstream.commands.replies import ErrorReply, Reply
from kvstream.engine.following import Source, read_history
from kvstream.errors import KVStreamError, ProtocolError, ReplicationRefused
from kvstream.layout.history import History, Place
from kvstream.logs import NOTICE
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.replicas import protocol
from kvstream.replicas.copying import Sums
from kvstream.replicas.feeds import Beginning, CopyFeed, LogFeed, Outgoing, prepare
from kvstream.replicas.follower import Follower, Link, LinkOptions
from kvstream.replicas.tls import link_context
from kvstream.server.inert_settings import KEPT
from kvstream.server.options import ServerOptions
from kvstream.server.replica_acks import ReplicaAcks
from kvstream.server.runtime.blocked_clients import BlockedClients
from kvstream.server.runtime.client import Client, Server
from kvstream.server.runtime.dispatch import Dispatcher
from kvstream.server.runtime.loop import Loop, ReplicaLink
from kvstream.storage.changes import archived_sizes
from kvstream.types.clock import monotonic

SEND_S = 0.005
"""The longest that a commit waits before it is sent."""
BEAT_S = 0.1
"""How often a primary sends its clock and its last lsn."""
BURST_BYTES = 4 << 20
"""Bytes that are sent to one replica before clients are served again: a millisecond."""
STOP_S = 1.0
"""How long a stop waits for the link: nothing is applied any more."""
TOKEN = b"r"
"""The name that clients wait for who wait for replicas: no key has it."""
_NO_LOG = 1 << 62
_NS = 1_000_000_000
UNBLOCKED = "force unblock from blocking operation, instance state changed (master -> replica?)"
LOADING = ErrorReply("LOADING", "kvstream is loading the dataset of its primary in memory")
MASTERDOWN = ErrorReply(
    "MASTERDOWN", "Link with MASTER is down and replica-serve-stale-data is set to 'no'."
)
NOREPLICAS = ErrorReply("NOREPLICAS", "Not enough good replicas to write.")

_log = logging.getLogger(__name__)


def _link_context(options: ServerOptions) -> ssl.SSLContext:
    return link_context(
        options.tls_ca_cert_file,
        options.tls_cert_file,
        options.tls_key_file,
        options.tls_key_file_pass,
    )


class ReplicaState(StrEnum):
    """What a replica gets, in Redis's words."""

    WAIT = "wait_bgsave"
    COPY = "send_bulk"
    ONLINE = "online"


@dataclass(slots=True, eq=False)
class Replica:
    """A client that is a replica, or has said that it will be one."""

    client: Client
    port: int = 0
    ip: str = ""
    """The address that it announces; empty: that of its connection."""
    state: ReplicaState = ReplicaState.WAIT
    link: ReplicaLink | None = None
    feed: LogFeed | CopyFeed | None = None
    log: int = _NO_LOG
    """The first log that it needs."""
    lsn: int = 0
    """The last row that it has."""
    durable: int = 0
    """The last row that it has on disk."""
    at: float = 0.0
    """When it has said so."""
    echo: float = 0.0
    """The newest time of the primary's own clock that it has sent back."""

    @property
    def is_linked(self) -> bool:
        """Whether it gets the log or a copy."""
        return self.link is not None

    @property
    def address(self) -> str:
        """Return its address without the port."""
        return self.ip or self.client.address.rpartition(":")[0].strip("[]")


@dataclass(slots=True, eq=False)
class Wait:
    """A client that waits until replicas have its writes."""

    wanted: int
    answer: Callable[[int], Reply]
    """Makes the reply of the number of replicas that have them."""
    durable: bool
    """They have them on disk."""
    local: bool
    """This server must have them on disk, too."""
    goal: int | None = None
    """The lsn of its last write; None: its turn is not committed yet."""
    sequence: int = 0
    blocked: Blocked | None = None


@dataclass(slots=True)
class Counts:
    """What INFO counts."""

    copies: int = 0
    resumed: int = 0
    """Replicas that got the log from their position on."""
    sent: int = 0
    """Bytes that were sent to replicas."""


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
        self._dispatcher, self._blocking, self._loop = dispatcher, blocking, loop
        self.replicas: dict[Client, Replica] = {}
        """Those that have asked for the log."""
        self.follower: Follower | None = None
        self.counts, self.acks = Counts(), ReplicaAcks()
        self.is_degraded = False
        """It goes on without ``replica-acks``, as ``replica-acks-degrade`` says."""
        self.lease_until = inf
        """When too few replicas have answered lately, so that writes are refused."""
        self.is_waited_for = True
        """A stop waits until the replicas have all writes."""
        self.is_busy = False
        """Whether ``after_turn`` has anything to do."""
        self._wanted: tuple[Source | None] | None = None
        """The role that was asked for in this turn."""
        self._waits: dict[Wait, None] = {}
        self._asks = False
        """A client has begun to wait in this turn."""
        self._sums: Sums = {}
        self._sent_sequence = -1
        """The number of the last commit when it was sent last."""
        self._timer_is_set = self._beats = self._is_started = self._watches_acks = False
        self.history: History | None = None
        self.alone_since = monotonic()

    # --- the server -----------------------------------------------------------------------------

    def start(self, wanted: Source | None) -> None:
        """Take the role that the store has, or ``wanted`` if its role was never set."""
        self._is_started = True
        following = self._engine.following
        if self._engine.database.loss is not None:
            following.end_history()
        if following.source is None and wanted is not None and not following.is_set:
            self._follow(wanted)
        elif following.source is not None:
            self._start_follower(following.source)
        elif read_history(self._engine.database) is not None:
            following.begin_epoch()
        self.refresh()

    def stop(self) -> None:
        """End the links: the server stops."""
        if self.follower is not None:
            self.follower.stop()
            self.follower.join(STOP_S)
        for client in list(self.replicas):
            self.leave(client)
        self._is_started = False

    def tick(self) -> None:
        """Do the periodic work, once a second."""
        if not self._is_started:
            return
        self._drop_silent()
        self.refresh()
        if self._is_left_alone():
            self._engine.following.end_history()
            self.refresh()
        self._engine.database.trim_logs("replicas", self._first_log_needed())

    def _is_left_alone(self) -> bool:
        """Return whether a primary has had no replica for ``repl-backlog-ttl``; 0: for ever."""
        if self.history is None or not self.history.is_followed or self.replicas:
            return False
        return monotonic() - self.alone_since > self.setting("repl-backlog-ttl") > 0

    def _drop_silent(self) -> None:
        """Disconnect replicas that have said nothing for ``repl-timeout``."""
        oldest = monotonic() - self.setting("repl-timeout")
        for client, replica in list(self.replicas.items()):
            if replica.at < oldest:
                _log.warning("the replica %s is silent: disconnected", client.address)
                self._server.drop(client)

    def _first_log_needed(self) -> int:
        """Return the first of the logs that are kept for replicas."""
        if self.history is None:
            return _NO_LOG
        needed = min((replica.log for replica in self.replicas.values()), default=_NO_LOG)
        left = self.setting("repl-backlog-size")
        for log, size in archived_sizes(self._engine.database.own_path):
            left -= size
            if left < 0:
                break
            needed = min(needed, log)
        return needed

    def setting(self, name: str) -> int:
        """Return a setting of CONFIG that is a number."""
        key = name.encode()
        value = self._server.options.kept.get(key, KEPT[key][0])
        assert isinstance(value, int)
        return value

    def text_setting(self, name: str) -> str:
        """Return a setting of CONFIG that is a text."""
        key = name.encode()
        value = self._server.options.kept.get(key, KEPT[key][0])
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)

    # --- the role -------------------------------------------------------------------------------

    @property
    def source(self) -> Source | None:
        """The primary that this server follows, as it was asked for last."""
        return self._engine.following.source if self._wanted is None else self._wanted[0]

    def change_role(self, source: Source | None) -> None:
        """Follow a primary, or become one, behind the present turn.

        Raises InvalidArgument if a store with an archive is to follow, ReplicationRefused without a
        server.
        """
        if not self._loop.suspends_turns:
            raise ReplicationRefused("a store of this process has no replicas: serve it")
        if source is not None:
            self._engine.following.refuse_archive()
        self._wanted, self.is_busy = (source,), True

    def _take_role(self, wanted: Source | None) -> None:
        present = self._engine.following.source
        if wanted == present:
            return
        try:
            if wanted is None:
                self._promote()
            else:
                self._follow(wanted)
        except (KVStreamError, OSError) as error:
            _log.error("the role cannot be changed: %s", error)
        self.acks.restart()
        self.refresh()

    def _follow(self, source: Source) -> None:
        self._stop_follower()
        self._engine.following.follow(source)
        for client in list(self.replicas):
            self._server.drop(client)
        for client in list(self._server.clients.values()):
            self._blocking.unblock(client, UNBLOCKED)
        _log.log(NOTICE, "follows %s:%d from now on", *source)
        self._start_follower(source)

    def _promote(self) -> None:
        """Become a primary; the link is closed first, so that nothing of it is applied later."""
        self._stop_follower()
        self._engine.following.promote()
        self.alone_since = monotonic()
        _log.log(NOTICE, "is a primary from now on")

    def _start_follower(self, source: Source) -> None:
        changed = partial(self._server.post, self.refresh)
        self.follower = Follower(self._engine, source, self._link_options, changed)
        self.follower.start()

    def _stop_follower(self) -> None:
        """Apply nothing more; the thread ends soon."""
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.stop()

    def _link_options(self) -> LinkOptions:
        options = self._server.options
        return LinkOptions(
            self.setting("replica-announce-port") or options.port or options.tls_port,
            self.text_setting("replica-announce-ip"),
            self.text_setting("masteruser"),
            self.text_setting("masterauth"),
            self.setting("repl-timeout"),
            partial(_link_context, options) if self.setting("tls-replication") else None,
        )

    def refresh(self) -> None:
        """Decide anew what clients may do in the present role."""
        dispatcher, follower = self._dispatcher, self.follower
        self.history = read_history(self._engine.database)
        dispatcher.unavailable = None
        if follower is not None and follower.place is None:
            dispatcher.unavailable = LOADING
        elif (
            follower is not None
            and follower.link is not Link.CONNECTED
            and not self.setting("replica-serve-stale-data")
        ):
            dispatcher.unavailable = MASTERDOWN
        self.check_lease()
        dispatcher.update_path()

    def check_lease(self) -> None:
        """Refuse writes if too few replicas have answered lately; else until when they have.

        Their answers have the primary's own clock: those that a stopped process finds in its
        sockets are as old as they are.
        """
        is_primary = self.follower is None
        acks = self.setting("replica-acks") if is_primary else 0
        least = self.setting("min-replicas-to-write") if is_primary else 0
        wanted = max(acks, least)
        echoes = sorted((each.echo for each in self._online()), reverse=True)
        until = echoes[wanted - 1] + self._lease_s() if 0 < wanted <= len(echoes) else 0.0
        lacks = wanted > 0 and until < monotonic()
        self.is_degraded = lacks and bool(self.setting("replica-acks-degrade"))
        if self.is_degraded:
            lacks, acks = self.count_good() < least, 0
        self.acks.want(acks)
        self.is_busy = self.is_busy or acks > 0
        self.lease_until = until if wanted and not (lacks or self.is_degraded) else inf
        if lacks is (self._dispatcher.lacks_replicas is None):
            self._dispatcher.lacks_replicas = NOREPLICAS if lacks else None
            self._dispatcher.update_path()

    def _lease_s(self) -> float:
        """Return for how long an answer of a replica counts."""
        lag, lease_ms = self.setting("min-replicas-max-lag"), self.setting("replica-lease-ms")
        return min(lag or inf, lease_ms / 1000 or inf)

    def _online(self) -> Iterator[Replica]:
        return (each for each in self.replicas.values() if each.state is ReplicaState.ONLINE)

    # --- replicas -------------------------------------------------------------------------------

    def introduce(self, client: Client) -> Replica:
        """Return what is known of a client that may become a replica."""
        if client.replica is None:
            client.replica = Replica(client)
        assert isinstance(client.replica, Replica)
        return client.replica

    def attach(self, client: Client, place: Place) -> None:
        """Begin to send to a replica at a position; the answer is sent by itself.

        Raises ReplicationRefused in a replica, or without a socket.
        """
        if self.source is not None:
            raise ReplicationRefused("a replica cannot be followed: follow its primary")
        replica = self.introduce(client)
        replica.link, replica.at = self._loop.link_to(client), monotonic()
        self.replicas[client] = replica
        work = partial(self._prepare, replica, place)
        threading.Thread(target=work, name="kvstream-replica", daemon=True).start()

    def _prepare(self, replica: Replica, place: Place) -> None:
        """Find out what a replica gets; in a thread of its own."""
        try:
            answer = prepare(self._engine, place, self._sums)
        except Exception as error:
            _log.warning("the replica %s gets nothing: %s", replica.client.address, error)
            self._server.post(partial(self._refuse, replica, str(error)))
        else:
            self._server.post(partial(self._begin, replica, place, answer))

    def _refuse(self, replica: Replica, why: str) -> None:
        if replica.link is not None and replica.client in self.replicas:
            replica.link.send(Outgoing(f"-NOTREADY {' '.join(why.split())}\r\n".encode()))
            self._server.drop(replica.client)

    def _begin(self, replica: Replica, place: Place, answer: Beginning) -> None:
        if replica.client not in self.replicas or replica.link is None:
            answer.feed.close()
            return
        replica.feed, replica.log = answer.feed, answer.log
        replica.at, replica.lsn = monotonic(), place.lsn
        is_copy = answer.feed.is_copy
        replica.state = ReplicaState.COPY if is_copy else ReplicaState.ONLINE
        self.counts.copies += is_copy
        self.counts.resumed += not is_copy
        what = "a copy" if is_copy else f"the log from lsn {place.lsn} on"
        _log.log(NOTICE, "the replica %s:%d gets %s", replica.address, replica.port, what)
        replica.link.send(Outgoing(answer.line))
        self.is_busy = True
        self.refresh()
        self._ask()
        if not self._beats:
            self._beat()

    def leave(self, client: Client) -> None:
        """Forget a client that was a replica."""
        replica = self.replicas.pop(client, None)
        client.replica = None
        if replica is None:
            return
        if replica.feed is not None:
            replica.feed.close()
        if replica.link is not None:
            replica.link.close()
        if not self.replicas:
            self.alone_since = monotonic()
        if self._is_started:
            self.refresh()

    def acknowledge(self, client: Client, said: tuple[int, int, int], txn: Txn) -> None:
        """Take what a replica says that it has: lsn, durable lsn, and the clock's echo."""
        replica = self.replicas.get(client)
        if replica is None:
            return
        replica.lsn, replica.durable, echo_ns = said
        replica.at, replica.echo = monotonic(), max(replica.echo, echo_ns / _NS)
        if self.lease_until < inf or self._dispatcher.lacks_replicas or self.is_degraded:
            self.check_lease()
        if self.acks.wanted:
            self._reach()
        if replica.feed is not None and not replica.feed.is_copy:
            replica.log = _NO_LOG  # its log is open
        if self._waits and self._count_waits():
            txn.signal(TOKEN, Wake.FREED)

    def _reach(self) -> None:
        """Send the replies that waited for what all replicas have now."""
        lsns = [each.lsn for each in self._online()]
        if self.history is not None and len(lsns) >= self.acks.wanted:
            self.acks.reach(self.history.sequence_of(min(lsns)))

    def need(self, client: Client, indexes: list[int]) -> None:
        """Take which files of its copy a replica lacks."""
        replica = self.replicas.get(client)
        if replica is None or not isinstance(replica.feed, CopyFeed):
            raise ProtocolError("no copy is under way")
        replica.feed.need(indexes)
        self._sent_sequence = -1  # it is sent behind this turn

    def is_caught_up(self) -> bool:
        """Return whether all replicas that get the log have the last commit."""
        return all(each.lsn >= self.lsn for each in self._online())

    def count_good(self) -> int:
        """Return how many replicas are not behind for longer than ``min-replicas-max-lag``."""
        oldest = monotonic() - self._lease_s()
        return sum(each.echo >= oldest for each in self._online())

    # --- sending --------------------------------------------------------------------------------

    def after_turn(self) -> None:
        """Send what is due, and change the role if that was asked for."""
        if self._wanted is not None:
            (wanted,) = self._wanted
            self._take_role(wanted)
            self._wanted = None
        if self._waits:
            self._set_goals()
        if self.acks.wanted and self.acks.note(self._engine.database.sequence):
            self._asks = True
            self._watch_acks()
        if self._asks:
            self._asks = False
            self._ask()
        elif self._has_more():
            self._set_timer()
        self.is_busy = bool(self.replicas or self._waits or self.acks.wanted)

    def _watch_acks(self) -> None:
        """Give up writes that replicas do not confirm within ``replica-ack-timeout``."""
        if not self._watches_acks:
            self._watches_acks = True
            self._loop.call_later(self._ack_timeout_s, self._check_acks)

    def _check_acks(self) -> None:
        self._watches_acks = False
        self.acks.give_up(self._ack_timeout_s)
        if self.acks.is_waiting:
            self._watch_acks()

    @property
    def _ack_timeout_s(self) -> float:
        return self.setting("replica-ack-timeout") / 1000

    def _has_more(self) -> bool:
        """Return whether there are commits that no timer is set for."""
        if not self.replicas or self._timer_is_set:
            return False
        return self._engine.database.sequence != self._sent_sequence

    def _set_timer(self) -> None:
        if not self._timer_is_set:
            self._timer_is_set = True
            self._loop.call_later(SEND_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_is_set = False
        self._ask() if self._waits else self.flush()

    def flush(self) -> None:
        """Send to each replica what it lacks, as far as its socket has room."""
        self._sent_sequence = self._engine.database.sequence
        for replica in list(self.replicas.values()):
            try:
                if replica.feed is not None and not self._send(replica):
                    self._set_timer()
            except OSError as error:
                _log.warning("the replica %s is lost: %s", replica.client.address, error)
                self._server.drop(replica.client)

    def _send(self, replica: Replica) -> bool:
        """Send to one replica; return whether all is sent.

        It looks for a newer log only if the present one has nothing: that reads the directory.
        """
        link, feed, left = replica.link, replica.feed, BURST_BYTES
        assert link is not None
        assert feed is not None
        while link.flush():
            if left <= 0:
                return False
            frame = feed.next(left, looks=left == BURST_BYTES)
            if frame is None:
                return True
            link.send(frame)
            left -= len(frame.head) + frame.size
            self.counts.sent += len(frame.head) + frame.size
        return False

    def _beat(self) -> None:
        """Ask the replicas how far they are, from time to time."""
        self._beats = bool(self.replicas) and self._is_started
        if self._beats:
            self._loop.call_later(BEAT_S, self._beat)
            self._ask()

    def _ask(self) -> None:
        """Send what is left, and a heartbeat: the replicas answer behind it."""
        self.flush()
        clock_ns = int(monotonic() * _NS)
        head = protocol.encode_head(protocol.BEAT, clock_ns, self.lsn, 0)
        for replica in list(self.replicas.values()):
            try:
                if replica.feed is not None and replica.link is not None and replica.link.flush():
                    replica.link.send(Outgoing(head))
            except OSError:
                self._server.drop(replica.client)

    @property
    def priority(self) -> int:
        """The priority for Sentinel; 0 while it must not be promoted: it has no whole data."""
        follower = self.follower
        if follower is not None and (follower.place is None or follower.bytes_left):
            return 0
        return self.setting("replica-priority")

    @property
    def lsn(self) -> int:
        """The lsn of the last commit; 0 without a history."""
        follower, history = self.follower, self.history
        if follower is not None:
            return 0 if follower.place is None else follower.place.lsn
        return 0 if history is None else history.lsn_of(self._engine.database.sequence)

    # --- figures --------------------------------------------------------------------------------

    @property
    def link_is_up(self) -> bool:
        """Whether this replica gets the log of its primary; true for a primary."""
        return self.follower is None or self.follower.link is Link.CONNECTED

    @property
    def lag_rows(self) -> int:
        """How many rows the slowest replica lacks, or this one."""
        if self.follower is not None:
            return max(self.follower.primary_lsn - self.lsn, 0)
        return max((max(self.lsn - each.lsn, 0) for each in self.replicas.values()), default=0)

    @property
    def lag_s(self) -> float:
        """How old the oldest of the replicas' last answers is, or what this replica heard last."""
        if self.follower is not None:
            return monotonic() - self.follower.last_io
        return max((monotonic() - each.at for each in self.replicas.values()), default=0.0)

    # --- waits ----------------------------------------------------------------------------------

    def wait(self, wait: Wait, txn: Txn, timeout_ms: int | None) -> Answer:
        """Return the reply of WAIT or WAITAOF, or what blocks its client until it is due."""
        if not txn.dirty:
            self._set_goal(wait)
        count = self._count(wait)
        if self._is_over(wait, count):
            return wait.answer(count)

        def attempt(txn: Txn) -> Reply:
            count = self._count(wait)
            if not self._is_over(wait, count):
                return None
            self._waits.pop(wait, None)
            return wait.answer(count)

        wait.blocked = Blocked([TOKEN], attempt, timeout_ms, expired=wait.answer(count))
        self._waits = {each: None for each in self._waits if self._goes_on(each)}
        self._waits[wait] = None
        self._asks = self.is_busy = True
        return wait.blocked

    def _goes_on(self, wait: Wait) -> bool:
        if wait.goal is None:
            return True
        blocks = (client.block for client in self._blocking.blocked)
        return any(block is not None and block.wait is wait.blocked for block in blocks)

    def _set_goals(self) -> None:
        for wait in self._waits:
            if wait.goal is None:
                self._set_goal(wait)

    def _set_goal(self, wait: Wait) -> None:
        wait.sequence = self._engine.database.sequence
        wait.goal = self.lsn

    def _count(self, wait: Wait) -> int:
        """Return how many replicas have the writes of a wait."""
        goal = wait.goal
        if goal is None:
            return 0
        has = "durable" if wait.durable else "lsn"
        return sum(getattr(each, has) >= goal for each in self._online())

    def _is_over(self, wait: Wait, count: int) -> bool:
        if wait.goal is None or count < wait.wanted:
            return False
        return not wait.local or self._engine.committer.flushed_sequence >= wait.sequence

    def _count_waits(self) -> bool:
        """Note what timeouts would answer; return whether a wait is over."""
        is_over = False
        for wait in self._waits:
            count = self._count(wait)
            is_over = is_over or self._is_over(wait, count)
            if wait.blocked is not None:
                wait.blocked.expired = wait.answer(count)
        return is_over
