"""Stores of parts of an archive, with only the tables that may have rows of some key ranges.

MANIFEST of the snapshot says which rows a table may have (storage/manifest.py). The log behind the
snapshot has rows of all streams, so all of it up to the moment is fetched; RocksDB writes it into
tables, once, beside none of the snapshot's. A store is then made of links to these tables and to
those of the snapshot that its ranges need. Any number of processes share one folder::

    FOLDER/tables/SHA256        tables and files of large values, as they were fetched
    FOLDER/log-PIECE-SEQUENCE/  a store of the log alone
    FOLDER/*.lock               held while the one of this name is fetched or written

A store of parts is for reading: a compaction would drop deletions of rows that it does not have.
"""

import fcntl
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvstream.archive.format import Snapshot
from kvstream.archive.history import get_snapshot, read_history
from kvstream.archive.objects import open_objects
from kvstream.archive.pieces import FETCHES
from kvstream.archive.restore import (
    Plan,
    plan_restore,
    write_logs,
    write_small_files,
    write_table,
)
from kvstream.archive.retention import pin
from kvstream.errors import ArchiveDamaged
from kvstream.storage import files
from kvstream.storage.batch import Family, KeyRange
from kvstream.storage.manifest import (
    CURRENT,
    Manifest,
    Table,
    families_of,
    newer,
    parse_manifest,
    read_manifest,
)
from kvstream.storage.options import replay_log
from kvstream.types.clock import now_ms
from kvstream.types.options import StoreOptions

_LOCK, _PARTIAL = ".lock", ".partial"


@dataclass(frozen=True, slots=True)
class Moment:
    """A commit of an archive, and the time at which the store is looked at."""

    url: str
    piece: int
    """Names the snapshot before it."""
    sequence: int
    reached_ms: int
    """The time, by the clock of the former owner, by which the commit was the last one."""
    now_ms: int
    """The time that was asked for: keys that have expired by then are not there."""


def find_moment(url: str, at_ms: int | None = None, sequence: int | None = None) -> Moment:
    """Return the last commit of an archive by a Unix time, or that of a number; by default its end.

    Raises InvalidArgument if the archive does not reach there, ArchiveDamaged, ArchiveUnavailable.
    """
    objects = open_objects(url)
    with pin(objects):
        plan = plan_restore(objects, read_history(objects), at_ms, sequence)
    now = now_ms() if at_ms is None else at_ms
    return Moment(url, plan.snapshot.piece, plan.sequence, plan.moment_ms, now)


