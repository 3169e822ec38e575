"""Encoded replies: every type in both protocols, complete, in pages, and as clients parse them."""

import math
import socket
import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis._parsers import _RESP2Parser, _RESP3Parser
from redis._parsers.encoders import Encoder
from redis.exceptions import ResponseError

from kvstream import ManualClock
from kvstream.commands.replies import (
    NULL_ARRAY,
    RESP2,
    RESP3,
    Alike,
    Boolean,
    Double,
    Entries,
    ErrorReply,
    Gradual,
    Map,
    Push,
    Reply,
    Rows,
    SetReply,
    Simple,
    StoredEntry,
    Streams,
    Verbatim,
)
from kvstream.errors import Corruption
from kvstream.layout.values import encode_flat
from kvstream.resp.replies import CHUNK, encode, encode_pages
from kvstream.types.ids import StreamID
from kvstream.types.records import DeletedEntry, Entry, RepeatedFields
from tests.commands.dispatcher import Dispatcher, flatten
from tests.commands.test_conversation import steps
from tests.commands.test_replies import SHAPES
from tests.commands.wire import wire

pytestmark = pytest.mark.usefixtures("way")

PREFIX = b"\x00\x00prefix"
U64 = st.integers(0, (1 << 64) - 1) | st.integers(0, 9)
IDS = st.builds(StreamID, U64, U64)
STRINGS = st.binary(max_size=30) | st.integers(0, 999).map(lambda size: b"x" * size)
FLAT = st.lists(st.tuples(STRINGS, STRINGS), min_size=1, max_size=5).map(
    lambda pairs: [part for pair in pairs for part in pair]
)
FIELDS = st.dictionaries(STRINGS, STRINGS, min_size=1, max_size=5) | FLAT.map(
    lambda flat: RepeatedFields(tuple(flat))
)
TOLD = st.integers(0, (1 << 63) - 1)
ENTRIES = st.lists(
    IDS.map(DeletedEntry)
    | st.tuples(IDS, FIELDS, st.none(), st.none()).map(lambda parts: Entry(*parts))
    | st.tuples(IDS, FIELDS, TOLD, TOLD).map(lambda parts: Entry(*parts)),
    max_size=4,
)


def row(eid: StreamID, flat: list[bytes]) -> tuple[bytes, bytes]:
    return PREFIX + eid.packed, encode_flat(flat)[0]


ROWS = st.lists(st.builds(row, IDS, FLAT), max_size=4).map(lambda page: Rows(page, len(PREFIX)))
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=30)


def first(pair: tuple[bytes, object]) -> bytes:
    return pair[0]


LEAVES: st.SearchStrategy[Any] = (
    st.none()
    | st.just(NULL_ARRAY)
    | STRINGS
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.builds(Simple, TEXT)
    | st.builds(Double, st.floats(allow_nan=False))
    | st.builds(Boolean, st.booleans())
    | st.builds(Verbatim, st.text(max_size=60), st.sampled_from(["txt", "mkd"]))
    | st.builds(Entries, ENTRIES | ROWS)
    | ROWS
    | st.builds(
        Streams,
        st.lists(st.tuples(st.binary(max_size=9), ENTRIES | ROWS), max_size=3, unique_by=first),
    )
)


@st.composite
def replies_of_leaves(draw: st.DrawFn) -> Any:
    """A function, since the repr of its choices would be endless."""
    return draw(LEAVES)


