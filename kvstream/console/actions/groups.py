"""Actions on a group: acknowledge, give back and claim pending entries; seek; delete consumers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvstream.console.actions.plan import Input, Plan, ids_of, name_in
from kvstream.console.figures import CONSUMERS_READ
from kvstream.errors import InvalidArgument, NoSuchKey
from kvstream.types.formatting import plural, printable
from kvstream.types.ids import MIN_ID, StreamID, range_start

if TYPE_CHECKING:
    from kvstream.console.view import View
    from kvstream.group import Group
    from kvstream.stream import Stream

PENDING = 500
"""Pending entries that are read by one call."""


def _pending(view: View) -> tuple[bytes, Group[bytes], list[StreamID]]:
    """Return the stream, the group, and those of the chosen entries that are pending."""
    stream, name = name_in(view, "stream"), name_in(view, "group")
    group, left = view.store.stream(stream).group(name), sorted(ids_of(view))
    found: list[StreamID] = []
    while left:  # between two of one consumer there may be many of others
        pending = [each.id for each in group.pending_range(left[0], left[-1], PENDING)]
        seen = pending[-1] if len(pending) == PENDING else left[-1]
        found += sorted(set(left).intersection(pending))
        left = [each for each in left if each > seen]
    return stream, group, found


def _plan(view: View, action: str, verb: str, text: str, **more: object) -> Plan:
    stream, group, ids = _pending(view)
    options, given = (["--justid"], [b"CONSUMER"]) if action == "claim" else ([], [])

    def run(_: View) -> None:
        if action == "ack":
            group.ack(*ids)
        elif action == "nack":
            group.nack(*ids)
        else:
            consumer = view.given("consumer").strip()
            if not consumer:
                raise InvalidArgument("name the consumer")
            group.claim(consumer, 0, *ids, justid=True)

    return Plan(
        action=action,
        title=f"{verb} in {printable(group.name)}",
        text=text.format(plural(len(ids), "pending entry")) + _others(len(ids_of(view)) - len(ids)),
        target=stream,
        command=view.command(action, *options, stream, group.name, *given, *ids),
        run=run,
        back=view.url("streams", stream, "groups", group.name),
        count=len(ids),
        facts={"group": printable(group.name), "ids": [str(each) for each in ids[:20]]},
        **more,  # type: ignore[arg-type]
    )


def _others(count: int) -> str:
    """Return a sentence on the chosen entries that are not pending."""
    return f" Left out, not pending any more: {plural(count, 'entry')}." if count else ""


def ack(view: View) -> Plan:
    """Plan to acknowledge entries, as if a consumer had done so."""
    text = "This acknowledges {}: no consumer gets them again."
    return _plan(view, "ack", "Acknowledge", text)


def nack(view: View) -> Plan:
    """Plan to give entries back to the group."""
    text = "This takes {} from their consumers and gives them back: the next reader gets them."
    return _plan(view, "nack", "Give back", text)


def claim(view: View) -> Plan:
    """Plan to give entries to a consumer."""
    text = "This assigns {} to the consumer that you name."
    return _plan(view, "claim", "Claim", text, inputs=(Input("consumer", "Consumer"),))


def delete_consumer(view: View) -> Plan:
    """Plan to delete a consumer, with its pending entries."""
    stream, name = name_in(view, "stream"), name_in(view, "group")
    consumer, group = name_in(view, "consumer"), view.store.stream(stream).group(name)
    if group.info().consumers > CONSUMERS_READ:
        raise InvalidArgument("the group has too many consumers: use kvstream consumer del")
    found = next((each for each in group.consumers() if each.name == consumer), None)
    if found is None:
        raise NoSuchKey("no consumer of the group has this name: it was deleted")
    pending = plural(found.pending, "pending entry")
    return Plan(
        action="delete-consumer",
        title=f"Delete the consumer {printable(consumer)}",
        text=f"This drops its {pending}: they stay in the stream, and the group delivers them to "
        "nobody any more. To keep them, give them back, or claim them for another one, first. A "
        "consumer that reads on is there again.",
        target=stream,
        command=view.command(
            "consumer del", *["--drop-pending"] * bool(found.pending), stream, name, consumer
        ),
        run=lambda _: group.delete_consumer(consumer),
        back=view.url("streams", stream, "groups", name),
        count=max(1, found.pending),
        typed=consumer,
        facts={
            "group": printable(name),
            "consumer": printable(consumer),
            "pending": found.pending,
        },
    )


def seek(view: View) -> Plan:
    """Plan to move the last delivered ID of a group: to an ID, a time, the begin or the end."""
    stream, name = name_in(view, "stream"), name_in(view, "group")
    found = view.store.stream(stream)
    group, asked = found.group(name), view.asked("to").strip()
    before, target = group.info().last_delivered_id, _place(view, found, asked)
    if target > before:
        count = found.count(f"({before}", target)
        text = f"{plural(count, 'entry')} between them will not be delivered."
    else:
        count = found.count(f"({target}", before)
        text = f"{plural(count, 'entry')} between them will be delivered again."
    return Plan(
        action="seek",
        title=f"Move {printable(name)} to another entry",
        text=f"The last delivered ID goes from {before} to {target}. {text} Pending entries stay.",
        target=stream,
        command=view.command("group setid", stream, name, target),
        run=lambda _: group.set_id(target),
        back=view.url("streams", stream, "groups", name),
        count=int(target != before),
        keep={"to": target},
        facts={"group": printable(name), "before": str(before), "to": str(target), "count": count},
    )


def _place(view: View, stream: Stream, asked: str) -> StreamID:
    """Return the last delivered ID that is asked for; a time is that of the next delivery."""
    if asked == "$":
        return stream.info().last_generated_id
    start = range_start(asked or "-", lambda: view.now_ms)
    if start == MIN_ID or re.fullmatch(r"\d+-\d+", asked):
        return start
    return start.previous()
