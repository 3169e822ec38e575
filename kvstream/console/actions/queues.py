"""Actions on queues and schedules: pause, resume, run now, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstream.console.actions.plan import Plan, name_in, words
from kvstream.console.figures import QueueRow, rows_of
from kvstream.errors import NoSuchKey
from kvstream.types.formatting import plural, printable

if TYPE_CHECKING:
    from kvstream.console.view import View


def _row(view: View) -> QueueRow:
    queue, group = name_in(view, "queue"), view.name("group")
    rows = rows_of(view.store, queue, view.listing.priorities(queue))
    for row in rows:
        if not group or row.group == group:
            return row
    raise NoSuchKey("no queue has this name")


def pause(view: View) -> Plan:
    """Plan to deliver nothing of a queue."""
    row = _row(view)

    def run(_: View) -> None:
        for name in row.streams:
            view.store.stream(name).group(row.group).pause()

    return Plan(
        action="pause",
        title=f"Pause {printable(row.name)}",
        text=f"Workers get no more messages of this queue; {plural(row.leased, 'message')} in work "
        f"can be finished, and new ones can be put. {plural(row.ready or 0, 'message')} wait.",
        target=row.name,
        command=words("queue", "pause", row.name),
        run=run,
        back=view.url("queues", row.name),
        count=int(not row.policy.paused),
        facts={"group": printable(row.group)},
    )


def resume(view: View) -> Plan:
    """Plan to deliver the messages of a queue again."""
    row = _row(view)

    def run(_: View) -> None:
        for name in row.streams:
            view.store.stream(name).group(row.group).resume()

    return Plan(
        action="resume",
        title=f"Resume {printable(row.name)}",
        text=f"Workers get messages of this queue again; {plural(row.ready or 0, 'message')} wait.",
        target=row.name,
        command=words("queue", "resume", row.name),
        run=run,
        back=view.url("queues", row.name),
        count=int(row.policy.paused),
        facts={"group": printable(row.group)},
    )


def run_schedule(view: View) -> Plan:
    """Plan to add the message of a schedule now."""
    stream, schedule = name_in(view, "stream"), name_in(view, "schedule")
    return Plan(
        action="run-schedule",
        title=f"Run {printable(schedule)} now",
        text="This adds one message now; the next time of the schedule stays.",
        target=stream,
        command=words("schedule", "run", stream, schedule),
        run=lambda _: view.store.stream(stream).run_schedule(schedule),
        back=view.url("schedules"),
        facts={"schedule": printable(schedule)},
    )


def delete_schedule(view: View) -> Plan:
    """Plan to delete a schedule."""
    stream, schedule = name_in(view, "stream"), name_in(view, "schedule")
    return Plan(
        action="delete-schedule",
        title=f"Delete the schedule {printable(schedule)}",
        text="It adds no more messages. A program that declares it sets it again when it starts.",
        target=stream,
        command=words("schedule", "rm", stream, schedule),
        run=lambda _: view.store.stream(stream).delete_schedule(schedule),
        back=view.url("schedules"),
        typed=schedule,
        facts={"schedule": printable(schedule)},
    )
