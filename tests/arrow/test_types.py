"""The types that a table's columns may have: those of pyarrow, polars and DuckDB."""

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from kvstream import DataError, InvalidArgument, Store, Stream
from kvstream.arrow.casts import cast_values
from kvstream.arrow.text import as_binary

MIDNIGHT = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.fixture
def stream(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "typed", durability="no") as store:
        yield store.stream("typed")


TYPED = [
    (pa.large_string(), "ü", "ü"),
    (pa.string_view(), "ü", "ü"),
    (pa.large_binary(), b"\xff", b"\xff"),
    (pa.binary_view(), b"\xff", b"\xff"),
    (pa.binary(2), b"\xff\x00", b"\xff\x00"),
    (pa.dictionary(pa.int32(), pa.string()), "a", "a"),
    (pa.dictionary(pa.uint8(), pa.string(), ordered=True), "a", "a"),
    (pa.dictionary(pa.uint32(), pa.large_string()), "a", "a"),
    (pa.dictionary(pa.uint32(), pa.string_view()), "a", "a"),
    (pa.dictionary(pa.int8(), pa.binary()), b"\xff", b"\xff"),
    (pa.dictionary(pa.int16(), pa.int64()), "7", 7),
    (pa.dictionary(pa.int16(), pa.date32()), "2026-11-21", dt.date(2026, 11, 21)),
    (pa.bool_(), "true", True),
    *((kind, "7", 7) for kind in (pa.int8(), pa.int16(), pa.uint8(), pa.uint16(), pa.uint32())),
    (pa.uint64(), str(2**64 - 1), 2**64 - 1),
    (pa.float16(), "1.5", 1.5),
    (pa.float32(), "1.5", 1.5),
    (pa.decimal32(5, 2), "1.5", Decimal("1.50")),
    (pa.decimal64(10, 2), "1.5", Decimal("1.50")),
    (pa.decimal128(38, 0), "7", Decimal(7)),
    (pa.decimal256(40, 3), "1.5", Decimal("1.500")),
    (pa.date64(), "2026-11-21", dt.date(2026, 11, 21)),
    (pa.time32("s"), "20:51:07", dt.time(20, 51, 7)),
    (pa.time64("us"), "20:51:07.000001", dt.time(20, 51, 7, 1)),
    (pa.time64("ns"), "20:51:07.000001000", dt.time(20, 51, 7, 1)),
    (pa.timestamp("s"), "2026-11-21T20:51", dt.datetime(2026, 11, 21, 20, 51)),
    (pa.timestamp("us", "UTC"), "2026-11-21", MIDNIGHT),
    (
        pa.timestamp("us", "Etc/UTC"),
        "2026-11-21T01+01:00",
        dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
    ),
    (pa.duration("ms"), "1500", dt.timedelta(seconds=1.5)),
    (pa.uuid(), str(ID), ID),
    (pa.bool8(), "false", False),
]


@pytest.mark.parametrize(("kind", "stored", "read"), TYPED, ids=str)
def test_a_field_is_read_as_its_column_type(
    stream: Stream, kind: pa.DataType, stored: Any, read: object
) -> None:
    stream.add_many([{"a": stored}, {"b": 1}, {"a": stored}])
    schema = pa.schema({"a": kind})
    table = stream.to_arrow(schema=schema)
    assert table.schema == schema
    assert table["a"].to_pylist() == [read, None, read]
    assert pa.Table.from_batches(stream.iter_batches(schema=schema)) == table
    assert len(stream.to_pandas(schema=schema)) == 3
    if not pa.types.is_decimal256(kind):  # polars has none
        assert stream.to_polars(schema=schema)["a"].null_count() == 1


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.string_view(), pa.large_string(), pa.binary(2), pa.int8(), pa.duration("s")),
        *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int8(), pa.int64())),
        *(pa.null(), pa.uuid(), pa.bool8(), pa.timestamp("ns"), pa.time64("ns")),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_named(stream: Stream, kind: pa.DataType) -> None:
    stream.add_many([{"b": 1}] * 3)
    assert stream.to_arrow(schema={"a": kind})["a"].null_count == 3
    eid = stream.add({"a": b"\xff\xff\xff"})
    message = f"entry {eid} of stream 'typed': the field a is not a valid "
    with pytest.raises(DataError, match=f"^{message}.*xff"):
        stream.to_arrow(schema={"a": kind})


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.list_(pa.string()), pa.large_list(pa.string()), pa.list_(pa.int8(), 2)),
        *(pa.list_view(pa.string()), pa.struct({"a": pa.int8()}), pa.map_("string", "string")),
        *(pa.month_day_nano_interval(), pa.run_end_encoded(pa.int32(), pa.string())),
        pa.opaque(pa.binary(16), "hugeint", "DuckDB"),
    ],
    ids=str,
)
def test_a_type_without_text_is_refused(stream: Stream, kind: pa.DataType) -> None:
    with pytest.raises(InvalidArgument, match=r"^the column a cannot be .*; use string, binary, "):
        stream.to_arrow(schema=pa.schema({"a": kind}))


TEXTS = (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))
BYTES = (pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary()))


