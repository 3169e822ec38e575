"""Where ``top`` looks: at a server by its commands, or into a store that nobody holds.

Each look is bounded, whatever is there: the walk over the keys by time, the rest by the number of
streams that are shown. A walk that takes longer goes on with the next look.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from kvstream.cli.output import pages
from kvstream.cli.session import IMPORT_PREFIX
from kvstream.cli.tables import printable
from kvstream.cli.top.frames import Frame, GroupFrame, Server, StreamFrame
from kvstream.errors import NoSuchKey, RequestError, WrongType
from kvstream.layout.keys import qualified
from kvstream.operations import info as figures
from kvstream.remote.connection import Connection
from kvstream.store import Store
from kvstream.types.ids import StreamID

FIRST_WALK_S = 2.0
"""So long the first look searches the keys for streams."""
WALK_S = 0.1
"""And each later one."""
SCAN_COUNT = 1000
STREAMS_A_TRIP = 50
"""Streams asked for in one round trip."""
GROUPS_MAX = 50
"""Groups of one stream that are shown."""
PENDING_LOOKED_AT = 20
"""The age of a group's pending entries is that of the oldest of the first so many by ID: a server
tells nobody which of them all has waited longest."""


_INFO_PARTS = ("server", "clients", "memory", "stats")
"""One by one: before Redis 7 INFO takes a single section."""


class Source(Protocol):
    """What frames come from."""

    def frame(self) -> Frame:
        """Look once."""
        ...


class Found:
    """The streams that are shown: the first that were found, for as long as they exist."""

    def __init__(self, most: int) -> None:
        self.names: dict[bytes, None] = {}
        self.most = most
        self.whole = False
        """Every key has been looked at once."""
        self._seen = self._before = 0

    def add(self, names: list[bytes]) -> None:
        for name in names:
            if name.startswith(IMPORT_PREFIX):
                continue
            self._seen += 1
            if len(self.names) < self.most:
                self.names[name] = None

    def end(self) -> None:
        """Note that the walk over the keys has come to its end."""
        self._before, self._seen, self.whole = self._seen, 0, True

    @property
    def left_out(self) -> int:
        return max(0, max(self._seen, self._before) - len(self.names))


class ServerSource:
    """A server of kvstream or Redis."""

    def __init__(self, connection: Connection, place: str, match: bytes, most: int) -> None:
        self._connection = connection
        self._place = place
        self._match = match
        self._found = Found(most)
        self._cursor = 0

    def frame(self) -> Frame:
        asked = [*(("INFO", part) for part in _INFO_PARTS), ("DBSIZE",)]
        *parts, keys = _checked(self._connection.ask_all(asked))
        server = server_of(_fields(b"".join(parts)))
        self._walk()
        streams = [
            stream
            for names in pages(list(self._found.names), STREAMS_A_TRIP)
            for stream in self._streams(names)
        ]
        return Frame(
            self._place,
            monotonic(),
            keys,
            server,
            streams,
            self._found.left_out,
            self._found.whole,
        )

    def _walk(self) -> None:
        """Search the keys for streams for a while; begin anew behind the last."""
        until = monotonic() + (WALK_S if self._found.whole else FIRST_WALK_S)
        while True:
            words = ("SCAN", self._cursor, "MATCH", self._match, "COUNT", SCAN_COUNT)
            cursor, names = self._connection.ask(*words, "TYPE", "stream")
            self._cursor = int(cursor)
            self._found.add(names)
            if not self._cursor:
                self._found.end()
                return
            if monotonic() >= until:
                return

    def _streams(self, names: list[bytes]) -> Iterator[StreamFrame]:
        replies = iter(
            self._connection.ask_all(
                words
                for name in names
                for words in (
                    ("XINFO", "STREAM", name),
                    ("XINFO", "GROUPS", name),
                    ("MEMORY", "USAGE", name),
                )
            )
        )
        seen = [
            (name, info, groups, memory)
            for name, info, groups, memory in zip(names, replies, replies, replies, strict=True)
            if not self._gone(name, info) and not self._gone(name, groups)
        ]
        oldest = self._oldest(
            [(name, group) for name, _, groups, _ in seen for group in _groups(groups)]
        )
        for name, info, groups, memory in seen:
            told = _pairs(info)
            yield StreamFrame(
                name,
                told[b"length"],
                told.get(b"entries-added"),
                StreamID.parse(told[b"last-generated-id"]),
                memory if isinstance(memory, int) else None,
                [_group(each, oldest.get((name, each[b"name"]))) for each in _groups(groups)],
                max(0, len(groups) - GROUPS_MAX),
            )

    def _gone(self, name: bytes, reply: Any) -> bool:
        """Tell whether a stream has gone since it was found, or has become something else."""
        if not isinstance(reply, Exception):
            return False
        if not isinstance(reply, NoSuchKey | WrongType):
            raise reply
        self._found.names.pop(name, None)
        return True

    def _oldest(
        self, groups: list[tuple[bytes, dict[bytes, Any]]]
    ) -> dict[tuple[bytes, bytes], int]:
        """Return how long entries have been pending, of the groups that have any."""
        asked = [(name, group[b"name"]) for name, group in groups if group[b"pending"]]
        replies: list[Any] = []
        for some in pages(asked, STREAMS_A_TRIP):
            replies += self._connection.ask_all(
                ("XPENDING", name, group, "-", "+", PENDING_LOOKED_AT) for name, group in some
            )
        return {
            place: max((idle for _, _, idle, _ in reply if idle >= 0), default=0)
            for place, reply in zip(asked, replies, strict=True)
            if not isinstance(reply, Exception)  # the group has gone meanwhile
        }


def _checked(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _pairs(reply: list[Any]) -> dict[bytes, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _groups(reply: list[Any]) -> list[dict[bytes, Any]]:
    return [_pairs(group) for group in reply[:GROUPS_MAX]]


def _group(told: dict[bytes, Any], oldest_ms: int | None) -> GroupFrame:
    return GroupFrame(
        told[b"name"], told[b"consumers"], told.get(b"lag"), told[b"pending"], oldest_ms
    )


def _fields(info: bytes) -> dict[str, str]:
    lines = info.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and line[0] != "#")


def server_of(told: dict[str, str]) -> Server:
    """Return what the fields of INFO tell."""

    def amount(name: str) -> float:
        with suppress(ValueError):  # of a server that only resembles Redis
            return float(told.get(name, 0))
        return 0.0

    def number(name: str) -> int:
        return int(amount(name))

    ours = told.get("kvstream_version")
    if "redis_version" not in told and ours is None:
        raise RequestError("the server tells nothing of itself: what answers INFO there?")
    return Server(
        version=printable(f"kvstream {ours}" if ours else f"Redis {told['redis_version']}"),
        uptime_s=number("uptime_in_seconds"),
        clients=number("connected_clients"),
        blocked=number("blocked_clients"),
        memory=number("used_memory"),
        commands=number("total_commands_processed"),
        bytes_in=number("total_net_input_bytes"),
        bytes_out=number("total_net_output_bytes"),
        command_rate=amount("instantaneous_ops_per_sec"),
        in_rate=amount("instantaneous_input_kbps") * 1024,
        out_rate=amount("instantaneous_output_kbps") * 1024,
    )


class Opener(Protocol):
    """What opens the store in a directory."""

    @property
    def path(self) -> Path: ...

    def reading(self) -> AbstractContextManager[Store]: ...


class StoreSource:
    """A store in a directory, opened for each look and let go of in between."""

    def __init__(self, session: Opener, match: bytes, most: int) -> None:
        self._session = session
        self._match = match
        self._most = most

    def frame(self) -> Frame:
        with self._session.reading() as store:
            found = Found(self._most)
            self._walk(store, found)
            streams = [stream for name in found.names for stream in _stream_of_store(store, name)]
            place = str(self._session.path)
            keys = store.size()
        return Frame(place, monotonic(), keys, None, streams, found.left_out, found.whole)

    def _walk(self, store: Store, found: Found) -> None:
        until = monotonic() + FIRST_WALK_S
        for name in store.scan_keys(self._match):
            if store.type(name) == "stream":
                found.add([name])
            if monotonic() >= until:
                return
        found.end()


def _stream_of_store(store: Store, key: bytes) -> Iterator[StreamFrame]:
    name, run = qualified(store.db, key), store.engine.run
    told = run(figures.stream_figures, name)
    if told is None:  # expired just now
        return
    groups = []
    for group in run(figures.group_names, name, GROUPS_MAX):
        found = run(figures.group_figures, name, group)
        if found is not None:
            oldest = found.oldest_ms if found.pending else None
            groups.append(GroupFrame(group, found.consumers, found.lag, found.pending, oldest))
    left_out = max(0, told.groups - len(groups))
    yield StreamFrame(key, told.length, told.entries_added, told.last, None, groups, left_out)
