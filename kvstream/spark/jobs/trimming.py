"""Trimming what is archived, in a store or through a server: never what a group still needs.

An entry goes once it is in the archive and every group of its stream has it acknowledged, as
``XTRIM ... MINID = id ACKED`` says it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from kvstream.ids import MAX_ID, StreamID
from kvstream.operations.references import RefPolicy
from kvstream.spark.options import Place, places
from kvstream.spark.reading.servers import client_of
from kvstream.spark.writing.stores import patiently
from kvstream.store import Store


class Trimmer(Protocol):
    """A place whose streams can be trimmed."""

    def trim(self, key: bytes, minid: StreamID) -> int:
        """Remove the entries below an ID that no group needs; return how many."""
        ...


class _InStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def trim(self, key: bytes, minid: StreamID) -> int:
        return self._store.stream(key).trim(minid=minid, ref_policy=RefPolicy.ACKED)


class _OnServer:
    def __init__(self, client: Any) -> None:
        self._client = client

    def trim(self, key: bytes, minid: StreamID) -> int:
        import redis

        try:
            return int(
                self._client.execute_command("XTRIM", key, "MINID", "=", str(minid), "ACKED")
            )
        except redis.ResponseError as error:
            if "syntax" not in str(error).lower():
                raise
        # A Redis before 8.2 cannot tell: up to what every group has behind it.
        groups = [dict(zip(told[::2], told[1::2], strict=True)) for told in self._groups(key)]
        bound = min([minid, *(self._needed(key, group) for group in groups)])
        return int(self._client.execute_command("XTRIM", key, "MINID", "=", str(bound)))

    def _groups(self, key: bytes) -> list[list[Any]]:
        found: list[list[Any]] = self._client.execute_command("XINFO", "GROUPS", key)
        return found

    def _needed(self, key: bytes, group: Mapping[bytes, Any]) -> StreamID:
        """Return the first ID that a group may still need."""
        pending, first, *_ = self._client.execute_command("XPENDING", key, group[b"name"])
        if pending:
            return StreamID.parse(first)
        delivered = StreamID.parse(group[b"last-delivered-id"])
        return delivered if delivered == MAX_ID else delivered.next()


@contextmanager
def trimmer(options: Mapping[str, str], wait_s: float) -> Iterator[Trimmer]:
    """Open the one place that the options name, for trimming."""
    place: Place = places(options)[0]
    if place.kind == "url":
        with client_of(place) as client:
            yield _OnServer(client)
        return
    with patiently(
        lambda: Store.open(place.address, db=place.db or 0, create=False), wait_s
    ) as store:
        yield _InStore(store)