def test_the_columns_of_the_entry_have_these_types_too(stream: Stream) -> None:
    stream.add({"a": "ü"}, id="5-1")
    for kind in (*TEXTS, *BYTES, pa.binary(16)):
        of_text = kind in TEXTS
        names = ["id"] if kind == pa.binary(16) else ["id", "stream"]
        (row,) = stream.to_arrow(schema=pa.schema([(name, kind) for name in names])).to_pylist()
        assert row["id"] == ("5-1" if of_text else (5).to_bytes(8) + (1).to_bytes(8))
        assert row.get("stream", "typed") in ("typed", b"typed")
    number = pa.decimal128(20, 0)
    schema = pa.schema({"id": pa.struct({"ms": number, "seq": number}), "timestamp": pa.uint64()})
    assert stream.to_arrow(schema=schema).to_pylist() == [
        {"id": {"ms": Decimal(5), "seq": Decimal(1)}, "timestamp": 5}
    ]
    part = pa.struct({"n": pa.large_string(), "v": pa.binary_view()})
    for fields in (pa.map_(pa.string_view(), pa.large_binary()), pa.large_list(part)):
        found = stream.to_arrow(schema=pa.schema({"fields": fields}))["fields"].to_pylist()
        assert found in ([[("a", "ü".encode())]], [[{"n": "a", "v": "ü".encode()}]])


def test_too_many_values_for_the_indices_of_a_dictionary_are_named(stream: Stream) -> None:
    stream.add_many([{"a": n} for n in range(200)])
    with pytest.raises(InvalidArgument, match=r"^the column a has \d+ different values in one "):
        stream.to_arrow(schema={"a": pa.dictionary(pa.int8(), pa.string())})


def test_schemas_of_polars_are_taken(stream: Stream) -> None:
    stream.add({"sku": "c", "qty": 7, "at": "2026-11-21T20:51:00"})
    columns: dict[str, Any] = {"id": pl.String, "sku": pl.String, "qty": pl.Int16}
    columns |= {"at": pl.Datetime("us", "Europe/Berlin"), "took": pl.Duration("ms")}
    part = pl.Struct({"name": pl.String, "value": pl.Binary})
    schema = pl.Schema({**columns, "none": pl.Null, "fields": pl.List(part)})
    found = stream.to_polars(schema=schema)
    assert found.schema == schema
    assert found["qty"].to_list() == [7]
    again = stream.to_polars(schema=found.to_arrow().schema)
    assert again.equals(found)


def test_a_value_that_is_no_category_of_an_enum_is_kept(stream: Stream) -> None:
    stream.add({"sku": "c"})
    assert stream.to_polars(schema=pl.Schema({"sku": pl.Enum(["a"])}))["sku"].to_list() == ["c"]


def test_schemas_of_duckdb_are_taken(stream: Stream) -> None:
    stream.add(
        {"sku": "a", "raw": b"\xff", "n": 7, "kind": "b", "price": "1.5", "at": "2026-11-21"}
    )
    columns = (
        "'' AS sku, ''::BLOB AS raw, 1::HUGEINT AS n, 'a'::ENUM('a', 'b') AS kind, "
        "1.5::DECIMAL(10, 2) AS price, '2026-01-01'::TIMESTAMPTZ AS at, NULL AS none"
    )
    with duckdb.connect() as database:
        for setting in ("large_buffer_size", "lossless_conversion"):
            schema = schema_of(database, columns)
            (row,) = stream.to_arrow(schema=schema).to_pylist()
            assert list(row.values())[:5] == ["a", b"\xff", 7, "b", Decimal("1.5")]
            database.execute(f"SET arrow_{setting} = true")
            columns = columns.replace("1::HUGEINT", "1::BIGINT")


def schema_of(database: Any, columns: str) -> pa.Schema:
    return database.sql(f"SELECT {columns}").to_arrow_table().schema


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.string_view(), "ü"),
        (pa.binary_view(), b"\xff"),
        (pa.binary(2), b"\xff\x00"),
        (pa.duration("us"), dt.timedelta(seconds=1)),
        (pa.time64("ns"), dt.time(20, 51, 7, 1)),
        (pa.uuid(), ID.bytes),
        (pa.decimal32(5, 2), Decimal("1.50")),
        (pa.float16(), 1.5),
    ],
    ids=str,
)
def test_a_written_value_reads_back_as_itself(kind: pa.DataType, value: object) -> None:
    column = pa.array([value, None], kind)
    assert cast_values(as_binary(column), kind)[0].equals(column)
    if not isinstance(kind, pa.BaseExtensionType):
        encoded = pa.array([0, 0, None]).cast(pa.int8())
        values = pa.DictionaryArray.from_arrays(encoded, column[:1])
        assert as_binary(values).to_pylist() == [*as_binary(column[:1]).to_pylist() * 2, None]


def test_extensions_and_runs_are_written_as_the_values_that_they_stand_for() -> None:
    flags = pa.array([1, 0, None], pa.int8()).cast(pa.bool8())
    assert as_binary(flags).to_pylist() == [b"true", b"false", None]
    assert as_binary(pa.array([ID.bytes], pa.uuid())).to_pylist() == [str(ID).encode()]
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["a", None]))
    assert as_binary(runs).to_pylist() == [b"a", b"a", None]
    with pytest.raises(pa.ArrowNotImplementedError, match="has no text"):
        as_binary(pa.nulls(1, pa.opaque(pa.binary(16), "hugeint", "DuckDB")))
