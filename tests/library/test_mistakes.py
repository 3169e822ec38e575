"""Messages for common mistakes: the field or argument, the value, and the next step."""

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import redis

import kvstream
from kvstream import (
    Consumer,
    Group,
    KVStreamError,
    ManualClock,
    Queue,
    Store,
    StoreError,
    Stream,
    WrongType,
)

Call = Callable[[Any], object]


@pytest.fixture
def orders(store: Store) -> Stream:
    """The stream "orders" of one entry, with the group "workers"."""
    stream = store.stream("orders")
    stream.add({"i": "1"})
    stream.create_group("workers", "0")
    return stream


def group_of(orders: Stream) -> Group:
    return orders.group("workers")


def worker_of(orders: Stream) -> Consumer:
    return group_of(orders).consumer("w")


def other_of(orders: Stream, name: str) -> Stream:
    return Store(orders._engine).stream(name)


ERRORS: dict[str, tuple[Call, str]] = {
    "an ID that is not above the last one": (
        lambda s: s.add({"a": "1"}, id="5-0"),
        "The ID specified in XADD is equal or smaller than the target stream top item: the last "
        "ID of stream 'orders' is 1700000000000-0; give a greater one, or '*'",
    ),
    "IDs of many entries that do not ascend": (
        lambda s: s.add_many([{"a": "1"}, {"a": "2"}], ids=["*", "5-0"]),
        "The ID specified in XADD is equal or smaller than the target stream top item: the last "
        "ID of stream 'orders' is 1700000000000-0; give a greater one, or '*'",
    ),
    "a last ID below the last entry": (
        lambda s: s.set_id("5-0"),
        "The ID specified in XSETID is smaller than the target stream top item: 5-0: the last ID "
        "of stream 'orders' is 1700000000000-0",
    ),
    "a rename of no key": (
        lambda s: Store(s._engine).rename("order", "new"),
        "no such key: there is no key 'order': did you mean 'orders'?",
    ),
    "a copy of no key": (
        lambda s: Store(s._engine).copy("order", "new"),
        "no such key: there is no key 'order': did you mean 'orders'?",
    ),
    "a group of no stream": (
        lambda s: other_of(s, "order").create_group("g", mkstream=False),
        "The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
        "the MKSTREAM option to create an empty stream automatically: there is no stream 'order'",
    ),
    "a limit of an exact trim": (
        lambda s: s.trim(maxlen=5, limit=3),
        "syntax error, LIMIT cannot be used without the special ~ option: in the library, "
        "approximate=True",
    ),
    "two bounds of a trim": (
        lambda s: s.trim(maxlen=5, minid=3),
        "syntax error, MAXLEN and MINID options at the same time are not compatible: give maxlen "
        "or minid, not both",
    ),
    "a policy without a trim": (
        lambda s: s.add({"a": 1}, ref_policy="KEEP"),
        "a policy is one of KEEPREF, DELREF or ACKED: 'KEEP': did you mean 'KEEPREF'?",
    ),
    "the sign of a consumer's read": (
        lambda s: s.read(">"),
        "The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> "
        "option: in the library, read as group.consumer(name).read() does",
    ),
    "a page of nothing": (
        lambda s: s.scan(page=0),
        "a page must be at least 1 entry, not 0",
    ),
    "an option with another name": (
        lambda s: Store.open("x", decoded=True),  # type: ignore[call-overload]
        "no such option: decoded: did you mean 'decode'?",
    ),
    "an option of redis-py": (
        lambda s: kvstream.open("redis://localhost:1", decode_responses=True),  # type: ignore[call-overload]
        "no such option: decode_responses: did you mean 'decode'?",
    ),
    "an address in options": (
        lambda s: kvstream.open("localhost", port=6379),  # type: ignore[call-overload]
        "no such option: port: a server is named by its URL, such as "
        "'redis://user:password@localhost:6379/0'",
    ),
    "an option of another call": (
        lambda s: Store.open("x", shared=True),  # type: ignore[call-overload]
        "no such option: shared: kvstream.open has it, and opens a directory for many processes",
    ),
    "None in one of four fields": (
        lambda s: s.add({"a": "1", "b": "2", "c": None, "d": "4"}),
        "the value of field 'c' cannot be None: leave it out, or give \"\"",
    ),
    "None in one of many entries": (
        lambda s: s.add_many([{"a": "1"}, {"b": None}]),
        "entry 1: the value of field 'b' cannot be None: leave it out, or give \"\"",
    ),
    "a UUID": (
        lambda s: s.add({"id": UUID(int=1)}),
        "the value of field 'id' cannot be UUID('00000000-0000-0000-0000-000000000001'), a UUID: "
        "give str(value) or value.bytes",
    ),
    "a Decimal": (
        lambda s: s.add({"price": Decimal("1.5")}),
        "the value of field 'price' cannot be Decimal('1.5'), a Decimal: give str(value)",
    ),
    "a datetime": (
        lambda s: s.add({"at": datetime(2026, 1, 31, tzinfo=UTC)}),
        "the value of field 'at' cannot be datetime.datetime(2026, 1, 31, 0, 0, "
        "tzinfo=datetime.timezon..., a datetime: give value.isoformat()",
    ),
    "a bool": (
        lambda s: s.add({"done": True}),
        "the value of field 'done' cannot be True, a bool: give int(value) or str(value)",
    ),
    "a dict": (
        lambda s: s.add({"order": {"sku": "a"}}),
        "the value of field 'order' cannot be {'sku': 'a'}, a dict: give json.dumps(value)",
    ),
    "fields that are text": (
        lambda s: s.add("paid"),
        "fields are a mapping or (field, value) pairs, not 'paid'",
    ),
    "a group without a name": (
        lambda s: s.group(None),
        "the group is None: give its name as str or bytes",
    ),
    "a consumer without a name": (
        lambda s: group_of(s).consumer(None),  # type: ignore[arg-type]
        "the consumer is None: give its name as str or bytes",
    ),
    "a stream without a name": (
        lambda s: other_of(s, None),  # type: ignore[arg-type]
        "the key is None: give its name as str or bytes",
    ),
    "a float of seconds as a bound": (
        lambda s: s.range(1_700_000_000.5),
        "Invalid stream ID specified as stream command argument: 1700000000.5 (a float; give int "
        "milliseconds, or datetime.fromtimestamp(seconds, UTC))",
    ),
    "a bound that is no time": (
        lambda s: s.range("tomorrow"),
        "Invalid stream ID specified as stream command argument: 'tomorrow' (a bound is '-', '+', "
        "an ID such as '1700000000000-0', or a time: a datetime, date or timedelta, "
        "'2026-01-31T12:00' (UTC), 'now-15m', '1h ago' or 'yesterday')",
    ),
    "None as a bound": (
        lambda s: s.range("now-15m", None),
        "Invalid stream ID specified as stream command argument: None (a bound is '-', '+', "
        "an ID such as '1700000000000-0', or a time: a datetime, date or timedelta, "
        "'2026-01-31T12:00' (UTC), 'now-15m', '1h ago' or 'yesterday')",
    ),
    "a bound that has no signs": (
        lambda s: s.trim(minid="-"),
        "Invalid stream ID specified as stream command argument: '-' (give an ID such as "
        "'1700000000000-0', or a time: a datetime, date or timedelta, '2026-01-31T12:00' (UTC), "
        "'now-15m', '1h ago' or 'yesterday')",
    ),
    "no start of a read": (
        lambda s: s.read("-"),
        "Invalid stream ID specified as stream command argument: '-' (give '$', '+', an ID such "
        "as '1700000000000-0', or a time: a datetime, date or timedelta, '2026-01-31T12:00' (UTC), "
        "'now-15m', '1h ago' or 'yesterday')",
    ),
    "a time where there must be an ID": (
        lambda s: s.get("now-15m"),
        "Invalid stream ID specified as stream command argument: 'now-15m' (an ID is 'ms-seq', an "
        "int of milliseconds or a datetime)",
    ),
    "a time span where there must be an ID": (
        lambda s: s.get(timedelta(minutes=15)),
        "Invalid stream ID specified as stream command argument: datetime.timedelta(seconds=900) "
        "(a time span, which only the bounds of ranges may be; give an ID or a datetime)",
    ),
    "block=-1": (
        lambda s: worker_of(s).read(block=-1),
        "block is negative: -1; give seconds, 0 to wait for ever, or None not to wait",
    ),
    "block is text": (
        lambda s: s.read(block="5"),
        "block is not a number of seconds: '5'",
    ),
    "listen(count=0)": (
        lambda s: worker_of(s).listen(count=0),
        "count must be at least 1, not 0",
    ),
    "a read of a wrong stream": (
        lambda s: other_of(s, "order").group("workers").consumer("w").read(),
        "No such key 'order' or consumer group 'workers' in XREADGROUP with GROUP option: "
        "there is no stream 'order': did you mean 'orders'?",
    ),
    "the counters of a wrong stream": (
        lambda s: other_of(s, "order").info(),
        "no such key: there is no stream 'order': did you mean 'orders'?",
    ),
    "a claim for a wrong group": (
        lambda s: s.group("worker").consumer("w").claim("1-1", min_idle=0),
        "No such key 'orders' or consumer group 'worker': "
        "stream 'orders' has no group 'worker': did you mean 'workers'?",
    ),
    "the pending entries of a group of a wrong stream": (
        lambda s: other_of(s, "order").group("workers").pending(),
        "No such key 'order' or consumer group 'workers': "
        "there is no stream 'order': did you mean 'orders'?",
    ),
    "a blocking read of a wrong group": (
        lambda s: s.group("worker").consumer("w").read(block=5),
        "No such key 'orders' or consumer group 'worker' in XREADGROUP with GROUP option: "
        "stream 'orders' has no group 'worker': did you mean 'workers'?",
    ),
    "a read of no group": (
        lambda s: s.group("billing").consumer("w").history(),
        "No such key 'orders' or consumer group 'billing' in XREADGROUP with GROUP option: "
        "stream 'orders' has no group 'billing': create_group creates it",
    ),
    'mode="fail"': (
        lambda s: group_of(s).nack("1-0", mode="fail"),  # type: ignore[arg-type]
        "mode must be SILENT, FAIL, or FATAL: 'fail': did you mean 'FAIL'?",
    ),
    "a policy of lower case": (
        lambda s: s.delete_entries("1-0", ref_policy="acked"),
        "a policy is one of KEEPREF, DELREF or ACKED: 'acked': did you mean 'ACKED'?",
    ),
    "a second create_group": (
        lambda s: s.create_group("workers"),
        "Consumer Group name already exists: group 'workers' of stream 'orders'; exist_ok=True "
        "returns it as it is",
    ),
    "a field by text": (
        lambda s: s.range()[0].fields["i"],
        "\"no field 'i': names and values are bytes here; use b'i', or open the store with "
        'decode=True"',
    ),
    "an unknown option": (
        lambda s: Store.open("nowhere", durabilty="always"),  # type: ignore[call-overload]
        "no such option: durabilty: did you mean 'durability'?",
    ),
    "a durability of upper case": (
        lambda s: Store.open("nowhere", durability="ALWAYS"),  # type: ignore[call-overload]
        "durability must be one of always, everysec, archive, no, not 'ALWAYS'",
    ),
}
"""The errors of mistakes that raise."""


