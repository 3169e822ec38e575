"""Progress files: the journal of a run, which can be resumed, and the status of a follower.

::

    <state>/<id>.jsonl      a run; id: 32 hex digits, a hash of source, target and selection
    line := {"begun": ms, "source": ..., "target": ..., "fingerprint": hex}
          | {"done": "copied", "db": 0, "key": name, "entries": 3, "bytes": 120,
             "lost": [[name, n, text]*], "corrections": [text*]}       if there are any
          | {"at": ms, "keys": 5, "entries": 1000, "db": 0, "key": name}        progress
          | {"finished": ms, "keys": 7, "entries": 2000}
    name := text, or {"base64": ...} if it is not UTF-8

    <state>/<id>.follower   a follower
    file := {"source": text, "target": text, "begun": ms, "phase": text, "since": ms, "at": ms,
             "offset": n, "commands": n, "bytes": n, "behind": [bytes, seconds] | null}

    <state>/<id>.cutover    an empty file, locked by a cut-over: a running follower of this id ends

The working process holds a lock on its file, which ends with the process. A last line without its
newline is cut off. After a power failure the journal may list a key that the target has lost, so a
resumed run checks the target. A follower file is overwritten each second and never becomes shorter;
it is only for status, since the target keeps the position. No file contains a password or a value.
"""

import fcntl
import hashlib
import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

from kvstream.errors import StoreLocked
from kvstream.migration.copy import Carried, Outcome
from kvstream.migration.items import DbKey, Selection
from kvstream.rdb.versions import Loss
from kvstream.types.clock import monotonic, now_ms
from kvstream.types.user_folders import user_folder


class RunningAlready(StoreLocked):
    """Another process migrates between the same places, or has the target."""

    tells_remedy = True


_MODE = 0o600
_FOLDER_MODE = 0o700
_TRIES, _PAUSE_S = 5, 0.02


def open_locked(path: Path, flags: int = 0, running: str = "the same migration") -> int:
    """Open or create a file and lock it; return its descriptor.

    Raises StoreLocked if another process holds the lock; ``running`` says what it does.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    except OSError as error:
        text = f"{error.strerror}; choose the folder of progress files with state (--state DIR)"
        raise OSError(error.errno, text, error.filename) from None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, _MODE)
    if not _lock(descriptor):
        os.close(descriptor)
        raise RunningAlready(f"{running} is running already ({path})")
    return descriptor


def _lock(descriptor: int) -> bool:
    """Take the lock; ``is_held`` of another process may hold it for a moment."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_PAUSE_S)
        else:
            return True
    return False


