"""Sweeping: the rows of keys that are gone already, a page of keys at a time.

A flush names its keys by a bound (meta/lazyfree.py), a command about very many keys one by one
(meta/lazyfree.py). Nobody sees them; whoever takes a name that they had drops what stands under it.

Keys that one command has deleted together with very many others, and whose rows are still there.

::

    doomed row := "G" db(u16) generation(u64) -> generation(u64)*

Such a command writes down the generations of its keys, some in each row, under the first of them:
from that commit on nobody sees a key of one of them. Rows of the keys leave later, those of one
such row at a time. This module knows these rows; what a key has left, the catalog knows.

Databases that were flushed and whose rows have not all left yet.

::

    flushed row := "F" db(u16) -> bound(u64) swept(u64)

FLUSHDB takes a generation: from that commit on nobody sees a key of a lower one. The rows of such
keys go later, a page of keys at a time in the order of their generations; ``swept`` is where the
next page begins, and the row goes with the last of them. This module knows the row; what a key has
left, the catalog knows.

Streams of very many groups that are gone: they keep their rows for a while, under another name.

Each group has trees of its own, so that they are deleted some at a time (meta/lazyfree.py). The
name is free at once, for whatever takes it. The same becomes of streams that one commit deletes
together, once they have had very many groups.
"""

from collections.abc import Collection, Mapping
from struct import Struct, iter_unpack, pack
from struct import error as StructError
from typing import NamedTuple

from kvstream.errors import Corruption
from kvstream.layout.keys import (
    ALLOCATOR_KEY,
    COUNTED_MAX,
    DOOMED_TAG,
    FLUSHED_TAG,
    U16,
    U64,
    database_of,
    decode_number,
    doomed_row,
    flushed_row,
    key_of,
    qualified,
    scan_row,
    stream_row,
    successor,
    tree_prefix,
)
from kvstream.meta.filling import catch_up
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import decode_key
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family

_METADATA = Family.METADATA
_BOUNDS = Struct(">QQ")


class Bounds(NamedTuple):
    """The generations of a database's keys that are gone and may have left rows."""

    bound: int
    """All are below this one."""
    swept: int
    """Below this one the rows are gone, too; the bound itself where the last page was full."""


_NONE = Bounds(0, 0)


def decode_bounds(row: bytes, value: bytes) -> Bounds:
    try:
        bounds = Bounds(*_BOUNDS.unpack(value))
    except StructError:
        bounds = _NONE
    if not (bounds.swept <= bounds.bound and 0 < bounds.bound < COUNTED_MAX):
        raise Corruption(f"the row {row.hex()} of a flushed database is damaged")
    return bounds


def encode_bounds(bound: int, swept: int) -> bytes:
    return _BOUNDS.pack(bound, swept)


class Flushed:
    """Which keys of which databases are gone, though their rows are not."""

    def __init__(self) -> None:
        self._known: dict[int, Bounds] = {}
        """The databases asked for so far."""
        self._unswept: list[int] | None = None
        """Those that have a row; None: not looked up yet."""

    def of(self, txn: Txn, db: int) -> Bounds:
        """Return what is gone of a database; Corruption where that cannot be known."""
        bounds = self._known.get(db)
        if bounds is None:
            bounds = self._known[db] = self._load(txn, flushed_row(db))
        return bounds

    def _load(self, txn: Txn, row: bytes) -> Bounds:
        value = txn.batch.get(_METADATA, row)
        if value is None:
            return _NONE
        bounds = decode_bounds(row, value)
        allocated = decode_number(ALLOCATOR_KEY, txn.batch.get(_METADATA, ALLOCATOR_KEY))
        if allocated <= bounds.bound:
            # It would hide every key, those still to be made among them.
            raise Corruption(f"the row {row.hex()} of a flushed database has a bound of no time")
        return bounds

    def unswept(self, txn: Txn) -> list[int]:
        """Return the databases of which rows may be left."""
        if self._unswept is None:
            rows = txn.batch.scan(_METADATA, FLUSHED_TAG, successor(FLUSHED_TAG))
            self._unswept = [U16.unpack(key[1:])[0] for key, _ in rows if len(key) == 1 + U16.size]
        return self._unswept

    def put(self, txn: Txn, db: int, bounds: Bounds) -> None:
        """Have the keys below ``bounds.bound`` gone."""
        self._known[db] = bounds
        self._unswept = None
        txn.batch.put(_METADATA, flushed_row(db), encode_bounds(*bounds))

    def clear(self, txn: Txn, db: int) -> None:
        """Note that no row is left."""
        self._known[db] = _NONE
        self._unswept = None
        txn.batch.delete(_METADATA, flushed_row(db))

    def forget(self) -> None:
        """Have the rows read again."""
        self._known.clear()
        self._unswept = None