REPLIES: st.SearchStrategy[Any] = st.recursive(
    replies_of_leaves(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(SetReply, st.lists(inner, max_size=4))
        | st.builds(
            Map,
            st.lists(st.tuples(st.binary(max_size=9), inner), max_size=4, unique_by=first),
        )
    ),
    max_leaves=6,
)
NEW_SHAPES: list[tuple[Reply, object, object, bytes, bytes]] = [
    (Double(2.0), b"2", 2.0, b"$1\r\n2\r\n", b",2\r\n"),
    (Double(0.1), b"0.1", 0.1, b"$3\r\n0.1\r\n", b",0.1\r\n"),
    (Double(-math.inf), b"-inf", -math.inf, b"$4\r\n-inf\r\n", b",-inf\r\n"),
    (Boolean(True), 1, True, b":1\r\n", b"#t\r\n"),
    (Boolean(False), 0, False, b":0\r\n", b"#f\r\n"),
    (
        Verbatim("a: 1\r\n"),
        b"a: 1\r\n",
        b"a: 1\r\n",
        b"$6\r\na: 1\r\n\r\n",
        b"=10\r\ntxt:a: 1\r\n\r\n",
    ),
    (Verbatim("# x", "mkd"), b"# x", b"# x", b"$3\r\n# x\r\n", b"=7\r\nmkd:# x\r\n"),
    (
        SetReply([Simple("a"), 1]),
        [b"a", 1],
        [b"a", 1],
        b"*2\r\n+a\r\n:1\r\n",
        b"~2\r\n+a\r\n:1\r\n",
    ),
    (
        Push([b"m", None]),
        [b"m", None],
        [b"m", None],
        b"*2\r\n$1\r\nm\r\n$-1\r\n",
        b">2\r\n$1\r\nm\r\n_\r\n",
    ),
    (
        ErrorReply("ERR", "no"),
        ErrorReply("ERR", "no"),
        ErrorReply("ERR", "no"),
        b"-ERR no\r\n",
        b"-ERR no\r\n",
    ),
    ([], [], [], b"*0\r\n", b"*0\r\n"),
    (
        (1, [b"x"]),
        [1, [b"x"]],
        [1, [b"x"]],
        b"*2\r\n:1\r\n*1\r\n$1\r\nx\r\n",
        b"*2\r\n:1\r\n*1\r\n$1\r\nx\r\n",
    ),
    (Entries([]), [], [], b"*0\r\n", b"*0\r\n"),
    (
        StoredEntry(Rows([row(StreamID(1, 2), [b"f", b"v"])], len(PREFIX))),
        [b"1-2", [b"f", b"v"]],
        [b"1-2", [b"f", b"v"]],
        b"*2\r\n$3\r\n1-2\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n",
        b"*2\r\n$3\r\n1-2\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n",
    ),
    (Streams([]), [], {}, b"*0\r\n", b"%0\r\n"),
    (
        Streams([(b"k", Rows([row(StreamID(1, 2), [b"f", b"v"])], len(PREFIX)))]),
        [[b"k", [[b"1-2", [b"f", b"v"]]]]],
        {b"k": [[b"1-2", [b"f", b"v"]]]},
        b"*1\r\n*2\r\n$1\r\nk\r\n*1\r\n*2\r\n$3\r\n1-2\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n",
        b"%1\r\n$1\r\nk\r\n*1\r\n*2\r\n$3\r\n1-2\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n",
    ),
]


@pytest.mark.parametrize(("reply", "plain2", "plain3", "wire2", "wire3"), [*SHAPES, *NEW_SHAPES])
def test_a_reply_has_one_shape_in_each_protocol(
    reply: Reply, plain2: object, plain3: object, wire2: bytes, wire3: bytes
) -> None:
    assert (flatten(reply, RESP2), flatten(reply, RESP3)) == (plain2, plain3)
    assert (encode(reply, RESP2), encode(reply, RESP3)) == (wire2, wire3)
    assert b"".join(encode_pages(reply, RESP2)) == wire2
    assert b"".join(encode_pages(reply, RESP3)) == wire3


@pytest.mark.parametrize("protocol", [RESP2, RESP3])
def test_every_reply_of_the_recorded_conversation_is_encoded_as_recorded(
    protocol: int, dispatcher: Dispatcher, clock: ManualClock
) -> None:
    found = 0
    for command, answer in steps(protocol):
        if command == "~":
            clock.advance(int(answer))
            continue
        reply = encode(dispatcher.execute(command.encode().split()), protocol)
        assert reply.decode().replace("\r\n", " ").strip() == answer, command
        found += 1
    assert found == 86


