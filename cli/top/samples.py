"""The data of ``top``: a sample of a server or store, its rates, and the order of its lines."""

from dataclasses import dataclass, field, replace

from kvstream.types.ids import StreamID


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
    added = {stream.name: stream.added for stream in before.streams}
    streams = [
        replace(stream, rate=_rate(stream.added, added.get(stream.name), seconds))
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


def _rate(now: int | None, before: int | None, seconds: float) -> float | None:
    if now is None or before is None or now < before:  # the stream was deleted and made anew
        return None
    return (now - before) / seconds


def _unknown_last(value: float | None) -> float:
    """Return a sort key that puts None last."""
    return -1 if value is None else value


_ORDERS = {
    "lag": lambda line: _unknown_last(line.group.lag if line.group else None),
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
