"""Staging: how rows travel from tasks to the commit.

Rows are packed into pages. A page is a msgpack array::

    page   := (stream)*                       streams of one store, each once
    stream := [key, ids, values, shapes, numbers]
    ids    := (id)* | empty                   empty: no row has an ID
    id     := ms(u64) seq(u64)                a whole ID, big-endian
            | ms(u64)                         ``ms-*``: the commit allots the sequence
            | empty                           ``*``: the commit allots the ID
    values := (value)*                        encoded as in the store: layout/values.py
    shapes := ((name)*)*                      the distinct lists of field names
    number := index into shapes, one for each row; absent if there is only one shape

Pages too large for a task's message are in files beside the store, on a file system that tasks and
the commit share. A uuid distinguishes attempts, since Spark reuses their numbers. The next commit
of the same writer removes dead files, and any commit into the store those older than a day::

    <store>.staging/<writer>-<number>/<partition>-<uuid>.rows      (magic length(u32) page)*

The mark of a transaction makes its commit happen once. It is a string key with the number of the
writer's last transaction, written in the same commit as the rows. A streaming query is a writer
whose transactions are its micro-batches.

A key belongs to the store of its Redis Cluster slot (CRC16 of the key, or of its hash tag, modulo
16384). Stores share the slots evenly, in the order in which they are named.
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
from kvstream.errors import Corruption, quote
from kvstream.layout.keys import ID_BYTES, U64
from kvstream.layout.values import Names
from kvstream.storage.files import DIRECTORY_MODE, FILE_MODE
from kvstream.types.ids import AddID, StreamID

MARK_PREFIX = b"kvstream:spark:"
"""The prefix of the keys of marks."""


class Transaction(NamedTuple):
    """A write that must happen only once."""

    writer: str
    """The ID of a streaming query, or the option ``txnAppId``."""
    number: int
    """A rising number: transactions up to the mark are done."""

    @property
    def key(self) -> bytes:
        return MARK_PREFIX + self.writer.encode()

    @property
    def value(self) -> bytes:
        return b"%d" % self.number

    def is_done(self, mark: bytes | None) -> bool:
        """Return whether a store with this mark has the transaction."""
        if mark is None:
            return False
        try:
            return int(mark) >= self.number
        except ValueError:
            raise Corruption(f"{quote(self.key)} must hold a number, not {quote(mark)}") from None


SLOTS = 16384


def slot_of(key: bytes) -> int:
    """Return the hash slot of a key, as CLUSTER KEYSLOT does."""
    start = key.find(b"{") + 1
    if start:
        end = key.find(b"}", start)
        if end > start:
            key = key[start:end]
    return crc_hqx(key, 0) % SLOTS


def store_of(key: bytes, stores: int) -> int:
    """Return the position of a key's store among ``stores``."""
    return slot_of(key) * stores // SLOTS


SUFFIX = ".staging"
LEFT_S = 24 * 3600
"""The age after which a staging folder belongs to a dead job."""
_HEAD = Struct(">4sI")
_MAGIC = b"KVR1"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class StagedFile(NamedTuple):
    """A file of pages, with its checksum and size."""

    path: str
    sha256: str
    size: int


class Staging:
    """The staging folder of one transaction into one store."""

    def __init__(self, store: str, transaction: Transaction) -> None:
        self._root = Path(store + SUFFIX)
        self._writer = _UNSAFE.sub("_", transaction.writer) + "-"
        self.folder = self._root / f"{self._writer}{transaction.number}"

    def file(self, partition: int) -> "PageFile":
        """Create a file for a partition."""
        return PageFile(self.folder / f"{partition}-{uuid.uuid4().hex}.rows")

    def make(self) -> Self:
        """Create the folder, if it does not exist."""
        for folder in (self._root, self.folder):
            with suppress(FileExistsError):
                folder.parent.mkdir(parents=True, exist_ok=True)
                folder.mkdir(DIRECTORY_MODE)
        return self

    def remove(self) -> None:
        """Remove the folder, and those of the writer's earlier transactions and of dead jobs.

        A task that Spark has abandoned may still run; it cannot create files in a removed folder.
        """
        if not self._root.is_dir():
            return
        self._remove(self.folder)
        with suppress(FileNotFoundError), os.scandir(self._root) as entries:
            for entry in entries:
                if entry.name.startswith(self._writer) or _is_left(entry):
                    self._remove(Path(entry.path))
        with suppress(OSError):  # other transactions have folders in it
            self._root.rmdir()

    def _remove(self, folder: Path) -> None:
        """Remove a folder; rename it first, so that no task creates files in it meanwhile."""
        dead = self._root / f"{self._writer}dead-{uuid.uuid4().hex}"
        with suppress(OSError):  # it does not exist, or another process has renamed it
            folder.rename(dead)
        shutil.rmtree(dead, ignore_errors=True)


