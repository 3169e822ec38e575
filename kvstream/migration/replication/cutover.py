"""A source and the target that follows it, and the cut-over.

The cut-over pauses the source, copies what its commands do not carry, and compares both places.
Redis does not replicate seen and active times, deliveries by reads of pending entries, the order of
entries released by XNACK, and before 7.2 entries-read. These, and keys that could not be followed,
are copied while the source is paused. If the comparison finds a difference the source is unpaused
and followed further.

CLIENT PAUSE WRITE ends by itself after a few seconds and is renewed meanwhile: if this process is
killed, the source continues to serve.
"""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

from kvstream.errors import InvalidArgument, KVStreamError, RequestError, StoreLocked
from kvstream.layout.keys import qualified
from kvstream.migration.copy import CopyOptions, Outcome, copy_key, find_exclusion
from kvstream.migration.items import STREAM, DbKey, Item, Selection, Source
from kvstream.migration.journal import Behind, FollowerNote, Phase, RunningAlready, identity_of
from kvstream.migration.libraries import PlannedLibrary
from kvstream.migration.places import Place, PlaceKind
from kvstream.migration.replication.applying import EVERY_LOSS, load_snapshot
from kvstream.migration.replication.following import Follower, Lag, source_offset
from kvstream.migration.replication.targets import FollowingServer, FollowingStore, TargetHasKeys
from kvstream.migration.replication.targets import Target as FollowingTarget
from kvstream.migration.runner import check_losses, run
from kvstream.migration.server import Server
from kvstream.migration.server_source import INEXACT_MS, PagedStream, ServerSource
from kvstream.migration.server_target import ServerTarget
from kvstream.migration.store_place import PlannedStore, StoreTarget
from kvstream.migration.verification import Verification, VerifyOptions, verify
from kvstream.operations import keyspace
from kvstream.operations.images.load import restate
from kvstream.remote.connection import Connection
from kvstream.store import Store
from kvstream.types.clock import monotonic
from kvstream.types.images import ConsumerImage, GroupImage, PendingImage, PendingTable, StreamState
from kvstream.types.options import DATABASES, PAUSE_MIN_S

ACTIVE_TIMES_SINCE = (7, 2)
"""The first version of Redis with active times of consumers."""


@dataclass(slots=True)
class CopiedState:
    """What the cut-over has copied."""

    streams: int = 0
    """Streams whose groups, counters and idempotent IDs were copied."""
    keys: int = 0
    """Keys that were copied whole."""


class StoreCutoverTarget:
    """A store that has followed a source."""

    def __init__(self, server: Server, store: Store, selection: Selection) -> None:
        self._source = ServerSource(server)
        self._tells_active = server.about.version >= ACTIVE_TIMES_SINCE
        self._store = store
        self.place = StoreTarget(store)
        self._selection = selection
        self.existing: Source = self.place.existing

    def copy_state(self, recopy: set[DbKey]) -> CopiedState:
        """Copy the state of every stream, and the keys of ``recopy`` whole."""
        copied = CopiedState()
        left = set(recopy)
        for item in self._source.items(self._selection):
            name = item.db, item.key
            if find_exclusion(item, self.place) is not None:
                continue
            if name in left:
                left.discard(name)
                self._copy(item)
                copied.keys += 1
            elif item.kind == STREAM:
                copied.streams += self._restate(item)
        for db, key in left:
            self._store.engine.run(keyspace.delete, qualified(db, key))
        return copied

    def _copy(self, item: Item) -> None:
        self._store.engine.run(keyspace.delete, qualified(item.db, item.key))
        copy_key(item, self.place, CopyOptions(allowed=EVERY_LOSS))

    def _restate(self, item: Item) -> bool:
        ours = self.existing.item(item.db, item.key)
        if ours is None or ours.outline is None:
            return False  # the verification reports it
        content = item.content()
        if not isinstance(content, PagedStream):  # the state follows the nodes
            for _ in content.nodes():
                pass
        state, before = content.state(), ours.outline().state
        if state.groups or before.groups or state.idempotency is not None:
            self._merge(state, before)
            self._store.engine.run(restate, qualified(item.db, item.key), state)
            return True
        return False

    def _merge(self, state: StreamState, ours: StreamState) -> None:
        """Keep exact times of the target, which the source's commands carried."""
        known = {group.name: group for group in ours.groups}
        for group in state.groups:
            before = known.get(group.name)
            if before is not None:
                group.pending = _copy_times(group.pending, before.pending)
                if not self._tells_active:
                    group.consumers = list(_active(group, before))


