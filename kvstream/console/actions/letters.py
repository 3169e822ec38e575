"""Actions on dead letters: redrive, delete, and the end of a redrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstream.console.actions.plan import Plan, ids_of, name_in, still_there
from kvstream.console.failures import LETTERS, kind_of, newest
from kvstream.errors import InvalidArgument
from kvstream.operations.queues.redrive import State
from kvstream.operations.queues.redrive import move as redrive_letters
from kvstream.queue import Queue
from kvstream.types.formatting import plural, printable

if TYPE_CHECKING:
    from kvstream.console.view import View
    from kvstream.types.ids import StreamID


def _chosen(view: View, stream: bytes) -> list[StreamID] | None:
    """Return the chosen letters, by ID or by the kind of error; None: all.

    Letters of a kind are searched from ``upto`` back, as the page did, so that the preview and the
    action have the same ones while more arrive.
    """
    kind = view.name("kind")
    if kind:
        found = newest(view.store, stream, LETTERS, view.asked("upto"))
        return [each.id for each in found if kind_of(each) == kind]
    return None if view.asked("all") else ids_of(view)


def redrive(view: View) -> Plan:
    """Plan to move dead letters back; a dry run tells how many and where to."""
    stream = name_in(view, "stream")
    chosen, queue = _chosen(view, stream), Queue(view.store, stream, dead_letter=stream)
    if chosen is None:
        count, where, skipped = len(view.store.stream(stream)), "", 0
    elif chosen:
        dry = queue.redrive(*chosen, dry_run=True)
        where = ", ".join(f"{n:,} to {printable(name)}" for name, n in dry.streams.items())
        count, skipped = dry.moved, dry.skipped
    else:
        count, where, skipped = 0, "", 0
    to = f" ({where})" if where else " to the streams that they come from"
    left = (
        f" {plural(skipped, 'entry')} would stay: they name no stream to go to." if skipped else ""
    )
    return Plan(
        action="redrive",
        title="Redrive dead letters",
        text=f"This moves {plural(count, 'dead letter')} back{to}. Each gets a new ID and starts "
        f"with no deliveries.{left}",
        target=stream,
        command=view.command("dead redrive", stream, *(["--all"] if chosen is None else chosen)),
        run=lambda _: _redrive(queue, stream, chosen),
        back=view.url("dead", stream),
        count=count,
        goes_on=chosen is None,
        facts={"ids": "all" if chosen is None else [str(each) for each in chosen[:20]]},
    )


def _redrive(queue: Queue, stream: bytes, chosen: list[StreamID] | None) -> None:
    """Move letters in the commit of the audit: chosen ones all, of many the first step."""
    status = queue.redrive_status()
    if status is not None and status.state == State.RUNNING:
        raise InvalidArgument("a redrive of these dead letters runs: wait for it, or stop it")
    queue.store.run(redrive_letters, stream, chosen)


def cancel_redrive(view: View) -> Plan:
    """Plan to stop the redrive that runs."""
    stream = name_in(view, "stream")
    queue = Queue(view.store, stream, dead_letter=stream)
    status = queue.redrive_status()
    is_running = status is not None and status.state == State.RUNNING
    return Plan(
        action="cancel-redrive",
        title="Stop the redrive",
        text="What was moved stays moved." if is_running else "No redrive runs.",
        target=stream,
        command=view.command("dead cancel", stream),
        run=lambda _: queue.cancel_redrive(),
        back=view.url("dead", stream),
        count=int(is_running),
    )


def delete_letters(view: View) -> Plan:
    """Plan to delete dead letters for good."""
    stream = name_in(view, "stream")
    found = view.store.stream(stream)
    chosen = still_there(found, _chosen(view, stream) or [])
    return Plan(
        action="delete-letters",
        title="Delete dead letters",
        text=f"This deletes {plural(len(chosen), 'dead letter')} for good.",
        target=stream,
        command=view.command("del", stream, *chosen),
        run=lambda _: found.delete(*chosen),
        back=view.url("dead", stream),
        count=len(chosen),
        typed=stream,
        facts={"ids": [str(each) for each in chosen[:20]]},
    )