def _is_left(entry: os.DirEntry[str]) -> bool:
    try:
        times = [entry.stat(), *(file.stat() for file in os.scandir(entry))]
    except (FileNotFoundError, NotADirectoryError):
        return False
    return time.time() - max(each.st_mtime for each in times) > LEFT_S


class PageFile:
    """Writes a file of pages, for one task."""

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
    """Yield the pages of a file. Raises Corruption if its checksum differs."""
    with open(staged.path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != staged.sha256:
            raise Corruption(f"the checksum of the staged file {staged.path} is wrong")
        file.seek(0)
        while head := file.read(_HEAD.size):
            _, length = _HEAD.unpack(head)
            yield file.read(length)


StagedID = bytes
"""An ID as in a page."""
Packed = tuple[bytes, Names]
"""The encoded value of a row, and the names of its fields."""

ALLOTTED: StagedID = b""
_U64_BYTES = U64.size


@dataclass(slots=True)
class StagedRows:
    """Rows of one stream, in the order in which the commit appends them."""

    key: bytes
    rows: list[Packed] = field(default_factory=list)
    ids: list[StagedID] = field(default_factory=list)
    """One for each row, or empty."""

    def extend(self, ids: list[StagedID], rows: list[Packed]) -> None:
        """Add rows; ``ids`` has one for each, or is empty."""
        if ids or self.ids:
            self.ids += [ALLOTTED] * (len(self.rows) - len(self.ids))
            self.ids += ids or [ALLOTTED] * len(rows)
        self.rows += rows


def pack_page(streams: Iterable[StagedRows]) -> bytes:
    """Pack the rows of several streams into a page."""
    packed: bytes = msgpack.packb([_packable(each) for each in streams], use_bin_type=False)
    return packed


def _packable(staged: StagedRows) -> tuple[object, ...]:
    shapes: dict[Names, int] = {}
    numbers = [shapes.setdefault(names, len(shapes)) for _, names in staged.rows]
    values = [value for value, _ in staged.rows]
    return staged.key, staged.ids, values, list(shapes), numbers if len(shapes) > 1 else []


def unpack_page(page: bytes) -> Iterator[StagedRows]:
    """Yield the streams of a page. Raises Corruption if it is damaged."""
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
    """Return a staged ID in the form that operations take."""
    if len(staged) == ID_BYTES:
        return StreamID.unpack(staged)
    if len(staged) == _U64_BYTES:
        return int(U64.unpack(staged)[0])
    return None


def order_of(staged: StagedID) -> tuple[bool, bytes]:
    """Return the sort key of a staged ID: by ID, ``ms-*`` after its millisecond, ``*`` last."""
    if len(staged) == _U64_BYTES:
        return False, staged + b"\xff" * 9
    return not staged, staged


def is_plain(staged: StagedRows) -> bool:
    """Return whether each row has a whole ID or none, as parts require."""
    return all(len(eid) != _U64_BYTES for eid in staged.ids)


def extend(writer: PartWriter | RowsWriter, streams: Iterable[StagedRows]) -> None:
    """Add plain rows to a writer: first those with IDs, then those without."""
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


def show_id(staged: StagedID) -> str:
    """Return a staged ID as text."""
    eid = add_id(staged)
    if eid is None:
        return "*"
    return str(eid) if isinstance(eid, tuple) else f"{eid}-*"
