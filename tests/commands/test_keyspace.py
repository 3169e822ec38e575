"""Commands of whole keys, and of the connection."""

import pytest

from kvstream import ManualClock
from tests.commands.conftest import Say, speaker
from tests.commands.dispatcher import Dispatcher


@pytest.fixture
def two(say: Say) -> Say:
    """Keys ``a`` and ``b``."""
    say("XADD a 1-1 f v")
    say("XADD b 1-1 f v")
    return say


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


def test_a_cursor_may_have_very_many_digits(two: Say) -> None:
    assert two("SCAN -1") == "ERR invalid cursor"
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


def test_a_dispatcher_may_begin_in_another_database(dispatcher: Dispatcher) -> None:
    engine = dispatcher.engine
    other = speaker(Dispatcher(engine, db=2))
    other("XADD a 1-1 f v")
    say = speaker(dispatcher)
    assert say("EXISTS a") == 0
    say("SELECT 2")
    assert say("XLEN a") == 1
