"""The transport ``archive``: a moment of an archive, read without its server.

The planner finds the commit of the moment, and divides the streams by their nodes. Each task
fetches the tables that may have rows of its own ranges, and the log behind the snapshot
(kvstream/archive/parts.py), into a folder that the tasks of a machine share. To find the rows of a
stream it reads first the numbers of the databases, then the record of the stream.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from uuid import uuid4

from kvstream.archive.parts import Moment, Parts, find_moment
from kvstream.layout.columns import Columns
from kvstream.layout.keys import qualified
from kvstream.operations.reads import key_ranges
from kvstream.spark.options import Place
from kvstream.spark.read.fetched import shared_folder
from kvstream.spark.read.partitions import Piece, ReadSpec
from kvstream.spark.read.stores import CACHE_BYTES, CopyReader, pieces_of, streams_of
from kvstream.storage.batch import KeyRange
from kvstream.store import Store
from kvstream.types.clock import ManualClock
from kvstream.types.ids import MAX_ID


@dataclass(frozen=True, slots=True)
class Archived:
    """A moment of an archive."""

    moment: Moment
    shown: str
    db: int
    staging: str | None

    @contextmanager
    def fetching(self) -> Iterator["_Fetching"]:
        """Keep the archive from deleting, and what is fetched from being removed."""
        with shared_folder(self.moment.url, self.staging) as folder:
            parts = Parts(self.moment, folder)
            with parts.pinned():
                yield _Fetching(self, parts, folder)

    def open(self, pieces: Sequence[Piece]) -> "ArchiveReader":
        """Fetch what the pieces need, and open it."""
        with ExitStack() as opened:
            with self.fetching() as fetching:
                with fetching.records([piece.key for piece in pieces]) as store:
                    for piece in pieces:
                        fetching.add_entries(store, piece)
                opened.enter_context(shared_folder(self.moment.url, self.staging))
                store = opened.enter_context(fetching.store())
            return ArchiveReader(store, opened.pop_all())

    @contextmanager
    def table(self, spec: ReadSpec) -> Iterator[Store]:
        """Open what the metadata tables of streams need: of entries the first and the newest."""
        with self.fetching() as fetching:
            fetching.ranges.append(key_ranges.OF_TREES)
            with fetching.records(spec.names, bool(spec.patterns)) as store:
                for key in streams_of(store, spec):
                    name = qualified(self.db, key)
                    fetching.ranges += store.engine.run(key_ranges.of_first, name)
            with fetching.store() as store:
                yield store


class _Fetching:
    """Opens stores with the rows that are known to be needed so far."""

    def __init__(self, archived: Archived, parts: Parts, folder: Path) -> None:
        self.ranges: list[KeyRange] = [key_ranges.OF_DATABASES]
        self._archived, self._parts, self._folder = archived, parts, folder

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Fetch and open, with the clock stopped at the moment."""
        target = self._folder / f"store-{uuid4().hex}"
        try:
            self._parts.make(target, self.ranges)
            with Store.open(
                target,
                read_only=True,
                db=self._archived.db,
                clock=ManualClock(self._archived.moment.now_ms),
                block_cache_bytes=CACHE_BYTES,
            ) as store:
                yield store
        finally:
            rmtree(target, ignore_errors=True)

    @contextmanager
    def records(self, keys: Sequence[bytes], with_all: bool = False) -> Iterator[Store]:
        """Open the records of keys, or of all, to find their rows."""
        if with_all:
            self.ranges.append(key_ranges.OF_RECORDS)
        else:
            names = [qualified(self._archived.db, key) for key in keys]
            with self.store() as store:
                self.ranges += store.engine.run(key_ranges.of_records, names)
        with self.store() as store:
            yield store

    def add_entries(self, store: Store, piece: Piece) -> None:
        """Add the rows that a read of a piece may see."""
        name = qualified(self._archived.db, piece.key)
        self.ranges += store.engine.run(key_ranges.of_entries, name, piece.start, piece.end)


def find(place: Place, at_ms: int | None, staging: str | None) -> Archived:
    """Find the commit of a moment; None is the end of the archive."""
    return Archived(find_moment(place.address, at_ms), place.shown, place.db or 0, staging)


def plan(
    source: Archived, spec: ReadSpec, tasks: int, require: Callable[[list[bytes]], None]
) -> list[Piece]:
    """Divide the streams of a read for a number of tasks; ``require`` checks which there are."""
    with source.fetching() as fetching:
        with fetching.records(spec.names, bool(spec.patterns)) as store:
            keys = streams_of(store, spec)
            require(keys)
            for key in keys:
                fetching.add_entries(store, Piece(key, MAX_ID, MAX_ID, 0))
        with fetching.store() as store:
            return pieces_of(store, keys, spec, tasks)


class ArchiveReader:
    """An open store of parts of an archive."""

    def __init__(self, store: Store, opened: ExitStack) -> None:
        self._reader, self._opened = CopyReader(store), opened

    def pages(self, piece: Piece) -> Iterator[Columns]:
        """Yield the entries of a piece. Raises Corruption if the store counts another number."""
        return self._reader.pages(piece)

    def close(self) -> None:
        self._opened.close()
