"""How far a migration has come: kept in a file, so that a run that was killed can be gone on with.

::

    <state>/<32 hex digits>.jsonl       of source, target and selection
    line := {"begun": ms, "source": ..., "target": ..., "fingerprint": hex}
          | {"done": "copied", "db": 0, "key": name, "entries": 3, "bytes": 120}
          | {"at": ms, "keys": 5, "entries": 1000, "db": 0, "key": name}        progress
          | {"finished": ms, "keys": 7, "entries": 2000}
    name := text, or {"base64": ...} where it is no UTF-8

A line is whole or it is not there: a last one without its newline is cut off. A kill leaves all
lines before it; after a power cut a key may be noted that its target has lost, and so whoever goes
on looks whether it is there. No line holds a password or a value.
"""

import hashlib
import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kvstream.migration.carrying import Carried, Outcome
from kvstream.migration.held_files import hold, is_held
from kvstream.migration.items import Selection, now_ms

PROGRESS_S = 1.0
"""Between two lines of progress."""
SUFFIX = ".jsonl"

Name = tuple[int, bytes]


def default_folder() -> Path:
    """Return where journals are kept unless somebody says otherwise."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "kvstream" / "migrate"


def identity_of(source: str, target: str, selection: Selection) -> str:
    """Return what a migration is known by: the same command again goes on with the same one."""
    databases = sorted(selection.databases) if selection.databases is not None else None
    patterns = [pattern.hex() for pattern in selection.match]
    told = json.dumps([source, target, patterns, databases])
    return hashlib.sha256(told.encode()).hexdigest()[:32]


@dataclass(slots=True)
class Status:
    """What a journal tells."""

    identity: str
    source: str = ""
    target: str = ""
    fingerprint: str = ""
    begun_ms: int = 0
    at_ms: int = 0
    """Of the last line that has a time."""
    finished_ms: int | None = None
    running: bool = False
    """Whether a process holds the journal."""
    keys: int = 0
    entries: int = 0
    db: int = 0
    key: bytes | None = None
    """The key that was being carried."""
    done: dict[Name, int] = field(default_factory=dict)
    """Entries of the keys that are at the target."""

    @property
    def state(self) -> str:
        if self.running:
            return "running"
        return "interrupted" if self.finished_ms is None else "finished"


class Journal:
    """The journal of one migration, held by the process that runs it."""

    def __init__(
        self, folder: Path, identity: str, source: str, target: str, fingerprint: bytes = b""
    ) -> None:
        """``fingerprint`` is of the source: from another one an earlier run is not gone on with."""
        self.path = folder / (identity + SUFFIX)
        self._descriptor = hold(self.path, os.O_APPEND)
        before = _read(self.path)
        goes_on = before.finished_ms is None and before.fingerprint == fingerprint.hex()
        self.resumed = before.done if goes_on else {}
        """Keys, with their entries, that an interrupted run has brought to the target."""
        self._told_at = 0.0
        if not (goes_on and before.begun_ms):
            os.ftruncate(self._descriptor, 0)
            told = {"source": source, "target": target, "fingerprint": fingerprint.hex()}
            self._write(begun=now_ms(), **told)
        else:
            _cut_tail(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def _write(self, **values: Any) -> None:
        os.write(self._descriptor, json.dumps(values).encode() + b"\n")

    def done(self, carried: Carried) -> None:
        """Note that a key is where it belongs."""
        if carried.outcome in (Outcome.COPIED, Outcome.REPLACED, Outcome.SAME):
            self._write(
                done=carried.outcome.value,
                db=carried.db,
                key=_text(carried.key),
                entries=carried.entries,
                bytes=carried.bytes,
            )

    def progress(self, keys: int, entries: int, db: int, key: bytes) -> None:
        """Note how far it is, now and then."""
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_S:
            self._told_at = now
            self._write(at=now_ms(), keys=keys, entries=entries, db=db, key=_text(key))

    def finish(self, keys: int, entries: int) -> None:
        self._write(finished=now_ms(), keys=keys, entries=entries)


def statuses(folder: Path) -> Iterator[Status]:
    """Yield what the journals of a folder tell, the latest first."""
    paths = sorted(folder.glob("*" + SUFFIX), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths:
        yield _read(path, look_for_holder=True)


def _read(path: Path, look_for_holder: bool = False) -> Status:
    status = Status(path.stem)
    with path.open("rb") as file:
        if look_for_holder:
            status.running = is_held(file.fileno())
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                _take(status, json.loads(line))
            except (ValueError, KeyError, TypeError):  # none of ours: as if it were not there
                continue
    return status


def _take(status: Status, line: dict[str, Any]) -> None:
    if "begun" in line:
        status.begun_ms = status.at_ms = line["begun"]
        status.source, status.target = line["source"], line["target"]
        status.fingerprint = line["fingerprint"]
    elif "done" in line:
        status.done[line["db"], _name(line["key"])] = line["entries"]
        status.keys = len(status.done)
    elif "at" in line:
        status.at_ms, status.entries = line["at"], line["entries"]
        status.db, status.key = line["db"], _name(line["key"])
    elif "finished" in line:
        status.at_ms = status.finished_ms = line["finished"]
        status.keys, status.entries, status.key = line["keys"], line["entries"], None


def _cut_tail(descriptor: int) -> None:
    """Cut off what a power cut has left of a line."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, 1 << 16, max(0, size - (1 << 16)))
    if tail and not tail.endswith(b"\n"):
        os.ftruncate(descriptor, size - len(tail) + tail.rfind(b"\n") + 1)


def _text(name: bytes) -> str | dict[str, str]:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(name).decode()}


def _name(value: str | dict[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else b64decode(value["base64"])
