"""A moment of an archive as a source: what the selected keys need is fetched into a folder."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from kvstream.archive.parts import Parts, find_moment
from kvstream.layout.keys import qualified
from kvstream.migration.items import Selection
from kvstream.migration.places import Place
from kvstream.migration.store_place import StoreSource
from kvstream.operations.reads import key_ranges
from kvstream.storage.batch import KeyRange
from kvstream.store import Store
from kvstream.types.clock import ManualClock
from kvstream.types.options import DATABASES_MAX


class ArchiveSource(StoreSource):
    """An archive at a moment; keys that had expired by then are not there."""

    def __init__(self, place: Place, selection: Selection) -> None:
        """Fetch the tables that the selected keys need, or all. Raises what a restore raises."""
        self._folder = TemporaryDirectory(prefix="kvstream-archive-", ignore_cleanup_errors=True)
        try:
            super().__init__(self._fetch(place, selection))
        except BaseException:
            self._folder.cleanup()
            raise

    def close(self) -> None:
        super().close()
        self._folder.cleanup()

    @property
    def reached(self) -> str:
        """The commit that is read, and when it was made, as text."""
        at_ms = self._moment.reached_ms
        made = datetime.fromtimestamp(at_ms // 1000, UTC)
        return f"as of {made:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}Z, commit {self._moment.sequence}"

    def _fetch(self, place: Place, selection: Selection) -> Store:
        folder = Path(self._folder.name)
        moment = self._moment = find_moment(place.address, place.at_ms)
        parts, clock = Parts(moment, folder), ManualClock(moment.now_ms)
        ranges = key_ranges.OF_ALL
        with parts.pinned():
            if selection.match:
                ranges = [key_ranges.OF_DATABASES, key_ranges.OF_RECORDS, key_ranges.OF_TREES]
                parts.make(folder / "records", ranges)
                with _open(folder / "records", clock) as store:
                    ranges = [*ranges, *_of_values(store, selection)]
            parts.make(folder / "store", ranges)
        return _open(folder / "store", clock)


def _open(directory: Path, clock: ManualClock) -> Store:
    return Store.open(directory, read_only=True, clock=clock, databases=DATABASES_MAX)


def _of_values(store: Store, selection: Selection) -> Iterator[KeyRange]:
    """Yield the rows of the values of the selected keys."""
    for item in StoreSource(store).items(selection):
        yield from store.engine.run(key_ranges.of_value, qualified(item.db, item.key))
