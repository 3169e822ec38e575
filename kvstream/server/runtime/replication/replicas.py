"""The replicas of a primary: their links, what is sent to them, and what they acknowledge.

It sends in the loop, between turns, at most each SEND_S, or at once if a client waits for replicas:
sending after each commit takes a seventh of the primary's processor time, a thread that is woken by
commits more than nine tenths of its throughput. It owns no sockets: ``Loop.link_to`` makes a link.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from kvstream.errors import ProtocolError
from kvstream.layout.history import Place
from kvstream.logs import NOTICE
from kvstream.replicas import protocol
from kvstream.replicas.copying import Sums
from kvstream.replicas.feeds import Beginning, CopyFeed, LogFeed, Outgoing, prepare
from kvstream.server.inert_settings import number_of
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client import Client, Server
from kvstream.server.runtime.loop import Loop, ReplicaLink
from kvstream.storage.changes import archived_sizes
from kvstream.types.clock import monotonic

SEND_S = 0.005
"""The longest that a commit waits before it is sent."""
BEAT_S = 0.1
"""How often a primary sends its clock and its last lsn."""
BURST_BYTES = 4 << 20
"""Bytes that are sent to one replica before clients are served again: a millisecond."""
NO_LOG = 1 << 62
_NS = 1_000_000_000

_log = logging.getLogger(__name__)


class LinkState(StrEnum):
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
    state: LinkState = LinkState.WAIT
    link: ReplicaLink | None = None
    feed: LogFeed | CopyFeed | None = None
    log: int = NO_LOG
    """The first log that it needs."""
    lsn: int = 0
    """The last row that it has acknowledged."""
    durable: int = 0
    """The last row that it has acknowledged as durable."""
    at: float = 0.0
    """The time of that acknowledgement."""
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

    def take(self, lsn: int, durable: int, echo_ns: int) -> None:
        """Note the rows that it acknowledges, and the clock that it sends back."""
        self.lsn, self.durable = lsn, durable
        self.at, self.echo = monotonic(), max(self.echo, echo_ns / _NS)
        if self.feed is not None and not self.feed.is_copy:
            self.log = NO_LOG  # its log is open


def introduce(client: Client) -> Replica:
    """Return what is known of a client that may become a replica."""
    if client.replica is None:
        client.replica = Replica(client)
    assert isinstance(client.replica, Replica)
    return client.replica


@dataclass(slots=True)
class Counts:
    """What INFO counts."""

    copies: int = 0
    resumed: int = 0
    """Replicas that got the log from their position on."""
    sent: int = 0
    """Bytes that were sent to replicas."""


class Replicas:
    """The replicas of one server."""

    def __init__(
        self,
        server: Server,
        loop: Loop,
        lsn: Callable[[], int],
        confirmed: Callable[[], int],
        is_waited_for: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        """``lsn`` returns the last row, ``confirmed`` the last one that clients know to be on
        replicas; ``changed`` is called after one has come or gone.

        While ``is_waited_for`` each send asks for an answer.
        """
        self._server, self._engine, self._loop = server, server.engine, loop
        self._lsn, self._confirmed = lsn, confirmed
        self._is_waited_for, self._changed = is_waited_for, changed
        self.linked: dict[Client, Replica] = {}
        """Those that have asked for the log."""
        self.counts = Counts()
        self.is_running = False
        self.alone_since = monotonic()
        self._sums: Sums = {}
        self._sent_sequence = -1
        """The number of the last commit when it was sent last."""
        self._timer_is_set = self._beats = False

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self.linked.values()))

    def __len__(self) -> int:
        return len(self.linked)

    @property
    def _options(self) -> ServerOptions:
        return self._server.options

    def online(self) -> Iterator[Replica]:
        """Yield those that get the log."""
        return (each for each in self.linked.values() if each.state is LinkState.ONLINE)

    def is_caught_up(self) -> bool:
        """Return whether all that get the log have the last commit."""
        return all(each.lsn >= self._lsn() for each in self.online())

    # --- links ----------------------------------------------------------------------------------

    def attach(self, client: Client, place: Place) -> None:
        """Begin to send to a replica at a position; the answer is sent by itself.

        Raises ReplicationRefused without a socket.
        """
        replica = introduce(client)
        replica.link, replica.at = self._loop.link_to(client), monotonic()
        self.linked[client] = replica
        work = partial(self._prepare, replica, place)
        threading.Thread(target=work, name="kvstream-replica", daemon=True).start()

    def turn_away(self, client: Client, why: str) -> None:
        """Answer a replica that asks for the log with NOTREADY."""
        replica = introduce(client)
        replica.link = self._loop.link_to(client)
        self.linked[client] = replica
        self.refuse(replica, why)

    def _prepare(self, replica: Replica, place: Place) -> None:
        """Find out what a replica gets; in a thread of its own."""
        try:
            answer = prepare(self._engine, place, self._sums)
        except Exception as error:
            _log.warning("the replica %s gets nothing: %s", replica.client.address, error)
            self._server.post(partial(self.refuse, replica, str(error)))
        else:
            self._server.post(partial(self._begin, replica, place, answer))

    def refuse(self, replica: Replica, why: str) -> None:
        """Answer a replica with NOTREADY, and disconnect it; it tries again later."""
        if replica.link is not None and replica.client in self.linked:
            replica.link.send(Outgoing(f"-NOTREADY {' '.join(why.split())}\r\n".encode()))
            self._server.drop(replica.client)

    def _begin(self, replica: Replica, place: Place, answer: Beginning) -> None:
        if replica.client not in self.linked or replica.link is None:
            answer.feed.close()
            return
        replica.feed, replica.log = answer.feed, answer.log
        replica.at, replica.lsn = monotonic(), place.lsn
        is_copy = answer.feed.is_copy
        replica.state = LinkState.COPY if is_copy else LinkState.ONLINE
        self.counts.copies += is_copy
        self.counts.resumed += not is_copy
        what = "a copy" if is_copy else f"the log from lsn {place.lsn} on"
        _log.log(NOTICE, "the replica %s:%d gets %s", replica.address, replica.port, what)
        replica.link.send(Outgoing(answer.line))
        self._changed()
        self.ask()
        if not self._beats:
            self._beat()

    def leave(self, client: Client) -> None:
        """Forget a client that was a replica."""
        replica = self.linked.pop(client, None)
        client.replica = None
        if replica is None:
            return
        if replica.feed is not None:
            replica.feed.close()
        if replica.link is not None:
            replica.link.close()
        if not self.linked:
            self.alone_since = monotonic()
        if self.is_running:
            self._changed()

    def drop_all(self) -> None:
        """Disconnect all."""
        for client in list(self.linked):
            self._server.drop(client)

    def drop_silent(self) -> None:
        """Disconnect those that have said nothing for ``repl-timeout``."""
        oldest = monotonic() - number_of(self._options, "repl-timeout")
        for replica in self:
            if replica.at < oldest:
                _log.warning("the replica %s is silent: disconnected", replica.client.address)
                self._server.drop(replica.client)

    def need(self, client: Client, indexes: list[int]) -> None:
        """Take which files of its copy a replica lacks."""
        replica = self.linked.get(client)
        if replica is None or not isinstance(replica.feed, CopyFeed):
            raise ProtocolError("no copy is under way")
        replica.feed.need(indexes)
        self._sent_sequence = -1  # it is sent behind this turn

    def first_log_needed(self) -> int:
        """Return the first of the logs that are kept for replicas."""
        needed = min((replica.log for replica in self.linked.values()), default=NO_LOG)
        left = number_of(self._options, "repl-backlog-size")
        for log, size in archived_sizes(self._engine.database.own_path):
            left -= size
            if left < 0:
                break
            needed = min(needed, log)
        return needed

    # --- sending --------------------------------------------------------------------------------

    def send_soon(self) -> None:
        """Set a timer if there are commits that none is set for."""
        if not self.linked or self._timer_is_set:
            return
        if self._engine.database.sequence != self._sent_sequence:
            self._set_timer()

    def _set_timer(self) -> None:
        if not self._timer_is_set:
            self._timer_is_set = True
            self._loop.call_later(SEND_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_is_set = False
        self.ask() if self._is_waited_for() else self.flush()

    def flush(self) -> None:
        """Send to each replica what it lacks, as far as its socket has room."""
        self._sent_sequence = self._engine.database.sequence
        for replica in self:
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
        self._beats = bool(self.linked) and self.is_running
        if self._beats:
            self._loop.call_later(BEAT_S, self._beat)
            self.ask()

    def ask(self) -> None:
        """Send what is left, and a heartbeat: the replicas answer behind it."""
        self.flush()
        clock_ns = int(monotonic() * _NS)
        head = protocol.encode_beat(clock_ns, self._lsn(), self._confirmed())
        for replica in self:
            try:
                if replica.feed is not None and replica.link is not None and replica.link.flush():
                    replica.link.send(Outgoing(head))
            except OSError:
                self._server.drop(replica.client)
