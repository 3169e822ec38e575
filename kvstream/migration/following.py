"""Following a source as a program starts it: one call each for what the command line does."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from os import PathLike

from kvstream.arguments import Name, path_of
from kvstream.migration.face import PlaceLike, check_pair, place_of, selection_of
from kvstream.migration.items import Selection
from kvstream.migration.journal import default_folder
from kvstream.migration.replication.cutover import CutOver
from kvstream.migration.replication.pair import (
    End,
    Pair,
    Said,
    check_followed,
    open_end,
    open_pair,
)
from kvstream.migration.server import Server
from kvstream.store import Store

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
