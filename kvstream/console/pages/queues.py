"""The list of queues, and one queue."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstream.console.access import Role, requires
from kvstream.console.failures import grouped, newest
from kvstream.console.figures import queue_rows, rows_of, troubled_first
from kvstream.console.history import plots
from kvstream.console.history.plots import plots_of
from kvstream.console.history.samples import STREAM
from kvstream.console.names import name_of
from kvstream.console.reading import read_slice
from kvstream.errors import NoSuchKey
from kvstream.meta.policy import GroupPolicy
from kvstream.types.formatting import duration

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View
    from kvstream.group import Group
    from kvstream.types.ids import StreamID
    from kvstream.types.records import Entry, PendingEntry

CALLS = 45
"""Streams that are asked for one page of the list."""
DELAYED, MESSAGES = 20, 20
LETTERS = 100


@requires(Role.VIEWER)
def queues(view: View) -> Response:
    names, after = view.listing.queues, view.asked("after")
    if after:
        names = [each for each in names if each >= name_of(after)]
    rows, following = queue_rows(view.store, view.listing, names, CALLS)
    return view.page(
        "queues.html", rows=troubled_first(rows), next=following, is_whole=view.listing.whole
    )


@requires(Role.VIEWER)
def queue(view: View) -> Response:
    name, group_name = view.part("queue"), view.name("group")
    parts = view.listing.priorities(name)
    rows = rows_of(view.store, name, parts)
    asked = rows_of(view.store, name, parts, group=group_name) if group_name else rows
    row = asked[0] if asked else None
    if row is None:
        raise NoSuchKey("no queue has this name: a stream becomes one with its first worker")
    main = name if name in row.streams else row.streams[0]
    stream = view.store.stream(main)
    group = stream.group(row.group)
    found, _ = read_slice(stream, "", MESSAGES)
    pending = _pending(group, found)
    letters = newest(view.store, row.dead_key, LETTERS) if row.dead else []
    return view.page(
        "queue.html",
        row=row,
        plots=plots_of(view, plots.QUEUE, [STREAM + each for each in row.streams]),
        others=[each for each in rows if each.group != row.group],
        rules=rules_of(row.policy),
        failures=grouped(row.dead_key, letters)[:10],
        letters=len(letters),
        delayed=stream.delayed(count=DELAYED) if row.delayed else [],
        main=main,
        messages=_messages(found, pending, group.info().last_delivered_id),
    )


class Message(NamedTuple):
    """A message of a queue, and what has become of it."""

    entry: Entry
    state: str
    pending: PendingEntry | None


def _messages(
    found: list[Entry], pending: dict[StreamID, PendingEntry], last_delivered: StreamID
) -> list[Message]:
    """Return messages with their states."""

    def state(entry: Entry) -> str:
        known = pending.get(entry.id)
        if known is not None:
            return "in work" if known.consumer else "to be repeated"
        return "ready" if entry.id > last_delivered else "delivered"

    return [Message(each, state(each), pending.get(each.id)) for each in found]


def _pending(group: Group, found: list[Entry]) -> dict[StreamID, PendingEntry]:
    """Return the pending entries among the newest ones, by ID."""
    if not found:
        return {}
    # those of deleted entries are among them, too
    pending = group.pending_range(found[-1].id, found[0].id, 8 * MESSAGES)
    return {each.id: each for each in pending}


_TITLES = {
    "lease_ms": "lease",
    "max_deliveries": "deliveries at most",
    "backoff_ms": "backoff",
    "backoff_cap_ms": "backoff at most",
    "jitter_percent": "jitter",
    "dead_letter": "dead letters to",
    "order_by": "in order of",
    "max_per_key": "at a time for a key",
    "max_in_flight": "in work at most",
    "rate_count": "messages in a period",
    "rate_ms": "period",
    "reap_idle_ms": "consumers are deleted after",
}


def rules_of(policy: GroupPolicy) -> list[tuple[str, Any]]:
    """Return the rules of a queue as titles and texts."""
    rows: list[tuple[str, Any]] = []
    for each in fields(policy):
        value, title = getattr(policy, each.name), _TITLES.get(each.name)
        if title is None or not value or (value == each.default and each.name == "max_per_key"):
            continue
        rows.append((title, _rule(each.name, value)))
    return rows


def _rule(name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return ", ".join(duration(each) for each in value)
    if name.endswith("_ms"):
        return duration(value)
    return f"{value} %" if name == "jitter_percent" else value
