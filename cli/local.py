"""A store in a directory, with what the commands ask for beyond the library.

It knows no command.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

import click

from kvstream.cli.contracts import Changes, IDList, Listed
from kvstream.ids import StreamID
from kvstream.layout.values import FieldsLike
from kvstream.store import Store

T = TypeVar("T")


class LocalStore(Store):
    """A store that this process holds."""

    shared: ClassVar[bool] = False

    def atomically(self, keys: Sequence[bytes], work: Callable[[Changes], T]) -> T:
        """Do all that ``work`` writes in one commit."""
        with self.transaction():
            return work(_LocalChanges(self))

    def listed(self, pattern: bytes | None) -> Iterator[Listed]:
        """Yield the keys with what they are."""
        for key in self.scan_keys(pattern):
            kind = self.type(key)
            info = self.stream(key).info() if kind == "stream" else None
            yield Listed(key, kind, info, self.ttl(key))

    def back_up(self, target: Path | None) -> str:
        """Write a checkpoint into a new directory, and return its path."""
        if target is None:
            raise click.UsageError("name the NEW_DIRECTORY of the checkpoint")
        self.checkpoint(target)
        return str(target)

    def size_on_disk(self) -> int:
        size: int = self.stats()["size_on_disk"]
        return size


class _LocalChanges:
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

    def ack(self, stream: bytes, group: bytes, ids: IDList) -> None:
        self._store.stream(stream).group(group).ack(ids)

    def set_group_id(self, stream: bytes, group: bytes, id: StreamID) -> None:
        self._store.stream(stream).group(group).set_id(id)

    def delete_consumer(self, stream: bytes, group: bytes, consumer: bytes) -> None:
        self._store.stream(stream).group(group).delete_consumer(consumer)
