"""The directory of a store: who may use it, whether it is one, and whether it still has its path.

It owns the lock, the layout file and the checks that come before RocksDB opens anything: files of a
directory that is not ours are never opened, and a second opener is refused before a byte is
written. The lock is on the directory itself, so it holds for every path to it, and there is no lock
file to remove. This module knows file names, not rows.

::

    KVSTREAM      "kvstream store" and "layout 3", a line each; written first
    WATERMARK     see watermark.py; written last, so without it the store is half-created
    CURRENT, MANIFEST-*, *.sst, *.log, ...      RocksDB's
    before-recovery-N/      the files as they were before ``recover`` accepted the loss
    copies/                 checkpoints for readers in other processes
    REPLICA                 see engine/following.py
    incoming/, outgoing/, diverged-N/       see replacement.py

RocksDB works by path: after ``mv`` or ``rm -rf`` it would write into whatever store has the path
next. So on Linux every file is reached by a path through the open directory, ``own_path``, which
cannot lead to another one. Elsewhere ``own_path`` is the plain path, and only the look at it each
tenth of a second protects a new store (``Database.is_displaced``).

A reader opens the store through a view: a folder of links to its files among the temporary files,
since a reader changes nothing in the store. The process holds a lock on its view, so a view that
can be locked was left by a killed process, and the next reader removes it.

A forked child shares its parent's file descriptors but not its threads: a write would go into the
parent's log, and closing RocksDB would wait for threads that do not exist. So every open part is
disabled in the child at the fork, and no call has to compare process ids.
"""

import ctypes
import fcntl
import os
import pwd
import re
import shutil
import stat
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

from kvstream.errors import (
    Corruption,
    NoSuchStore,
    StoreClosed,
    StoreError,
    StoreLocked,
    UnknownLayout,
    UnsafeDirectory,
)
from kvstream.logs import DeferredLogger
from kvstream.storage import files, watermark
from kvstream.storage.files import DIRECTORY_MODE

_log = DeferredLogger(__name__)


class Forked(Protocol):
    """A part of an open store that must not be used in a forked child."""

    def refuse_after_fork(self) -> None:
        """Make every further use in this process, the child, fail."""
        ...


class Gone:
    """Replaces a closed handle: every use raises StoreClosed."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        raise StoreClosed(self._reason)

    def __call__(self, *_: object) -> NoReturn:
        raise StoreClosed(self._reason)


_REMEDY = (
    "start the child with spawn, open stores in children only, or share the store: "
    "kvstream.open(..., shared=True)"
)
FORKED = f"the store was opened before a fork, and only the parent can use it: {_REMEDY}"

forked_after_opening = False
"""This process was forked by one that had opened a store. RocksDB's threads are missing here, so a
store that this process opened for writing would hang at its first flush. They live as long as the
parent, even if it has closed the store or opened it read-only."""
_has_opened = False

_open_parts: "weakref.WeakSet[Any]" = weakref.WeakSet()


def register(part: Forked) -> None:
    """Disable ``part`` in a child if this process forks; held weakly."""
    _open_parts.add(part)


def unregister(part: Forked) -> None:
    """Forget a part that has been closed."""
    _open_parts.discard(part)


def leak(handle: object) -> None:
    """Keep ``handle`` from ever being destroyed in this process.

    The interpreter of the child would otherwise close RocksDB when it exits, and hang.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def _refuse_in_child() -> None:
    global forked_after_opening
    forked_after_opening = _has_opened
    parts = list(_open_parts)
    for part in parts:
        part.refuse_after_fork()
    _open_parts.clear()
    if parts or _has_opened:
        _skip_exit_handlers()


