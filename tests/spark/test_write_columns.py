"""How columns of a DataFrame become entries, and which DataFrames are refused at once."""

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from kvstream.errors import InvalidArgument, InvalidID
from kvstream.layout.values import decode_fields, encode_fields
from kvstream.spark.write.encoding import encode_batch
from kvstream.spark.write.schema import columns_of
from kvstream.spark.write.stage import add_id
from kvstream.types.ids import StreamID
from kvstream.types.records import RepeatedFields

UTC = dt.UTC
BIG = (1 << 64) - 1
TIME = pa.timestamp("us", "UTC")
TEXTS = [StreamID(5, 1), 6, None, StreamID(7, 0), None]


_PLAIN: dict[str, types.DataType] = {
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "timestamp": types.TimestampType(),
}
_LISTS: dict[str, types.DataType] = {
    "array": types.ArrayType(types.IntegerType()),
    "map": types.MapType(types.StringType(), types.BinaryType()),
    "map of int": types.MapType(types.IntegerType(), types.BinaryType()),
    "map to array": types.MapType(types.StringType(), types.ArrayType(types.IntegerType())),
}


def structure(**kinds: types.DataType) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in kinds.items()])


_STRUCTS: dict[str, types.DataType] = {
    "numbers": structure(ms=types.LongType(), seq=types.LongType()),
    "decimals": structure(ms=types.DecimalType(20, 0), seq=types.DecimalType(20, 0)),
    "pairs": types.ArrayType(structure(name=types.StringType(), value=types.IntegerType())),
}


BINARY_PAIRS = types.ArrayType(structure(name=types.BinaryType(), value=types.BinaryType()))


def parsed(schema: str) -> types.StructType:
    """Return the schema of ``name type, name type ...``."""
    kinds = _PLAIN | _LISTS | _STRUCTS
    fields = [part.strip().split(" ", 1) for part in schema.split(",")]
    return types.StructType([types.StructField(name, kinds[kind]) for name, kind in fields])


def entries(
    schema: str, batch: Mapping[str, Any], **options: str
) -> dict[bytes, list[tuple[Any, dict[bytes, bytes]]]]:
    """Return the entries of a batch by stream: the ID for XADD, and the fields."""
    columns = columns_of(parsed(schema), options)
    found: dict[bytes, list[tuple[Any, dict[bytes, bytes]]]] = {}
    for staged in encode_batch(pa.record_batch(dict(batch)), columns):
        ids = [add_id(eid) for eid in staged.ids] or [None] * len(staged.rows)
        fields = [decode_fields(value) for value, _ in staged.rows]
        for (_, names), each in zip(staged.rows, fields, strict=True):
            flat = each.flat[::2] if isinstance(each, RepeatedFields) else tuple(each)
            assert names == tuple(flat)
        found[staged.key] = list(zip(ids, fields, strict=True))
    return found


def test_columns_become_fields_and_nulls_are_left_out() -> None:
    found = entries(
        "n bigint, t string",
        {"n": pa.array([1, None]), "t": pa.array(["a", "b"])},
        stream="s",
    )
    assert found == {b"s": [(None, {b"n": b"1", b"t": b"a"}), (None, {b"t": b"b"})]}


def test_a_row_without_any_field_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="all fields are null"):
        entries("n bigint", {"n": pa.array([None], pa.int64())}, stream="s")


def test_a_map_becomes_the_fields_in_its_order() -> None:
    column = pa.array(
        [[("z", b"1"), ("a", None)], [("b", b"2")]], pa.map_(pa.string(), pa.binary())
    )
    found = entries("fields map", {"fields": column}, stream="s")
    assert found == {b"s": [(None, {b"z": b"1"}), (None, {b"b": b"2"})]}
    part = entries("fields map", {"fields": column.slice(1)}, stream="s")
    assert part == {b"s": [(None, {b"b": b"2"})]}


def test_pairs_keep_fields_that_repeat() -> None:
    pair = pa.struct([("name", pa.string()), ("value", pa.int32())])
    column = pa.array([[{"name": "a", "value": 1}, {"name": "a", "value": 2}]], pa.list_(pair))
    schema = "fields pairs"
    [(_, fields)] = entries(schema, {"fields": column}, stream="s")[b"s"]
    assert isinstance(fields, RepeatedFields)
    assert fields.flat == (b"a", b"1", b"a", b"2")


def test_rows_go_to_the_streams_of_their_column_in_their_order() -> None:
    streams = pa.array(["b", "a", "b", "a", "c"])
    found = entries("stream string, n int", {"stream": streams, "n": pa.array(range(5))})
    order = {key: [int(fields[b"n"]) for _, fields in rows] for key, rows in found.items()}
    assert order == {b"b": [0, 2], b"a": [1, 3], b"c": [4]}


def test_a_row_without_a_stream_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="has no stream"):
        entries("stream string, n int", {"stream": pa.array(["a", None]), "n": pa.array([1, 2])})


