"""MSET and MSETNX of very many strings, in steps between which others go on.

Steps look what each name stands for, and make the rows that are to be written. The last one looks
once more at what others have changed meanwhile, and then sets all keys in one commit: it is then
that the command happens.
"""

from collections.abc import Mapping

from kvstream.layout.keys import U16, key_of, scan_row, stream_row
from kvstream.meta import many_strings
from kvstream.meta.index import KeyWatch
from kvstream.meta.many_strings import Plain
from kvstream.meta.pieces import is_large
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace, strings
from kvstream.operations.witness import TRIES
from kvstream.storage.batch import Family

LONG_NAMES = 500
"""Strings from which on they are set in steps."""
STEP_NAMES = 500
"""Names that one step looks at: a millisecond of work."""


class LongPut:
    """Strings for very many keys of one database, whatever they held before."""

    def __init__(self, db: int, values: Mapping[bytes, bytes], only_new: bool = False) -> None:
        """``only_new``: none of the keys may be there."""
        strings.refuse_longer(max(map(len, values.values())))
        self._db, self._values, self._only_new = db, values, only_new
        self._watch: KeyWatch | None = None
        self._tries = 0

    def step(self, txn: Txn) -> bool | None:
        """Go on; return whether the keys were set once that is decided, None before."""
        if self._watch is None or self._watch.broken:
            self._begin(txn)
        assert self._watch is not None
        for name in self._watch.changed:
            if name in self._made or name in self._rewritten or name in self._odd:
                self._look_again(name)
        self._watch.changed.clear()
        while self._look_on(txn):
            if self._tries <= TRIES and self._looked <= 2 * len(self._values):
                return None
        self._watch = None
        if self._only_new and self._has_any(txn):
            return False
        self._put(txn)
        return True

    def _begin(self, txn: Txn) -> None:
        self._watch = txn.catalog.index.watch()
        self._tries += 1
        self._stored_db = txn.catalog.databases.stored(txn, self._db)
        prefix = U16.pack(self._stored_db)
        self._left = [prefix + key for key in self._values]
        """Stored names that are to be looked at."""
        self._looked = 0
        self._rows: dict[bytes, bytes] = {}
        """What is to be written."""
        self._made: dict[bytes, int] = {}
        """Names of keys that are to be made, and their numbers."""
        self._rewritten: set[bytes] = set()
        self._odd: set[bytes] = set()
        """Names of keys that are to be set one by one."""

    def _look_again(self, name: bytes) -> None:
        """Undo what was found of a name."""
        number = self._made.pop(name, None)
        if number is not None:
            del self._rows[scan_row(self._stored_db, number)]
        self._rows.pop(stream_row(name), None)
        self._rewritten.discard(name)
        self._odd.discard(name)
        self._left.append(name)

    def _look_on(self, txn: Txn) -> bool:
        """Look at some of what is left; tell whether more is."""
        some = self._left[-STEP_NAMES:]
        del self._left[-STEP_NAMES:]
        self._looked += len(some)
        plain, new = Plain(txn, self._stored_db), []
        for name, record in zip(some, many_strings.records(txn, some), strict=True):
            value = self._values[key_of(name)]
            if is_large(len(value)):
                self._odd.add(name)
            elif record is None:
                new.append(name)
            elif plain.has(record):
                self._rewritten.add(name)
                self._rows[stream_row(name)] = many_strings.rewritten(record, value)
            else:
                self._odd.add(name)
        if new:
            numbers = txn.catalog.numbers.take(txn, len(new))
            self._made.update(zip(new, numbers, strict=True))
            values = {name: self._values[key_of(name)] for name in new}
            self._rows.update(many_strings.made(self._stored_db, values, numbers))
        return bool(self._left)

    def _has_any(self, txn: Txn) -> bool:
        """Tell whether any of the keys is there."""
        return bool(self._rewritten) or any(
            keyspace.exists(txn, txn.catalog.databases.shown_name(txn, name)) for name in self._odd
        )

    def _put(self, txn: Txn) -> None:
        catalog, shown = txn.catalog, txn.catalog.databases.shown_name
        txn.batch.puts[Family.METADATA].update(self._rows)
        catalog.index.rewritten(self._rewritten)
        if self._made:
            catalog.index.made(txn, self._stored_db, self._made)
            prefix, stored = U16.pack(self._db), U16.pack(self._stored_db)
            made = (key for key in self._values if stored + key in self._made)
            txn.signal_some(prefix + key for key in made)
        for name in self._odd:
            strings.put(txn, shown(txn, name), self._values[key_of(name)])
        txn.frees = False
