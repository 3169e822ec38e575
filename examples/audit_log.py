"""An audit log in which each entry has the hash of the one before; exported, and trimmed by age.

    python examples/audit_log.py

``verify`` finds an entry that was changed, deleted or inserted afterwards. What it cannot find:
someone who may write to the store can compute all later hashes anew, or cut off the end. Against
that keep the newest hash elsewhere from time to time, such as in another company's mailbox;
``verify`` compares it. Trimming takes the oldest entries, and the first that is left names the
hash of the one before it, which the exported file ends with. The data is in the folder
that ``DATA`` names in the environment, else in a temporary one.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import kvstream
from kvstream import Entry, Store, Stream, StreamID

NOW = datetime.now(UTC)


def hash_of(entry: Entry[str]) -> str:
    """Return the hash of an entry: of its ID, its fields, and so of all entries before it."""
    return hashlib.sha256(json.dumps([str(entry.id), entry.flat]).encode()).hexdigest()


def record(store: Store[str], who: str, what: str, at: datetime | None = None) -> None:
    """Add an entry behind the last one; the transaction lets nobody come between."""
    log = store.stream("audit")
    with store.transaction():
        last = log.revrange(count=1)
        before = hash_of(last[0]) if last else ""
        id = "*" if at is None else f"{int(at.timestamp() * 1000)}-*"
        log.add({"who": who, "what": what, "before": before}, id=id)


def verify(log: Stream[str], kept: dict[StreamID, str]) -> list[str]:
    """Return what is wrong, also with entries whose hashes were kept elsewhere."""
    wrong, before = [], None
    for entry in log.scan():
        if before is not None and entry.fields["before"] != before:
            wrong.append(f"changed before {entry.fields['what']!r}")
        before = hash_of(entry)
        if kept.get(entry.id, before) != before:
            wrong.append(f"not what was kept: {entry.fields['what']!r}")
    return wrong


def export(log: Stream[str], until: datetime, file: Path) -> Iterator[str]:
    """Append the entries before a time to a file, a line of JSON each; yield what they say."""
    with file.open("a") as lines:
        for entry in log.scan("-", until):
            lines.write(json.dumps({"id": str(entry.id), **entry.fields, "hash": hash_of(entry)}))
            lines.write("\n")
            yield entry.fields["what"]


def main(folder: Path) -> None:
    with kvstream.open(folder / "store", decode=True, durability="always") as store:
        log = store.stream("audit")
        record(store, "ann", "hired bob", NOW - timedelta(days=400))
        record(store, "ann", "raised bob's pay", NOW - timedelta(days=390))
        for what in ("logged in", "read the payroll", "logged out"):
            record(store, "bob", what)
        newest = log.revrange(count=1)[0]
        kept = {newest.id: hash_of(newest)}
        print("wrong:", verify(log, kept))

        year_ago = NOW - timedelta(days=365)
        print("exported:", list(export(log, year_ago, folder / "audit.jsonl")))
        print("trimmed:", log.trim(minid=year_ago), "left:", len(log), "wrong:", verify(log, kept))
        last_line = json.loads((folder / "audit.jsonl").read_text().splitlines()[-1])
        print("the file goes before:", last_line["hash"] == log.range(count=1)[0].fields["before"])

        log.delete(log.range()[1].id)  # what bob would like best
        print("wrong:", verify(log, kept))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(os.environ.get("DATA", temporary)))