ROW_KEYS = 100
"""Keys of one row: so many are swept at once."""


def decode_doomed(row: bytes, value: bytes) -> list[int]:
    """Return the generations of a row; Corruption where it has none, or anything else."""
    if len(row) == len(doomed_row(0, 0)) and value and not len(value) % U64.size:
        found = [number for (number,) in iter_unpack(U64.format, value)]
        if found[0] == U64.unpack_from(row, 3)[0] and 0 < min(found) <= max(found) < COUNTED_MAX:
            return found
    raise Corruption(f"the row {row.hex()} of deleted keys is damaged")


def encode_doomed(db: int, generations: Collection[int]) -> tuple[bytes, bytes]:
    """Return the row of some generations, of which there must be one."""
    first = next(iter(generations))
    return doomed_row(db, first), pack(f">{len(generations)}Q", *generations)


class Doomed:
    """The keys that are gone one by one, though their rows are not."""

    def __init__(self) -> None:
        self._known: set[int] | None = None
        """Their generations; None: to be read."""
        self._rows: dict[bytes, list[int]] = {}

    def known(self, txn: Txn) -> set[int]:
        """Return the generations of such keys, of all databases: none is given out twice."""
        return self._load(txn) if self._known is None else self._known

    def _load(self, txn: Txn) -> set[int]:
        rows = txn.batch.scan(_METADATA, DOOMED_TAG, successor(DOOMED_TAG))
        self._rows = {row: decode_doomed(row, value) for row, value in rows}
        self._known = {number for found in self._rows.values() for number in found}
        return self._known

    def add(self, txn: Txn, rows: Mapping[bytes, bytes], generations: set[int]) -> None:
        """Have keys gone by rows that ``encode_doomed`` has made; the set is kept."""
        known = self.known(txn)
        txn.batch.puts[_METADATA].update(rows)
        self._rows.update({row: [] for row in rows})  # read when its turn comes
        if len(known) > len(generations):
            known |= generations
        else:
            generations |= known
            self._known = generations

    def first(self, txn: Txn) -> tuple[int, list[int]] | None:
        """Return the row whose keys are to be swept next: its database and their generations."""
        self.known(txn)
        row = next(iter(self._rows), None)
        if row is None:
            return None
        found = self._rows[row]
        if not found:
            found = decode_doomed(row, txn.batch.get(_METADATA, row) or b"")
        return U16.unpack_from(row, 1)[0], found

    def swept(self, txn: Txn, row_db: int, found: list[int]) -> None:
        """Delete the row that ``first`` has returned, and forget its keys: theirs have left."""
        row = doomed_row(row_db, found[0])
        txn.batch.delete(_METADATA, row)
        del self._rows[row]
        assert self._known is not None
        self._known.difference_update(found)

    def forget(self) -> None:
        """Have the rows read again."""
        self._known, self._rows = None, {}


GROUPS_TOGETHER = 100
"""Groups that are deleted at once: a stream with more of them leaves some at a time."""
GROUPS_OF_COMMIT = 300
"""Groups that one commit deletes of all streams together, 30 us each."""
_GRAVE = b"kvstream:gone:"
"""Before the generation it makes the key; where a client has such a key all groups go at once."""


