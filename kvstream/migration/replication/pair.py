"""A source and the target that follows it, from open to cut-over, as programs start them."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kvstream.errors import KVStreamError, RequestError
from kvstream.migration.items import Selection
from kvstream.migration.places import Place, PlaceKind
from kvstream.migration.replication.cutover import Arrival, CutOver, Switch
from kvstream.migration.replication.following import Follower, Lag, source_offset
from kvstream.migration.replication.loading import SnapshotLoader
from kvstream.migration.replication.served import FollowingServer
from kvstream.migration.replication.settling import ServerArrival, StoreArrival
from kvstream.migration.replication.targets import FollowingStore
from kvstream.migration.server import Server
from kvstream.migration.server_target import ServerTarget
from kvstream.store import Store

Said = Callable[[str], None]


class Pair:
    """A source that is followed, and its target."""

    def __init__(
        self, server: Server, selection: Selection, follower: Follower, arrival: Arrival, said: Said
    ) -> None:
        self._server = server
        self._follower = follower
        self._lag = Lag()
        self._switch = Switch(follower, server, arrival, selection, said)

    @property
    def offset(self) -> int:
        """How far the source has been followed."""
        return self._follower.offset

    @property
    def commands(self) -> int:
        """How many commands have been applied."""
        return self._follower.commands

    def lag(self) -> tuple[int, float] | None:
        """Return how many bytes and seconds the target is behind; None while nobody can tell."""
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
        """Keep the target in step until told otherwise."""
        self._follower.follow(until)

    def cut_over(self, leave_paused_s: float, watch: Callable[[], bool]) -> CutOver:
        """Follow until the target is level, and lead over."""
        return self._switch.run(leave_paused_s, watch)


@contextmanager
def open_pair(server: Server, target: Place, selection: Selection, said: Said) -> Iterator[Pair]:
    """Open a target that is to follow a server, let go of it at the end: it can be gone on with."""
    source = str(server.place)
    with ExitStack() as stack:
        if target.kind is PlaceKind.STORE:
            store = stack.enter_context(Store.open(target.path))
            following: FollowingStore | FollowingServer = FollowingStore(
                store.engine, source, selection
            )
            arrival: Arrival = StoreArrival(server, store, selection)
            load = SnapshotLoader(store, selection)
            spool = target.path.with_name(target.path.name + ".snapshot.rdb")
        else:
            served = Server(target)
            stack.callback(served.close)
            if served.about.name != "kvstream":
                raise RequestError(
                    f"{served.about.shown} cannot follow: the target is a kvstream server"
                )
            following = FollowingServer(served, source, selection)
            arrival = ServerArrival(server, served, selection)
            load = SnapshotLoader(ServerTarget(served), selection)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvstream-follow-"))
            spool = Path(folder) / "snapshot.rdb"
        follower = Follower(lambda: server.client(0), following, spool, load, said)
        stack.callback(follower.close)
        yield Pair(server, selection, follower, arrival, said)