def is_held(descriptor: int) -> bool:
    """Return whether another process holds the lock of an open file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


PROGRESS_S = 1.0
"""Pause between two progress lines."""
SUFFIX = ".jsonl"


def default_folder() -> Path:
    """Return the default folder of progress files; InvalidArgument if the user has no home."""
    remedy = "choose the folder of progress files with state (--state DIR)"
    return user_folder("XDG_STATE_HOME", ".local/state", remedy) / "migrate"


def identity_of(source: str, target: str, selection: Selection) -> str:
    """Return the name of a progress file; the same command has the same one, and resumes."""
    databases = sorted(selection.databases) if selection.databases is not None else None
    patterns = [pattern.hex() for pattern in selection.match]
    text = json.dumps([source, target, patterns, databases])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Noted(NamedTuple):
    """What the report says of a key that is copied."""

    losses: list[Loss]
    corrections: list[str]


@dataclass(slots=True)
class Status:
    """The content of a journal."""

    identity: str
    source: str = ""
    target: str = ""
    fingerprint: str = ""
    begun_ms: int = 0
    at_ms: int = 0
    """Time of the last line that has one."""
    finished_ms: int | None = None
    running: bool = False
    """Whether a process holds the lock."""
    keys: int = 0
    entries: int = 0
    db: int = 0
    key: bytes | None = None
    """The key that is being copied."""
    done: dict[DbKey, int] = field(default_factory=dict)
    """The keys that are copied, with their number of entries."""
    noted: dict[DbKey, Noted] = field(default_factory=dict)
    """What was lost or corrected of some of them."""

    @property
    def state(self) -> str:
        if self.running:
            return "running"
        return "interrupted" if self.finished_ms is None else "finished"


class Journal:
    """The journal of one migration, locked by the process that runs it."""

    def __init__(
        self, folder: Path, identity: str, source: str, target: str, fingerprint: bytes = b""
    ) -> None:
        """Resume an interrupted run if ``fingerprint``, of the source, is the same; else begin."""
        self.path = folder / (identity + SUFFIX)
        self._descriptor = open_locked(self.path, os.O_APPEND)
        before = _read(self.path)
        resumes = before.finished_ms is None and before.fingerprint == fingerprint.hex()
        self.resumed = before.done if resumes else {}
        """Keys that an interrupted run has copied, with their number of entries."""
        self._noted = before.noted
        self._progress_at = 0.0
        if resumes and before.begun_ms:
            _cut_tail(self._descriptor)
        else:
            os.ftruncate(self._descriptor, 0)
            about = {"source": source, "target": target, "fingerprint": fingerprint.hex()}
            self._write(begun=now_ms(), **about)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def _write(self, **values: Any) -> None:
        os.write(self._descriptor, json.dumps(values).encode() + b"\n")

    def record_done(self, carried: Carried) -> None:
        """Record that a key is at the target."""
        if carried.outcome in (Outcome.COPIED, Outcome.REPLACED, Outcome.SAME):
            noted: dict[str, Any] = {}
            if carried.losses or carried.corrections:
                noted["lost"] = [list(loss[:3]) for loss in carried.losses]
                noted["corrections"] = carried.corrections
            self._write(
                done=carried.outcome.value,
                db=carried.db,
                key=_text(carried.key),
                entries=carried.entries,
                bytes=carried.bytes,
                **noted,
            )

    def notes_of(self, name: DbKey) -> Noted:
        """Return what an interrupted run has lost and corrected of a key that it has copied."""
        return self._noted.get(name, Noted([], []))

    def progress(self, keys: int, entries: int, db: int, key: bytes) -> None:
        """Record the progress, at most once in PROGRESS_S."""
        now = monotonic()
        if now - self._progress_at >= PROGRESS_S:
            self._progress_at = now
            self._write(at=now_ms(), keys=keys, entries=entries, db=db, key=_text(key))

    def finish(self, keys: int, entries: int) -> None:
        self._write(finished=now_ms(), keys=keys, entries=entries)


def statuses(folder: Path) -> Iterator[Status]:
    """Yield the content of the journals of a folder, the latest first."""
    for path in _latest_first(folder, SUFFIX):
        yield _read(path, check_lock=True)


def _latest_first(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.glob("*" + suffix), key=lambda path: path.stat().st_mtime, reverse=True)


def _read(path: Path, check_lock: bool = False) -> Status:
    status = Status(path.stem)
    with path.open("rb") as file:
        if check_lock:
            status.running = is_held(file.fileno())
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                _apply(status, json.loads(line))
            except (ValueError, KeyError, TypeError):  # ignore an unknown line
                continue
    return status


def _apply(status: Status, line: dict[str, Any]) -> None:
    if "begun" in line:
        status.begun_ms = status.at_ms = line["begun"]
        status.source, status.target = line["source"], line["target"]
        status.fingerprint = line["fingerprint"]
    elif "done" in line:
        name = line["db"], _name(line["key"])
        if "lost" in line:
            losses = [Loss(*each) for each in line["lost"]]
            status.noted[name] = Noted(losses, line["corrections"])
        status.done[name] = line["entries"]
        status.keys = len(status.done)
    elif "at" in line:
        status.at_ms, status.entries = line["at"], line["entries"]
        status.db, status.key = line["db"], _name(line["key"])
    elif "finished" in line:
        status.at_ms = status.finished_ms = line["finished"]
        status.keys, status.entries, status.key = line["keys"], line["entries"], None


def _cut_tail(descriptor: int) -> None:
    """Cut off a last line without a newline."""
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


FOLLOWER_SUFFIX, CUTOVER_SUFFIX = ".follower", ".cutover"
REQUESTED_S = 0.1
"""Pause between two attempts of a cut-over to take the lock of a follower."""
WRITTEN_S = 1.0
"""Pause between two writes in the same phase."""

Behind = tuple[int, float]
"""Bytes of the source's history that are not applied yet, and the seconds they have waited."""


class Phase(StrEnum):
    """What a follower is doing."""

    CONNECTING = "connecting"
    RECEIVING = "receiving a snapshot"
    LOADING = "loading a snapshot"
    FOLLOWING = "following"
    AWAITING = "waiting for the target"
    SWITCHING = "leading over"
    """The source is paused: the rest is copied, and both are compared."""
    DONE = "led over"


@dataclass(slots=True)
class Followed:
    """The status of one follower."""

    source: str = ""
    target: str = ""
    begun_ms: int = 0
    """When the source was first followed into this target."""
    phase: Phase = Phase.CONNECTING
    since_ms: int = 0
    """When this phase began."""
    at_ms: int = 0
    """When the status was written."""
    offset: int = 0
    """The offset in the source's history that the target has reached."""
    commands: int = 0
    """Commands applied."""
    bytes: int = 0
    """Bytes received from the source, snapshots included."""
    behind: Behind | None = None
    """None if unknown."""
    running: bool = False
    """Whether a process holds the lock."""

    @property
    def state(self) -> str:
        if self.running:
            return "running"
        return "finished" if self.phase is Phase.DONE else "interrupted"


