"""The tables of a store on their way into an archive: hashed once, and read in parts.

A table is named by the SHA-256 of its content. Hashing a store of many gigabytes at each opening
would read all of it, so the hashes are remembered in its directory, by the name, inode, size and
time of change of each file. RocksDB never changes a table that it has finished; a copy of a table,
or another one in its place, has another inode or time. What is read is hashed again while it is
uploaded, so a table that the disk has damaged since is never put under the name of the sound one.

::

    ARCHIVE.tables := JSON, in the directory of the store
      NAME   [inode, bytes, time of change in ns, SHA-256], for each table of the last snapshot
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from hashlib import file_digest, sha256
from pathlib import Path

from kvstream.errors import Corruption, StoreError
from kvstream.storage import files

FILE_NAME = "ARCHIVE.tables"
PART_BYTES = 1 << 20
"""Bytes of a table that are read at a time."""

Identity = tuple[int, int, int]


class Digests:
    """The SHA-256 of tables, in hexadecimal digits; those of former openings are remembered."""

    def __init__(self, directory: Path) -> None:
        self._known = _load(directory)
        self._used: dict[str, tuple[Identity, str]] = {}

    def of(self, path: Path) -> str:
        """Return the SHA-256 of a table; read it only if it is not known."""
        identity = _identity(path)
        known, digest = self._known.get(path.name, (None, ""))
        if known != identity:
            with path.open("rb") as file:
                digest = file_digest(file, "sha256").hexdigest()
        self._known[path.name] = self._used[path.name] = identity, digest
        return digest

    def read(self, path: Path) -> Iterator[bytes]:
        """Yield a table in parts; raise Corruption at the end if it has another SHA-256 now."""
        digest, hashed = self.of(path), sha256()
        try:
            with path.open("rb") as file:
                while data := file.read(PART_BYTES):
                    hashed.update(data)
                    yield data
        except OSError as error:
            raise StoreError(f"the table {path.name} cannot be read: {error}") from None
        if hashed.hexdigest() != digest:
            self._known.pop(path.name, None)
            raise Corruption(
                f"the table {path.name} is not what it was when its SHA-256 was made: the disk may "
                "be failing; look with kvstream check"
            )

    def save(self, directory: Path) -> None:
        """Remember the tables that were asked for since the last call, and forget all others."""
        self._known, self._used = self._used, {}
        rows = {name: (*identity, digest) for name, (identity, digest) in self._known.items()}
        files.write(directory / FILE_NAME, json.dumps(rows).encode())


def _identity(path: Path) -> Identity:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _load(directory: Path) -> dict[str, tuple[Identity, str]]:
    """Return what is remembered; nothing if it cannot be read: then the tables are."""
    known: dict[str, tuple[Identity, str]] = {}
    with suppress(OSError, ValueError, TypeError, AttributeError):
        for name, (inode, size, time_ns, digest) in json.loads(
            files.read(directory / FILE_NAME)
        ).items():
            known[str(name)] = (int(inode), int(size), int(time_ns)), str(digest)
    return known
