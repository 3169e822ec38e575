"""The figures of streams, groups and queues: samples of a store in a directory, or on a server.

The cost of a sample is bounded: that of the scan over the keys by time, that of the rest by the
number of streams that are shown. A longer scan continues with the next sample of the same server.
All figures come from operations of the library, so they are the same for a directory, a server of
kvstream and Redis; Redis has no queues, and only servers tell the memory of streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvstream.cli.output import pages
from kvstream.cli.tables import printable
from kvstream.errors import KVStreamError, NoSuchKey, RequestError, WrongType
from kvstream.types.clock import monotonic
from kvstream.types.glob import is_listed
from kvstream.types.ids import StreamID
from kvstream.types.records import GroupInfo, PendingEntry

if TYPE_CHECKING:
    from kvstream.operations.queues.info import GroupQueue, QueueInfo
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
    replication: ReplicationSample | None = None
    """None for a server that nobody follows, and that follows none."""


@dataclass(frozen=True, slots=True)
class ReplicationSample:
    """The role of a server, and the lag between primary and replicas."""

    role: str
    """``primary`` or ``replica``."""
    state: str
    """As INFO of kvstream says it; empty for a Redis."""
    replicas: int
    replicaof: str
    """The primary of a replica, as HOST:PORT."""
    link: str
    """``up`` or ``down``; empty for a primary."""
    lag_rows: int
    lag_s: float


@dataclass(frozen=True, slots=True)
class WorkersSample:
    """The workers of an application, at their last beats."""

    jobs: bytes
    """The name of the Jobs."""
    states: dict[str, int]
    running: int
    late: int
    """Late jobs, and jobs that still run after they were given up."""
    oldest_ms: int


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
    workers: list[WorkersSample] = field(default_factory=list)

    @property
    def has_queues(self) -> bool:
        """Whether any stream is used as a queue."""
        return any(
            stream.delayed or any(group.queue is not None for group in stream.groups)
            for stream in self.streams
        )


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


SCAN_S = (2.0, 0.1)
"""How long the first sample scans the keys for streams, and each later one."""
WORKERS_SHOWN = 500
"""Workers of one application that are counted, the latest beats."""
STREAMS_PER_TRIP = 50
"""Streams in one round trip to the server."""
GROUPS_MAX = 50
"""Groups of one stream that are shown."""
PENDING_SAMPLED = 20
"""Pending entries of a group, lowest IDs first, among which the oldest is looked up: a server does
not report the oldest of all."""


class Sampler:
    """Takes samples of the store that ``opened`` returns; a directory is opened for each."""

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[Store]],
        place: str,
        match: bytes = b"*",
        most: int = 100,
        scan_s: tuple[float, float] = SCAN_S,
    ) -> None:
        """``place`` is shown; of the streams whose names match, the first ``most`` are sampled."""
        self._scan_s = scan_s
        self._opened = opened
        self._place, self._match, self._most = place, match, most
        self._engine: object = None
        self._restart()

    def _restart(self) -> None:
        """Forget the streams of another engine."""
        self._names: dict[bytes, None] = {}
        """The streams that are shown: the first that the scan finds, as long as they exist."""
        self._whole = False
        """Whether a scan over all keys has been completed."""
        self._seen = self._before = 0
        """The streams that this scan has seen, and the one before."""
        self._key_pages: Iterator[list[bytes]] | None = None

    def sample(self) -> Sample:
        with self._opened() as store:
            if store._engine is not self._engine:
                self._restart()
                self._engine = store._engine
            server = _server_of(store)
            keys = store.size()
            self._scan(store)
            ours = server is None or server.version.startswith("kvstream")
            streams = [
                stream
                for names in pages(list(self._names), STREAMS_PER_TRIP)
                for stream in self._streams(store, names, ours)
            ]
            workers = [found for name in self._names if (found := _workers(store, name))]
        left_out = max(0, max(self._seen, self._before) - len(self._names))
        return Sample(
            self._place, monotonic(), keys, server, streams, left_out, self._whole, workers
        )

    def _scan(self, store: Store) -> None:
        """Scan the keys for streams for a while; start again after the last key."""
        until = monotonic() + self._scan_s[self._whole]
        key_pages, self._key_pages = self._key_pages or _stream_pages(store, self._match), None
        for page in key_pages:
            for name in page:
                if is_listed(name, self._match):
                    self._seen += 1
                    if len(self._names) < self._most:
                        self._names[name] = None
            if monotonic() >= until:
                self._key_pages = key_pages
                return
        self._before, self._seen, self._whole = self._seen, 0, True

    def _streams(self, store: Store, names: list[bytes], ours: bool) -> Iterator[StreamSample]:
        from kvstream.operations import claim, info  # not for a help text
        from kvstream.operations.queues.info import QueueInfo, queue_info
        from kvstream.types.ids import MAX_ID, MIN_ID

        stored = {name: store.name_of(name) for name in names}
        found = _ask(store, [(info.stream_info, each) for each in stored.values()])
        groups = _ask(store, [(info.group_infos, each) for each in stored.values()])
        seen = [
            (name, about, listed)
            for name, about, listed in zip(names, found, groups, strict=True)
            if not self._is_gone(name, about) and not self._is_gone(name, listed)
        ]
        queues: Sequence[Any] = [None] * len(seen)
        if ours:
            queues = _ask(store, [(queue_info, stored[name]) for name, *_ in seen])
        pending = [
            (name, group.name)
            for name, _, listed in seen
            for group in listed[:GROUPS_MAX]
            if group.pending
        ]
        bounds = (MIN_ID, MAX_ID, PENDING_SAMPLED)
        asked = [(claim.pending_range, stored[name], group, *bounds) for name, group in pending]
        first = dict(zip(pending, _ask(store, asked), strict=True))
        memory = _memory(store, [name for name, *_ in seen])
        for (name, about, listed), queue, size in zip(seen, queues, memory, strict=True):
            known = queue if isinstance(queue, QueueInfo) else None  # an older server knows none
            yield StreamSample(
                *(name, about.length, about.entries_added, about.last_generated_id, size),
                [_group(each, first.get((name, each.name)), known) for each in listed[:GROUPS_MAX]],
                max(0, len(listed) - GROUPS_MAX),
                delayed=known.delayed if known is not None else 0,
            )

    def _is_gone(self, name: bytes, result: Any) -> bool:
        """Return whether a stream was deleted or replaced by a key of another type."""
        if not isinstance(result, Exception):
            return False
        if not isinstance(result, NoSuchKey | WrongType):
            raise result
        self._names.pop(name, None)
        return True


def _workers(store: Store, name: bytes) -> WorkersSample | None:
    """Return the workers that a stream lists; None if it is no registry of workers."""
    from kvstream.operations.queues.workers import (  # not for a help text
        SUFFIX,
        figures_of,
        jobs_of,
    )

    if not name.endswith(SUFFIX):
        return None
    figures = figures_of(store.stream(name).revrange(count=WORKERS_SHOWN), store.now_ms())
    if not figures.states:
        return None
    tasks = figures.tasks.values()
    return WorkersSample(
        jobs=jobs_of(store.name_of(name)),
        states={state: n for state, n in figures.states.items() if n},
        running=sum(task.running for task in tasks),
        late=figures.hanging + sum(task.late for task in tasks),
        oldest_ms=round(1000 * max((task.oldest_s for task in tasks), default=0.0)),
    )


def _ask(store: Store, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Run operations with their arguments; return the result of each, or its error.

    A server gets them in one round trip.
    """
    from kvstream.remote.engine import RemoteEngine  # not for a help text
    from kvstream.remote.operations import call_of

    engine, results = store._engine, list[Any]()
    if isinstance(engine, RemoteEngine):
        made = [call_of(operation, *arguments) for operation, *arguments in calls]
        words = [each for call in made for each in call.commands]
        replies = iter(engine.connection(store.db).ask_all(words) if words else ())
        for call in made:
            own = [next(replies) for _ in call.commands]
            error = next((each for each in own if isinstance(each, Exception)), None)
            results.append(call.result(own) if error is None else error)
        return results
    for operation, *arguments in calls:
        try:
            results.append(engine.run(operation, *arguments))
        except KVStreamError as error:
            results.append(error)
    return results


