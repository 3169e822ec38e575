"""Whether a write may go in: the state of a store after errors, and the reserve of free space.

A store is in one of three states. It is sound; or its disk was full, which RocksDB recovers from by
itself once there is space, so writes are tried again then; or it has failed for good, which only
opening it again can mend. This module knows errors and bytes, not RocksDB.

What an error text of RocksDB means.

``rocksdict`` raises every engine error as a bare ``Exception`` whose text opens with the status of
RocksDB. This module reads these texts; it knows no handle and decides no state.
"""

import logging
from time import monotonic

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
from kvstream.storage.directory import Directory

_STALL = "Result incomplete: Write stall"
_NO_SPACE = "IO error: No space left"
_NOT_A_DATABASE = ("Invalid argument", "IO error: No such file", "NotFound", "Not found")
"""What opening says when a file is missing: the directory is marked as a store of ours by then."""

_MEANINGS: tuple[tuple[str, type[KVStreamError]], ...] = (
    ("Corruption", Corruption),
    (_NO_SPACE, StoreFull),
    ("IO error: While lock file", StoreLocked),
    ("IO error: lock hold by current process", StoreLocked),
    ("Not implemented: Not supported operation in read only", StoreReadOnly),
)


def is_stall(error: Exception) -> bool:
    """Say whether the write was refused because compaction is behind, and nothing was written."""
    return str(error).startswith(_STALL)


def is_no_space(error: Exception) -> bool:
    """Say whether the disk is full, a state that RocksDB leaves by itself once space is free."""
    return str(error).startswith(_NO_SPACE)


def classified(error: Exception) -> Exception:
    """Return the error of ours that an error of ``rocksdict`` stands for.

    What neither RocksDB nor the system raised, such as for a key that is not bytes, stays as it is.
    """
    if isinstance(error, OSError):
        return StoreError(f"IO error: {error}")
    name = type(error).__name__
    if name == "DbClosedError":
        return StoreClosed("the store is closed")
    if name != "Exception":
        return error
    text = str(error)
    for prefix, meaning in _MEANINGS:
        if text.startswith(prefix):
            return meaning(text)
    return StoreError(text)


def classified_at_open(error: Exception) -> Exception:
    """Return the error of ours for one raised while opening a directory known to be a store."""
    text = str(error)
    if text.startswith(_NOT_A_DATABASE):
        return Corruption(f"a file of the store is missing or unreadable: {text}")
    return classified(error)


_log = logging.getLogger(__name__)

ADMISSION_S = 0.1
"""How long one look at the free space holds good; a look costs a third of a write."""


class Gate:
    """Lets writes in or says why not."""

    def __init__(self, directory: Directory, reserve: int) -> None:
        self.open_until = 0.0
        """Monotonic time up to which small writes need not ask."""
        self.failure: StoreError | None = None
        self.recovers = False
        """The failure is a full disk, which may end."""
        self.is_shut = False
        """No write is let in until the store is opened again."""
        self._is_low = False
        """There was less free space than the reserve."""
        self._directory = directory
        self._reserve = reserve

    def shut(self, failure: StoreError) -> None:
        """Let no write in any more."""
        self.failure = failure
        self.recovers = False
        self.is_shut = True
        self.open_until = 0.0

    def admit(self, frees: bool, size: int = 0) -> None:
        """Let a write of ``size`` bytes in, or raise; what ``frees`` space may use the reserve."""
        if not self.recovers:
            self.refuse_failed()
        free = self._directory.free_bytes() - size
        if free >= self._reserve:
            # While the disk was full only a moment ago, each write asks.
            self.open_until = 0.0 if self.recovers else monotonic() + ADMISSION_S
            if self._is_low and not size:
                self._is_low = False
                _log.warning("there is free space again: writes go on")
        elif not frees:
            self.open_until = 0.0
            full = self._full(free)
            if not self._is_low and not size:
                self._is_low = True
                _log.warning("writes that take space are refused: %s", full)
            raise full

    def _full(self, free: int) -> StoreFull:
        return StoreFull(
            f"the disk is full but for a reserve of {self._reserve >> 20} MB, "
            f"with which entries can still be deleted ({max(free, 0) >> 20} MB free)"
        )

    def refusal(self) -> StoreError | None:
        """Return why a write that takes space would not be let in; None: it would be tried.

        For any thread: it changes nothing.
        """
        if self.failure is not None and not self.recovers:
            return self.failure
        free = self._directory.free_bytes()
        return None if free >= self._reserve else self._full(free)

    def refuse_failed(self) -> None:
        """Raise what stopped the writes, if something did."""
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)

    def passed(self) -> None:
        """Note that RocksDB took a write after the disk was full."""
        _log.warning("the disk has space again: writes go on")
        self.failure = None
        self.recovers = self.is_shut = False

    def failed(self, error: Exception, recovers: bool) -> Exception:
        """Stop the writes because of ``error``, and return what to raise for it.

        ``recovers`` says whether a full disk may be left again: not when the log's fsync met it.
        """
        meaning = classified(error)
        if meaning is error or isinstance(meaning, StoreClosed):
            return meaning  # no error of the engine
        if recovers and is_no_space(error) and (self.failure is None or self.recovers):
            if self.failure is None:
                _log.warning("the disk is full, writes are refused until it is not: %s", error)
            self.failure, self.recovers, self.open_until = StoreFull(str(error)), True, 0.0
            return meaning
        if self.failure is None or self.recovers:
            failure = StoreReadOnly(
                "the disk failed, so the store is read-only: reads go on, and writes do once "
                f"the disk is sound and the store is opened again: {error}"
            )
            _log.error("%s", failure)
            self.shut(failure)
        return meaning if isinstance(meaning, Corruption) else UnknownOutcome(str(error))
