"""How far a source has been followed: one string key of the target, written with every commit.

::

    journal := JSON {"state": "loading" | "following", "source": text, "replid": text, "offset": n,
                     "db": n, "again": [[db, hex of key]*], "skipped": {name: n}, "refused": {..}}

As it is in the commit of what it tells of, neither kill -9 nor a lost link can make us apply a
command twice, or leave one out. The database is part of it: a source that goes on where it was
asked to does not say SELECT again.
"""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from kvstream.errors import Corruption
from kvstream.migration.items import Selection
from kvstream.migration.replication.meaning import Name
from kvstream.migration.replication.protocol import NOWHERE, Position

JOURNAL_PREFIX = b"kvstream:follow:"
"""Opens the names of journals: no migration takes them for keys of its own."""


class State(StrEnum):
    """What a target has of its source."""

    LOADING = "loading"
    """A part of a snapshot: nothing of it is to be used."""
    FOLLOWING = "following"
    """All up to the position."""


@dataclass(slots=True)
class Journal:
    """The position in a source's history that a target stands at, and what is owed to it."""

    source: str
    state: State = State.LOADING
    position: Position = NOWHERE
    db: int = 0
    """The database that the next command is for."""
    again: set[Name] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def encode(self) -> bytes:
        return json.dumps(
            {
                "state": self.state,
                "source": self.source,
                "replid": self.position.replid.decode(),
                "offset": self.position.offset,
                "db": self.db,
                "again": sorted([db, key.hex()] for db, key in self.again),
                "skipped": self.skipped,
                "refused": self.refused,
            }
        ).encode()

    @classmethod
    def decode(cls, value: bytes) -> "Journal":
        """Return the journal that was written; Corruption where it is none."""
        try:
            told = json.loads(value)
            return cls(
                str(told["source"]),
                State(told["state"]),
                Position(told["replid"].encode(), int(told["offset"])),
                int(told["db"]),
                {(int(db), bytes.fromhex(key)) for db, key in told["again"]},
                Counter(told["skipped"]),
                Counter(told["refused"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Corruption(f"the journal of a follower is damaged: {value[:80]!r}") from error


def journal_key(source: str, selection: Selection) -> bytes:
    """Return the key of the journal of one source and what is followed of it."""
    databases = None if selection.databases is None else sorted(selection.databases)
    told = json.dumps([source, [pattern.hex() for pattern in selection.match], databases])
    return JOURNAL_PREFIX + hashlib.sha256(told.encode()).hexdigest()[:16].encode()
