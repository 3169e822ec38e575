"""The transport ``url``: a server, read by XRANGE in pages, the next one asked for ahead.

Nothing here is of one moment: a read ends at the last ID that there was when it was planned, and
what is deleted meanwhile does not come. What is trimmed is noticed, as trims take the oldest: each
page begins with the last entry that was there before, which is gone where a trim has passed it.
Works with kvstream and with Redis from 7.0 on.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvstream.errors import NoSuchKey, RequestError
from kvstream.layout.columns import Columns, of_replies
from kvstream.remote.connection import Connection, connect, translated
from kvstream.remote.replies import members
from kvstream.spark.options import Place
from kvstream.spark.read.partitions import (
    PAGE_MIN,
    DataLoss,
    Ends,
    Piece,
    Wanted,
    is_meant,
    next_page,
)
from kvstream.types.ids import StreamID, new_id

if TYPE_CHECKING:
    import redis


KEYS_PAGE = 1000
PIECE_LEAST = 10_000
"""Entries below which a stream is not cut."""
PIECES_A_PART = 8
"""Pieces for each task wanted: IDs are cut evenly, and entries may not lie so."""
SAMPLED = 32
"""Entries of a page that are looked at for the size of the next."""
_TOO_LARGE = "the reply would exceed"


def client_of(place: Place) -> "redis.Redis":
    """Return a client of a place, which has connected to nothing yet."""
    client = connect(place.address)
    settings = client.connection_pool.connection_kwargs
    given = {"username": place.user, "password": place.password, "db": place.db}
    settings |= {name: value for name, value in given.items() if value is not None}
    client.response_callbacks.clear()
    return client


@dataclass(frozen=True, slots=True)
class Server:
    """A server, as tasks are told of it."""

    place: Place
    fail_on_loss: bool = True

    @property
    def shown(self) -> str:
        return self.place.shown

    def open(self) -> "ServerReading":
        return ServerReading(client_of(self.place), self)


class ServerReading:
    """A connection that reads; errors are kvstream's."""

    def __init__(self, client: "redis.Redis", source: Server | None = None) -> None:
        """``source``: what a task reads; without it this plans."""
        self._client: Any = client
        self._source = source
        self.connection = Connection(client)

    def pages(self, piece: Piece) -> Iterator[Columns]:
        """Yield the entries of a piece that there still are; DataLoss where some were trimmed."""
        with translated():
            connection = self._client.connection_pool.get_connection()
        try:
            yield from _Paging(connection, piece, self._source).pages()
        finally:
            connection.disconnect()  # a reply may still be under way
            self._client.connection_pool.release(connection)

    def close(self) -> None:
        self._client.close()

    # --- planning -------------------------------------------------------------------------------

    def streams(self, wanted: Wanted) -> list[bytes]:
        """Return the streams that a read is of, those that exist."""
        named = self.connection.ask_all([("TYPE", name) for name in wanted.names])
        keys = dict.fromkeys(
            name for name, kind in zip(wanted.names, named, strict=True) if kind != b"none"
        )
        for pattern in wanted.patterns:
            keys |= dict.fromkeys(sorted(self._scanned(pattern)))
        return list(keys)

    def _scanned(self, pattern: bytes) -> Iterator[bytes]:
        cursor = b"0"
        while True:
            words = ("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PAGE, "TYPE", "stream")
            cursor, keys = self.connection.ask(*words)
            yield from (key for key in keys if is_meant(key, pattern))
            if cursor == b"0":
                return

    def ends(self, keys: Sequence[bytes]) -> list[Ends | None]:
        """Return where streams begin and end; None for a key that has gone."""
        found: list[Ends | None] = []
        for reply in self.connection.ask_all([("XINFO", "STREAM", key) for key in keys]):
            if isinstance(reply, Exception):
                if isinstance(reply, KeyError):
                    found.append(None)
                    continue
                raise reply
            found.append(_ends_of(reply))
        return found

    def ids(self, piece: Piece, count: int) -> list[StreamID]:
        """Return the first IDs of a piece."""
        bounds = (bytes(piece.start), bytes(piece.end))
        reply = self.connection.ask("XRANGE", piece.key, *bounds, "COUNT", count)
        return [StreamID.parse(eid) for eid, _ in reply]

    def pieces(self, keys: Sequence[bytes], wanted: Wanted, parts: int) -> list[Piece]:
        """Cut streams evenly by their IDs, up to the last one that there is now."""
        ends = self.ends(keys)
        size = sum(each.length for each in ends if each) // (PIECES_A_PART * parts)
        found: list[Piece] = []
        for key, each in zip(keys, ends, strict=True):
            if each is None or not each.length:
                continue
            start, end = max(wanted.start, each.first), min(wanted.end, each.last)
            if start <= end:
                count = max(1, each.length // max(size, PIECE_LEAST))
                found += _cut(key, start, end, each.length, count)
        return self._anchored(found)

    def _anchored(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return the pieces that have entries, each from its first one on."""
        asked = [
            ("XRANGE", each.key, bytes(each.start), bytes(each.end), "COUNT", 1) for each in pieces
        ]
        found = []
        for piece, reply in zip(pieces, self.connection.ask_all(asked), strict=True):
            if isinstance(reply, Exception):
                raise reply
            if reply:
                found.append(replace(piece, start=StreamID.parse(reply[0][0]), anchored=True))
        return found


def _ends_of(reply: list[Any]) -> Ends:
    values = members(reply)
    first, last = values["first-entry"], StreamID.parse(values["last-generated-id"])
    return Ends(
        length=values["length"],
        added=values.get("entries-added", values["length"]),
        first=last if first is None else StreamID.parse(first[0]),
        last=last,
    )


def _cut(key: bytes, start: StreamID, end: StreamID, length: int, count: int) -> list[Piece]:
    """Cut a range of IDs evenly by time; by sequence where it is all of one millisecond."""
    if start.ms == end.ms:
        step = max(1, (end.seq - start.seq + 1) // count)
        cuts = [new_id((start.ms, seq)) for seq in range(start.seq + step, end.seq, step)]
    else:
        step = max(1, (end.ms - start.ms + 1) // count)
        cuts = [new_id((ms, 0)) for ms in range(start.ms + step, end.ms, step)]
    bounds = [start, *cuts[: count - 1]]
    share = max(1, length // len(bounds))
    pieces = [Piece(key, low, high.previous(), share) for low, high in pairwise(bounds)]
    return [*pieces, Piece(key, bounds[-1], end, share)]


class _Paging:
    """The pages of one piece, one after another."""

    def __init__(self, connection: Any, piece: Piece, source: Server | None) -> None:
        self._connection = connection
        self._piece = piece
        self._shown = "" if source is None else source.shown
        self._strict = source is not None and source.fail_on_loss
        self._anchor = piece.start if self._strict and piece.anchored else None
        """An entry that was there, and is the first of the next page."""
        self._again = 0
        """How many entries of the next page were read before."""

    def pages(self) -> Iterator[Columns]:
        piece, following, count = self._piece, self._piece.start, PAGE_MIN
        self._ask(following, count)
        while True:
            try:
                with translated():
                    reply = self._connection.read_response()
            except RequestError as error:
                if count == 1 or _TOO_LARGE not in str(error):
                    raise
                if count <= 1 + self._again:  # two entries are too much, one may not be
                    following, self._again = following.next(), 0
                count = max(1 + self._again, count // 8)
                self._ask(following, count)
                continue
            again = self._checked(reply)
            more = len(reply) >= count
            if more:
                # Asked for before this page is looked at: the server works while we do.
                last = StreamID.parse(reply[-1][0])
                more = last < piece.end
            if more:
                following, count = self._after(last), _next_count(reply) + self._again
                self._ask(following, count)
            if len(reply) > again:
                yield of_replies(reply[again:] if again else reply)
            if not more:
                return

    def _after(self, last: StreamID) -> StreamID:
        """Return where the next page begins."""
        if not self._strict:
            return last.next()
        self._anchor, self._again = last, 1
        return last

    def _checked(self, reply: list[Any]) -> int:
        """Return how many entries of a page were read before, once nothing is known to be lost."""
        if self._anchor is None or (reply and StreamID.parse(reply[0][0]) == self._anchor):
            return self._again
        # It was deleted alone, or is no part of this page, unless everything up to it is gone.
        with suppress(NoSuchKey), translated():
            self._connection.send_command("XINFO", "STREAM", self._piece.key)
            ends = _ends_of(self._connection.read_response())
            if ends.length and ends.first <= self._anchor:
                return 0
        what = f"entries from {self._anchor} on were trimmed before they were read"
        raise DataLoss.of(self._piece.key, self._shown, what)

    def _ask(self, following: StreamID, count: int) -> None:
        bounds = (bytes(following), bytes(self._piece.end))
        with translated():
            self._connection.send_command("XRANGE", self._piece.key, *bounds, "COUNT", count)


def _next_count(reply: list[Any]) -> int:
    """Return how many entries to ask for, by the size of the last that came."""
    sampled = reply[-SAMPLED:]
    size = sum(sum(map(len, flat)) for _, flat in sampled)
    return next_page(len(reply), size * len(reply) // len(sampled))
