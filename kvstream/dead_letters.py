"""The dead letters of a queue: how to read them, and to move them back.

A message moves there after its last delivery, or when its consumer gives it up. The stream of the
letters may be that of several queues. One redrive at a time moves letters of a stream.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple

from kvstream.engine.coerce import Name, at_least_1, name_bytes, optional
from kvstream.engine.decoding import BYTES, Decoder, dead_letter_of
from kvstream.engine.interface import AnyEngine
from kvstream.engine.queue_arguments import Rate, field_and_value, rate_of
from kvstream.layout.values import FieldPart
from kvstream.operations.queues import redrive
from kvstream.operations.queues.redrive import Job
from kvstream.stream import Stream
from kvstream.surface import Public
from kvstream.types.ids import MAX_ID, MIN_ID, BoundLike, IDLike, StreamID
from kvstream.types.records import DeadLetter, RedriveInfo, S

GROUPED_MAX = 20_000
"""Dead letters that one call groups, by default."""
ERRORS_MAX = 1000
"""Errors that one call tells apart; what is left over is one group more."""
_ERROR_LENGTH = 200
"""Characters of an error that tell it from others."""
_SLICE = 1000
_OTHERS = "(other errors)"
_VARIES = re.compile(r"""'[^']*'|"[^"]*"|\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F-]{16,}\b|\d+""")
"""What differs between errors that are alike: quoted text, addresses, IDs, numbers."""


class ErrorGroup(NamedTuple):
    """Dead letters with one error."""

    error: str
    """The first line; quoted text and numbers are left out, as in ``KeyError: '…'``."""
    number: int
    first: datetime
    last: datetime
    example: StreamID
    """The ID of the last of these dead letters."""


class ErrorGroups(NamedTuple):
    """The errors of dead letters, the most frequent first."""

    groups: list[ErrorGroup]
    looked: int
    """Dead letters that were looked at, the newest ones."""
    after: StreamID | None
    """What to give as ``after`` for older ones; None: there are none."""


class DeadLetters(Public, Generic[S]):
    """The methods of a Queue for its dead letters."""

    _engine: AnyEngine
    _decoder: Decoder[S]

    def dead_stream(self) -> Stream[S]:
        """Return the stream of the dead letters."""
        raise NotImplementedError

    def dead(
        self, start: BoundLike = "-", end: BoundLike = "+", count: int | None = 100
    ) -> list[DeadLetter[S]]:
        """Return dead letters in the order in which they were given up, at most ``count``.

        They are all those of their stream: queues may share one. ``start`` and ``end`` are IDs of
        letters, or times.
        """
        entries = self.dead_stream().range(start, end, count)
        return [letter for entry in entries if (letter := dead_letter_of(entry)) is not None]

    def dead_by_error(
        self, *, count: int = GROUPED_MAX, after: IDLike | None = None
    ) -> ErrorGroups:
        """Group the newest dead letters by their errors: class and first line.

        At most ``count`` are looked at. ``after`` goes on with those before an ID. ::

            for group in queue.dead_by_error().groups:
                print(group.number, group.error, group.example)
        """
        letters = Stream(self._engine, self.dead_stream()._name, BYTES)
        left, found, looked = at_least_1(count, "count"), dict[str, list[Any]](), 0
        last = MAX_ID if after is None else StreamID.parse(after).previous()
        while left:
            page = letters.revrange(last, count=min(left, _SLICE))
            for entry in page:
                if (error := entry.fields.get(b"dead:error")) is not None:
                    _count_error(found, error, entry.id)
            looked, left = looked + len(page), left - len(page)
            if not page or page[-1].id == MIN_ID:
                return ErrorGroups(_groups(found), looked, None)
            last = page[-1].id.previous()
        is_all = not letters.revrange(last, count=1)
        return ErrorGroups(_groups(found), looked, None if is_all else last.next())

    def redrive(
        self,
        *letters: IDLike | DeadLetter[Any],
        where: tuple[FieldPart, FieldPart] | None = None,
        count: int | None = None,
        rate: Rate | None = None,
        to: Name | None = None,
        dry_run: bool = False,
    ) -> RedriveInfo[S]:
        """Move dead letters back to the streams that they come from, or ``to`` another.

        All of them, or ``letters``, or those with ``where=(field, value)``, a field of the message
        or of the letter, such as ``("dead:reason", "fatal")``; at most ``count``. A long redrive,
        and one with a ``rate``, goes on in the background: see ``redrive_status``. ``dry_run``
        tells what would be moved.
        """
        run = self._engine.run(
            redrive.dry_run if dry_run else redrive.start,
            self.dead_stream()._name,
            to=b"" if to is None else name_bytes(to, "the target"),
            ids=[_letter_id(each) for each in letters] if letters else None,
            where=None if where is None else field_and_value(where),
            count=optional(count, "count"),
            rate=None if rate is None else rate_of(rate),
        )
        return self._redrive_info(run)

    def redrive_status(self) -> RedriveInfo[S] | None:
        """Return the redrive that runs, or the last one; None if there was none."""
        run = self._engine.run(redrive.status, self.dead_stream()._name)
        return None if run is None else self._redrive_info(run)

    def cancel_redrive(self) -> bool:
        """Stop the redrive that runs; return whether one ran. What was moved stays moved."""
        return self._engine.run(redrive.cancel, self.dead_stream()._name)

    def _redrive_info(self, job: Job) -> RedriveInfo[S]:
        streams = {self._decoder.name(key): number for key, number in job.streams.items()}
        error = job.error.decode("utf-8", "replace")
        return RedriveInfo(str(job.state), job.moved, job.skipped, streams, error)


def _letter_id(letter: Any) -> StreamID:
    return letter.id if isinstance(letter, DeadLetter) else StreamID.parse(letter)


def pattern_of(error: bytes) -> str:
    """Return what an error has in common with others of its kind."""
    line = error[: 4 * _ERROR_LENGTH].decode("utf-8", "replace").strip().partition("\n")[0]
    return _VARIES.sub(_shown, line[:_ERROR_LENGTH])


def _shown(match: re.Match[str]) -> str:
    quote = match[0][0]
    return f"{quote}…{quote}" if quote in "'\"" else "N"


def _count_error(found: dict[str, list[Any]], error: bytes, eid: StreamID) -> None:
    """Count an error of a dead letter that is older than those before."""
    pattern = pattern_of(error)
    if pattern not in found and len(found) >= ERRORS_MAX:
        pattern = _OTHERS
    counted = found.setdefault(pattern, [0, eid, eid])
    counted[0] += 1
    counted[2] = eid


def _groups(found: dict[str, list[Any]]) -> list[ErrorGroup]:
    groups = [
        ErrorGroup(error, count, _time(first), _time(last), last)
        for error, (count, last, first) in found.items()
    ]
    return sorted(groups, key=lambda group: -group.number)


def _time(eid: StreamID) -> datetime:
    return datetime.fromtimestamp(min(eid.ms, _YEAR_9999_MS) / 1000, UTC)


_YEAR_9999_MS = 253_402_300_799_000
