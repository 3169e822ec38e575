"""A store in a directory, with the calls that commands need beyond the library's ``Store``."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from kvstream.cli.remote.store import KeyInfo
from kvstream.layout.values import FieldsLike
from kvstream.store import Store
from kvstream.types.ids import StreamID

T = TypeVar("T")

LOCKS = Path("/proc/locks")
COMMAND_LENGTH_MAX = 60


class LocalStore(Store):
    """A store that this process has open."""

    shared: ClassVar[bool] = False
    """Whether other clients write while it is open, so that a read may wait for them."""

    def atomically(self, keys: Sequence[bytes], work: Callable[["LocalChanges"], T]) -> T:
        """Commit all writes of ``work`` at once; ``keys`` are for a server alone."""
        with self.transaction():
            return work(LocalChanges(self))

    def key_infos(self, pattern: bytes | None) -> Iterator[KeyInfo]:
        """Yield the keys with type, counters and expiry."""
        for key in self.scan_keys(pattern):
            kind = self.type(key)
            info = self.stream(key).info() if kind == "stream" else None
            yield KeyInfo(key, kind, info, self.ttl(key))

    def size_on_disk(self) -> int:
        size: int = self.stats()["size_on_disk"]
        return size


class LocalChanges:
    """Writes inside a transaction of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self, stream: bytes, fields: FieldsLike, id: str = "*", maxlen: int | None = None
    ) -> None:
        self._store.stream(stream).add(fields, id, maxlen=maxlen)

    def expire(self, key: bytes, seconds: float) -> None:
        self._store.expire(key, seconds)

    def persist(self, key: bytes) -> None:
        self._store.persist(key)

    def ack(self, stream: bytes, group: bytes, ids: Sequence[StreamID]) -> None:
        self._store.stream(stream).group(group).ack(ids)

    def set_group_id(self, stream: bytes, group: bytes, id: StreamID) -> None:
        self._store.stream(stream).group(group).set_id(id)

    def delete_consumer(self, stream: bytes, group: bytes, consumer: bytes) -> None:
        self._store.stream(stream).group(group).delete_consumer(consumer)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a store open."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" ({self.command})" if self.command else "")


def holder_of(directory: Path) -> Holder | None:
    """Return a process that holds the lock of ``directory``; None if the system does not tell.

    Linux lists all file locks in /proc/locks.
    """
    try:
        status = os.stat(directory)
        listed = LOCKS.read_text("ascii", "replace")
    except OSError:
        return None
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in listed.splitlines():
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:262147 0 EOF
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == device:
            pid = int(words[4])
            return Holder(pid, _command(pid)) if pid > 0 else None
    return None


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    text = b" ".join(words).decode("utf-8", "replace")
    return text if len(text) <= COMMAND_LENGTH_MAX else text[: COMMAND_LENGTH_MAX - 3] + "..."
