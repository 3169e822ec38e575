"""CLIENT: listing, killing and configuring connections."""

import re
import time

import pytest
import redis

from tests.patience import until
from tests.server.asking import Asker, Failure
from tests.server.conftest import Served
from tests.server.talking import Talker

LINE_OF_REDIS_7 = """
id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free argv-mem multi-mem rbs
rbp obl oll omem tot-mem events cmd user redir resp
"""


def _fields(asker: Asker) -> dict[str, str]:
    line = asker.ask("CLIENT INFO").decode().strip()
    return dict(part.split("=", 1) for part in line.split(" "))


def test_redis_py_reads_its_own_line(client: redis.Redis, protocol: int) -> None:
    client.select(3)
    client.client_setname("worker")
    reply = client.client_info()
    assert (reply["name"], int(reply["db"]), int(reply["resp"])) == ("worker", 3, protocol)
    assert str(reply["lib-name"]).startswith("redis-py")
    assert (reply["cmd"], reply["user"], reply["flags"]) == ("client|info", "default", "N")
    assert int(reply["id"]) == client.client_id()


def test_the_line_has_every_field_that_redis_has(served: Served, redis_port: int) -> None:
    with served.asker() as ours, Asker(redis_port) as theirs:
        found, wanted = _fields(ours), _fields(theirs)
    assert set(LINE_OF_REDIS_7.split()) <= set(wanted)
    assert set(wanted) <= set(found)


def test_clients_are_listed_by_type_and_by_id(served: Served) -> None:
    with served.asker() as first, served.asker() as second:
        ids = [first.ask("CLIENT ID"), second.ask("CLIENT ID")]
        assert ids[1] == ids[0] + 1
        listed = re.findall(r"^id=(\d+)", first.ask("CLIENT LIST").decode(), re.MULTILINE)
        assert [int(number) for number in listed] == ids
        one = first.ask("CLIENT", "LIST", "ID", str(ids[1]), "999").decode()
        assert one.count("\n") == 1
        assert one.startswith(f"id={ids[1]} ")
        assert first.ask("CLIENT LIST TYPE normal").count(b"\n") == 2


def test_monitors_are_listed_as_normal_clients_as_in_redis(served: Served, redis_port: int) -> None:
    for port in (served.port, redis_port):
        with Asker(port) as asker, Asker(port) as monitor:
            monitor.ask("MONITOR")
            assert asker.ask("CLIENT LIST TYPE replica") == b""
            assert b" flags=O " in asker.ask("CLIENT LIST TYPE normal")


def test_flags_show_transactions_blocking_and_no_evict(served: Served) -> None:
    with served.asker() as asker, served.asker() as waiting:
        asker.ask("CLIENT NO-EVICT on")
        asker.ask("CLIENT NO-TOUCH on")
        assert _fields(asker)["flags"] == "eT"
        asker.ask("MULTI")
        asker.ask("PING")
        waiting.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        with served.asker() as other:
            _wait_until_blocked(served, 1)
            lines = other.ask("CLIENT LIST").decode().splitlines()
        assert " flags=xeT " in lines[0]
        assert " multi=1 " in lines[0]
        assert " flags=b " in lines[1]


def test_a_transaction_that_will_fail_uses_no_memory(served: Served, redis82_port: int) -> None:
    shown = []
    for port in (served.port, redis82_port):
        with Asker(port) as asker, Asker(port) as other:
            for words in (("MULTI",), ("PING",), ("GET",), ("SET", "k", "v" * 9000)):
                asker.ask(*words)
            shown.append(re.findall(r" multi=(\d+) ", other.ask("CLIENT LIST").decode()))
    assert shown[0] == shown[1]


def _wait_until_blocked(served: Served, count: int) -> None:
    until(lambda: len(served.executor.blocked) == count)


def test_a_client_that_kills_itself_gets_the_reply_first(served: Served) -> None:
    with served.asker() as asker:
        number = asker.ask("CLIENT ID")
        assert asker.ask("CLIENT", "KILL", "ID", str(number), "SKIPME", "no") == 1
        assert asker.is_closed()
    with served.asker() as asker:
        address = _fields(asker)["addr"]
        assert asker.ask("CLIENT", "KILL", address) == b"OK"
        assert asker.is_closed()


@pytest.mark.parametrize(
    "chosen",
    ["TYPE normal", "LADDR {laddr}", "USER default", "ADDR {addr}", "MAXAGE 1 ADDR {addr}"],
)
def test_filters_skip_the_calling_client(served: Served, chosen: str) -> None:
    began = time.monotonic()
    with served.asker() as asker, served.asker() as victim:
        words = chosen.format(**_fields(victim))
        if "MAXAGE" in words:
            until(lambda: asker.ask("CLIENT KILL " + words) == 1)
            assert time.monotonic() - began >= 1
        else:
            assert asker.ask("CLIENT KILL " + words) == 1
        assert victim.is_closed()
        assert asker.ask("PING") == b"PONG"


def test_an_unblocked_client_gets_a_null_or_an_error(served: Served) -> None:
    with served.asker() as asker, served.asker() as waiting:
        number = str(waiting.ask("CLIENT ID"))
        for reason, wanted in (
            ("TIMEOUT", None),
            ("ERROR", "UNBLOCKED client unblocked via CLIENT UNBLOCK"),
        ):
            waiting.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
            _wait_until_blocked(served, 1)
            assert asker.ask("CLIENT", "UNBLOCK", number, reason) == 1
            assert waiting.read() == wanted
        assert asker.ask("CLIENT", "UNBLOCK", number) == 0


