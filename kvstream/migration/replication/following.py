"""The follower: receives a snapshot, then commands, and applies them to a target.

After a lost link it connects again and asks the source to continue after the last command applied;
if the source cannot, it sends a new snapshot. An unavailable target is awaited, and its journal
tells where to continue. While a snapshot is loaded the source buffers the commands
(``client-output-buffer-limit replica``).

``Link`` is the socket of the replica. redis-py connects, encrypts and authenticates; after that the
bytes are ours. A lost connection raises SourceNotReady.
"""

import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstream.errors import SourceNotReady
from kvstream.migration.copy import list_counts
from kvstream.migration.journal import Phase
from kvstream.migration.replication.protocol import (
    NOWHERE,
    Continued,
    Event,
    FullSync,
    Position,
    Received,
    Replica,
    SnapshotData,
    SnapshotEnd,
)
from kvstream.migration.replication.targets import State, Target
from kvstream.migration.runner import Report
from kvstream.remote.connection import socket_connection
from kvstream.remote.server_errors import error_of, is_tls_refusal
from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    import redis


RECEIVE_BYTES = 1 << 20
"""Most bytes of one read, which become one commit."""
ACK_S = 1.0
"""Pause between acknowledgements, as of Redis's replicas; after 60 s the source disconnects."""


