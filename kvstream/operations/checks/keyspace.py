"""Check the metadata family, and rows that belong to nothing.

Metadata are records, the order of SCAN, key counts and the order of expiry. A flushed key whose
rows are not deleted yet owns its trees but no entries. Keys under a stored number that no database
has, and no flush has left, go to a database without keys. Messages of no stream and rows of no
known tree are found by seeks from one prefix to the next. If a record cannot be read, such rows may
belong to its key: they are reported and stay. Large strings must have all pieces, each of its
length.
"""

from collections import Counter
from collections.abc import Callable
from itertools import chain

from kvstream.errors import Corruption
from kvstream.layout.history import History
from kvstream.layout.keys import (
    ALLOCATOR_KEY,
    COUNTED_MAX,
    EXPIRY_TAG,
    FLUSHED_TAG,
    FUNCTION_TAG,
    HISTORY_KEY,
    INGESTED_KEY,
    KEY_COUNT_TAG,
    LOAD_TAG,
    NUMBERS_KEY,
    REQUEST_TAG,
    SCAN_TAG,
    STREAM_TAG,
    TIMER_TAG,
    U16,
    U64,
    UNLINKED_TAG,
    database_of,
    database_of_row,
    expiry_row,
    flushed_row,
    generation_of_row,
    is_shared,
    key_count_row,
    key_of,
    name_of_row,
    qualified,
    scan_row,
    successor,
    time_of_row,
    timer_row,
)
from kvstream.meta.deleted_keys import decode_unlinked
from kvstream.meta.filling import catch_up
from kvstream.meta.idempotency import decode_request
from kvstream.meta.keyspace import decode_numbers, encode_numbers, free_number
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import Key, StringMeta
from kvstream.meta.unfinished_loads import StagedLoad, decode_ingested
from kvstream.operations.checks.survey import STORE, Survey, quote_name
from kvstream.operations.functions import decode_library
from kvstream.operations.keyspace import kind_of
from kvstream.storage.batch import Family
from kvstream.types.options import DATABASES_MAX


def check_value(survey: Survey, string: StringMeta, place: str) -> None:
    """Check the pieces of a string's value; lost ones cannot be repaired."""
    pieces = string.pieces
    if pieces is None:
        return
    wanted = stray = 0
    for chunk in survey.chunks(Family.MESSAGES, pieces.prefix, successor(pieces.prefix)):
        for key, value in chunk:
            number = int.from_bytes(key[len(pieces.prefix) :])
            if number >= pieces.count or key != pieces.row(number):
                stray += 1
                survey.findings.delete(Family.MESSAGES, key)
            elif len(value) == pieces.bytes_of(number):
                wanted += 1
    if stray:
        survey.findings.fault(place, "rows beside the pieces of its value", str(stray))
    if wanted != pieces.count:
        detail = f"{pieces.count - wanted} of {pieces.count}"
        survey.findings.fault(place, "pieces of its value are lost", detail, repaired=False)


_METADATA = Family.METADATA
_SCAN_ROW_BYTES = 1 + U16.size + U64.size
EVERYTHING = (b"", b"\xff" * 64)
"""The bounds of all keys: none begins with 64 bytes of 0xff."""

StreamCheck = Callable[[Survey, StreamMeta, str, bool], None]
"""Checks everything of a stream, which a flush may have deleted."""