def test_replies_are_skipped_on_request(served: Served, redis_port: int) -> None:
    for asker in (served.asker(), Asker(redis_port)):
        with asker:
            asker.send("CLIENT", "REPLY", "SKIP")
            asker.send("ECHO", "skipped")
            assert asker.ask("ECHO text") == b"text"
            asker.send("CLIENT", "REPLY", "OFF")
            asker.send("ECHO", "one")
            asker.send("CLIENT", "REPLY", "SKIP")
            asker.send("ECHO", "two")
            assert asker.ask("CLIENT REPLY ON") == b"OK"
            assert asker.ask("ECHO text") == b"text"


@pytest.mark.parametrize(
    ("how", "behind"),
    [("OFF", b""), ("SKIP", b"$4\r\ntext\r\n")],
)
def test_the_reply_of_exec_is_complete_for_any_commands(
    ann: Talker, how: str, behind: bytes
) -> None:
    for words in ("MULTI", "ECHO a", f"CLIENT REPLY {how}", "ECHO b"):
        ann.send(*words.split())
    said = ann.ask("EXEC")
    assert said.endswith(b"QUEUED\r\n*3\r\n$1\r\na\r\n+OK\r\n$1\r\nb\r\n")
    assert ann.ask("ECHO", "left out") == b""
    assert ann.ask("ECHO", "text") == behind


def test_a_library_sets_its_name(served: Served) -> None:
    with served.asker() as asker:
        assert asker.ask("CLIENT SETINFO lib-name mine") == b"OK"
        assert asker.ask("CLIENT SETINFO LIB-VER 1.2") == b"OK"
        refused = asker.ask("CLIENT", "SETINFO", "Lib-Ver", "1 2")
        assert refused.startswith("ERR Lib-Ver cannot contain spaces")
        assert {"lib-name": "mine", "lib-ver": "1.2"}.items() <= _fields(asker).items()
        assert asker.ask("CLIENT", "SETINFO", "lib-name", "a b") == (
            "ERR lib-name cannot contain spaces, newlines or special characters."
        )
        assert asker.ask("CLIENT SETINFO nosuch x") == "ERR Unrecognized option 'nosuch'"


def test_reset_restores_the_initial_state_of_a_connection(served: Served) -> None:
    with served.asker(3) as asker:
        asker.ask("CLIENT SETNAME me")
        asker.ask("SELECT 4")
        asker.ask("CLIENT NO-EVICT on")
        assert asker.ask("RESET") == b"RESET"
        reply = _fields(asker)
        assert (reply["name"], reply["db"], reply["flags"], reply["resp"]) == ("", "0", "N", "2")


def test_tracking_refuses_the_same_options_as_redis(served: Served, redis_port: int) -> None:
    with served.asker() as ours, Asker(redis_port) as theirs:
        for line in (
            *("CLIENT TRACKING OFF", "CLIENT TRACKING x", "CLIENT TRACKING", "CLIENT CACHING yes"),
            *("CLIENT GETREDIR", "CLIENT TRACKINGINFO", "CLIENT TRACKING x BCAST nosuch"),
            *("CLIENT TRACKING ON PREFIX a", "CLIENT TRACKING ON BCAST OPTIN"),
            *("CLIENT TRACKING ON BCAST OPTOUT", "CLIENT TRACKING ON OPTIN OPTOUT"),
            *("CLIENT TRACKING ON BCAST PREFIX ab PREFIX a", "CLIENT TRACKING ON PREFIX"),
            *("CLIENT TRACKING ON REDIRECT x", "CLIENT TRACKING ON REDIRECT 999999"),
            *("CLIENT TRACKING OFF NOLOOP BCAST PREFIX a PREFIX a", "CLIENT TRACKING ON REDIRECT"),
        ):
            assert ours.ask(line) == theirs.ask(line)


def test_a_request_without_its_keys_is_refused(served: Served) -> None:
    with served.asker() as asker:
        for words in ("GETKEYS", "GETKEYSANDFLAGS"):
            answer = asker.ask(f"COMMAND {words} XREAD COUNT 2 a b")
            assert answer == Failure("ERR Invalid arguments specified for command")
        assert asker.ask("COMMAND GETKEYSANDFLAGS DELEX k") == [[b"k", [b"RM", b"delete"]]]
        unknown = asker.ask("COMMAND GETKEYSANDFLAGS DELEX k IFNO v")
        assert unknown == [[b"k", [b"RM", b"delete"]]]
        compared = asker.ask("COMMAND GETKEYSANDFLAGS DELEX k IFEQ v")
        assert compared == [[b"k", [b"RW", b"delete"]]]


def test_ids_are_listed_as_requested_and_the_last_filter_of_a_kind_applies(served: Served) -> None:
    with served.asker() as one, served.asker() as two:
        first, second = one.ask("CLIENT ID"), two.ask("CLIENT ID")
        reply = one.ask("CLIENT", "LIST", "ID", str(second), str(first), str(second)).decode()
        listed = re.findall(r"^id=(\d+)", reply, re.MULTILINE)
        assert [int(each) for each in listed] == [second, first, second]
        assert one.ask("CLIENT KILL ID 0 ADDR") == Failure("ERR client-id should be greater than 0")
        assert one.ask("CLIENT", "KILL", "ID", str(first), "ID", str(second)) == 1


def test_the_reply_to_hello_has_the_fields_and_the_order_of_redis(
    served: Served, redis_port: int
) -> None:
    """Clients of RESP2 read it by position."""
    with served.asker() as ours, Asker(redis_port) as theirs:
        reply, wanted = ours.ask("HELLO"), theirs.ask("HELLO")
    assert reply[::2] == wanted[::2]
    assert reply[4:6] == wanted[4:6] == [b"proto", 2]
