"""Batch reads of a store return what the library reads, and never skip damage."""

import shutil
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from kvstream import Store
from kvstream.engine import reader_snapshots
from kvstream.spark.read.partitions import bounds
from kvstream.spark.schema import default_schema, read_schema
from kvstream.types.ids import U64_MAX, StreamID
from tests.spark.conftest import Read, entries_of, fill, order, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MS = 1_700_000_000_000


def test_a_stream_is_read_completely_and_in_parallel(read: Read, orders: Path) -> None:
    frame = read(path=orders, stream="orders", partitions=4)
    assert frame.rdd.getNumPartitions() == 4
    found = rows_of(frame)
    with Store.open(orders, read_only=True) as store:
        assert found == entries_of(store, "orders")


def test_rows_have_the_time_of_their_ids(read: Read, orders: Path) -> None:
    first = read(path=orders, stream="orders", end=f"{MS}-0").selectExpr(
        "id", "unix_millis(timestamp) AS ms", "fields"
    )
    (row,) = first.collect()
    assert (row.id.ms, row.id.seq, row.ms) == (MS, 0, MS)
    assert {name: bytes(value) for name, value in row.fields.items()} == {
        "sku": b"a0",
        "qty": b"0",
        "price": b"0.25",
    }


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        (
            {"start": f"{MS + 100}-1", "end": f"{MS + 500}"},
            {"start": (MS + 100, 1), "end": MS + 500},
        ),
        ({"start": f"({MS + 100}-1"}, {"start": f"({MS + 100}-1"}),
        ({"start": "2023-11-14T22:13:21Z"}, {"start": MS + 1000}),
        ({"asof": f"{MS + 7}-1", "end": "+"}, {"end": (MS + 7, 1)}),
        ({"start": MS + 10_000_000}, {"start": MS + 10_000_000}),
    ],
)
def test_a_range_is_that_of_the_library(
    read: Read, orders: Path, options: dict[str, Any], bounds: dict[str, Any]
) -> None:
    found = rows_of(read(path=orders, stream="orders", **options))
    with Store.open(orders, read_only=True) as store:
        assert found == entries_of(store, "orders", **bounds)


def test_patterns_and_names_give_the_stream_of_each_row(read: Read, orders: Path) -> None:
    frame = read(path=orders, match="sku:[0-4]", stream="sku:9,sku:8")
    assert frame.columns == ["stream", "id", "timestamp", "fields"]
    found = {row.stream: bytes(row.fields["name"]) for row in frame.collect()}
    assert found == {f"sku:{n}": f"item {n}".encode() for n in (0, 1, 2, 3, 4, 8, 9)}


def test_a_missing_stream_is_an_error_unless_it_may_be_missing(read: Read, orders: Path) -> None:
    with pytest.raises(Exception, match="there is no stream 'refunds' in"):
        read(path=orders, stream="refunds").count()
    assert read(path=orders, stream="refunds", ignoreMissing=True).count() == 0
    assert read(path=orders, match="refunds:*").count() == 0
    for table in ("streams", "groups", "consumers", "pending"):
        with pytest.raises(Exception, match="there is no stream 'refunds' in"):
            read(path=orders, stream="refunds,orders", table=table).count()
        some = read(path=orders, stream="refunds,orders", table=table, ignoreMissing=True)
        assert some.count() == (1 if table == "streams" else 0)


