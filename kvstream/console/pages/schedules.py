"""The schedules of all streams."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kvstream.console.access import Role, requires
from kvstream.console.values import whole
from kvstream.errors import InvalidArgument, NoSuchKey, RequestError, ServerTooOld, WrongType
from kvstream.types import cron
from kvstream.types.formatting import unix_ms

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View
    from kvstream.types.records import Schedule

CALLS = 45
ROWS_MAX = 200
TIMES, COMPUTED_MAX = 5, 50
"""The next times that are shown of a schedule, and the schedules of which they are computed: a time
of an expression takes 50 us."""


class Row(NamedTuple):
    """A schedule in the list."""

    stream: bytes
    schedule: Schedule[bytes]
    times: list[int]
    """Its next times, in Unix milliseconds."""


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
        rows=[
            Row(name, each, next_times(each) if at < COMPUTED_MAX else [])
            for at, (name, each) in enumerate(rows[:ROWS_MAX])
        ],
        left=left,
        asked_of=min(len(names), start + CALLS),
        next=start + CALLS if left else None,
    )


def next_times(schedule: Schedule[bytes]) -> list[int]:
    """Return the next times of a schedule; none of one that has stopped."""
    if schedule.next is None:
        return []
    found = [unix_ms(schedule.next)]
    with suppress(InvalidArgument):  # this machine may not know the time zone
        times = cron.parse(schedule.cron, schedule.tz)
        while len(found) < TIMES and (following := times.after(found[-1])) is not None:
            found.append(following)
    return found
