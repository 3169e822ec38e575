"""What all checks share: rows, findings, and the numbers in use.

Faults of one kind in one place are one fault with a few examples, so that a million wrong rows do
not make a million faults. Corrected rows are kept apart from the transaction until the end, since
the check reads rows as they are. Numbers in use are one bit each.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from struct import error as StructError
from typing import TypeVar

from kvstream.errors import KVStreamError
from kvstream.layout.keys import (
    U64,
    database_of,
    is_shared,
    key_of,
    stream_row,
    successor,
    tree_prefix,
)
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import Key, decode_key
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Batch, Family, Row, Rows
from kvstream.types.records import Fault

PAGE_BITS = 1 << 15
"""Numbers of one page, which takes four kilobytes."""


class Numbers:
    """A set of 64-bit numbers; a million close together take 128 kilobytes."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self.greatest = 0

    def add(self, number: int) -> None:
        at, bit = divmod(number, PAGE_BITS)
        page = self._pages.setdefault(at, bytearray(PAGE_BITS // 8))
        page[bit // 8] |= 1 << (bit % 8)
        self.greatest = max(self.greatest, number)

    def __contains__(self, number: int) -> bool:
        at, bit = divmod(number, PAGE_BITS)
        page = self._pages.get(at)
        return page is not None and bool(page[bit // 8] & (1 << (bit % 8)))


T = TypeVar("T")

EXAMPLES = 3
"""Examples in the message of a fault."""


def quote_name(name: bytes) -> str:
    """Return a name for a message, as text if it is ASCII."""
    return repr(name.decode()) if name.isascii() else repr(name)


def group_place(stream: str, name: bytes) -> str:
    return f"{stream}, group {quote_name(name)}"


def consumer_place(group: str, name: bytes) -> str:
    return f"{group}, consumer {quote_name(name)}"


@dataclass(slots=True)
class _Kind:
    """Faults of one kind in one place."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def message(self, kind: str) -> str:
        if not any(self.examples):
            return kind if self.count == 1 else f"{kind} ({self.count} times)"
        more = self.count - len(self.examples)
        rest = f"; and {more} more" if more else ""
        return f"{kind}: {'; '.join(self.examples)}{rest}"


class Findings:
    """The faults so far, and the rows that correct them."""

    def __init__(self, rows: Rows, repair: bool) -> None:
        self.repair = repair
        self.repairs = Batch(rows)
        """Rows to write after the check."""
        self._kinds: dict[tuple[str, str, bool], _Kind] = {}

    def fault(self, place: str, kind: str, detail: str = "", repaired: bool = True) -> None:
        """Report a fault; ``repaired``: a repair corrects it."""
        faults = self._kinds.setdefault((place, kind, repaired), _Kind())
        faults.count += 1
        if len(faults.examples) < EXAMPLES:
            faults.examples.append(detail)

    def correct(self, place: str, what: str, recorded: T, true: T) -> T:
        """Return the true value, and report a fault if the recorded one differs."""
        if recorded != true:
            self.fault(place, f"{what} is wrong", f"{recorded}, but {true} by count")
        return true

    def put(self, family: int, key: bytes, value: bytes) -> None:
        if self.repair:
            self.repairs.put(family, key, value)

    def delete(self, family: int, key: bytes) -> None:
        if self.repair:
            self.repairs.delete(family, key)

    def delete_range(self, family: int, lower: bytes, upper: bytes) -> None:
        if self.repair:
            self.repairs.delete_range(family, lower, upper)

    def faults(self) -> list[Fault]:
        """Return the faults in the order in which they were found."""
        return [
            Fault(place, faults.message(kind), self.repair and repaired)
            for (place, kind, repaired), faults in self._kinds.items()
        ]


CHUNK_ROWS = 1024
CHUNK_BYTES = 1 << 20
"""The most rows and bytes of a chunk; one chunk is in memory at a time."""

STORE = "the store"
"""The place of faults that belong to no stream."""

DECODING_ERRORS = (KVStreamError, StructError, ValueError, TypeError)
"""The errors of decoding a damaged row. Errors of reading rows are raised by scans, outside."""


@dataclass(slots=True)
class CheckProgress:
    """The progress of a check, which another thread may read."""

    rows: int = 0
    """Rows of entries and trees that were read so far."""


class Survey:
    """One check under way."""

    def __init__(self, txn: Txn, repair: bool, progress: CheckProgress | None = None) -> None:
        self.rows = txn.batch
        self._progress = progress or CheckProgress()
        self.now_ms = txn.now_ms
        self.limits = txn.catalog.limits
        self.seen = txn.catalog.seen
        self.findings = Findings(txn.batch, repair)
        self.shown_numbers: dict[int, int] = {}
        """The database that a stored number stands for, if it is another one."""
        self.generations = Numbers()
        self.trees = Numbers()
        self.staged: set[bytes] = set()
        """Prefixes of entries that have no key yet."""
        self.shared: set[bytes] = set()
        """Prefixes of streams whose number is that of a bulk load."""
        self.owner_lost = False
        """Whether a record cannot be read, so that rows without an owner may belong to it."""
        self.unlisted: dict[int, bytes] = {}
        """Names of streams whose SCAN row is wrong, by generation."""
        self.allocator = 1
        """The least number never allocated, by the allocator's row."""
        self.afterwards: list[Callable[[], None]] = []
        """Repairs that allocate a number, for the end, when all numbers in use are known."""

    # --- places -------------------------------------------------------------------------------

    def database_place(self, stored_db: int) -> str:
        """Return what users call the database of a stored number."""
        return f"database {self.shown_numbers.get(stored_db, stored_db)}"

    def key_place(self, name: bytes, kind: str = "key") -> str:
        """Return what users call the key of a stored name."""
        return f"{self.database_place(database_of(name))}, {kind} {quote_name(key_of(name))}"

    def stream_place(self, name: bytes) -> str:
        return self.key_place(name, "stream")

    # --- rows -----------------------------------------------------------------------------------

    def chunks(self, family: Family, lower: bytes, upper: bytes) -> Iterator[list[Row]]:
        """Yield the rows of ``lower <= key < upper`` in lists of bounded size."""
        chunk: list[Row] = []
        size = 0
        for row in self.rows.scan(family, lower, upper):
            chunk.append(row)
            size += len(row[1])
            if len(chunk) == CHUNK_ROWS or size >= CHUNK_BYTES:
                self._progress.rows += len(chunk)
                yield chunk
                chunk, size = [], 0
        if chunk:
            self._progress.rows += len(chunk)
            yield chunk

    def tree(self, tree: int, start: bytes = b"") -> Iterator[Row]:
        """Yield (suffix, value) of a tree's rows from ``start`` on."""
        return chain.from_iterable(self.tree_chunks(tree, start))

    def tree_chunks(self, tree: int, start: bytes = b"") -> Iterator[list[Row]]:
        """Yield (suffix, value) of a tree's rows in lists of bounded size."""
        prefix = tree_prefix(tree)
        for chunk in self.chunks(Family.TREES, prefix + start, successor(prefix)):
            yield [(key[len(prefix) :], value) for key, value in chunk]

    def key(self, name: bytes) -> Key | None:
        """Return the key of a name from its record; None if that is missing or damaged."""
        record = self.rows.get(Family.METADATA, stream_row(name))
        return None if record is None else self.decode_key(name, record)

    def has_record(self, name: bytes) -> bool:
        return self.rows.get(Family.METADATA, stream_row(name)) is not None

    def decode_key(self, name: bytes, record: bytes) -> Key | None:
        """Return the key of a record, None if it cannot be read."""
        try:
            meta = decode_key(name, record)
        except DECODING_ERRORS:
            return None
        if isinstance(meta, StreamMeta):
            number = meta.prefix[-U64.size :]
            own = number == U64.pack(meta.generation)
            return meta if own or (len(number) == U64.size and is_shared(number)) else None
        return meta

    # --- numbers --------------------------------------------------------------------------------

    def claim_tree(self, place: str, tree: int) -> None:
        """Register a tree that belongs to ``place``; report a fault if another place has it."""
        self._claim(self.trees, place, "tree ID", tree)

    def claim_generation(self, place: str, generation: int) -> None:
        self._claim(self.generations, place, "generation", generation)

    def _claim(self, numbers: Numbers, place: str, what: str, number: int) -> None:
        if number in self.trees or number in self.generations:
            self.findings.fault(place, f"{what} used twice", str(number), repaired=False)
        numbers.add(number)

    @property
    def first_free(self) -> int:
        """The least number above all that are in use."""
        return max(self.generations.greatest, self.trees.greatest) + 1

    def allocate(self) -> int:
        """Return a new number, for what a repair creates after the check."""
        number = max(self.allocator, self.first_free)
        self.allocator = number + 1
        return number
