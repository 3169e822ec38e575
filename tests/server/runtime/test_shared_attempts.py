"""One attempt and one encoded reply serve all clients that wait for the same entries.

The entries are taken from the batch of the turn, if it has all of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from kvstream.layout.keys import qualified
from kvstream.layout.values import encode_flat
from kvstream.operations.append import add_under
from kvstream.operations.reads import read
from kvstream.storage.database import Database
from kvstream.types.ids import U64_MAX, StreamID
from tests.server.talking import Server, Talker, request

ENTRY = b"*2\r\n$3\r\n5-0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"
IN_RESP2 = b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n" + ENTRY
IN_RESP3 = b"%1\r\n$1\r\ns\r\n*1\r\n" + ENTRY


@contextmanager
def reads() -> Iterator[list[int]]:
    """Count the reads of blocked clients."""
    made: list[int] = []
    original = read.read_again

    def counting(*given: object, **options: object) -> read.Reply:
        made.append(1)
        return original(*given, **options)  # type: ignore[arg-type]

    with patch.object(read, "read_again", counting):
        yield made


def waiting(server: Server, *words: str, hello: str = "2", user: str = "") -> Talker:
    """Return a client that waits at the stream ``s``."""
    talker = server.client()
    talker.ask("HELLO", hello, *(("AUTH", user, "pw") if user else ()))
    assert talker.ask("XREAD", *words, "BLOCK", "0", "STREAMS", "s", "$") == b""
    return talker


def test_many_readers_cost_one_read(server: Server) -> None:
    adder, readers = server.client(), [waiting(server) for _ in range(10)]
    with reads() as made:
        adder.ask("XADD", "s", "5-0", "f", "v")
    assert [reader.heard() for reader in readers] == [IN_RESP2] * 10
    assert len(made) == 1


def test_each_reader_gets_the_reply_in_its_protocol(server: Server) -> None:
    readers = [waiting(server, hello=protocol) for protocol in ("2", "3", "3", "2")]
    with reads() as made:
        server.client().ask("XADD", "s", "5-0", "f", "v")
    expected = [IN_RESP2, IN_RESP3, IN_RESP3, IN_RESP2]
    assert [reader.heard() for reader in readers] == expected
    assert len(made) == 1


def test_readers_with_other_limits_or_positions_read_separately(server: Server) -> None:
    adder = server.client()
    adder.ask("XADD", "s", "1-0", "f", "v")
    one, all_ = waiting(server, "COUNT", "1"), waiting(server)
    server.client().ask("XADD", "other", "1-0", "f", "v")
    both = server.client()
    both.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "other", "$", "$")
    with reads() as made:
        adder.ask("MULTI")
        for number in ("5-0", "6-0"):
            adder.ask("XADD", "s", number, "f", "v")
        adder.ask("EXEC")
    assert one.heard().count(b"-0\r\n") == 1
    assert all_.heard().count(b"-0\r\n") == both.heard().count(b"-0\r\n") == 2
    assert len(made) == 3


def test_a_reader_whose_right_was_revoked_is_refused_and_others_are_served(server: Server) -> None:
    admin = server.client()
    for user in ("ann", "ben"):
        admin.ask("ACL", "SETUSER", user, "on", ">pw", "allkeys", "+@all")
    readers = [waiting(server, user=user) for user in ("ann", "ben", "ann", "ben")]
    free = waiting(server)
    admin.ask("ACL", "SETUSER", "ann", "-xread")
    admin.ask("XADD", "s", "5-0", "f", "v")
    heard = [reader.heard() for reader in readers]
    assert [reply.startswith(b"-NOPERM") for reply in heard] == [True, False, True, False]
    assert heard[1] == heard[3] == free.heard() == IN_RESP2


def test_a_right_that_depends_on_the_first_argument_is_checked_for_each(server: Server) -> None:
    admin = server.client()
    admin.ask("ACL", "SETUSER", "ann", "on", ">pw", "allkeys", "+@all")
    allowed = waiting(server, user="ann")
    refused = server.client()
    refused.ask("AUTH", "ann", "pw")
    refused.ask("XREAD", "COUNT", "-1", "BLOCK", "0", "STREAMS", "s", "$")
    admin.ask("ACL", "SETUSER", "ann", "-xread", "+xread|block")
    admin.ask("XADD", "s", "5-0", "f", "v")
    assert allowed.heard() == IN_RESP2
    assert refused.heard().startswith(b"-NOPERM")


def test_an_error_reaches_all_readers(server: Server) -> None:
    adder = server.client()
    adder.ask("XADD", "s", "1-0", "f", "v")
    readers = [server.client() for _ in range(3)]
    for reader in readers:
        reader.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "t", "$", "$")
    adder.ask("MULTI")
    adder.ask("SET", "t", "text")
    adder.ask("XADD", "s", "5-0", "f", "v")
    adder.ask("EXEC")
    assert all(reader.heard().startswith(b"-WRONGTYPE") for reader in readers)


def test_a_reader_unblocked_meanwhile_gets_no_entry(server: Server) -> None:
    readers = [waiting(server) for _ in range(3)]
    server.client().ask("CLIENT", "UNBLOCK", str(readers[1].client.id))
    assert readers[1].heard() == b"*-1\r\n"
    server.client().ask("XADD", "s", "5-0", "f", "v")
    assert [reader.heard() for reader in readers] == [IN_RESP2, b"", IN_RESP2]


@pytest.mark.parametrize("group_first", [True, False])
def test_readers_and_a_group_both_get_an_entry(server: Server, group_first: bool) -> None:
    adder = server.client()
    adder.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    words = ("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
    member = server.client()
    if group_first:
        member.ask(*words)
    readers = [waiting(server), waiting(server)]
    if not group_first:
        member.ask(*words)
    adder.ask("XADD", "s", "5-0", "f", "v")
    assert [each.heard() for each in (member, *readers)] == [IN_RESP2] * 3


def test_new_entries_are_read_from_the_batch(server: Server) -> None:
    adder = server.client()
    adder.ask("XADD", "s", "1-0", "f", "v")
    adder.ask("XGROUP", "CREATE", "s", "g", "$")
    plain, member = waiting(server), server.client()
    member.ask("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
    with patch.object(Database, "scan", side_effect=AssertionError("the store is read")):
        adder.ask("XADD", "s", "5-0", "f", "v")
    assert plain.heard() == member.heard() == IN_RESP2


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (["XADD s 5-0 f v", "XTRIM s MINID 6", "XADD s 6-0 f v"], ["6-0"]),
        (["XADD s 5-0 f v", "XDEL s 5-0", "XADD s 6-0 f v"], ["6-0"]),
        (["XADD s 5-0 f v", "DEL s", "XADD s 7-0 f v", "XADD s 8-0 f v"], ["7-0", "8-0"]),
        (["XADD s 5-0 f v", "DEL s", "RENAME other s", "XADD s 9-0 f v"], ["3-0", "9-0"]),
        (["XADD other 5-0 f v", "RENAME other s"], ["3-0", "5-0"]),
        (["XADD s 5-0 f v", "XSETID s 9-0", "XADD s 9-1 f v"], ["5-0", "9-1"]),
    ],
)
def test_changes_of_one_transaction_are_seen_together(
    server: Server, commands: list[str], expected: list[str]
) -> None:
    """The reader waits for entries above 2-0."""
    adder = server.client()
    for eid in ("1-0", "2-0"):
        adder.ask("XADD", "s", eid, "f", "v")
    for eid in ("1-0", "3-0"):
        adder.ask("XADD", "other", eid, "f", "v")
    reader = waiting(server)
    adder.ask("MULTI")
    for command in commands:
        adder.ask(*command.split())
    adder.ask("EXEC")
    heard = reader.heard().split(b"\r\n")
    assert [part.decode() for part in heard if part.endswith(b"-0") or b"-1" in part] == expected


def test_two_entries_to_an_awaited_stream_are_delivered_one_by_one(server: Server) -> None:
    reader, one, two = waiting(server), server.client(), server.client()
    for adder in (one, two):
        adder.send("XADD", "s", "*", "f", "v")
    server.turn()
    assert one.heard().count(b"-") == two.heard().count(b"-") == 1
    assert reader.heard().count(b"$1\r\nf\r\n") == 1


def test_a_pipeline_serves_each_reader_with_the_entry_that_woke_it(server: Server) -> None:
    adder, readers = server.client(), [waiting(server) for _ in range(2)]
    adder.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    members = [server.client() for _ in range(3)]
    for number, member in enumerate(members):
        member.ask("XREADGROUP", "GROUP", "g", str(number), "BLOCK", "0", "STREAMS", "s", ">")
    adder.send_bytes(b"".join(request("XADD", "s", "*", "n", str(n)) for n in range(5)))
    server.turn()
    assert adder.heard().count(b"$") == 5
    heard = [each.heard() for each in (*readers, *members)]
    assert [[n for n in range(5) if b"n\r\n$1\r\n%d" % n in reply] for reply in heard] == [
        *([0], [0]),
        *([0], [1], [2]),
    ]


def test_a_pipeline_that_uses_up_the_ids_of_an_awaited_stream_partly_succeeds(
    server: Server,
) -> None:
    adder = server.client()
    adder.ask("XADD", "s", f"{U64_MAX}-{U64_MAX - 2}", "f", "v")
    reader = waiting(server)
    adder.send_bytes(request("XADD", "s", "*", "f", "v") * 4)
    server.turn()
    heard = adder.heard()
    assert (heard.count(b"$41\r\n"), heard.count(b"-ERR")) == (2, 2)
    assert reader.heard().count(b"$41\r\n") == 1
    assert adder.ask("XLEN", "s") == b":3\r\n"


def test_an_entry_of_another_thread_is_read_once_for_all_readers(server: Server) -> None:
    readers = [waiting(server, hello=protocol) for protocol in ("2", "3", "2")]
    entry = [encode_flat([b"f", b"v"])]
    with reads() as made:
        server.engine.run(add_under, qualified(0, b"s"), [StreamID(5, 0)], entry)
    assert [reader.heard() for reader in readers] == [IN_RESP2, IN_RESP3, IN_RESP2]
    assert len(made) == 1
    assert len(server.engine.waiters) == 0
