"""Plain XADDs that arrive together run together, with the effects of single ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvstream.commands.append import plain_trim
from kvstream.commands.replies import ErrorReply
from kvstream.errors import StoreFull, UnknownOutcome
from kvstream.layout.values import encode_flat
from kvstream.operations.checks import check
from kvstream.resp.requests import RequestReader
from kvstream.server.compiled import twins
from kvstream.server.runtime import xadd_batching
from kvstream.server.runtime.arrivals import PythonArrivals
from kvstream.server.runtime.client import PIECE
from kvstream.server.runtime.xadd_batching import PythonXaddBatch, requests_of
from kvstream.storage.batch import Batch
from kvstream.types.ids import StreamID
from kvstream.types.options import ENTRY_BYTES_MAX
from tests.server.talking import Server, Talker, request

compiled = pytest.mark.skipif(twins is None, reason="batches are found by compiled code alone")

WORDS = st.binary(max_size=40) | st.sampled_from([b"f", b"g", b"x" * 70, b"", b"1", b"*"])
FIELDS = st.lists(WORDS, min_size=2, max_size=8).map(lambda words: words[: len(words) // 2 * 2])
TRIMS = st.sampled_from(
    [
        "MAXLEN ~ 4",
        "MAXLEN 4",
        "maxlen = 2",
        "MAXLEN 0",
        "MAXLEN ~ 4 LIMIT 2",
        "MAXLEN ~ 4 limit 0",
        "MINID ~ 5000-6",
        "MINID 5000-6",
        "minid 5000-3",
        "LIMIT 0 MINID ~ 6000",
    ]
).map(str.split)
PLAIN = st.builds(
    lambda name, key, trim, fields: request(name, key, *trim, b"*", *fields),
    st.sampled_from(["XADD", "xadd"]),
    st.sampled_from([b"s", b"s", b"s", b"t"]),
    st.just([]) | TRIMS,
    FIELDS,
)
OTHER = st.sampled_from(
    [
        request("XADD", "s", "1-1", "f", "v"),
        request("XADD", "s", "*", "f"),
        request("XADD", "s", "NOMKSTREAM", "*", "f", "v"),
        request("XADD", "s", "MAXLEN", "-1", "*", "f", "v"),
        request("XADD", "s", "MAXLEN", "4", "LIMIT", "2", "*", "f", "v"),
        request("XADD", "s", "MAXLEN", "4", "MINID", "2", "*", "f", "v"),
        request("XADD", "s", "MAXLEN", "4", "5000-70", "*", "v"),
        request("XADD", "s", "MAXLEN", "*", "*", "f", "v"),
        request("XADD", "s", "MINID", "~", "5000-6", "ACKED", "*", "f", "v"),
        request("XADD", "s", "MAXLEN", "~", "4", "NOMKSTREAM", "*", "f", "v"),
        request("XADD", "string", "MAXLEN", "~", "4", "*", "f", "v"),
        request("XTRIM", "s", "MAXLEN", "~", "3"),
        request("XDEL", "s", "5000-1", "5000-2", "5000-4", "5000-9"),
        request("Xadd", "s", "*", "f", "v"),
        request("XADD", "s", "*", "f", "1", "f", "2"),
        request("XADD", "string", "*", "f", "v"),
        request("XLEN", "s"),
        request("PING"),
        request("MULTI"),
        request("EXEC"),
        request("SELECT", "1"),
        request("SELECT", "0"),
        request("CLIENT", "REPLY", "SKIP"),
        request("DEL", "s"),
        b"XADD s * f v\r\n",
    ]
)


def plain(*values: str, key: str = "s", trim: str = "") -> bytes:
    return b"".join(request("XADD", key, *trim.split(), "*", "f", value) for value in values)


def taken_apart(argv: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return the options of a plain XADD, and its fields."""
    at = argv.index(b"*", 2)
    return argv[2:at], argv[at + 1 :]


def send(server: Server, talker: Talker, data: bytes) -> None:
    server.executor.receive(talker.client, data)


def batch_of(data: bytes) -> PythonXaddBatch | None:
    found: PythonXaddBatch | None = twins.take_batch(None, data, ENTRY_BYTES_MAX, plain_trim)
    return found


def ids(said: bytes) -> list[bytes]:
    return said.split(b"\r\n")[1::2]


