"""The numbers of the column families in RocksDB's log, by the MANIFEST of the store.

RocksDB numbers families in the order in which it creates them, which differs from store to store.
MANIFEST has the blocks of a log (log.py). Its payloads are, as RocksDB 9.8 writes them::

    edit  := field*
    field := tag(varint) value           the values of a tag: _VALUES
      200 number 201 name                creates a family; 200 number 202 drops one
    integers are varints of up to ten bytes, names and keys have their length before them

The family 0 is "default", which no edit creates, and which kvstream leaves empty.
"""

from pathlib import Path

from kvstream.errors import Corruption
from kvstream.storage import files
from kvstream.storage.batch import Family
from kvstream.storage.log import FragmentReader, take_bytes, take_varint

_NUMBER, _NAME, _DROPPED = 200, 201, 202
_VALUES = {
    1: "s",  # comparator
    2: "n",  # log number
    3: "n",  # next file number
    4: "n",  # last sequence number
    5: "ns",  # where the next compaction begins
    6: "nn",  # deleted table
    7: "nnnss",  # new table, in four versions
    9: "n",  # previous log number
    10: "n",  # least log number to keep
    100: "nnnssnn",
    102: "nnnnssnn",
    103: "nnnssnn1",
    _NUMBER: "n",
    _NAME: "s",
    _DROPPED: "",
    203: "n",  # greatest family number
    300: "n",  # edits that belong together
    400: "nnnss0",  # new file of large values
    401: "nnn0",  # garbage in one
}
"""The values of each tag: n a number, s bytes; a digit: (number bytes)* and this number."""
_MAY_BE_IGNORED = 1 << 13
"""Tags with this bit have bytes, which older versions skip."""
_VARINT_BYTES = 10

_Field = tuple[int, list[int | bytes]]


class _EditReader(FragmentReader[bytes]):
    """Read the payloads of a MANIFEST."""

    def _payload(self, payload: bytes, end: int) -> bytes:
        return payload


def family_names(manifest: bytes) -> dict[int, str]:
    """Return the names of the families by their numbers; a torn end of the file is left out.

    Raises Corruption if the file is damaged, or has fields that this version does not know.
    """
    names = {0: "default"}
    for edit in _EditReader().feed(manifest):
        fields = dict(_fields(edit))
        number = fields.get(_NUMBER, [0])[0]
        assert isinstance(number, int)
        if _NAME in fields:
            name = fields[_NAME][0]
            assert isinstance(name, bytes)
            names[number] = name.decode("utf-8", "backslashreplace")
        elif _DROPPED in fields:
            names.pop(number, None)
    return names


def read_families(directory: Path) -> dict[int, Family]:
    """Return the families of a store by their numbers in its log; the store may be open.

    Raises OSError if it has no MANIFEST, Corruption if that is damaged or lacks a family.
    """
    wanted = {family.name.lower(): family for family in Family}
    names = family_names(_manifest(directory))
    found = {number: wanted[name] for number, name in names.items() if name in wanted}
    if len(found) < len(wanted):
        raise Corruption(f"MANIFEST lacks a column family: it has {', '.join(names.values())}")
    return found


def _manifest(directory: Path) -> bytes:
    """Return the bytes of the MANIFEST, which RocksDB may replace meanwhile."""
    current = directory / "CURRENT"
    while True:
        name = files.read(current)
        try:
            return files.read(directory / name.decode().strip())
        except FileNotFoundError:
            if files.read(current) == name:
                raise


def _fields(edit: bytes) -> list[_Field]:
    at = 0
    found: list[_Field] = []
    try:
        while at < len(edit):
            tag, at = take_varint(edit, at)
            form = _VALUES.get(tag, "s" if tag & _MAY_BE_IGNORED else None)
            if form is None:
                raise ValueError(f"a field of the unknown tag {tag}")
            values, at = _take_values(edit, at, form)
            found.append((tag, values))
    except ValueError as error:
        raise Corruption(f"MANIFEST is damaged, or of another version: {error}") from None
    return found


def _take_values(edit: bytes, at: int, form: str) -> tuple[list[int | bytes], int]:
    values: list[int | bytes] = []
    value: int | bytes
    for kind in form:
        if kind == "n":
            value, at = take_varint(edit, at, _VARINT_BYTES)
            values.append(value)
        elif kind == "s":
            value, at = take_bytes(edit, at)
            values.append(value)
        else:
            at = _skip_pairs(edit, at, int(kind))
    return values, at


def _skip_pairs(edit: bytes, at: int, end: int) -> int:
    """Skip pairs of a number and bytes up to the number that ends them."""
    while True:
        number, at = take_varint(edit, at)
        if number == end:
            return at
        _, at = take_bytes(edit, at)
