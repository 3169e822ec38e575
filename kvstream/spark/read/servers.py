"""The transport ``url``: a server, read with XRANGE in pages. Works with Redis 7.0 or newer.

A read is no snapshot: it ends at the last ID that existed when it was planned, and entries deleted
meanwhile are missing from it. Trims are detected, since they remove the oldest entries: each page
begins with the last entry of the page before, which is gone if a trim has passed it.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvstream import opening
from kvstream.arrow.batches import PAGE_MIN, next_page
from kvstream.errors import NoSuchKey, RequestError, ServerUnavailable
from kvstream.layout.columns import Columns, of_replies
from kvstream.operations.reads.counts import Ends
from kvstream.remote.connection import Connection, raise_first_error
from kvstream.remote.failover import connect_present, find_replica
from kvstream.remote.replies import members
from kvstream.remote.server_errors import translate_errors
from kvstream.spark.options import Place, is_stream
from kvstream.spark.read.partitions import DataLoss, Piece, ReadSpec
from kvstream.store import Store
from kvstream.types.glob import is_listed
from kvstream.types.ids import StreamID, new_id
from kvstream.types.urls import sentinels_of

if TYPE_CHECKING:
    import redis


KEYS_PAGE = 1000
PIECE_LEAST = 10_000
"""Streams with fewer entries are not split."""
PIECES_PER_TASK = 8
"""Pieces are equal ranges of IDs, so their numbers of entries may differ."""
SAMPLED = 32
"""Entries of a page from which the length of the next one is estimated."""
_TOO_LARGE = "the reply would exceed"


def client_of(place: Place) -> "redis.Redis":
    """Return a client of a place, not connected yet; for Sentinels, of the present primary."""
    client = connect_present(place.address, user=place.user, password=place.password)
    if place.db is not None:
        client.connection_pool.connection_kwargs["db"] = place.db
    client.response_callbacks.clear()
    return client


def node_of(place: Place) -> Place | None:
    """Return a replica that Sentinels name, to plan a read with and read from; None: the place."""
    sentinels = sentinels_of(place.address)
    if sentinels is None:
        return None
    sentinels = sentinels.as_user(place.user, place.password)
    db = int(sentinels.db) if place.db is None else place.db
    url = find_replica(sentinels)
    return None if url is None else Place("url", url, db)


@dataclass(frozen=True, slots=True)
class Server:
    """A server, as a value that is pickled to tasks."""

    place: Place
    fail_on_loss: bool = True
    node: Place | None = None
    """The server that was planned with, of those that Sentinels know; None: the place itself."""

    @property
    def shown(self) -> str:
        return self.place.shown

    def open(self, pieces: Sequence[Piece]) -> "ServerReader":
        return ServerReader(self.client(), self)

    def client(self) -> "redis.Redis":
        """Return a client of the server that was planned with; if it is gone, of the primary."""
        if self.node is not None:
            client = client_of(self.node)
            try:
                Connection(client).greet()
            except ServerUnavailable:
                client.close()
            else:
                return client
        return client_of(self.place)

    def store(self) -> Store:
        """Open the server as the library does."""
        return opening.open(self.place.url, db=self.place.db)


class ServerReader:
    """Plans and reads on one server. Errors are kvstream's."""

    def __init__(self, client: "redis.Redis", source: Server | None = None) -> None:
        """``source`` is the server that a task reads; planning needs none."""
        self._client: Any = client
        self._source = source
        self.connection = Connection(client)

    def pages(self, piece: Piece) -> Iterator[Columns]:
        """Yield the remaining entries of a piece. Raises DataLoss if some were trimmed."""
        with translate_errors():
            connection = self._client.connection_pool.get_connection()
        try:
            yield from _Pager(connection, piece, self._source).pages()
        except BaseException:
            connection.disconnect()  # a reply may still be on its way
            raise
        finally:
            self._client.connection_pool.release(connection)

    def close(self) -> None:
        self._client.close()

    # --- planning -------------------------------------------------------------------------------

    def streams(self, spec: ReadSpec) -> list[bytes]:
        """Return the existing streams of a read. Raises WrongType for a key that is no stream."""
        named = raise_first_error(self.connection.ask_all([("TYPE", name) for name in spec.names]))
        keys = dict.fromkeys(
            name
            for name, kind in zip(spec.names, named, strict=True)
            if is_stream(name, kind.decode())
        )
        for pattern in spec.patterns:
            keys |= dict.fromkeys(sorted(self._scan(pattern)))
        return list(keys)

    def _scan(self, pattern: bytes) -> Iterator[bytes]:
        cursor = b"0"
        while True:
            words = ("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PAGE, "TYPE", "stream")
            cursor, keys = self.connection.ask(*words)
            yield from (key for key in keys if is_listed(key, pattern))
            if cursor == b"0":
                return

    def ends(self, keys: Sequence[bytes]) -> list[Ends | None]:
        """Return the ends of streams; None for a key that no longer exists."""
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

    def pieces(self, keys: Sequence[bytes], spec: ReadSpec, parts: int) -> list[Piece]:
        """Split streams into equal ranges of IDs, up to their current last ID."""
        ends = self.ends(keys)
        size = sum(each.length for each in ends if each) // (PIECES_PER_TASK * parts)
        pieces: list[Piece] = []
        for key, each in zip(keys, ends, strict=True):
            if each is None or not each.length:
                continue
            start, end = max(spec.start, each.first), min(spec.end, each.last)
            if start <= end:
                count = max(1, each.length // max(size, PIECE_LEAST))
                pieces += _split(key, start, end, each.length, count)
        return self._anchor(pieces)

    def _anchor(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Drop the pieces without entries, and begin each at its first entry."""
        commands = [
            ("XRANGE", each.key, bytes(each.start), bytes(each.end), "COUNT", 1) for each in pieces
        ]
        found = []
        for piece, reply in zip(pieces, self.connection.ask_all(commands), strict=True):
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


def _split(key: bytes, start: StreamID, end: StreamID, length: int, count: int) -> list[Piece]:
    """Split a range of IDs evenly by time, or by sequence if it lies in one millisecond."""
    if start.ms == end.ms:
        step = max(1, (end.seq - start.seq + 1) // count)
        cuts = [new_id((start.ms, seq)) for seq in range(start.seq + step, end.seq, step)]
    else:
        step = max(1, (end.ms - start.ms + 1) // count)
        cuts = [new_id((ms, 0)) for ms in range(start.ms + step, end.ms, step)]
    bounds = [start, *cuts[: count - 1]]
    entries = max(1, length // len(bounds))
    pieces = [Piece(key, low, high.previous(), entries) for low, high in pairwise(bounds)]
    return [*pieces, Piece(key, bounds[-1], end, entries)]


class _Pager:
    """Reads the pages of one piece, one after another."""

    def __init__(self, connection: Any, piece: Piece, source: Server | None) -> None:
        self._connection = connection
        self._piece = piece
        self._shown = "" if source is None else source.shown
        self._strict = source is not None and source.fail_on_loss
        self._anchor = piece.start if self._strict and piece.anchored else None
        """An entry that existed, and is to be the first of the next page."""
        self._repeated = 0
        """The number of entries of the next page that were read before: 1 or 0."""

    def pages(self) -> Iterator[Columns]:
        piece, following, count = self._piece, self._piece.start, PAGE_MIN
        self._request(following, count)
        while True:
            try:
                with translate_errors():
                    reply = self._connection.read_response()
            except RequestError as error:
                if count == 1 or _TOO_LARGE not in str(error):
                    raise
                if count <= 1 + self._repeated:  # two entries are too large, one may fit
                    following, self._repeated = following.next(), 0
                count = max(1 + self._repeated, count // 8)
                self._request(following, count)
                continue
            repeated = self._check(reply)
            last = StreamID.parse(reply[-1][0]) if len(reply) >= count else piece.end
            more = last < piece.end
            if more:  # before this page is decoded, so that the server works meanwhile
                following, count = self._after(last), _next_count(reply) + self._repeated
                self._request(following, count)
            if len(reply) > repeated:
                yield of_replies(reply[repeated:] if repeated else reply)
            if not more:
                return

    def _after(self, last: StreamID) -> StreamID:
        """Return the start of the next page."""
        if not self._strict:
            return last.next()
        self._anchor, self._repeated = last, 1
        return last

    def _check(self, reply: list[Any]) -> int:
        """Return the number of entries read before. Raises DataLoss if the anchor was trimmed."""
        if self._anchor is None or (reply and StreamID.parse(reply[0][0]) == self._anchor):
            return self._repeated
        # The anchor is missing: XDEL took it alone, unless all entries up to it are gone.
        with suppress(NoSuchKey), translate_errors():
            self._connection.send_command("XINFO", "STREAM", self._piece.key)
            ends = _ends_of(self._connection.read_response())
            if ends.length and ends.first <= self._anchor:
                return 0
        what = f"entries from {self._anchor} on were trimmed before they were read"
        raise DataLoss.of(self._piece.key, self._shown, what)

    def _request(self, following: StreamID, count: int) -> None:
        bounds = (bytes(following), bytes(self._piece.end))
        with translate_errors():
            self._connection.send_command("XRANGE", self._piece.key, *bounds, "COUNT", count)


def _next_count(reply: list[Any]) -> int:
    """Return the length of the next page, from the size of the last entries."""
    sampled = reply[-SAMPLED:]
    size = sum(sum(map(len, flat)) for _, flat in sampled)
    return next_page(len(reply), size * len(reply) // len(sampled))