@pytest.mark.parametrize(("call", "message"), ERRORS.values(), ids=ERRORS)
def test_an_error_has_the_problem_and_the_solution(
    orders: Stream, call: Call, message: str
) -> None:
    with pytest.raises((KVStreamError, KeyError)) as refused:
        call(orders)
    assert str(refused.value) == message


def test_the_texts_of_the_wire_stay_those_of_redis(orders: Stream) -> None:
    """Only Python shows the details."""
    for call, reply in (
        (
            lambda: orders.add({"a": 1}, id="5-0"),
            "ERR The ID specified in XADD is equal or smaller than the target stream top item",
        ),
        (lambda: other_of(orders, "none").info(), "ERR no such key"),
        (lambda: Store(orders._engine).rename("none", "a"), "ERR no such key"),
        (lambda: orders.trim(maxlen=-1), "ERR The MAXLEN argument must be >= 0."),
    ):
        with pytest.raises(KVStreamError) as refused:
            call()
        assert refused.value.reply == reply
        assert refused.value.detail


def test_a_string_that_is_no_stream_is_named(store: Store) -> None:
    with kvstream.connect(store) as client:
        client.set("text", "a")
        with pytest.raises(WrongType, match="wrong kind of value: 'text' is a string, not a str"):
            store.stream("text").range()
        store.stream("s").add({"a": 1})
        with pytest.raises(redis.ResponseError) as refused:
            client.get("s")
    assert str(refused.value).endswith("holding the wrong kind of value")


