"""Migrations as a program starts them: places by name, one call each.

Following a source as a program starts it: one call each for what the command line does.

Opening places, as sources and as targets.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from os import PathLike

from kvstream.engine.coerce import Name, name_bytes, path_of
from kvstream.errors import InvalidArgument
from kvstream.migration.copy import Manner, allowed_of
from kvstream.migration.items import Reception, Selection, Source, Target, Watch
from kvstream.migration.journal import Journal, default_folder, identity_of
from kvstream.migration.places import Place, PlaceKind, parse_place
from kvstream.migration.replication.cutover import CutOver
from kvstream.migration.replication.pair import (
    End,
    Pair,
    Said,
    check_followed,
    open_end,
    open_pair,
)
from kvstream.migration.runner import Planned, Report, Told
from kvstream.migration.runner import plan as plan_items
from kvstream.migration.runner import run as run_items
from kvstream.migration.server_source import Server, ServerSource
from kvstream.migration.server_target import ServerTarget
from kvstream.migration.store_place import PlannedStore, StoreSource, StoreTarget
from kvstream.migration.verification import Comparing, Verification
from kvstream.migration.verification import verify as verify_places
from kvstream.rdb import versions
from kvstream.storage.directory import LAYOUT_FILE
from kvstream.store import Store
from kvstream.types.options import Durability


def open_source(place: Place) -> Source:
    """Open a place that is read; nothing in it changes."""
    if place.kind is PlaceKind.SERVER:
        return ServerSource(Server(place))
    if place.kind is PlaceKind.STORE:
        return StoreSource(Store.open(place.path, read_only=True, create=False))
    if place.kind is PlaceKind.RDB:
        from kvstream.migration.rdb_place import RdbSource

        return RdbSource(place.path)
    from kvstream.migration.aof_source import AofSource

    return AofSource(place.path)


def open_target(
    place: Place,
    target_version: str | None = None,
    durability: Durability = Durability.EVERYSEC,
    *,
    replace: bool = False,
) -> Target:
    """Open a place that is written; a store or a file is made where there is none.

    ``target_version``: which server an RDB file is for, as in ``redis:7.0`` or ``valkey``; a file
    that is there is written anew only with ``replace``.
    """
    check_version(place, target_version)
    if place.kind is PlaceKind.SERVER:
        return ServerTarget(Server(place))
    if place.kind is PlaceKind.STORE:
        return StoreTarget(Store.open(place.path, durability=durability))
    if place.kind is PlaceKind.RDB:
        from kvstream.migration.rdb_place import RdbTarget

        return RdbTarget(place.path, file_target(target_version), replace)
    raise InvalidArgument("an append-only file is read, not written: write an RDB file")


def planned_target(place: Place, target_version: str | None = None) -> Reception:
    """Open a target to be asked and not written; what is not there yet is not made."""
    if place.kind is PlaceKind.RDB:
        check_version(place, target_version)
        from kvstream.migration.rdb_place import PlannedFile

        return PlannedFile(file_target(target_version))
    if place.kind is PlaceKind.STORE:
        check_version(place, target_version)
        there = (place.path / LAYOUT_FILE).exists()
        store = Store.open(place.path, read_only=True, create=False) if there else None
        return PlannedStore(store)
    return open_target(place, target_version)


def file_target(target_version: str | None) -> versions.Target:
    """Return which server a file is for; None: the newest."""
    return versions.NEWEST if target_version is None else versions.target(target_version)


def check_version(place: Place, target_version: str | None) -> None:
    """Refuse a version for a target that has its own."""
    if target_version is not None and place.kind is not PlaceKind.RDB:
        raise InvalidArgument(
            "a version is named for an RDB file; a server is asked for its own, a store holds all"
        )


def fingerprint(place: Place) -> bytes:
    """Return what changes with a file: what was begun from one is not gone on with from another."""
    if place.kind is PlaceKind.SERVER:
        return str(place).encode()
    told = place.path.stat()
    facts = [str(place), told.st_ino]
    if not place.path.is_dir():
        facts += [told.st_size, told.st_mtime_ns]
    return hashlib.sha256(repr(facts).encode()).digest()


PlaceLike = Place | str | PathLike[str]
"""A place, or the text that names it: a directory, a file or a URL."""


def place_of(place: PlaceLike, *, create: bool = False) -> Place:
    """Return a place; with ``create`` it may be yet to be made."""
    if isinstance(place, Place):
        return place
    return parse_place(place, create=create)


def selection_of(
    match: Iterable[Name] = (),
    databases: Iterable[int] | None = None,
    source: Place | None = None,
    without: Iterable[tuple[int, bytes]] = (),
) -> Selection:
    """Return which keys are meant; a source whose URL names a database means that one alone."""
    if databases is None and source is not None and source.database is not None:
        databases = [source.database]
    chosen = None if databases is None else frozenset(databases)
    return Selection(tuple(map(name_bytes, match)), chosen, frozenset(without))


def check_pair(source: Place, target: Place, selection: Selection) -> None:
    """Refuse a target that is the source, or that names another database than is carried."""
    if str(source) == str(target):
        raise InvalidArgument("source and target are the same place")
    into = target.database
    if into is not None and selection.databases != frozenset([into]):
        raise InvalidArgument(
            f"keys keep the number of their database: choose database {into} alone, or leave it "
            "out of the target's URL"
        )


def plan(
    source: PlaceLike,
    target: PlaceLike | None = None,
    *,
    match: Iterable[Name] = (),
    databases: Iterable[int] | None = None,
    target_version: str | None = None,
) -> Iterator[Planned]:
    """Yield each key of a source, with what a run to ``target`` would lose of it and why.

    Nothing is written, and a target that is a store or a file need not be there.
    """
    here = place_of(source)
    selection = selection_of(match, databases, here)
    with ExitStack() as stack:
        opened = stack.enter_context(closing(open_source(here)))
        there = None
        if target is not None:
            place = place_of(target, create=True)
            check_pair(here, place, selection)
            there = stack.enter_context(closing(planned_target(place, target_version)))
        yield from plan_items(opened, there, selection)


def run(
    source: PlaceLike,
    target: PlaceLike,
    *,
    match: Iterable[Name] = (),
    databases: Iterable[int] | None = None,
    without: Iterable[tuple[int, bytes]] = (),
    replace: bool = False,
    allow_loss: Iterable[str] = (),
    target_version: str | None = None,
    state: str | PathLike[str] | None = None,
    watch: Watch = lambda entries, bytes: None,
    told: Told | None = None,
) -> Report:
    """Bring the keys of a source to a target, and return what became of them.

    ``without`` leaves out keys, each with its database.

    Interrupted at any point, the same call goes on where it was: ``state`` is the folder in which
    is kept how far it is. Raises LossRefused, before anything is written, for a loss whose name is
    not in ``allow_loss``; InvalidArgument for a name there that no loss has; BadPayload for a
    damaged file; errors of stores and servers.
    """
    allowed = allowed_of(allow_loss)
    here, there = place_of(source), place_of(target, create=True)
    selection = selection_of(match, databases, here, without)
    check_pair(here, there, selection)
    identity = identity_of(str(here), str(there), selection)
    folder = default_folder() if state is None else path_of(state)
    known = fingerprint(here)
    noted = Journal(folder, identity, str(here), str(there), known)
    with noted as journal, ExitStack() as stack:
        opened: Source = stack.enter_context(closing(open_source(here)))
        written = stack.enter_context(closing(open_target(there, target_version, replace=replace)))
        manner = Manner(
            replace=replace,
            allowed=allowed,
            identity=identity.encode() + known,
            watch=watch,
        )
        return run_items(opened, written, selection, manner, journal, told)


def verify(
    source: PlaceLike,
    target: PlaceLike,
    *,
    match: Iterable[Name] = (),
    databases: Iterable[int] | None = None,
    without: Iterable[tuple[int, bytes]] = (),
    tolerance_ms: int = 0,
    watch: Watch = lambda entries, bytes: None,
) -> Verification:
    """Compare two places, and return every difference between them."""
    here, there = place_of(source), place_of(target)
    how = Comparing(
        selection_of(match, databases, here, without), tolerance_ms, watch, keep_digests=True
    )
    with closing(open_source(here)) as mine, closing(open_source(there)) as theirs:
        return verify_places(mine, theirs, how)


PAUSE_S = 60.0
"""How long the source stays paused after a cut-over: producers are pointed elsewhere meanwhile."""


def follow(
    source: PlaceLike,
    target: PlaceLike,
    *,
    match: Iterable[Name] = (),
    databases: Iterable[int] | None = None,
    until: Callable[[Pair], bool] = lambda pair: False,
    said: Said = lambda text: None,
    state: str | PathLike[str] | None = None,
) -> None:
    """Keep a target in step with a live server, as one of its replicas, until told otherwise.

    ``source`` is a Redis or Valkey, ``target`` the directory of a store or the URL of a kvstream
    server, empty of what is followed. ``until`` is asked several times a second, while the link
    stands and while it does not; it is given what is followed: its ``lag()`` in bytes and seconds,
    its ``offset``, its ``commands``. However this ends, by an error or a kill too, the same call
    goes on behind the last command that was applied, and so does ``cut_over``. A lost link is made
    again. ``said`` is told what happens, and ``state`` is the folder in which is kept for others
    how far it is. The target is not to be used before ``cut_over`` has made it final.
    """
    with _following(source, target, match, databases, said, state) as pair:
        pair.follow(lambda: until(pair))


def cut_over(
    source: PlaceLike,
    target: PlaceLike,
    *,
    match: Iterable[Name] = (),
    databases: Iterable[int] | None = None,
    pause_s: float = PAUSE_S,
    watch: Callable[[Pair], object] = lambda pair: None,
    said: Said = lambda text: None,
    state: str | PathLike[str] | None = None,
) -> CutOver:
    """Follow a live server until the target is level with it, then lead over to the target.

    Goes on from an earlier ``follow`` of the same places, or is the first call. The source takes no
    writes any more, the last of it arrives, what no command tells is copied, both are compared; and
    where they are equal (``is_done``) the target may be used, and the source stays paused for
    ``pause_s`` seconds more, six at the least. Else, and where anything fails, the source goes on
    as before and nothing is final: ``verification`` has the differences. ``watch`` is called
    several times a second until the source is paused.
    """
    with _following(source, target, match, databases, said, state) as pair:
        return pair.cut_over(pause_s, lambda: watch(pair))


def _opened(end: End) -> AbstractContextManager[End]:
    """Close a target at the end; a store that knows of an error discards what it made in vain."""
    return end if isinstance(end, Store) else closing(end)


@contextmanager
def _following(
    source: PlaceLike,
    target: PlaceLike,
    match: Iterable[Name],
    databases: Iterable[int] | None,
    said: Said,
    state: str | PathLike[str] | None,
) -> Iterator[Pair]:
    here, there = place_of(source), place_of(target, create=True)
    selection: Selection = selection_of(match, databases, here)
    check_pair(here, there, selection)
    check_followed(here, there)
    folder = default_folder() if state is None else path_of(state)
    with (
        closing(Server(here)) as server,
        _opened(open_end(there)) as end,
        open_pair(server, there, end, selection, folder, said) as pair,
    ):
        yield pair
