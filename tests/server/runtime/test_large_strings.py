"""GET of a large string: in pages, of one moment, and with little memory."""

import random

import pytest

from kvstream.layout.keys import stream_row
from kvstream.meta.strings import StringMeta
from kvstream.resp.replies import CHUNK
from kvstream.storage.batch import Batch, Family
from tests.server.runtime.test_reply_streaming import Reader, held
from tests.server.talking import Server, Talker

VALUE = random.Random(2).randbytes(3 << 20)


@pytest.fixture
def ann(server: Server) -> Talker:
    """A client that gets every reply at once, and has set a large string."""
    client = server.client()
    assert client.ask("SET", "large", VALUE) == b"+OK\r\n"
    return client


@pytest.fixture
def reader(server: Server) -> Reader:
    return Reader(server, 100)


def test_it_is_sent_in_pages_with_the_value_at_its_start(
    server: Server, ann: Talker, reader: Reader
) -> None:
    whole = ann.ask("GET", "large")
    assert whole == b"$%d\r\n%b\r\n" % (len(VALUE), VALUE)
    for word in ("GET", "PING"):
        reader.send(word, *["large"] * (word == "GET"))
    said = reader.page()
    assert len(said) < 2 * CHUNK + 100
    for words in (["SET", "large", VALUE[::-1]], ["APPEND", "large", "x"], ["FLUSHALL"]):
        assert not ann.ask(*words).startswith(b"-")
        said += reader.page()
    assert said + reader.rest() == whole + b"+PONG\r\n"
    assert held(server) == 0


def test_it_has_the_earlier_writes_of_the_same_turn(ann: Talker, reader: Reader) -> None:
    reader.send("APPEND", "large", "behind")
    reader.send("GET", "large")
    assert (reader.page() + reader.rest()).endswith(VALUE[-9:] + b"behind\r\n")


def test_in_a_transaction_it_is_read_in_one_step(ann: Talker, reader: Reader) -> None:
    for words in (["MULTI"], ["APPEND", "large", "x"], ["GET", "large"], ["EXEC"]):
        reader.send(*words)
    assert reader.rest().endswith(VALUE[-9:] + b"x\r\n")


def test_damage_in_the_middle_ends_the_connection(
    server: Server, ann: Talker, reader: Reader
) -> None:
    database = server.engine.database
    record = database.get(Family.METADATA, stream_row(b"\0\0large"))
    assert record is not None
    pieces = StringMeta.decode(b"\0\0large", record).pieces
    assert pieces is not None
    batch = Batch(database)
    batch.delete(Family.MESSAGES, pieces.row(20))
    database.write(batch)
    reader.send("GET", "large")
    assert 0 < len(reader.page() + reader.rest()) < len(VALUE) // 2
    assert reader.closed
    assert ann.ask("GET", "large").startswith(b"-ERR the string first named b'large' is")
    assert ann.ask("DEL", "large") == b":1\r\n"
    assert held(server) == 0