class ServerCutoverTarget:
    """A server that has followed a source; each key that differs is copied whole."""

    def __init__(self, server: Server, target: Server, selection: Selection) -> None:
        self._source = ServerSource(server)
        self._served = target
        self.place = ServerTarget(target)
        self._selection = selection
        self.existing: Source = ServerSource(target)

    def copy_state(self, recopy: set[DbKey]) -> CopiedState:
        """Copy the keys that differ; delete those of ``recopy`` that the source lacks."""
        options = CopyOptions(replace=True, allowed=EVERY_LOSS)
        report = run(self._source, self.place, self._selection, options)
        for db, key in recopy:
            if self._source.item(db, key) is None:
                self._served.connection(db).do("DEL", key)
        return CopiedState(keys=report.outcomes[Outcome.REPLACED] + report.outcomes[Outcome.COPIED])


def _active(group: GroupImage, before: GroupImage) -> Iterator[ConsumerImage]:
    known = {consumer.name: consumer.active_ms for consumer in before.consumers}
    for consumer in group.consumers:
        yield consumer._replace(active_ms=known.get(consumer.name, consumer.active_ms))


def _copy_times(pending: PendingTable, before: PendingTable) -> PendingTable:
    """Return pending entries, with the times of ``before`` that are within INEXACT_MS."""
    merged = PendingTable()
    known = iter(before)
    old: PendingImage | None = next(known, None)
    for each in pending:
        while old is not None and old.id < each.id:
            old = next(known, None)
        is_near = (
            old is not None and old.id == each.id and abs(old.time_ms - each.time_ms) <= INEXACT_MS
        )
        time_ms = old.time_ms if is_near and old is not None else each.time_ms
        merged.add(each.id, each.owner, time_ms, each.deliveries)
    return merged


PAUSE_MS = PAUSE_MIN_S * 1000
"""Length of a pause: the source stays paused for so long after this process dies."""
PROLONG_S = 1.5
"""Pause between two renewals."""


class PauseRefused(RequestError):
    """The source has no CLIENT PAUSE WRITE, or does not allow it to this user."""


class Paused:
    """A context manager that blocks the writes of all clients of a source."""

    def __init__(self, connection: Connection) -> None:
        """Nothing else may use the connection meanwhile."""
        self._connection = connection
        self._over = threading.Event()
        self._error: KVStreamError | None = None
        self._thread = threading.Thread(target=self._prolong, daemon=True)

    def __enter__(self) -> Self:
        try:
            self._pause(PAUSE_MS)
        except RequestError as error:
            raise PauseRefused(f"the source cannot be paused: {error}") from None
        self._thread.start()
        return self

    def _pause(self, ms: int) -> None:
        self._connection.do("CLIENT", "PAUSE", ms, "WRITE")

    def _prolong(self) -> None:
        while not self._over.wait(PROLONG_S):
            try:
                self._pause(PAUSE_MS)
            except KVStreamError as error:
                self._error = error
                return

    def check(self) -> None:
        """Raise the error that has ended the pause, if any."""
        if self._error is not None:
            raise self._error

    def leave(self, seconds: float) -> None:
        """Stop renewing the pause: it ends ``seconds`` from now, with no gap before."""
        self._stop()
        self.check()
        self._pause(max(1, round(seconds * 1000)))

    def _stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def end(self) -> None:
        """Unpause the source."""
        self._stop()
        with suppress(KVStreamError):  # the pause ends by itself soon
            self._connection.do("CLIENT", "UNPAUSE")

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.end()
        else:
            self._stop()