def _skip_exit_handlers() -> None:
    """Skip RocksDB's exit handler, which joins threads that this process does not have.

    The handler registered last runs first: ``_exit`` itself, with the exit code. By then the
    interpreter has run its own handlers and flushed its files.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # glibc has on_exit(), others do not
        libc.on_exit(libc._exit, None)


os.register_at_fork(after_in_child=_refuse_in_child)


_PREFIX = "kvstream-view-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class View:
    """A folder of links to the files of a store; RocksDB writes its own files beside them."""

    def __init__(
        self, path: Path, files: Iterable[os.DirEntry[str]], descriptor: int | None = None
    ) -> None:
        self.path = path
        self._descriptor = descriptor
        register(self)
        try:
            for entry in files:
                (path / entry.name).symlink_to(entry.path)
        except BaseException:
            self.remove()
            raise

    @classmethod
    def of_reader(cls, files: Iterable[os.DirEntry[str]]) -> Self:
        """Create a view among the temporary files; remove those of killed processes."""
        sweep()
        while True:
            path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            descriptor = _lock_view(path)
            if descriptor is not None:
                return cls(path, files, descriptor)

    def remove(self) -> None:
        """Remove the links; idempotent."""
        unregister(self)
        shutil.rmtree(self.path, ignore_errors=True)
        self.refuse_after_fork()

    def refuse_after_fork(self) -> None:
        """Close this process's descriptor: in a child, the lock then ends with the parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def sweep() -> None:
    """Remove this user's views that no process has locked: their readers were killed."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):  # locked, or gone meanwhile, or not ours to look at
                    _remove_if_left(Path(entry.path))


def _remove_if_left(path: Path) -> None:
    descriptor = os.open(path, _FOLDER)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                shutil.rmtree(path)
    finally:
        os.close(descriptor)


def _lock_view(path: Path) -> int | None:
    """Lock a new view; return None if another reader took it for an abandoned one."""
    try:
        descriptor = os.open(path, _FOLDER)
    except FileNotFoundError:
        return None
    with suppress(OSError):  # a file system without locks on folders: then no reader sweeps either
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    if _is_at(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open folder is the one at a path."""
    try:
        return files.is_at(descriptor, path)
    except OSError:
        return False


_DESCRIPTORS = "/proc/self/fd/"
_DELETED = " (deleted)"
"""What Linux adds to the path of a removed directory."""
_OWN_PATH = re.compile(rf"{_DESCRIPTORS}([0-9]+)")


def path_through(descriptor: int, path: Path) -> Path:
    """Return a path through an open directory, or ``path`` on a system that has no such paths."""
    own = Path(f"{_DESCRIPTORS}{descriptor}")
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.stat(f"{own}/.")):
            return own
    return path


def show_paths(text: str) -> str:
    """Return a message with the names of directories in place of paths through descriptors."""
    return _OWN_PATH.sub(lambda found: _name_of(found[0]), text)


def _name_of(own: str) -> str:
    """Return the present path of an open directory."""
    try:
        return os.readlink(own)
    except OSError:  # it was closed
        return own


def _descriptors_of_rocksdb(own: Path) -> set[int]:
    """Return the descriptors by which this process has RocksDB's lock file of a directory open."""
    found = set()
    with suppress(OSError):  # there is none
        lock = os.stat(own / "LOCK")
        for name in os.listdir(_DESCRIPTORS):
            with suppress(OSError):  # that of the listing
                if os.path.samestat(lock, os.fstat(int(name))):
                    found.add(int(name))
    return found


LAYOUT_VERSION = 3
"""The newest layout. A change that writes a kind of row, record or file that the code before it
cannot read raises this number: older code then refuses the store, and repairs nothing in it."""
_LAYOUTS = range(1, LAYOUT_VERSION + 1)
"""The layouts that can be opened. Layout 1 lacks timers and the other rows of queues, policies of
groups, functions, requests of clients, numbers of flushed databases, and files of large values;
layout 2 the history row of primaries and replicas."""
LAYOUT_FILE = "KVSTREAM"
_LAYOUT = f"kvstream store\nlayout {LAYOUT_VERSION}\n".encode()
_LAYOUT_PATTERN = re.compile(rb"kvstream store\nlayout ([0-9]{1,9})\n")

