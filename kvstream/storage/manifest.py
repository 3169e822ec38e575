"""RocksDB's MANIFEST: which tables a store has, and one written anew with some of them.

MANIFEST has the blocks of a log (log.py). Its payloads are, as RocksDB 9.8 writes them::

    edit  := field*
    field := tag(varint) value           the values of a tag: _VALUES
      200 number                         the family that the whole edit is about, by default 0
      201 name                           creates that family; 202 drops it
      6, 103, 400                        deletes a table, adds one, adds a file of large values
    integers are varints of up to ten bytes; names and keys have their length before them, and the
    first and last key of a table eight bytes behind them

RocksDB numbers families in the order in which it creates them, which differs from store to store.
The family 0 is "default", which kvstream leaves empty.

A store that has some of its tables only is sound for RocksDB. What it returns is right for each key
range of which it has all tables that may have rows in it, as long as nothing is compacted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kvstream.errors import Corruption
from kvstream.storage import files
from kvstream.storage.batch import Family
from kvstream.storage.log import FragmentReader, join, put_varint, take_bytes, take_varint

CURRENT = "CURRENT"
NUMBER, NAME, DROPPED = 200, 201, 202
_NEW_TABLE, _DELETED_TABLE, _NEW_BLOBS, _GARBAGE = 103, 6, 400, 401
_VALUES = {
    1: "s",  # comparator
    2: "n",  # log number
    3: "n",  # next file number
    4: "n",  # last sequence number
    5: "ns",  # where the next compaction begins
    _DELETED_TABLE: "nn",
    7: "nnnss",  # new table, in four versions
    9: "n",  # previous log number
    10: "n",  # least log number to keep
    100: "nnnssnn",
    102: "nnnnssnn",
    _NEW_TABLE: "nnnssnn1",
    NUMBER: "n",
    NAME: "s",
    DROPPED: "",
    203: "n",  # greatest family number
    300: "n",  # edits that belong together
    _NEW_BLOBS: "nnnss0",
    _GARBAGE: "nnn0",
}
"""The values of each tag: n a number, s bytes; a digit: (number bytes)* and this number."""
_OF_TABLES = frozenset({_DELETED_TABLE, 7, 100, 102, _NEW_TABLE, _NEW_BLOBS, _GARBAGE})
_OLDEST_BLOBS, _EPOCH = 4, 13
"""Among the pairs of a new table: its oldest file of large values, and its place at level 0."""
_MAY_BE_IGNORED = 1 << 13
"""Tags with this bit have bytes, which older versions skip."""
_VARINT_BYTES = 10
_KEY_END = 8
"""Bytes of a sequence number and a type behind a key."""

Pairs = list[tuple[int, bytes]]


class Field(NamedTuple):
    """One field of an edit."""

    tag: int
    values: list[int | bytes | Pairs]
    data: bytes
    """The field as it stands in the edit."""

    def number(self, at: int = 0) -> int:
        value = self.values[at]
        assert isinstance(value, int)
        return value

    def text(self, at: int = 0) -> bytes:
        value = self.values[at]
        assert isinstance(value, bytes)
        return value

    def pairs(self) -> Pairs:
        """Return the pairs that end a field."""
        value = self.values[-1]
        assert isinstance(value, list)
        return value


class Table(NamedTuple):
    """An SST file."""

    family: int
    number: int
    first: bytes
    last: bytes
    blobs_from: int
    """The number of the oldest file of large values that it refers to; 0: to none."""
    epoch: int
    """The place at level 0: of two tables the one with the greater number is newer."""
    field: Field

    @property
    def name(self) -> str:
        return f"{self.number:06d}.sst"

    def overlaps(self, lower: bytes, upper: bytes) -> bool:
        """Return whether it may have rows, or deletions, of ``lower <= key < upper``."""
        return self.first < upper and self.last >= lower


class Blobs(NamedTuple):
    """A file of large values."""

    family: int
    number: int
    field: Field

    @property
    def name(self) -> str:
        return f"{self.number:06d}.blob"


@dataclass(slots=True)
class Manifest:
    """What a MANIFEST says."""

    families: dict[int, str]
    """The names of the families by their numbers; "default", which no edit creates, is 0."""
    tables: list[Table]
    blobs: list[Blobs]
    """Files of large values; those that were deleted since are among them."""
    rest: list[bytes]
    """The edits without tables and files of large values."""

    @property
    def files(self) -> list[Table | Blobs]:
        """All files that hold rows."""
        return [*self.blobs, *self.tables]

    def encode(self) -> bytes:
        """Return the bytes of a MANIFEST."""
        added: dict[int, bytes] = {}
        for each in self.files:
            about = added.get(each.family) or put_varint(NUMBER) + put_varint(each.family)
            added[each.family] = about + each.field.data
        return join([*self.rest, *added.values()])


def parse_manifest(data: bytes) -> Manifest:
    """Parse the bytes of a MANIFEST; a torn end of the file is left out.

    Raises Corruption if the file is damaged, or has fields that this version does not know.
    """
    families = {0: "default"}
    tables: dict[int, Table] = {}
    blobs: dict[int, Blobs] = {}
    rest = []
    for edit in _EditReader().feed(data):
        fields = _fields(edit)
        number = next((each.number() for each in fields if each.tag == NUMBER), 0)
        for each in fields:
            if each.tag == NAME:
                families[number] = each.text().decode("utf-8", "backslashreplace")
            elif each.tag == DROPPED:
                families.pop(number, None)
            elif each.tag == _DELETED_TABLE:
                tables.pop(each.number(1), None)
            elif each.tag == _NEW_TABLE:
                table = _table(number, each)
                tables[table.number] = table
            elif each.tag == _NEW_BLOBS:
                blobs[each.number()] = Blobs(number, each.number(), each)
        rest.append(b"".join(each.data for each in fields if each.tag not in _OF_TABLES))
    return Manifest(families, [*tables.values()], [*blobs.values()], rest)


def read_manifest(directory: Path) -> bytes:
    """Return the bytes of the MANIFEST of a store, which RocksDB may replace meanwhile."""
    current = directory / CURRENT
    while True:
        name = files.read(current)
        try:
            return files.read(directory / name.decode().strip())
        except FileNotFoundError:
            if files.read(current) == name:
                raise


def newer(tables: Iterable[Table], than: Iterable[Table]) -> list[Table]:
    """Return tables whose places at level 0 are behind those of others."""
    greatest = max((each.epoch for each in than), default=0)
    return [_with_epoch(each, each.epoch + greatest) for each in tables]


def _with_epoch(table: Table, epoch: int) -> Table:
    *values, _ = table.field.values
    changed = [
        (tag, put_varint(epoch) if tag == _EPOCH else value) for tag, value in table.field.pairs()
    ]
    parts = [put_varint(_NEW_TABLE)]
    for value in values:
        if isinstance(value, bytes):
            parts += [put_varint(len(value)), value]
        elif isinstance(value, int):
            parts.append(put_varint(value))
    for tag, value in changed:
        parts += [put_varint(tag), put_varint(len(value)), value]
    parts.append(put_varint(1))
    field = Field(_NEW_TABLE, [*values, changed], b"".join(parts))
    return table._replace(epoch=epoch, field=field)


class _EditReader(FragmentReader[bytes]):
    """Read the payloads of a MANIFEST."""

    def _payload(self, payload: bytes, end: int) -> bytes:
        return payload


def _table(family: int, field: Field) -> Table:
    numbers = {tag: value for tag, value in field.pairs() if tag in (_OLDEST_BLOBS, _EPOCH)}
    blobs, epoch = (
        take_varint(numbers[tag], 0, _VARINT_BYTES)[0] if tag in numbers else 0
        for tag in (_OLDEST_BLOBS, _EPOCH)
    )
    first, last = field.text(3)[:-_KEY_END], field.text(4)[:-_KEY_END]
    return Table(family, field.number(1), first, last, blobs, epoch, field)


def _fields(edit: bytes) -> list[Field]:
    at = 0
    found: list[Field] = []
    try:
        while at < len(edit):
            start = at
            tag, at = take_varint(edit, at)
            form = _VALUES.get(tag, "s" if tag & _MAY_BE_IGNORED else None)
            if form is None:
                raise ValueError(f"a field of the unknown tag {tag}")
            values, at = _take_values(edit, at, form)
            found.append(Field(tag, values, edit[start:at]))
    except ValueError as error:
        raise Corruption(f"MANIFEST is damaged, or of another version: {error}") from None
    return found


def _take_values(edit: bytes, at: int, form: str) -> tuple[list[int | bytes | Pairs], int]:
    values: list[int | bytes | Pairs] = []
    value: int | bytes | Pairs
    for kind in form:
        if kind == "n":
            value, at = take_varint(edit, at, _VARINT_BYTES)
        elif kind == "s":
            value, at = take_bytes(edit, at)
        else:
            value, at = _take_pairs(edit, at, int(kind))
        values.append(value)
    return values, at


def _take_pairs(edit: bytes, at: int, end: int) -> tuple[Pairs, int]:
    """Return pairs of a number and bytes up to the number that ends them."""
    pairs: Pairs = []
    while True:
        number, at = take_varint(edit, at)
        if number == end:
            return pairs, at
        value, at = take_bytes(edit, at)
        pairs.append((number, value))


def family_names(manifest: bytes) -> dict[int, str]:
    """Return the names of the families by their numbers; a torn end of the file is left out.

    Raises Corruption if the file is damaged, or has fields that this version does not know.
    """
    return parse_manifest(manifest).families


def families_of(names: dict[int, str]) -> dict[int, Family]:
    """Return kvstream's families by their numbers; raise Corruption if one is missing."""
    wanted = {family.name.lower(): family for family in Family}
    found = {number: wanted[name] for number, name in names.items() if name in wanted}
    if len(found) < len(wanted):
        raise Corruption(f"MANIFEST lacks a column family: it has {', '.join(names.values())}")
    return found


def read_families(directory: Path) -> dict[int, Family]:
    """Return the families of a store by their numbers in its log; the store may be open.

    Raises OSError if it has no MANIFEST, Corruption if that is damaged or lacks a family.
    """
    return families_of(family_names(read_manifest(directory)))