class KeyspaceCheck:
    """Reads the metadata family, and calls ``check_stream`` for each stream."""

    def __init__(self, survey: Survey, check_stream: StreamCheck) -> None:
        self._survey = survey
        self._findings = survey.findings
        self._check_stream = check_stream
        self._keys: Counter[int] = Counter()
        """Keys of each database, as counted."""
        self._recorded: dict[int, int] = {}
        """Keys of each database, as on disk."""
        self._numbers: dict[int, int] = {}
        """The stored numbers that are not their databases' own."""
        self._flushed: set[int] = set()
        """The stored numbers that a flush has left."""
        self._unlinked: set[int] = set()
        """Other generations that are deleted."""
        self._allocator_recorded = 1
        self._kinds = {
            ALLOCATOR_KEY: self._read_allocator,
            KEY_COUNT_TAG: self._read_key_count,
            FLUSHED_TAG: self._read_flushed,
            UNLINKED_TAG: self._read_unlinked,
            INGESTED_KEY: self._read_ingested,
            LOAD_TAG: self._read_load,
            NUMBERS_KEY: self._read_numbers,
            SCAN_TAG: self._read_scan_row,
            STREAM_TAG: self._read_record,
            TIMER_TAG: self._read_timer,
            EXPIRY_TAG: self._read_expiry,
            FUNCTION_TAG: self._read_function,
            REQUEST_TAG: self._read_request,
            HISTORY_KEY: self._read_history,
        }
        """By the first byte of a row: each checks a row, and notes what it says."""

    def run(self) -> None:
        for key, value in self._survey.rows.scan(_METADATA, *EVERYTHING):
            self._kinds.get(key[:1], self._drop_unknown)(key, value)
        for db in sorted(self._keys.keys() | self._recorded.keys()):
            self._compare_count(db)
        self._check_numbers()
        self._check_allocator()

    def _drop_unknown(self, key: bytes, value: bytes) -> None:
        self._drop_row(key, "unknown metadata row", key)

    def _drop_row(self, key: bytes, kind: str, detail: bytes) -> None:
        self._findings.fault(STORE, kind, detail[:40].hex())
        self._findings.delete(_METADATA, key)

    # --- numbers --------------------------------------------------------------------------------

    def _read_allocator(self, key: bytes, value: bytes) -> None:
        if key != ALLOCATOR_KEY:
            self._drop_unknown(key, value)
        elif len(value) != U64.size or U64.unpack(value)[0] >= COUNTED_MAX:
            self._findings.fault(STORE, "the allocator cannot be decoded", value[:40].hex())
        else:
            self._survey.allocator = self._allocator_recorded = U64.unpack(value)[0]

    def _check_allocator(self) -> None:
        survey, recorded = self._survey, self._allocator_recorded
        least = survey.first_free
        if survey.allocator < least:
            detail = f"at {survey.allocator}, but {least - 1} is in use"
            self._findings.fault(STORE, "the allocator is behind", detail)
            survey.allocator = least
        for repair in survey.afterwards:
            repair()
        if survey.allocator != recorded:
            self._findings.put(_METADATA, ALLOCATOR_KEY, U64.pack(survey.allocator))

    def _read_key_count(self, key: bytes, value: bytes) -> None:
        if len(key) != 1 + U16.size:
            self._drop_unknown(key, value)
            return
        known = len(value) == U64.size
        self._recorded[database_of_row(key)] = U64.unpack(value)[0] if known else -1

    def _compare_count(self, db: int) -> None:
        recorded, counted = self._recorded.get(db, 0), self._keys[db]
        if recorded != counted:
            place = self._survey.database_place(db)
            self._findings.correct(place, "the number of keys", recorded, counted)
            self._findings.put(_METADATA, key_count_row(db), U64.pack(counted))

    def _read_numbers(self, key: bytes, value: bytes) -> None:
        if key != NUMBERS_KEY:
            self._drop_unknown(key, value)
            return
        try:
            self._numbers = decode_numbers(value)
        except Corruption:  # databases get their own numbers, or those that _check_numbers finds
            self._drop_row(key, "the stored numbers of databases cannot be known", value)
        else:
            self._survey.shown_numbers = {stored: db for db, stored in self._numbers.items()}

    def _read_history(self, key: bytes, value: bytes) -> None:
        if key != HISTORY_KEY:
            self._drop_unknown(key, value)
            return
        try:
            History.decode(value)
        except Corruption:  # without it replicas take a copy
            self._drop_row(key, "the history of the store cannot be known", value)

    def _has_database(self, number: int) -> bool:
        own = number < DATABASES_MAX and number not in self._numbers
        return own or number in self._numbers.values()

    def _is_flushed(self, number: int) -> bool:
        """Return whether a flush has left a number: no database has it, and it has no count."""
        if number in self._flushed:
            return True
        if self._has_database(number) or number in self._recorded:
            return False
        self._findings.fault(STORE, "the row of a flushed database is missing", str(number))
        self._findings.put(_METADATA, flushed_row(number), b"")
        self._flushed.add(number)
        return True

    def _check_numbers(self) -> None:
        """Give the keys under a number that no database has to a database without keys.

        Databases whose own number a flush has left come first: they had another number.
        """
        numbers = dict(self._numbers)
        lost = sorted(n for n, keys in self._keys.items() if keys and not self._has_database(n))
        without = sorted(n for n in self._flushed if n < DATABASES_MAX and n not in numbers)
        bare = [db for db, number in numbers.items() if not self._keys[number]]
        own = (db for db in range(DATABASES_MAX) if db not in numbers and db not in without)
        empty = chain(without, bare, (db for db in own if not self._keys[db]))
        for number, db in zip(lost, empty, strict=False):
            numbers[db] = number
            detail = f"{self._keys[number]} under {number}"
            self._findings.fault(self._survey.database_place(db), "keys of no database", detail)
        for db in without[len(lost) :]:
            numbers[db] = free_number(db, self._flushed | set(numbers.values()))
            self._findings.fault(self._survey.database_place(db), "its number is a flushed one")
        if numbers != self._numbers:
            self._findings.put(_METADATA, NUMBERS_KEY, encode_numbers(numbers))

    def _read_ingested(self, key: bytes, value: bytes) -> None:
        """Check the row of a bulk load in progress, which the next opening of the store ends."""
        try:
            if key != INGESTED_KEY:
                raise Corruption("its key is longer")
            list(decode_ingested(value))
        except Corruption:
            self._drop_row(key, "what was taken in cannot be known", value)

    def _read_function(self, key: bytes, value: bytes) -> None:
        try:
            decode_library(key, value)
        except Corruption:
            self._drop_row(key, "a function library cannot be decoded", key[1:])

    def _read_request(self, key: bytes, value: bytes) -> None:
        try:
            decode_request(key, value)
        except Corruption:
            self._drop_row(key, "the last request of a client cannot be decoded", key[1:])

    # --- streams under way ----------------------------------------------------------------------

    def _read_load(self, key: bytes, value: bytes) -> None:
        """Register the numbers of a load; its rows are not counted until it becomes a key."""
        try:
            load = StagedLoad.decode(key, value)
        except Corruption:  # its rows belong to nothing now
            self._drop_row(key, "a load cannot be decoded", key)
            return
        place = f"load {quote_name(load.label)}"
        self._survey.staged.add(load.stream.prefix)
        self._survey.claim_generation(place, load.stream.generation)
        for tree in (load.stream.nodes_tree, *load.trees):
            self._survey.claim_tree(place, tree)

    # --- flushed databases ----------------------------------------------------------------------

    def _read_flushed(self, key: bytes, value: bytes) -> None:
        if len(key) != 1 + U16.size or value:
            self._drop_unknown(key, value)
            return
        number = database_of_row(key)
        if number in self._numbers.values():
            kind = "a row says that a flush has left its keys"
            self._findings.fault(self._survey.database_place(number), kind)
            self._findings.delete(_METADATA, key)
        else:
            self._flushed.add(number)

    def _read_unlinked(self, key: bytes, value: bytes) -> None:
        """Register the keys that one command has deleted and whose rows are still there."""
        try:
            self._unlinked.update(decode_unlinked(key, value))
        except Corruption:  # they are keys again
            self._drop_row(key, "what was deleted cannot be known", key)

    # --- keys and what points to them -----------------------------------------------------------

    def _read_record(self, key: bytes, value: bytes) -> None:
        name = key[1:]
        if len(name) < U16.size:
            self._drop_unknown(key, value)
            return
        meta = self._survey.decode_key(name, value)
        gone = self._is_flushed(database_of(name))
        unlinked = meta is not None and meta.generation in self._unlinked
        self._keys[database_of(name)] += not (gone or unlinked)
        if meta is None:
            self._findings.fault(
                self._survey.stream_place(name), "the record cannot be decoded", repaired=False
            )
            self._survey.owner_lost = True
            return
        place = self._survey.key_place(name, kind_of(meta))
        self._survey.claim_generation(place, meta.generation)
        if not gone:
            self._check_scan_row(meta, place)
        if not (gone or unlinked):
            self._check_expiry(meta, place)
        if isinstance(meta, StreamMeta):
            due_at = meta.due_at
            self._check_record(meta, value, place, gone)
            if not (gone or unlinked):
                self._check_timer(meta, place, due_at)
        elif not gone:
            check_value(self._survey, meta, place)

    def _check_record(self, stream: StreamMeta, value: bytes, place: str, gone: bool) -> None:
        if is_shared(stream.prefix) and not gone:
            if stream.prefix in self._survey.shared:
                self._findings.fault(
                    place, "the prefix of its entries is another's", repaired=False
                )
            self._survey.shared.add(stream.prefix)
        has_more = stream.encode() != value
        if has_more:
            self._findings.fault(place, "the record has bytes of no meaning")
        catch_up(self._survey.rows, stream)
        recorded = stream.encode()
        self._check_stream(self._survey, stream, place, gone)
        stream.forget_cold_part()
        if has_more or stream.encode() != recorded:
            self._findings.put(_METADATA, stream.row, stream.encode())

    def _check_scan_row(self, meta: Key, place: str) -> None:
        """Check a key's row in the order of SCAN."""
        key = scan_row(database_of(meta.name), meta.generation)
        if self._survey.rows.get(_METADATA, key) != key_of(meta.name):
            self._survey.unlisted[meta.generation] = meta.name
            self._findings.fault(place, "the row for SCAN is missing")
            self._findings.put(_METADATA, key, key_of(meta.name))

    def _check_expiry(self, meta: Key, place: str) -> None:
        """Check the row of a key's expiry."""
        if not meta.expire_at:
            return
        key = expiry_row(meta.expire_at, meta.name)
        if self._survey.rows.get(_METADATA, key) != b"":
            self._findings.fault(place, "the row for expiry is missing")
            self._findings.put(_METADATA, key, b"")

    def _check_timer(self, stream: StreamMeta, place: str, recorded: int) -> None:
        """Check the row of a stream's first timer; ``recorded`` is its time before the check."""
        if recorded and recorded != stream.due_at:
            self._findings.delete(_METADATA, timer_row(recorded, stream.name))
        if not stream.due_at:
            return
        key = timer_row(stream.due_at, stream.name)
        if self._survey.rows.get(_METADATA, key) != b"":
            if recorded == stream.due_at:
                self._findings.fault(place, "the row for timers is missing")
            self._findings.put(_METADATA, key, b"")

    def _read_timer(self, key: bytes, value: bytes) -> None:
        """Check a row for timers; one of a flushed stream is no fault: it goes when it is due."""
        name = name_of_row(key)
        if len(name) < U16.size:
            self._drop_unknown(key, value)
            return
        meta = self._survey.key(name)
        true = isinstance(meta, StreamMeta) and meta.due_at == time_of_row(key)
        if not true and database_of(name) not in self._flushed:
            self._drop_stray(key, name, meta, "a row for timers of no such stream")

    def _read_scan_row(self, key: bytes, value: bytes) -> None:
        if len(key) != _SCAN_ROW_BYTES:
            self._drop_unknown(key, value)
            return
        db, generation = database_of_row(key), generation_of_row(key)
        name = qualified(db, value)
        meta = self._survey.key(name)
        if meta is None or meta.generation != generation:
            self._drop_stray(key, name, meta, "a row for SCAN of no such key")

    def _read_expiry(self, key: bytes, value: bytes) -> None:
        name = name_of_row(key)
        if len(name) < U16.size:
            self._drop_unknown(key, value)
            return
        meta = self._survey.key(name)
        if meta is None or meta.expire_at != time_of_row(key):
            self._drop_stray(key, name, meta, "a row for expiry of no such key")

    def _drop_stray(self, key: bytes, name: bytes, meta: Key | None, kind: str) -> None:
        """Report a row that points to no key, unless a damaged record has its name."""
        if meta is not None or not self._survey.has_record(name):
            self._findings.fault(self._survey.key_place(name), kind, key[:40].hex())
            self._findings.delete(_METADATA, key)


