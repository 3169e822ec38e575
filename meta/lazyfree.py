"""Delete many keys at once, and their rows in the background, a page of keys at a time.

A key is gone for clients at once. Three kinds of keys leave rows behind: those of a flushed
database, those of a DEL of very many keys (``deleted_keys.py`` has their rows), and streams with
very many groups, since each group has trees of its own to delete. The catalog renames such a
stream, also if one commit deletes several that have very many groups together. This module finds
the deleted keys; the catalog deletes the rows of each.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from kvstream.errors import Corruption
from kvstream.layout.keys import (
    U16,
    U64,
    database_bounds,
    database_of,
    key_of,
    qualified,
    record_bounds,
    scan_bounds,
    scan_row,
    stream_row,
    successor,
    tree_prefix,
)
from kvstream.meta import unfinished_loads
from kvstream.meta.deleted_keys import encode_unlinked
from kvstream.meta.filling import catch_up
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import PLAIN_START, decode_key
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.storage.batch import Family, Row

_MESSAGES, _METADATA, _TREES = Family.MESSAGES, Family.METADATA, Family.TREES


def flush(txn: Txn, db: int, few: int) -> int:
    """Delete all keys of a database and return their number.

    The rows of up to ``few`` keys go at once. Those of more are left to ``sweep``, and the database
    gets another stored number, under which there is nothing.
    """
    catalog = txn.catalog
    count = catalog.index.count(txn, db)
    if not count and next(catalog.index.names(txn, db), None) is None:
        return 0
    txn.frees = True
    catalog.evict_database(txn, db, Wake.DELETED)
    stored = catalog.databases.stored_number(txn, db)
    for load in unfinished_loads.all_of(txn):
        if database_of(load.stream.name) == stored:  # this commit deletes its entries too
            unfinished_loads.discard(txn, load)
    txn.batch.delete_range(_MESSAGES, *database_bounds(stored))
    catalog.index.uncount(txn, stored)
    if not _drop_few(txn, stored, few):
        catalog.flushed.add(txn, stored)
        catalog.databases.renumber(txn, db, catalog.flushed.numbers(txn))
    return count


def unlink(txn: Txn, db: int, pages: Sequence[Mapping[bytes, int]]) -> None:
    """Delete keys of a database, given by its stored number; their rows stay for ``sweep``.

    ``pages`` have stored names and generations, at most ``unlinked_keys`` each.
    """
    catalog, gone = txn.catalog, set[int]()
    txn.frees = True
    txn.finish()
    prefix = U16.pack(catalog.databases.shown_number(txn, db))
    for page in pages:
        gone.update(page.values())
        for stored in page:
            name = prefix + key_of(stored)
            catalog.streams.pop(name, None)
            catalog.strings.pop(name, None)
    catalog.index.uncount_some(txn, db, len(gone))
    catalog.unlinked.add(txn, dict([encode_unlinked(db, page.values()) for page in pages]), gone)
    txn.signal_all(prefix, Wake.DELETED)


def sweep(txn: Txn, limit: int) -> int:
    """Delete the rows of up to ``limit`` keys; return their number, ``limit`` if more may wait."""
    left = limit
    for db in list(txn.catalog.flushed.numbers(txn)):
        txn.frees = True
        keys = _sweep_flushed(txn, db, left)
        if keys is None:
            return limit
        left -= keys
        if left <= 0:
            return limit
    while left > 0:
        keys = _sweep_unlinked(txn)
        if keys is None:
            return limit
        if not keys:
            return limit - left
        left -= keys
    return limit


def _sweep_flushed(txn: Txn, db: int, limit: int) -> int | None:
    """Delete rows of a flushed number; return the number of its last keys, or None if some wait.

    A record that is the only row of its key stays until the end: all records are one range then.
    """
    flushed, (first, upper) = txn.catalog.flushed, record_bounds(db)
    lower = flushed.numbers(txn)[db]
    if txn.catalog.databases.has(txn, db):  # damage: a database is about to lose its keys
        flushed.clear(txn, db)
        return 0
    gone = None if lower else _drop_few(txn, db, limit)
    if gone is not None:
        if gone:
            flushed.clear(txn, db)
        return limit if gone else None
    page = txn.batch.page(_METADATA, lower or first, upper, limit)
    # Most are plain strings, which have no other rows.
    for row, record in [each for each in page if not each[1].startswith(PLAIN_START)]:
        if not _drop_flushed(txn, row[1:], record):
            flushed.numbers(txn)[db] = row
            return None
    if len(page) == limit:
        flushed.numbers(txn)[db] = page[-1][0] + b"\0"
        return None
    txn.batch.delete_range(_METADATA, first, upper)
    txn.batch.delete_range(_METADATA, *scan_bounds(db))
    flushed.clear(txn, db)
    return len(page)


def _drop_few(txn: Txn, db: int, most: int) -> bool | None:
    """Delete all keys of a stored number row by row; their messages are deleted already.

    Return None if there are more than ``most``: none is deleted. Return False if they have more
    groups than this commit may delete: some are deleted.
    """
    records = txn.batch.page(_METADATA, *record_bounds(db), most + 1)
    listed = txn.batch.page(_METADATA, *scan_bounds(db), most + 1)
    if max(len(records), len(listed)) > most:
        return None
    for row, record in records:
        if not _drop_flushed(txn, row[1:], record):
            return False
    # Both in one commit: ``check`` reports one without the other.
    for row, _ in chain(records, listed):
        txn.batch.delete(_METADATA, row)
    return True


def _drop_flushed(txn: Txn, name: bytes, record: bytes) -> bool:
    """Delete a key of a flushed number if it has more rows than every key has.

    Return False if it has more groups than this commit may delete.
    """
    if record.startswith(PLAIN_START):  # a plain string has no other rows
        return True
    try:
        key = decode_key(name, record)
    except Corruption:  # check reports its other rows, which belong to none
        return True
    if isinstance(key, StreamMeta):
        if key.groups_count and _waits(txn, key):
            return False
        if key.has_trees or key.due_at or key.expire_at:
            txn.catalog.drop_flushed(txn, key)
    elif key.expire_at:
        txn.catalog.drop_flushed(txn, key)
    return True


def _sweep_unlinked(txn: Txn) -> int | None:
    """Delete the rows of one row's keys; return their number, or None if some have to wait."""
    unlinked = txn.catalog.unlinked
    taken = unlinked.first(txn)
    if taken is None:
        return 0
    txn.frees = True
    db, generations = taken
    if not txn.catalog.databases.has(txn, db):  # a flush has deleted the whole number
        unlinked.clear_first(txn, db, generations)
        return len(generations)
    rows = [scan_row(db, generation) for generation in generations]
    keys = zip(rows, txn.batch.get_many(_METADATA, rows), strict=True)
    listed = [(row, key) for row, key in keys if key is not None]  # else the name is reused
    if not _drop_listed(txn, db, listed):
        return None
    unlinked.clear_first(txn, db, generations)
    return len(generations)


