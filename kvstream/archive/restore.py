"""Make a store of an archive: as it was at its end, at a moment, or behind a commit.

The files of a snapshot are fetched, the logs are written from pieces, and the last one is cut
behind the wanted commit. RocksDB replays them when the store is opened. Nothing is written into the
archive, except by ``take_over``.
"""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from kvstream.archive import format as formats
from kvstream.archive.format import Part, Snapshot, piece_key, table_key
from kvstream.archive.history import History, put_fence, read_history
from kvstream.archive.keys import find_keys
from kvstream.archive.logs import Position, reaches
from kvstream.archive.mark import Mark, owner_at
from kvstream.archive.objects import KeptObjects, Objects, open_objects
from kvstream.archive.pieces import FETCHES, get_piece, read_pieces
from kvstream.archive.retention import pin
from kvstream.archive.times import time_after
from kvstream.errors import ArchiveDamaged, InvalidArgument, StoreError
from kvstream.storage import directory as directories
from kvstream.storage import files
from kvstream.storage.changes import ARCHIVE
from kvstream.storage.log import LogReader
from kvstream.types.clock import now_ms

_RESTORING = ".restoring"
"""A folder in which the files are made, beside them the store is none."""
_PIECES = ".pieces"
"""A folder in it with the pieces that were fetched."""

Progress = Callable[[int, int], object]
"""Called with the bytes that are fetched, and all that will be; 0 while that is not known."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a restore fetches, and what it reaches."""

    snapshot: Snapshot
    sequence: int
    """The last commit of the restored store."""
    moment_ms: int
    """The time, by the clock of the former owner, by which that commit was the last one."""
    table_bytes: int
    log_bytes: int
    pieces: int
    position: tuple[int, int] | None = None
    """The position of the archive's end; only for a store that takes it over."""


Take = Callable[[Objects, Plan, Path, Path], Plan]
"""Called with the folder that has the tables, and the directory that it will be."""


def restore(
    url: str,
    directory: Path,
    at_ms: int | None = None,
    sequence: int | None = None,
    progress: Progress | None = None,
    *,
    key: str = "",
    key_command: str = "",
) -> Plan:
    """Make a store in ``directory``, which must not exist or be empty, of the archive at ``url``.

    By default as it was at its end; with ``at_ms`` at a Unix time, to 0.1 s; with ``sequence``
    behind the commit with this number. The store begins a history of its own. Raises
    InvalidArgument if the archive does not reach there, ArchiveDamaged if an object is missing or
    damaged: nothing is left in ``directory`` then. ArchiveUnavailable if the archive cannot be
    reached.

    An encrypted archive needs its ``key``, or a command that writes it, by default those of the
    environment (``KVSTREAM_ARCHIVE_KEY``, ``KVSTREAM_ARCHIVE_KEY_COMMAND``), else WrongArchiveKey
    is raised. ::

        kvstream.restore("s3://bucket/orders", "orders-then", at_ms=1764504000000)
    """
    objects = open_objects(url, find_keys(key, key_command))
    with pin(objects):
        history = read_history(objects)

        def plan(kept: Objects) -> Plan:
            return plan_restore(kept, history, at_ms, sequence, progress)

        return _write_store(objects, plan, directory, progress)


def take_over(
    url: str, directory: Path, progress: Progress | None = None, key: str = ""
) -> Plan | None:
    """Become the owner of an archive, and restore its end into ``directory``.

    From then on the former owner can write no more; it can while the tables are fetched. Returns
    None, and does nothing, if there is a store in the directory, or if the archive is empty. Raises
    ArchiveDamaged if the archive cannot be restored.
    """
    objects = open_objects(url, key)
    if _holds_store(directory):
        return None
    with pin(objects):
        history = read_history(objects)
        if history.head is None:
            return None

        def plan(kept: Objects) -> Plan:
            return plan_restore(kept, history, progress=progress)

        return _write_store(objects, plan, directory, progress, take=_take)


def _take(objects: Objects, plan: Plan, built: Path, directory: Path) -> Plan:
    """Put the fence; return the plan up to it."""
    while True:
        history = read_history(objects)
        head = history.head
        assert head is not None
        if plan.snapshot.first_piece < head.base:
            raise ArchiveDamaged(
                f"the history of the archive {objects.url} began anew meanwhile: try it again"
            )
        fence = replace(
            head,
            number=head.number + 1,
            epoch=uuid4().hex,
            before=history.sum,
            written_ms=time_after(head.latest_ms, now_ms()),
            bytes_before=history.bytes,
            parts=[],
            times=[],
            owner=owner_at(directory),
        )
        if put_fence(objects, fence) is not None:
            break  # else the former owner was quicker
    Mark(fence.archive, fence.epoch).write(built)
    sequence = max(fence.last, plan.snapshot.sequence)
    return replace(plan, sequence=sequence, moment_ms=fence.written_ms, position=fence.position)