def test_typed_columns_are_decoded(read: Read, orders: Path) -> None:
    schema = "id string, sku string, qty int, price decimal(10,2), missing double"
    frame = read(schema, path=orders, stream="orders", end=f"{MS + 1}")
    assert [tuple(row) for row in frame.orderBy("qty").collect()] == [
        (f"{MS + n // 3}-{n % 3}", f"a{n}", n, Decimal(f"{n}.25"), None) for n in range(6)
    ]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with values that do not fit the type of their column, and IDs beyond bigint."""
    path = tmp_path_factory.mktemp("odd") / "data"
    with Store.open(path, durability="no") as store:
        odd = store.stream("odd")
        odd.add({"qty": "1", "at": "2024-01-02 03:04:05"}, id="1-1")
        odd.add({"qty": "two", "at": "2024-01-02T03:04:05+01:00"}, id="2-1")
        odd.add({"qty": "0x3", "at": "never"}, id="3-1")
        odd.add([("qty", "4"), ("qty", "5")], id="4-1")
        odd.add({"qty": b"\xff"}, id="5-1")
        store.stream("far").add({"a": "b"}, id=((1 << 63) + 5, (1 << 64) - 1))
        store.stream("bytes").add({b"\xff": b"\xfe"}, id="1-1")
    return path


def test_bad_values_are_null_and_kept_in_a_column(read: Read, odd: Path) -> None:
    frame = read("id string, qty int, _corrupt_record string", path=odd, stream="odd")
    found = {row.id: (row.qty, row._corrupt_record) for row in frame.collect()}
    assert {eid: qty for eid, (qty, _) in found.items()} == {
        "1-1": 1,
        "2-1": None,
        "3-1": None,
        "4-1": 5,
        "5-1": None,
    }
    assert found["1-1"][1] is None
    assert found["4-1"][1] is None
    assert '"qty": "two"' in found["2-1"][1]
    assert '"qty": "base64:/w=="' in found["5-1"][1]


def test_malformed_entries_are_dropped_on_request(read: Read, odd: Path) -> None:
    frame = read("id string, qty int", path=odd, stream="odd", mode="dropMalformed")
    assert sorted(row.id for row in frame.collect()) == ["1-1", "4-1"]


def test_malformed_entries_fail_the_job_on_request(read: Read, odd: Path) -> None:
    with pytest.raises(
        Exception, match=r"entry 2-1 of stream 'odd': the field qty is not a valid int: 'two'"
    ):
        read("qty int", path=odd, stream="odd", mode="FAILFAST").collect()


def test_times_with_and_without_a_zone_are_read(read: Read, odd: Path) -> None:
    frame = read("id string, at timestamp", path=odd, stream="odd").selectExpr(
        "id", "unix_seconds(at) AS at"
    )
    found = {row.id: row["at"] for row in frame.collect()}
    base = int(datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp())
    assert found == {"1-1": base, "2-1": base - 3600, "3-1": None, "4-1": None, "5-1": None}


def test_an_id_beyond_bigint_is_refused_and_never_wrapped(read: Read, odd: Path) -> None:
    with pytest.raises(Exception, match=r"does not fit bigint: read the column as string"):
        read(path=odd, stream="far").collect()
    ms, seq = (1 << 63) + 5, (1 << 64) - 1
    part = "decimal(20,0)"
    wide = f"id struct<ms:{part},seq:{part}>, timestamp timestamp"
    (row,) = read(wide, path=odd, stream="far").collect()
    assert (row.id.ms, row.id.seq, row.timestamp) == (ms, seq, None)
    (row,) = read("id string", path=odd, stream="far").collect()
    assert row.id == f"{ms}-{seq}"
    (row,) = read("id binary", path=odd, stream="far").collect()
    assert bytes(row.id) == ms.to_bytes(8) + seq.to_bytes(8)


def test_repeated_and_binary_fields_have_suitable_types(read: Read, odd: Path) -> None:
    pairs = "fields array<struct<name:string,value:string>>"
    (row,) = read(pairs, path=odd, stream="odd", start="4-1", end="4-1").collect()
    assert [tuple(pair) for pair in row.fields] == [("qty", "4"), ("qty", "5")]
    (row,) = read(path=odd, stream="odd", start="4-1", end="4-1").collect()
    assert {name: bytes(value) for name, value in row.fields.items()} == {"qty": b"5"}
    with pytest.raises(Exception, match="is not UTF-8: read the column as binary"):
        read(path=odd, stream="bytes").collect()
    binary = read("fields map<binary,binary>", path=odd, stream="bytes")
    (row,) = binary.selectExpr("map_entries(fields) AS pairs").collect()
    assert [tuple(map(bytes, pair)) for pair in row.pairs] == [(b"\xff", b"\xfe")]


def test_a_field_may_have_a_reserved_name(
    read: Read, spark: "SparkSession", tmp_path: Path
) -> None:
    with Store.open(tmp_path / "data") as store:
        store.stream("s").add({"id": "mine", "stream": "theirs"}, id="7-7")
    schema = "_id string, id string, stream string"
    (row,) = read(schema, path=tmp_path / "data", stream="s", metaPrefix="_").collect()
    assert tuple(row) == ("7-7", "mine", "theirs")


def test_a_frame_is_complete_also_after_a_filter_on_it(read: Read, orders: Path) -> None:
    frame = read(path=orders, stream="orders", partitions=1)
    some = frame.filter(f"id.ms >= {MS + 1000} AND id.ms < {MS + 1010}")
    assert sorted((row.id.ms, row.id.seq) for row in some.collect()) == [
        (MS + ms, seq) for ms in range(1000, 1010) for seq in range(3)
    ]
    assert frame.count() == 5000
    assert some.select("id").union(frame.select("id")).count() == 5030


@pytest.mark.parametrize(
    ("filters", "start", "end"),
    [
        ([GreaterThanOrEqual(("id", "ms"), 7), LessThan(("id", "ms"), 9)], (7, 0), (9, U64_MAX)),
        ([GreaterThan(("timestamp",), datetime.fromtimestamp(5, UTC))], (5000, 0), None),
        ([LessThanOrEqual(("timestamp",), datetime.fromtimestamp(5, UTC))], None, (5000, U64_MAX)),
        ([EqualTo(("id", "ms"), -1)], (0, 0), (0, 0)),
        ([GreaterThan(("sku",), 5), In(("id", "ms"), (1, 2))], None, None),
    ],
)
def test_filters_are_the_range_of_ids_that_can_pass(
    filters: list[Any], start: tuple[int, int] | None, end: tuple[int, int] | None
) -> None:
    shape = read_schema({}, default_schema({}, several=False))
    found = bounds(filters, shape)
    assert found == (StreamID(*(start or (0, 0))), StreamID(*(end or (U64_MAX, U64_MAX))))


def test_the_owner_of_a_store_in_use_gives_a_copy(read: Read, tmp_path: Path) -> None:
    with Store.open(tmp_path / "data") as store:
        fill(store, 300)
        frame = read(path=tmp_path / "data", stream="orders")
        assert rows_of(frame) == entries_of(store, "orders")
        store.stream("orders").add(order(1))
        assert frame.count() == 300  # of the moment in which it was first needed
        assert read(path=tmp_path / "data", stream="orders").count() == 301


def test_several_stores_are_one_frame(read: Read, orders: Path, tmp_path: Path) -> None:
    with Store.open(tmp_path / "more") as store:
        fill(store, 7)
    frame = read(path=f"{orders},{tmp_path / 'more'}", stream="orders")
    counts = {row.store: row["count"] for row in frame.groupBy("store").count().collect()}
    assert counts == {str(orders): 5000, str(tmp_path / "more"): 7}


def test_a_thousand_streams_are_read_at_once(read: Read, tmp_path: Path) -> None:
    with Store.open(tmp_path / "data") as store, store.transaction():
        for number in range(1000):
            for seq in range(number % 5):
                store.stream(f"s:{number}").add({"n": str(number)}, id=(5, seq + 1))
    frame = read("stream string, n int", path=tmp_path / "data", match="s:*")
    found = frame.groupBy("stream").count().collect()
    assert {row.stream: row["count"] for row in found} == {
        f"s:{number}": number % 5 for number in range(1000) if number % 5
    }
    sums = frame.selectExpr("sum(n)").first()
    assert sums is not None
    assert sums[0] == sum(number * (number % 5) for number in range(1000))


def test_a_damaged_block_fails_the_job(read: Read, orders: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(orders, path, ignore=shutil.ignore_patterns(reader_snapshots.FOLDER))
    table = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 0xFF
    table.write_bytes(content)
    with pytest.raises(Exception, match="Corruption"):
        read("qty int", path=path, stream="orders").count()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "orders"}, "give either the option path"),
        ({"path": "/nowhere", "url": "redis://x", "stream": "s"}, "give either the option path"),
        ({"path": "/nowhere", "stream": "s"}, "there is no store in /nowhere"),
        ({"path": "redis://h", "stream": "s"}, r"in Spark the option .url"),
        ({"path": "hdfs://h/x", "stream": "s"}, r"hdfs://\.\.\. is a URL, not a path"),
        ({"url": "/nowhere", "stream": "s"}, "a directory is given as --store, or as a path"),
        ({"path": "/nowhere"}, r"give the option stream \(names\) or match"),
        (
            {"path": "/nowhere", "stream": "s", "start": "soon"},
            "'soon' .a bound is '-', '.', an ID such as '1700000000000-0', or a time",
        ),
    ],
)
def test_wrong_options_are_refused(read: Read, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        read(**options).count()


def test_a_table_of_spark_says_how_it_gets_its_options(
    spark: "SparkSession", read: Read, orders: Path
) -> None:
    spark.sql(f"CREATE TABLE orders USING kvstream OPTIONS (path '{orders}', stream 'orders')")
    try:
        with pytest.raises(Exception, match=r"Spark passes none of the options .* CREATE TABLE"):
            spark.sql("SELECT * FROM orders").count()
        named = f"WITH (path '{orders}', stream 'orders')"
        assert spark.sql(f"SELECT * FROM orders {named}").count() == 5000
    finally:
        spark.sql("DROP TABLE orders")
    spark.sql(
        f"CREATE TEMPORARY VIEW seen USING kvstream OPTIONS (path '{orders}', stream 'orders')"
    )
    assert spark.sql("SELECT * FROM seen").count() == 5000
    spark.catalog.dropTempView("seen")


def test_a_column_of_an_unsupported_type_is_refused(read: Read, orders: Path) -> None:
    with pytest.raises(Exception, match="the column id cannot be bigint; use struct"):
        read("id bigint", path=orders, stream="orders").count()
    with pytest.raises(Exception, match="read structures as string and apply from_json"):
        read("sku array<int>", path=orders, stream="orders").count()
