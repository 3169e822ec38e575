"""The samples of ``top``: taken from a server by its commands, or from a store in a directory.

A sample has rates and an order of its lines. Its cost is bounded: the scan over the keys by time,
everything else by the number of streams that are shown. A longer scan continues with the next
sample. The figures of queues, for groups that have a policy, cost a command a stream on a kvstream
server, and nothing on any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from kvstream.cli.output import pages
from kvstream.cli.session import IMPORT_PREFIX, DirectorySession
from kvstream.cli.tables import printable
from kvstream.errors import KVStreamError, NoGroup, NoSuchKey, RequestError, WrongType
from kvstream.types.clock import monotonic
from kvstream.types.ids import StreamID
from kvstream.types.records import ConsumerInfo, PendingEntry

if TYPE_CHECKING:
    from kvstream.meta.policy import GroupPolicy
    from kvstream.operations.queues.info import GroupQueue, QueueInfo
    from kvstream.remote.connection import Connection
    from kvstream.store import Store


@dataclass(frozen=True, slots=True)
class QueueSample:
    """The messages of a group that has a policy."""

    ready: int | None
    """For the next readers; None if they are too many to count."""
    leased: int
    waiting: int
    """Given back, to be repeated after a delay."""
    held: int
    """Behind another one of their key."""
    dead: int
    """The length of the dead-letter stream."""
    oldest_age_ms: int | None
    """The time since the oldest message that is not done was added; None if there is none."""
    paused: bool
    done: int | None
    """Messages that were delivered and are no longer pending; None if that is unknown."""
    done_rate: float | None = None
    """Messages done per second since the last sample."""
    next_ms: int | None = None
    """The time until the first waiting message is ready; None if none waits."""
    dead_letter: bytes = b""
    """The stream of its dead letters, if its rules name one; other queues may share it."""


@dataclass(frozen=True, slots=True)
class GroupSample:
    """One group of a stream."""

    name: bytes
    consumers: int
    lag: int | None
    """None if it is unknown."""
    pending: int
    oldest_ms: int | None
    """The longest time that an entry has been pending; None if no entry is."""
    queue: QueueSample | None = None
    """None for a group without a policy."""

    @property
    def ready(self) -> int | None:
        """Return how many entries the next readers may get; None if that is unknown."""
        if self.queue is None or self.queue.ready is None:
            return self.lag
        return self.queue.ready


@dataclass(frozen=True, slots=True)
class StreamSample:
    """One stream."""

    name: bytes
    length: int
    added: int | None
    """Entries ever added; None for a server before Redis 7."""
    last_id: StreamID
    memory: int | None
    """Bytes; None if they are unknown."""
    groups: list[GroupSample]
    groups_left_out: int = 0
    rate: float | None = None
    """Entries added per second since the last sample."""
    delayed: int = 0
    """Messages that are not due yet."""


@dataclass(frozen=True, slots=True)
class ServerSample:
    """The counters of a server; rates are per second."""

    version: str
    uptime_s: int
    clients: int
    blocked: int
    memory: int
    commands: int
    """Commands since its start."""
    bytes_in: int
    bytes_out: int
    command_rate: float
    in_rate: float
    out_rate: float


@dataclass(frozen=True, slots=True)
class Sample:
    """A server or store at one moment."""

    place: str
    taken: float
    """Its time on the monotonic clock, in seconds."""
    keys: int
    server: ServerSample | None
    """None for a store."""
    streams: list[StreamSample] = field(default_factory=list)
    left_out: int = 0
    """Streams that were found but not sampled."""
    whole: bool = True
    """Whether all keys have been searched for streams."""

    @property
    def has_queues(self) -> bool:
        """Whether any stream is used as a queue."""
        return any(
            stream.delayed or any(group.queue is not None for group in stream.groups)
            for stream in self.streams
        )


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """The consumers of a group, its first pending entries, and its policy."""

    consumers: list[ConsumerInfo]
    pending: list[PendingEntry]
    policy: GroupPolicy | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: a group with its stream, or a stream without groups."""

    stream: StreamSample
    group: GroupSample | None


def with_rates(sample: Sample, before: Sample | None) -> Sample:
    """Return a sample with the rates since the one before."""
    if before is None or sample.taken <= before.taken:
        return sample
    seconds = sample.taken - before.taken
    past_streams = {stream.name: stream for stream in before.streams}
    streams = [
        _stream_with_rates(stream, past_streams.get(stream.name), seconds)
        for stream in sample.streams
    ]
    server, past = sample.server, before.server
    if server is not None and past is not None and server.commands >= past.commands:
        server = replace(
            server,
            command_rate=(server.commands - past.commands) / seconds,
            in_rate=max(0, server.bytes_in - past.bytes_in) / seconds,
            out_rate=max(0, server.bytes_out - past.bytes_out) / seconds,
        )
    return replace(sample, streams=streams, server=server)


