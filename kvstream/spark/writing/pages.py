"""Rows that tasks have made ready, on their way to the one commit.

It knows rows and their bytes, neither Spark nor stores. A page is a msgpack array::

    page   := (stream)*                       streams of one store, each once
    stream := [key, ids, values, shapes, numbers]
    ids    := (id)* | empty                   empty: no row has an ID
    id     := ms(u64) seq(u64)                a whole ID, big-endian
            | ms(u64)                         the millisecond, its sequence is allotted: ``ms-*``
            | empty                           all of it is allotted: ``*``
    values := (value)*                        as kvstream stores them: layout/values.py
    shapes := ((name)*)*                      the lists of field names that occur
    number := index into shapes, one for each row; no numbers where there is one shape
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgpack

from kvstream.errors import Corruption
from kvstream.ids import AddID, StreamID
from kvstream.layout.keys import ID_BYTES, U64
from kvstream.layout.values import Names
from kvstream.parts import PartWriter

StagedID = bytes
"""An ID of a page."""
Packed = tuple[bytes, Names]
"""A row's value and the names of its fields, as operations take them."""

ALLOTTED: StagedID = b""
_U64_BYTES = U64.size


@dataclass(slots=True)
class StagedRows:
    """Rows of one stream, in the order in which they are to be appended."""

    key: bytes
    rows: list[Packed] = field(default_factory=list)
    ids: list[StagedID] = field(default_factory=list)
    """One for each row, or none at all."""

    def extend(self, ids: list[StagedID], rows: list[Packed]) -> None:
        """Add rows with ``ids``: one for each, or none."""
        if ids or self.ids:
            self.ids += [ALLOTTED] * (len(self.rows) - len(self.ids))
            self.ids += ids or [ALLOTTED] * len(rows)
        self.rows += rows


def pack_page(streams: Iterable[StagedRows]) -> bytes:
    """Return the page of rows of several streams."""
    packed: bytes = msgpack.packb([_packable(each) for each in streams], use_bin_type=False)
    return packed


def _packable(staged: StagedRows) -> tuple[object, ...]:
    shapes: dict[Names, int] = {}
    numbers = [shapes.setdefault(names, len(shapes)) for _, names in staged.rows]
    values = [value for value, _ in staged.rows]
    return staged.key, staged.ids, values, list(shapes), numbers if len(shapes) > 1 else []


def unpack_page(page: bytes) -> Iterator[StagedRows]:
    """Yield the streams of a page; Corruption where it is none."""
    try:
        streams = msgpack.unpackb(page, raw=True, use_list=True)
        for key, ids, values, shapes, numbers in streams:
            names = [tuple(shape) for shape in shapes]
            if not numbers:
                numbers = [0] * len(values)
            rows = [(value, names[number]) for value, number in zip(values, numbers, strict=True)]
            yield StagedRows(key, rows, ids)
    except (ValueError, TypeError, IndexError) as error:
        raise Corruption(f"a staged page is damaged: {error!r}") from error


def add_id(staged: StagedID) -> AddID:
    """Return the ID of a page as operations take it."""
    if len(staged) == ID_BYTES:
        return StreamID.unpack(staged)
    if len(staged) == _U64_BYTES:
        return int(U64.unpack(staged)[0])
    return None


def order_of(staged: StagedID) -> tuple[bool, bytes]:
    """Return what sorts the rows of a stream: by ID, ``ms-*`` behind its millisecond, ``*`` last.

    Sorting is stable, so rows without IDs stay in their order.
    """
    if len(staged) == _U64_BYTES:
        return False, staged + b"\xff" * 9
    return not staged, staged


def is_plain(staged: StagedRows) -> bool:
    """Tell whether each row has a whole ID or none: what a table can be made of."""
    return all(len(eid) != _U64_BYTES for eid in staged.ids)


def extend(writer: PartWriter, streams: Iterable[StagedRows]) -> None:
    """Add plain rows to the parts that a writer makes: those with IDs, and those without."""
    for staged in streams:
        if not staged.ids:
            writer.extend(staged.key, None, [value for value, _ in staged.rows])
            continue
        rows = [value for value, _ in staged.rows]
        given = [at for at, eid in enumerate(staged.ids) if eid]
        if given:
            ids = [staged.ids[at] for at in given]
            writer.extend(staged.key, ids, [rows[at] for at in given])
        if len(given) < len(rows):
            others = [rows[at] for at, eid in enumerate(staged.ids) if not eid]
            writer.extend(staged.key, None, others)


def shown_id(staged: StagedID) -> str:
    """Return an ID of a page as people write it."""
    eid = add_id(staged)
    if eid is None:
        return "*"
    return str(eid) if isinstance(eid, tuple) else f"{eid}-*"
