"""The schedules of all streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstream.console.access import Role, requires
from kvstream.console.values import whole
from kvstream.errors import NoSuchKey, RequestError, ServerTooOld, WrongType

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View
    from kvstream.types.records import Schedule

CALLS = 45
ROWS_MAX = 200


@requires(Role.VIEWER)
def schedules(view: View) -> Response:
    """Show schedules; streams named ``...:scheduled``, as those of Jobs are, are asked first."""
    names = [each.key for each in view.listing.streams]
    names.sort(key=lambda each: (not each.endswith(b":scheduled"), each))
    start = whole(view.asked("from")) or 0
    rows: list[tuple[bytes, Schedule[bytes]]] = []
    for name in names[start : start + CALLS]:
        try:
            rows += [(name, each) for each in view.store.stream(name).schedules()]
        except (NoSuchKey, WrongType):
            continue
        except (ServerTooOld, RequestError):  # a server without schedules
            break
    rows.sort(key=lambda row: (row[1].next is None, row[1].next, row[0]))
    left = max(0, len(names) - start - CALLS)
    return view.page(
        "schedules.html",
        rows=rows[:ROWS_MAX],
        left=left,
        asked_of=min(len(names), start + CALLS),
        next=start + CALLS if left else None,
    )