NEAR_BYTES = 64 << 10
"""Most bytes left to apply when the source is paused."""
QUIET_S = 3.0
"""Seconds without writes that a source must have if it cannot be paused."""


class SourceWritten(RequestError):
    """A client wrote to the source during the cut-over."""


@dataclass(frozen=True, slots=True)
class CutOver:
    """The result of a cut-over."""

    is_paused: bool
    """Whether the source was paused, and still is for the time asked for."""
    stood_s: float
    """Seconds without writes before the target was ready."""
    copied: CopiedState
    """What was copied at the end, since no command tells it."""
    verification: Verification
    """The comparison of both places."""

    @property
    def is_done(self) -> bool:
        """Whether the target equals the source: programs may go over to it."""
        return self.verification.equal


Said = Callable[[str], None]
"""Gets messages for the user."""
End = Store | Server
"""A target, open."""
CutoverTarget = StoreCutoverTarget | ServerCutoverTarget


class Pair:
    """A source that is followed, and its target."""

    def __init__(
        self,
        server: Server,
        follower: Follower,
        target: CutoverTarget,
        selection: Selection,
        said: Said,
        note: FollowerNote,
        allowed: frozenset[str] = frozenset(),
    ) -> None:
        # ``server`` is the source, over other connections than the follower's; ``allowed`` are the
        # losses that do not stop it.
        self._server = server
        self._follower = follower
        self._target = target
        self._selection = selection
        self._said = said
        self._note = note
        self._options = CopyOptions(allowed=allowed)
        self._lag = Lag()
        self.is_taken_over = False
        """Whether ``follow`` has ended because a cut-over in another process takes over."""

    @property
    def offset(self) -> int:
        """The offset in the source's history that the target has reached."""
        return self._follower.offset

    @property
    def commands(self) -> int:
        """Commands applied."""
        return self._follower.commands

    @property
    def received(self) -> int:
        """Bytes received from the source."""
        return self._follower.received

    def lag(self) -> Behind | None:
        """Return the bytes and seconds that the target is behind; None if unknown."""
        if not self._follower.is_following:
            return None
        ours = self._follower.offset
        try:
            theirs = self._offset()
        except KVStreamError:
            return None
        if ours > theirs:  # a source that has started again, whose link is not yet known as lost
            return None
        now_s = monotonic()
        self._lag.note(theirs, now_s)
        return self._lag.behind(self._follower.offset, now_s)

    def follow(self, until: Callable[[], bool]) -> None:
        """Follow until ``until`` is true, or a cut-over in another process takes over.

        ``until`` is called several times a second. Raises LossRefused, before anything is written,
        for what cannot be followed.
        """

        def is_over() -> bool:
            self.is_taken_over = self._note.is_taken_over()
            return until() or self.is_taken_over

        self._check_losses()
        self._follower.follow(is_over)

    def _check_losses(self, *, keys_only: bool = False) -> list[PlannedLibrary]:
        """Raise LossRefused for what the source has now, and the target cannot hold."""
        source, place = ServerSource(self._server), self._target.place
        return check_losses(source, place, self._selection, self._options, keys_only=keys_only)

    # --- the cut-over ---------------------------------------------------------------------------

    def cut_over(
        self, leave_paused_s: float, watch: Callable[[], object] = lambda: None
    ) -> CutOver:
        """Follow until the target has caught up, then switch over.

        The source stays paused for ``leave_paused_s``. ``watch`` is called several times a second
        until it is paused. If both differ, or after an error, the source is unpaused. Raises
        LossRefused, before the pause, for what the target cannot hold.
        """

        def is_near() -> bool:
            watch()
            return self._offset() - self.offset <= NEAR_BYTES

        self._check_losses()
        self._follow_until(is_near)
        self._check_losses()
        paused = Paused(self._server.connection(0))
        try:
            with paused, self._switching():
                done = self._copy_and_compare(is_paused=True)
                if done.is_done:
                    paused.leave(leave_paused_s)
                else:
                    paused.end()
        except PauseRefused as error:
            self._said(f"{error}; stop all clients that write to it: waiting until it is silent")
            self._await_silence()
            with self._switching():
                done = self._copy_and_compare(is_paused=False)
        if done.is_done:
            self._follower.target.finish()
            self._follower.enter(Phase.DONE)
        return done

    @contextmanager
    def _switching(self) -> Iterator[None]:
        """Report the phase of the cut-over, and of following after it."""
        self._follower.enter(Phase.SWITCHING)
        try:
            yield
        finally:
            self._follower.enter(Phase.FOLLOWING)

    def _copy_and_compare(self, is_paused: bool) -> CutOver:
        began = monotonic()
        self._follow_to(self._offset())
        written = self._follower.writes
        journal = self._follower.target.journal
        self._said("copying the state of groups")
        with self._follower.keep_alive():
            copied = self._target.copy_state(journal.recopy)
            self._said("comparing source and target")
            for library in self._check_losses(keys_only=True):
                if library.loss is not None:
                    self._said(f"left out: functions: {library.loss.text}")
            options = VerifyOptions(
                self._selection, tolerance_ms=INEXACT_MS, allowed=self._target.place
            )
            verification = verify(ServerSource(self._server), self._target.existing, options)
        self._follow_to(self._offset())
        if self._follower.writes != written:
            raise SourceWritten("the source was written to during the cut-over: nothing is final")
        return CutOver(is_paused, monotonic() - began, copied, verification)

    def _offset(self) -> int:
        """Return the offset in its history that the source has reached."""
        return source_offset(self._server.connection(0).ask)

    def _follow_to(self, offset: int) -> None:
        self._follow_until(lambda: self._follower.offset >= offset)

    def _follow_until(self, done: Callable[[], bool]) -> None:
        self._follower.follow(lambda: self._follower.is_following and done())

    def _await_silence(self) -> None:
        """Follow until the source has had no writes for QUIET_S."""
        seen, since = self._follower.writes, monotonic()

        def is_silent() -> bool:
            nonlocal seen, since
            if self._follower.writes != seen or not self._follower.is_following:
                seen, since = self._follower.writes, monotonic()
            return monotonic() - since >= QUIET_S

        self._follower.follow(is_silent)


