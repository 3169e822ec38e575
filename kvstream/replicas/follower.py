"""The thread of a replica: connects to the primary, takes a copy or its log over, acknowledges.

It follows until it is stopped: a lost link is made anew, from the position of the last commit. If
the primary's history is another one, or its log is not there any more, it takes a copy.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from kvstream.engine.engine import Engine
from kvstream.engine.following import Source
from kvstream.errors import (
    Corruption,
    DataError,
    KVStreamError,
    LostWrites,
    ProtocolError,
    ReplicationRefused,
    SourceNotReady,
)
from kvstream.layout.history import History, Place
from kvstream.logs import NOTICE, Throttle
from kvstream.replicas import protocol
from kvstream.replicas.applying import Applier
from kvstream.replicas.connection import Connection, LinkOptions
from kvstream.replicas.copying import Incoming
from kvstream.replicas.protocol import Continue, Copy, Frame
from kvstream.replicas.sending import locate
from kvstream.storage import replacement
from kvstream.storage.batch import Batch, Family
from kvstream.storage.changes import read_history
from kvstream.storage.database import Database
from kvstream.storage.durability import WAITING
from kvstream.types.clock import monotonic

_log = logging.getLogger(__name__)

RETRY_S = 0.1
"""Pause before a lost link is made anew."""
REFUSED_S = 1.0
"""The same after a refusal, or an error in what was received."""


class Link(StrEnum):
    """The state of the link, in the words of ROLE."""

    CONNECT = "connect"
    CONNECTING = "connecting"
    SYNC = "sync"
    CONNECTED = "connected"


class Follower(threading.Thread):
    """Follows one primary, from ``start`` until ``stop``."""

    def __init__(
        self,
        engine: Engine,
        source: Source,
        options: Callable[[], LinkOptions],
        changed: Callable[[], None] = lambda: None,
        hands_over: bool = False,
    ) -> None:
        """``options`` returns the present ones; ``changed`` is called after changes of the link.

        With ``hands_over`` the source is a replica of this store, and becomes the primary first.
        """
        super().__init__(name="kvstream-follower", daemon=True)
        self.source = source
        self.link = Link.CONNECT
        self.error = ""
        """Why the last link ended."""
        self.last_io = self.down_since = self.up_since = monotonic()
        self.bytes_left = self.bytes_total = 0
        """Bytes of the copy that are still to come, and of all that it lacks."""
        self.copies = 0
        """How many copies were taken."""
        self.primary_lsn = 0
        """The primary's last row, as its last heartbeat said."""
        self.confirmed_lsn = 0
        """The last row that clients know to be on replicas, as it said, too."""
        self.hands_over = hands_over
        """The source was not yet asked to become the primary, or has not said that it is."""
        self.is_asked = False
        """It was asked, and has not answered: nobody knows whether it is the primary."""
        self.refusal = ""
        """Why it does not become the primary."""
        self._engine, self._options, self._changed = engine, options, changed
        self._stop_event = threading.Event()
        self._connection: Connection | None = None
        self._needs_copy = False
        self._echo = 0
        self._undurable: deque[tuple[int, int]] = deque()
        """Sequence numbers of commits, and their lsn, that are not known to be durable."""
        self._durable = 0
        self._failures = Throttle()
        history = self._read_history()
        self.place: Place | None = None if history is None else history.place(0)
        """The position of the last commit; None: it has no data of the primary yet."""

    def _read_history(self) -> History | None:
        """Return the history with which the store begins to follow."""
        history = read_history(self._engine.database)
        return None if history is None else history.as_replica(self._engine.database.sequence)

    # --- the life of the thread -----------------------------------------------------------------

    def stop(self) -> None:
        """Apply nothing more, from now on, and end soon; any thread may call it."""
        self._stop_event.set()
        self.end_link()

    def end_link(self) -> bool:
        """End the present link; return whether there was one. Any thread may call it."""
        connection = self._connection
        if connection is not None:
            connection.shut()
        return connection is not None

    def is_current(self) -> bool:
        """Return whether what arrives is to be applied."""
        return not self._stop_event.is_set()

    def run(self) -> None:
        """Follow until it is stopped."""
        while self.is_current():
            try:
                self._follow_once()
            except (LostWrites, Corruption) as error:
                self._needs_copy = True
                self._note(error)
            except (OSError, SourceNotReady) as error:
                self._note(error, RETRY_S)
            except KVStreamError as error:
                self._note(error)
            except Exception as error:  # a defect: it is tried again, and seen in the log
                self._note(error)
                _log.exception("the replica has failed inside")
            finally:
                self._disconnect()

    def _note(self, error: Exception, pause_s: float = REFUSED_S) -> None:
        """Note why a link has ended, log it once, and wait before the next one."""
        before, self.error = self.error, str(error) or type(error).__name__
        if self.is_current() and self.error != before:
            text = "the link to the primary %s:%d has ended: %s"
            self._failures.log(_log, logging.WARNING, text, *self.source, self.error)
        self._stop_event.wait(pause_s)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self.link is Link.CONNECTED or self.link is Link.SYNC:
            self.down_since = monotonic()
        self._set(Link.CONNECT)

    def _set(self, link: Link) -> None:
        if link is not self.link:
            self.link = link
            if link is Link.CONNECTED:
                self.up_since = monotonic()
            self._changed()

    # --- one link -------------------------------------------------------------------------------

    def _follow_once(self) -> None:
        options = self._options()
        self._set(Link.CONNECTING)
        self._echo = 0  # another primary has another clock
        self._connection = connection = Connection(self.source, options)
        if not self.is_current():  # it was stopped before it had the socket
            raise SourceNotReady("it was stopped")
        connection.introduce()
        place = self.place
        if place is None or self._needs_copy:
            place = protocol.NO_PLACE
        reply = self._ask_for_rows(connection, place)
        self._set(Link.SYNC)
        if isinstance(reply, Copy):
            self._take_copy(reply)
        else:
            self._apply_log(reply)

    def _ask_for_rows(self, connection: Connection, place: Place) -> Continue | Copy:
        self.is_asked = self.is_asked or self.hands_over
        connection.send(protocol.encode_sync(place, self.hands_over))
        line = connection.line()
        self.is_asked = False
        try:
            reply = protocol.decode_reply(line)
        except ReplicationRefused as error:
            if self.hands_over:
                self.refusal = str(error)
                self._changed()
            raise
        self.hands_over = False
        return reply

    def _send(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.send(data)

    def _frames(self) -> Iterator[Frame]:
        """Yield the next whole frames; acknowledge behind them if there was a heartbeat."""
        connection = self._connection
        assert connection is not None
        connection.receive()
        self.last_io = connection.last_io
        has_beaten = False
        for frame in connection.reader.frames():
            if frame.kind == protocol.BEAT:
                self._echo, self.primary_lsn = frame.a, frame.b
                self.confirmed_lsn = protocol.decode_confirmed(frame)
                has_beaten = True
            else:
                yield frame
        if has_beaten:
            self.acknowledge()

    def acknowledge(self) -> None:
        """Say what is committed, what is durable, and echo the primary's clock.

        With ``always`` all that is committed is made durable first, as for any other client.
        """
        committer = self._engine.committer
        durable = committer.sync() if committer.level in WAITING else committer.flushed_sequence
        while self._undurable and self._undurable[0][0] <= durable:
            self._durable = self._undurable.popleft()[1]
        lsn = 0 if self.place is None else self.place.lsn
        self._send(protocol.encode_request("REPLCONF", "ACK", lsn, self._durable, self._echo))

    # --- the log --------------------------------------------------------------------------------

    def _apply_log(self, begin: Continue) -> None:
        applier = self._applier(begin)
        self.error = ""
        self._undurable.clear()
        self._durable = 0
        self._note_commit(applier)
        _log.log(NOTICE, "follows %s:%d from lsn %d on", *self.source, begin.place.lsn)
        self._set(Link.CONNECTED)
        self.acknowledge()
        while self.is_current():
            for frame in self._frames():
                if frame.kind != protocol.LOG:
                    raise ProtocolError(f"a frame of kind {frame.kind} in the log")
                applier.feed(frame.a, frame.b, frame.payload)

    def _applier(self, begin: Continue) -> Applier:
        """Return what takes over the log from the position of a reply."""
        engine = self._engine
        known = {family.name.lower(): family for family in Family}
        try:
            families = {number: known[name] for number, name in begin.families.items()}
        except KeyError as error:
            raise ReplicationRefused(f"the primary has an unknown column family {error}") from None
        history = self._read_history()
        if history is None or len(families) < len(known):
            raise ProtocolError("the primary goes on from a position that the replica has not")
        if history.lsn < begin.place.lsn:  # if it is above, some rows come again
            raise ProtocolError(f"the primary goes on from lsn {begin.place.lsn}")
        database = engine.database
        return Applier(database, history, begin.place, begin.sequence, families, self._write)

    def _write(self, batch: Batch, history: History) -> None:
        if not self._engine.following.apply(batch, self.is_current):
            raise SourceNotReady("it was stopped")
        self.place = Place(history.epoch, history.branch, history.lsn)
        if len(self._undurable) < _UNDURABLE_MAX:
            self._undurable.append((self._engine.database.sequence, history.lsn))

    def _note_commit(self, applier: Applier) -> None:
        self._undurable.append((self._engine.database.sequence, applier.lsn))

    # --- a copy ---------------------------------------------------------------------------------

    def _take_copy(self, copy: Copy) -> None:
        """Receive the files that are lacking, and go on with them as the store."""
        _log.log(NOTICE, "takes a copy of %s:%d", *self.source)
        incoming: Incoming | None = None
        try:
            while True:
                for frame in self._frames():
                    if frame.kind == protocol.FILES and incoming is None:
                        wanted = protocol.decode_files(frame.payload)
                        incoming = Incoming(self._path, wanted)
                        self.bytes_total = self.bytes_left = incoming.bytes_left
                        self._send(protocol.encode_request("REPLCONF", "NEED", *incoming.needed))
                    elif frame.kind == protocol.FILE and incoming is not None:
                        incoming.write(frame.a, frame.b, frame.payload)
                        self.bytes_left = incoming.bytes_left
                    elif frame.kind == protocol.DONE and incoming is not None:
                        self._install(incoming, copy)
                        return
                    else:
                        raise ProtocolError(f"a frame of kind {frame.kind} in a copy")
        finally:
            self.bytes_left = 0
            if incoming is not None:
                incoming.close()

    @property
    def _path(self) -> Path:
        return self._engine.database.own_path

    def _install(self, incoming: Incoming, copy: Copy) -> None:
        folder = incoming.complete()
        _try_to_open(folder, self._engine)
        kept_from, note = self._diverged(copy)
        engine = self._engine

        def prepare() -> None:
            replacement.prepare(self._path, kept_from, note)

        if not engine.following.replace(prepare, self.is_current):
            raise SourceNotReady("it was stopped")
        history = self._read_history()
        assert history is not None
        self.place, self._needs_copy = history.place(0), False
        self.copies += 1
        _log.log(NOTICE, "has the copy of %s:%d, up to lsn %d", *self.source, self.place.lsn)

    def _diverged(self, copy: Copy) -> tuple[int | None, dict[str, object]]:
        """Return the first log with rows that the primary lacks; None if there are none."""
        history, own = read_history(self._engine.database), self._read_history()
        if history is None or own is None or self._needs_copy:
            return None, {}
        place, fork = own.place(0), copy.fork
        if fork is not None and place.lsn <= fork:
            return None, {}
        note: dict[str, object] = {
            "epoch": place.epoch,
            "branch": place.branch.hex(),
            "lsn": place.lsn,
            "fork": fork,
            "sequence": None,
        }
        found = None
        if fork is not None and history.is_followed and fork >= history.base:
            note["sequence"] = sequence = history.sequence_of(fork)
            found = locate(self._path, sequence, self._engine.database.sequence)
        self._engine.committer.sync()
        _log.warning(
            "this store has rows that its primary has not, behind lsn %s: its logs are kept", fork
        )
        return (0 if found is None else found[0]), note


_UNDURABLE_MAX = 100_000


def _try_to_open(folder: Path, engine: Engine) -> None:
    """Open a copy for reading; raise an error, and remove it, if that is not possible."""
    options = replace(engine.options, read_only=True, create=False, following=False)
    try:
        Database.open(folder, options).close()
    except DataError:
        replacement.discard(folder.parent)
        raise
