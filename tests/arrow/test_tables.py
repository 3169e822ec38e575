"""Streams as tables: pyarrow, pandas, polars."""

import asyncio
import importlib
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstream
from kvstream import ClientMissing, DataError, InvalidArgument, NoSuchKey, Store, Stream
from kvstream.arrow.batches import PAGE_BYTES, PAGE_MAX

TIME = pa.timestamp("ms", "UTC")
DAY = 1_700_000_000_000


@pytest.fixture
def orders(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "orders", durability="no") as store:
        yield store.stream("orders")


def test_a_range_is_a_table_on_every_place(place: str) -> None:
    with kvstream.open(place) as store:
        orders = store.stream("orders")
        for n in range(100):
            orders.add({"sku": f"a{n % 7}", "qty": n} if n % 2 else {"sku": "ü"}, id=(DAY + n, n))
        orders.add([("sku", "first"), ("sku", "last"), ("raw", b"\xff")], id=(DAY + 100, 0))
        table = orders.to_arrow()
        assert table.schema == pa.schema(
            {"id": pa.string(), "timestamp": TIME, "sku": pa.string(), "qty": pa.string()}
            | {"raw": pa.binary()}
        )
        assert table.num_rows == 101
        assert table.slice(1, 1).to_pylist() == [
            {
                "id": f"{DAY + 1}-1",
                "timestamp": datetime.fromtimestamp((DAY + 1) / 1000, UTC),
                "sku": "a1",
                "qty": "1",
                "raw": None,
            }
        ]
        assert table["sku"].to_pylist()[-1] == "last"
        assert table["raw"].to_pylist()[-1] == b"\xff"
        batches = list(orders.iter_batches())
        assert pa.Table.from_batches(batches) == table
        assert [len(batch) for batch in batches] == [64, 37]
        typed = orders.to_arrow((DAY + 1, 0), DAY + 5, schema={"qty": "int64", "stream": "string"})
        assert typed.to_pydict() == {"qty": [1, None, 3, None, 5], "stream": ["orders"] * 5}
        assert orders.to_pandas(schema={"qty": "int32"})["qty"].sum() == sum(range(1, 100, 2))
        assert orders.to_polars()["sku"].to_list() == table["sku"].to_pylist()
        fields = orders.to_arrow(DAY, DAY, schema={"fields": pa.map_(pa.string(), pa.string())})
        assert fields.to_pylist() == [{"fields": [("sku", "ü")]}]
        store.stream("empty").create_group("g")
        empty = store.stream("empty").to_arrow()
        assert (empty.num_rows, empty.column_names) == (0, ["id", "timestamp"])
        assert list(store.stream("empty").iter_batches()) == []
        for read in ("to_arrow", "iter_batches", "to_pandas", "to_polars"):
            with pytest.raises(NoSuchKey, match="there is no stream 'order': did you mean 'orders"):
                getattr(store.stream("order"), read)()


def test_a_range_is_a_table_with_asyncio(place: str) -> None:
    async def main() -> None:
        async with kvstream.aio.open(place, decode=True) as store:
            orders = store.stream("orders")
            await orders.add_many([{"qty": n} for n in range(100)])
            table = await orders.to_arrow(schema={"qty": "int64"})
            assert table["qty"].to_pylist() == list(range(100))
            batches = [batch async for batch in orders.iter_batches(schema={"qty": "int64"})]
            assert pa.Table.from_batches(batches) == table
            assert (await orders.to_pandas())["qty"].tolist() == [str(n) for n in range(100)]
            assert (await orders.to_polars()).shape == (100, 3)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.string(), "1700000000000-5"),
        (pa.binary(), (1_700_000_000_000).to_bytes(8) + (5).to_bytes(8)),
        (pa.struct({"ms": pa.uint64(), "seq": pa.uint64()}), {"ms": 1_700_000_000_000, "seq": 5}),
    ],
)
def test_ids_have_three_forms(orders: Stream, kind: pa.DataType, value: object) -> None:
    orders.add({"a": 1}, id="1700000000000-5")
    assert orders.to_arrow(schema=pa.schema({"id": kind}))["id"].to_pylist() == [value]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_have_every_unit_and_are_null_beyond_its_range(orders: Stream, unit: str) -> None:
    orders.add({"a": 1}, id=(DAY, 0))
    orders.add({"a": 1}, id=((1 << 64) - 1, 0))
    for kind in (pa.timestamp(unit), pa.timestamp(unit, "Europe/Berlin")):
        first, beyond = orders.to_arrow(schema={"timestamp": kind})["timestamp"]
        assert first.cast(pa.timestamp("ms")).cast(pa.int64()).as_py() == DAY
        assert beyond.as_py() is None
    assert orders.to_arrow(schema={"timestamp": "int64"})["timestamp"].to_pylist() == [DAY, None]


