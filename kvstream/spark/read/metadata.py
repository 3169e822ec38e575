"""The metadata tables ``streams``, ``groups``, ``consumers`` and ``pending``.

Columns have the names of the fields of XINFO and XPENDING. By ``path`` all rows are of one
snapshot; by ``url`` each stream and group is queried by a command of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from kvstream.errors import InvalidArgument, NoGroup, NoSuchKey, quote
from kvstream.group import Group
from kvstream.spark.options import (
    Options,
    Place,
    choice,
    flag,
    moment_ms,
    patterns,
    places,
    split_list,
)
from kvstream.spark.read.archives import Archived, find
from kvstream.spark.read.partitions import ReadSpec
from kvstream.spark.read.servers import Server, ServerReader, client_of
from kvstream.spark.read.stores import Copy, make_copy, require, streams_of
from kvstream.store import Store
from kvstream.stream import Stream
from kvstream.types.ids import MIN_ID
from kvstream.types.records import PendingEntry

PENDING_PAGE = 1000
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
    if len(places(options, with_archives=True)) > 1:
        columns = ("store", *columns)
    kinds = {True: LongType(), False: StringType()}
    return StructType([StructField(name, kinds[name in _NUMBERS]) for name in columns])


class TablePartition(InputPartition):
    """One place, whose rows one task reads."""

    def __init__(self, source: Copy | Server | Archived) -> None:
        super().__init__(None)
        self.source = source


class TableReader(DataSourceReader):
    """Reads one table, of all streams unless the options name some."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._places = places(options, with_archives=True)
        self._at_ms = moment_ms(options)
        self._staging = options.get("stagingpath")
        self._table = table_of(options)
        self._missing_is_empty = flag(options, "ignoremissing", False)
        some = split_list(options, "stream") or patterns(options)
        self._spec = ReadSpec.of(options) if some else ReadSpec((), (b"*",))
        self._columns = [(field.name, isinstance(field.dataType, BinaryType)) for field in schema]
        unknown = [name for name, _ in self._columns if name not in ("store", *TABLES[self._table])]
        if unknown:
            raise InvalidArgument(f"the table {self._table} has no column {unknown[0]}")

    def partitions(self) -> Sequence[InputPartition]:
        """Copy each store; return one partition for each place."""
        return [TablePartition(self._source(place)) for place in self._places]

    def _source(self, place: Place) -> Copy | Server | Archived:
        if place.kind == "archive":
            return find(place, self._at_ms, self._staging)
        return make_copy(place) if place.kind == "path" else Server(place)

    def _open(self, source: Copy | Server | Archived) -> AbstractContextManager[Store]:
        if isinstance(source, Archived):
            return source.table(self._spec)
        return source.store()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of one place, without those of keys that were deleted meanwhile."""
        assert isinstance(partition, TablePartition)
        source, rows = partition.source, _ROWS[self._table]
        shown = source.shown.encode()
        with self._open(source) as store:
            for key in self._keys(source, store):
                with suppress(NoSuchKey):
                    for row in rows(store.stream(key)):
                        row |= {"store": shown, "stream": key}
                        yield tuple(_value(name, row[name], raw) for name, raw in self._columns)

    def _keys(self, source: Copy | Server | Archived, store: Store) -> list[bytes]:
        """Return the streams. Raises NoSuchKey if a named one does not exist."""
        if isinstance(source, Server):
            with closing(ServerReader(client_of(source.place))) as reader:
                keys = reader.streams(self._spec)
        else:
            keys = streams_of(store, self._spec)
        if not self._missing_is_empty:
            require(self._spec, keys, source.shown)
        return keys


def _value(name: str, value: Any, raw: bool) -> Any:
    if raw or not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"the {name} {quote(value)} is not UTF-8: read the column as binary"
        ) from None


def _stream_rows(stream: Stream) -> Iterator[Row]:
    info = stream.info()
    yield {
        "length": info.length,
        "entries_added": info.entries_added,
        "first_id": bytes(info.first_entry.id) if info.first_entry else None,
        "last_id": bytes(info.last_generated_id),
        "max_deleted_id": bytes(info.max_deleted_entry_id),
        "nodes": info.radix_tree_keys,
        "groups": info.groups,
    }


def _group_rows(stream: Stream) -> Iterator[Row]:
    for info in stream.groups():
        yield {
            "group": info.name,
            "consumers": info.consumers,
            "pending": info.pending,
            "last_delivered_id": bytes(info.last_delivered_id),
            "entries_read": info.entries_read,
            "lag": info.lag,
        }


def _consumer_rows(stream: Stream) -> Iterator[Row]:
    for group in stream.groups():
        with suppress(NoGroup):  # removed meanwhile
            for info in stream.group(group.name).consumers():
                yield {
                    "group": group.name,
                    "consumer": info.name,
                    "pending": info.pending,
                    "idle_ms": info.idle,
                    "inactive_ms": None if info.inactive == -1 else info.inactive,
                }


def _pending_rows(stream: Stream) -> Iterator[Row]:
    for group in stream.groups():
        with suppress(NoGroup):  # removed meanwhile
            for entry in _pending(stream.group(group.name)):
                yield {
                    "group": group.name,
                    "id": bytes(entry.id),
                    "consumer": entry.consumer or None,
                    "idle_ms": entry.idle_ms,
                    "deliveries": entry.deliveries,
                }


def _pending(group: Group) -> Iterator[PendingEntry]:
    start = MIN_ID
    while True:
        rows = group.pending_range(start, count=PENDING_PAGE)
        yield from rows
        if len(rows) < PENDING_PAGE:
            return
        start = rows[-1].id.next()


_ROWS: dict[str, Callable[[Stream], Iterator[Row]]] = {
    "streams": _stream_rows,
    "groups": _group_rows,
    "consumers": _consumer_rows,
    "pending": _pending_rows,
}