class Link:
    """A connection to a source that sends its history from a position on."""

    def __init__(self, client: "redis.Redis", position: Position = NOWHERE) -> None:
        """Connect and send the handshake; raises redis-py's errors."""
        self._connection = socket_connection(client)
        self._connection.connect()
        # Private in redis-py, which no longer reads or writes this connection.
        self._socket: socket.socket = self._connection._sock
        self._sending = threading.Lock()
        self._replica = Replica(position)
        self.received = 0
        """Bytes received."""
        self._send(self._replica.outgoing())

    @property
    def position(self) -> Position:
        """The position after the last command received."""
        return self._replica.position

    def receive(self, timeout_s: float) -> list[Event]:
        """Return the events received within the timeout; raise SourceNotReady for a lost link."""
        try:
            self._socket.settimeout(timeout_s)
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            return []
        except OSError as error:
            raise _connection_lost(error) from None
        if not data:
            raise SourceNotReady("the source has closed the connection")
        self.received += len(data)
        events = self._replica.feed(data)
        self._send(self._replica.outgoing())
        return events

    def acknowledge(self, offset: int) -> None:
        """Acknowledge that everything up to an offset is durable."""
        self._send(Replica.ack(offset))

    def _send(self, data: bytes) -> None:
        if not data:
            return
        with self._sending:
            try:
                self._socket.settimeout(None)
                self._socket.sendall(data)
            except OSError as error:
                raise _connection_lost(error) from None

    @contextmanager
    def keep_alive(self, offset: int) -> Iterator[None]:
        """Acknowledge an offset each second from a thread; nothing else may use the link."""
        over = threading.Event()
        thread = threading.Thread(target=self._repeat, args=(offset, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _repeat(self, offset: int, over: threading.Event) -> None:
        try:
            while not over.wait(ACK_S):
                self.acknowledge(offset)
        except SourceNotReady:
            pass  # the next receive raises it too

    def close(self) -> None:
        self._connection.disconnect()


def _connection_lost(error: OSError) -> SourceNotReady:
    return SourceNotReady(f"the connection to the source was lost: {error.strerror or error}")


_OF_LIBRARIES = "FUNCTION: ERR "
"""The beginning of refusals of libraries in a target's journal."""
RECEIVE_S = 0.2
"""Longest wait for commands, between two calls of ``until``."""
RETRY_S, RETRY_S_MAX = 0.1, 5.0
"""Pause before connecting again: the first, and the longest; it doubles."""
COMMIT_COMMANDS = 256
"""Commands that trigger a commit: in larger ones reads would slow down."""
AWAY_TOLD_S = 30.0
"""Pause between two messages that the target is still unavailable."""
SILENCE_S = 60.0
"""Silence after which a source counts as lost; it sends something every ten seconds."""


class Follower:
    """Keeps one target in step with one source."""

    def __init__(
        self,
        connect: Callable[[], "redis.Redis"],
        target: Target,
        spool: Path,
        load: Callable[[Path], Report],
        said: Callable[[str], None] = lambda text: None,
        seen: Callable[[Phase], None] = lambda phase: None,
    ) -> None:
        """``spool`` is the file for a snapshot, ``load`` loads it.

        ``said`` gets messages for the user. ``seen`` is called with the phase when it begins, and
        again while it lasts.
        """
        self._connect = connect
        self.target = target
        self._spool = spool
        self._load = load
        self._said = said
        self._seen = seen
        self._connected_phase = Phase.FOLLOWING
        self._received = 0  # over earlier links
        self._link: Link | None = None
        self._is_synchronised = False
        """Whether the source continues from our position, or its snapshot is loaded."""
        self._held: list[Received] = []
        """Commands of a transaction that has not ended."""
        self._in_transaction = False
        self._acknowledged_at = 0.0
        self._told: set[str] = set()
        """Names of commands that are left out and were reported."""
        self._told_refusals: set[str] = set()
        self._heard_at = 0.0
        self._pause_s = RETRY_S
        self.commands = self.writes = 0
        """Commands applied by this process, and those among them that are writes."""

    @property
    def offset(self) -> int:
        """The offset in the source's history that the target has reached."""
        return self.target.journal.position.offset

    @property
    def is_following(self) -> bool:
        """Whether the link is up and the target has the source's history."""
        return self._link is not None and self._is_synchronised

    @property
    def received(self) -> int:
        """Bytes received by this process."""
        return self._received + (0 if self._link is None else self._link.received)

    def enter(self, phase: Phase) -> None:
        """Set the phase that is reported while the link is up."""
        self._connected_phase = phase
        self._seen(phase)

    # --- the loop -------------------------------------------------------------------------------

    def follow(self, until: Callable[[], bool]) -> None:
        """Follow until ``until`` is true; it is called several times a second.

        Raises refusals of the source, errors of the target, and, during the cut-over, an
        unavailable target.
        """
        while not until():
            self._seen(self._connected_phase if self.is_following else Phase.CONNECTING)
            try:
                self.step(RECEIVE_S)
            except SourceNotReady as error:
                self._said(f"{error}; connecting again")
                self.close()
                self._rest(until)
            except self.target.unavailable as error:
                self.close()
                if self._connected_phase is Phase.SWITCHING or is_tls_refusal(error):
                    raise
                self._await_target(error, until)

    def _await_target(self, error: Exception, until: Callable[[], bool]) -> None:
        """Call ``recover`` of the target until it succeeds."""
        told_at = began = monotonic()
        self._said(
            f"the target is away: {error}; waiting until it is back, trying again every "
            f"{RETRY_S_MAX:g} s at most"
        )
        self._pause_s = RETRY_S
        while not until():
            self._seen(Phase.AWAITING)
            self._rest(until)
            try:
                self.target.recover()
            except self.target.unavailable as again:
                if is_tls_refusal(again):
                    raise
                now = monotonic()
                if now - told_at >= AWAY_TOLD_S:
                    told_at = now
                    self._said(f"the target has been away for {now - began:.0f} s: {again}")
            else:
                self._said(f"the target is back, at offset {self.offset}")
                self._pause_s = RETRY_S
                return

    def _rest(self, until: Callable[[], bool]) -> None:
        end = monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, RETRY_S_MAX)
        while monotonic() < end and not until():
            time.sleep(min(self._pause_s, RECEIVE_S))

    def step(self, timeout_s: float) -> None:
        """Receive and apply once; raise SourceNotReady for a lost link."""
        link = self._link or self._open()
        events = link.receive(timeout_s)
        now = monotonic()
        if events:
            self._heard_at, self._pause_s = now, RETRY_S
            self._take(link, events)
        elif now - self._heard_at > SILENCE_S:
            raise SourceNotReady(f"the source has been silent for {SILENCE_S:.0f} seconds")
        if self.is_following and now - self._acknowledged_at >= ACK_S:
            self._acknowledge(link)

    def _open(self) -> Link:
        journal = self.target.journal
        position = journal.position if journal.state is State.FOLLOWING else NOWHERE
        with _link_errors():
            self._link = link = Link(self._connect(), position)
        self._is_synchronised = False
        self._held, self._in_transaction = [], False
        self._heard_at = monotonic()
        return link

    def close(self) -> None:
        """Disconnect from the source; following can be resumed."""
        if self._link is not None:
            self._received += self._link.received
            self._link.close()
            self._link = None

    def _acknowledge(self, link: Link) -> None:
        link.acknowledge(self.offset)
        self._acknowledged_at = monotonic()

    @contextmanager
    def keep_alive(self) -> Iterator[None]:
        """Return a context manager that acknowledges from a thread meanwhile."""
        if self._link is None:
            yield
            return
        with self._link.keep_alive(self.offset):
            yield

    # --- commands -------------------------------------------------------------------------------

    def _take(self, link: Link, events: list[Event]) -> None:
        first = events[0]
        if isinstance(first, Continued):
            self._said(f"following from offset {first.position.offset}")
            if first.position != self.target.journal.position:  # a new replid of the same history
                self.target.commit([], first.position)
            self._is_synchronised = True
            del events[0]
        elif isinstance(first, FullSync):
            self._synchronise(link, events)
            return
        self._apply(link, events)

    def _apply(self, link: Link, events: list[Event]) -> None:
        """Apply commands in batches; those of an unfinished transaction wait."""
        asked = False
        whole = 0
        for event in events:
            assert isinstance(event, Received)
            word = event.argv[0].upper()
            self._held.append(event)
            self._in_transaction = (self._in_transaction or word == b"MULTI") and word not in _ENDS
            if not self._in_transaction:
                whole = len(self._held)
                if whole >= COMMIT_COMMANDS:
                    self._commit(link, whole)
                    whole = 0
            asked = asked or (word == b"REPLCONF" and event.argv[1:2] == [b"GETACK"])
        if whole:
            self._commit(link, whole)
        if asked:
            self._acknowledge(link)

    def _commit(self, link: Link, count: int) -> None:
        """Apply the first ``count`` of the held commands."""
        ready, self._held = self._held[:count], self._held[count:]
        self.target.commit(ready, Position(link.position.replid, ready[-1].end))
        self._tell_left_out()
        self.commands += len(ready)
        self.writes += sum(each.argv[0].upper() not in _IDLE for each in ready)
        if monotonic() - self._acknowledged_at >= ACK_S:
            self._acknowledge(link)

    def _tell_left_out(self) -> None:
        """Say which commands and libraries of the source are left out, each once."""
        for refusal in self.target.journal.refused:
            if refusal.startswith(_OF_LIBRARIES) and refusal not in self._told_refusals:
                self._told_refusals.add(refusal)
                self._said(f"left out: functions: {refusal.removeprefix(_OF_LIBRARIES)}")
        skipped = self.target.journal.skipped
        if len(skipped) > len(self._told):
            new = [name for name in skipped if name not in self._told]
            self._told.update(new)
            self._said(f"left out: commands that kvstream does not have: {', '.join(new)}")

    # --- a snapshot -----------------------------------------------------------------------------

    def _synchronise(self, link: Link, events: list[Event]) -> None:
        """Receive a snapshot into a file, load it, and continue with the commands after it."""
        began = events.pop(0)
        assert isinstance(began, FullSync)
        self._said("the source sends a snapshot")
        self.target.begin()
        rest = self._receive_snapshot(link, events)
        link.acknowledge(began.position.offset)
        self._said(f"loading a snapshot of {self._spool.stat().st_size} bytes")
        self._seen(Phase.LOADING)
        with link.keep_alive(began.position.offset):
            report = self._load(self._spool)
        self._spool.unlink()
        if report.skipped:
            self._said(f"the snapshot has keys that are left out: {list_counts(report.skipped)}")
        for text in report.functions.reported:
            self._said(text)
        self.target.record_loaded(began.position)
        self._is_synchronised = True
        self._said(f"following from offset {began.position.offset}")
        self._heard_at = monotonic()
        if rest:
            self._apply(link, rest)

    def _receive_snapshot(self, link: Link, events: list[Event]) -> list[Event]:
        """Write the snapshot into the spool; return the events after it."""
        heard_at = monotonic()
        with self._spool.open("wb") as file:
            while True:
                for at, event in enumerate(events):
                    if isinstance(event, SnapshotEnd):
                        return events[at + 1 :]
                    assert isinstance(event, SnapshotData)
                    file.write(event.data)
                self._seen(Phase.RECEIVING)
                if events:
                    heard_at = monotonic()
                elif monotonic() - heard_at > SILENCE_S:
                    raise SourceNotReady("the source has stopped sending its snapshot")
                events = link.receive(ACK_S)


_ENDS = (b"EXEC", b"DISCARD")
_IDLE = frozenset((b"PING", b"REPLCONF", b"SELECT", b"MULTI", b"EXEC"))
"""Commands that a source sends without writes of its clients."""
_OFFSET = re.compile(rb"^master_repl_offset:([0-9]+)", re.MULTILINE)


@contextmanager
def _link_errors() -> Iterator[None]:
    """Raise SourceNotReady for a temporary failure to connect; a wrong password is not one."""
    import redis

    try:
        yield
    except (redis.AuthenticationError, redis.exceptions.AuthorizationError) as error:
        raise error_of(error) from None
    except (redis.ConnectionError, redis.TimeoutError) as error:
        if is_tls_refusal(error):
            raise error_of(error) from None
        raise SourceNotReady(f"no connection to the source: {error}") from None


class Lag:
    """Computes how many bytes and seconds the target is behind the source."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._source = 0

    def note(self, source_offset: int, now_s: float) -> None:
        """Record the current offset of the source."""
        if source_offset < self._source:  # the source has begun another history
            self._seen.clear()
        if source_offset > self._source or not self._seen:
            self._source = source_offset
            self._seen.append((now_s, source_offset))

    def behind(self, offset: int, now_s: float) -> tuple[int, float]:
        """Return the bytes behind, and the seconds that the first of them has waited."""
        while self._seen and self._seen[0][1] <= offset:
            self._seen.popleft()
        seconds = now_s - self._seen[0][0] if self._seen else 0.0
        return max(0, self._source - offset), seconds


def source_offset(ask: Callable[..., Any]) -> int:
    """Return the current replication offset of a source; ``ask`` sends it a command."""
    reply = ask("INFO", "replication")
    match = _OFFSET.search(reply if isinstance(reply, bytes) else b"")
    if match is None:
        raise SourceNotReady("the source does not report its replication offset")
    return int(match[1])