def _stream_with_rates(
    stream: StreamSample, before: StreamSample | None, seconds: float
) -> StreamSample:
    if before is None:
        return stream
    past = {group.name: group.queue for group in before.groups}
    groups = [_group_with_rate(group, past.get(group.name), seconds) for group in stream.groups]
    return replace(stream, rate=_rate(stream.added, before.added, seconds), groups=groups)


def _group_with_rate(group: GroupSample, before: QueueSample | None, seconds: float) -> GroupSample:
    if group.queue is None or before is None:
        return group
    rate = _rate(group.queue.done, before.done, seconds)
    return replace(group, queue=replace(group.queue, done_rate=rate))


def _rate(now: int | None, before: int | None, seconds: float) -> float | None:
    if now is None or before is None or now < before:  # the stream was deleted and made anew
        return None
    return (now - before) / seconds


def _unknown_last(value: float | None) -> float:
    """Return a sort key that puts None last."""
    return -1 if value is None else value


_ORDERS = {
    "lag": lambda line: _unknown_last(line.group.ready if line.group else None),
    "pending": lambda line: _unknown_last(line.group.pending if line.group else None),
    "oldest": lambda line: _unknown_last(line.group.oldest_ms if line.group else None),
    "length": lambda line: line.stream.length,
    "rate": lambda line: _unknown_last(line.stream.rate),
    "memory": lambda line: _unknown_last(line.stream.memory),
}
"""These sort by the greatest value first."""
BY_NAME = "name"
SORTS = (*_ORDERS, BY_NAME)


def lines_of(sample: Sample, sort: str) -> list[Line]:
    """Return the lines of a sample, sorted, and then by stream and group."""
    lines = [
        Line(stream, group) for stream in sample.streams for group in (stream.groups or (None,))
    ]
    lines.sort(key=lambda line: (line.stream.name, line.group.name if line.group else b""))
    if sort != BY_NAME:
        lines.sort(key=_ORDERS[sort], reverse=True)
    return lines


FIRST_SCAN_S, SCAN_S = 2.0, 0.1
"""How long the first sample scans the keys for streams, and each later one."""
SCAN_COUNT = 1000
STREAMS_PER_TRIP = 50
"""Streams in one round trip to the server."""
GROUPS_MAX = 50
"""Groups of one stream that are shown."""
PENDING_SAMPLED = 20
"""Pending entries of a group, lowest IDs first, among which the oldest is looked up: a server does
not report the oldest of all."""

_INFO_PARTS = ("server", "clients", "memory", "stats")
"""Sections of INFO, requested one by one: before Redis 7 it takes only one."""


class ShownStreams:
    """The streams that are shown: the first that the scan finds, as long as they exist."""

    def __init__(self, most: int) -> None:
        self.names: dict[bytes, None] = {}
        self.most = most
        self.whole = False
        """Whether a scan over all keys has been completed."""
        self._seen = self._before = 0

    def add(self, names: list[bytes]) -> None:
        for name in names:
            if name.startswith(IMPORT_PREFIX):
                continue
            self._seen += 1
            if len(self.names) < self.most:
                self.names[name] = None

    def end(self) -> None:
        """Count a scan over the keys as completed."""
        self._before, self._seen, self.whole = self._seen, 0, True

    @property
    def left_out(self) -> int:
        return max(0, max(self._seen, self._before) - len(self.names))