def _stream_pages(store: Store, match: bytes) -> Iterator[list[bytes]]:
    """Yield the names of the streams in pages, which may be empty."""
    from kvstream.remote.engine import RemoteEngine

    engine = store._engine
    if isinstance(engine, RemoteEngine):
        yield from engine.connection(store.db).key_pages("MATCH", match, "TYPE", "stream")
        return
    for name in store.scan_keys(match):
        yield [name] if store.type(name) == "stream" else []


def _memory(store: Store, names: Sequence[bytes]) -> list[int | None]:
    """Return the bytes of streams on a server, if its user may know them."""
    from kvstream.remote.engine import RemoteEngine

    if not isinstance(store._engine, RemoteEngine):
        return [None] * len(names)
    words = [("MEMORY", "USAGE", name) for name in names]
    sizes = store._engine.connection(store.db).ask_all(words) if words else []
    return [size if isinstance(size, int) else None for size in sizes]


def _group(
    group: GroupInfo, pending: list[PendingEntry] | Exception | None, queue: QueueInfo | None
) -> GroupSample:
    rows = pending if isinstance(pending, list) else []  # an error: the group was deleted meanwhile
    idle = [row.idle_ms for row in rows if row.consumer and row.idle_ms is not None]
    figures = {each.name: each for each in queue.groups} if queue is not None else {}
    return GroupSample(
        *(group.name, group.consumers, group.lag, group.pending, max(idle, default=None)),
        _queue(group, figures.get(group.name)),
    )


def _queue(group: GroupInfo, figures: GroupQueue | None) -> QueueSample | None:
    """Return the figures of a group; None if it has no policy."""
    if figures is None or figures.policy is None:
        return None
    read = group.entries_read
    return QueueSample(
        *(figures.ready, figures.leased, figures.waiting, figures.held, figures.dead),
        oldest_age_ms=figures.oldest_ms or None,
        paused=figures.policy.paused,
        done=None if read is None else max(0, read - group.pending),
        next_ms=figures.next_ms,
        dead_letter=figures.policy.dead_letter,
    )


def _server_of(store: Store) -> ServerSample | None:
    """Return the counters of a server; None for a directory."""
    from kvstream.remote.engine import RemoteEngine

    if not isinstance(store._engine, RemoteEngine):
        return None
    sections = store.stats()
    return server_sample_of({name: each[name] for each in sections.values() for name in each})


def server_sample_of(info: dict[str, Any]) -> ServerSample:
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
        replication=_replication_of(info, number, amount),
    )


def _replication_of(
    info: dict[str, Any], number: Callable[[str], int], amount: Callable[[str], float]
) -> ReplicationSample | None:
    is_replica = info.get("role") == "slave"
    if not (is_replica or number("connected_slaves")):
        return None
    source = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
    return ReplicationSample(
        role="replica" if is_replica else "primary",
        state=printable(str(info.get("replication_state", ""))),
        replicas=number("connected_slaves"),
        replicaof=printable(source) if is_replica else "",
        link=printable(str(info.get("master_link_status", "?"))) if is_replica else "",
        lag_rows=number("replication_lag_rows"),
        lag_s=amount("replication_lag_seconds"),
    )
