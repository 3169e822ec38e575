"""The JSON of streams, entries and groups, and of the two searches."""

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
    Form,
    Kind,
    Record,
    field,
    many,
    one,
    value_of,
)
from kvstream.console.api.rows import (
    ENTRY,
    GROUP,
    NEXT,
    OVER_TIME,
    here,
    to_entry,
)

if TYPE_CHECKING:
    from kvstream.console.view import View

VALUES_MAX = 40_000
"""Bytes of the values of one entry on its page; the rest of each value is cut."""

_STREAM_ROW = Record(
    "stream",
    [
        field("name", NAME, "its name", "key.key"),
        field("length", INTEGER, "its entries", "key.length", optional=True),
        field("groups", INTEGER, "its groups", "key.groups", optional=True),
        field("lag", INTEGER, "entries that the slowest group has not read", optional=True),
        field("pending", INTEGER, "entries that are pending in all groups", optional=True),
        field("last_id", ID, "the ID of the last entry", "key.last_id", optional=True),
        field("ttl", NUMBER, "seconds until it expires; null: never", "key.ttl", optional=True),
        field("url", LINK, "its page", lambda view, row: view.url("streams", row.key.key)),
    ],
)
STREAMS = Form(
    "The streams, 50 at a time.",
    [
        field("count", INTEGER, "streams that meet the query"),
        field(
            "hidden", INTEGER, "streams of single jobs and of kvstream itself; `all=1` shows them"
        ),
        field("is_whole", BOOLEAN, "whether all keys were listed, or the first 20,000"),
        field("streams", many(_STREAM_ROW), "the streams of this part", "rows"),
        NEXT,
    ],
    ["q", "sort", "all", "after"],
)
_RETENTION = Record(
    "retention",
    [
        field("max_age_ms", INTEGER, "entries that are older are removed; 0: none"),
        field("max_length", INTEGER, "entries that stay; 0: all"),
        field("max_bytes", INTEGER, "bytes that stay; 0: all"),
        field("acked", BOOLEAN, "whether entries that every group has acknowledged are removed"),
        field("latest", NAME, "the field of whose equal values the last entry stays"),
        field("force", BOOLEAN, "whether entries that are pending are removed, too"),
    ],
)
_GROUP_OF_STREAM = Record(
    "group of a stream",
    [
        *(
            field(each.name, each.kind, each.about, f"0.{each.name}", optional=each.is_optional)
            for each in GROUP.fields
        ),
        field(
            "is_queue",
            BOOLEAN,
            "whether it has rules of a queue",
            lambda _, row: bool(row[1] and row[1].policy),
        ),
        field(
            "oldest_ms",
            INTEGER,
            "age of its oldest entry that is not acknowledged",
            "1.oldest_ms",
            optional=True,
        ),
        field(
            "url",
            LINK,
            "its page",
            lambda view, row: view.url("streams", view.part("stream"), "groups", row[0].name),
        ),
    ],
)
_BAR = Record(
    "bar",
    [
        field("at", TIME, "the begin of its time", "0"),
        field("entries", INTEGER, "entries of this time", "1"),
    ],
)
STREAM_PAGE = Form(
    "One stream: its figures, its entries by time, and its groups.",
    [
        field("stream", NAME, "its name", "name"),
        field("length", INTEGER, "its entries", "info.length"),
        field("entries_added", INTEGER, "entries that were ever added", "info.entries_added"),
        field("first_id", ID, "its first entry", "info.first_entry.id", optional=True),
        field("last_id", ID, "its last entry", "info.last_entry.id", optional=True),
        field(
            "last_generated_id", ID, "the highest ID that it has given", "info.last_generated_id"
        ),
        field(
            "max_deleted_id",
            ID,
            "the highest ID of those deleted one by one",
            "info.max_deleted_entry_id",
        ),
        field("ttl", NUMBER, "seconds until it expires; null: never", optional=True),
        field("delayed", INTEGER, "messages that are not due yet", "queue.delayed", optional=True),
        field("schedules", INTEGER, "its schedules", "queue.schedules", optional=True),
        field("retention", one(_RETENTION), "its rules", "queue.retention", optional=True),
        field("groups_count", INTEGER, "all its groups"),
        field(
            "groups",
            many(_GROUP_OF_STREAM),
            "the first 100 of them; none if they are more than 1,000",
        ),
        field("bars", many(_BAR), "entries by time, over the span", optional=True),
        OVER_TIME,
    ],
    ["span", "past"],
)
_NEWER = field(
    "newer", LINK, "the page of newer entries", here("at", "newer", dir="newer"), optional=True
)
_OLDER = field(
    "older",
    LINK,
    "older entries; null: there are none",
    here("at", "older", dir=None),
    optional=True,
)
ENTRIES = Form(
    "The entries of a stream, newest first, from an ID or a time on.",
    [
        field("stream", NAME, "the stream", "name"),
        field("length", INTEGER, "all its entries", "info.length"),
        field("entries", many(ENTRY), "up to 50 of them", "rows"),
        _NEWER,
        _OLDER,
    ],
    ["at", "dir"],
)


