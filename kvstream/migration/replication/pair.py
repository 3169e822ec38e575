"""A source and the target that follows it: opening both, following, and the cut-over."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kvstream.errors import InvalidArgument, KVStreamError, RequestError
from kvstream.migration.items import Selection
from kvstream.migration.journal import Behind, FollowerNote, Phase, identity_of
from kvstream.migration.places import Place, PlaceKind
from kvstream.migration.replication.applying import SnapshotLoader
from kvstream.migration.replication.cutover import (
    CutOver,
    CutoverTarget,
    ServerCutoverTarget,
    StoreCutoverTarget,
    Switch,
)
from kvstream.migration.replication.following import Follower, Lag, source_offset
from kvstream.migration.replication.targets import FollowingServer, FollowingStore
from kvstream.migration.replication.targets import Target as Following
from kvstream.migration.server import Server
from kvstream.migration.server_target import ServerTarget
from kvstream.store import Store

Said = Callable[[str], None]
End = Store | Server
"""A target, open."""


class Pair:
    """A source that is followed, and its target."""

    def __init__(self, server: Server, follower: Follower, switch: Switch) -> None:
        self._server = server
        self._follower = follower
        self._switch = switch
        self._lag = Lag()

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
        try:
            theirs = source_offset(self._server.connection(0).ask)
        except KVStreamError:
            return None
        now_s = time.monotonic()
        self._lag.note(theirs, now_s)
        return self._lag.behind(self._follower.offset, now_s)

    def follow(self, until: Callable[[], bool]) -> None:
        """Follow until ``until`` is true; it is called several times a second."""
        self._follower.follow(until)

    def cut_over(
        self, leave_paused_s: float, watch: Callable[[], object] = lambda: None
    ) -> CutOver:
        """Follow until the target has caught up, then switch over."""
        return self._switch.run(leave_paused_s, watch)


def check_followed(source: Place, target: Place) -> None:
    """Raise InvalidArgument unless a server is followed into a store or a server."""
    if source.kind is not PlaceKind.SERVER:
        raise InvalidArgument("only a live server can be followed: redis://...")
    if target.kind not in (PlaceKind.STORE, PlaceKind.SERVER):
        raise InvalidArgument("a source is followed into a store or a kvstream server")


def open_end(place: Place) -> End:
    """Open a target that will follow a source; the caller closes it."""
    return Server(place) if place.kind is PlaceKind.SERVER else Store.open(place.path)


@contextmanager
def open_pair(
    server: Server, place: Place, end: End, selection: Selection, state: Path, said: Said
) -> Iterator[Pair]:
    """Return a context manager that connects an open target to a server.

    ``end`` is the open target at ``place``; ``state`` the folder of the status file.
    """
    source = str(server.place)
    identity = identity_of(source, str(place), selection)
    with ExitStack() as stack:
        note = stack.enter_context(FollowerNote(state, identity, source, str(place)))
        if isinstance(end, Store):
            following: Following = FollowingStore(end.engine, source, selection)
            target: CutoverTarget = StoreCutoverTarget(server, end, selection)
            load = SnapshotLoader(end, selection)
            spool = place.path.with_name(place.path.name + ".snapshot.rdb")
        else:
            if end.about.name != "kvstream":
                raise RequestError(
                    f"{end.about.shown} cannot follow: use a store or a kvstream server as target"
                )
            following = FollowingServer(end, source, selection)
            target = ServerCutoverTarget(server, end, selection)
            load = SnapshotLoader(ServerTarget(end), selection)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvstream-follow-"))
            spool = Path(folder) / "snapshot.rdb"

        def seen(phase: Phase) -> None:
            if phase is not note.status.phase or note.is_due:
                behind = pair.lag() if phase is Phase.FOLLOWING else None
                note.note(phase, pair.offset, pair.commands, pair.received, behind)

        def note_last() -> None:
            status = note.status
            note.note(status.phase, pair.offset, pair.commands, pair.received, status.behind)

        client = server.connection(0).client
        follower = Follower(lambda: client, following, spool, load, said, seen)
        stack.callback(follower.close)
        stack.callback(note_last)
        switch = Switch(follower, server, target, selection, said)
        pair = Pair(server, follower, switch)
        yield pair
