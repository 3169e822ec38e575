"""Files in which tasks leave what is too much for a message, until the commit takes it.

They lie beside the store, on a file system that tasks and the commit share::

    <store>.staging/<writer>-<number>/<partition>-<uuid>.rows      (magic length(u32) page)*

``writer`` and ``number`` are those of the transaction, so that a later commit of the same writer
knows what is dead; a uuid tells attempts apart, as Spark uses the numbers of attempts again. What a
killed job has left is swept by the next commit into the same store, after a day.

Rows that tasks have made ready, on their way to the one commit.

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

The mark that makes a commit happen once: the last transaction of a writer, beside its data.

A streaming query is a writer whose transactions are its batches; a batch write may name its own.
The mark is a plain string in the database that is written to, put in the same commit as the rows,
so it tells in every failure whether they are there. One row a writer: the last number alone.

Which of several stores has a stream: the same for every writer and every reader, for ever.

A key's slot is Redis Cluster's: CRC16 of the key, or of what stands in its first braces, modulo
16384; the stores share the slots evenly, in the order in which they are named. So ``{user7}:in``
and ``{user7}:out`` are in one store, and a key moves only where stores are added.
"""

import hashlib
import os
import re
import shutil
import time
import uuid
from binascii import crc_hqx
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Self

import msgpack

from kvstream.bulkload.parts import PartWriter, RowsWriter
from kvstream.errors import Corruption
from kvstream.layout.keys import ID_BYTES, U64
from kvstream.layout.values import Names
from kvstream.storage.files import DIRECTORY_MODE, FILE_MODE
from kvstream.types.ids import AddID, StreamID

MARK_PREFIX = b"kvstream:spark:"
"""Opens the names of marks."""


class Transaction(NamedTuple):
    """What must not happen twice."""

    writer: str
    """The ID of a query, or what a batch write calls itself."""
    number: int
    """It rises; what is not above the mark has been done."""

    @property
    def key(self) -> bytes:
        return MARK_PREFIX + self.writer.encode()

    @property
    def value(self) -> bytes:
        return b"%d" % self.number

    def is_done(self, mark: bytes | None) -> bool:
        """Tell whether a store with such a mark has this transaction."""
        if mark is None:
            return False
        try:
            return int(mark) >= self.number
        except ValueError:
            raise Corruption(f"{self.key!r} holds no number, but {mark[:60]!r}") from None


SLOTS = 16384


def slot_of(key: bytes) -> int:
    """Return the slot of a key, as CLUSTER KEYSLOT does."""
    start = key.find(b"{") + 1
    if start:
        end = key.find(b"}", start)
        if end > start:
            key = key[start:end]
    return crc_hqx(key, 0) % SLOTS


def store_of(key: bytes, stores: int) -> int:
    """Return the position of the store of a key among so many."""
    return slot_of(key) * stores // SLOTS


SUFFIX = ".staging"
LEFT_S = 24 * 3600
"""A folder in which nothing was written for so long belongs to no job that still runs."""
_HEAD = Struct(">4sI")
_MAGIC = b"KVR1"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class StagedFile(NamedTuple):
    """A file of pages, and what it must be."""

    path: str
    sha256: str
    size: int


class Staging:
    """The folder of one transaction into one store; a value, made anew wherever it is needed."""

    def __init__(self, store: str, transaction: Transaction) -> None:
        self._root = Path(store + SUFFIX)
        self._writer = _UNSAFE.sub("_", transaction.writer) + "-"
        self.folder = self._root / f"{self._writer}{transaction.number}"

    def file(self, partition: int) -> "PageFile":
        """Begin a file for a partition."""
        return PageFile(self.folder / f"{partition}-{uuid.uuid4().hex}.rows")

    def make(self) -> Self:
        """See that the folder is there."""
        for folder in (self._root, self.folder):
            with suppress(FileExistsError):
                folder.parent.mkdir(parents=True, exist_ok=True)
                folder.mkdir(DIRECTORY_MODE)
        return self

    def remove(self) -> None:
        """Remove the folder and what earlier transactions of the writer and dead jobs have left.

        A task that Spark has given up may still run: where the folder was, it makes no more files.
        """
        if not self._root.is_dir():
            return
        self._remove(self.folder)
        with suppress(FileNotFoundError), os.scandir(self._root) as entries:
            for entry in entries:
                if entry.name.startswith(self._writer) or _is_left(entry):
                    self._remove(Path(entry.path))
        with suppress(OSError):  # others are at work there
            self._root.rmdir()

    def _remove(self, folder: Path) -> None:
        """Remove a folder of the root: under another name, as files may just be made in it."""
        dead = self._root / f"{self._writer}dead-{uuid.uuid4().hex}"
        with suppress(OSError):  # it was never made, or another has taken it
            folder.rename(dead)
        shutil.rmtree(dead, ignore_errors=True)


def _is_left(entry: os.DirEntry[str]) -> bool:
    try:
        times = [entry.stat(), *(file.stat() for file in os.scandir(entry))]
    except (FileNotFoundError, NotADirectoryError):
        return False
    return time.time() - max(each.st_mtime for each in times) > LEFT_S


class PageFile:
    """A file of pages that a task writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sum = hashlib.sha256()
        self._size = 0
        self._file = open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE), "wb")  # noqa: SIM115

    def write(self, page: bytes) -> None:
        for part in (_HEAD.pack(_MAGIC, len(page)), page):
            self._sum.update(part)
            self._file.write(part)
            self._size += len(part)

    def close(self) -> StagedFile:
        self._file.close()
        return StagedFile(str(self._path), self._sum.hexdigest(), self._size)

    def abort(self) -> None:
        """Remove the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def pages_of(staged: StagedFile) -> Iterator[bytes]:
    """Yield the pages of a file once all of it is known to be as written; else Corruption."""
    with open(staged.path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != staged.sha256:
            raise Corruption(f"the staged file {staged.path} is not as it was written")
        file.seek(0)
        while head := file.read(_HEAD.size):
            _, length = _HEAD.unpack(head)
            yield file.read(length)


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


def extend(writer: PartWriter | RowsWriter, streams: Iterable[StagedRows]) -> None:
    """Add plain rows to what a writer writes: those with IDs, and those without."""
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
