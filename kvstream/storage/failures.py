"""What an error text of RocksDB means.

``rocksdict`` raises every engine error as a bare ``Exception`` whose text opens with the status of
RocksDB. This module reads these texts; it knows no handle and decides no state.
"""

from kvstream.errors import (
    Corruption,
    KVStreamError,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)

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