def plan_restore(
    objects: Objects,
    history: History,
    at_ms: int | None = None,
    sequence: int | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Return what to fetch for a moment or commit; InvalidArgument if it cannot be reached.

    The pieces behind the snapshot are read for that.
    """
    snapshot = _choose(objects, history, at_ms, sequence)
    reached, moment_ms, size, count = snapshot.sequence, snapshot.written_ms, 0, 0
    end, is_over = snapshot.sequence, False
    for piece, _, _, _ in read_pieces(objects, snapshot.first_piece):
        size += sum(part.size for part in piece.parts)
        count, end = count + 1, max(end, piece.last)
        number = piece.number
        if progress is not None:
            progress(size, 0)
        for ms, last in piece.times:
            is_over = is_over or (at_ms is not None and ms > at_ms)
            if last > reached and not is_over:
                reached, moment_ms = last, ms
        is_over = is_over or (sequence is not None and bool(piece.parts) and end >= sequence)
        if is_over and number >= snapshot.piece - 1:
            break
    if number < snapshot.piece - 1:
        raise formats.damaged(piece_key(number + 1), "it is missing")
    if not is_over and history.head is not None and number < history.head.number:
        raise _gap(objects, number, end, moment_ms)
    if sequence is not None and sequence > end:
        raise InvalidArgument(f"the archive {objects.url} ends with commit {end}")
    if at_ms is None:
        reached = end if sequence is None else min(sequence, end)
    tables = sum(size for _, size in snapshot.tables.values())
    return Plan(snapshot, reached, moment_ms, tables, size, count)


def _choose(
    objects: Objects, history: History, at_ms: int | None, sequence: int | None
) -> Snapshot:
    """Return the newest snapshot before a moment and a commit."""
    if not history.snapshots:
        raise InvalidArgument(f"the archive {objects.url} has no snapshot yet")
    chosen = [
        snapshot
        for snapshot in history.snapshots
        if (at_ms is None or snapshot.written_ms <= at_ms)
        and (sequence is None or snapshot.sequence <= sequence)
    ]
    if chosen:
        return chosen[-1]
    first = history.snapshots[0]
    raise InvalidArgument(
        f"the archive {objects.url} begins with commit {first.sequence}, at "
        f"{_time(first.written_ms)}: nothing before it can be restored"
    )


def _gap(objects: Objects, number: int, end: int, moment_ms: int) -> InvalidArgument:
    """Return the error for what lies behind a piece with which a history ends."""
    began_ms = get_piece(objects, number + 1).piece.written_ms
    return InvalidArgument(
        f"the archive {objects.url} has a gap: its history ends with commit {end}, written about "
        f"{_time(moment_ms)}, and began anew at {_time(began_ms)}, because "
        "logs were missing or damaged. What was written between can be restored from the next "
        f"snapshot on; for the commit before the gap give sequence={end} (--lsn {end})"
    )


def _time(ms: int) -> str:
    """Return a Unix time for people, in UTC, as ``kvstream restore --at`` takes it."""
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S}.{ms % 1000:03d}Z"


# --- the files ----------------------------------------------------------------------------------


def _write_store(
    objects: Objects,
    make_plan: Callable[[Objects], Plan],
    directory: Path,
    progress: Progress | None,
    take: Take | None = None,
) -> Plan:
    """Make the store; leave nothing behind on failure. With ``take`` it gives the plan's end.

    The plan reads the pieces. They are kept on the disk, and the logs written from these files.
    """
    _refuse_occupied(directory)

    def write(built: Path) -> Plan:
        (built / _PIECES).mkdir(files.DIRECTORY_MODE)
        kept = KeptObjects(objects, built / _PIECES)
        plan = make_plan(kept)
        _write_tables(objects, plan, built, progress)
        last = plan if take is None else take(objects, plan, built, directory)
        write_logs(kept, last, built, progress)
        shutil.rmtree(built / _PIECES)
        if last.position is not None:
            _keep_position(built, Position(*last.position))
        files.sync_directory(built)
        return last

    if directory.exists():
        return _write_inside(directory, write)
    with directories.stage(directory) as built:
        built.mkdir(files.DIRECTORY_MODE)
        plan = write(built)
        built.rename(directory)
    files.sync_directory(directory.parent)
    return plan


def _write_inside(directory: Path, write: Callable[[Path], Plan]) -> Plan:
    """Make the store in an empty folder, such as the root of a volume.

    The layout file comes last: without it the folder holds no store.
    """
    built = directory / _RESTORING
    shutil.rmtree(built, ignore_errors=True)
    built.mkdir(files.DIRECTORY_MODE)
    files.keep_private(built)
    try:
        plan = write(built)
        names = sorted(os.listdir(built), key=lambda name: name == directories.LAYOUT_FILE)
        for name in names:
            if name == directories.LAYOUT_FILE:
                files.sync_directory(directory)
            (built / name).rename(directory / name)
    finally:
        shutil.rmtree(built, ignore_errors=True)
    files.make_private(directory)
    files.sync_directory(directory)
    return plan


def _keep_position(built: Path, position: Position) -> None:
    """Make a log that reaches to a position, if RocksDB needs that log no more.

    The archiver then knows that it can go on from there: an opening without the archive, which may
    change tables that no log has, removes it.
    """
    if not reaches(built, position):
        place = built / ARCHIVE
        place.mkdir(files.DIRECTORY_MODE)
        with (place / f"{position.log:06d}.log").open("xb") as file:
            file.truncate(position.offset)
            files.sync(file.fileno())
        files.sync_directory(place)


def _write_tables(objects: Objects, plan: Plan, built: Path, progress: Progress | None) -> None:
    """Write all files of the snapshot."""
    fetched = 0
    with ThreadPoolExecutor(FETCHES) as pool:
        fetches = [
            pool.submit(write_table, objects, table, size, built / name)
            for name, (table, size) in plan.snapshot.tables.items()
        ]
        try:
            for fetch in fetches:
                fetched += fetch.result()
                if progress is not None:
                    progress(fetched, plan.table_bytes + plan.log_bytes)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    write_small_files(plan.snapshot, built)


def write_small_files(snapshot: Snapshot, built: Path) -> None:
    """Write the files that stand in the snapshot itself."""
    for name, content in snapshot.files.items():
        if "/" in name or name in ("", ".", ".."):
            raise ArchiveDamaged(f"the snapshot has a file of an unsafe name: {name!r}")
        files.write(built / name, content)


def write_table(objects: Objects, name: str, size: int, path: Path) -> int:
    """Fetch a table; raise ArchiveDamaged if it is missing, or is not what its name says."""
    key = table_key(name)
    hashed, found = sha256(), 0
    with path.open("xb") as file:
        for data in objects.chunks(key):
            hashed.update(data)
            found += len(data)
            file.write(data)
        file.flush()
        files.sync(file.fileno())
    if not found and size:
        raise formats.damaged(key, "it is missing")
    if found != size or name not in objects.table_names(hashed.hexdigest()):
        raise formats.damaged(key, f"its {found} bytes are not the {size} of its name")
    return found


def write_logs(objects: Objects, plan: Plan, built: Path, progress: Progress | None = None) -> None:
    """Write the logs up to the commit of the plan, once the tables are there."""
    fetched, total = plan.table_bytes, plan.table_bytes + plan.log_bytes
    first = plan.snapshot.first_log
    if plan.sequence <= plan.snapshot.sequence and not first:
        return
    for piece, body, _, _ in read_pieces(objects, plan.snapshot.first_piece):
        raw = formats.raw_of(piece_key(piece.number), piece, body)
        at, fetched = 0, fetched + len(raw)
        if progress is not None:
            progress(min(fetched, total), total)  # a former owner may have put more meanwhile
        for part in piece.parts:
            data = raw[at : at + part.size]
            at += part.size
            if piece.last > plan.sequence:
                data = _cut(part, data, plan.sequence)
            if part.log >= first and data:
                _append(built / f"{part.log:06d}.log", part, data)
        if piece.parts and piece.last >= plan.sequence:
            break
    for path in built.glob("*.log"):
        with path.open("rb") as file:
            files.sync(file.fileno())


def _append(path: Path, part: Part, data: bytes) -> None:
    with path.open("ab") as file:
        if file.tell() != part.offset:
            raise ArchiveDamaged(
                f"the archive lacks bytes {file.tell()} to {part.offset} of the log {part.log}"
            )
        file.write(data)


def _cut(part: Part, data: bytes, sequence: int) -> bytes:
    """Return the commits of a part that begin up to a sequence number."""
    end = part.offset
    for record in LogReader(part.offset).feed(data):
        if record.sequence > sequence:
            break
        end = record.end
    return data[: end - part.offset]


def _holds_store(directory: Path) -> bool:
    return (directory / directories.LAYOUT_FILE).exists()


def _refuse_occupied(directory: Path) -> None:
    """Raise StoreError if the directory is there and not empty."""
    with suppress(FileNotFoundError):
        names = [name for name in os.listdir(directory) if name not in ("lost+found", _RESTORING)]
        if names:
            raise StoreError(
                f"{directory} is not empty (it has {names[0]}): give a path that is free"
            )
