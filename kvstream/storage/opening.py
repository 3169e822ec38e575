"""Open a store only if its log recovers everything that its watermark promises.

What RocksDB does at open is final: it cuts the log at the first damaged record, and removes every
SST file that its manifest, perhaps a torn one, does not name. So a store is first recovered in a
view that only links to its files, and a refused store stays as it was.

Without a watermark a store that has no rows is half-created, and is completed; one with rows is
refused, since its losses are unknown. This module opens RocksDB only through an ``opener``.
"""

from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from struct import Struct
from typing import Protocol, TypeVar

from kvstream.errors import Corruption, DataError, LostWrites, NoSuchStore, StoreError
from kvstream.storage import directory, files
from kvstream.storage.directory import Directory, View
from kvstream.storage.watermark import Mark, Watermark
from kvstream.types.options import StoreOptions

_HEAD = Struct("<IHBQ")


class Access(Enum):
    """How RocksDB opens a directory."""

    CREATE = auto()
    WRITE = auto()
    READ = auto()
    FOLLOW = auto()
    """For reading while another process writes."""
    SALVAGE = auto()
    """For writing, skipping every damaged record of the log."""
    REPLAY = auto()
    """For writing the log into tables, without any compaction."""


class Recovered(Protocol):
    """An open RocksDB, as this module uses it."""

    def latest_sequence_number(self) -> int: ...

    def close(self) -> None: ...


Rocks = TypeVar("Rocks", bound=Recovered)
Rocks_co = TypeVar("Rocks_co", bound=Recovered, covariant=True)


class Opener(Protocol[Rocks_co]):
    """Opens directories with RocksDB, and closes them if the opening fails."""

    def __call__(self, path: Path, access: Access, own: Path | None = None) -> Rocks_co:
        """Open a directory; with FOLLOW ``own`` is a folder for what RocksDB writes."""
        ...

    def close(self) -> None:
        """Close all databases that were opened: a kept exception may refer to them."""
        ...


@dataclass(frozen=True, slots=True)
class Loss:
    """What was lost by opening a damaged store."""

    damage: str
    recovered: int
    """The last sequence number that the store has."""
    promised: int | None
    """The last one that was acknowledged as durable; None when the watermark is lost too."""
    skipped_records: bool
    """Damaged records lie within what was recovered: only ``check`` can tell what they held."""
    kept: Path
    """The store as it was."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The parts of an open store besides RocksDB."""

    directory: Directory
    watermark: Watermark | None
    """None for a reader."""
    view: View | None
    """The view that a reader has opened."""
    loss: Loss | None

    def describe_displacement(self) -> str | None:
        """Return that the store or a file of it was removed or replaced; None if it was not."""
        what = self.directory.describe_displacement()
        if what is not None or self.watermark is None:
            return what
        if self.watermark.is_replaced() or self.directory.has_lost_layout():
            return f"files in {self.directory.path} were removed or replaced while it was open"
        return None

    def close_files(self) -> None:
        """Close the watermark and remove the view; the directory stays locked."""
        if self.watermark is not None:
            self.watermark.close()
        if self.view is not None:
            self.view.remove()

    def release(self, discard: bool = False, abandoned: bool = False) -> None:
        """Release the directory too; idempotent. ``abandoned``: RocksDB stays open."""
        self.close_files()
        if discard:
            self.directory.discard()
        self.directory.release(abandoned)


def open_any(
    place: Directory, options: StoreOptions, opener: Opener[Rocks]
) -> tuple[Rocks, Opened]:
    """Open the store in a locked directory as its options say.

    On failure RocksDB is closed, then the directory is released.
    """
    opening = (
        open_follower if options.following else open_reader if options.read_only else open_writer
    )
    try:
        return opening(place, options, opener)
    except BaseException as error:
        opener.close()
        place.discard()
        if isinstance(error, OSError):
            reason = directory.show_paths(str(error))
            raise StoreError(f"cannot open the store in {place.path}: {reason}") from None
        raise


def open_reader(
    place: Directory, options: StoreOptions, opener: Opener[Rocks]
) -> tuple[Rocks, Opened]:
    """Open a view of a store that no process writes, for reading."""
    mark = _read_mark(place)
    view = place.open_view()
    try:
        rocks = opener(view.path, Access.READ)
        if not options.accept_loss:
            _refuse_loss(rocks, mark)
            _refuse_gap(rocks, place, opener)
        return rocks, Opened(place, None, view, None)
    except BaseException:
        view.remove()
        raise


def open_follower(
    place: Directory, options: StoreOptions, opener: Opener[Rocks]
) -> tuple[Rocks, Opened]:
    """Open the store while another process writes it; RocksDB's own files go into a view."""
    view = View.of_reader(())
    try:
        rocks = opener(place.own_path, Access.FOLLOW, view.path)
        return rocks, Opened(place, None, view, None)
    except BaseException:
        view.remove()
        raise