@given(st.builds(Entries, ENTRIES) | st.builds(Streams, st.lists(st.tuples(STRINGS, ENTRIES))))
def test_entries_are_encoded_as_by_the_simple_encoder(reply: Reply) -> None:
    for protocol in (RESP2, RESP3):
        assert encode(reply, protocol) == wire(reply, protocol)


@given(ROWS)
def test_rows_are_encoded_like_their_entries(rows: Rows) -> None:
    for protocol in (RESP2, RESP3):
        assert encode(rows, protocol) == encode(Entries(rows), protocol)
        assert encode(rows, protocol) == encode(Entries(list(rows)), protocol)
        assert encode(rows, protocol) == encode(Entries(tuple(rows)), protocol)


@given(REPLIES)
def test_hiredis_parses_the_replies(reply: Reply) -> None:
    for protocol in (RESP2, RESP3):
        reader = hiredis.Reader()
        reader.feed(encode(reply, protocol))
        assert plain(reader.gets()) == flatten(reply, protocol)
        assert reader.gets() is False


@pytest.fixture(scope="module")
def wires() -> Iterator[tuple[socket.socket, dict[int, Any]]]:
    """A socket, and the parsers of redis-py that read its other end."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    encoder: Any = Encoder
    connection = SimpleNamespace(
        _sock=theirs, socket_timeout=20, encoder=encoder("utf-8", "strict", False)
    )
    kinds: dict[int, Any] = {RESP2: _RESP2Parser, RESP3: _RESP3Parser}
    parsers = {protocol: kind(1 << 16) for protocol, kind in kinds.items()}
    for parser in parsers.values():
        parser.on_connect(connection)
    with ours, theirs:
        yield ours, parsers


SMALL = REPLIES.filter(lambda reply: len(encode(reply, RESP2)) < 100_000)


@given(SMALL)
def test_redis_py_parses_the_replies(
    wires: tuple[socket.socket, dict[int, Any]], reply: Reply
) -> None:
    ours, parsers = wires
    for protocol, parser in parsers.items():
        ours.sendall(encode(reply, protocol))
        got = parser.read_response(disable_decoding=True)
        assert plain(got) == flatten(reply, protocol)
        assert not parser.can_read(0)


def plain(got: Any) -> Any:
    """Return a value of a client with its types of lists and texts converted to ours."""
    if isinstance(got, list):
        return [plain(item) for item in got]
    if isinstance(got, dict):
        return {name: plain(value) for name, value in got.items()}
    return got.encode() if isinstance(got, str) else got


@pytest.mark.parametrize("protocol", [RESP2, RESP3])
def test_clients_parse_errors_within_replies(
    wires: tuple[socket.socket, dict[int, Any]], protocol: int
) -> None:
    reply = encode([ErrorReply("WRONGTYPE", "bad\r\nkind"), 1], protocol)
    reader = hiredis.Reader()
    reader.feed(reply)
    error, one = reader.gets()
    assert (str(error), one) == ("WRONGTYPE bad  kind", 1)
    wires[0].sendall(reply)
    error, one = wires[1][protocol].read_response()
    assert isinstance(error, ResponseError)
    assert (str(error).removeprefix("WRONGTYPE "), one) == ("bad  kind", 1)


def test_clients_parse_pushes() -> None:
    reader = hiredis.Reader()
    reader.feed(encode(Push([b"monitor", b"line"]), RESP3))
    assert type(reader.gets()) is hiredis.PushNotification


@given(REPLIES)
def test_the_pages_joined_are_the_reply(reply: Reply) -> None:
    for protocol in (RESP2, RESP3):
        pages = list(encode_pages(reply, protocol))
        assert b"".join(pages) == encode(reply, protocol)
        assert all(len(page) < 2 * CHUNK for page in pages)


def test_an_empty_step_ends_a_page() -> None:
    steps = iter([None, 3, [b"a"], None, Alike([StreamID(1, 2).packed] * 2, [b"c", 7])])
    pages = list(encode_pages([Gradual(steps)], RESP2))
    assert pages[:2] == [b"*1\r\n", b"*3\r\n$1\r\na\r\n"]
    assert next(encode_pages(Gradual(iter([None, 0])), RESP2)) == b""
    assert b"".join(pages) == wire([[b"a", [b"1-2", b"c", 7], [b"1-2", b"c", 7]]], RESP2)


def page_of(count: int, size: int) -> list[tuple[bytes, bytes]]:
    return [row(StreamID(1, at), [b"f", b"v" * size]) for at in range(count)]


@pytest.mark.parametrize("size", [10, 1000, 5 * CHUNK])
def test_a_page_is_made_on_request(size: int) -> None:
    page = page_of(CHUNK * 3 // size + 300, size)
    page[-1] = (page[-1][0], b"\x01\xc1")
    for reply in (Rows(page, len(PREFIX)), Streams([(b"k", Rows(page, len(PREFIX)))])):
        pages = encode_pages(reply, RESP2)
        assert next(pages).startswith(b"*")
        with pytest.raises(Corruption):
            list(pages)
        with pytest.raises(Corruption):
            encode(reply, RESP2)


@pytest.mark.parametrize("size", [CHUNK, CHUNK + 1, 200 * CHUNK])
def test_a_long_string_is_encoded_in_slices(size: int) -> None:
    long = b"x" * size
    for reply in (long, [b"a", long, long], Map([(b"a", long)])):
        assert b"".join(encode_pages(reply, RESP3)) == wire(reply, RESP3) == encode(reply, RESP3)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    assert sum(map(len, encode_pages([long, long], RESP2))) > 2 * size
    assert tracemalloc.get_traced_memory()[1] - before < 5 * CHUNK
    tracemalloc.stop()


@pytest.mark.parametrize(
    "bad",
    [
        (PREFIX + b"short", encode_flat([b"f", b"v"])[0]),
        (PREFIX + StreamID(1, 1).packed, b""),
        (PREFIX + StreamID(1, 1).packed, b"\x01\x80"),
        (PREFIX + StreamID(1, 1).packed, b"\x01\x81\xa1f\x05"),
        (PREFIX + StreamID(1, 1).packed, b"\x02\x91\xa1f"),
        (PREFIX + StreamID(1, 1).packed, b"\x07\x81\xa1f\xa1v"),
        (PREFIX + StreamID(1, 1).packed, encode_flat([b"f", b"v"])[0] + b"\xa1"),
        (PREFIX + StreamID(1, 1).packed, encode_flat([b"f", b"v"])[0][:-1]),
    ],
    ids=["key", "empty", "no fields", "number", "odd", "format", "more", "less"],
)
def test_a_damaged_row_is_no_reply(bad: tuple[bytes, bytes]) -> None:
    rows = Rows([*page_of(3, 5), bad], len(PREFIX))
    with pytest.raises(Corruption):
        encode(rows, RESP2)
    with pytest.raises(Corruption):
        list(encode_pages([Entries(rows)], RESP3))
    with pytest.raises(Corruption):
        encode(Map([(b"last-entry", StoredEntry(Rows([bad], len(PREFIX))))]), RESP2)


def test_rows_are_a_sequence_of_entries() -> None:
    rows = Rows(page_of(3, 1), len(PREFIX))
    first = Entry(StreamID(1, 0), {b"f": b"v"})
    assert (len(rows), rows[0], rows[1:][0].id) == (3, first, StreamID(1, 1))
    assert first in rows
    assert flatten(rows) == flatten(Entries(list(rows)))
    assert repr(Rows([], 4)) == "Rows([], 4)"
    assert (list(Rows([], 4)), encode(Rows([], 4), RESP2)) == ([], b"*0\r\n")