_MESSAGES, _TREES = Family.MESSAGES, Family.TREES
_LENGTH_END = 6
"""The end of the key's length in the key of a message row."""


def check_messages(survey: Survey) -> None:
    """Report message rows of no stream."""
    lower = b""
    while row := survey.rows.page(_MESSAGES, lower, EVERYTHING[1], 1):
        key = row[0][0]
        prefix = _prefix_of(key)
        if prefix is None:
            survey.findings.fault(STORE, "unknown message row", key[:40].hex())
            survey.findings.delete(_MESSAGES, key)
            lower = key + b"\0"
            continue
        lower = successor(prefix)
        if not _is_known(survey, prefix):
            _drop(survey, _MESSAGES, prefix, "entries of no stream")


def check_trees(survey: Survey) -> None:
    """Report rows of no known tree."""
    lower = b""
    while row := survey.rows.page(_TREES, lower, EVERYTHING[1], 1):
        key = row[0][0]
        if len(key) < U64.size:
            survey.findings.fault(STORE, "unknown tree row", key.hex())
            survey.findings.delete(_TREES, key)
            lower = key + b"\0"
            continue
        prefix = key[: U64.size]
        lower = successor(prefix)
        if U64.unpack(prefix)[0] not in survey.trees:
            _drop(survey, _TREES, prefix, "rows of no known tree")