def check_followed(source: Place, target: Place) -> None:
    """Raise InvalidArgument unless a server is followed into a store or a server."""
    if source.kind is not PlaceKind.SERVER:
        raise InvalidArgument("only a live server can be followed: redis://...")
    if target.kind not in (PlaceKind.STORE, PlaceKind.SERVER):
        raise InvalidArgument("a source is followed into a store or a kvstream server")


def open_end(place: Place, databases: int | None = None) -> End:
    """Open a target that will follow a source; the caller closes it.

    ``databases`` is the number of databases of a store.
    """
    if place.kind is PlaceKind.SERVER:
        return Server(place)
    try:
        return Store.open(place.path, databases=databases or DATABASES)
    except StoreLocked:
        raise RunningAlready(
            f"the target {place} is in use. If a --follow has it, stop that first, or give the "
            "same URL of the source, --match, --db and --state as it has"
        ) from None


@dataclass(frozen=True, slots=True)
class Following:
    """A source that is to be followed, and how."""

    server: Server
    target: Place
    selection: Selection
    allowed: frozenset[str] = frozenset()
    databases: int | None = None
    """Databases of a store."""

    def check_losses(self) -> None:
        """Raise LossRefused for what the source has now, and the target cannot hold.

        A store is not opened, as its follower has it open: what depends on the libraries that are
        in it is found later.
        """
        place: PlannedStore | ServerTarget
        if self.target.kind is PlaceKind.SERVER:
            place = ServerTarget(Server(self.target))
        else:
            place = PlannedStore(None, self.databases or DATABASES)
        options = CopyOptions(allowed=self.allowed)
        with closing(place):
            check_losses(ServerSource(self.server), place, self.selection, options)