def test_fields_with_reserved_names_are_kept_apart_by_a_prefix(orders: Stream) -> None:
    orders.add({"id": "mine", "stream": "s"}, id="5-1")
    with pytest.raises(InvalidArgument, match=r"a field 'id', which is also .* give meta_prefix"):
        orders.to_arrow()
    (row,) = orders.to_arrow(meta_prefix="_").to_pylist()
    assert (row["_id"], row["id"], row["stream"]) == ("5-1", "mine", "s")
    schema = {"_id": "string", "id": "string", "_stream": "string", "stream": "string"}
    (row,) = orders.to_arrow(schema=schema, meta_prefix="_").to_pylist()
    assert row == {"_id": "5-1", "id": "mine", "_stream": "orders", "stream": "s"}


def test_an_error_names_a_value_of_another_type(orders: Stream) -> None:
    eid = orders.add({"qty": "many"})
    message = rf"^entry {eid} of stream 'orders': the field qty is not a valid int64: 'many'$"
    for read in (orders.to_arrow, lambda **how: list(orders.iter_batches(**how))):
        with pytest.raises(DataError, match=message):
            read(schema={"qty": "int64"})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"qty": "int65"}, "schema is a pyarrow.Schema, or maps names to types"),
        (5, "schema is a pyarrow.Schema, or maps names to types"),
        ({"id": "int64"}, "the column id cannot be int64; use string, binary, or struct"),
        ({"timestamp": "string"}, "the column timestamp cannot be string; use timestamp"),
        ({"fields": "string"}, "the column fields cannot be string; use map"),
        ({"stream": "int8"}, "the column stream cannot be int8"),
        ({"a": pa.list_(pa.string())}, "the column a cannot be list"),
        (pa.schema([("a", "int8"), ("a", "int8")]), "the schema has 'a' twice"),
    ],
)
def test_a_wrong_schema_is_refused_before_anything_is_read(
    orders: Stream, schema: Any, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        orders.iter_batches(schema=schema)


def test_the_error_for_invalid_column_names_points_to_map(orders: Stream) -> None:
    orders.add({b"\xff": 1})
    with pytest.raises(InvalidArgument, match=r"b'\\xff' is not UTF-8.*: give schema=.*map_"):
        orders.to_arrow()
    orders.add_many([{f"k{n}": 1} for n in range(1001)])
    with pytest.raises(InvalidArgument, match="more than 1000 different field names"):
        orders.to_arrow("(" + str(orders.range(count=1)[0].id))


def test_entries_added_during_a_read_are_left_to_the_next_one(orders: Stream) -> None:
    orders.add_many([{"n": n} for n in range(100)])
    batches = orders.iter_batches(schema={"n": "int64"})
    seen = len(next(batches))
    orders.add({"n": "later"})
    assert seen + sum(map(len, batches)) == 100


def test_batches_are_bounded_by_entries_and_bytes(orders: Stream) -> None:
    orders.add_many([{"n": n} for n in range(3 * PAGE_MAX)])
    assert max(map(len, orders.iter_batches())) == PAGE_MAX
    orders.trim(maxlen=0)
    value = b"x" * 10_000
    for _ in range(40):
        orders.add_many([{"v": value}] * 100)
    tracemalloc.start()
    try:
        rows = [len(batch) for batch in orders.iter_batches(schema={"v": "binary"})]
        assert tracemalloc.get_traced_memory()[1] < 8 * PAGE_BYTES
    finally:
        tracemalloc.stop()
    assert (sum(rows), max(rows)) == (4000, PAGE_BYTES // (len(value) + 1))


@pytest.mark.parametrize(
    ("call", "package", "install"),
    [
        ("to_arrow", "pyarrow", "'kvstream-db[arrow]'"),
        ("iter_batches", "pyarrow", "'kvstream-db[arrow]'"),
        ("to_pandas", "pandas", "pandas"),
        ("to_polars", "polars", "polars"),
    ],
)
def test_an_error_names_a_missing_package(
    orders: Stream, monkeypatch: pytest.MonkeyPatch, call: str, package: str, install: str
) -> None:
    def missing(name: str) -> Any:
        if name == package:
            raise ModuleNotFoundError(name)
        return importlib.import_module(name)

    monkeypatch.setattr("kvstream.errors.import_module", missing)
    with pytest.raises(ClientMissing) as refused:
        getattr(orders, call)()
    assert str(refused.value) == f"this needs {package}: pip install {install}"
