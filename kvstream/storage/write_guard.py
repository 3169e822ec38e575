"""Whether a write is admitted: the store's state after errors, and the reserve of free space.

A store is in one of three states. It is sound; or its disk was full, from which RocksDB recovers by
itself, so writes are tried again once there is space; or it has failed, until it is opened again.

``rocksdict`` raises every engine error as a bare ``Exception`` whose text begins with RocksDB's
status. ``classify`` turns it into an error of ours.
"""

import re
from collections.abc import Callable

from kvstream.errors import (
    Corruption,
    KVStreamError,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    UnknownOutcome,
)
from kvstream.logs import DeferredLogger
from kvstream.storage.directory import Directory, show_paths
from kvstream.types.clock import monotonic

_STALL = "Result incomplete: Write stall"
_NO_SPACE = "IO error: No space left"
_BROKEN_LOG = "IO error: Writer has previous error"
_NOT_A_DATABASE = ("Invalid argument", "IO error: No such file", "NotFound", "Not found")
"""Errors of opening if a file is missing from a directory that is marked as a store."""

_MEANINGS: tuple[tuple[str, type[KVStreamError]], ...] = (
    ("Corruption", Corruption),
    (_NO_SPACE, StoreFull),
    ("IO error: While lock file", StoreLocked),
    ("IO error: lock hold by current process", StoreLocked),
    ("Not implemented: Not supported operation in read only", StoreReadOnly),
)


def is_stall(error: Exception) -> bool:
    """Return whether a write was refused, with nothing written, because compaction is behind."""
    return str(error).startswith(_STALL)


def is_no_space(error: Exception) -> bool:
    """Return whether the disk is full, from which RocksDB recovers once space is free."""
    return str(error).startswith(_NO_SPACE)


def is_broken_log(error: Exception) -> bool:
    """Return whether a log was not synced because a write into it had failed before.

    Writes go on in a new log after a full disk, but RocksDB has the old one for some moments more,
    and refuses to sync it. No fsync was tried, and what was in it is in tables.
    """
    return str(error).startswith(_BROKEN_LOG)


_VIEW = re.compile(r"[^\s:]*/(kvstream-view-\w+|\.preview[\w-]*)/")
"""The folder of a view in the path of a file: it is gone when the error is read."""


def classify(error: Exception) -> Exception:
    """Return the error of ours for an error of ``rocksdict``.

    Other errors, such as that for a key that is not bytes, are returned as they are.
    """
    if isinstance(error, OSError):
        return StoreError(f"IO error: {show_paths(str(error))}")
    name = type(error).__name__
    if name == "DbClosedError":
        return StoreClosed("the store is closed")
    if name != "Exception":
        return error
    text = show_paths(_VIEW.sub("", str(error)))
    for prefix, meaning in _MEANINGS:
        if text.startswith(prefix):
            return meaning(text)
    return StoreError(text)


def classify_at_open(error: Exception) -> Exception:
    """Return the error of ours for one raised while opening a directory known to be a store."""
    text = str(error)
    if text.startswith(_NOT_A_DATABASE):
        return Corruption(f"a file of the store is missing or unreadable: {show_paths(text)}")
    return classify(error)


_log = DeferredLogger(__name__)

FREEING = (
    "DEL, XTRIM and FLUSHDB free space within seconds, and writes go on then; after XDEL it takes "
    "BGREWRITEAOF or `kvstream compact`"
)
"""What to do about a full disk."""
REFUSED_S = 60.0
"""How long after a refused write space is freed at once: a large write is refused before the disk
counts as full."""
FILES_MIN = 16
"""Files that can still be added when writes are refused. RocksDB makes some for each memtable."""
ADMISSION_S = 0.1
"""How long a measure of the free space is valid; measuring costs a third of a write."""