def _drop(survey: Survey, family: Family, prefix: bytes, kind: str) -> None:
    upper = successor(prefix)
    count = sum(1 for _ in survey.rows.scan(family, prefix, upper))
    detail = f"{count} under {prefix[-40:].hex()}"
    survey.findings.fault(STORE, kind, detail, repaired=not survey.owner_lost)
    if not survey.owner_lost:
        survey.findings.delete_range(family, prefix, upper)


def _prefix_of(key: bytes) -> bytes | None:
    """Return the prefix in the key of a message row; None if its form is unknown."""
    if len(key) < _LENGTH_END:
        return None
    end = _LENGTH_END + int.from_bytes(key[U16.size : _LENGTH_END]) + U64.size
    return key[:end] if len(key) >= end else None


def _is_known(survey: Survey, prefix: bytes) -> bool:
    """Return whether a stream, or a large string, has this prefix."""
    if prefix in survey.staged or is_shared(prefix):
        return prefix in survey.staged or prefix in survey.shared
    generation = U64.unpack(prefix[-U64.size :])[0]
    if generation not in survey.generations:
        return False
    name = survey.unlisted.get(generation)
    if name is None:
        db = U16.unpack_from(prefix)[0]
        key = survey.rows.get(_METADATA, scan_row(db, generation))
        if key is None:
            return False
        name = qualified(db, key)
    meta = survey.key(name)
    return meta is not None and meta.prefix == prefix