@contextmanager
def open_note(
    following: Following, state: Path, said: Said, warned: Said, *, cuts_over: bool
) -> Iterator[FollowerNote]:
    """Return a context manager with the locked status file of a pair, in the folder ``state``.

    A cut-over ends a running follower of the pair first, which is said, unless its losses are
    refused. ``warned`` gets a message if the cut-over fails after that. Call this before the target
    is opened, since the follower has it open.
    """
    places = str(following.server.place), str(following.target)
    with FollowerNote(state, identity_of(*places, following.selection)) as note:
        if cuts_over:
            note.cut_over(said, following.check_losses)
        else:
            note.follow()
        try:
            yield note
        finally:
            if note.has_ended_follower and note.status.phase is not Phase.DONE:
                warned("the --follow has ended; start it again")


@contextmanager
def _explain_keys(note: FollowerNote) -> Iterator[None]:
    """Add to the error of a target that has keys that it was led over to before, if it was."""
    try:
        yield
    except TargetHasKeys:
        last = note.last()
        if last is None or last.phase is not Phase.DONE:
            raise
        at = datetime.fromtimestamp(last.since_ms / 1000, UTC).isoformat(timespec="seconds")
        raise TargetHasKeys(
            f"{last.source} was led over to {last.target} already, at {at}: "
            "use the target, or delete its keys to follow again"
        ) from None


@contextmanager
def open_pair(
    server: Server,
    place: Place,
    end: End,
    selection: Selection,
    note: FollowerNote,
    said: Said,
    allowed: frozenset[str] = frozenset(),
) -> Iterator[Pair]:
    """Return a context manager that connects an open target to a server.

    ``end`` is the open target at ``place``; ``note`` its status file; ``allowed`` are the losses
    that do not stop it.
    """
    source = str(server.place)
    with ExitStack() as stack:
        stack.enter_context(_explain_keys(note))
        if isinstance(end, Store):
            following: FollowingTarget = FollowingStore(end.engine, source, selection)
            target: CutoverTarget = StoreCutoverTarget(server, end, selection)
            load = partial(load_snapshot, end, selection)
            spool = place.path.with_name(place.path.name + ".snapshot.rdb")
        else:
            if end.about.name != "kvstream":
                raise RequestError(
                    f"{end.about.shown} cannot follow: use a store or a kvstream server as target"
                )
            following = FollowingServer(end, source, selection)
            stack.callback(following.close)
            target = ServerCutoverTarget(server, end, selection)
            load = partial(load_snapshot, ServerTarget(end), selection)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvstream-follow-"))
            spool = Path(folder) / "snapshot.rdb"

        note.begin(source, str(place))
        for remark in target.place.remarks:
            said(f"note: {remark}")

        def note_phase(phase: Phase) -> None:
            if phase is not note.status.phase or note.is_due:
                behind = pair.lag() if phase is Phase.FOLLOWING else None
                note.note(phase, pair.offset, pair.commands, pair.received, behind)

        def note_last() -> None:
            status = note.status
            note.note(status.phase, pair.offset, pair.commands, pair.received, status.behind)

        client = server.connection(0).client
        follower = Follower(lambda: client, following, spool, load, said, note_phase)
        stack.callback(follower.close)
        stack.callback(note_last)
        pair = Pair(server, follower, target, selection, said, note, allowed)
        yield pair
