"""DEBUG: reloading the real store, and the subcommands that test suites use."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.server.asking import Asker, Failure
from tests.server.conftest import Serve, Served

RELOADS = pytest.mark.parametrize("words", ["RELOAD", "LOADAOF", "RELOAD NOSAVE MERGE"])


@pytest.fixture
def asker(served: Served) -> Iterator[Asker]:
    with served.asker() as connected:
        yield connected


@RELOADS
def test_a_reload_serves_the_data_on_disk(served: Served, words: str) -> None:
    with served.asker() as asker:
        asker.ask("XGROUP CREATE s g 0 MKSTREAM")
        for number in range(1, 301):
            asker.send("XADD", "s", f"{number}-1", "f", "v")
        assert [asker.read() for _ in range(300)][-1] == b"300-1"
        asker.ask("XREADGROUP GROUP g c COUNT 100 STREAMS s >")
        asker.ask("XDEL s 5-1")
        asker.ask("SET k v EX 1000")
        asker.ask("SWAPDB 0 1")
        asker.ask("SELECT 1")
        before = asker.ask("DEBUG DIGEST"), asker.ask("XPENDING s g"), asker.ask("XLEN s")
        was = served.engine.database._root
        assert asker.ask("DEBUG " + words) == b"OK"
        assert served.engine.database._root is not was
        assert served.engine.catalog.streams == {}
        assert (asker.ask("DEBUG DIGEST"), asker.ask("XPENDING s g"), asker.ask("XLEN s")) == before
        assert asker.ask("TTL k") in (999, 1000)
        assert asker.ask("XADD s 300-1 f v").startswith("ERR The ID specified")


@RELOADS
def test_blocked_clients_keep_waiting_during_a_reload(served: Served, words: str) -> None:
    with served.asker() as asker, served.asker() as reader, served.asker() as member:
        asker.ask("XGROUP CREATE s g 0 MKSTREAM")
        reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        member.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
        _await_blocked(asker, 2)
        assert asker.ask("DEBUG " + words) == b"OK"
        _await_blocked(asker, 2)
        asker.ask("XADD s 1-1 f v")
        assert reader.read() == member.read() == [[b"s", [[b"1-1", [b"f", b"v"]]]]]


def _await_blocked(asker: Asker, count: int) -> None:
    until(lambda: b"blocked_clients:%d\r\n" % count in asker.ask("INFO clients"))


def test_a_reload_counts_as_a_save_and_one_from_the_log_does_not(asker: Asker) -> None:
    asker.ask("SET k v")
    asker.ask("DEBUG LOADAOF")
    assert b"rdb_changes_since_last_save:1\r\n" in asker.ask("INFO persistence")
    asker.ask("DEBUG RELOAD")
    assert b"rdb_changes_since_last_save:0\r\n" in asker.ask("INFO persistence")


def test_a_failed_reload_is_reported(tmp_path: Path) -> None:
    served = Served(tmp_path / "store")
    with served.asker() as asker:
        asker.ask("SET k v")
        (tmp_path / "store" / "WATERMARK").unlink()
        assert "watermark" in asker.ask("DEBUG RELOAD")
        for command in ("GET k", "SET k w"):
            assert "could not be opened again" in asker.ask(command)
        asker.send("SHUTDOWN")
        with pytest.raises(EOFError):
            asker.read()
    served.join()
    served.engine.close()


def test_the_digest_covers_what_a_client_can_read(asker: Asker) -> None:
    empty = asker.ask("DEBUG DIGEST")
    assert empty == b"0" * 40
    assert asker.ask("DEBUG DIGEST-VALUE a b") == [b"0" * 40] * 2
    for key in ("a", "b"):
        asker.ask(f"XADD {key} 1-1 f v")
        asker.ask(f"XGROUP CREATE {key} g 0")
    first, second = asker.ask("DEBUG DIGEST-VALUE a b")
    assert first == second != b"0" * 40
    whole = asker.ask("DEBUG DIGEST")
    for change in ("XADD b 2-1 f v", "XREADGROUP GROUP g c STREAMS b >", "EXPIRE b 1000", "DEL b"):
        asker.ask(change)
        assert asker.ask("DEBUG DIGEST-VALUE b") != [second]
        assert asker.ask("DEBUG DIGEST") != whole
        (second,), whole = asker.ask("DEBUG DIGEST-VALUE b"), asker.ask("DEBUG DIGEST")
    asker.ask("FLUSHALL")
    assert asker.ask("DEBUG DIGEST") == empty


def test_the_digest_does_not_depend_on_an_earlier_flush(asker: Asker) -> None:
    asker.ask("SET a 1")
    before = asker.ask("DEBUG DIGEST")
    asker.ask("MSET " + " ".join(f"key:{number} 1" for number in range(150)))
    asker.ask("FLUSHALL")
    asker.ask("SET a 1")
    assert asker.ask("DEBUG DIGEST") == before


def test_the_digest_does_not_depend_on_how_the_keys_were_created(asker: Asker) -> None:
    found = set()
    for commands in (["SET a 1", "SET b 2"], ["SET b 2", "SET x 1", "RENAME x a"]):
        asker.ask("FLUSHALL")
        for command in commands:
            asker.ask(command)
        found.add(asker.ask("DEBUG DIGEST"))
    assert len(found) == 1
    asker.ask("MOVE a 3")
    assert asker.ask("DEBUG DIGEST") not in found


def test_a_key_restored_after_its_expiry_counts_as_expired(asker: Asker) -> None:
    asker.ask("SET k v")
    payload = asker.ask("DUMP k")
    assert asker.ask("RESTORE", "k", "1", payload, "ABSTTL", "REPLACE") == b"OK"
    assert asker.ask("EXISTS k") == 0
    assert b"expired_keys:1\r\n" in asker.ask("INFO stats")


def test_expired_keys_stay_while_active_expiry_is_off(served: Served) -> None:
    with served.asker() as asker:
        assert asker.ask("DEBUG SET-ACTIVE-EXPIRE 0") == b"OK"
        asker.ask("SET k v PX 1")
        time.sleep(0.3)
        assert asker.ask("DBSIZE") == 1
        assert asker.ask("GET k") is None
        assert asker.ask("DBSIZE") == 0
        reply = asker.ask("INFO stats")
        assert b"expired_keys:1\r\n" in reply
        assert b"expired_keys_active:0\r\n" in reply
        asker.ask("SET k v PX 1")
        asker.ask("DEBUG SET-ACTIVE-EXPIRE 1")
        until(lambda: asker.ask("DBSIZE") == 0)
        reply = asker.ask("INFO stats")
        assert b"expired_keys:2\r\n" in reply
        assert b"expired_keys_active:1\r\n" in reply
        asker.ask("CONFIG RESETSTAT")
        assert b"expired_keys:0\r\n" in asker.ask("INFO stats")


def test_an_object_is_described(asker: Asker) -> None:
    asker.ask("XADD s 1-1 f v")
    reply = asker.ask("DEBUG OBJECT s")
    assert reply.startswith(b"Value at:")
    assert b" encoding:stream serializedlength:" in reply
    assert asker.ask("DEBUG OBJECT missing") == Failure("ERR no such key")


def test_debug_error_returns_the_given_text(asker: Asker) -> None:
    assert asker.ask("DEBUG", "ERROR", "LOADING some words") == Failure("LOADING some words")
    assert asker.ask("DEBUG", "ERROR", "ERR other words") == Failure("ERR other words")


@pytest.mark.parametrize(
    ("kind", "resp2", "resp3"),
    [
        ("string", b"$11\r\nHello World\r\n", b"$11\r\nHello World\r\n"),
        ("integer", b":12345\r\n", b":12345\r\n"),
        ("double", b"$5\r\n3.141\r\n", b",3.141\r\n"),
        ("null", b"$-1\r\n", b"_\r\n"),
        ("array", b"*3\r\n:0\r\n:1\r\n:2\r\n", b"*3\r\n:0\r\n:1\r\n:2\r\n"),
        ("set", b"*3\r\n:0\r\n:1\r\n:2\r\n", b"~3\r\n:0\r\n:1\r\n:2\r\n"),
        (
            "map",
            b"*6\r\n:0\r\n:0\r\n:1\r\n:1\r\n:2\r\n:0\r\n",
            b"%3\r\n:0\r\n#f\r\n:1\r\n#t\r\n:2\r\n#f\r\n",
        ),
        (
            "attrib",
            b"$39\r\nSome real reply following the attribute\r\n",
            b"|1\r\n$14\r\nkey-popularity\r\n*2\r\n$7\r\nkey:123\r\n:90\r\n"
            b"$39\r\nSome real reply following the attribute\r\n",
        ),
        (
            "bignum",
            b"$37\r\n1234567999999999999999999999999999999\r\n",
            b"(1234567999999999999999999999999999999\r\n",
        ),
        ("true", b":1\r\n", b"#t\r\n"),
        ("false", b":0\r\n", b"#f\r\n"),
        (
            "verbatim",
            b"$25\r\nThis is a verbatim\nstring\r\n",
            b"=29\r\ntxt:This is a verbatim\nstring\r\n",
        ),
        ("nosuch", b"-ERR syntax error\r\n", b"-ERR syntax error\r\n"),
    ],
)
def test_debug_protocol_returns_every_type_of_reply(
    served: Served, kind: str, resp2: bytes, resp3: bytes
) -> None:
    for protocol, wanted in ((2, resp2), (3, resp3)):
        with served.asker(protocol) as asker:
            asker.send("DEBUG", "PROTOCOL", kind)
            assert asker._file.read(len(wanted)) == wanted


def test_harmful_and_unsupported_subcommands_are_refused(asker: Asker) -> None:
    for words in ("SEGFAULT", "JMAP", "RELOAD NOSUCH", "OBJECT", "SLEEP", "DIGEST x"):
        assert isinstance(asker.ask("DEBUG " + words), Failure)
    for seconds in ("nan", "inf", "soon", "-1"):
        assert asker.ask("DEBUG SLEEP " + seconds) == b"OK"
    assert asker.ask("DEBUG HELP")[0].startswith(b"DEBUG <subcommand>")
    assert asker.ask("PING") == b"PONG"


def test_a_long_pattern_is_matched_in_time(asker: Asker) -> None:
    assert asker.ask("DEBUG", "STRINGMATCH-LEN", "a*" * 100 + "b", "200") == 0
    assert asker.ask("DEBUG", "STRINGMATCH-LEN", "a*a", "200") == 1


def test_the_refusal_of_debug_names_the_option(serve: Serve) -> None:
    with serve(enable_debug_command="no").asker() as asker:
        assert "enable_debug_command" in asker.ask("DEBUG HELP")


def test_debug_populate_creates_missing_strings(asker: Asker) -> None:
    asker.ask("SET key:1 mine")
    assert asker.ask("DEBUG POPULATE 1100") == b"OK"
    assert asker.ask("MGET key:0 key:1 key:1099 key:1100") == [
        *(b"value:0", b"mine", b"value:1099", None)
    ]
    asker.ask("DEBUG POPULATE 2 p 4")
    asker.ask("DEBUG POPULATE 1 q 9")
    assert asker.ask("MGET p:0 p:1 q:0") == [b"valu", b"valu", b"value:0\0\0"]
    for words in ("-1", "x", "1 p -1"):
        assert asker.ask(f"DEBUG POPULATE {words}").startswith("ERR value is ")
    for line in ("MULTI", "DEBUG POPULATE 1000 m"):
        asker.ask(line)
    assert asker.ask("EXEC") == [b"OK"]
    assert asker.ask("GET m:999") == b"value:999"
