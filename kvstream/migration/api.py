"""The functions of ``kvstream.migration``, and opening of places."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from os import PathLike

from kvstream.engine.coerce import Name, name_bytes, path_of
from kvstream.errors import InvalidArgument
from kvstream.migration.archive_place import ArchiveSource
from kvstream.migration.copy import CopyOptions, parse_losses
from kvstream.migration.items import PlannedTarget, Selection, Source, Target, Watch, watch_nothing
from kvstream.migration.journal import Journal, default_folder, identity_of
from kvstream.migration.places import Place, PlaceKind, parse_place
from kvstream.migration.replication.cutover import (
    CutOver,
    End,
    Following,
    Pair,
    Said,
    check_followed,
    open_end,
    open_note,
    open_pair,
)
from kvstream.migration.runner import Planned, Progress, Report
from kvstream.migration.runner import plan as plan_items
from kvstream.migration.runner import run as run_items
from kvstream.migration.server import Server
from kvstream.migration.server_source import ServerSource
from kvstream.migration.server_target import ServerTarget
from kvstream.migration.store_place import PlannedStore, StoreSource, StoreTarget
from kvstream.migration.verification import Verification, VerifyOptions
from kvstream.migration.verification import verify as verify_places
from kvstream.rdb import versions
from kvstream.storage.directory import LAYOUT_FILE
from kvstream.store import Store
from kvstream.types.options import CUTOVER_PAUSE_S, DATABASES, DATABASES_MAX, Durability


def open_source(place: Place, selection: Selection | None = None) -> Source:
    """Open a place for reading; of an archive, what the selected keys need."""
    if place.kind is PlaceKind.ARCHIVE:
        return ArchiveSource(place, selection or Selection())
    if place.kind is PlaceKind.SERVER:
        return ServerSource(Server(place))
    if place.kind is PlaceKind.STORE:
        return StoreSource(
            Store.open(place.path, read_only=True, create=False, databases=DATABASES_MAX)
        )
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
    databases: int | None = None,
) -> Target:
    """Open a place for writing; a store or a file that does not exist is created.

    ``target_version`` is the server that an RDB file is for, such as ``redis:7.0`` or ``valkey``.
    An existing file is overwritten only with ``replace``. ``databases`` is the number of databases
    of a store; it is not kept, so whoever opens the store later gives it again.
    """
    check_version(place, target_version)
    check_databases(place, databases)
    if place.kind is PlaceKind.SERVER:
        return ServerTarget(Server(place))
    if place.kind is PlaceKind.STORE:
        count = databases or DATABASES
        return StoreTarget(Store.open(place.path, durability=durability, databases=count))
    if place.kind is PlaceKind.RDB:
        from kvstream.migration.rdb_place import RdbTarget

        return RdbTarget(place.path, file_target(target_version), replace)
    raise InvalidArgument("an append-only file cannot be written: write an RDB file")


def planned_target(
    place: Place, target_version: str | None = None, databases: int | None = None
) -> PlannedTarget:
    """Open a target for planning; nothing is created or written."""
    check_version(place, target_version)
    check_databases(place, databases)
    if place.kind is PlaceKind.RDB:
        from kvstream.migration.rdb_place import PlannedFile

        return PlannedFile(file_target(target_version))
    if place.kind is PlaceKind.STORE:
        there = (place.path / LAYOUT_FILE).exists()
        count = databases or DATABASES
        store = Store.open(place.path, read_only=True, databases=count) if there else None
        return PlannedStore(store, count)
    return open_target(place, target_version)


def file_target(target_version: str | None) -> versions.Target:
    """Return the server version that a file is for; None: the newest."""
    return versions.NEWEST if target_version is None else versions.target(target_version)


def check_version(place: Place, target_version: str | None) -> None:
    """Raise InvalidArgument for a version of a target that is not an RDB file."""
    if target_version is not None and place.kind is not PlaceKind.RDB:
        raise InvalidArgument(
            "only an RDB file takes a version: a server reports its own, a store holds everything"
        )


def check_databases(place: Place, databases: int | None) -> None:
    """Raise InvalidArgument for a number of databases of a target that is not a store."""
    if databases is not None and place.kind is not PlaceKind.STORE:
        raise InvalidArgument(
            "only the directory of a store takes a number of databases: a server has its own, and "
            "a file holds all"
        )


def fingerprint(place: Place) -> bytes:
    """Return a digest that changes with a file: a run resumes only from the same source."""
    if place.kind is PlaceKind.SERVER:
        return str(place).encode()
    status = place.path.stat()
    facts = [str(place), status.st_ino]
    if not place.path.is_dir():
        facts += [status.st_size, status.st_mtime_ns]
    return hashlib.sha256(repr(facts).encode()).digest()


PlaceLike = Place | str | PathLike[str]
"""A place, or the path or URL of one."""


def place_of(place: PlaceLike, *, create: bool = False) -> Place:
    """Return a place; with ``create`` it need not exist."""
    if isinstance(place, Place):
        return place
    return parse_place(place, create=create)


def selection_of(
    match: Iterable[Name] = (),
    databases: Iterable[int] | None = None,
    source: Place | None = None,
    without: Iterable[tuple[int, bytes]] = (),
) -> Selection:
    """Return the keys to migrate; a source URL with a database number selects that database."""
    if databases is None and source is not None and source.database is not None:
        databases = [source.database]
    chosen = None if databases is None else frozenset(databases)
    return Selection(tuple(map(name_bytes, match)), chosen, frozenset(without))


def check_pair(source: Place, target: Place, selection: Selection) -> None:
    """Raise InvalidArgument if target and source are the same, or their databases differ."""
    if str(source) == str(target):
        raise InvalidArgument("both are the same place")
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
    target_databases: int | None = None,
) -> Iterator[Planned]:
    """Yield each key and each library of functions of a source, with what ``run`` would lose of it.

    Nothing is written. A target that is a store or a file need not exist; ``target_databases`` is
    the number of databases of a store, 16 by default.
    """
    here = place_of(source)
    selection = selection_of(match, databases, here)
    with ExitStack() as stack:
        opened = stack.enter_context(closing(open_source(here)))
        there = None
        if target is not None:
            place = place_of(target, create=True)
            check_pair(here, place, selection)
            there = stack.enter_context(
                closing(planned_target(place, target_version, target_databases))
            )
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
    target_databases: int | None = None,
    state: str | PathLike[str] | None = None,
    watch: Watch = watch_nothing,
    progress: Progress | None = None,
) -> Report:
    """Copy the keys of a source to a target, and return what became of them.

    ``without`` excludes keys, each given with its database. After an interruption the same call
    resumes; ``state`` is the folder of the progress files. ``target_databases`` is the number of
    databases of a store, 16 by default: give it to ``Store.open``, too. Raises LossRefused, before
    anything is written, for a loss that ``plan`` shows and that is not in ``allow_loss``;
    InvalidArgument for an unknown loss; BadPayload for a damaged file; errors of stores and
    servers.
    """
    allowed = parse_losses(allow_loss)
    here, there = place_of(source), place_of(target, create=True)
    selection = selection_of(match, databases, here, without)
    check_pair(here, there, selection)
    identity = identity_of(str(here), str(there), selection)
    folder = default_folder() if state is None else path_of(state)
    known = fingerprint(here)
    with Journal(folder, identity, str(here), str(there), known) as journal, ExitStack() as stack:
        opened: Source = stack.enter_context(closing(open_source(here)))
        written = stack.enter_context(
            closing(open_target(there, target_version, replace=replace, databases=target_databases))
        )
        options = CopyOptions(
            replace=replace,
            allowed=allowed,
            identity=identity.encode() + known,
            watch=watch,
        )
        return run_items(opened, written, selection, options, journal, progress)


def verify(
    source: PlaceLike,
    target: PlaceLike,
    *,
    match: Iterable[Name] = (),
    databases: Iterable[int] | None = None,
    without: Iterable[tuple[int, bytes]] = (),
    tolerance_ms: int = 0,
    watch: Watch = watch_nothing,
) -> Verification:
    """Compare two places, and return every difference between them.

    ``watch`` is called with the entries and bytes of each node read.
    """
    here, there = place_of(source), place_of(target)
    options = VerifyOptions(
        selection_of(match, databases, here, without), tolerance_ms, watch, keep_digests=True
    )
    with closing(open_source(here)) as mine, closing(open_source(there)) as theirs:
        return verify_places(mine, theirs, options)


def follow(
    source: PlaceLike,
    target: PlaceLike,
    *,
    match: Iterable[Name] = (),
    databases: Iterable[int] | None = None,
    allow_loss: Iterable[str] = (),
    target_databases: int | None = None,
    until: Callable[[Pair], bool] = lambda pair: False,
    said: Said = lambda text: None,
    state: str | PathLike[str] | None = None,
) -> None:
    """Keep a target in step with a live server, as one of its replicas, until ``until`` is true.

    ``source`` is a Redis or Valkey, ``target`` the directory of a store or the URL of a kvstream
    server without any of the followed keys. ``until`` is called several times a second, connected
    or not, with the pair: see its ``lag()`` in bytes and seconds, its ``offset`` and ``commands``.
    A lost connection is made again. After any end, also an error or a kill, the same call or
    ``cut_over`` resumes after the last command applied. A ``cut_over`` of the same places in
    another process ends it, too, and takes over. ``said`` gets messages for the user; ``state`` is
    the folder of the progress file. Do not use the target before ``cut_over``. Raises LossRefused,
    before anything is written, as ``run`` does.
    """
    here = place_of(source)
    ways = _Ways(parse_losses(allow_loss), target_databases, said, state)
    with _following(here, target, selection_of(match, databases, here), ways) as pair:
        pair.follow(lambda: until(pair))


def cut_over(
    source: PlaceLike,
    target: PlaceLike,
    *,
    match: Iterable[Name] = (),
    databases: Iterable[int] | None = None,
    allow_loss: Iterable[str] = (),
    target_databases: int | None = None,
    pause_s: float = CUTOVER_PAUSE_S,
    watch: Callable[[Pair], object] = lambda pair: None,
    said: Said = lambda text: None,
    state: str | PathLike[str] | None = None,
) -> CutOver:
    """Follow a live server until the target has caught up, then switch over to the target.

    Resumes an earlier ``follow`` of the same places, or starts one; a ``follow`` that is running
    with the same ``state`` ends first. Then the source is paused, its
    last commands are applied, state that no command carries is copied, and both are compared. If
    they are equal (``is_done``) the target may be used, and the source stays paused for ``pause_s``
    more seconds, at least six. If they differ (see ``verification``), or after an error, the source
    is unpaused and nothing is final. ``watch`` is called several times a second until the pause.
    Raises LossRefused, before the pause, for a loss that is not in ``allow_loss``.
    """
    here = place_of(source)
    ways = _Ways(parse_losses(allow_loss), target_databases, said, state, cuts_over=True)
    with _following(here, target, selection_of(match, databases, here), ways) as pair:
        return pair.cut_over(pause_s, lambda: watch(pair))


def _closing_end(end: End) -> AbstractContextManager[End]:
    """Return a context manager that closes a target; a store created in vain is removed."""
    return end if isinstance(end, Store) else closing(end)


@dataclass(frozen=True, slots=True)
class _Ways:
    """How a source is followed."""

    allowed: frozenset[str]
    databases: int | None
    said: Said
    state: str | PathLike[str] | None
    cuts_over: bool = False


@contextmanager
def _following(here: Place, target: PlaceLike, selection: Selection, ways: _Ways) -> Iterator[Pair]:
    there = place_of(target, create=True)
    check_pair(here, there, selection)
    check_followed(here, there)
    check_databases(there, ways.databases)
    folder = default_folder() if ways.state is None else path_of(ways.state)
    with (
        closing(Server(here)) as server,
        open_note(
            Following(server, there, selection, ways.allowed, ways.databases),
            *(folder, ways.said, ways.said),
            cuts_over=ways.cuts_over,
        ) as note,
        _closing_end(open_end(there, ways.databases)) as end,
        open_pair(server, there, end, selection, note, ways.said, ways.allowed) as pair,
    ):
        yield pair