def open_writer(
    place: Directory, options: StoreOptions, opener: Opener[Rocks]
) -> tuple[Rocks, Opened]:
    """Open the store for writing, or refuse it unchanged."""
    if not place.is_complete() and not place.holds_rows():
        place.clear_half_created()
        rocks = _open_in_place(place, Access.CREATE, opener)
        Watermark.create(place.own_path, rocks.latest_sequence_number())
        return rocks, Opened(place, Watermark.open(place.own_path), None, None)
    mark = _read_mark(place)
    damage = _damage(place, mark, opener)
    if damage is None:
        rocks = _open_in_place(place, Access.WRITE, opener)
        _refuse_loss(rocks, mark)
        return rocks, Opened(place, Watermark.open(place.own_path), None, None)
    if not options.accept_loss:
        raise damage
    return _open_damaged(place, mark, damage, opener)


def _open_in_place(place: Directory, access: Access, opener: Opener[Rocks]) -> Rocks:
    """Open a store whose files may be changed, since it was not refused."""
    place.raise_layout()
    files.keep_private(place.own_path)
    place.unshare()
    rocks = opener(place.own_path, access)
    files.make_private(place.own_path)
    return rocks


def _open_damaged(
    place: Directory, mark: Mark | None, damage: DataError, opener: Opener[Rocks]
) -> tuple[Rocks, Opened]:
    kept = place.keep()
    skipped = False
    try:
        rocks = _open_in_place(place, Access.WRITE, opener)
    except Corruption:
        rocks = _open_in_place(place, Access.SALVAGE, opener)
        skipped = True
    recovered = rocks.latest_sequence_number()
    skipped = skipped or (mark is not None and recovered >= mark.sequence)
    Watermark.create(place.own_path, recovered)
    loss = Loss(str(damage), recovered, mark.sequence if mark else None, skipped, kept)
    return rocks, Opened(place, Watermark.open(place.own_path), None, loss)


def _damage(place: Directory, mark: Mark | None, opener: Opener[Rocks]) -> DataError | None:
    """Recover the store in a view; return its damage, if any."""
    if mark is None:
        return LostWrites(f"the watermark of {place.path} is lost, so nobody knows what else is")
    view = place.open_view()
    try:
        rocks = opener(view.path, Access.READ)
        _refuse_loss(rocks, mark)
        _refuse_gap(rocks, place, opener)
        rocks.close()
    except DataError as error:
        return error
    finally:
        view.remove()
    return None


def _refuse_gap(rocks: Recovered, place: Directory, opener: Opener[Recovered]) -> None:
    """Close RocksDB and raise LostWrites if its log begins behind the end of its tables.

    To RocksDB a manifest that is older than the log looks like a sound one. After a clean close
    the log is empty; else the store is opened once more, without it.
    """
    begins = _beginning_of_log(place.own_path)
    if begins is None or begins > rocks.latest_sequence_number():  # nothing of it was recovered
        return
    try:
        view = place.open_view(with_log=False)
        try:
            tables = opener(view.path, Access.READ)
            end = tables.latest_sequence_number()
            tables.close()
        finally:
            view.remove()
        if begins > end + 1:
            raise LostWrites(
                f"acknowledged writes are missing: the tables end at sequence number {end}, the "
                f"log begins at {begins}: MANIFEST is older than the log or cut short, or the "
                "files were copied while the store was open"
            )
    except BaseException:
        rocks.close()  # an exception may be kept, and with it a reference to RocksDB
        raise


def _beginning_of_log(path: Path) -> int | None:
    """Return the sequence number with which the oldest log begins; None if all are empty.

    ::

        log := crc(u32) length(u16) type(u8) sequence(u64) ...        little-endian
    """
    for log in sorted(path.glob("*.log"), key=lambda log: (len(log.name), log.name)):
        with open(files.open_regular(log), "rb") as file:
            head = file.read(_HEAD.size)
        if len(head) == _HEAD.size:
            sequence: int = _HEAD.unpack(head)[-1]
            return sequence
    return None


def _read_mark(place: Directory) -> Mark | None:
    try:
        return Watermark.read(place.own_path)
    except FileNotFoundError:
        if not place.holds_rows():
            raise NoSuchStore(f"there is no store in {place.path}") from None
        return None


def _refuse_loss(rocks: Recovered, mark: Mark | None) -> None:
    """Close RocksDB and raise LostWrites if it does not have all that was durable."""
    recovered = rocks.latest_sequence_number()
    if mark is not None and recovered >= mark.sequence:
        return
    rocks.close()  # an exception may be kept, and with it a reference to RocksDB
    if mark is None:
        raise LostWrites("the watermark is lost, so nobody knows what else is")
    raise LostWrites(
        f"acknowledged writes are missing: the log ends at sequence number {recovered}, "
        f"{mark.sequence} was durable"
    )
