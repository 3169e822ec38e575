"""Migrations as a program starts them: places by name, one call each."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from os import PathLike

from kvstream.arguments import Name, name_bytes, path_of
from kvstream.errors import InvalidArgument
from kvstream.migration.carrying import Manner, allowed_of
from kvstream.migration.items import Selection, Source, Watch
from kvstream.migration.journal import Journal, default_folder, identity_of
from kvstream.migration.opening import fingerprint, open_source, open_target, planned_target
from kvstream.migration.places import Place, parse_place
from kvstream.migration.running import Planned, Report, Told
from kvstream.migration.running import plan as plan_items
from kvstream.migration.running import run as run_items
from kvstream.migration.verifying import Comparing, Verification
from kvstream.migration.verifying import verify as verify_places

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