class FollowerNote:
    """The status file of one follower, locked by the process that follows.

    A cut-over takes the lock over from the follower of the same places, as soon as that has ended.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        """Lock nothing yet: see ``follow`` and ``cut_over``."""
        self._path = folder / (identity + FOLLOWER_SUFFIX)
        self._request = folder / (identity + CUTOVER_SUFFIX)
        self._closing = ExitStack()
        self.has_ended_follower = False
        """Whether ``cut_over`` has ended a follower in another process."""
        self.status = Followed()

    def follow(self) -> None:
        """Take the lock; raise StoreLocked if another process follows, or cuts over."""
        if self.is_taken_over():
            raise RunningAlready(
                f"a cut-over of the same places is running already ({self._request})"
            )
        self._lock()

    def cut_over(self, said: Callable[[str], object], check: Callable[[], object]) -> None:
        """Ask a running follower to end, and take its lock; raise StoreLocked for a cut-over.

        ``check`` is called before a follower is asked, which continues if it raises. The request
        ends with this process.
        """
        is_followed = self._is_held(self._path)
        if is_followed and not self.is_taken_over():
            check()
        request = open_locked(self._request, running="a cut-over of the same places")
        self._closing.callback(os.close, request)
        has_said = False
        while True:
            try:
                self._lock()
                self.has_ended_follower = is_followed or has_said
                return
            except StoreLocked:
                if not has_said:
                    said(
                        "waiting for the --follow of the same places, which is asked to end "
                        "(Ctrl-C there ends it, too)"
                    )
                has_said = True
                time.sleep(REQUESTED_S)

    def _lock(self) -> None:
        self._descriptor = open_locked(self._path, running="a --follow of the same places")
        self._closing.callback(os.close, self._descriptor)

    def is_taken_over(self) -> bool:
        """Return whether a cut-over in another process waits for this follower to end."""
        return self._is_held(self._request)

    @staticmethod
    def _is_held(path: Path) -> bool:
        """Return whether another process holds the lock of a file, if that is there."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return is_held(descriptor)
        finally:
            os.close(descriptor)

    def last(self) -> Followed | None:
        """Return the status that was written last, by this process or another."""
        return _decode(os.pread(self._descriptor, 1 << 16, 0))

    def begin(self, source: str, target: str) -> None:
        """Write the first status."""
        before = self.last()
        if before is None or before.phase is Phase.DONE:
            before = Followed(begun_ms=now_ms())
        self.status = before
        self.status.source, self.status.target = source, target
        self.status.since_ms, self.status.phase = now_ms(), Phase.CONNECTING
        self.status.behind = None
        self._commands, self._bytes = before.commands, before.bytes
        self._size = os.fstat(self._descriptor).st_size
        self._written_at = 0.0
        self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def is_due(self) -> bool:
        """Whether the last write is WRITTEN_S ago."""
        return monotonic() - self._written_at >= WRITTEN_S

    def note(
        self, phase: Phase, offset: int, commands: int, bytes: int, behind: Behind | None
    ) -> None:
        """Write the status; ``commands`` and ``bytes`` count from the start of this process."""
        status = self.status
        if phase is not status.phase:
            status.phase, status.since_ms = phase, now_ms()
        status.offset, status.behind = offset, behind
        status.commands, status.bytes = self._commands + commands, self._bytes + bytes
        self._write()

    def _write(self) -> None:
        self.status.at_ms = now_ms()
        self._written_at = monotonic()
        fields = {key: getattr(self.status, name) for key, name in _FIELDS.items()}
        text = json.dumps(fields).encode()
        data = text.ljust(self._size - 1) + b"\n"
        os.pwrite(self._descriptor, data, 0)
        self._size = len(data)


def followers(folder: Path) -> Iterator[Followed]:
    """Yield the status of the followers of a folder, the latest first."""
    for path in _latest_first(folder, FOLLOWER_SUFFIX):
        with path.open("rb") as file:
            running = is_held(file.fileno())
            status = _decode(file.read())
        if status is not None:
            status.running = running
            yield status


_FIELDS = {
    "source": "source",
    "target": "target",
    "begun": "begun_ms",
    "phase": "phase",
    "since": "since_ms",
    "at": "at_ms",
    "offset": "offset",
    "commands": "commands",
    "bytes": "bytes",
    "behind": "behind",
}
"""The keys of a follower's file, with the fields of ``Followed``."""


def _decode(data: bytes) -> Followed | None:
    """Return the status in a file; None if it is not a status."""
    try:
        fields: dict[str, Any] = json.loads(data)
        status = Followed(**{name: fields[key] for key, name in _FIELDS.items()})
        status.phase = Phase(status.phase)
        if status.behind is not None:
            status.behind = int(status.behind[0]), float(status.behind[1])
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return status
