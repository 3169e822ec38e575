"""One transaction: the rows that a command reads and changes, on the way to one commit.

A transaction never commits itself; the engine does. Objects that it hands out are those of the
catalog and are changed in place; ``changed`` marks them for the batch. A transaction that fails
after a change makes the catalog forget what it had loaded.
"""

from typing import TYPE_CHECKING

from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.storage.batch import Batch, Family, Rows

if TYPE_CHECKING:
    from kvstream.meta.catalog import Catalog


class Txn:
    """The state of one transaction."""

    __slots__ = (
        "_members",
        "_streams",
        "batch",
        "catalog",
        "failed",
        "frees",
        "loaded",
        "now_ms",
        "read_only",
        "signals",
    )

    def __init__(
        self, rows: Rows, catalog: "Catalog", now_ms: int, read_only: bool = False
    ) -> None:
        self.batch = Batch(rows)
        self.catalog = catalog
        self.now_ms = now_ms
        self.read_only = read_only
        """The store cannot be written: what has expired is passed over, not deleted."""
        self.failed = False
        """Something broke half-way: the transaction must not be committed."""
        self.frees = False
        """The transaction makes the store smaller: allowed when the disk is nearly full."""
        self.signals: dict[bytes, None] = {}
        """Names whose waiters may go on after the commit, in order."""
        self.loaded: list[bytes] = []
        self._streams: dict[bytes, StreamMeta] = {}
        self._members: dict[bytes, GroupMeta | ConsumerMeta] = {}

    def stream(self, name: bytes) -> StreamMeta | None:
        """Return the stream of a name, or None; WrongType for another kind of value."""
        self.loaded.append(name)
        return self.catalog.stream(self, name)

    def changed(self, stream: StreamMeta) -> None:
        """Have the hot part of the stream's record written."""
        self._streams[stream.row] = stream

    def reshaped(self, stream: StreamMeta) -> None:
        """Have the whole of the stream's record written."""
        stream.cool()
        self._streams[stream.row] = stream

    def member_changed(self, member: GroupMeta | ConsumerMeta) -> None:
        """Have the record of a group or consumer written."""
        self._members[member.row] = member

    def seen(self, consumer: ConsumerMeta) -> None:
        """Note that a consumer asked for something: written with the next commit of any kind."""
        consumer.seen_ms = self.now_ms
        self.catalog.seen[consumer.row] = consumer

    def forget_stream(self, stream: StreamMeta) -> None:
        self._streams.pop(stream.row, None)

    def forget_member(self, member: GroupMeta | ConsumerMeta) -> None:
        self._members.pop(member.row, None)
        self.catalog.seen.pop(member.row, None)

    def signal(self, name: bytes) -> None:
        """Let the waiters of a name look again after the commit."""
        self.signals[name] = None

    @property
    def dirty(self) -> bool:
        return bool(self._streams or self._members or self.batch)

    def finish(self) -> Batch:
        """Put the changed records into the batch, and return it ready for the commit."""
        puts = self.batch.puts[Family.METADATA]
        for row, stream in self._streams.items():
            puts[row] = stream.encode()
        if self.catalog.seen:
            self._members.update(self.catalog.seen)
        if self._members:
            puts = self.batch.puts[Family.TREES]
            for row, member in self._members.items():
                puts[row] = member.encode()
        return self.batch

    def abandon(self) -> None:
        """Drop what the transaction changed in memory."""
        if self.dirty:
            self.catalog.forget(self.loaded)
