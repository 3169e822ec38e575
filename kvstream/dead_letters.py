"""The dead letters of a queue: how to read them, and to move them back.

A message moves there after its last delivery, or when its consumer gives it up. The stream of the
letters may be that of several queues. One redrive at a time moves letters of a stream.
"""

from __future__ import annotations

from typing import Any, Generic

from kvstream.engine.coerce import Name, name_bytes, optional
from kvstream.engine.decoding import Decoder, dead_letter_of
from kvstream.engine.interface import AnyEngine
from kvstream.engine.queue_arguments import Rate, field_and_value, rate_of
from kvstream.layout.values import FieldPart
from kvstream.operations.queues import redrive
from kvstream.operations.queues.redrive import Job
from kvstream.stream import Stream
from kvstream.surface import Public
from kvstream.types.ids import BoundLike, IDLike, StreamID
from kvstream.types.records import DeadLetter, RedriveInfo, S


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
