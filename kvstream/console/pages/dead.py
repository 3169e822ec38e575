"""Dead letters: all streams of them, and one stream grouped by error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstream.console.access import Role, requires
from kvstream.console.failures import LETTERS, grouped, kind_of, letters_of, newest
from kvstream.console.names import name_of
from kvstream.console.reading import read_slice
from kvstream.console.view import ROWS
from kvstream.errors import KVStreamError
from kvstream.queue import Queue

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View
    from kvstream.types.ids import StreamID
    from kvstream.types.records import DeadLetter, Entry, RedriveInfo

STREAMS = 40
"""Streams of dead letters on a page; the first are grouped."""
GROUPED, OF_EACH = 5, 80


@requires(Role.VIEWER)
def dead(view: View) -> Response:
    streams = view.listing.dead
    found = [
        (each, grouped(each.key, newest(view.store, each.key, OF_EACH))[:6])
        for each in streams[:GROUPED]
    ]
    return view.page(
        "dead.html",
        found=found,
        others=streams[GROUPED:STREAMS],
        left_out=max(0, len(streams) - STREAMS),
        total=sum(each.length or 0 for each in streams),
    )


@requires(Role.VIEWER)
def dead_stream(view: View) -> Response:
    name, before = view.part("stream"), view.asked("before")
    stream = view.store.stream(name)
    count = len(stream)
    entries, has_more = read_slice(stream, f"({before}" if before else "", LETTERS)
    letters = letters_of(entries)
    groups = grouped(name, letters)
    kind = name_of(view.asked("kind")) if view.asked("kind") else None
    if kind is not None:
        letters = [each for each in letters if kind_of(each) == kind]
    return view.page(
        "dead_stream.html",
        name=name,
        count=count,
        read=len(entries),
        groups=groups[:20],
        kind=kind,
        letters=letters[:ROWS],
        more=max(0, len(letters) - ROWS),
        upto=entries[0].id if entries else None,
        next=_next(letters, entries, has_more),
        redrive=_redrive_of(view, name),
    )


def _next(letters: list[DeadLetter], entries: list[Entry], has_more: bool) -> StreamID | None:
    """Return the ID before which the next page begins; None at the end."""
    if len(letters) > ROWS:
        return letters[ROWS - 1].id
    return entries[-1].id if has_more else None


def _redrive_of(view: View, name: bytes) -> RedriveInfo[bytes] | None:
    """Return the redrive of a stream that runs, or the last one."""
    try:
        return Queue(view.store, name, dead_letter=name).redrive_status()
    except KVStreamError:
        return None
