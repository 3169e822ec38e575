"""The entries of a stream, by ID and time or by the values of their fields, and one entry."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kvstream.console.access import Role, requires
from kvstream.console.actions.plan import AUDIT
from kvstream.console.figures import groups_of
from kvstream.console.finding import conditions_of, find
from kvstream.console.reading import read_slice, shown_of
from kvstream.console.values import raw_of
from kvstream.console.view import ROWS
from kvstream.errors import NoGroup, NoSuchKey
from kvstream.types.ids import StreamID
from kvstream.types.records import Entry, GroupInfo, PendingEntry

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View
    from kvstream.stream import Stream

COLUMNS_MAX = 7
"""Entries with more names of fields together are shown without columns."""
GROUPS_MAX = 20
"""Groups that are asked whether an entry is pending."""


@requires(Role.VIEWER)
def entries(view: View) -> Response:
    name = view.part("stream")
    stream = view.store.stream(name)
    if name == AUDIT and view.form_of_page is None and not view.store.exists(name):
        return view.page("audit.html")
    info = stream.info()
    at, is_forward = view.asked("at").strip(), view.asked("dir") == "newer"
    found, has_more = read_slice(stream, at, ROWS, is_forward)
    if is_forward:
        found.reverse()
    older = found[-1].id if found and (has_more or is_forward) else None
    newer = found[0].id if found and (at or is_forward) else None
    columns = columns_of(found)
    return view.page(
        "entries.html",
        name=name,
        info=info,
        rows=[shown_of(each) for each in found],
        columns=columns,
        at=at,
        older=None if older is None else f"({older}",
        newer=None if newer is None else f"({newer}",
    )


def columns_of(found: list[Entry]) -> list[bytes] | None:
    """Return the names of fields as columns; None if they are too many, or repeat in an entry."""
    names: dict[bytes, None] = {}
    for each in found:
        pairs = each.pairs
        if len(pairs) != len(each.fields):
            return None
        names.update(dict.fromkeys(each.fields))
        if len(names) > COLUMNS_MAX:
            return None
    return list(names)


@requires(Role.VIEWER)
def find_entries(view: View) -> Response:
    name, where, at = view.part("stream"), view.asked("where").strip(), view.asked("at").strip()
    stream = view.store.stream(name)
    info = stream.info()
    found = find(view, stream, at, conditions_of(where), ROWS)
    return view.page(
        "find.html",
        name=name,
        info=info,
        found=found,
        rows=[shown_of(each) for each in found.entries],
        columns=columns_of(found.entries),
        where=where,
        at=at,
        command=view.command(
            "find", name, *map(raw_of, shlex.split(where)), "--reverse --count 50"
        ),
        next=f"({found.last}" if found.has_more and found.last else None,
    )


@requires(Role.VIEWER)
def entry(view: View) -> Response:
    name, eid = view.part("stream"), StreamID.parse(view.request.path_params["id"])
    stream = view.store.stream(name)
    found = stream.get(eid)
    if found is None:
        raise NoSuchKey(f"the stream has no entry {eid}: it was deleted, trimmed or is done")
    before, after = stream.revrange(f"({eid}", "-", 1), stream.range(f"({eid}", "+", 1)
    groups = groups_of(stream, stream.info().groups) or []
    return view.page(
        "entry.html",
        name=name,
        entry=found,
        pairs=found.pairs[:200],
        left_out=max(0, len(found.pairs) - 200),
        size=sum(map(len, found.flat)),
        older=before[0].id if before else None,
        newer=after[0].id if after else None,
        groups=[(each, *_state(stream, each, eid)) for each in groups[:GROUPS_MAX]],
    )


def _state(stream: Stream, group: GroupInfo, eid: StreamID) -> tuple[str, PendingEntry | None]:
    """Return what a group has done with an entry."""
    try:
        pending = stream.group(group.name).pending_range(eid, eid, 1)
    except (NoGroup, NoSuchKey):
        return "unknown", None
    if pending:
        return ("pending" if pending[0].consumer else "given back"), pending[0]
    return ("done" if eid <= group.last_delivered_id else "not delivered"), None
