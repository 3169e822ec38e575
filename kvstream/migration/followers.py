"""How far sources are followed: a file for each, beside the journals of runs, for those who look.

::

    <state>/<32 hex digits>.follower    of source, target and selection
    file := {"source": text, "target": text, "begun": ms, "phase": text, "since": ms, "at": ms,
             "offset": n, "commands": n, "bytes": n, "behind": [bytes, seconds] | null}

It is written anew each second, in one piece that never becomes shorter. Nobody goes on from it: the
position is kept by the target. It has no password and no value in it.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from kvstream.migration.held_files import hold, is_held
from kvstream.migration.items import now_ms

SUFFIX = ".follower"
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
        self._descriptor = hold(folder / (identity + SUFFIX))
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
    paths = sorted(folder.glob("*" + SUFFIX), key=lambda path: path.stat().st_mtime, reverse=True)
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
