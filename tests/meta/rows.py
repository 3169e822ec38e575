"""Transactions on the metadata of a bare database, without an engine around it."""

from itertools import count

from kvstream.layout.rows import Rows
from kvstream.meta.catalog import Catalog
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations.reads.rows import read_rows
from kvstream.storage.database import Database
from kvstream.types.ids import StreamID
from kvstream.types.options import StoreOptions
from kvstream.types.thresholds import DEFAULT, Thresholds

NOW_MS = 1_700_000_000_000
_numbers = count()


def fresh_name() -> bytes:
    """Return the qualified name of a stream that no other test has."""
    return b"\x00\x00stream %d" % next(_numbers)


class Metadata:
    """A catalog, and one transaction after the other."""

    def __init__(
        self,
        database: Database,
        options: StoreOptions | None = None,
        thresholds: Thresholds = DEFAULT,
    ) -> None:
        self.database = database
        self.catalog = Catalog(options or StoreOptions(), thresholds)
        self.txn = self._begun()

    def _begun(self) -> Txn:
        return Txn(self.database, self.catalog, NOW_MS)

    def commit(self) -> None:
        batch = self.txn.finish()
        if batch is not None:
            self.database.write(batch)
        self.txn = self._begun()

    def abandon(self) -> None:
        self.txn.abandon(changed=True)
        self.txn = self._begun()

    def reload(self) -> None:
        """Commit, and drop everything in memory."""
        self.commit()
        self.catalog.forget()
        self.txn = self._begun()

    def stream(self, name: bytes) -> StreamMeta:
        """Return a stream, created if it is missing."""
        return self.txn.stream(name) or self.catalog.create_stream(self.txn, name)

    def group(self, name: bytes, group: bytes = b"g") -> GroupMeta:
        """Return a stream's group, created if it is missing."""
        stream = self.stream(name)
        found = self.catalog.group(self.txn, stream, group)
        return found or self.catalog.create_group(self.txn, stream, group)

    def consumer(self, group: GroupMeta, name: bytes) -> ConsumerMeta:
        """Return a group's consumer, created if it is missing."""
        found = self.catalog.consumer(self.txn, group, name)
        return found or self.catalog.create_consumer(self.txn, group, name)


def between(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int | None = None
) -> Rows:
    """Return the first ``count`` entries of ``start <= id <= end``."""
    return Rows(read_rows(txn, stream, start, end, count), len(stream.prefix))
