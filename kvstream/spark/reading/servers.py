"""The transport ``url``: a server, read by XRANGE in pages, the next one asked for ahead.

Nothing here is of one moment: a read ends at the last ID that there was when it was planned, and
what is trimmed meanwhile does not come. Works with kvstream and with Redis from 7.0 on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvstream.errors import RequestError
from kvstream.ids import StreamID, new_id
from kvstream.layout.columns import Columns, of_replies
from kvstream.remote.connection import Connection, connect
from kvstream.remote.errors import translated
from kvstream.remote.replies import members
from kvstream.spark.options import Place
from kvstream.spark.reading.pieces import PAGE_MIN, Ends, Piece, Wanted, next_page

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

    @property
    def shown(self) -> str:
        return self.place.shown

    def open(self) -> "ServerReading":
        return ServerReading(client_of(self.place))


class ServerReading:
    """A connection that reads; errors are kvstream's."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client: Any = client
        self.connection = Connection(client)

    def pages(self, piece: Piece) -> Iterator[Columns]:
        """Yield the entries of a piece that there still are."""
        with translated():
            connection = self._client.connection_pool.get_connection()
        try:
            yield from _pages(connection, piece)
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
            yield from keys
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


def _pages(connection: Any, piece: Piece) -> Iterator[Columns]:
    following, count = piece.start, PAGE_MIN
    _ask(connection, piece, following, count)
    while True:
        try:
            with translated():
                reply = connection.read_response()
        except RequestError as error:
            if count == 1 or _TOO_LARGE not in str(error):
                raise
            count = max(1, count // 8)
            _ask(connection, piece, following, count)
            continue
        more = len(reply) >= count
        if more:
            # Asked for before this page is looked at: the server works while we do.
            last = StreamID.parse(reply[-1][0])
            more = last < piece.end
        if more:
            following = last.next()
            count = _next_count(reply)
            _ask(connection, piece, following, count)
        if reply:
            yield of_replies(reply)
        if not more:
            return


def _ask(connection: Any, piece: Piece, following: StreamID, count: int) -> None:
    bounds = (bytes(following), bytes(piece.end))
    with translated():
        connection.send_command("XRANGE", piece.key, *bounds, "COUNT", count)


def _next_count(reply: list[Any]) -> int:
    """Return how many entries to ask for, by the size of the last that came."""
    sampled = reply[-SAMPLED:]
    size = sum(sum(map(len, flat)) for _, flat in sampled)
    return next_page(len(reply), size * len(reply) // len(sampled))
