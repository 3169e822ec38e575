"""The rows of the least server, one write batch of RocksDB a turn, and the replies' encoding."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from rocksdict import Options, Rdict, WriteBatch

NIL = b"$-1\r\n"
EMPTY = b"*-1\r\n"

Words = Sequence[bytes]
"""A request."""
Handler = Callable[[Words], bytes]
"""Runs a request; returns its encoded reply."""


def integer(number: int) -> bytes:
    """Encode an integer."""
    return b":%d\r\n" % number


def bulk(text: bytes) -> bytes:
    """Encode a string."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


def array(*parts: bytes) -> bytes:
    """Encode an array of encoded parts."""
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


class Rows:
    """A store, and the rows that the turn has changed: None stands for a deleted one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stored = self._open()
        self.changed: dict[bytes, bytes | None] = {}

    def _open(self) -> Rdict:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        return Rdict(str(self._folder), options)

    def get(self, key: bytes) -> bytes | None:
        """Read a row, with the turn's changes."""
        changed = self.changed
        row: bytes | None = changed[key] if key in changed else self._stored.get(key)
        return row

    def commit(self) -> None:
        """Write the turn's changes."""
        if not self.changed:
            return
        batch = WriteBatch(raw_mode=True)
        for key, row in self.changed.items():
            if row is None:
                batch.delete(key)
            else:
                batch.put(key, row)
        self._stored.write(batch)
        self.changed.clear()

    def clear(self) -> None:
        """Begin with an empty store: deleted rows would slow the reads."""
        self.close()
        shutil.rmtree(self._folder)
        self._stored = self._open()
        self.changed.clear()

    def close(self) -> None:
        self._stored.close()