_FOREIGN_WRITERS = stat.S_IWGRP | stat.S_IWOTH
_NOT_OURS_YET_HARMLESS = frozenset({"lost+found", LAYOUT_FILE + files.PARTIAL_SUFFIX})
"""Names that may lie in a directory in which a store is made."""
_FILES = re.compile(
    rf"({LAYOUT_FILE}|{watermark.FILE_NAME})({re.escape(files.PARTIAL_SUFFIX)})?"
    r"|CURRENT|IDENTITY|LOCK|LOG(\.old\.[0-9]+)?|(MANIFEST|OPTIONS)-[0-9]+(\.dbtmp)?"
    r"|[0-9]+\.(sst|log|blob|dbtmp)|rocksdict-config\.json"
)
"""Names of the files that we or RocksDB open; others, such as a server's socket, are ignored."""
_PREVIEW, _PREVIEW_WITHOUT_LOG = ".preview", ".preview-without-log"
_KEPT = "before-recovery-{}"
_OWN_TO_EACH_OPENER = ("LOCK", "LOG", "rocksdict-config.json")
"""Prefixes of files that RocksDB or ``rocksdict`` rewrite at every opening."""

last_resorts: list[Callable[[Path], None]] = []
"""Called with the path of a locked store before StoreLocked is raised: each closes the store if
this process holds it and nothing refers to it any more."""


def _locked_message(path: Path, descriptor: int) -> str:
    """Return the message of StoreLocked, which names the processes that hold the lock."""
    holders = holders_of(descriptor)
    if any(place.path == path for place in _in_use):
        return (
            f"the store in {path} was closed, but an exception or iterator that this process "
            "(sys.last_value, a variable) keeps has it open still: drop that, and open it again"
        )
    if os.getpid() in holders:
        return (
            f"this process (PID {os.getpid()}) has the store in {path} open already: share that "
            "Store among threads, or close it first, as before a notebook's cell runs again"
        )
    by = f"process {', '.join(map(str, holders))}" if holders else "another process"
    return (
        f"{by} holds the store in {path}: stop it, or share the store: open it with "
        f"kvstream.open(..., shared=True) in every process, or run 'kvstream serve --dir {path}' "
        'and use kvstream.open("redis://...")'
    )


def holders_of(place: Path | int) -> list[int]:
    """Return the processes that hold a flock on a file or open file, as far as Linux tells."""
    status = os.stat(place)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return []
    # "1: FLOCK ADVISORY WRITE 4711 08:01:131 0 EOF"; a process of another namespace is 0
    pids = {int(lock[4]) for lock in locks if lock[1] == "FLOCK" and lock[5] == device}
    return sorted(pid for pid in pids if pid > 0)


_in_use: "set[Directory]" = set()
"""Released by their stores, but locked for as long as a handle keeps RocksDB open."""


def _release_unused() -> None:
    """Release the directories whose last handle of RocksDB has gone."""
    for place in list(_in_use):
        place.release()


