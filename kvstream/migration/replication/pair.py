"""A source and the target that follows it, from open to cut-over, as programs start them."""

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
    Arrival,
    CutOver,
    ServerArrival,
    StoreArrival,
    Switch,
)
from kvstream.migration.replication.following import Follower, Lag, source_offset
from kvstream.migration.replication.targets import FollowingServer, FollowingStore
from kvstream.migration.replication.targets import Target as Following
from kvstream.migration.server_source import Server
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
        """How far the source has been followed."""
        return self._follower.offset

    @property
    def commands(self) -> int:
        """How many commands have been applied."""
        return self._follower.commands

    @property
    def received(self) -> int:
        """How many bytes have come from the source."""
        return self._follower.received

    def lag(self) -> Behind | None:
        """Ask how many bytes and seconds the target is behind; None while nobody can tell."""
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
        """Keep the target in step until told otherwise; it is asked several times a second."""
        self._follower.follow(until)

    def cut_over(
        self, leave_paused_s: float, watch: Callable[[], object] = lambda: None
    ) -> CutOver:
        """Follow until the target is level, and lead over."""
        return self._switch.run(leave_paused_s, watch)


def check_followed(source: Place, target: Place) -> None:
    """Refuse places of which the one cannot be followed, or not into the other."""
    if source.kind is not PlaceKind.SERVER:
        raise InvalidArgument("a source that is followed is a live server: redis://...")
    if target.kind not in (PlaceKind.STORE, PlaceKind.SERVER):
        raise InvalidArgument("a source is followed into a store, or into a kvstream server")


def open_end(place: Place) -> End:
    """Open a target that is to follow a source; whoever opens it closes it."""
    return Server(place) if place.kind is PlaceKind.SERVER else Store.open(place.path)


@contextmanager
def open_pair(
    server: Server, place: Place, end: End, selection: Selection, state: Path, said: Said
) -> Iterator[Pair]:
    """Have a target follow a server, and let go of both at the end: it can be gone on with.

    ``end`` is the target at ``place``, open; ``state`` the folder in which is told how far it is.
    """
    source = str(server.place)
    identity = identity_of(source, str(place), selection)
    with ExitStack() as stack:
        note = stack.enter_context(FollowerNote(state, identity, source, str(place)))
        if isinstance(end, Store):
            following: Following = FollowingStore(end.engine, source, selection)
            arrival: Arrival = StoreArrival(server, end, selection)
            load = SnapshotLoader(end, selection)
            spool = place.path.with_name(place.path.name + ".snapshot.rdb")
        else:
            if end.about.name != "kvstream":
                raise RequestError(
                    f"{end.about.shown} cannot follow: the target is a kvstream server"
                )
            following = FollowingServer(end, source, selection)
            arrival = ServerArrival(server, end, selection)
            load = SnapshotLoader(ServerTarget(end), selection)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvstream-follow-"))
            spool = Path(folder) / "snapshot.rdb"

        def seen(phase: Phase) -> None:
            if phase is not note.told.phase or note.is_due:
                behind = pair.lag() if phase is Phase.FOLLOWING else None
                note.note(phase, pair.offset, pair.commands, pair.received, behind)

        def note_last() -> None:
            told = note.told
            note.note(told.phase, pair.offset, pair.commands, pair.received, told.behind)

        follower = Follower(lambda: server.client(0), following, spool, load, said, seen)
        stack.callback(follower.close)
        stack.callback(note_last)
        switch = Switch(follower, server, arrival, selection, said)
        pair = Pair(server, follower, switch)
        yield pair
