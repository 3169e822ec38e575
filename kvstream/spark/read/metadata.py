"""The metadata tables ``streams``, ``groups``, ``consumers`` and ``pending``.

Columns have the names of the fields of XINFO and XPENDING. By ``path`` all rows are of one
snapshot; by ``url`` each stream and group is queried by a command of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from kvstream.errors import InvalidArgument, NoGroup, NoSuchKey, quoted
from kvstream.remote.replies import (
    consumer_info_of,
    group_info_of,
    pending_entries_of,
    stream_info_of,
)
from kvstream.spark.options import Options, choice, listed, patterns, places
from kvstream.spark.read.partitions import ReadSpec
from kvstream.spark.read.servers import Server, ServerReader, client_of
from kvstream.spark.read.stores import Copy, copied, streams_of
from kvstream.store import Store
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.records import ConsumerInfo, GroupInfo, PendingEntry, StreamInfo

PENDING_PAGE = 1000


def _paged(page: Callable[[StreamID], Sequence[PendingEntry]]) -> Iterator[PendingEntry]:
    start = MIN_ID
    while True:
        rows = page(start)
        yield from rows
        if len(rows) < PENDING_PAGE:
            return
        start = rows[-1].id.next()


class StoreTables:
    """The metadata of an open store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keys(self, spec: ReadSpec) -> list[bytes]:
        return streams_of(self._store, spec)

    def info(self, key: bytes) -> StreamInfo | None:
        return self._store.stream(key).info()

    def groups(self, key: bytes) -> Sequence[GroupInfo]:
        return self._store.stream(key).groups()

    def consumers(self, key: bytes, group: bytes) -> Sequence[ConsumerInfo]:
        return self._store.stream(key).group(group).consumers()

    def pending(self, key: bytes, group: bytes) -> Iterator[PendingEntry]:
        stored = self._store.stream(key).group(group)
        return _paged(lambda start: stored.pending_range(start, count=PENDING_PAGE))

    def close(self) -> None:
        self._store.close()


class ServerTables(ServerReader):
    """The metadata of a server; empty for a key or group that was deleted meanwhile."""

    def keys(self, spec: ReadSpec) -> list[bytes]:
        return self.streams(spec)

    def info(self, key: bytes) -> StreamInfo | None:
        try:
            return stream_info_of(self.connection.ask("XINFO", "STREAM", key))
        except NoSuchKey:
            return None

    def groups(self, key: bytes) -> Sequence[GroupInfo]:
        try:
            reply = self.connection.ask("XINFO", "GROUPS", key)
        except NoSuchKey:
            return []
        return sorted(map(group_info_of, reply), key=lambda info: info.name)

    def consumers(self, key: bytes, group: bytes) -> Sequence[ConsumerInfo]:
        try:
            reply = self.connection.ask("XINFO", "CONSUMERS", key, group)
        except (NoSuchKey, NoGroup):
            return []
        return sorted(map(consumer_info_of, reply), key=lambda info: info.name)

    def pending(self, key: bytes, group: bytes) -> Iterator[PendingEntry]:
        def page(start: StreamID) -> list[PendingEntry]:
            words = ("XPENDING", key, group, bytes(start), "+", PENDING_PAGE)
            try:
                return pending_entries_of(self.connection.ask(*words))
            except (NoSuchKey, NoGroup):
                return []

        return _paged(page)


Tables = StoreTables | ServerTables
Row = dict[str, Any]

_STREAM = ("stream",)
_GROUP = (*_STREAM, "group")
_NUMBERS = frozenset(
    {"length", "entries_added", "nodes", "groups", "consumers", "pending", "entries_read", "lag"}
    | {"idle_ms", "inactive_ms", "deliveries"}
)
TABLES = {
    "streams": (
        *_STREAM,
        *("length", "entries_added", "first_id", "last_id", "max_deleted_id", "nodes", "groups"),
    ),
    "groups": (*_GROUP, "consumers", "pending", "last_delivered_id", "entries_read", "lag"),
    "consumers": (*_GROUP, "consumer", "pending", "idle_ms", "inactive_ms"),
    "pending": (*_GROUP, "id", "consumer", "idle_ms", "deliveries"),
}
"""The columns of each table; a read of several places has ``store`` before them."""


