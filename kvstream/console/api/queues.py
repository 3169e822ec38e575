"""The JSON of the overview, of queues and of dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstream.console.api.fields import (
    BOOLEAN,
    ID,
    INTEGER,
    LINK,
    NAME,
    TEXT,
    TIME,
    VALUE,
    Form,
    Record,
    field,
    many,
    one,
)
from kvstream.console.api.rows import (
    FAILURE,
    FIELDS,
    FIELDS_LEFT_OUT,
    NEXT,
    OVER_TIME,
    QUEUE,
    here,
    to_entry,
)

if TYPE_CHECKING:
    pass

_LAG = Record(
    "lag",
    [
        field("stream", NAME, "the stream", "0"),
        field("group", NAME, "the group", "1.name"),
        field(
            *("lag", INTEGER, "entries that were not delivered yet; null: unknown"),
            "1.lag",
            optional=True,
        ),
        field("pending", INTEGER, "not acknowledged", "1.pending"),
        field(
            *("url", LINK, "its page"),
            lambda view, row: view.url("streams", row[0], "groups", row[1].name),
        ),
    ],
)
OVERVIEW = Form(
    "What failed, the queues that need attention, and the groups that are behind.",
    [
        field("dead", INTEGER, "dead letters of all streams"),
        field("ready", INTEGER, "messages for the next workers, of the queues that were read"),
        field("leased", INTEGER, "in work"),
        field("later", INTEGER, "to be repeated, held or delayed"),
        field("oldest_ms", INTEGER, "age of the oldest message that is not done"),
        field("streams", INTEGER, "streams that programs have made"),
        field("is_whole", BOOLEAN, "whether all keys were listed", "is_whole"),
        field("commands_per_s", INTEGER, "commands of a server", "facts.rate", optional=True),
        field("size", INTEGER, "bytes on disk", "facts.size", optional=True),
        field("uptime_s", INTEGER, "seconds since a server began", "facts.uptime_s", optional=True),
        field(
            *("checkpoint", TIME, "the last checkpoint since then", "facts.checkpoint"),
            optional=True,
        ),
        field("slow", INTEGER, "slow requests since then", "facts.slow", optional=True),
        field("failures", many(FAILURE), "kinds of errors, the newest first"),
        field("more_failures", INTEGER, "kinds that are left out"),
        field("queues", many(QUEUE), "queues, those with dead letters first"),
        field("more_queues", INTEGER, "queues that are left out"),
        field("lags", many(_LAG), "groups that are behind, the furthest first"),
        OVER_TIME,
    ],
    ["past"],
)
QUEUES = Form(
    "The queues, those with dead letters first.",
    [
        field("queues", many(QUEUE), "the queues of this part", "rows"),
        field("is_whole", BOOLEAN, "whether all keys were listed"),
        NEXT,
    ],
    ["after"],
)
_RULES = Record(
    "rules",
    [
        field("lease_ms", INTEGER, "the lease of a message; 0: none"),
        field("max_deliveries", INTEGER, "deliveries after which it is given up; 0: no limit"),
        field("backoff_ms", many(INTEGER), "the delay after each failure; the last one repeats"),
        field("backoff_cap_ms", INTEGER, "the delay doubles up to this; 0: it does not"),
        field("jitter_percent", INTEGER, "by how much of it a delay is shortened at random"),
        field("order_by", NAME, "the field whose equal values are delivered in order"),
        field("max_per_key", INTEGER, "messages of one such value at a time"),
        field("fair", BOOLEAN, "whether these values take turns"),
        field("max_in_flight", INTEGER, "messages in work at a time; 0: no limit"),
        field("rate_count", INTEGER, "messages in each period; 0: no limit"),
        field("rate_ms", INTEGER, "the period"),
        field("reap_idle_ms", INTEGER, "idle time after which a consumer is deleted; 0: never"),
    ],
)
_MESSAGE = Record(
    "message",
    [
        field("id", ID, "its ID", "entry.id"),
        field("state", TEXT, "`ready`, `in work`, `to be repeated` or `delivered`"),
        field("consumer", NAME, "who has it in work", "pending.consumer", optional=True),
        field("deliveries", INTEGER, "deliveries so far", "pending.deliveries", optional=True),
        field(
            *("fields", many(VALUE), "the first fields"),
            lambda view, row: FIELDS.read(view, row.entry),
        ),
        field(
            *("left_out", INTEGER, "fields that are not shown"),
            lambda view, row: FIELDS_LEFT_OUT.read(view, row.entry),
        ),
    ],
)
_DELAYED = Record(
    "delayed message",
    [
        field("ticket", ID, "its ticket"),
        field("due", TIME, "when it is due", "ticket.at_ms", optional=True),
        field(
            *("fields", many(VALUE), "the first fields"),
            lambda _, row: list(row.fields.items())[:8],
        ),
    ],
)
QUEUE_PAGE = Form(
    "One queue: its figures, what failed, its newest messages, and its rules.",
    [
        field("queue", one(QUEUE), "its figures", "row"),
        field("rules", one(_RULES), "its rules", "row.policy"),
        field(
            "groups",
            many(NAME),
            "other groups with rules",
            lambda _, page: [each.group for each in page["others"]],
        ),
        field("failures", many(FAILURE), "kinds of errors among its newest dead letters"),
        field("messages", many(_MESSAGE), "the newest messages"),
        field("delayed", many(_DELAYED), "the messages that are due next"),
        OVER_TIME,
    ],
    ["group", "past"],
)

_DEAD_STREAM = Record(
    "dead letters",
    [
        field("stream", NAME, "their stream", "key.key"),
        field("letters", INTEGER, "how many there are", "key.length"),
        field(
            "failures",
            many(FAILURE),
            "kinds of errors of the newest; null: not read",
            optional=True,
        ),
        field("url", LINK, "its page", lambda view, row: view.url("dead", row["key"].key)),
    ],
)
DEAD = Form(
    "The streams of dead letters, the longest first; of the first five the newest are grouped.",
    [
        field("total", INTEGER, "letters of all streams"),
        field(
            *("streams", many(_DEAD_STREAM), "the streams"),
            lambda _, page: [
                *({"key": key, "failures": failures} for key, failures in page["found"]),
                *({"key": key, "failures": None} for key in page["others"]),
            ],
        ),
        field("left_out", INTEGER, "streams that are not shown"),
    ],
)
_LETTER = Record(
    "letter",
    [
        field("id", ID, "its ID among the dead letters"),
        field("at", TIME, "when it was given up", optional=True),
        field("reason", TEXT, "`max-deliveries`, `fatal` or `expired`"),
        field("error", TEXT, "the error"),
        field("queue", NAME, "the queue that it comes from", "origin"),
        field("origin_id", ID, "the ID that it had there"),
        field("group", NAME, "the group"),
        field("consumer", NAME, "the consumer that had it last"),
        field("deliveries", INTEGER, "how often it was delivered"),
        field(
            *("fields", many(VALUE), "the first fields of the message"),
            lambda _, row: list(row.fields.items())[:8],
        ),
        field(
            *("url", LINK, "its page, with the traceback"),
            to_entry(),
        ),
    ],
)
_REDRIVE = Record(
    "redrive",
    [
        field("state", TEXT, "`running`, `done`, `cancelled` or `failed`"),
        field("moved", INTEGER, "letters that were moved"),
        field("skipped", INTEGER, "letters that stay, since they name no stream to go back to"),
        field("error", TEXT, "why it failed"),
    ],
)
DEAD_STREAM = Form(
    "The letters of one stream, newest first; 200 at a time are grouped by their errors.",
    [
        field("stream", NAME, "the stream", "name"),
        field("letters_count", INTEGER, "all its letters", "count"),
        field("read", INTEGER, "letters that were read for this part"),
        field("failures", many(FAILURE), "their kinds of errors", "groups"),
        field("letters", many(_LETTER), "the newest of them, up to 50"),
        field("redrive", one(_REDRIVE), "the redrive that runs, or the last one", optional=True),
        field(
            "next",
            LINK,
            "older letters; null: this is the last part",
            here("before", "next"),
            optional=True,
        ),
    ],
    ["kind", "before"],
)
