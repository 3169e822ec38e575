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

How far sources are followed: a file for each, beside the journals of runs, for those who look.

::

    <state>/<32 hex digits>.follower    of source, target and selection
    file := {"source": text, "target": text, "begun": ms, "phase": text, "since": ms, "at": ms,
             "offset": n, "commands": n, "bytes": n, "behind": [bytes, seconds] | null}

It is written anew each second, in one piece that never becomes shorter. Nobody goes on from it: the
position is kept by the target. It has no password and no value in it.

Files that one process holds and others look at: whether it is at work is told by the lock.

A process that dies lets go of its files; so nothing has to be cleared away behind a kill.
"""

import fcntl
import hashlib
import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from kvstream.errors import StoreLocked
from kvstream.migration.copy import Carried, Outcome
from kvstream.migration.items import Selection, now_ms

_MODE = 0o600
_FOLDER_MODE = 0o700
_TRIES, _PAUSE_S = 5, 0.02


def hold(path: Path, flags: int = 0) -> int:
    """Open a file, made where there is none, and return its descriptor, locked.

    StoreLocked where another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, _MODE)
    if not _lock(descriptor):
        os.close(descriptor)
        raise StoreLocked(f"the same migration is running already ({path})")
    return descriptor


def _lock(descriptor: int) -> bool:
    """Hold the file, against all but those who only look whether somebody does."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_PAUSE_S)
        else:
            return True
    return False


def is_held(descriptor: int) -> bool:
    """Tell whether a process holds a file that we have opened to look at."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


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


FOLLOWER_SUFFIX = ".follower"
WRITTEN_S = 1.0
"""Between two writings, while the phase stays the same."""

Behind = tuple[int, float]
"""Bytes of the source's history that are not applied, and for how long the next has waited."""


class Phase(StrEnum):
    """What a follower is at."""

    CONNECTING = "connecting"
    RECEIVING = "receiving a snapshot"
    LOADING = "loading a snapshot"
    FOLLOWING = "following"
    AWAITING = "waiting for the target"
    LEADING = "leading over"
    """The source stands still: what is left is copied, and both are compared."""
    DONE = "led over"


@dataclass(slots=True)
class Followed:
    """How far one source is followed."""

    source: str = ""
    target: str = ""
    begun_ms: int = 0
    """When it was first followed into this target."""
    phase: Phase = Phase.CONNECTING
    since_ms: int = 0
    """Since when it has been in this phase."""
    at_ms: int = 0
    """When all of this was so."""
    offset: int = 0
    """How far the target has come in the source's history."""
    commands: int = 0
    """How many commands were applied."""
    bytes: int = 0
    """How many bytes have come from the source, snapshots among them."""
    behind: Behind | None = None
    """None while nobody can tell."""
    running: bool = False
    """Whether a process holds the file."""

    @property
    def state(self) -> str:
        if self.running:
            return "running"
        return "finished" if self.phase is Phase.DONE else "interrupted"


class FollowerNote:
    """The file of one follower, held by the process that follows."""

    def __init__(self, folder: Path, identity: str, source: str, target: str) -> None:
        """StoreLocked where another process follows the same source into the same target."""
        self._descriptor = hold(folder / (identity + FOLLOWER_SUFFIX))
        before = _decoded(os.pread(self._descriptor, 1 << 16, 0))
        goes_on = before is not None and before.phase is not Phase.DONE
        self.told = before if before is not None and goes_on else Followed(begun_ms=now_ms())
        self.told.source, self.told.target = source, target
        self._commands, self._bytes = self.told.commands, self.told.bytes
        self._size = os.fstat(self._descriptor).st_size
        self._written_at = 0.0
        self.told.since_ms, self.told.phase, self.told.behind = now_ms(), Phase.CONNECTING, None
        self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    @property
    def is_due(self) -> bool:
        """Whether a second has passed since it was last written."""
        return time.monotonic() - self._written_at >= WRITTEN_S

    def note(
        self, phase: Phase, offset: int, commands: int, bytes: int, behind: Behind | None
    ) -> None:
        """Note how far it is; ``commands`` and ``bytes`` are of this process alone."""
        told = self.told
        if phase is not told.phase:
            told.phase, told.since_ms = phase, now_ms()
        told.offset, told.behind = offset, behind
        told.commands, told.bytes = self._commands + commands, self._bytes + bytes
        self._write()

    def _write(self) -> None:
        told = self.told
        told.at_ms = now_ms()
        self._written_at = time.monotonic()
        text = json.dumps(
            {
                "source": told.source,
                "target": told.target,
                "begun": told.begun_ms,
                "phase": told.phase,
                "since": told.since_ms,
                "at": told.at_ms,
                "offset": told.offset,
                "commands": told.commands,
                "bytes": told.bytes,
                "behind": told.behind,
            }
        ).encode()
        data = text.ljust(self._size - 1) + b"\n"
        os.pwrite(self._descriptor, data, 0)
        self._size = len(data)


def followers(folder: Path) -> Iterator[Followed]:
    """Yield what the files of a folder tell of followers, the latest first."""
    paths = sorted(
        folder.glob("*" + FOLLOWER_SUFFIX), key=lambda path: path.stat().st_mtime, reverse=True
    )
    for path in paths:
        with path.open("rb") as file:
            running = is_held(file.fileno())
            told = _decoded(file.read())
        if told is not None:
            told.running = running
            yield told


def _decoded(data: bytes) -> Followed | None:
    """Return what a file tells; None where it is none of ours."""
    try:
        told: dict[str, Any] = json.loads(data)
        behind = told["behind"]
        return Followed(
            told["source"],
            told["target"],
            told["begun"],
            Phase(told["phase"]),
            told["since"],
            told["at"],
            told["offset"],
            told["commands"],
            told["bytes"],
            None if behind is None else (int(behind[0]), float(behind[1])),
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return None