class ServerSampler:
    """Samples a server of kvstream or Redis."""

    def __init__(self, connection: Connection, place: str, match: bytes, most: int) -> None:
        self._connection = connection
        self._place = place
        self._match = match
        self._found = ShownStreams(most)
        self._cursor = 0
        self._has_queues = False
        """Whether the server is ours: others have no policies."""

    def sample(self) -> Sample:
        from kvstream.remote.connection import checked  # not for a help text

        asked = [*(("INFO", part) for part in _INFO_PARTS), ("DBSIZE",)]
        *parts, keys = checked(self._connection.ask_all(asked))
        fields = _fields(b"".join(parts))
        server = server_sample_of(fields)
        self._has_queues = "kvstream_version" in fields
        self._scan()
        streams = [
            stream
            for names in pages(list(self._found.names), STREAMS_PER_TRIP)
            for stream in self._streams(names)
        ]
        return Sample(
            self._place,
            monotonic(),
            keys,
            server,
            streams,
            self._found.left_out,
            self._found.whole,
        )

    def details(self, stream: bytes, group: bytes, count: int) -> GroupDetails | None:
        """Return up to ``count`` pending entries of a group; None if it is gone."""
        from kvstream.remote.connection import checked
        from kvstream.remote.replies import consumer_info_of, pending_entries_of

        words = ("XINFO", "CONSUMERS", stream, group), ("XPENDING", stream, group, "-", "+", count)
        replies = self._connection.ask_all(words)
        for reply in replies:
            if isinstance(reply, NoSuchKey | NoGroup | WrongType):
                return None
        consumers, pending = checked(replies)
        return GroupDetails(
            list(map(consumer_info_of, consumers)),
            pending_entries_of(pending),
            policy_on_server(self._connection, stream, group) if self._has_queues else None,
        )

    def _scan(self) -> None:
        """Scan the keys for streams for a while; start again after the last key."""
        until = monotonic() + (SCAN_S if self._found.whole else FIRST_SCAN_S)
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

    def _streams(self, names: list[bytes]) -> Iterator[StreamSample]:
        from kvstream.remote.replies import members

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
            if not self._is_gone(name, info) and not self._is_gone(name, groups)
        ]
        oldest = self._oldest(
            [(name, group) for name, _, groups, _ in seen for group in _groups(groups)]
        )
        infos = self._infos([name for name, *_ in seen])
        for name, raw, groups, memory in seen:
            fields, queue_of = members(raw), groups_of(infos[name])
            yield StreamSample(
                name,
                fields["length"],
                fields.get("entries-added"),
                StreamID.parse(fields["last-generated-id"]),
                memory if isinstance(memory, int) else None,
                [
                    _group(each, oldest.get((name, each["name"])), queue_of.get(each["name"]))
                    for each in _groups(groups)
                ],
                max(0, len(groups) - GROUPS_MAX),
                delayed=infos[name].delayed,
            )

    def _infos(self, names: list[bytes]) -> Mapping[bytes, QueueInfo]:
        """Return the figures of streams as queues."""
        if not self._has_queues:
            return dict.fromkeys(names, no_queue())
        return infos_of_server(self._connection, names)

    def _is_gone(self, name: bytes, reply: Any) -> bool:
        """Return whether a stream was deleted or replaced by a key of another type."""
        if not isinstance(reply, Exception):
            return False
        if not isinstance(reply, NoSuchKey | WrongType):
            raise reply
        self._found.names.pop(name, None)
        return True

    def _oldest(
        self, groups: list[tuple[bytes, Mapping[str, Any]]]
    ) -> dict[tuple[bytes, bytes], int]:
        """Return the age of the oldest pending entry with a consumer of each group that has any."""
        asked = [(name, group["name"]) for name, group in groups if group["pending"]]
        replies: list[Any] = []
        for some in pages(asked, STREAMS_PER_TRIP):
            replies += self._connection.ask_all(
                ("XPENDING", name, group, "-", "+", PENDING_SAMPLED) for name, group in some
            )
        ages = {
            place: [idle for _, _, idle, _ in reply if idle >= 0]
            for place, reply in zip(asked, replies, strict=True)
            if not isinstance(reply, Exception)  # the group was deleted meanwhile
        }
        return {place: max(idle) for place, idle in ages.items() if idle}


def _groups(reply: list[Any]) -> list[Mapping[str, Any]]:
    from kvstream.remote.replies import members

    return [members(group) for group in reply[:GROUPS_MAX]]


def _group(raw: Mapping[str, Any], oldest_ms: int | None, queue: GroupQueue | None) -> GroupSample:
    counts = raw["consumers"], raw.get("lag"), raw["pending"], oldest_ms
    return GroupSample(
        raw["name"], *counts, sample_of(queue, raw.get("entries-read"), raw["pending"])
    )


def _fields(info: bytes) -> dict[str, str]:
    lines = info.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and line[0] != "#")


