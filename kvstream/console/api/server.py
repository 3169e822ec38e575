"""The JSON of a server: figures, clients, settings, replicas, archive and migrations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstream.console.api.fields import (
    BOOLEAN,
    FIGURES,
    INTEGER,
    NAME,
    NUMBER,
    TEXT,
    TIME,
    Form,
    Kind,
    Record,
    field,
    many,
    name_of_bytes,
    one,
)

if TYPE_CHECKING:
    pass

_SECTIONS = Kind(
    "object of figures of each section",
    lambda view, found: {name: FIGURES.encode(view, each) for name, each in found.items()},
)
SERVER = Form(
    "The figures of INFO by section, or those of a directory.",
    [
        field("is_server", BOOLEAN, "whether this is a server"),
        field(
            *("sections", _SECTIONS, "the sections"),
        ),
    ],
    ["q"],
)


def _seconds(name: str) -> Any:
    return lambda _, row: row.get(name, "0") if str(row.get(name, "0")).isdecimal() else 0


_CLIENT = Record(
    "client",
    [
        field("address", TEXT, "its address", lambda _, row: row.get("addr", "")),
        field("name", TEXT, "its name", lambda _, row: row.get("name", "")),
        field("user", TEXT, "its user", lambda _, row: row.get("user", "")),
        field("library", TEXT, "its library", lambda _, row: row.get("lib-name", "")),
        field("command", TEXT, "its last command", lambda _, row: row.get("cmd", "")),
        field(
            "is_blocked",
            BOOLEAN,
            "whether it waits in a command",
            lambda _, row: "b" in row.get("flags", ""),
        ),
        field("db", INTEGER, "its database", _seconds("db")),
        field("age_s", INTEGER, "seconds since it connected", _seconds("age")),
        field("idle_s", INTEGER, "seconds since its last command", _seconds("idle")),
        field("unread_bytes", INTEGER, "bytes of replies that it has not read", _seconds("omem")),
    ],
)
CLIENTS = Form(
    "The clients of a server: up to 200, none if there are more than 2,000.",
    [
        field("count", INTEGER, "all clients"),
        field("clients", many(_CLIENT), "the clients"),
    ],
)
_SLOW = Record(
    "slow command",
    [
        field("at", TIME, "when it was run", "ms", optional=True),
        field("took_us", INTEGER, "microseconds that it took"),
        field(
            "words", many(Kind("name", lambda _, word: name_of_bytes(word, 80))), "its first words"
        ),
        field("left_out", INTEGER, "words that are not shown"),
        field("client", NAME, "the address of its client"),
        field("name", NAME, "the name of its client"),
    ],
)
SLOW_LOG = Form(
    "The newest 50 slow commands.", [field("lines", many(_SLOW), "the commands, newest first")]
)
CONFIG = Form(
    "The settings of a server, without passwords and keys.",
    [field("settings", FIGURES, "the settings", lambda _, page: dict(page["settings"]))],
    ["q"],
)
_REPLICA = Record(
    "replica",
    [
        field("place", TEXT, "its address"),
        field("state", TEXT, "its state"),
        field("offset", INTEGER, "its offset", optional=True),
        field("lag_s", INTEGER, "seconds since its last sign of life", optional=True),
    ],
)
REPLICAS = Form(
    "The role of a server, and its replicas.",
    [
        field("about", FIGURES, "the section `replication` of INFO"),
        field("replicas", many(_REPLICA), "the replicas of a primary, up to 100"),
    ],
)
_ARCHIVE = Record(
    "archive",
    [
        field("url", TEXT, "where it is"),
        field("state", TEXT, "`follows` while all goes well", optional=True),
        field("error", TEXT, "what goes wrong", lambda _, row: row["error"] or None, optional=True),
        field("sequence", INTEGER, "the last commit that is archived", optional=True),
        field("put", TIME, "when it was put", "put_ms", optional=True),
        field("behind_s", NUMBER, "seconds that it is behind"),
        field("behind_bytes", INTEGER, "bytes to be put", optional=True),
        field("snapshot_sequence", INTEGER, "the commit of the last snapshot", optional=True),
        field("snapshot", TIME, "when it was made", "snapshot_ms", optional=True),
        field("puts", INTEGER, "puts so far", optional=True),
        field("put_bytes", INTEGER, "their bytes", optional=True),
    ],
)
ARCHIVE = Form(
    "What is archived.",
    [
        field(
            "archive",
            one(_ARCHIVE),
            "the archive; null: none is known",
            lambda _, page: page["facts"] or None,
            optional=True,
        )
    ],
)
_FOLLOWER = Record(
    "follower",
    [
        field("key", NAME, "the key of its journal"),
        field("error", TEXT, "why its journal cannot be read; else empty"),
        field("source", TEXT, "its source", optional=True),
        field("state", TEXT, "its state", optional=True),
        field("offset", INTEGER, "the offset that it has reached", optional=True),
        field("again", INTEGER, "keys that are to be copied again", optional=True),
        field("skipped", FIGURES, "commands that it does not take over, by name", optional=True),
        field("refused", FIGURES, "commands that were refused, by name", optional=True),
    ],
)
MIGRATIONS = Form(
    "The followers that write into this database, and streams that are being copied.",
    [
        field("followers", many(_FOLLOWER), "the followers, up to 20"),
        field("left_out", INTEGER, "followers that are not shown"),
        field("staged", many(NAME), "the streams, up to 50"),
        field("staged_count", INTEGER, "all of them"),
    ],
)