@pytest.mark.parametrize("option", ["decode_response", "durabilty"])
def test_an_unknown_option_of_connect_is_answered_with_the_nearest(
    tmp_path: Path, option: str
) -> None:
    nearest = {"decode_response": "decode_responses", "durabilty": "durability"}[option]
    with pytest.raises(TypeError, match=f"^no such option: {option}: did you mean '{nearest}'"):
        kvstream.connect(tmp_path / "store", **{option: True})


def test_a_checkpoint_says_what_has_its_place(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    store.checkpoint(tmp_path / "copy")
    for name, what in {
        "file": "a file",
        "empty": "an empty folder",
        "full": "a folder that holds 'sub'",
        "link": "a symbolic link",
        "copy": "a store",
    }.items():
        text = f"{tmp_path / name} exists: it is {what}; give a path that is free"
        with pytest.raises(StoreError, match=f"^{re.escape(text)}$"):
            store.checkpoint(tmp_path / name)
    with pytest.raises(StoreError, match=f"No such file.*: there is no folder {tmp_path}/no$"):
        store.checkpoint(tmp_path / "no" / "such")


@pytest.mark.parametrize("stop", [True, "SIGTERM", 5], ids=repr)
def test_listen_refuses_a_stop_that_is_no_event(orders: Stream, stop: Any) -> None:
    for reader in (worker_of(orders), Queue(Store(orders._engine), "mails")):
        with pytest.raises(TypeError) as refused:
            reader.listen(stop=stop)
        assert str(refused.value) == (
            "stop is a threading.Event, an asyncio.Event, or the event of stop_on_signals(), not "
            f"{stop!r}"
        )


def in_transaction(orders: Stream) -> object:
    with Store(orders._engine).transaction():
        return orders.read(block=5)


WARNINGS: dict[str, tuple[Call, object, str]] = {
    "block in milliseconds": (
        lambda s: s.read("0", block=5000)[0].fields,
        {b"i": b"1"},
        "block=5000 waits for 83 minutes: it is in seconds, while redis-py's is in milliseconds; "
        "block=0 waits for ever",
    ),
    "read(count=0)": (
        lambda s: worker_of(s).read(count=0),
        [],
        "count=0 reads nothing: leave count out to read without a limit",
    ),
    "block in a transaction": (
        in_transaction,
        [],
        "block does not wait inside transaction(), where nothing can arrive: read before it",
    ),
    "an ack of a wrong group": (
        lambda s: s.group("worker").ack("1-0"),
        0,
        "ack acknowledged nothing: stream 'orders' has no group 'worker': did you mean 'workers'?",
    ),
    "an ack of a wrong stream": (
        lambda s: other_of(s, "order").group("workers").ack("1-0"),
        0,
        "ack acknowledged nothing: there is no stream 'order': did you mean 'orders'?",
    ),
    "a bound in seconds": (
        lambda s: len(s.range(1_700_000_000)),
        1,
        "the bound 1700000000 is 1970-01-20 16:13 in milliseconds: for Unix seconds give "
        "1700000000000, or '1700000000-0' if it is an ID",
    ),
    "a read after seconds": (
        lambda s: len(s.read(1_700_000_000)),
        1,
        "the bound 1700000000 is 1970-01-20 16:13 in milliseconds: for Unix seconds give "
        "1700000000000, or '1700000000-0' if it is an ID",
    ),
}
"""The warnings of mistakes that Redis's rules allow, with the result."""


@pytest.mark.parametrize(("call", "result", "message"), WARNINGS.values(), ids=WARNINGS)
def test_a_warning_names_the_line_of_the_program(
    orders: Stream, call: Call, result: object, message: str
) -> None:
    with pytest.warns(UserWarning, match=r"\w") as warned:
        assert call(orders) == result
    assert [(str(each.message), each.filename) for each in warned] == [(message, __file__)]


@pytest.mark.parametrize("block", [0.001, 3600, 10**9, float("inf")])
def test_a_wait_of_an_hour_and_one_for_ever_are_no_mistake(orders: Stream, block: float) -> None:
    assert orders.read("0", block=block)


def test_acknowledging_again_does_not_warn(orders: Stream) -> None:
    (entry,) = worker_of(orders).read()
    assert [worker_of(orders).ack(entry), worker_of(orders).ack(entry)] == [1, 0]


def test_an_entry_given_back_has_no_idle_time(orders: Stream) -> None:
    (entry,) = worker_of(orders).read()
    group_of(orders).nack(entry)
    assert [pending.idle_ms for pending in group_of(orders).pending_range()] == [None]
    for deliveries, block in enumerate((None, 5), 1):
        (again,) = worker_of(orders).read(block=block, claim_min_idle=60)
        assert (again.idle_ms, again.deliveries) == (None, deliveries)
        group_of(orders).nack(entry)


HOLD = "import sys; from kvstream import Store; s = Store.open(sys.argv[1]); print(); input()"


def test_the_error_of_a_locked_store_names_its_holder_and_how_to_share_it(tmp_path: Path) -> None:
    place = tmp_path / "data"
    with (
        Store.open(place),
        pytest.raises(KVStreamError, match=r"^this process \(PID \d+\) has the store in .* open"),
    ):
        Store.open(place)
    words = [sys.executable, "-c", HOLD, str(place)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(KVStreamError) as locked:
            Store.open(place)
        holder.communicate(b"\n")
    who = f"process {holder.pid}" if sys.platform == "linux" else "another process"
    assert str(locked.value) == (
        f"{who} holds the store in {place}: stop it, or share the store: open it with "
        f"kvstream.open(..., shared=True) in every process, or run 'kvstream serve --dir {place}' "
        'and use kvstream.open("redis://...")'
    )


# --- times --------------------------------------------------------------------------------------

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def minutes(store: Store, clock: ManualClock) -> Stream:
    """A stream with an entry at 11:30, 11:50 and 12:00, the current time."""
    stream = store.stream("s")
    for moment in (NOON - 30 * MINUTE, NOON - 10 * MINUTE, NOON):
        clock.ms = int(moment.timestamp() * 1000)
        stream.add({"at": f"{moment:%H:%M}"})
    return stream


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (15 * MINUTE, 2),
        ("now-15m", 2),
        ("15 minutes ago", 2),
        ("1 hour ago", 3),
        ("15m ago", 2),
        ("last hour", 3),
        ("today", 3),
        ("yesterday 23:00", 3),
        ("today 11:45", 2),
        ("now", 1),
        ("2026-01-31T11:45", 2),
        ("2026-01-31T12:45+01:00", 2),
        ("(2026-01-31T11:50", 1),
        ("2026-01-31", 3),
        (date(2026, 1, 31), 3),
        (date(2026, 2, 1), 0),
        (date(1960, 1, 1), 3),
        (datetime(2026, 1, 31, 11, 45), 2),
        (NOON, 1),
        (int(NOON.timestamp() * 1000), 1),
    ],
)
def test_times_are_bounds_and_utc_without_a_zone(
    minutes: Stream, start: Any, expected: int
) -> None:
    assert len(minutes.range(start)) == len(minutes.revrange("+", start)) == expected
    assert len(list(minutes.scan(start))) == expected
    group = minutes.create_group("g", "0")
    group.consumer("c").read()
    assert len(group.pending_range(start)) == expected


def test_an_end_includes_its_millisecond_and_a_trim_takes_a_time_span(minutes: Stream) -> None:
    assert len(minutes.range("-", "10 minutes ago")) == 2
    assert len(minutes.range("-", "(now-10m")) == 2  # only the last ID of that time is excluded
    assert minutes.trim(minid=15 * MINUTE) == 1
    minutes.add({"at": "12:00"}, minid="now")
    assert [entry.fields[b"at"] for entry in minutes] == [b"12:00", b"12:00"]
