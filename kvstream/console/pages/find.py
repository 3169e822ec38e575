"""Entries of a stream by the values of their fields."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kvstream.console.access import Role, requires
from kvstream.console.finding import conditions_of, find
from kvstream.console.pages.entries import columns_of, shown_of
from kvstream.console.view import ROWS
from kvstream.types.formatting import printable

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View


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
        command=shlex.join(["kvstream", "find", printable(name), *shlex.split(where), "--reverse"]),
        next=f"({found.last}" if found.has_more and found.last else None,
    )
