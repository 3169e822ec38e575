"""Entries: add, range, revrange, len, del, trim."""

import warnings

import pytest

from kvstream import Store
from kvstream.types.records import RepeatedFields
from tests.cli.program import FIRST, Program
from tests.opening import Stores

pytestmark = pytest.mark.places("store", "server", "redis")

SECOND = "1700000001000-0"
LAST = "1700000004000-0"


def ids(rows: list[dict[str, str]]) -> list[str]:
    return [row["id"] for row in rows]


def test_add_creates_the_store_and_the_stream_and_shows_the_id(kvstream: Program) -> None:
    (shown,) = kvstream.lines("add", "orders", "sku=a1", "note=a=b")
    assert kvstream.json("range", "orders") == [
        {"id": shown, "fields": {"sku": "a1", "note": "a=b"}}
    ]


@pytest.mark.places("store")
def test_add_accepts_repeated_and_binary_fields(kvstream: Program) -> None:
    kvstream("add", "s", "a=1", "a=2", "b=\udcff", "--id", "1-1")
    with Store.open(kvstream.directory) as store:
        (entry,) = store.stream("s").range()
    assert type(entry.fields) is RepeatedFields
    assert entry.pairs == ((b"a", b"1"), (b"a", b"2"), (b"b", b"\xff"))


def test_add_accepts_fields_as_json(kvstream: Program) -> None:
    kvstream("add", "s", "--fields", '{"a": {"base64": "/w=="}, "n": 1.50}', "--id", "1-1")
    assert kvstream.json("range", "s") == [
        {"id": "1-1", "fields": {"a": {"base64": "/w=="}, "n": "1.50"}}
    ]
    assert "--fields" in kvstream("add", "s", "--fields", "{", code=2).stderr


def test_add_accepts_ids_like_redis(kvstream: Program) -> None:
    assert kvstream.one("add", "s", "a=1", "--id", "5-3") == {"id": "5-3"}
    assert kvstream.one("add", "s", "a=1", "--id", "5-*") == {"id": "5-4"}
    refused = kvstream("add", "s", "a=1", "--id", "5-4", code=1).stderr
    assert "equal or smaller" in refused
    assert "the last ID of stream 's' is 5-4; give a greater one" in refused
    assert "is not an ID" in kvstream("add", "s", "a=1", "--id", "x", code=2).stderr


def test_add_trims_in_the_same_commit(orders: Program) -> None:
    orders("add", "orders", "sku=new", "--maxlen", "2")
    assert orders.one("len", "orders") == {"length": 2}
    assert orders("add", "orders", "a=1", "--maxlen", "2", "--minid", "5", code=2).stderr


@pytest.mark.places("store", "server")
def test_add_repeats_nothing_for_a_producer(kvstream: Program) -> None:
    first = kvstream.one("add", "s", "a=1", "--idmp", "shop", "order-1")
    assert kvstream.one("add", "s", "a=1", "--idmp", "shop", "order-1") == first
    automatic = kvstream.one("add", "s", "a=1", "--idmpauto", "till")
    assert kvstream.one("add", "s", "a=1", "--idmpauto", "till") == automatic
    both = ("--idmp", "shop", "order-1", "--idmpauto", "till")
    assert "specified multiple times" in kvstream("add", "s", "a=1", *both, code=2).stderr
    assert kvstream.one("len", "s") == {"length": 2}


def test_add_with_nomkstream_exits_with_1_without_a_stream(orders: Program) -> None:
    assert orders("add", "new", "a=1", "--nomkstream", code=1).stdout == ""
    assert orders.one("add", "orders", "a=1", "--nomkstream")["id"]


def test_add_needs_a_field(kvstream: Program) -> None:
    assert "at least one FIELD=VALUE" in kvstream("add", "s", code=2).stderr
    assert "not FIELD=VALUE" in kvstream("add", "s", "plain", code=2).stderr


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ([], 5),
        (["-", "+"], 5),
        ([f"({FIRST}", f"({LAST}"], 3),
        ([SECOND, SECOND], 1),
        (["2023-11-14T22:13:21", "2023-11-14T22:13:22Z"], 2),
        (["now-1h"], 0),
        (["-", "+", "--count", "2"], 2),
        (["-", "+", "--count", "9" * 30], 5),
    ],
)
def test_range_accepts_ids_and_times(orders: Program, bounds: list[str], found: int) -> None:
    rows = orders.json("range", "orders", *bounds)
    assert len(rows) == found
    assert ids(rows) == sorted(ids(rows))


