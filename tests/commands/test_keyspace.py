"""Commands of whole keys, and of the connection."""

import pytest

from kvstream import ManualClock
from tests.commands.conftest import Say, speaker
from tests.commands.dispatcher import Dispatcher

YEAR_MS = 365 * 24 * 3600 * 1000


@pytest.fixture
def two(say: Say) -> Say:
    """Keys ``a`` and ``b``."""
    say("XADD a 1-1 f v")
    say("XADD b 1-1 f v")
    return say


def test_del_and_unlink_return_the_number_of_deleted_keys(two: Say) -> None:
    assert two("DEL a a missing") == 1
    assert two("UNLINK b missing") == 1
    assert two("DBSIZE") == 0


def test_exists_counts_a_key_as_often_as_it_is_named(two: Say) -> None:
    assert two("EXISTS a a b missing") == 3


def test_type_is_stream_or_none(two: Say) -> None:
    assert two("TYPE a") == b"stream"
    assert two("TYPE missing") == b"none"


def test_rename_replaces_and_renamenx_does_not(two: Say) -> None:
    two("XADD b 2-2 g w")
    assert two("RENAMENX a b") == 0
    assert two("RENAMENX a a") == 0
    assert two("RENAME b a") == b"OK"
    assert two("XRANGE a - +") == [[b"1-1", [b"f", b"v"]], [b"2-2", [b"g", b"w"]]]
    assert two("RENAMENX a b") == 1
    assert two("RENAME b b") == b"OK"
    assert two("RENAME missing x") == "ERR no such key"
    assert two("RENAME missing missing") == "ERR no such key"
    assert two("RENAMENX missing b") == "ERR no such key"


def test_a_key_disappears_at_its_expiry(two: Say, clock: ManualClock) -> None:
    assert two("EXPIRE a 10") == 1
    assert two("PEXPIRE b 10001") == 1
    assert (two("TTL a"), two("PTTL a")) == (10, 10_000)
    assert (two("TTL b"), two("PTTL b")) == (10, 10_001)
    clock.advance(9999)
    assert (two("TTL a"), two("PTTL a")) == (0, 1)
    assert two("EXISTS a b") == 2
    clock.advance(1)
    assert two("EXISTS a b") == 1
    assert (two("TTL a"), two("PTTL a")) == (-2, -2)
    assert two("XLEN a") == 0


def test_the_expiry_is_also_returned_as_a_time(two: Say, clock: ManualClock) -> None:
    moment = clock.ms + 1_499
    assert two(f"PEXPIREAT a {moment}") == 1
    assert two("PEXPIRETIME a") == moment
    assert two("EXPIRETIME a") == (moment + 500) // 1000
    assert two(f"EXPIREAT b {clock.ms // 1000 + 5}") == 1
    assert two("PEXPIRETIME b") == clock.ms // 1000 * 1000 + 5000
    assert (two("EXPIRETIME missing"), two("PEXPIRETIME missing")) == (-2, -2)
    assert two("PERSIST b") == 1
    assert two("PERSIST b") == 0
    assert (two("TTL b"), two("PTTL b"), two("EXPIRETIME b"), two("PEXPIRETIME b")) == (-1,) * 4


@pytest.mark.parametrize("line", ["EXPIRE a 0", "PEXPIRE a -5", "EXPIREAT a 1", "PEXPIREAT a 1"])
def test_an_expiry_that_has_passed_deletes_the_key(line: str, two: Say) -> None:
    assert two(line) == 1
    assert two("EXISTS a") == 0


def test_conditions_let_an_expiry_be_replaced_or_not(two: Say) -> None:
    assert two("EXPIRE a 100 XX") == 0
    assert two("EXPIRE a 100 GT") == 0
    assert two("EXPIRE a 100 lt") == 1
    assert two("EXPIRE a 50 NX") == 0
    assert two("EXPIRE a 100 GT") == 0
    assert two("EXPIRE a 100 LT") == 0
    assert two("EXPIRE a 200 XX GT") == 1
    assert two("EXPIRE a 50 XX LT") == 1
    assert two("TTL a") == 50
    assert two("EXPIRE b 50 NX") == 1
    assert two("EXPIRE missing 50") == 0
    assert two("EXPIRE missing 50 XX") == 0


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("EXPIRE a x", "ERR value is not an integer or out of range"),
        ("EXPIRE a x FOO", "ERR Unsupported option FOO"),
        ("EXPIRE a 1 NX XX", "ERR NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE a 1 NX GT", "ERR NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE a 1 GT LT", "ERR GT and LT options at the same time are not compatible"),
        ("EXPIRE a 9223372036854775807", "ERR invalid expire time in 'expire' command"),
        ("EXPIRE a -9223372036854775807", "ERR invalid expire time in 'expire' command"),
        ("PEXPIRE a 9223372036854775807", "ERR invalid expire time in 'pexpire' command"),
        ("EXPIREAT a 9223372036854776", "ERR invalid expire time in 'expireat' command"),
        ("EXPIRE missing 9223372036854775807", "ERR invalid expire time in 'expire' command"),
        ("SCAN x", "ERR invalid cursor"),
        ("SCAN 99999999999999999999", "ERR invalid cursor"),
        ("SCAN -1", "ERR invalid cursor"),
        ("SCAN 0 COUNT 0", "ERR syntax error"),
        ("SCAN 0 COUNT x", "ERR value is not an integer or out of range"),
        ("SCAN 0 MATCH", "ERR syntax error"),
        ("SCAN 0 FOO 1", "ERR syntax error"),
        ("FLUSHDB x", "ERR syntax error"),
        ("FLUSHALL ASYNC x", "ERR syntax error"),
        ("SELECT x", "ERR value is not an integer or out of range"),
        ("SELECT 16", "ERR DB index is out of range"),
        ("SELECT -1", "ERR DB index is out of range"),
        (
            "SELECT 99999999999",
            "ERR value is out of range, value must between -2147483648 and 2147483647",
        ),
        ("PING a b", "ERR wrong number of arguments for 'ping' command"),
    ],
)
def test_errors_have_the_texts_of_redis(line: str, error: str, two: Say) -> None:
    assert two(line) == error
    assert two("EXISTS a b") == 2
    assert two("TTL a") == -1