def bury(txn: Txn, stream: StreamMeta) -> bool:
    """Have a stream gone with this commit, and its rows later; False where it has few groups."""
    dropped = txn.groups_dropped + stream.groups_count
    if stream.groups_count <= GROUPS_TOGETHER and dropped <= GROUPS_OF_COMMIT:
        txn.groups_dropped = dropped
        return False
    catalog, generation = txn.catalog, stream.generation
    db = database_of(stream.name)
    grave = qualified(db, _GRAVE + U64.pack(generation))
    txn.frees = True
    txn.finish()  # nothing of its groups may be left to be written by a later commit
    if txn.batch.get(Family.METADATA, stream_row(grave)) is not None:
        return False
    catalog.hot.forget(stream.prefix)
    catalog.unlist(txn, stream)
    stream.name, stream.row, stream.expire_at = grave, stream_row(grave), 0
    catalog.index.note(stream)  # whoever is about to make a key of that name
    txn.reshaped(stream)
    txn.finish()
    txn.batch.put(Family.METADATA, scan_row(db, generation), key_of(grave))
    if not catalog.is_gone(txn, stream):  # else somebody is to sweep it already
        catalog.doomed.add(txn, dict([encode_doomed(db, [generation])]), {generation})
    return True


_TREES = Family.TREES


def sweep(txn: Txn, limit: int) -> int:
    """Delete what up to ``limit`` keys have left; return how many, ``limit`` where more may be."""
    left = limit
    flushed = txn.catalog.flushed
    for db in flushed.unswept(txn):
        txn.frees = True
        bound, swept = flushed.of(txn, db)
        lower, upper = scan_row(db, swept), scan_row(db, bound)
        page = txn.batch.page(_METADATA, lower, upper, left)
        for row, key in page:
            if _waits(txn, qualified(db, key)):
                flushed.put(txn, db, Bounds(bound, U64.unpack_from(row, 3)[0]))
                return limit
            txn.batch.delete(_METADATA, row)
            txn.catalog.drop_gone(txn, qualified(db, key), swept=True)
        left -= len(page)
        if left == 0:
            flushed.put(txn, db, Bounds(bound, U64.unpack_from(page[-1][0], 3)[0] + 1))
            return limit
        flushed.clear(txn, db)
    while left > 0:
        keys = _sweep_doomed(txn)
        if keys is None:
            return limit
        if not keys:
            return limit - left
        left -= keys
    return limit


def _sweep_doomed(txn: Txn) -> int | None:
    """Delete what the keys of one row have left; return how many, None where more are to wait."""
    doomed = txn.catalog.doomed
    taken = doomed.first(txn)
    if taken is None:
        return 0
    txn.frees = True
    db, generations = taken
    rows = [scan_row(db, generation) for generation in generations]
    for row, key in zip(rows, txn.batch.get_many(_METADATA, rows), strict=True):
        if key is not None:  # nobody has taken the name meanwhile
            if _waits(txn, qualified(db, key)):
                return None
            txn.batch.delete(_METADATA, row)
            txn.catalog.drop_gone(txn, qualified(db, key), swept=True)
    doomed.swept(txn, db, generations)
    return len(generations)


def _waits(txn: Txn, name: bytes) -> bool:
    """Tell whether what is gone, by its stored name, has more groups than this commit may delete.

    Some are deleted of one that has more than any commit may.
    """
    record = txn.batch.get(_METADATA, stream_row(name))
    stream = None
    try:
        stream = None if record is None else decode_key(name, record)
        if not isinstance(stream, StreamMeta) or not txn.catalog.is_gone(txn, stream):
            return False
        dropped = txn.groups_dropped + stream.groups_count
        if dropped <= GROUPS_TOGETHER or not stream.groups_count:
            txn.groups_dropped = dropped
            return False
        return txn.groups_dropped > 0 or _drop_groups(txn, stream) == GROUPS_TOGETHER
    except Corruption:  # it goes as a whole, as far as it can be read
        if isinstance(stream, StreamMeta):
            txn.forget_stream(stream)
        return False


def _drop_groups(txn: Txn, stream: StreamMeta) -> int:
    groups = tree_prefix(stream.groups_tree)
    page = txn.batch.page(_TREES, groups, successor(groups), GROUPS_TOGETHER)
    found = [txn.catalog.group(txn, stream, row[U64.size :]) for row, _ in page]
    catch_up(txn.batch, stream)
    for group in found:
        assert group is not None
        txn.catalog.drop_group(txn, stream, group)
    return len(page)
