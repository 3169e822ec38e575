"""A stream as an RDB file or a DUMP has it: nothing is lost by reading it so."""

from collections.abc import Iterator

from kvstream.images import NodeImage, StreamState
from kvstream.rdb.kinds import Kind
from kvstream.rdb.streams import StreamReading
from kvstream.rdb.targets import Loss


class ReadStream:
    """A stream as a file or a payload has it."""

    def __init__(self, reading: StreamReading) -> None:
        self.notes: list[Loss] = []
        self.inexact_ms = 0
        self.tells_counters = reading.kind >= Kind.COUNTERS
        self._reading = reading

    def nodes(self) -> Iterator[NodeImage]:
        return self._reading.nodes()

    def state(self) -> StreamState:
        return self._reading.state()

    @property
    def corrections(self) -> list[str]:
        return self._reading.corrections