class Directory:
    """A locked directory that holds a store, or will."""

    def __init__(self, path: Path, descriptor: int, read_only: bool) -> None:
        self.path = path
        """The path by which it was opened: for people and for other processes."""
        self.own_path = path_through(descriptor, path)
        """The path for all file accesses of this process while the directory is open."""
        self.read_only = read_only
        self._made: list[Path] = []
        """The directories that this opening created, the lowest last."""
        self._used_before: set[int] = set()
        """Descriptors of a RocksDB that was abandoned here before: it never closes."""
        self._descriptor = descriptor  # the last one: ``__del__`` needs the others
        register(self)

    @classmethod
    def acquire(
        cls,
        directory: Path,
        *,
        create: bool,
        read_only: bool,
        locks: bool = True,
        trusts_group: bool = False,
    ) -> Self:
        """Lock ``directory``; create it if it is missing and ``create`` is set.

        Readers share the lock, a writer has it alone; without ``locks`` another process may write
        meanwhile. With ``trusts_group`` the group of the files may have write permission, which a
        writer takes away. Raises StoreLocked, UnsafeDirectory, UnknownLayout or NoSuchStore, with
        nothing written, and StoreError in a forked child that would hang.
        """
        path = _real(directory)
        makes = create and not read_only and not os.path.lexists(path)
        new_folders = _make(path) if makes else []
        self = cls(path, _open_directory(path), read_only)
        self._made = new_folders
        try:
            self._used_before = _descriptors_of_rocksdb(self.own_path)  # of who has the lock
            if locks:
                self._lock()
            self._used_before = _descriptors_of_rocksdb(self.own_path)
            if forked_after_opening and not read_only:
                raise StoreError(
                    "this process was forked by one that had opened a store, whose threads it "
                    f"lacks: {_REMEDY}"
                )
            self._check_owner(trusts_group)
            loose = self._check_files(trusts_group)
            self._check_layout(create and not read_only)
            if trusts_group and not read_only:
                self._narrow(loose)
        except StoreLocked:
            self.release()
            raise
        except BaseException:
            self.discard()
            raise
        global _has_opened
        _has_opened = True
        return self

    def release(self, abandoned: bool = False) -> None:
        """Release the lock, or keep it until RocksDB is closed; idempotent.

        Somebody may keep a handle, such as an exception whose frames have one. RocksDB is closed
        with its last handle, and then deletes files that it does not know, also those of the next
        opening. So a writer's lock is kept until then.

        If RocksDB was ``abandoned``, it is never closed, and has paths through the descriptor. So
        this number stays taken: RocksDB would delete files of the directory that gets it next.
        """
        is_used = abandoned or self._is_used_by_rocksdb()
        if is_used and not abandoned and not self.read_only and self._descriptor >= 0:
            _in_use.add(self)
            return
        unregister(self)
        _in_use.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        self.own_path = self.path
        if descriptor < 0:
            return
        if is_used:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        else:
            os.close(descriptor)  # flock goes with the last descriptor of this opening

    def _is_used_by_rocksdb(self) -> bool:
        """Return whether this opening of this process has RocksDB's lock file open."""
        if self.own_path == self.path:  # there are no paths through descriptors
            return False
        return not _descriptors_of_rocksdb(self.own_path) <= self._used_before

    def __del__(self) -> None:
        """Release the lock if an interrupt has lost the directory before anybody had it."""
        if getattr(self, "_descriptor", -1) >= 0 and not sys.is_finalizing():
            self.release()

    def discard(self) -> None:
        """Release the lock; remove the directory if this opening created it and wrote no row.

        So a command that fails before its first write leaves nothing. Nothing is removed while
        RocksDB is open.
        """
        is_free = self.is_in_place() and not self._is_used_by_rocksdb()
        if self._made and is_free and not self.holds_rows():
            for name in os.listdir(self.own_path):
                files.remove(self.own_path / name)
            with suppress(OSError):  # another process has it by now, or it is not empty
                for path in reversed(self._made):
                    path.rmdir()
        self.release()

    def refuse_after_fork(self) -> None:
        """Close the child's descriptor: the lock stays with the parent and dies with it."""
        _in_use.discard(self)
        self.own_path = self.path
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def is_in_place(self) -> bool:
        """Return whether the directory is locked, and nobody has removed or replaced it since."""
        return self._descriptor >= 0 and _is_at(self._descriptor, self.path)

    def describe_displacement(self) -> str | None:
        """Return that the directory was removed or replaced, None if it is still at its path.

        A path that cannot be looked at, such as one behind a folder that was closed to us, counts
        as unchanged.
        """
        try:
            if self._descriptor < 0 or files.is_at(self._descriptor, self.path):
                return None
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return None
        own = f"{_DESCRIPTORS}{self._descriptor}"
        place = _name_of(own)
        is_moved = place not in (own, str(self.path)) and not place.endswith(_DELETED)
        return f"{self.path} was removed or replaced while it was open" + (
            f" (it was moved to {place})" if is_moved else ""
        )

    def has_lost_layout(self) -> bool:
        """Return whether the layout file was removed, and so most likely all files."""
        return self._descriptor >= 0 and not (self.own_path / LAYOUT_FILE).exists()

    def free_bytes(self) -> int:
        """Return the free space of the file system that an ordinary process may use."""
        figures = os.statvfs(self.own_path)
        return figures.f_bavail * figures.f_frsize

    def free_files(self) -> int | None:
        """Return how many files an ordinary process may add; None if the system has no limit."""
        figures = os.statvfs(self.own_path)
        return figures.f_favail if figures.f_files else None

    def size(self, suffix: str = "") -> int:
        """Return the bytes of all files of the store, or of those with a suffix."""
        return sum(_size(entry) for entry in self._list_files() if entry.name.endswith(suffix))

    def count(self) -> int:
        """Return the number of files of the store."""
        return len(self._list_files())

    def is_complete(self) -> bool:
        """Return whether the store was created completely: then it may hold rows."""
        return (self.own_path / watermark.FILE_NAME).exists()

    def holds_rows(self) -> bool:
        """Return whether a row was ever written: a half-created store has no SST file, no log."""
        return any(
            entry.name.endswith(".sst") or (entry.name.endswith(".log") and entry.stat().st_size)
            for entry in self._list_files()
        )

    def clear_half_created(self) -> None:
        """Remove the files that an interrupted first opening of RocksDB has left."""
        names = [entry.name for entry in self._list_files()]
        if "CURRENT" in names:
            return
        for name in names:
            if name.startswith(("MANIFEST-", "OPTIONS-")) or name.endswith(".dbtmp"):
                (self.own_path / name).unlink()

    def open_view(self, with_log: bool = True) -> View:
        """Return a view of the store that RocksDB can open without changing the store.

        One without the log may be open beside one with it.
        """
        shared = self._list_shared_files()
        if not with_log:
            shared = [entry for entry in shared if not entry.name.endswith(".log")]
        if self.read_only:
            return View.of_reader(shared)
        place = self.own_path / (_PREVIEW if with_log else _PREVIEW_WITHOUT_LOG)
        if place.is_dir():
            shutil.rmtree(place)  # left by a process that was killed
        place.mkdir(DIRECTORY_MODE)
        return View(place, shared)

    def keep(self) -> Path:
        """Link all files of the store into a folder, which keeps them as they are; return it."""
        number = 1
        while (kept := self.own_path / _KEPT.format(number)).exists():
            number += 1
        self.link_into(kept)
        return self.path / kept.name

    def link_into(self, target: Path) -> None:
        """Link all files of the store into a new folder ``target``.

        Nobody may write meanwhile. Later openings leave the linked files as they are: RocksDB
        replaces and removes its files but never writes to old ones, and the watermark is replaced.
        """
        target.mkdir(DIRECTORY_MODE)
        for entry in self._list_shared_files():
            os.link(entry.path, target / entry.name)

    def unshare(self) -> None:
        """Remove the files that each opener writes itself, if a copy by links shares them.

        RocksDB locks one of them, so store and copy could not be open together.
        """
        for entry in self._list_files():
            own = entry.name.startswith(_OWN_TO_EACH_OPENER)
            if own and entry.stat(follow_symlinks=False).st_nlink > 1:
                os.unlink(entry.path)

    def raise_layout(self) -> None:
        """Mark the store, durably, as one of the newest layout, before anything else is written.

        One byte changes in place, which cannot be torn, so that locks on the file stay. If the file
        has other names, as in a copy by hard links, another file takes its place.
        """
        path = self.own_path / LAYOUT_FILE
        if files.read(path) == _LAYOUT:
            return
        if os.stat(path).st_nlink > 1:
            files.write(path, _LAYOUT)
        else:
            files.overwrite(path, _LAYOUT)

    def _lock(self) -> None:
        mode = fcntl.LOCK_SH if self.read_only else fcntl.LOCK_EX
        with suppress(BlockingIOError):
            return fcntl.flock(self._descriptor, mode | fcntl.LOCK_NB)
        for let_go in last_resorts:
            let_go(self.path)
        _release_unused()
        try:
            fcntl.flock(self._descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked(_locked_message(self.path, self._descriptor)) from None

    def _check_owner(self, trusts_group: bool) -> None:
        refuse_foreign(self.path, os.fstat(self._descriptor), trusts_group)
        if not self.is_in_place():  # the opener that created it may have just discarded it
            raise UnsafeDirectory(f"{self.path} was replaced while it was being opened")

    def _check_files(self, trusts_group: bool) -> list[str]:
        """Check all files; return the names of those that the group can write to."""
        loose: list[str] = []
        with os.scandir(self.own_path) as entries:
            for entry in entries:
                if entry.is_symlink():
                    raise UnsafeDirectory(f"{self.path / entry.name} is a symbolic link")
                with suppress(FileNotFoundError):  # the owner has just deleted it
                    status = entry.stat(follow_symlinks=False)
                    if _FILES.fullmatch(entry.name) and not stat.S_ISREG(status.st_mode):
                        raise UnsafeDirectory(
                            f"{self.path / entry.name} is {files.kind_of(status.st_mode)}, where a "
                            "store has a regular file: see who made it, and remove it"
                        )
                    if entry.name not in _NOT_OURS_YET_HARMLESS:
                        refuse_foreign(self.path / entry.name, status, trusts_group)
                        if status.st_mode & stat.S_IWGRP:
                            loose.append(entry.name)
        return loose

    def _narrow(self, names: list[str]) -> None:
        """Take the permissions of group and others away from files and folders of the store."""
        if not names and not os.fstat(self._descriptor).st_mode & stat.S_IWGRP:
            return
        _log.warning(
            "the group of %s could write to it and to %d of its files: no more, see trust_group",
            self.path,
            len(names),
        )
        os.fchmod(self._descriptor, DIRECTORY_MODE)
        for name in names:
            path = self.own_path / name
            files.take_from_others(path)
            for at, folders, names_there in os.walk(path):
                for each in (*folders, *names_there):
                    files.take_from_others(Path(at, each))

    def _check_layout(self, create: bool) -> None:
        try:
            content = files.read(self.own_path / LAYOUT_FILE)
        except FileNotFoundError:
            self._check_empty(create)
            os.fchmod(self._descriptor, DIRECTORY_MODE)  # it may have been made by someone's mkdir
            files.write(self.own_path / LAYOUT_FILE, _LAYOUT)
            return
        matched = _LAYOUT_PATTERN.fullmatch(content)
        if matched is None:
            raise Corruption(f"{self.path / LAYOUT_FILE} is damaged")
        if int(matched[1]) not in _LAYOUTS:
            raise UnknownLayout(
                f"the store in {self.path} has layout {int(matched[1])}; this version of kvstream "
                f"knows layouts {_LAYOUTS[0]} to {LAYOUT_VERSION}: "
                "use the version of kvstream that wrote it"
            )
        if not create and not self.is_complete() and not self.holds_rows():
            raise NoSuchStore(f"there is no store in {self.path}")

    def _check_empty(self, create: bool) -> None:
        foreign = sorted(set(os.listdir(self.own_path)) - _NOT_OURS_YET_HARMLESS)
        if not create:
            content = f": it holds {foreign[0]!r}, but no file {LAYOUT_FILE}" if foreign else ""
            raise NoSuchStore(f"there is no store in {self.path}{content}") from None
        if foreign:
            raise UnsafeDirectory(
                f"{self.path} is no store of kvstream, and not empty: it holds {foreign[0]!r}"
            ) from None

    def _list_files(self) -> list[os.DirEntry[str]]:
        with os.scandir(self.own_path) as entries:
            return [entry for entry in entries if entry.is_file(follow_symlinks=False)]

    def _list_shared_files(self) -> list[os.DirEntry[str]]:
        return [
            entry for entry in self._list_files() if not entry.name.startswith(_OWN_TO_EACH_OPENER)
        ]


def _size(entry: os.DirEntry[str]) -> int:
    """Return the bytes of a file; 0 if a compaction has just deleted it."""
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


@contextmanager
def stage(target: Path) -> Iterator[Path]:
    """Give a free path beside ``target`` to build a store in before it gets its name."""
    if os.path.lexists(target):
        raise StoreError(f"{target} exists: it is {_what_is(target)}; give a path that is free")
    try:
        with files.scratch(f".{target.name}-", target.parent) as stage:
            files.keep_private(stage)
            yield stage / target.name
    except OSError as error:
        missing = "" if target.parent.exists() else f": there is no folder {target.parent}"
        raise StoreError(f"cannot make {target}: {error.strerror}{missing}") from None


def _what_is(path: Path) -> str:
    """Return what lies at a path, in words."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "a file" if stat.S_ISREG(status.st_mode) else files.kind_of(status.st_mode)
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        return f"a folder that cannot be read ({error.strerror})"
    if LAYOUT_FILE in names:
        return "a store"
    return f"a folder that holds {names[0]!r}" if names else "an empty folder"


def publish(built: Path, target: Path, sequence: int) -> None:
    """Complete the store that RocksDB has copied to ``built`` and give it its name, durably."""
    built.chmod(DIRECTORY_MODE)
    files.write(built / LAYOUT_FILE, _LAYOUT)
    watermark.Watermark.create(built, sequence)
    files.make_private(built)
    built.rename(target)
    files.sync_directory(target.parent)


def _real(directory: Path) -> Path:
    """Resolve all but the last name: a link there is refused, not followed."""
    if directory.name in ("", ".."):
        return Path(os.path.realpath(directory))
    return Path(os.path.realpath(directory.parent)) / directory.name


def _make(path: Path) -> list[Path]:
    """Make a directory and those above it that are missing; return them, the lowest last."""
    missing = [above for above in reversed(path.parents) if not above.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(DIRECTORY_MODE)
    except FileExistsError:
        return []  # another opener was faster; the lock decides
    except OSError as error:
        raise StoreError(f"cannot make {path}: {error.strerror}") from None
    files.sync_directory(path.parent)
    return [*missing, path]


def _open_directory(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise NoSuchStore(f"there is no store in {path}") from None
    except NotADirectoryError:
        reason = "a symbolic link" if path.is_symlink() else "not a directory"
        raise UnsafeDirectory(f"{path} is {reason}") from None
    except OSError as error:
        raise UnsafeDirectory(f"cannot open {path}: {error.strerror}") from None


def _user_of(number: int) -> str:
    """Return the number of a user of the system, with the name if there is one."""
    try:
        return f"{number} ({pwd.getpwuid(number).pw_name})"
    except KeyError:
        return str(number)


def refuse_foreign(path: Path, status: os.stat_result, trusts_group: bool = False) -> None:
    """Raise UnsafeDirectory if another user owns a file or folder, or can write to it."""
    if status.st_uid != os.geteuid():
        owner, user = map(_user_of, (status.st_uid, os.geteuid()))
        raise UnsafeDirectory(
            f"{path} belongs to user {owner}, not to user {user}: run this as its owner, or change "
            "the owner with chown"
        )
    writers = status.st_mode & _FOREIGN_WRITERS
    if not writers or (trusts_group and writers == stat.S_IWGRP):
        return
    mode = f"{path} can be written to by others (mode {status.st_mode & 0o7777:o})"
    if writers == stat.S_IWGRP:
        mode += (
            ": if Kubernetes' fsGroup has done that, open the store with trust_group=True, or on "
            "the command line with --trust-group (KVSTREAM_TRUST_GROUP=1), or set "
            "fsGroupChangePolicy: OnRootMismatch and keep the store in a folder of the volume; "
            "else find out who it was, and take it away"
        )
    raise UnsafeDirectory(mode)
