"""A streaming read: how far each micro-batch goes, and what tasks read of it.

::

    offset := {PLACE: {STREAM: [ID, ADDED]}}

ID is that of the last entry read, ADDED the number of entries that the stream had been given up to
it, null where nobody knows: with both, and what the stream tells now, what was trimmed unread is
told apart from what was not. A stream whose key is no UTF-8 is called ``base64:...``.
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
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kvstream.errors import InvalidArgument
from kvstream.spark.options import Options, after_id, flag, number, places
from kvstream.spark.read.batch import read_share, tasks_for
from kvstream.spark.read.partitions import DataLoss, Ends, Piece, Source, Wanted, shares
from kvstream.spark.read.progress import Position, Watch, watch
from kvstream.spark.schema import shape_of
from kvstream.types.ids import MIN_ID, StreamID

if TYPE_CHECKING:
    import pyarrow as pa


Offset = dict[str, dict[str, list[Any]]]
Heads = dict[tuple[str, bytes], Ends]

_ODD = "base64:"


def key_text(key: bytes) -> str:
    """Return a key as offsets name it."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = _ODD
    return _ODD + base64.b64encode(key).decode() if text.startswith(_ODD) else text


def text_key(text: str) -> bytes:
    """Return the key that offsets call so."""
    return base64.b64decode(text[len(_ODD) :]) if text.startswith(_ODD) else text.encode()


def position_in(offset: Offset, place: str, key: bytes) -> Position | None:
    """Return where an offset says that a stream is."""
    told = offset.get(place, {}).get(key_text(key))
    return None if told is None else Position(StreamID.parse(told[0]), told[1])


class FollowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows streams; those that a pattern fits join when they are first seen."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._places = places(options)
        self._wanted = Wanted.of(options)
        self._shape = shape_of(options, schema)
        self._after = after_id(options)
        self._most = number(options, "maxentriespertrigger", None, least=1)
        self._fail_on_loss = flag(options, "failondataloss", True)
        self._partitions = number(options, "partitions", None, least=1)
        self._group = options.get("group", "").encode()
        if self._group and any(place.kind == "path" for place in self._places):
            raise InvalidArgument(
                "the option group needs url: by path nothing is written to the store"
            )
        self._watches: list[Watch] = []
        self._heads: Heads = {}
        self._frozen: Heads | None = None
        self._planned: Offset | None = None
        """The last end that was told: Spark asks for the pieces of it at once."""
        self._shown: Offset = {}

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles a second reader for its tasks; what is open stays here.
        empty: dict[str, Any] = {"_watches": [], "_heads": {}, "_frozen": None, "_shown": {}}
        return {**self.__dict__, **empty, "_planned": None}

    # --- how far --------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """Return where a new query begins."""
        offset: Offset = {}
        for each, key, ends in self._look():
            after = ends.last if self._after is None else self._after
            position = self._first(each, key, ends, after)
            offset.setdefault(each.shown, {})[key_text(key)] = _told(position)
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end where the streams end now."""
        self._frozen = {(each.shown, key): ends for each, key, ends in self._look()}

    def reportLatestOffset(self) -> Offset | None:
        """Return where the streams ended when they were last looked at."""
        offset: Offset = {}
        for (place, key), ends in self._heads.items():
            offset.setdefault(place, {})[key_text(key)] = [str(ends.last), ends.added]
        return offset or None

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch; DataLoss where some of it was trimmed."""
        found = []
        for each, key, ends in self._look():
            position = self._position(start, each, key, ends)
            last = ends.last
            if self._frozen is not None:
                frozen = self._frozen.get((each.shown, key))
                last = min(last, frozen.last) if frozen else position.id
            found.append((each, key, ends, position, max(last, position.id)))
        self._show(start)  # which is done with: Spark tells by commit only once more has come
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        waiting = [self._waiting(*each) for each in found]
        offset: Offset = {}
        for (each, key, ends, position, last), count in zip(
            found, _allotted(waiting, most), strict=True
        ):
            end = self._end(each, key, ends, position, last, count)
            offset.setdefault(each.shown, {})[key_text(key)] = _told(end)
        self._planned = offset
        return offset

    def _look(self, refresh: bool = True) -> Iterator[tuple[Watch, bytes, Ends]]:
        """Yield the streams that there are now, each with its ends.

        Without ``refresh`` a store is as it was when it was last looked at.
        """
        if not self._watches:
            self._watches = [watch(place) for place in self._places]
        self._heads = {}
        found = []
        for each in self._watches:
            if refresh:
                each.refresh()
            keys = each.keys(self._wanted)
            for key, ends in zip(keys, each.ends(keys), strict=True):
                if ends is not None:
                    self._heads[each.shown, key] = ends
                    found.append((each, key, ends))
        yield from found

    def _first(self, each: Watch, key: bytes, ends: Ends, after: StreamID) -> Position:
        """Return a position in a stream that was not read before."""
        live = each.live_after(key, ends, after)
        return Position(after, None if live is None else ends.added - live)

    def _position(self, offset: Offset, each: Watch, key: bytes, ends: Ends) -> Position:
        """Return where to go on in a stream, once nothing before that is missing."""
        position = position_in(offset, each.shown, key)
        if position is None:
            return self._first(each, key, ends, MIN_ID)
        if ends.last < position.id:
            if self._fail_on_loss:
                what = f"it was read up to {position.id}, and now ends at {ends.last}"
                raise DataLoss.of(key, each.shown, what)
            return self._first(each, key, ends, MIN_ID)
        if self._fail_on_loss and position.added is not None and ends.first > position.id:
            live = ends.length if ends.last > position.id else 0
            missing = ends.added - position.added - live
            if missing > 0:
                what = f"{missing} entries after {position.id} were removed before they were read"
                raise DataLoss.of(key, each.shown, what)
        return position

    def _waiting(
        self, each: Watch, key: bytes, ends: Ends, position: Position, last: StreamID
    ) -> int:
        """Return about how many entries of a stream are to be read."""
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
        frozen = self._frozen.get((each.shown, key)) if self._frozen is not None else None
        if frozen is not None and end == frozen.last:
            return Position(end, frozen.added)
        if position.added is not None and count is not None and end < last:
            return Position(end, position.added + count)
        return Position(end, None)

    # --- what is read ---------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Cut a micro-batch; it may be one that was planned before a restart."""
        if start == end:
            return []
        parts: list[tuple[Source, list[Piece]]] = []
        looked = self._look(refresh=end != self._planned)
        ends = {(each.shown, key): (each, found) for each, key, found in looked}
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
        return shares(parts, self._partitions or tasks_for(total))

    def _refuse_trimmed(self, start: Offset, each: Watch, keys: set[bytes]) -> None:
        """Raise DataLoss where some of a micro-batch was removed while it was being cut."""
        if self._fail_on_loss and keys:
            for key, ends in zip(keys, each.ends([*keys]), strict=True):
                if ends is None:
                    raise DataLoss.of(key, each.shown, "it has gone before it was read")
                self._position(start, each, key, ends)

    def _refuse_gone(self, each: Watch, key: bytes, first: Position | None, last: Position) -> None:
        unread = first is None or first.id < last.id
        if self._fail_on_loss and unread:
            raise DataLoss.of(key, each.shown, f"it has gone before it was read up to {last.id}")

    def _cores(self) -> int:
        return self._partitions or os.cpu_count() or 1

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the entries of one share; raises where one cannot be read."""
        return read_share(partition, self._shape)

    def commit(self, end: Offset) -> None:
        """Show in the group how far the query is; called before the next micro-batch."""
        self._show(end)

    def _show(self, offset: Offset) -> None:
        if not self._group:
            return
        for each in self._watches:
            moved = {
                text_key(text): Position(StreamID.parse(told[0]), told[1])
                for text, told in offset.get(each.shown, {}).items()
                if self._shown.get(each.shown, {}).get(text) != told
                and (each.shown, text_key(text)) in self._heads
            }
            each.show_progress(self._group, moved)
        self._shown = offset


def _told(position: Position) -> list[Any]:
    return [str(position.id), position.added]


def _allotted(waiting: Sequence[int], most: int | None) -> list[int | None]:
    """Share out ``most`` entries among streams by what waits in each; None: all of it."""
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
