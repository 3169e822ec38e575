"""The JSON of jobs, workers and schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstream.console.api.fields import (
    BOOLEAN,
    FIGURES,
    INTEGER,
    LINK,
    NAME,
    NUMBER,
    TEXT,
    TIME,
    VALUE,
    Form,
    Record,
    data,
    field,
    many,
    one,
    text,
)
from kvstream.console.api.rows import (
    JOB,
    OVER_TIME,
    here,
)
from kvstream.console.applications import tries_of

if TYPE_CHECKING:
    pass

JOBS = Form(
    "The jobs of an application by status and task, newest first.",
    [
        field("application", NAME, "its name", "name"),
        field("applications", many(NAME), "all applications of the store", "names"),
        field(
            "counts", FIGURES, "jobs of each status, of those that are not 0", "counts.by_status"
        ),
        field(
            "at_least",
            many(TEXT),
            "statuses of which there may be more",
            lambda _, page: sorted(page["counts"].at_least),
        ),
        field("jobs", many(JOB), "the jobs of this part", "page.jobs"),
        field(
            *("next", LINK, "the next part; null: this is the last"),
            lambda view, page: page["page"].after and view.here(after=page["page"].after),
            optional=True,
        ),
        OVER_TIME,
    ],
    ["name", "status", "task", "tag", "since", "text", "after", "past"],
)
_TRY = Record(
    "try",
    [
        field("attempt", INTEGER, "its number"),
        field("outcome", TEXT, "`done`, `failed`, `running` or `lost`"),
        field("worker", NAME, "the worker", optional=True),
        field("begun", TIME, "when it began", optional=True),
        field("seconds", NUMBER, "how long it took", optional=True),
        field("error", TEXT, "its error", optional=True),
    ],
)
_STEP = Record(
    "step",
    [
        field("name", TEXT, "its name"),
        field("kind", TEXT, "`step`, `child`, `pause` or `wait`"),
        field("status", TEXT, "`done`, `failed`, `cancelled` or `open`"),
        field("attempt", INTEGER, "tries so far"),
        field("begun", TIME, "when it began", optional=True),
        field("ended", TIME, "when it ended", optional=True),
        field("result", data(200), "its result", optional=True),
        field("error", TEXT, "its error", optional=True),
    ],
)
_PROGRESS = Record(
    "progress",
    [
        field("fraction", NUMBER, "from 0 to 1"),
        field("text", TEXT, "what it says"),
        field("at", TIME, "when it said so", optional=True),
    ],
)
_LINE = Record(
    "line",
    [
        field("at", TIME, "when it was written", optional=True),
        field("text", text(400), "the line"),
    ],
)
JOB_PAGE = Form(
    "One job or workflow: its tries, progress, log, result and error.",
    [
        field("application", NAME, "its application", "name"),
        field("id", NAME, "its ID"),
        field("status", TEXT, "its status"),
        field("is_workflow", BOOLEAN, "whether it is a workflow"),
        field("task", NAME, "its task", optional=True),
        field("queue", NAME, "its queue", "about.queue", optional=True),
        field("key", NAME, "its key", "about.key", optional=True),
        field("tags", many(NAME), "its tags", "about.tags", optional=True),
        field(
            *("attempt", INTEGER, "its tries; 0: it was not begun"),
            lambda _, page: None if page["about"] is None else tries_of(page["about"]),
            optional=True,
        ),
        field("headers", data(6000), "its headers", optional=True),
        field("enqueued", TIME, "when it was enqueued", "about.enqueued", optional=True),
        field("seconds", NUMBER, "how long its last run took", "about.seconds", optional=True),
        field("args", data(6000), "arguments by place", "about.args", optional=True),
        field("kwargs", data(6000), "arguments by name", "about.kwargs", optional=True),
        field("progress", one(_PROGRESS), "how far it is", optional=True),
        field("error", text(4000), "the error of its last try", optional=True),
        field("traceback", text(24_000), "the traceback of it", optional=True),
        field("result", data(24_000), "its result, once it is done", optional=True),
        field("tries", many(_TRY), "its tries, the last 200"),
        field("steps", many(_STEP), "the last 200 steps of a workflow", optional=True),
        field("log", many(_LINE), "the last 100 lines of its log", "lines"),
    ],
    ["name", "at"],
)
_RUNNING = Record(
    "job in work",
    [
        field("id", NAME, "its ID"),
        field("task", NAME, "its task"),
        field("queue", NAME, "the stream that it came from"),
        field("seconds", NUMBER, "how long it has run"),
        field("lease_left", NUMBER, "seconds until another worker may take it"),
    ],
)
_WORKER = Record(
    "worker",
    [
        field("name", NAME, "its name"),
        field("state", TEXT, "`working`, `draining`, `stopping`, `silent` or `lost`"),
        field("host", NAME, "its host"),
        field("pid", INTEGER, "its process"),
        field("app_version", TEXT, "the version of the application"),
        field("queues", many(NAME), "the queues that it serves"),
        field("concurrency", INTEGER, "jobs at a time"),
        field(
            "jobs",
            many(_RUNNING),
            "the oldest of those in work, up to 10",
            lambda _, row: row.jobs[:10],
        ),
        field("jobs_count", INTEGER, "all that it has in work", lambda _, row: len(row.jobs)),
        field("done", INTEGER, "jobs that it has finished"),
        field("failed", INTEGER, "tries that have failed"),
        field("started", TIME, "when it was started", optional=True),
        field("beat", TIME, "its last sign of life", optional=True),
    ],
)
WORKERS = Form(
    "The worker processes of an application.",
    [
        field("application", NAME, "its name", "name"),
        field("applications", many(NAME), "all applications of the store", "names"),
        field("workers", many(_WORKER), "the workers, up to 50"),
    ],
    ["name"],
)

_SCHEDULE = Record(
    "schedule",
    [
        field("stream", NAME, "the stream to which it adds", "0"),
        field("name", NAME, "its name", "1.name"),
        field("cron", TEXT, "its times", "1.cron"),
        field("tz", TEXT, "its time zone", "1.tz"),
        field(
            "misfire",
            TEXT,
            "`skip`, `once` or `all`: what becomes of times that have passed",
            "1.misfire",
        ),
        field("next", TIME, "its next time; null: it has stopped", "1.next", optional=True),
        field("times", many(TIME), "its next five times; of the first 50 schedules", "2"),
        field("last", TIME, "its last time", "1.last", optional=True),
        field("error", TEXT, "why it has stopped", "1.error"),
        field(
            "fields",
            many(VALUE),
            "the first fields of its message",
            lambda _, row: list(row[1].fields.items())[:6],
        ),
    ],
)
SCHEDULES = Form(
    "The schedules of 45 streams at a time, the next due first.",
    [
        field("schedules", many(_SCHEDULE), "the schedules", "rows"),
        field("left", INTEGER, "streams that were not asked yet"),
        field(
            "next",
            LINK,
            "the next streams; null: all were asked",
            here("from", "next"),
            optional=True,
        ),
    ],
    ["from"],
)
