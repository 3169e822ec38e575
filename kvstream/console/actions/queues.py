"""Actions on queues and schedules: pause, resume, purge; run now, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstream.console.actions.plan import Plan, name_in
from kvstream.console.command_lines import Part
from kvstream.console.figures import QueueRow, queue_rows, rows_of
from kvstream.errors import NoSuchKey
from kvstream.queue import Queue
from kvstream.types.formatting import plural, printable

if TYPE_CHECKING:
    from kvstream.console.view import View


CALLS = 45
"""Streams that are asked whether they are paused."""
SHOWN = 20
"""Queues that a preview names."""


def row_of(view: View) -> QueueRow:
    """Return the queue, and the group, that the address names."""
    queue, group = name_in(view, "queue"), view.name("group")
    rows = rows_of(view.store, queue, view.listing.priorities(queue), group=group)
    if not rows:
        raise NoSuchKey("no queue has this name")
    return rows[0]


def commands_of(view: View, row: QueueRow, verb: str, *options: Part) -> str:
    """Return the commands that do the same, one for each priority."""
    group = "--group", row.group
    return "; ".join(view.command(verb, group, *options, name) for name in row.streams)


def pause(view: View) -> Plan:
    """Plan to deliver nothing of a queue."""
    row = row_of(view)

    def run(_: View) -> None:
        for name in row.streams:
            view.store.stream(name).group(row.group).pause()

    return Plan(
        action="pause",
        title=f"Pause {printable(row.name)}",
        text=f"Workers get no more messages of this queue; {plural(row.leased, 'message')} in work "
        f"can be finished, and new ones can be put. {plural(row.ready or 0, 'message')} wait.",
        target=row.name,
        command=commands_of(view, row, "queue pause"),
        run=run,
        back=view.url("queues", row.name),
        count=int(not row.policy.paused),
        facts={"group": printable(row.group)},
    )


def resume(view: View) -> Plan:
    """Plan to deliver the messages of a queue again."""
    row = row_of(view)

    def run(_: View) -> None:
        for name in row.streams:
            view.store.stream(name).group(row.group).resume()

    return Plan(
        action="resume",
        title=f"Resume {printable(row.name)}",
        text=f"Workers get messages of this queue again; {plural(row.ready or 0, 'message')} wait.",
        target=row.name,
        command=commands_of(view, row, "queue resume"),
        run=run,
        back=view.url("queues", row.name),
        count=int(row.policy.paused),
        facts={"group": printable(row.group)},
    )


def pause_all(view: View) -> Plan:
    """Plan to deliver nothing of any queue."""
    return _plan_all(view, "pause", "Workers get no more messages of", is_paused=False)


def resume_all(view: View) -> Plan:
    """Plan to deliver the messages of all queues again."""
    return _plan_all(view, "resume", "Workers get messages again of", is_paused=True)


def _plan_all(view: View, verb: str, text: str, is_paused: bool) -> Plan:
    found, following = queue_rows(view.store, view.listing, view.listing.queues, CALLS)
    rows = [each for each in found if each.policy.paused is is_paused]
    names = [printable(each.name) for each in rows]

    def run(_: View) -> None:
        for row in rows:
            for name in row.streams:
                group = view.store.stream(name).group(row.group)
                if is_paused:
                    group.resume()
                else:
                    group.pause()

    more = " There are more queues: these are among the first." if following else ""
    others = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return Plan(
        action=f"{verb}-all",
        title=f"{verb.capitalize()} all queues",
        text=f"{text} {plural(len(rows), 'queue')}: {', '.join(names[:SHOWN])}{others}.{more}",
        target=b"*",
        command="; ".join(commands_of(view, each, f"queue {verb}") for each in rows),
        run=run,
        back=view.url("queues"),
        count=len(rows),
        facts={"queues": names[:50]},
    )


def purge(view: View) -> Plan:
    """Plan to delete all messages of a queue, with those of all its priorities."""
    row = row_of(view)
    count = (row.ready or 0) + row.waiting + row.held + row.delayed

    def run(_: View) -> int:
        queues = (Queue(view.store, name, group=row.group) for name in row.streams)
        return sum(each.purge() for each in queues)

    return Plan(
        action="purge",
        title=f"Delete all messages of {printable(row.name)}",
        text=f"This deletes {plural(count, 'message')} for good, delayed ones too; other groups of "
        f"the stream lose them as well. {plural(row.leased, 'message')} in work can be finished. "
        "Dead letters, rules and schedules stay.",
        target=row.name,
        command=commands_of(view, row, "queue purge"),
        run=run,
        back=view.url("queues", row.name),
        count=count,
        typed=row.name,
        is_alone=True,
        facts={"group": printable(row.group), "streams": [printable(each) for each in row.streams]},
    )


def run_schedule(view: View) -> Plan:
    """Plan to add the message of a schedule now."""
    stream, schedule = name_in(view, "stream"), name_in(view, "schedule")
    return Plan(
        action="run-schedule",
        title=f"Run {printable(schedule)} now",
        text="This adds one message now; the next time of the schedule stays.",
        target=stream,
        command=view.command("schedule run", stream, schedule),
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
        command=view.command("schedule rm", stream, schedule),
        run=lambda _: view.store.stream(stream).delete_schedule(schedule),
        back=view.url("schedules"),
        typed=schedule,
        facts={"schedule": printable(schedule)},
    )