def _drop_listed(txn: Txn, db: int, listed: Sequence[Row]) -> bool:
    """Delete the rows of deleted keys, which ``listed`` gives by their rows for SCAN.

    Return False at the first key that has more groups than this commit may delete.
    """
    catalog = txn.catalog
    names = [qualified(db, key) for _, key in listed]
    records = txn.batch.get_many(_METADATA, [stream_row(name) for name in names])
    for (row, _), name, record in zip(listed, names, records, strict=True):
        key = catalog.find_deleted(txn, name, record)
        if isinstance(key, StreamMeta) and key.groups_count and _waits(txn, key):
            return False
        txn.batch.delete(_METADATA, row)
        if key is not None:
            catalog.drop_rows_of(txn, key, swept=True)
    return True


def _waits(txn: Txn, stream: StreamMeta) -> bool:
    """Return whether a deleted stream has more groups than this commit may delete.

    If it has more than any commit may, the first of them are deleted now.
    """
    dropped = txn.groups_dropped + stream.groups_count
    if dropped <= txn.thresholds.groups_together:
        txn.groups_dropped = dropped
        return False
    try:
        return txn.groups_dropped > 0 or _drop_groups(txn, stream) == txn.thresholds.groups_together
    except Corruption:  # it is deleted as a whole, as far as it can be read
        txn.forget_stream(stream)
        return False


def _drop_groups(txn: Txn, stream: StreamMeta) -> int:
    groups = tree_prefix(stream.groups_tree)
    page = txn.batch.page(_TREES, groups, successor(groups), txn.thresholds.groups_together)
    found = [txn.catalog.group(txn, stream, row[U64.size :]) for row, _ in page]
    catch_up(txn.batch, stream)
    for group in found:
        assert group is not None
        txn.catalog.drop_group(txn, stream, group)
    return len(page)
