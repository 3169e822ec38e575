"""What ``top`` shows: a frame of a server, or of a store, at one moment; and what has changed.

It knows neither where frames come from nor how they are drawn.
"""

from dataclasses import dataclass, field, replace

from kvstream.types.ids import StreamID


@dataclass(frozen=True, slots=True)
class GroupFrame:
    """One group of a stream."""

    name: bytes
    consumers: int
    lag: int | None
    """None where it is not known."""
    pending: int
    oldest_ms: int | None
    """The longest that an entry has been pending; None: none is."""


@dataclass(frozen=True, slots=True)
class StreamFrame:
    """One stream."""

    name: bytes
    length: int
    added: int | None
    """Entries ever added; None: a server before Redis 7 does not tell."""
    last_id: StreamID
    memory: int | None
    """Bytes; None where nobody tells."""
    groups: list[GroupFrame]
    groups_left_out: int = 0
    rate: float | None = None
    """Entries added a second since the frame before."""


@dataclass(frozen=True, slots=True)
class Server:
    """What a server says of itself; rates are a second's."""

    version: str
    uptime_s: int
    clients: int
    blocked: int
    memory: int
    commands: int
    """All that it has run."""
    bytes_in: int
    bytes_out: int
    command_rate: float
    in_rate: float
    out_rate: float


@dataclass(frozen=True, slots=True)
class Frame:
    """One look."""

    place: str
    taken: float
    """When, on a clock that only goes forward, in seconds."""
    keys: int
    server: Server | None
    """None: a store was looked into."""
    streams: list[StreamFrame] = field(default_factory=list)
    left_out: int = 0
    """Streams that were found and not looked at."""
    whole: bool = True
    """False: not all keys have been searched for streams yet."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: a group with its stream, or a stream without any."""

    stream: StreamFrame
    group: GroupFrame | None


def with_rates(frame: Frame, before: Frame | None) -> Frame:
    """Return a frame with the rates since the one before it."""
    if before is None or frame.taken <= before.taken:
        return frame
    seconds = frame.taken - before.taken
    added = {stream.name: stream.added for stream in before.streams}
    streams = [
        replace(stream, rate=_rate(stream.added, added.get(stream.name), seconds))
        for stream in frame.streams
    ]
    server, past = frame.server, before.server
    if server is not None and past is not None and server.commands >= past.commands:
        server = replace(
            server,
            command_rate=(server.commands - past.commands) / seconds,
            in_rate=max(0, server.bytes_in - past.bytes_in) / seconds,
            out_rate=max(0, server.bytes_out - past.bytes_out) / seconds,
        )
    return replace(frame, streams=streams, server=server)


def _rate(now: int | None, before: int | None, seconds: float) -> float | None:
    if now is None or before is None or now < before:  # another stream of the same name
        return None
    return (now - before) / seconds


def _least(value: float | None) -> float:
    """Have what is not known sort behind all that is."""
    return -1 if value is None else value


_ORDERS = {
    "lag": lambda line: _least(line.group.lag if line.group else None),
    "pending": lambda line: _least(line.group.pending if line.group else None),
    "oldest": lambda line: _least(line.group.oldest_ms if line.group else None),
    "length": lambda line: line.stream.length,
    "rate": lambda line: _least(line.stream.rate),
    "memory": lambda line: _least(line.stream.memory),
}
"""The greatest first."""
BY_NAME = "name"
SORTS = (*_ORDERS, BY_NAME)


def lines_of(frame: Frame, sort: str) -> list[Line]:
    """Return the lines of a frame in order; equals stand by the names of stream and group."""
    lines = [
        Line(stream, group) for stream in frame.streams for group in (stream.groups or (None,))
    ]
    lines.sort(key=lambda line: (line.stream.name, line.group.name if line.group else b""))
    if sort != BY_NAME:
        lines.sort(key=_ORDERS[sort], reverse=True)
    return lines