class Parts:
    """A moment of an archive, of which stores are made. It holds no open file."""

    def __init__(self, moment: Moment, folder: Path) -> None:
        """Read the snapshot; ``folder`` is there, and may be shared by processes."""
        self._objects = open_objects(moment.url)
        self._snapshot = get_snapshot(self._objects, moment.piece)
        self._moment, self._folder = moment, folder
        self._manifest = parse_manifest(_manifest_of(self._snapshot))
        self._families = families_of(self._manifest.families)
        (folder / "tables").mkdir(files.DIRECTORY_MODE, exist_ok=True)

    def pinned(self) -> AbstractContextManager[object]:
        """Keep the archive from deleting what is fetched."""
        return pin(self._objects)

    def make(self, target: Path, ranges: Iterable[KeyRange]) -> None:
        """Make a store at ``target``, a free path on the same disk, that is complete in ``ranges``.

        Raises ArchiveDamaged if an object is missing or damaged, ArchiveUnavailable.
        """
        log, chosen = self._replay(), self._choose(ranges)
        target.mkdir(files.DIRECTORY_MODE)
        for name, path in self._fetch([each.name for each in chosen.files]):
            os.link(path, target / name)
        replayed = parse_manifest(read_manifest(log))
        for name in os.listdir(log):
            if not name.endswith(".log"):  # it is empty
                os.link(log / name, target / name)
        made = Manifest(
            replayed.families,
            chosen.tables + newer(replayed.tables, self._manifest.tables),
            chosen.blobs + [each for each in replayed.blobs if (log / each.name).exists()],
            replayed.rest,
        )
        files.write(target / files.read(log / CURRENT).decode().strip(), made.encode())

    def _choose(self, ranges: Iterable[KeyRange]) -> Manifest:
        """Return the tables of the snapshot that may have rows of the ranges.

        A table refers to files of large values, and says only which is the oldest: all later ones
        come with it.
        """
        ranges = list(ranges)
        wanted = {
            family: _Ranges((lower, upper) for of, lower, upper in ranges if of is family)
            for family in Family
        }
        manifest, families = self._manifest, self._families
        tables = [each for each in manifest.tables if wanted[families[each.family]].meet(each)]
        oldest = {
            number: min((each.blobs_from for each in tables if each.blobs_from), default=None)
            for number in {each.family for each in tables}
        }
        blobs = [
            each
            for each in manifest.blobs
            if each.name in self._snapshot.tables
            and (first := oldest.get(each.family)) is not None
            and each.number >= first
        ]
        return Manifest(manifest.families, tables, blobs, manifest.rest)

    def _fetch(self, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
        """Yield the files of these names, some fetched at a time."""
        with ThreadPoolExecutor(FETCHES) as pool:
            try:
                yield from zip(names, pool.map(self._fetch_one, names), strict=True)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _fetch_one(self, name: str) -> Path:
        """Return a file of the snapshot, which is fetched unless it is there."""
        if name not in self._snapshot.tables:
            raise ArchiveDamaged(f"the snapshot lacks {name}, which its MANIFEST names")
        digest, size = self._snapshot.tables[name]
        path = self._folder / "tables" / digest
        if not path.exists():
            with _locked(path), _replacing(path) as partial:
                if partial is not None:
                    write_table(self._objects, digest, size, partial)
        return path

    def _replay(self) -> Path:
        """Return a store of the log alone, which is made unless it is there."""
        moment = self._moment
        path = self._folder / f"log-{moment.piece:x}-{moment.sequence:x}"
        if not path.exists():
            with _locked(path), _replacing(path) as partial:
                if partial is not None:
                    self._write_log(partial)
        return path

    def _write_log(self, target: Path) -> None:
        target.mkdir(files.DIRECTORY_MODE)
        files.keep_private(target)
        write_small_files(self._snapshot, target)
        without = Manifest(self._manifest.families, [], [], self._manifest.rest)
        name = self._snapshot.files[CURRENT].decode().strip()
        files.write(target / name, without.encode())
        moment = self._moment
        write_logs(
            self._objects, Plan(self._snapshot, moment.sequence, moment.reached_ms, 0, 0, 0), target
        )
        replay_log(target, StoreOptions())


def _manifest_of(snapshot: Snapshot) -> bytes:
    try:
        return snapshot.files[snapshot.files[CURRENT].decode().strip()]
    except (KeyError, ValueError):
        raise ArchiveDamaged("the snapshot has no MANIFEST") from None


class _Ranges:
    """Key ranges of one family."""

    def __init__(self, ranges: Iterable[tuple[bytes, bytes]]) -> None:
        self._lower: list[bytes] = []
        self._upper: list[bytes] = []
        for lower, upper in sorted(ranges):
            if self._upper and lower <= self._upper[-1]:
                self._upper[-1] = max(self._upper[-1], upper)
            else:
                self._lower.append(lower)
                self._upper.append(upper)

    def meet(self, table: Table) -> bool:
        """Return whether a table may have rows of one of them."""
        at = bisect_right(self._lower, table.last)
        return at > 0 and table.first < self._upper[at - 1]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder of the shared folder."""
    descriptor = os.open(f"{path}{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, files.FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _replacing(path: Path) -> Iterator[Path | None]:
    """Give the path at which to make ``path``; None if somebody has made it meanwhile."""
    if path.exists():
        yield None
        return
    partial = Path(f"{path}{_PARTIAL}")
    if partial.exists():
        files.remove(partial)  # of a process that was killed
    try:
        yield partial
        partial.rename(path)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
