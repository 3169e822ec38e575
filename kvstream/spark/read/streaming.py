"""Streaming reads: the range of each micro-batch, and the pieces that its tasks read.

::

    offset := {PLACE: {STREAM: [ID, ADDED] or [ID, ADDED, true]}}

ID is the last entry read. ADDED is the stream's ``entries-added`` at that entry, null if unknown.
Compared with the stream's current counts, it tells whether entries were trimmed before they were
read. The third value marks a query that begins above the stream's last ID, such as at ``now-15m``
of an idle stream. A key that is not UTF-8 is written as ``base64:...``.
"""

import base64
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kvstream.errors import InvalidArgument
from kvstream.operations.reads.counts import Ends
from kvstream.spark.options import (
    Options,
    after_id,
    duration_s,
    flag,
    number,
    places,
    refuse_options_of_batches,
)
from kvstream.spark.read.batch import read_task, tasks_for
from kvstream.spark.read.partitions import DataLoss, Piece, ReadSpec, Source, task_partitions
from kvstream.spark.read.watch import Position, Watch, watch
from kvstream.spark.schema import read_schema
from kvstream.types.clock import monotonic
from kvstream.types.ids import MIN_ID, StreamID

if TYPE_CHECKING:
    import pyarrow as pa


Offset = dict[str, dict[str, list[Any]]]
EndsByStream = dict[tuple[str, bytes], Ends]

_BASE64 = "base64:"
MAX_TRIGGER_DELAY = "15m"
"""The default of the option ``maxTriggerDelay``, as in Spark's Kafka source."""
NAMES_SHOWN = 3
"""Streams and places in the name of a source at most."""