def _values(view: View, page: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of an entry, with values that are not cut while there is room."""
    left, found = VALUES_MAX, []
    for pair in page["pairs"]:
        found.append(value_of(view, pair, left))
        left = max(0, left - len(pair[1]))
    return found


_STATE_OF_GROUP = Record(
    "state in a group",
    [
        field("group", NAME, "the group", "0.name"),
        field("state", TEXT, "`pending`, `given back`, `done`, `not delivered` or `unknown`", "1"),
        field(
            "consumer",
            NAME,
            "who has it",
            lambda _, row: (row[2] and row[2].consumer) or None,
            optional=True,
        ),
        field("deliveries", INTEGER, "deliveries so far", "2.deliveries", optional=True),
        field("idle_ms", INTEGER, "since the last one", "2.idle_ms", optional=True),
    ],
)


ENTRY_PAGE = Form(
    "One entry with its values: 40,000 bytes of them together, the rest is cut.",
    [
        field("stream", NAME, "its stream", "name"),
        field("id", ID, "its ID", "entry.id"),
        field("at", TIME, "the time of its ID", "entry.id", optional=True),
        field("size", INTEGER, "bytes of its fields"),
        field("fields", many(Kind("value", lambda _, value: value)), "up to 200 fields", _values),
        field("left_out", INTEGER, "fields that are not shown"),
        field("groups", many(_STATE_OF_GROUP), "what up to 20 groups have done with it"),
        field("older", LINK, "the entry before it", to_entry("older"), optional=True),
        field("newer", LINK, "the entry after it", to_entry("newer"), optional=True),
    ],
)
FIND = Form(
    "Entries by their fields, newest first; a page looks at 5,000 entries or for ten seconds.",
    [
        field("stream", NAME, "the stream", "name"),
        field("looked", INTEGER, "entries that were looked at", "found.looked"),
        field("last_id", ID, "the last of them", "found.last", optional=True),
        field("entries", many(ENTRY), "those that meet the conditions", "rows"),
        field(
            "next",
            LINK,
            "where the search goes on; null: all was looked at",
            here("at", "next"),
            optional=True,
        ),
    ],
    ["where", "at"],
)
_AGE = Record(
    "age",
    [
        field("pending_for", TEXT, "how long", "0"),
        field("entries", INTEGER, "how many entries", "1"),
    ],
)
_CONSUMER = Record(
    "consumer",
    [
        field("name", NAME, "its name"),
        field("pending", INTEGER, "entries that it has"),
        field("idle_ms", INTEGER, "since its last command", "idle"),
        field(
            "inactive_ms",
            INTEGER,
            "since it last got an entry; -1: never",
            "inactive",
            optional=True,
        ),
    ],
)
_PENDING = Record(
    "pending entry",
    [
        field("id", ID, "its ID"),
        field(
            "consumer",
            NAME,
            "who has it; null: it was given back",
            lambda _, row: row.consumer or None,
            optional=True,
        ),
        field("idle_ms", INTEGER, "since the last delivery", optional=True),
        field("deliveries", INTEGER, "deliveries so far"),
        field(
            "url",
            LINK,
            "its page",
            to_entry(),
        ),
    ],
)
GROUP_PAGE = Form(
    "A group of a stream: its pending entries by age and owner, and its consumers.",
    [
        field("stream", NAME, "the stream", "name"),
        field("group", one(GROUP), "its figures"),
        field(
            "paused",
            BOOLEAN,
            "whether nothing is delivered",
            lambda _, page: bool(page["policy"] and page["policy"].paused),
        ),
        field(
            "oldest_ms",
            INTEGER,
            "age of its oldest entry that is not acknowledged",
            "figures.oldest_ms",
            optional=True,
        ),
        field("sampled", INTEGER, "pending entries with the lowest IDs whose ages are counted"),
        field("ages", many(_AGE), "how many of them are pending for how long"),
        field(
            "consumers", many(_CONSUMER), "up to 100 consumers; none if there are more than 2,000"
        ),
        field("consumers_count", INTEGER, "all consumers"),
        field("pending", many(_PENDING), "pending entries, up to 50", "rows"),
        NEXT,
    ],
    ["consumer", "after"],
)


def _found(view: View, page: dict[str, Any]) -> list[tuple[bytes, str]]:
    def url(name: bytes) -> str:
        more = ("entries", page["entry"]) if page["entry"] else ()
        return view.url("streams", name, *more)

    return [(each, url(each)) for each in page["found"]]


_FOUND = Record(
    "found",
    [
        field("name", NAME, "a stream", "0"),
        field("url", LINK, "its page, or that of the entry in it", "1"),
    ],
)
SEARCH = Form(
    "Streams by a part of their name, or those that have an entry with this ID. If the text is the "
    "name of a stream, or the ID of a job, or one entry has it as its ID, the reply is a redirect "
    "(303) to its page.",
    [
        field("found", many(_FOUND), "up to 50 streams", _found),
        field("count", INTEGER, "all that were found"),
        field("left", INTEGER, "streams that were not looked at for an ID"),
    ],
    ["q"],
)
