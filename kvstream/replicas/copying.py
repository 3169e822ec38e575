"""A copy of a whole store on its way to a replica: which files, their sums, and what is received.

A primary makes a checkpoint, which takes no space at first, and sends its files. A replica keeps
the files that it has received whole: if the link is lost, the next copy needs those alone that it
lacks or that have changed since. Tables never change, so most of them are sent once.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from kvstream.engine.engine import Engine
from kvstream.errors import Corruption, ProtocolError
from kvstream.replicas.protocol import File
from kvstream.storage import files
from kvstream.storage.replacement import INCOMING, READY

STAGE = "replica-"
LOG_BYTES = 1 << 20
"""Bytes of logs that a copy may have; longer ones become tables first."""
_PIECE = 1 << 20
_SUMS_MAX = 10_000
_MAKES = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC

Sums = dict[tuple[str, int, int, int], str]
"""The sums of files, by name, inode, size and time."""


class CopySource:
    """The checkpoint that one replica gets; ``close`` removes it."""

    def __init__(self, engine: Engine, sums: Sums) -> None:
        """Make the checkpoint, and read its files for their sums: a second a gigabyte, in any
        thread.

        ``sums`` has those of files that were copied before, and gets the new ones.
        """
        self._folder = engine.database.staging() / f"{STAGE}{uuid4().hex}"
        try:
            engine.checkpoint(self._folder, LOG_BYTES)
            self.files = list(_sum_files(self._folder, sums))
        except BaseException:
            self.close()
            raise

    def open(self, index: int) -> int:
        """Return a descriptor of a file, which the caller closes."""
        return files.open_regular(self._folder / self.files[index].name)

    def close(self) -> None:
        """Remove the checkpoint."""
        files.remove(self._folder)


def _sum_files(folder: Path, sums: Sums) -> Iterator[File]:
    if len(sums) > _SUMS_MAX:
        sums.clear()
    for path in sorted(folder.iterdir()):
        status = path.stat()
        known = path.name, status.st_ino, status.st_size, status.st_mtime_ns
        if known not in sums:
            sums[known] = _sum_of(path)
        yield File(path.name, status.st_size, sums[known])


def _sum_of(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Incoming:
    """The copy that a replica receives, beside its store."""

    def __init__(self, directory: Path, wanted: Iterable[File]) -> None:
        """Take over what an earlier copy has left of the files ``wanted``."""
        self._files = list(wanted)
        self._folder = directory / INCOMING
        self._folder.mkdir(files.DIRECTORY_MODE, exist_ok=True)
        self.bytes_left = 0
        self._index, self._written = -1, 0
        self._file: BinaryIO | None = None
        self._sum = hashlib.sha256()
        self._remove_others()
        self.needed = [n for n, file in enumerate(self._files) if not self._has(file)]
        self.bytes_left = sum(self._files[number].size for number in self.needed)

    def write(self, index: int, offset: int, data: bytes) -> None:
        """Take the next bytes of a file; ProtocolError for other bytes.

        Raises Corruption, and removes the file, if a whole file does not match its sum.
        """
        if index != self._index:
            self._begin(index)
        if offset != self._written or self._file is None:
            raise ProtocolError(f"file {index} of the copy goes on at {offset}")
        self._file.write(data)
        self._sum.update(data)
        self._written += len(data)
        self.bytes_left -= len(data)
        if self._written >= self._files[index].size:
            self._end(self._files[index])

    def complete(self) -> Path:
        """Make the names of the files durable, and return the folder; ProtocolError if one is
        missing."""
        missing = [file.name for file in self._files if not (self._folder / file.name).exists()]
        if missing:
            raise ProtocolError(f"the copy lacks {missing[0]}")
        files.sync_directory(self._folder)
        return self._folder

    def close(self) -> None:
        """Give up a file that is not whole; the others stay."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, index: int) -> None:
        self.close()
        if not 0 <= index < len(self._files):
            raise ProtocolError(f"a copy has no file {index}")
        self._index, self._written, self._sum = index, 0, hashlib.sha256()
        path = self._partial(self._files[index])
        self._file = files.open_named(os.open(path, _MAKES, files.FILE_MODE), path)

    def _end(self, file: File) -> None:
        assert self._file is not None
        self._file.flush()
        files.sync(self._file.fileno())
        self.close()
        partial = self._partial(file)
        if self._written != file.size or self._sum.hexdigest() != file.sum:
            partial.unlink()
            raise Corruption(f"{file.name} of the copy is not what its SHA-256 says")
        partial.rename(self._folder / file.name)

    def _partial(self, file: File) -> Path:
        return self._folder / (file.name + files.PARTIAL_SUFFIX)

    def _has(self, file: File) -> bool:
        path = self._folder / file.name
        if not path.exists():
            return False
        if path.stat().st_size == file.size and _sum_of(path) == file.sum:
            return True
        path.unlink()
        return False

    def _remove_others(self) -> None:
        names = {file.name for file in self._files}
        if READY in names:
            raise ProtocolError(f"a copy has a file {READY}")
        for name in os.listdir(self._folder):
            if name not in names:
                files.remove(self._folder / name)