@compiled
@given(st.lists(PLAIN, max_size=6).map(b"".join))
@example(plain("v" * 2000))
@example(request("XADD", "s", "*", *[b"%d" % n for n in range(32)]))
def test_a_batch_is_parsed_like_its_single_requests(data: bytes) -> None:
    found = batch_of(data)
    reader = RequestReader()
    reader.feed(data)
    requests = reader.take()
    parts = [taken_apart(argv) for argv in requests]
    is_one = len({argv[1] for argv in requests}) == 1 and all(
        fields and len(set(fields[::2])) == len(fields[::2]) and options[:1] != [b"LIMIT"]
        for options, fields in parts
    )
    assert (found is not None) == is_one
    if found is not None:
        assert found.key == requests[0][1]
        assert found.entries == [encode_flat(fields) for _, fields in parts]
        trims = [plain_trim(options) if options else None for options, _ in parts]
        assert found.trims == (trims if any(trims) else None)
        assert requests_of(found) == requests


@compiled
@given(
    st.lists(PLAIN | OTHER, min_size=1, max_size=4).map(b"".join),
    st.integers(0, 1 << 16),
    st.binary(max_size=3),
)
def test_damaged_bytes_are_no_batch_or_a_valid_one(data: bytes, at: int, junk: bytes) -> None:
    at %= len(data)
    for damaged in (data[:at], data[:at] + junk + data[at + 1 :], data[at:]):
        found = batch_of(damaged)
        if found is not None:
            assert requests_of(found) != []
            parts = [taken_apart(argv) for argv in requests_of(found)]
            assert found.entries == [encode_flat(fields) for _, fields in parts]


@compiled
def test_an_argument_with_the_bytes_of_two_options_does_not_trim(server: Server) -> None:
    ann = server.client()
    ann.ask("XADD", "s", "*", "f", "v")
    assert batch_of(plain("1", trim="MAXLEN 5")) is not None
    assert ann.ask("XADD", "s", "MAXLEN\r\n$1\r\n5", "*", "f", "v").startswith(b"-ERR Invalid")


@compiled
def test_too_large_entries_are_no_batch() -> None:
    assert twins.take_batch(None, plain("v" * 100), 100, plain_trim) is None
    assert twins.take_batch(None, plain("v" * 100), 1000, plain_trim) is not None


@compiled
def test_too_many_bytes_are_no_batch(server: Server) -> None:
    ann, executor = server.client(), server.executor
    for most, batches in (100, 0), (1000, 1):
        receive = twins.Arrivals(PIECE, most, ENTRY_BYTES_MAX, plain_trim, executor)
        receive(ann.client, plain("v" * 100))
        assert len(executor.xadd_batches) == batches
        server.turn()


def conversation(directory: Path, sent: list[tuple[int, list[bytes]]]) -> list[bytes]:
    """Return the output of three clients, turn by turn, and the final contents of the store."""
    server = Server(directory)
    server.engine._now_ms = lambda: 5_000
    talkers = [server.client() for _ in range(3)]
    talkers[0].ask("SET", "string", "x")
    talkers[0].ask("CONFIG", "SET", "stream-node-max-entries", "3")
    heard = [talkers[0].ask("PING")]
    for number, chunks in sent:
        for chunk in chunks:
            send(server, talkers[number], chunk)
            if number == 2:
                server.turn()
        server.turn()
        heard += [talker.heard() for talker in talkers]
    reader = server.client()
    heard += [reader.ask("XRANGE", key, "-", "+") for key in ("s", "t")]
    heard += [reader.ask("XINFO", "STREAM", key) for key in ("s", "t")]
    rows = server.executor.statistics.commands
    counted = [(name, row.calls, row.failed, row.rejected) for name, row in sorted(rows.items())]
    heard.append(repr([counted, server.executor.statistics.changes]).encode())
    assert server.engine.run(check) == []
    server.engine.close()
    return heard