@pytest.mark.parametrize(
    ("kind", "values", "form", "ids"),
    [
        ("string", ["5-1", "6-*", "*", "7", None], None, TEXTS),
        ("bigint", [5, None], None, [5, None]),
        ("timestamp", [1_000_999], TIME, [1000]),
        ("binary", [b"\x00" * 7 + b"\x05" + b"\xff" * 8], None, [StreamID(5, BIG)]),
        ("numbers", [{"ms": 5, "seq": 1}, None], None, [StreamID(5, 1), None]),
        (
            "decimals",
            [{"ms": Decimal(BIG), "seq": Decimal(0)}],
            pa.struct([("ms", pa.decimal128(20, 0)), ("seq", pa.decimal128(20, 0))]),
            [StreamID(BIG, 0)],
        ),
    ],
)
def test_an_id_may_be_given_in_each_of_its_forms(
    kind: str, values: list[object], form: pa.DataType | None, ids: list[object]
) -> None:
    column = pa.array(values, form)  # not as a parameter: the first array imports pandas
    batch = {"id": column, "n": pa.array([1] * len(column))}
    found = entries(f"id {kind}, n int", batch, stream="s")
    assert [eid for eid, _ in found[b"s"]] == ids


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", ["5-x"]),
        ("bigint", [-1]),
        ("binary", [b"short"]),
        ("numbers", [{"ms": 5, "seq": None}]),
        ("numbers", [{"ms": 5, "seq": -1}]),
    ],
)
def test_an_invalid_id_is_refused(kind: str, values: list[object]) -> None:
    column = pa.array(values)
    with pytest.raises(InvalidID):
        entries(f"id {kind}, n int", {"id": column, "n": pa.array([1])}, stream="s")


def test_a_timestamp_is_the_time_of_the_id_and_unused_beside_one() -> None:
    times = pa.array([5_000_000], TIME)
    alone = entries(
        "timestamp timestamp, n int", {"timestamp": times, "n": pa.array([1])}, stream="s"
    )
    assert alone == {b"s": [(5000, {b"n": b"1"})]}
    beside = {"id": pa.array(["9-9"]), "timestamp": times, "n": pa.array([1])}
    found = entries("id string, timestamp timestamp, n int", beside, stream="s")
    assert found == {b"s": [(StreamID(9, 9), {b"n": b"1"})]}


def test_reserved_names_are_fields_with_another_prefix() -> None:
    batch = {"_stream": pa.array(["s"]), "id": pa.array(["no ID"]), "stream": pa.array(["x"])}
    found = entries("_stream string, id string, stream string", batch, metaprefix="_")
    assert found == {b"s": [(None, {b"id": b"no ID", b"stream": b"x"})]}


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("n int", {}, "no stream is named"),
        ("stream string, n int", {"stream": "s"}, "both name the stream"),
        ("stream int, n int", {}, "column stream is int"),
        ("id boolean, n int", {"stream": "s"}, "column id is boolean"),
        ("timestamp string, n int", {"stream": "s"}, "column timestamp is string"),
        ("id string", {"stream": "s"}, "entries need a field"),
        ("n array", {"stream": "s"}, r"to_json\(n\)"),
        ("m map", {"stream": "s"}, "would be the column fields"),
        ("fields map, n int", {"stream": "s"}, "there are also n"),
        ("fields map of int", {"stream": "s"}, "fields must be a map of string"),
        ("fields map to array", {"stream": "s"}, "fields must be a map of string"),
        ("fields string", {"stream": "s"}, "fields must be a map of string"),
    ],
)
def test_an_unsuitable_dataframe_is_refused(
    schema: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        columns_of(parsed(schema), options)


def test_a_column_that_to_json_does_not_take_is_to_be_cast() -> None:
    with pytest.raises(InvalidArgument, match=r"as with cast\(n as string\)"):
        columns_of(types.StructType().add("n", types.TimeType()), {"stream": "s"})


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="two columns"):
        columns_of(parsed("n int, n int"), {"stream": "s"})


PARTS = st.one_of(st.none(), st.binary(max_size=40), st.just(b"x" * 70_000))


@given(st.lists(st.tuples(PARTS, PARTS, PARTS), min_size=1, max_size=8), st.integers(0, 3))
def test_rows_of_columns_equal_those_of_the_library(
    rows: list[tuple[bytes | None, ...]], skipped: int
) -> None:
    rows = [row for row in rows if any(part is not None for part in row)] or [(b"1", None, b"")]
    names = ("a", "b" * 40, "c")
    columns = [
        pa.array([None] * skipped + [row[at] for row in rows], pa.binary()) for at in range(3)
    ]
    schema = f"a binary, {'b' * 40} binary, c binary"
    batch = {name: column.slice(skipped) for name, column in zip(names, columns, strict=True)}
    found = [fields for _, fields in entries(schema, batch, stream="s")[b"s"]]
    wanted = [
        {name.encode(): part for name, part in zip(names, row, strict=True) if part is not None}
        for row in rows
    ]
    assert found == wanted


@given(
    st.lists(st.lists(st.tuples(st.binary(max_size=3), PARTS), max_size=5), min_size=1, max_size=8)
)
def test_rows_of_lists_equal_those_of_the_library(
    rows: list[list[tuple[bytes, bytes | None]]],
) -> None:
    rows = [row for row in rows if any(part is not None for _, part in row)] or [[(b"1", b"")]]
    pair = pa.struct([("name", pa.binary()), ("value", pa.binary())])
    column = pa.array(
        [[{"name": name, "value": part} for name, part in row] for row in rows], pa.list_(pair)
    )
    columns = columns_of(
        types.StructType([types.StructField("fields", BINARY_PAIRS)]), {"stream": "s"}
    )
    [staged] = encode_batch(pa.record_batch({"fields": column}), columns)
    wanted = [
        encode_fields([(name, part) for name, part in row if part is not None]) for row in rows
    ]
    assert staged.rows == wanted
