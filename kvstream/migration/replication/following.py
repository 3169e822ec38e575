"""Following a source: its snapshot, then its commands, over as many links as it takes.

A lost link is made again, and the source asked to go on behind the last command that was applied;
where it cannot, a snapshot is taken anew. A target that is away is waited for, and asked how far it
has come: the source goes on from there. What is received while a snapshot is being loaded stays
with the source, which keeps it for its replicas (``client-output-buffer-limit replica``).
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kvstream.errors import SourceNotReady
from kvstream.migration.journal import Phase
from kvstream.migration.replication.connection import ACK_S, Link
from kvstream.migration.replication.protocol import (
    NOWHERE,
    Continued,
    Event,
    FullSync,
    Position,
    Received,
    SnapshotData,
    SnapshotEnd,
)
from kvstream.migration.replication.targets import State, Target
from kvstream.remote.connection import error_of, is_tls_refusal

if TYPE_CHECKING:
    import redis

RECEIVE_S = 0.2
"""Longest wait for commands: after it somebody may be told how far we are, or stop us."""
RETRY_S, RETRY_S_MAX = 0.1, 5.0
"""Pause before a lost link is made again: the first, and what it grows to while there is none."""
COMMIT_COMMANDS = 256
"""Commands from which on a commit is made: each further one would have to look through more."""
AWAY_TOLD_S = 30.0
"""Between two lines that say that the target is still away."""
SILENCE_S = 60.0
"""A source says something every ten seconds; one that is silent for so long is gone."""


class Loader(Protocol):
    """Loads the followed keys of a snapshot, an RDB file, into the target."""

    def __call__(self, snapshot: Path) -> int:
        """Return the database that the stream behind the snapshot begins in."""
        ...


class Follower:
    """Keeps one target in step with one source, until it is told to stop."""

    def __init__(
        self,
        connect: Callable[[], "redis.Redis"],
        target: Target,
        spool: Path,
        load: Loader,
        said: Callable[[str], None] = lambda text: None,
        seen: Callable[[Phase], None] = lambda phase: None,
    ) -> None:
        """``spool`` is the file that a snapshot is kept in until it is loaded.

        ``said`` is told what a user may want to know: links lost and made, snapshots. ``seen`` is
        told the phase when it begins, and again and again while it lasts.
        """
        self._connect = connect
        self.target = target
        self._spool = spool
        self._load = load
        self._said = said
        self._seen = seen
        self._level = Phase.FOLLOWING
        self._received = 0  # over the links before this one
        self._link: Link | None = None
        self._is_agreed = False
        """The source has said that it goes on from our position, or we have loaded its snapshot."""
        self._held: list[Received] = []
        """Commands of a unit that has not ended."""
        self._in_unit = False
        self._acknowledged_at = 0.0
        self._heard_at = 0.0
        self._pause_s = RETRY_S
        self.commands = self.writes = 0
        """Commands that have been applied since we began, and those of them that tell of data."""

    @property
    def offset(self) -> int:
        """How far the source has been followed, safely."""
        return self.target.journal.position.offset

    @property
    def is_following(self) -> bool:
        """Whether the target is on the source's own history, and the link stands."""
        return self._link is not None and self._is_agreed

    @property
    def received(self) -> int:
        """How many bytes have come since we began."""
        return self._received + (0 if self._link is None else self._link.received)

    def enter(self, phase: Phase) -> None:
        """Have what is done with a link that stands be another phase than following."""
        self._level = phase
        self._seen(phase)

    # --- the loop -------------------------------------------------------------------------------

    def follow(self, until: Callable[[], bool]) -> None:
        """Follow until ``until`` says so; it is asked several times a second.

        What a source refuses for good, and what the target cannot do, is raised; and, while the
        source is led over and stands still, that the target is away.
        """
        while not until():
            self._seen(self._level if self.is_following else Phase.CONNECTING)
            try:
                self.step(RECEIVE_S)
            except SourceNotReady as error:
                self._said(f"{error}; connecting again")
                self._disconnect()
                self._rest(until)
            except self.target.passing as error:
                self._disconnect()
                if self._level is Phase.LEADING or is_tls_refusal(error):
                    raise
                self._await_target(error, until)

    def _await_target(self, error: Exception, until: Callable[[], bool]) -> None:
        """Ask the target again and again how far it has come, until it answers."""
        told_at = began = time.monotonic()
        self._said(
            f"the target is away: {error}; waiting for it until it is back, or this is stopped, "
            f"and asking again every {RETRY_S_MAX:g} s at the most"
        )
        self._pause_s = RETRY_S
        while not until():
            self._seen(Phase.AWAITING)
            self._rest(until)
            try:
                self.target.recover()
            except self.target.passing as again:
                if is_tls_refusal(again):
                    raise
                now = time.monotonic()
                if now - told_at >= AWAY_TOLD_S:
                    told_at = now
                    self._said(f"the target has been away for {now - began:.0f} s: {again}")
            else:
                self._said(f"the target is back, at offset {self.offset}")
                self._pause_s = RETRY_S
                return

    def _rest(self, until: Callable[[], bool]) -> None:
        end = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, RETRY_S_MAX)
        while time.monotonic() < end and not until():
            time.sleep(min(self._pause_s, RECEIVE_S))

    def step(self, timeout_s: float) -> None:
        """Receive and apply once; SourceNotReady where there is no link any more."""
        link = self._link or self._open()
        events = link.receive(timeout_s)
        now = time.monotonic()
        if events:
            self._heard_at, self._pause_s = now, RETRY_S
            self._take(link, events)
        elif now - self._heard_at > SILENCE_S:
            raise SourceNotReady(f"the source has said nothing for {SILENCE_S:.0f} seconds")
        if self.is_following and now - self._acknowledged_at >= ACK_S:
            self._acknowledge(link)

    def _open(self) -> Link:
        journal = self.target.journal
        position = journal.position if journal.state is State.FOLLOWING else NOWHERE
        with _link_errors():
            self._link = link = Link(self._connect(), position)
        self._is_agreed = False
        self._held, self._in_unit = [], False
        self._heard_at = time.monotonic()
        return link

    def _disconnect(self) -> None:
        if self._link is not None:
            self._received += self._link.received
            self._link.close()
            self._link = None

    def close(self) -> None:
        """Let go of the source; what was followed stays, and can be gone on with."""
        self._disconnect()

    def _acknowledge(self, link: Link) -> None:
        link.acknowledge(self.offset)
        self._acknowledged_at = time.monotonic()

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Have the source hear of us while we are busy with something else."""
        if self._link is None:
            yield
            return
        with self._link.kept_alive(self.offset):
            yield

    # --- what comes -----------------------------------------------------------------------------

    def _take(self, link: Link, events: list[Event]) -> None:
        first = events[0]
        if isinstance(first, Continued):
            self._said(f"following from offset {first.position.offset}")
            self._note(first.position)
            self._is_agreed = True
            del events[0]
        elif isinstance(first, FullSync):
            self._synchronise(link, events)
            return
        self._apply(link, events)

    def _note(self, position: Position) -> None:
        """Note another name of the same history."""
        if position != self.target.journal.position:
            self.target.commit([], position)

    def _apply(self, link: Link, events: list[Event]) -> None:
        """Apply the units that have ended, some in a commit; what follows the last one waits."""
        asked = False
        whole = 0
        for event in events:
            assert isinstance(event, Received)
            word = event.argv[0].upper()
            self._held.append(event)
            self._in_unit = (self._in_unit or word == b"MULTI") and word not in _ENDS
            if not self._in_unit:
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
        """Apply the first of the commands that are held."""
        ready, self._held = self._held[:count], self._held[count:]
        self.target.commit(ready, Position(link.position.replid, ready[-1].end))
        self.commands += len(ready)
        self.writes += sum(each.argv[0].upper() not in _IDLE for each in ready)
        if time.monotonic() - self._acknowledged_at >= ACK_S:
            self._acknowledge(link)

    # --- a snapshot -----------------------------------------------------------------------------

    def _synchronise(self, link: Link, events: list[Event]) -> None:
        """Receive a snapshot into a file, load it, and go on with the stream behind it."""
        began = events.pop(0)
        assert isinstance(began, FullSync)
        self._said("the source sends a snapshot")
        self.target.begin()
        rest = self._receive_snapshot(link, events)
        link.acknowledge(began.position.offset)
        self._said(f"loading a snapshot of {self._spool.stat().st_size} bytes")
        self._seen(Phase.LOADING)
        with link.kept_alive(began.position.offset):
            db = self._load(self._spool)
        self._spool.unlink()
        self.target.loaded(began.position, db)
        self._is_agreed = True
        self._said(f"following from offset {began.position.offset}")
        self._heard_at = time.monotonic()
        if rest:
            self._apply(link, rest)

    def _receive_snapshot(self, link: Link, events: list[Event]) -> list[Event]:
        """Write the snapshot into the spool; return what came behind it."""
        heard_at = time.monotonic()
        with self._spool.open("wb") as file:
            while True:
                for at, event in enumerate(events):
                    if isinstance(event, SnapshotEnd):
                        return events[at + 1 :]
                    assert isinstance(event, SnapshotData)
                    file.write(event.data)
                self._seen(Phase.RECEIVING)
                if events:
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > SILENCE_S:
                    raise SourceNotReady("the source has stopped in the middle of its snapshot")
                events = link.receive(ACK_S)


_ENDS = (b"EXEC", b"DISCARD")
_IDLE = frozenset((b"PING", b"REPLCONF", b"SELECT", b"MULTI", b"EXEC"))
"""What a source says although nobody writes to it."""
_OFFSET = re.compile(rb"^master_repl_offset:([0-9]+)", re.MULTILINE)


@contextmanager
def _link_errors() -> Iterator[None]:
    """Tell failures to connect that pass from those that do not: a password, a certificate."""
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
    """How far behind a source is: in bytes of its stream, and in seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._source = 0

    def note(self, source_offset: int, now_s: float) -> None:
        """Note how far the source itself has come."""
        if source_offset > self._source or not self._seen:
            self._source = source_offset
            self._seen.append((now_s, source_offset))

    def behind(self, offset: int, now_s: float) -> tuple[int, float]:
        """Return the bytes, and for how many seconds the next of them has been waiting."""
        while self._seen and self._seen[0][1] <= offset:
            self._seen.popleft()
        seconds = now_s - self._seen[0][0] if self._seen else 0.0
        return max(0, self._source - offset), seconds


def source_offset(ask: Callable[..., Any]) -> int:
    """Return how far the history of a source has come; ``ask`` sends it a command."""
    told = ask("INFO", "replication")
    found = _OFFSET.search(told if isinstance(told, bytes) else b"")
    if found is None:
        raise SourceNotReady("the source does not say how far it has come")
    return int(found[1])
