"""The objects that several pages have in their JSON: queues, jobs, entries, figures over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstream.console.api.fields import (
    BOOLEAN,
    ID,
    INTEGER,
    LINK,
    NAME,
    NUMBER,
    TEXT,
    TIME,
    VALUE,
    Encode,
    Record,
    data,
    field,
    many,
    one,
    reader,
)
from kvstream.console.applications import tries_of
from kvstream.console.reading import shown_of

if TYPE_CHECKING:
    from kvstream.console.view import View

ARGUMENTS_MAX = 1000
"""Characters of the arguments of a job in a list."""


def link(*parts: str, **query: str) -> Encode:
    """Return a reader of a link; a part that begins with a dot is a member of the row."""

    def read(view: View, row: Any) -> str:
        found = [getattr(row, each[1:]) if each.startswith(".") else each for each in parts]
        asked = {name: getattr(row, each[1:]) for name, each in query.items()}
        return view.url(*found, **asked)

    return read


def to_entry(member: str = "id") -> Encode:
    """Return a reader of the link to an entry of the stream of the page; null for none."""
    eid_of = reader(member)

    def read(view: View, row: Any) -> str | None:
        eid = eid_of(view, row)
        return eid and view.url("streams", view.part("stream"), "entries", str(eid))

    return read


def here(query: str, member: str, **more: Any) -> Encode:
    """Return a reader of the link to another part of a page; null at the end."""

    def read(view: View, page: Any) -> str | None:
        place = page[member]
        return None if place is None else view.here(**{query: place}, **more)

    return read


def _pairs(_: View, row: Any) -> list[tuple[bytes, bytes]]:
    """Return the fields of an entry, as many as a list shows."""
    found: list[tuple[bytes, bytes]] = shown_of(row)["pairs"]
    return found


def _left_out(_: View, row: Any) -> int:
    return int(shown_of(row)["left_out"])


FIELDS = field("fields", many(VALUE), "the first fields, in their order; one may repeat", _pairs)
FIELDS_LEFT_OUT = field("left_out", INTEGER, "fields that are not shown", _left_out)

ENTRY = Record(
    "entry",
    [
        field("id", ID, "its ID"),
        field("at", TIME, "the time of its ID", "id", optional=True),
        field("fields", many(VALUE), "the first fields, in their order; one may repeat", "pairs"),
        field("left_out", INTEGER, "fields that are not shown"),
        field("url", LINK, "its page", to_entry()),
    ],
)

FAILURE = Record(
    "failure",
    [
        field("stream", NAME, "the stream of the dead letters"),
        field("queue", NAME, "the queue that they come from", "origin"),
        field("task", NAME, "the field `task` of the newest", optional=True),
        field("error", TEXT, "the first line of the newest one's error"),
        field("reason", TEXT, "`max-deliveries`, `fatal` or `expired`"),
        field("letters", INTEGER, "how many of those that were read are of this kind"),
        field("last", TIME, "when the newest was given up", "last.at", optional=True),
        field("url", LINK, "its letters", link("dead", ".stream", kind=".kind")),
    ],
)

QUEUE = Record(
    "queue",
    [
        field("name", NAME, "its name, without a priority"),
        field("group", NAME, "the group of its workers"),
        field(
            "ready",
            INTEGER,
            "messages for the next workers; null: too many to count",
            optional=True,
        ),
        field("leased", INTEGER, "in work"),
        field("waiting", INTEGER, "failed, to be repeated"),
        field("held", INTEGER, "behind another message of their key"),
        field("delayed", INTEGER, "not due yet"),
        field("dead", INTEGER, "letters in its stream of dead letters, which others may share"),
        field("oldest_ms", INTEGER, "age of the oldest message that is not done; 0: there is none"),
        field("consumers", INTEGER, "consumers of the group"),
        field("paused", BOOLEAN, "whether nothing is delivered", "policy.paused"),
        field("dead_letters", NAME, "the stream of its dead letters", "dead_key"),
        field("streams", many(NAME), "its streams, one for each priority, the most urgent first"),
        field("url", LINK, "its page", link("queues", ".name")),
    ],
)

GROUP = Record(
    "group",
    [
        field("name", NAME, "its name"),
        field("consumers", INTEGER, "its consumers"),
        field("lag", INTEGER, "entries that were not delivered yet; null: unknown", optional=True),
        field("pending", INTEGER, "delivered, not acknowledged"),
        field("last_delivered_id", ID, "the last entry that was delivered"),
    ],
)

JOB = Record(
    "job",
    [
        field("id", NAME, "its ID"),
        field("task", NAME, "its task"),
        field("status", TEXT, "its status, as in `kvstream jobs ls`"),
        field("queue", NAME, "its queue", optional=True),
        field("key", NAME, "its key", optional=True),
        field("tags", many(NAME), "its tags"),
        field("attempt", INTEGER, "its tries; 0: it was not begun", lambda _, job: tries_of(job)),
        field("seconds", NUMBER, "how long its last run took", optional=True),
        field("at", TIME, "when it ended, or came into its queue, or was enqueued", optional=True),
        field("enqueued", TIME, "when it was enqueued", optional=True),
        field("due", TIME, "when it is to run", optional=True),
        field("error", TEXT, "its error", optional=True),
        field("args", data(ARGUMENTS_MAX), "arguments by place", optional=True),
        field("kwargs", data(ARGUMENTS_MAX), "arguments by name", optional=True),
        field("is_workflow", BOOLEAN, "whether it is a workflow"),
        field(
            *("url", LINK, "its page"),
            lambda view, job: view.url(
                *("jobs", view.raw(job.id)), name=view.asked("name"), at=str(job.place)
            ),
        ),
    ],
)

PLOT = Record(
    "figure",
    [
        field("name", TEXT, "the figure: `added`, `waiting`, `oldest_ms`, `failed` and others"),
        field("values", many(INTEGER), "one at the end of each step; null: no sample", "points"),
    ],
)
HISTORY = Record(
    "history",
    [
        field("past", TEXT, "the span, as in the query: `15m`, `2h`, `1d` or `1w`", "span.title"),
        field("step_ms", INTEGER, "milliseconds between two values", "span.step_ms"),
        field("end", TIME, "the time of the last value", "end_ms"),
        field("figures", many(PLOT), "the figures, oldest value first", "plots"),
    ],
)
OVER_TIME = field(
    *("history", one(HISTORY), "figures over time; null: there are no samples"),
    lambda _, page: None if page["plots"].is_empty else page["plots"],
    optional=True,
)
NEXT = field(
    "next", LINK, "the next part; null: this is the last", here("after", "next"), optional=True
)


__all__ = [
    "ENTRY",
    "FAILURE",
    "FIELDS",
    "FIELDS_LEFT_OUT",
    "GROUP",
    "HISTORY",
    "JOB",
    "NEXT",
    "OVER_TIME",
    "QUEUE",
    "here",
    "link",
    "to_entry",
]