def key_text(key: bytes) -> str:
    """Return a key as text, for an offset."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = _BASE64
    return _BASE64 + base64.b64encode(key).decode() if text.startswith(_BASE64) else text


def text_key(text: str) -> bytes:
    """Return the key for its text in an offset."""
    return base64.b64decode(text[len(_BASE64) :]) if text.startswith(_BASE64) else text.encode()


def position_in(offset: Offset, place: str, key: bytes) -> Position | None:
    """Return the position of a stream in an offset."""
    pair = offset.get(place, {}).get(key_text(key))
    return None if pair is None else Position(StreamID.parse(pair[0]), *pair[1:])


class FollowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows streams. A stream that matches a pattern joins when it is first seen."""

    def __init__(self, options: Options, schema: StructType) -> None:
        refuse_options_of_batches(options)
        self._places = places(options)
        self._spec = ReadSpec.of(options)
        self._schema = read_schema(options, schema)
        self._after = after_id(options)
        self._most = number(options, "maxentriespertrigger", None, least=1)
        self._least = number(options, "minentriespertrigger", None, least=1)
        self._delay_s = duration_s(options, "maxTriggerDelay", MAX_TRIGGER_DELAY)
        if self._least is None and "maxtriggerdelay" in options:
            raise InvalidArgument("the option maxTriggerDelay needs minEntriesPerTrigger")
        if self._least and self._most and self._least > self._most:
            raise InvalidArgument("minEntriesPerTrigger is above maxEntriesPerTrigger")
        self._fail_on_loss = flag(options, "failondataloss", True)
        self._partitions = number(options, "partitions", None, least=1)
        self._group = options.get("group", "").encode()
        if self._group and any(place.kind == "path" for place in self._places):
            raise InvalidArgument(
                "the option group needs url: by path nothing is written to the store"
            )
        self._watches: list[Watch] = []
        self._ends: EndsByStream = {}
        self._final: EndsByStream | None = None
        """Where a query with Trigger.AvailableNow ends."""
        self._shown: Offset = {}
        self._lag = 0
        """Entries after the last micro-batch, approximately."""
        self._triggered_s: float | None = None
        """When the last micro-batch began."""

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles a second reader for its tasks; open handles stay here.
        empty: dict[str, Any] = {"_watches": [], "_ends": {}, "_final": None, "_shown": {}}
        return {**self.__dict__, **empty}

    # --- offsets --------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """Return the offset at which a new query begins."""
        offset: Offset = {}
        for each, key, ends in self._streams():
            after = ends.last if self._after is None else self._after
            position = self._first(each, key, ends, after)
            offset.setdefault(each.shown, {})[key_text(key)] = _pair(position)
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit; Spark passes ReadAllAvailable in its place for ``Trigger.Once``."""
        if self._least is not None:
            return ReadMinRows(self._least)
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the query to end at the current ends of the streams."""
        self._final = {(each.shown, key): ends for each, key, ends in self._streams()}

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return what a query's progress shows as ``latestOffset``: the ends, a name and the lag.

        Spark gives Python sources no other place there: it takes the description from a class of
        its own, and has no metrics of them.
        """
        offset: Offset = {}
        for (place, key), ends in self._ends.items():
            offset.setdefault(place, {})[key_text(key)] = [str(ends.last), ends.added]
        return {"source": self._name(), "lag": self._lag, **offset}

    def _name(self) -> str:
        streams = [key_text(name) for name in (*self._spec.names, *self._spec.patterns)]
        places = [each.shown for each in self._places]
        return f"kvstream: {_some(streams)} in {_some(places)}"

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch. Raises DataLoss if some of it was trimmed."""
        self._refuse_other_places(start)
        offsets = []
        for each, key, ends in self._streams():
            position = self._position(start, each, key, ends)
            last = ends.last
            if self._final is not None:
                final = self._final.get((each.shown, key))
                last = min(last, final.last) if final else position.id
            offsets.append((each, key, ends, position, max(last, position.id)))
        self.commit(start)  # Spark does so only after the next entries
        waiting = [self._waiting(*each) for each in offsets]
        if self._is_early(limit, sum(waiting)):
            self._lag = sum(waiting)
            return start
        self._lag = 0
        most = None if isinstance(limit, ReadAllAvailable) else self._most
        offset: Offset = {}
        for (each, key, ends, position, last), count in zip(
            offsets, _allot(waiting, most), strict=True
        ):
            end = self._end(each, key, ends, position, last, count)
            self._lag += self._waiting(each, key, ends, end, ends.last)
            offset.setdefault(each.shown, {})[key_text(key)] = _pair(end)
        return offset

    def _is_early(self, limit: ReadLimit, waiting: int) -> bool:
        """Return whether the next micro-batch is to wait for more entries; the first one is not."""
        every = self._final is not None or isinstance(limit, ReadAllAvailable)
        if self._least is None or every or not waiting:
            return False
        now = monotonic()
        since = self._delay_s if self._triggered_s is None else now - self._triggered_s
        if waiting < self._least and since < self._delay_s:
            return True
        self._triggered_s = now
        return False

    def _streams(self) -> Iterator[tuple[Watch, bytes, Ends]]:
        """Catch up, and yield the existing streams with their ends."""
        if not self._watches:
            self._watches = [watch(place) for place in self._places]
        self._ends = {}
        streams = []
        for each in self._watches:
            each.refresh()
            keys = each.keys(self._spec)
            for key, ends in zip(keys, each.ends(keys), strict=True):
                if ends is not None:
                    self._ends[each.shown, key] = ends
                    streams.append((each, key, ends))
        yield from streams

    def _first(self, each: Watch, key: bytes, ends: Ends, after: StreamID) -> Position:
        """Return the position after an ID, in a stream that was not read before."""
        if after > ends.last:
            return Position(after, None, ahead=True)
        live = each.live_after(key, ends, after)
        return Position(after, None if live is None else ends.added - live)

    def _position(self, offset: Offset, each: Watch, key: bytes, ends: Ends) -> Position:
        """Return the position in an offset. Raises DataLoss if entries after it were trimmed."""
        position = position_in(offset, each.shown, key)
        if position is None:
            return self._first(each, key, ends, MIN_ID)
        if ends.last < position.id:
            if position.ahead:
                return position
            if self._fail_on_loss:
                what = f"it was read up to {position.id}, but now ends at {ends.last}"
                raise DataLoss.of(key, each.shown, what)
            return self._first(each, key, ends, MIN_ID)
        if self._fail_on_loss and position.added is not None and ends.first > position.id:
            live = ends.length if ends.last > position.id else 0
            missing = ends.added - position.added - live
            if missing > 0:
                what = f"{missing} entries after {position.id} were removed before they were read"
                raise DataLoss.of(key, each.shown, what)
            if missing < 0:
                what = f"it was recreated after it was read up to {position.id}"
                raise DataLoss.of(key, each.shown, what)
        return position

    def _waiting(
        self, each: Watch, key: bytes, ends: Ends, position: Position, last: StreamID
    ) -> int:
        """Return the approximate number of entries of a stream that are waiting."""
        if last <= position.id:
            return 0
        live = each.live_after(key, ends, position.id)
        if live is None:
            live = ends.length if position.added is None else ends.added - position.added
        return max(live, 1)

    def _end(
        self,
        each: Watch,
        key: bytes,
        ends: Ends,
        position: Position,
        last: StreamID,
        count: int | None,
    ) -> Position:
        if last <= position.id or count == 0:
            return position
        end = last if count is None else min(last, each.nth_after(key, position.id, count))
        if end == ends.last:
            return Position(end, ends.added)
        live = each.live_after(key, ends, end)
        if live is not None:
            return Position(end, ends.added - live)
        final = self._final.get((each.shown, key)) if self._final is not None else None
        if final is not None and end == final.last:
            return Position(end, final.added)
        if position.added is not None and count is not None and end < last:
            return Position(end, position.added + count)
        return Position(end, None)

    # --- tasks ----------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Split a micro-batch among tasks. It may have been planned before a restart."""
        if start == end:
            return []
        self._refuse_other_places(end)
        parts: list[tuple[Source, list[Piece]]] = []
        ends = {(each.shown, key): (each, found) for each, key, found in self._streams()}
        for each in self._watches:
            pieces: list[Piece] = []
            for text in end.get(each.shown, {}):
                key = text_key(text)
                last = position_in(end, each.shown, key)
                assert last is not None
                known = ends.get((each.shown, key))
                if known is None:
                    self._refuse_gone(each, key, position_in(start, each.shown, key), last)
                    continue
                position = self._position(start, each, key, known[1])
                if last.id > position.id:
                    pieces += each.pieces(key, position.id, last.id, self._cores())
            self._refuse_trimmed(start, each, {piece.key for piece in pieces})
            parts.append((each.source(self._fail_on_loss), pieces))
        total = sum(piece.entries for _, pieces in parts for piece in pieces)
        return task_partitions(parts, self._partitions or tasks_for(total))

    def _refuse_other_places(self, offset: Offset) -> None:
        """Raise DataLoss if the query has read a place that its options no longer name."""
        gone = sorted(offset.keys() - {place.shown for place in self._places})
        if gone and self._fail_on_loss:
            raise DataLoss(
                f"the checkpoint has positions in {_some(gone)}, but the query reads "
                f"{_some([place.shown for place in self._places])}: name each place as when the "
                "query began, use a new checkpoint, or set the option failOnDataLoss to false"
            )

    def _refuse_trimmed(self, start: Offset, each: Watch, keys: set[bytes]) -> None:
        """Raise DataLoss if some of a micro-batch was trimmed while it was being split."""
        if self._fail_on_loss and keys:
            for key, ends in zip(keys, each.ends([*keys]), strict=True):
                if ends is None:
                    raise DataLoss.of(key, each.shown, "it was deleted before it was read")
                self._position(start, each, key, ends)

    def _refuse_gone(self, each: Watch, key: bytes, first: Position | None, last: Position) -> None:
        unread = first is None or first.id < last.id
        if self._fail_on_loss and unread:
            what = f"it was deleted before it was read up to {last.id}"
            raise DataLoss.of(key, each.shown, what)

    def _cores(self) -> int:
        return self._partitions or os.cpu_count() or 1

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the entries of one task; raise if one cannot be read."""
        return read_task(partition, self._schema)

    def commit(self, end: Offset) -> None:
        """Set the group to the query's position; Spark calls this before the next micro-batch."""
        if not self._group:
            return
        for each in self._watches:
            moved = {
                text_key(text): Position(StreamID.parse(pair[0]), pair[1])
                for text, pair in end.get(each.shown, {}).items()
                if self._shown.get(each.shown, {}).get(text) != pair
                and (each.shown, text_key(text)) in self._ends
            }
            each.show_progress(self._group, moved)
        self._shown = end


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def _pair(position: Position) -> list[Any]:
    pair = [str(position.id), position.added]
    return [*pair, True] if position.ahead else pair


def _allot(waiting: Sequence[int], most: int | None) -> list[int | None]:
    """Divide ``most`` entries among streams in proportion to what waits; None: no limit."""
    total = sum(waiting)
    if most is None or total <= most:
        return [None] * len(waiting)
    counts = [most * each // total for each in waiting]
    left = most - sum(counts)
    for at in sorted(range(len(counts)), key=lambda at: counts[at] - waiting[at]):
        if left == 0:
            break
        if counts[at] < waiting[at]:
            counts[at] += 1
            left -= 1
    return list(counts)
