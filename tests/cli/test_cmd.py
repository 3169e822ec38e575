"""``cmd``: commands of Redis on a directory and on servers."""

import json

import pytest

import kvstream as library
from kvstream import Store
from kvstream.cli.requests.command import reply_lines
from tests.cli.program import Program

everywhere = pytest.mark.places("store", "server", "redis")


@everywhere
def test_a_command_runs_in_every_place(orders: Program) -> None:
    assert orders.lines("cmd", "XLEN", "orders") == ["(integer) 5"]
    assert orders.lines("cmd", "xrange", "orders", "-", "+", "COUNT", "1") == [
        "1) 1) 1700000000000-0",
        "   2) 1) sku",
        "      2) a0",
        "      3) qty",
        "      4) 0",
    ]
    words = ("XAUTOCLAIM", "orders", "billing", "w", "0", "0")
    claimed = json.loads(orders("cmd", "--json", *words).stdout)
    assert [eid for eid, _ in claimed["reply"][1]] == ["1700000000000-0", "1700000001000-0"]
    assert orders.lines("cmd", "GET", "nothing") == ["(nil)"]
    assert orders.lines("cmd", "SET", "text", "--json") == ["OK"]
    assert orders.lines("cmd", "GET", "text") == ["--json"]


@everywhere
def test_an_error_reply_is_an_error(orders: Program) -> None:
    said = orders("cmd", "XLEN", code=1).stderr
    assert said == "Error: wrong number of arguments for 'xlen' command\n"
    assert "unknown command" in orders("cmd", "NOPE", code=1).stderr


def test_a_command_that_only_reads_changes_no_file(orders: Program) -> None:
    with Store.open(orders.directory, read_only=True):  # another reader
        assert orders.lines("cmd", "XLEN", "orders") == ["(integer) 5"]
    with Store.open(orders.directory):
        assert "store is" in orders("cmd", "XLEN", "orders", code=3).stderr


def test_only_a_command_that_adds_creates_a_store(kvstream: Program) -> None:
    for words in (("XLEN", "s"), ("DEL", "s"), ("NOPE",)):
        kvstream("cmd", *words, code=5)
        assert not kvstream.directory.exists()
    kvstream("cmd", "XADD", "s", "1-1", "a", "1")
    assert kvstream.lines("len", "s") == ["1"]


def test_databases_are_those_of_the_options(orders: Program) -> None:
    orders("--db", "3", "cmd", "XADD", "other", "1-1", "a", "1")
    assert orders.lines("--db", "3", "ls", "--names") == ["other"]
    assert orders.lines("cmd", "--db", "3", "XLEN", "other") == ["(integer) 1"]


def test_the_process_that_shares_a_directory_runs_the_command(orders: Program) -> None:
    with library.open(orders.directory, shared=True) as store:
        store.stream("orders").add({"sku": "x"})
        assert orders.lines("cmd", "XLEN", "orders") == ["(integer) 6"]


@pytest.mark.parametrize(
    ("reply", "lines"),
    [
        ([], ["(empty array)"]),
        ([[], None, True], ["1) (empty array)", "2) (nil)", "3) (true)"]),
        ({b"a": [1]}, ["1) a", "2) 1) (integer) 1"]),
        (b"two\nlines\x1b", ["two", r"lines\x1b"]),
        ([b"two\nlines"], [r"1) two\nlines"]),
        (1.5, ["1.5"]),
        ([ValueError("bad")], ["1) (error) bad"]),
        ([*range(10)], [f"{at + 1:2}) (integer) {at}" for at in range(10)]),
    ],
)
def test_a_reply_is_shown_as_by_redis_cli(reply: object, lines: list[str]) -> None:
    assert list(reply_lines(reply)) == lines


def test_an_id_that_is_too_small_names_the_stream_and_its_last_id(orders: Program) -> None:
    said = orders("cmd", "XADD", "orders", "0-1", "a", "1", code=1).stderr
    last = orders.one("info", "orders")["last_generated_id"]
    assert f"the last ID of stream 'orders' is {last}" in said
    assert "STREAM" not in said


@everywhere
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("SUBSCRIBE x", "kvstream monitor shows"),
        ("psubscribe x", "redis-cli"),
        ("UNSUBSCRIBE", "redis-cli"),
        ("MONITOR", "use kvstream monitor"),
        ("MULTI", "transaction()"),
        ("WATCH a", "transaction()"),
        ("RESET", "end with the connection"),
        ("QUIT", "end with the connection"),
        ("HELLO 3", "cmd INFO server"),
        ("client reply off", "does not run CLIENT REPLY"),
        ("SELECT 1", "give --db N"),
    ],
)
def test_a_command_of_more_than_one_reply_is_refused(
    orders: Program, words: str, said: str
) -> None:
    assert said in orders("cmd", *words.split(), code=2).stderr