class WriteGuard:
    """Admits writes or refuses them."""

    def __init__(self, directory: Directory, reserve: int) -> None:
        self.describe_displacement: Callable[[], str | None] = lambda: None
        """Returns what has happened to the store if its path leads elsewhere."""
        self.open_until = 0.0
        """Monotonic time until which small writes are admitted unasked."""
        self.failure: StoreError | None = None
        self.recovers = False
        """Whether the failure is a full disk, which may end."""
        self.is_shut = False
        """Whether writes are refused until the store is opened again, or is no replica any more."""
        self.replica: StoreError | None = None
        """Why the store takes the writes of another one alone."""
        self._is_displaced = False
        """Whether the path of the store has led elsewhere."""
        self._is_low = False
        """Whether there was less free space than the reserve."""
        self._refused_at = -REFUSED_S
        """Monotonic time of the last write that was refused for lack of space."""
        self._directory = directory
        self._reserve = reserve

    def shut(self, failure: StoreError) -> None:
        """Refuse all writes from now on."""
        self.failure = failure
        self.recovers = False
        self.is_shut = True
        self.open_until = 0.0

    def forgive(self, kind: type[StoreError]) -> None:
        """Forget a failure of a kind: its reason is gone."""
        if isinstance(self.failure, kind):
            self.failure = None
            self.is_shut = self.replica is not None

    def follow(self, refusal: StoreError | None) -> None:
        """Refuse all writes but those that a replica takes over; None: admit them again."""
        self.replica = refusal
        self.is_shut = refusal is not None or (self.failure is not None and not self.recovers)

    def refuse_replica(self) -> None:
        """Raise an error if the store takes the writes of another one alone."""
        if self.replica is not None:
            raise type(self.replica)(*self.replica.args)

    def admit(self, frees: bool, size: int = 0) -> None:
        """Admit a write of some bytes, or raise; if it ``frees`` space it may use the reserve."""
        if not self.recovers:
            self.refuse_failed()
        self.refuse_displaced()
        full = self._full(size)
        if full is None:
            # Just after a full disk each write asks.
            self.open_until = 0.0 if self.recovers else monotonic() + ADMISSION_S
            if self._is_low and not size:
                self._is_low = False
                _log.warning("there is free space again: writes go on")
        elif not frees:
            self.open_until = 0.0
            self._refused_at = monotonic()
            if not self._is_low and not size:
                self._is_low = True
                _log.warning("writes that take space are refused: %s", full)
            raise full

    @property
    def needs_space(self) -> bool:
        """Whether writes were refused lately because less than the reserve is free."""
        return self._is_low or monotonic() - self._refused_at < REFUSED_S

    def _full(self, size: int = 0) -> StoreFull | None:
        """Return the error for a disk without room for some bytes; None if there is room."""
        free = self._directory.free_bytes() - size
        if free < self._reserve:
            return StoreFull(
                f"the disk is full but for a reserve of {self._reserve >> 20} MB "
                f"({max(free, 0) >> 20} MB free): {FREEING}"
            )
        return self.lack_of_files()

    def lack_of_files(self) -> StoreFull | None:
        """Return the error for a disk that has room for too few files; None if it has enough.

        RocksDB does not recover by itself from a file that it could not make.
        """
        free = self._directory.free_files()
        if free is None or free >= FILES_MIN or not self._reserve:
            return None
        return StoreFull(
            f"the disk has room for {free} more files (inodes) only, and RocksDB needs "
            f"{FILES_MIN}: remove files from the disk"
        )

    def admit_files(self) -> None:
        """Admit a flush or a compaction, which makes files, or raise."""
        self.refuse_failed()
        self.refuse_displaced()
        lack = self.lack_of_files()
        if lack is not None:
            raise lack

    def has_room(self, size: int, files: int) -> bool:
        """Return whether the disk has room for some bytes and files beside the reserve."""
        place = self._directory
        free = place.free_files()
        enough = free is None or free >= files + FILES_MIN
        return enough and place.free_bytes() >= size + self._reserve

    def refusal(self) -> StoreError | None:
        """Return why a write that takes space would be refused; None if it would be tried.

        Any thread may call it: it changes nothing.
        """
        if self.failure is not None and not self.recovers:
            return self.failure
        return self._full()

    def refuse_failed(self) -> None:
        """Raise the failure that stopped the writes, if there is one."""
        if self.failure is not None:
            raise self.error()

    def error(self) -> StoreError:
        """Return the failure that stopped the writes as an error of its own."""
        return type(self.failure)(*self.failure.args) if self.failure else StoreError()

    def is_displaced(self) -> bool:
        """Return whether the store's path leads elsewhere; then writes are refused from now on."""
        if self._is_displaced:
            return True
        what = self.describe_displacement()
        if what is None:
            return False
        failure = StoreReadOnly(
            f"{what}, so this process writes nothing more: what it wrote last may be missing at "
            "that path; close the store and open it again"
        )
        self.shut(failure)
        self._is_displaced = True
        _log.error("%s", failure)
        return True

    def refuse_displaced(self) -> None:
        """Raise StoreReadOnly if the store's path leads elsewhere."""
        if self.is_displaced():
            self.refuse_failed()

    def resume_writes(self) -> None:
        """Note a successful write after a full disk."""
        _log.warning("the disk has space again: writes go on")
        self.failure = None
        self.recovers, self.is_shut = False, self.replica is not None

    def stop_writes(self, error: Exception, recovers: bool) -> Exception:
        """Stop writes because of ``error``; return the error to raise.

        ``recovers``: if the disk is full, writes go on once it has space. Not after an fsync of the
        log that failed.
        """
        meaning = classify(error)
        if meaning is error or isinstance(meaning, StoreClosed):
            return meaning  # no error of the engine
        if self.is_displaced():  # a file cannot be made in a directory that was removed
            return UnknownOutcome(f"{self.failure}: {meaning}")
        is_full = is_no_space(error) or is_broken_log(error)
        if recovers and is_full and (self.failure is None or self.recovers):
            if self.failure is None:
                _log.warning("the disk is full, writes are refused until it is not: %s", meaning)
            self.failure, self.recovers, self.open_until = StoreFull(str(meaning)), True, 0.0
            return meaning
        if self.failure is None or self.recovers:
            failure = StoreReadOnly(
                "the disk failed, so the store is read-only: reads go on, and writes do once "
                f"the disk is sound and the store is opened again: {meaning}"
            )
            _log.error("%s", failure)
            self.shut(failure)
        return meaning if isinstance(meaning, Corruption) else UnknownOutcome(str(meaning))