def test_a_cursor_may_have_very_many_digits(two: Say) -> None:
    assert two("SCAN", 5000 * "9") == "ERR invalid cursor"
    assert two("SCAN", 5000 * "0") == [b"0", [b"a", b"b"]]


def test_the_greatest_time_is_valid(two: Say) -> None:
    assert two("PEXPIREAT a 9223372036854775807") == 1
    assert two("PEXPIRETIME a") == 9223372036854775807
    assert two("PEXPIRE b -9223372036854775808") == 1
    assert two("EXISTS a b") == 1


def scanned(say: Say, options: str = "") -> list[bytes]:
    """Return all keys that SCAN gives, call by call."""
    found: list[bytes] = []
    cursor = b"0"
    while True:
        cursor, keys = say(f"SCAN {cursor.decode()} {options}")
        found += keys
        if cursor == b"0":
            return found


def test_scan_returns_the_keys_in_the_order_of_their_creation(say: Say) -> None:
    names = [b"key:%d" % number for number in (5, 3, 9, 1, 7, 12, 11, 4, 2, 8, 6, 10)]
    for name in names:
        say("XADD", name, "*", "f", "v")
    assert scanned(say) == names
    assert scanned(say, "COUNT 1") == names
    assert scanned(say, "COUNT 9223372036854775807") == names
    assert scanned(say, "MATCH key:1*") == [b"key:1", b"key:12", b"key:11", b"key:10"]
    assert scanned(say, "TYPE STREAM COUNT 5") == names
    assert scanned(say, "TYPE string") == []
    assert say("SCAN +18446744073709551615") == [b"0", []]


def test_a_scan_returns_every_key_that_exists_throughout(say: Say) -> None:
    for name in "abcdef":
        say(f"XADD {name} * f v")
    cursor, first = say("SCAN 0 COUNT 2")
    assert first == [b"a", b"b"]
    say("DEL a c")
    say("XADD g * f v")
    assert say(f"SCAN {cursor.decode()} COUNT 9") == [b"0", [b"d", b"e", b"f", b"g"]]


def test_keys_are_found_by_pattern_and_expired_ones_are_not(two: Say, clock: ManualClock) -> None:
    two("XADD", b"bin\xff\x00", "*", "f", "v")
    two("EXPIRE a 1")
    assert two("KEYS *") == [b"a", b"b", b"bin\xff\x00"]
    assert two("KEYS", b"bin?\x00") == [b"bin\xff\x00"]
    clock.advance(1000)
    assert two("KEYS [ab]") == [b"b"]


def test_databases_are_separate(dispatcher: Dispatcher) -> None:
    say = speaker(dispatcher)
    say("XADD a * f v")
    assert say("SELECT 3") == b"OK"
    assert say("EXISTS a") == 0
    assert say("XADD a * f v") is not None
    assert say("XADD b * f v") is not None
    assert say("DBSIZE") == 2
    assert say("FLUSHDB ASYNC") == b"OK"
    assert say("DBSIZE") == 0
    say("SELECT 0")
    assert say("DBSIZE") == 1
    say("SELECT 15")
    say("XADD z * f v")
    assert say("FLUSHALL sync") == b"OK"
    assert say("DBSIZE") == 0
    say("SELECT 0")
    assert say("DBSIZE") == 0


def test_a_dispatcher_may_begin_in_another_database(dispatcher: Dispatcher) -> None:
    engine = dispatcher.engine
    other = speaker(Dispatcher(engine, db=2))
    other("XADD a 1-1 f v")
    say = speaker(dispatcher)
    assert say("EXISTS a") == 0
    say("SELECT 2")
    assert say("XLEN a") == 1


def test_ping_and_echo_return_the_message(say: Say) -> None:
    assert say("PING") == b"PONG"
    assert say("PING", b"\xff") == b"\xff"
    assert say("ECHO", "") == b""
