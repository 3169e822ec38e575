"""MEMORY USAGE, RANDOMKEY, large strings, and COPY in transactions."""

from kvstream import ManualClock, Store
from kvstream.storage.batch import Family
from tests.commands.conftest import Say
from tests.commands.dispatcher import Dispatcher
from tests.opening import change_thresholds


def bytes_of_rows(store: Store) -> int:
    """Return the bytes of all rows, except the allocator and the number of keys."""
    rows = [
        row for family in Family for row in store.engine.database.scan(family, b"", b"\xff" * 9)
    ]
    return sum(len(key) + len(value) for key, value in rows if key[:1] not in (b"A", b"C"))


def busy(say: Say) -> None:
    for number in range(1, 251):
        say(f"XADD s {number}-0 number {number}")
    for group in ("g", "h"):
        say(f"XGROUP CREATE s {group} 0")
        for consumer in ("c", "d"):
            say(f"XREADGROUP GROUP {group} {consumer} COUNT 60 STREAMS s >")
    say("XACK s g 3-0 5-0")
    say("XNACK s g FAIL IDS 2 7-0 8-0")
    say("XADD s IDMP pid iid * f v")


def test_memory_usage_is_the_size_of_all_rows(say: Say, store: Store) -> None:
    busy(say)
    say("EXPIRE s 100")
    assert say("MEMORY USAGE s SAMPLES 0") == bytes_of_rows(store)
    for samples in (5, 100):
        assert abs(say(f"MEMORY USAGE s SAMPLES {samples}") / bytes_of_rows(store) - 1) < 0.2


def test_memory_usage_of_a_string_is_its_rows(say: Say, store: Store) -> None:
    say("SET", "k", "x" * 1000)
    assert say("MEMORY USAGE k") == bytes_of_rows(store)
    say("EXPIRE k 100")
    assert say("MEMORY USAGE k") == bytes_of_rows(store)


def test_a_string_of_more_than_half_a_gigabyte_is_refused(say: Say, store: Store) -> None:
    assert store.engine.thresholds.string_bytes_max == 512 * 1024 * 1024
    change_thresholds(store.engine, string_bytes_max=10)
    refusal = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
    assert say("SET", "k", "x" * 10) == b"OK"
    assert say("SET", "k", "x" * 11) == refusal
    assert say("APPEND k y") == refusal
    assert say("GET k") == b"x" * 10


def test_random_key_returns_any_key_but_never_an_expired_one(say: Say, clock: ManualClock) -> None:
    for number in range(5):
        say(f"SET key:{number} v")
    say("SET gone v PX 1")
    clock.advance(1)
    assert {say("RANDOMKEY") for _ in range(200)} == {b"key:%d" % number for number in range(5)}


def test_a_copy_may_be_read_before_it_is_committed(dispatcher: Dispatcher, say: Say) -> None:
    busy(say)
    with dispatcher.engine.transaction():
        say("XADD s 9999999999999-0 last entry")
        say("XACK s g 1-0")
        assert say("COPY s t") == 1
        assert say("COPY t u") == 1
        assert say("XLEN u") == 252
        assert say("XREVRANGE u + - COUNT 1") == [[b"9999999999999-0", [b"last", b"entry"]]]
        assert say("XPENDING u g") == say("XPENDING s g")
        say("DEL s t")
    assert say("XLEN u") == 252
    assert say("XPENDING u g")[0] == 117
    assert say("XRANGE u 10 11") == [
        [b"10-0", [b"number", b"10"]],
        [b"11-0", [b"number", b"11"]],
    ]


def test_an_undone_copy_leaves_nothing(dispatcher: Dispatcher, say: Say) -> None:
    busy(say)
    try:
        with dispatcher.engine.transaction():
            assert say("COPY s t") == 1
            raise KeyError
    except KeyError:
        pass
    assert say("EXISTS s t") == 1
    assert say("COPY s t") == 1
    assert say("XLEN t") == 251


def test_a_string_is_raw_once_it_was_written_in_part(say: Say) -> None:
    say("SET a 12")
    say("APPEND a 3")
    say("SETRANGE b 2 x")
    say("APPEND c 12")
    assert [say(f"OBJECT ENCODING {key}") for key in "abc"] == [b"raw", b"raw", b"int"]
    say("APPEND", "c", "")
    say("COPY a copied")
    say("RENAME b renamed")
    say("EXPIRE a 1000")
    for key in ("a", "c", "copied", "renamed"):
        assert say(f"OBJECT ENCODING {key}") == b"raw"
    assert say("INCR a") == 124
    assert say("GETSET c 13") == b"12"
    assert [say(f"OBJECT ENCODING {key}") for key in "ac"] == [b"int", b"int"]


def test_a_string_is_embedded_if_it_fits_beside_its_key(say: Say) -> None:
    say("SET", "key", "v" * 38)
    assert say("OBJECT ENCODING key") == b"embstr"
    say("RENAME key a-longer-key")
    assert say("OBJECT ENCODING a-longer-key") == b"raw"
    say("SET", "k" * 50, "12")
    assert say("OBJECT", "ENCODING", "k" * 50) == b"int"