def test_revrange_goes_backwards(orders: Program) -> None:
    rows = orders.json("revrange", "orders")
    assert ids(rows) == sorted(ids(rows), reverse=True)
    assert len(rows) == 5
    assert ids(orders.json("revrange", "orders", "-n", "1")) == [LAST]
    assert ids(orders.json("revrange", "orders", SECOND, f"({FIRST}")) == [SECOND]


@pytest.mark.places("store")
def test_long_streams_are_shown_completely_with_one_title(
    kvstream: Program, open_store: Stores
) -> None:
    with open_store(kvstream.directory) as store:
        store.stream("s").add_many([{"n": str(at)} for at in range(2500)])
    lines = kvstream.lines("range", "s")
    assert len(lines) == 2501
    assert [line.split()[-1] for line in lines[1:]] == [f"n={at}" for at in range(2500)]
    assert [line.split()[-1] for line in kvstream.lines("revrange", "s")[1:]] == [
        f"n={at}" for at in reversed(range(2500))
    ]


def test_a_terminal_shows_the_time_beside_the_id(orders: Program) -> None:
    assert orders.lines("range", "orders", "-n", "1") == [
        "id                  time                      fields",
        f"{FIRST}     2023-11-14 22:13:20.000Z  sku=a0  qty=0",
    ]


def test_values_are_cut_on_request(kvstream: Program) -> None:
    kvstream("add", "s", "text=" + "x" * 100)
    assert "text=xxxx…" in kvstream.lines("range", "s", "--max-width", "5")[1]
    assert "x" * 100 in kvstream.lines("range", "s", "--max-width", "0")[1]
    assert "x" * 100 in kvstream.lines("range", "s")[1]
    assert kvstream.json("range", "s", "--max-width", "5")[0]["fields"]["text"] == "x" * 100


def test_an_empty_result_is_no_error(orders: Program) -> None:
    assert orders.lines("range", "orders", "1-0", "2-0") == []


def test_len_counts(orders: Program) -> None:
    assert orders.lines("len", "orders") == ["5"]


def test_del_deletes_and_exits_with_1_if_there_was_nothing(orders: Program) -> None:
    assert orders.one("del", "orders", FIRST, SECOND, "9-9") == {"deleted": 2}
    assert orders.lines("del", "orders", FIRST, code=1) == ["0 entries deleted"]
    assert "is not an ID" in orders("del", "orders", "x", code=2).stderr


def test_del_reads_ids_from_stdin(orders: Program) -> None:
    assert orders.one("del", "orders", "-", input=f"{FIRST}\n\n{SECOND}\n") == {"deleted": 2}


@pytest.mark.places("store", "server")
def test_del_with_a_policy_shows_the_result_for_each_id(orders: Program) -> None:
    rows = orders.json("del", "orders", FIRST, "9-9", "--ref-policy", "acked", code=1)
    assert rows == [{"id": FIRST, "outcome": "kept"}, {"id": "9-9", "outcome": "missing"}]
    lines = orders.lines("del", "orders", FIRST, "--ref-policy", "DELREF")
    assert lines[1].endswith("deleted")
    assert orders.one("pending", "orders", "billing")["pending"] == 1


def test_trim_keeps_the_last_entries_or_those_not_older(orders: Program) -> None:
    assert orders.one("trim", "orders", "--minid", "2023-11-14T22:13:22Z") == {"trimmed": 2}
    assert orders.lines("trim", "orders", "--maxlen", "1") == ["2 entries removed"]
    assert ids(orders.json("range", "orders")) == [LAST]
    assert orders.one("trim", "orders", "--maxlen", "1", "-a") == {"trimmed": 0}
    assert "--maxlen N or --minid" in orders("trim", "orders", code=2).stderr


def test_binary_names_are_shown_without_a_crash(orders: Program) -> None:
    orders("add", "na\udcffme\x1b[31m", "a=1")
    assert r"na\xffme\x1b[31m" in orders("ls").stdout
    assert {"base64": "bmH/bWUbWzMxbQ=="} in [row["stream"] for row in orders.json("ls")]
    assert r"'no\xff'" in orders("len", "no\udcff", code=1).stderr


@pytest.mark.places("store", "server", "redis")
def test_get_shows_entries_by_id(orders: Program) -> None:
    entry = {"id": FIRST, "fields": {"sku": "a0", "qty": "0"}}
    assert orders.json("get", "orders", FIRST) == [entry]
    partly = orders("get", "orders", "1-1", "-", input=f"{FIRST}\n", code=1)
    assert partly.stderr == "not found: 1-1\n"
    shown = partly.stdout
    assert FIRST in shown
    assert "1-1 " not in shown
    assert "no stream" in orders("get", "missing", FIRST, code=1).stderr