def server_sample_of(info: dict[str, str]) -> ServerSample:
    """Return the counters of a server from the fields of INFO."""

    def amount(name: str) -> float:
        with suppress(ValueError):  # a server that only resembles Redis
            return float(info.get(name, 0))
        return 0.0

    def number(name: str) -> int:
        return int(amount(name))

    kvstream = info.get("kvstream_version")
    if "redis_version" not in info and kvstream is None:
        raise RequestError(
            "INFO names no version: is there a kvstream or Redis server at this URL?"
        )
    version = f"kvstream {kvstream}" if kvstream else f"Redis {info['redis_version']}"
    return ServerSample(
        version=printable(version),
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


class StoreSampler:
    """Samples a store in a directory, which it opens for each sample."""

    def __init__(self, session: DirectorySession, match: bytes, most: int) -> None:
        self._session = session
        self._match = match
        self._most = most

    def sample(self) -> Sample:
        with self._session.reading() as store:
            shown = ShownStreams(self._most)
            self._scan(store, shown)
            streams = [stream for name in shown.names for stream in _stream_samples(store, name)]
            place = str(self._session.path)
            keys = store.size()
        return Sample(place, monotonic(), keys, None, streams, shown.left_out, shown.whole)

    def details(self, stream: bytes, group: bytes, count: int) -> GroupDetails | None:
        """Return up to ``count`` pending entries of a group; None if it is gone."""
        with self._session.reading() as store, suppress(NoSuchKey, NoGroup, WrongType):
            stored = store.stream(stream).group(group)
            pending = stored.pending_range(count=count)
            return GroupDetails(stored.consumers(), pending, stored.policy())
        return None

    def _scan(self, store: Store, found: ShownStreams) -> None:
        until = monotonic() + FIRST_SCAN_S
        for name in store.scan_keys(self._match):
            if store.type(name) == "stream":
                found.add([name])
            if monotonic() >= until:
                return
        found.end()


def _stream_samples(store: Store, key: bytes) -> Iterator[StreamSample]:
    from kvstream.layout.keys import qualified  # not for a help text
    from kvstream.operations import info

    name, run = qualified(store.db, key), store.engine.run
    stream = run(info.stream_figures, name)
    if stream is None:  # expired just now
        return
    groups, queue_info = [], info_of_store(store, key)
    queue_of = groups_of(queue_info)
    for group in run(info.group_names, name, GROUPS_MAX):
        figures = run(info.group_figures, name, group)
        if figures is not None:
            oldest = figures.oldest_ms if figures.pending > figures.nacked else None
            queue = sample_of(queue_of.get(group), figures.entries_read, figures.pending)
            counts = figures.consumers, figures.lag, figures.pending, oldest
            groups.append(GroupSample(group, *counts, queue))
    left_out = max(0, stream.groups - len(groups))
    yield StreamSample(
        *(key, stream.length, stream.entries_added, stream.last, None, groups, left_out),
        delayed=queue_info.delayed,
    )


Sampler: TypeAlias = ServerSampler | StoreSampler


# --- queues -------------------------------------------------------------------------------------


def no_queue() -> QueueInfo:
    """Return what a server without queues says of a stream."""
    from kvstream.operations.queues.info import QueueInfo  # not for a help text

    return QueueInfo(0, 0, 0, [], None)


def sample_of(
    group: GroupQueue | None, entries_read: int | None, pending: int
) -> QueueSample | None:
    """Return the figures of a group; None if it has no policy."""
    if group is None or group.policy is None:
        return None
    return QueueSample(
        *(group.ready, group.leased, group.waiting, group.held, group.dead),
        oldest_age_ms=group.oldest_ms or None,
        paused=group.policy.paused,
        done=None if entries_read is None else max(0, entries_read - pending),
        next_ms=group.next_ms,
        dead_letter=group.policy.dead_letter,
    )


def groups_of(info: QueueInfo) -> Mapping[bytes, GroupQueue]:
    """Return the groups of a stream by name."""
    return {group.name: group for group in info.groups}


def info_of_store(store: Store, key: bytes) -> QueueInfo:
    """Return the figures of a stream as a queue."""
    from kvstream.layout.keys import qualified
    from kvstream.operations.queues.info import queue_info

    with suppress(NoSuchKey):  # expired just now
        return store.engine.run(queue_info, qualified(store.db, key))
    return no_queue()


def infos_of_server(connection: Connection, names: Sequence[bytes]) -> Mapping[bytes, QueueInfo]:
    """Return the figures of streams as queues; an older server knows none."""
    from kvstream.remote.replies import queue_info_of

    replies = connection.ask_all(("KVSTREAM.INFO", name) for name in names)
    return {
        name: no_queue() if isinstance(reply, Exception) else queue_info_of(reply)
        for name, reply in zip(names, replies, strict=True)
    }


def policy_on_server(connection: Connection, stream: bytes, group: bytes) -> GroupPolicy | None:
    """Return the policy of a group; None if it has none, or an older server knows none."""
    from kvstream.remote.replies import policy_of

    with suppress(KVStreamError):
        return policy_of(connection.ask("KVSTREAM.POLICY", "GET", stream, group))
    return None