def test_a_batch_has_the_same_effects_as_single_requests(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    @settings(max_examples=40)
    @given(st.lists(st.tuples(st.integers(0, 2), st.lists(PLAIN | OTHER, max_size=6)), max_size=6))
    def prove(sent: list[tuple[int, list[bytes]]]) -> None:
        taken = conversation(tmp_path_factory.mktemp("taken") / "store", sent)
        with patch("kvstream.server.runtime.executor.Arrivals", PythonArrivals):
            apart = conversation(tmp_path_factory.mktemp("apart") / "store", sent)
            with patch("kvstream.server.runtime.xadd_batching._plain", lambda argv, most: None):
                alone = conversation(tmp_path_factory.mktemp("alone") / "store", sent)
        assert taken == apart == alone

    prove()


def test_batches_of_many_clients_are_one_append_and_each_gets_its_ids(server: Server) -> None:
    ann, bob = server.client(), server.client()
    send(server, ann, plain("1", "2"))
    send(server, bob, plain("3"))
    send(server, ann, plain("4"))
    send(server, bob, plain("5", key="t"))
    with patch.object(server.engine.database, "write", wraps=server.engine.database.write) as write:
        server.turn()
    assert write.call_count == 1
    reply, other = ids(ann.heard()), ids(bob.heard())
    assert sorted([*reply, other[0]]) == sorted({*reply, other[0]})
    assert len(reply) == 3
    assert ann.ask("XLEN", "s") == b":4\r\n"
    assert ann.client.commands_run == 4
    assert server.executor.statistics.of("xadd").calls == 5


def test_each_request_of_a_refused_batch_is_refused(server: Server) -> None:
    ann = server.client()
    ann.ask("SET", "s", "x")
    send(server, ann, plain("1", "2"))
    server.turn()
    assert ann.heard().count(b"-WRONGTYPE") == 2


def test_a_waiting_reader_gets_the_first_entry_of_a_batch(server: Server) -> None:
    ann, bob = server.client(), server.client()
    ann.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    server.turn()
    send(server, bob, plain("1", "2"))
    server.turn()
    assert ann.heard().count(b"$1\r\n1\r\n") == 1
    assert len(ids(bob.heard())) == 2


def test_a_batch_of_a_user_without_write_rights_is_refused(server: Server) -> None:
    ann, admin = server.client(), server.client()
    admin.ask("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@read")
    ann.ask("AUTH", "reader", "x")
    send(server, ann, plain("1", "2"))
    server.turn()
    assert ann.heard().count(b"-NOPERM") == 2


def test_rights_revoked_in_the_same_turn_apply_to_a_batch(server: Server) -> None:
    ann, admin = server.client(), server.client()
    admin.ask("ACL", "SETUSER", "writer", "on", "nopass", "~*", "+@all")
    ann.ask("AUTH", "writer", "x")
    send(server, ann, plain("1"))
    server.executor.acl.set_user(b"writer", [b"-xadd"])
    server.turn()
    assert ann.heard().startswith(b"-NOPERM")


def test_monitors_see_a_batch(server: Server) -> None:
    ann, eve = server.client(), server.client()
    eve.ask("MONITOR")
    send(server, ann, plain("1", "2"))
    server.turn()
    assert eve.heard().count(b'"XADD" "s" "*" "f"') == 2
    assert len(ids(ann.heard())) == 2


def test_requests_of_a_client_closed_before_the_turn_write_nothing(server: Server) -> None:
    ann, bob = server.client(), server.client()
    send(server, ann, plain("1"))
    ann.leave()
    server.turn()
    assert ann.heard() == b""
    assert bob.ask("XLEN", "s") == b":0\r\n"


def test_each_request_of_a_batch_gets_the_error_of_the_commit(server: Server) -> None:
    ann = server.client()
    send(server, ann, plain("1", "2"))

    def full(batch: Batch, frees: bool = False) -> int:
        raise StoreFull("no room")

    with patch.object(server.engine.database, "write", full):
        server.turn()
    said = ann.heard()
    assert said.count(b"no room") == 2
    assert ann.ask("XLEN", "s") == b":0\r\n"


@pytest.mark.parametrize("kind", [PythonXaddBatch, xadd_batching.XaddBatch])
def test_each_request_of_a_batch_gets_the_error_of_the_fsync(
    ann: Talker, kind: type[PythonXaddBatch]
) -> None:
    batch = kind(ann.client, b"s", [encode_flat([b"f", b"v"])] * 2, b"")
    batch.replies = b"$3\r\n1-1\r\n"
    batch.fail(ErrorReply("ERR", "lost", UnknownOutcome))
    assert batch.encode() == b"-ERR lost\r\n" * 2
    ann.ask("KVSTREAM.ERRORS", "ON")
    batch.fail(ErrorReply("ERR", "lost", UnknownOutcome))
    assert batch.encode() == b"-ERR UnknownOutcome: lost\r\n" * 2


@compiled
@pytest.mark.parametrize("clients", [1, 3])
def test_both_twins_gather_and_answer_alike(server: Server, clients: int) -> None:
    talkers = [server.client().client for _ in range(clients)]
    talkers[-1].on_short_path = clients == 1
    entry = encode_flat([b"f", b"v"])
    trim = plain_trim([b"MAXLEN", b"5"])
    found: list[Any] = []
    twin_functions: list[tuple[Callable[..., Any], ...]] = [
        (
            xadd_batching.gather_in_python,
            xadd_batching.entries_in_python,
            xadd_batching.answer_in_python,
        ),
        (twins.gather, twins.entries_of, twins.answer),
    ]
    for (gather, entries_of, answer), kind in zip(
        twin_functions, [PythonXaddBatch, twins.XaddBatch], strict=True
    ):
        made: list[Any] = [
            kind(client, b"k", [entry] * (n + 1), b"", [trim] * (n + 1) if n == 1 else None)
            for n, client in enumerate(talkers)
        ]
        waiting: dict[bytes, list[PythonXaddBatch]] = {}
        gathered = gather(made, waiting, 3)
        together = [batch for same in waiting.values() for batch in same]
        entries, trims = entries_of(together)
        answer(together, [StreamID(7, n) for n in range(len(entries))])
        others = [made.index(batch) for batch in gathered[1]]
        found.append((gathered[0], others, gathered[2], gathered[3], entries, trims))
        found[-1] += tuple(batch.encode() for batch in made)
        found[-1] += tuple(client.last_command for client in talkers)
    assert found[0] == found[1]


def values(server: Server, key: str = "s") -> list[bytes]:
    """Return the entries of a stream, each by its one value."""
    return server.client().ask("XRANGE", key, "-", "+").split(b"\r\n")[8::8]


def test_requests_after_a_waiting_batch_are_answered_after_it(server: Server) -> None:
    ann, bob = server.client(), server.client()
    bob.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    send(server, ann, plain("1", "2", "3"))
    with patch("kvstream.server.runtime.executor.TURN_REQUESTS", 1):
        server.executor.run()
    send(server, ann, plain("4"))
    server.turn()
    assert values(server) == [b"1", b"2", b"3", b"4"]


def test_batches_longer_than_a_turn_are_answered_in_order(server: Server) -> None:
    ann = server.client()
    for chunk in (plain("1", "2"), plain("3", "4"), plain("5"), request("XLEN", "s"), plain("6")):
        send(server, ann, chunk)
    with patch("kvstream.server.runtime.executor.TURN_REQUESTS", 2):
        server.turn()
    assert values(server) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert ann.heard().split(b"\r\n")[10] == b":5"


def test_requests_after_a_paused_batch_are_answered_after_it(server: Server) -> None:
    ann, bob = server.client(), server.client()
    bob.ask("CLIENT", "PAUSE", "1000", "WRITE")
    for value in ("1", "2", "3"):
        send(server, ann, plain(value, value))
        server.turn()
    server.wait(1.1)
    assert values(server) == [b"1", b"1", b"2", b"2", b"3", b"3"]


def test_batches_to_several_streams_are_answered_in_order(server: Server) -> None:
    ann, bob = server.client(), server.client()
    bob.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    server.engine._now_ms = lambda: 5
    for chunk in (plain("0", key="t"), plain("1"), plain("2", "3", key="t"), plain("4", key="u")):
        send(server, ann, chunk)
    server.turn()
    assert ids(ann.heard()) == [b"5-0", b"5-0", b"5-1", b"5-2", b"5-0"]
    assert values(server, "t") == [b"0", b"2", b"3"]


@pytest.mark.parametrize(
    "before",
    [
        ("PING",),
        ("SET", "s", "v"),
        ("MONITOR",),
        ("CONFIG", "SET", "slowlog-log-slower-than", "0"),
    ],
)
def test_each_xadd_counts_as_a_use_of_its_connection_and_as_one_request(
    server: Server, before: tuple[str, ...]
) -> None:
    ann, bob = server.client(), server.client()
    bob.ask(*before)
    server.now += 100
    requests = server.executor.statistics.requests
    send(server, ann, plain("1", "2"))
    server.turn()
    assert ann.client.last_used == server.now
    assert server.executor.statistics.requests == requests + 2
