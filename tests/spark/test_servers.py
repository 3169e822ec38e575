"""Reads by url: of a kvstream server and a real redis-server, with the results of the library."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream import Store
from kvstream.arrow.batches import PAGE_GROWTH, PAGE_MIN
from kvstream.spark.options import Place
from kvstream.spark.read.partitions import DataLoss, Piece, ReadSpec
from kvstream.spark.read.servers import Server, ServerReader, client_of
from kvstream.types.ids import MAX_ID, MIN_ID
from tests.replicas.servers import Node, replica_of, wait_equal
from tests.server.conftest import Served
from tests.spark.conftest import ROOT, Read, entries_of, fill, order, rows_of

redis = pytest.importorskip("redis")

PASSWORD = "open sesame"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A kvstream server with a password; its URL without it, and its directory."""
    path = tmp_path_factory.mktemp("served") / "data"
    with Store.open(path) as store:
        fill(store)
    words = [sys.executable, "-m", "kvstream", "serve", "--dir", str(path), "--port", "0"]
    with subprocess.Popen(
        [*words, "--requirepass", PASSWORD], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip().rpartition(":")[2]
        try:
            yield f"redis://127.0.0.1:{port}", path
        finally:
            server.terminate()


def test_a_server_returns_the_entries_of_its_store(read: Read, served: tuple[str, Path]) -> None:
    url, path = served
    by_url = rows_of(read(url=url, password=PASSWORD, stream="orders", partitions=3))
    assert len(by_url) == 5000
    assert by_url == rows_of(read(path=path, stream="orders"))  # the server owns the store
    ranged = {"start": "1700000000100-1", "end": "1700000000500"}
    assert rows_of(read(url=url, password=PASSWORD, stream="orders", **ranged)) == rows_of(
        read(path=path, stream="orders", **ranged)
    )


def test_a_replica_is_read_as_its_primary(read: Read, tmp_path: Path) -> None:
    primary = Node(tmp_path / "primary")
    try:
        for number in range(30):
            primary.client().xadd("orders", {"n": number})
        replica = replica_of(primary, tmp_path / "replica")
        try:
            wait_equal(primary, replica)
            frame = read(url=f"redis://127.0.0.1:{replica.port}", stream="orders", partitions=2)
            assert frame.count() == 30
        finally:
            replica.end()
    finally:
        primary.end()


def test_no_plan_contains_the_password(
    read: Read, served: tuple[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    url, _ = served
    frame = read(url=url.replace("//", f"//:{PASSWORD.replace(' ', '%20')}@"), match="sku:*")
    assert frame.count() == 10
    frame.explain(extended=True)
    errors = capfd.readouterr()
    assert "Scan" in errors.out
    assert "sesame" not in errors.out + errors.err
    with pytest.raises(Exception, match="right password") as refused:
        read(url=url, password="wrong", stream="orders").count()
    assert "sesame" not in str(refused.value)


@pytest.fixture(scope="module")
def filled(redis_port: int) -> Any:
    client = redis.Redis(port=redis_port)
    with client.pipeline(transaction=False) as pipeline:
        for number in range(5000):
            eid = f"{1_700_000_000_000 + number // 3}-{number % 3}"
            pipeline.xadd("orders", order(number), id=eid)
        pipeline.xadd("large", {"a": "x" * 5_000_000})
        pipeline.set("plain", "string")
        pipeline.xgroup_create("orders", "bill", id="0")
        pipeline.execute()
    client.xreadgroup("bill", "w1", {"orders": ">"}, count=3)
    return client


def test_a_real_redis_is_read(read: Read, redis_port: int, filled: Any, orders: Path) -> None:
    url = f"redis://127.0.0.1:{redis_port}"
    with Store.open(orders, read_only=True) as store:
        expected = entries_of(store, "orders")
    assert rows_of(read(url=url, stream="orders", partitions=3)) == expected
    frame = read("stream string, qty int", url=url, match="*r*")
    found = frame.groupBy("stream").agg({"qty": "sum", "stream": "count"}).collect()
    assert sorted((row.stream, row["count(stream)"], row["sum(qty)"]) for row in found) == [
        ("large", 1, None),
        ("orders", 5000, sum(range(5000))),
    ]


TABLES = {
    "groups": [("orders", "bill", 1, 3, "1700000000000-2", 3, 4997)],
    "consumers": [("orders", "bill", "w1", 3)],
    "pending": [("orders", "bill", f"1700000000000-{seq}", "w1", 1) for seq in range(3)],
}
COLUMNS = {
    "groups": [
        *("stream", "`group`", "consumers", "pending"),
        *("last_delivered_id", "entries_read", "lag"),
    ],
    "consumers": ["stream", "`group`", "consumer", "pending"],
    "pending": ["stream", "`group`", "id", "consumer", "deliveries"],
}


@pytest.mark.parametrize("table", TABLES)
def test_groups_and_pending_entries_are_tables(
    read: Read, redis_port: int, filled: Any, table: str, tmp_path: Path
) -> None:
    with Store.open(tmp_path / "data") as store:
        fill(store)
        store.stream("orders").create_group("bill", start="0").consumer("w1").read(count=3)
    places = ({"url": f"redis://127.0.0.1:{redis_port}"}, {"path": tmp_path / "data"})
    for place in places:
        frame = read(**place, table=table, stream="orders").select(*COLUMNS[table])
        assert sorted(map(tuple, frame.collect())) == TABLES[table]


@pytest.mark.parametrize("table", ["streams", *TABLES])
def test_a_table_of_a_missing_stream_or_of_another_key_is_refused(
    read: Read, redis_port: int, filled: Any, table: str
) -> None:
    url = f"redis://127.0.0.1:{redis_port}"
    with pytest.raises(Exception, match="there is no stream 'refunds' in"):
        read(url=url, table=table, stream="refunds").count()
    assert read(url=url, table=table, stream="refunds", ignoreMissing=True).count() == 0
    with pytest.raises(Exception, match="WrongType: 'plain' is a string, not a stream"):
        read(url=url, table=table, stream="plain").count()
    if table == "streams":
        assert read(url=url, table=table).count() == 2


def test_a_table_is_read_with_the_password_of_the_options(
    read: Read, served: tuple[str, Path]
) -> None:
    url, _ = served
    assert read(url=url, password=PASSWORD, table="streams", match="sku:*").count() == 10


def test_a_read_names_a_key_that_is_no_stream(
    read: Read, redis_port: int, filled: Any, tmp_path: Path
) -> None:
    with Store.open(tmp_path / "data") as store:
        store.bulk_append({}, mark=("plain", 1))
    for place in ({"url": f"redis://127.0.0.1:{redis_port}"}, {"path": tmp_path / "data"}):
        with pytest.raises(Exception, match="WrongType: 'plain' is a string, not a stream"):
            read(**place, stream="plain").count()


def test_streams_are_a_table(read: Read, orders: Path) -> None:
    frame = read(path=orders, table="streams")
    assert frame.count() == 11
    found = frame.filter("stream = 'orders'").first()
    assert found is not None
    assert found.asDict() == {
        "stream": "orders",
        "length": 5000,
        "entries_added": 5000,
        "first_id": "1700000000000-0",
        "last_id": "1700000001666-1",
        "max_deleted_id": "0-0",
        "nodes": found.nodes,
        "groups": 0,
    }


# --- trims under a read -------------------------------------------------------------------------


class Trimming:
    """A read whose stream is changed after a number of its pages."""

    def __init__(self, url: str, entries: int, fail_on_loss: bool = True) -> None:
        self.client = redis.Redis.from_url(url)
        self.client.delete("trimmed")
        with self.client.pipeline(transaction=False) as pipeline:
            for number in range(1, entries + 1):
                pipeline.xadd("trimmed", {"n": number}, id=f"{number}-0")
            pipeline.execute()
        place = Place("url", url)
        planning = ServerReader(client_of(place))
        self.pieces = planning.pieces([b"trimmed"], ReadSpec((b"trimmed",), ()), 1)
        planning.close()
        self.source = Server(place, fail_on_loss)

    def rows(self, pages: int, change: Callable[[], object]) -> int:
        """Return the number of entries read."""
        reading, seen = self.source.open(()), 0
        try:
            if not pages:
                change()
            for piece in self.pieces:
                for at, page in enumerate(reading.pages(piece), 1):
                    seen += len(page)
                    if at == pages:
                        change()
        finally:
            reading.close()
        return seen


@pytest.fixture(params=["kvstream", "redis"])
def trimmed_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "redis":
        yield f"redis://127.0.0.1:{request.getfixturevalue('redis_port')}"
        return
    server = Served(tmp_path / "store")
    try:
        yield f"redis://127.0.0.1:{server.port}"
    finally:
        server.stop()


PAGES = PAGE_MIN + PAGE_MIN * PAGE_GROWTH
"""Entries of the first two pages; the third is requested after the second has arrived."""


CHANGES: list[tuple[tuple[Any, ...], set[int]]] = [
    (("XTRIM", "trimmed", "MAXLEN", 500), {0, 1}),
    (("DEL", "trimmed"), {0, 1}),
    (("XTRIM", "trimmed", "MINID", 5), {0}),
    (("XDEL", "trimmed", f"{PAGES}-0", "2000-0"), set()),
]
"""The change of the stream, and the number of pages after which it loses something."""


@pytest.mark.parametrize("pages", [0, 1])
@pytest.mark.parametrize(("words", "losing"), CHANGES)
def test_entries_trimmed_before_they_are_read_fail_the_read(
    trimmed_url: str, words: tuple[Any, ...], losing: set[int], pages: int
) -> None:
    read = Trimming(trimmed_url, 3000)
    if pages in losing:
        with pytest.raises(DataLoss, match="were trimmed before they were read"):
            read.rows(pages, lambda: read.client.execute_command(*words))
    else:
        assert read.rows(pages, lambda: read.client.execute_command(*words)) >= 2998
    read.client.close()


@pytest.mark.parametrize(("abandons", "connections"), [(False, 1), (True, 21)])
def test_pieces_are_read_over_one_connection_unless_a_reply_is_left(
    trimmed_url: str, abandons: bool, connections: int
) -> None:
    client = redis.Redis.from_url(trimmed_url)
    for number in range(20):
        client.delete(f"short:{number}")
        client.xadd(f"short:{number}", {"n": number})
    read = Trimming(trimmed_url, 3000)
    reader = read.source.open(())
    piece = read.pieces[0]
    before = client.info("stats")["total_connections_received"]
    for number in range(20):
        if abandons:
            next(reader.pages(piece))  # a second page is on its way
        short = Piece(b"short:%d" % number, MIN_ID, MAX_ID, 1)
        (page,) = reader.pages(short)
        assert len(page) == 1
    assert client.info("stats")["total_connections_received"] - before == connections
    reader.close()
    read.client.close()
    client.close()


def test_trimmed_entries_are_skipped_if_losses_are_allowed(trimmed_url: str) -> None:
    read = Trimming(trimmed_url, 3000, fail_on_loss=False)
    assert read.rows(0, lambda: read.client.xtrim("trimmed", maxlen=500)) == 500
    assert read.rows(1, lambda: None) == 500
    read.client.close()


def test_a_batch_read_fails_if_its_stream_is_trimmed(read: Read, trimmed_url: str) -> None:
    made = Trimming(trimmed_url, 3000)
    frame, careless = (
        read("id string", url=trimmed_url, stream="trimmed", failOnDataLoss=fails)
        for fails in (True, False)
    )
    assert frame.count() == careless.count() == 3000
    made.client.xtrim("trimmed", maxlen=500)
    with pytest.raises(Exception, match="trimmed before they were read"):
        frame.count()
    assert careless.count() == 500
    made.client.close()