def table_of(options: Options) -> str:
    return choice(options, "table", tuple(TABLES))


def schema_of(options: Options) -> StructType:
    """Return the schema of the table that the options name."""
    columns = TABLES[table_of(options)]
    if len(places(options)) > 1:
        columns = ("store", *columns)
    kinds = {True: LongType(), False: StringType()}
    return StructType([StructField(name, kinds[name in _NUMBERS]) for name in columns])


class TablePartition(InputPartition):
    """One place, whose rows one task reads."""

    def __init__(self, source: Copy | Server) -> None:
        super().__init__(None)
        self.source = source


class TableReader(DataSourceReader):
    """Reads one table, of all streams unless the options name some."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._places = places(options)
        self._table = table_of(options)
        some = listed(options, "stream") or patterns(options)
        self._spec = ReadSpec.of(options) if some else ReadSpec((), (b"*",))
        self._columns = [(field.name, isinstance(field.dataType, BinaryType)) for field in schema]
        unknown = [name for name, _ in self._columns if name not in ("store", *TABLES[self._table])]
        if unknown:
            raise InvalidArgument(f"the table {self._table} has no column {unknown[0]}")

    def partitions(self) -> Sequence[InputPartition]:
        """Copy each store; return one partition for each place."""
        return [
            TablePartition(copied(place) if place.kind == "path" else Server(place))
            for place in self._places
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of one place."""
        assert isinstance(partition, TablePartition)
        source = partition.source
        tables: Tables
        if isinstance(source, Copy):
            tables = StoreTables(source.store())
        else:
            tables = ServerTables(client_of(source.place))
        try:
            for row in _ROWS[self._table](tables, tables.keys(self._spec)):
                row["store"] = source.shown.encode()
                yield tuple(_value(name, row[name], raw) for name, raw in self._columns)
        finally:
            tables.close()


def _value(name: str, value: Any, raw: bool) -> Any:
    if raw or not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"the {name} {quoted(value)} is not UTF-8: read the column as binary"
        ) from None


def _stream_rows(tables: Tables, keys: Sequence[bytes]) -> Iterator[Row]:
    for key in keys:
        info = tables.info(key)
        if info is None:
            continue
        yield {
            "stream": key,
            "length": info.length,
            "entries_added": info.entries_added,
            "first_id": bytes(info.first_entry.id) if info.first_entry else None,
            "last_id": bytes(info.last_generated_id),
            "max_deleted_id": bytes(info.max_deleted_entry_id),
            "nodes": info.radix_tree_keys,
            "groups": info.groups,
        }


def _groups(tables: Tables, keys: Sequence[bytes]) -> Iterator[tuple[bytes, GroupInfo]]:
    return ((key, group) for key in keys for group in tables.groups(key))


def _group_rows(tables: Tables, keys: Sequence[bytes]) -> Iterator[Row]:
    for key, info in _groups(tables, keys):
        yield {
            "stream": key,
            "group": info.name,
            "consumers": info.consumers,
            "pending": info.pending,
            "last_delivered_id": bytes(info.last_delivered_id),
            "entries_read": info.entries_read,
            "lag": info.lag,
        }


def _consumer_rows(tables: Tables, keys: Sequence[bytes]) -> Iterator[Row]:
    for key, group in _groups(tables, keys):
        for info in tables.consumers(key, group.name):
            yield {
                "stream": key,
                "group": group.name,
                "consumer": info.name,
                "pending": info.pending,
                "idle_ms": info.idle,
                "inactive_ms": None if info.inactive == -1 else info.inactive,
            }


def _pending_rows(tables: Tables, keys: Sequence[bytes]) -> Iterator[Row]:
    for key, group in _groups(tables, keys):
        for entry in tables.pending(key, group.name):
            yield {
                "stream": key,
                "group": group.name,
                "id": bytes(entry.id),
                "consumer": entry.consumer or None,
                "idle_ms": entry.idle_ms,
                "deliveries": entry.deliveries,
            }


_ROWS: dict[str, Callable[[Tables, Sequence[bytes]], Iterator[Row]]] = {
    "streams": _stream_rows,
    "groups": _group_rows,
    "consumers": _consumer_rows,
    "pending": _pending_rows,
}
