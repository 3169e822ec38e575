"""Files in which tasks leave what is too much for a message, until the commit takes it.

They lie beside the store, on a file system that tasks and the commit share::

    <store>.staging/<writer>-<number>/<partition>-<uuid>.rows      (magic length(u32) page)*

``writer`` and ``number`` are those of the transaction, so that a later commit of the same writer
knows what is dead; a uuid tells attempts apart, as Spark uses the numbers of attempts again. What a
killed job has left is swept by the next commit into the same store, after a day.
"""

import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Self

from kvstream.errors import Corruption
from kvstream.spark.writing.marks import Transaction
from kvstream.storage.private_files import DIRECTORY_MODE, FILE_MODE

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