@pytest.mark.places("store", "server", "redis")
def test_entries_are_found_by_field_and_time(orders: Program) -> None:
    def found(*words: str, code: int = 0) -> list[str]:
        return [each["fields"]["sku"] for each in orders.json("find", "orders", *words, code=code)]

    assert found("sku=a1") == ["a1"]
    assert found("sku=a[13]") == ["a1", "a3"]
    assert found("sku=a*", "qty!=2") == ["a0", "a1", "a3", "a4"]
    assert found("sku=a*", "--reverse", "-n", "2") == ["a4", "a3"]
    assert found("qty", "nosuch!=x", "--start", "2023-11-14T22:13:22") == ["a2", "a3", "a4"]
    assert found("--start", "1700000001000", "--end", "(1700000003000-0") == ["a1", "a2"]
    assert found("-n", "2") == ["a0", "a1"]
    assert found("qty=[0-9]", "--start", "2023-11-14T22:13:23", "--reverse") == ["a4", "a3"]
    assert found("sku=A1", code=1) == []
    assert found("sku=a1", "qty=2", code=1) == []
    assert found("nosuch", code=1) == []
    assert "no stream 'nosuch'" in orders("find", "nosuch", "f=v", code=1).stderr
    assert "'=x' is not FIELD=PATTERN" in orders("find", "orders", "=x", code=2).stderr
    assert "'!=x' is not FIELD=PATTERN" in orders("find", "orders", "!=x", code=2).stderr


def test_found_entries_are_shown_while_others_are_read(orders: Program) -> None:
    """A literal special character of patterns is found, and titles are printed once."""
    rows = "".join(f'{{"n": "{number}", "s": "a*b"}}\n' for number in range(2500))
    orders("import", "many", "-", input=rows)
    lines = orders.lines("find", "many", r"s=a\*b")
    assert len(lines) == 2501
    assert [line for line in lines if line.startswith("id ")] == lines[:1]
    assert orders.lines("find", "many", "n=2400")[1].endswith("n=2400  s=a*b")
    assert len(orders.lines("find", "many", "s", "-n", "1500")) == 1501


@pytest.mark.parametrize(
    "words",
    [("range", "orders", "1700000000"), ("trim", "orders", "--minid", "1700000000")],
)
def test_a_bound_in_seconds_is_warned_of_once(orders: Program, words: tuple[str, ...]) -> None:
    hint = "Warning: the bound 1700000000 is 1970-01-20 16:13 in milliseconds: for Unix seconds"
    with warnings.catch_warnings(record=True, action="always") as others:
        shown = orders(*words).stderr
    assert (shown.count(hint), others) == (1, [])


@pytest.mark.places("store", "server", "redis")
def test_entries_of_a_time_are_counted(orders: Program) -> None:
    assert orders.lines("count", "orders") == ["5"]
    assert orders.one("count", "orders", "--start", "1700000003000") == {"count": 2}
    span = ("--start", "2023-11-14T22:13:21", "--end", "(1700000003000-0")
    assert orders.one("len", "orders", *span) == {"length": 2}
    assert orders.lines("count", "orders", "--start", "last hour") == ["0"]
    assert orders.lines("count", "orders", "--end", "yesterday") == ["5"]
    assert orders("count", "nothing", "--end", "now", code=1).stderr.startswith("Error: there is")


def test_the_bounds_of_a_range_may_be_options(orders: Program) -> None:
    whole = ids(orders.json("range", "orders"))
    assert ids(orders.json("range", "orders", "--start", SECOND)) == whole[1:]
    assert ids(orders.json("range", "orders", "--end", SECOND)) == whole[:2]
    assert ids(orders.json("range", "orders", SECOND, "--end", "2 days ago")) == whole[1:]
    assert ids(orders.json("revrange", "orders", "--end", SECOND)) == whole[1::-1]
    assert ids(orders.json("revrange", "orders", "+", "--start", SECOND)) == whole[:0:-1]
    for command, argument in (("range", "START"), ("revrange", "END")):
        option = f"--{argument.lower()}"
        said = orders(command, "orders", SECOND, option, SECOND, code=2).stderr
        assert f"give either {argument} or {option}, not both" in said


def test_the_times_of_imported_rows_are_no_words(kvstream: Program) -> None:
    rows = '{"at": "yesterday"}\n'
    said = kvstream("import", "s", "--time-column", "at", input=rows, code=1).stderr
    assert "'yesterday' is not a time" in said
