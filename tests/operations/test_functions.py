"""Libraries of functions in a store: rows, payloads and headers. These tests run no library."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.errors import BadPayload, RequestError
from kvstream.layout.keys import function_row
from kvstream.meta.txn import Txn
from kvstream.operations import checks, functions
from kvstream.operations.functions import Policy
from kvstream.rdb.payload import dump_functions, dump_string
from kvstream.rdb.versions import TARGETS
from kvstream.storage.batch import Family

SHORT = b"#!lua name=short\nredis.register_function('one', function() return 1 end)"
LONG = b"#!lua name=long\n" + b"".join(
    b"redis.register_function('f%d', function(keys, args) return redis.call('GET', keys[1]) end)\n"
    % number
    for number in range(6)
)
SHORT_OF_7_0 = bytes.fromhex(
    "f5404823216c7561206e616d653d73686f72740a72656469732e72656769737465725f66756e6374696f6e28276f"
    "6e65272c2066756e6374696f6e28292072657475726e203120656e64290a00cd159f63ac971e00"
)
SHORT_OF_8_2 = SHORT_OF_7_0[:-10] + bytes.fromhex("0c000663aba356bd8049")
LONG_OF_7_0 = bytes.fromhex(
    "f5c34083422c1f23216c7561206e616d653d6c6f6e670a72656469732e72656769737465725f660d756e6374696f"
    "6e28276630272c20e0000e116b6579732c2061726773292072657475726e200640390863616c6c2827474554202d"
    "4024085b315d2920656e6429e012590031202be04d590032e050590033e050590034e050590035e0345901290a0a"
    "00d7b0bffb785a32cf"
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as opened:
        yield opened
        assert opened.check() == []


def load(store: Store, text: bytes, *, replace: bool = False) -> bytes:
    return store.engine.run(lambda txn: functions.load(txn, text, replace=replace))


def names(store: Store) -> list[bytes]:
    return sorted(store.engine.run(functions.libraries))


def test_libraries_survive_a_restart(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        assert load(store, SHORT) == b"short"
        assert load(store, LONG) == b"long"
    with Store.open(tmp_path / "store") as store:
        assert store.engine.run(functions.libraries) == {b"short": SHORT, b"long": LONG}
        assert store.check() == []


def test_a_library_is_replaced_only_with_replace(store: Store) -> None:
    load(store, SHORT)
    with pytest.raises(RequestError, match="Library 'short' already exists"):
        load(store, SHORT + b"\n")
    load(store, SHORT + b"\n", replace=True)
    assert store.engine.run(functions.libraries) == {b"short": SHORT + b"\n"}


def test_deleted_libraries_are_gone_after_a_restart(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        load(store, SHORT)
        load(store, LONG)
        store.engine.run(functions.delete, b"short")
        with pytest.raises(RequestError, match="Library not found"):
            store.engine.run(functions.delete, b"short")
    with Store.open(tmp_path / "store") as store:
        assert names(store) == [b"long"]
        store.engine.run(functions.flush)
    with Store.open(tmp_path / "store") as store:
        assert names(store) == []


def test_a_failed_transaction_leaves_the_libraries_unchanged(store: Store) -> None:
    load(store, SHORT)

    def fail(txn: Txn) -> None:
        functions.load(txn, LONG, replace=False)
        functions.delete(txn, b"short")
        assert list(functions.libraries(txn)) == [b"long"]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.engine.run(fail)
    assert names(store) == [b"short"]


def test_flushall_keeps_libraries(store: Store) -> None:
    load(store, SHORT)
    store.stream("orders").add({"n": "1"})
    store.flush_all()
    assert names(store) == [b"short"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "Missing library metadata"),
        (b"return 1", "Missing library metadata"),
        (b"#!lua name=a", "Invalid library metadata"),
        (b'#!lua name="a\n', "Invalid library metadata"),
        (b'#!lua name="a"b\n', "Invalid library metadata"),
        (b"#!lua 'x'name=a\n", "Invalid library metadata"),
        (b"#!lua\n", "Library name was not given"),
        (b"#!lua name=a name=b\n", "name argument was given multiple times"),
        (b"#!lua name=a flags=x\n", "Invalid metadata value given: flags=x"),
        (b"#!lua name=\n", "Library names can only contain letters"),
        (b"#!lua name=a-b\n", "Library names can only contain letters"),
        (b"#!lua name='a b'\n", "Library names can only contain letters"),
        (b"#!js name=a\n", "Engine 'js' not found"),
    ],
)
def test_a_wrong_header_is_refused(store: Store, text: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        load(store, text)
    assert names(store) == []


def test_a_header_may_have_quotes_and_spaces() -> None:
    assert functions.parse(b'#!LUA   NAME="a_1"  \ncode') == (b"a_1", b"\ncode")


# --- payloads -------------------------------------------------------------------------------------


def test_a_payload_has_the_bytes_of_redis(store: Store) -> None:
    load(store, SHORT)
    assert store.engine.run(functions.dump) == SHORT_OF_7_0


def test_long_libraries_are_compressed(store: Store) -> None:
    load(store, LONG)
    payload = store.engine.run(functions.dump)
    assert len(payload) <= len(LONG_OF_7_0)
    assert functions.parse_payload(payload) == {b"long": LONG}


@pytest.mark.parametrize(
    ("payload", "text"), [(SHORT_OF_7_0, SHORT), (SHORT_OF_8_2, SHORT), (LONG_OF_7_0, LONG)]
)
def test_payloads_of_redis_are_restored(store: Store, payload: bytes, text: bytes) -> None:
    store.engine.run(functions.restore, payload)
    assert list(store.engine.run(functions.libraries).values()) == [text]


def test_the_policy_decides_about_existing_libraries(store: Store) -> None:
    other = SHORT.replace(b"one", b"two")
    payload = dump_functions(TARGETS["redis:7.0"], [other])
    load(store, SHORT)
    load(store, LONG)
    with pytest.raises(RequestError, match="Library short already exists"):
        store.engine.run(functions.restore, payload)
    store.engine.run(functions.restore, payload, Policy.REPLACE)
    assert store.engine.run(functions.libraries) == {b"short": other, b"long": LONG}
    store.engine.run(functions.restore, payload, Policy.FLUSH)
    assert store.engine.run(functions.libraries) == {b"short": other}


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "DUMP payload version or checksum are wrong"),
        (SHORT_OF_7_0[:-1] + b"\xff", "DUMP payload version or checksum are wrong"),
        (dump_functions(TARGETS["redis:7.0"], [SHORT, SHORT]), "Library 'short' already exists"),
        (dump_functions(TARGETS["redis:7.0"], [SHORT, b"code"]), "Missing library metadata"),
    ],
)
def test_a_wrong_payload_changes_nothing(store: Store, payload: bytes, message: str) -> None:
    load(store, LONG)
    with pytest.raises(RequestError, match=message):
        store.engine.run(functions.restore, payload, Policy.FLUSH)
    assert names(store) == [b"long"]


def test_a_payload_of_a_key_has_no_functions() -> None:
    with pytest.raises(BadPayload, match="given type is not a function"):
        functions.parse_payload(dump_string(TARGETS["redis:7.0"], b"1"))


# --- check ----------------------------------------------------------------------------------------


def test_check_finds_and_repairs_a_damaged_library(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        load(store, SHORT)
        with store.engine.transaction() as txn:
            txn.batch.put(Family.METADATA, function_row(b"broken"), b"\x07text")
        found = store.engine.run(checks.check)
        assert len(found) == 1
        assert "a function library cannot be decoded" in found[0].message
        store.check(repair=True)
        assert store.check() == []
    with Store.open(tmp_path / "store") as store:
        assert names(store) == [b"short"]


def test_libraries_of_other_engines_have_names_and_wrong_ones_their_first_line() -> None:
    other, wrong = b"#!js name=other\ncode", b"#!js nam=other\ncode"
    found = functions.by_name([SHORT, other, wrong])
    assert found == {b"short": SHORT, b"other": other, b"#!js nam=other": wrong}
