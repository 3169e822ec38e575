"""Reply values, in plain Python and in the protocol."""

import pytest

from kvstream.commands.replies import (
    NULL_ARRAY,
    OK,
    RESP2,
    RESP3,
    Entries,
    ErrorReply,
    Map,
    Reply,
    Simple,
    Streams,
)
from kvstream.errors import InvalidID, NoGroup, StoreFull
from kvstream.types.ids import StreamID
from kvstream.types.records import DeletedEntry, Entry, RepeatedFields
from tests.commands.dispatcher import flatten
from tests.commands.wire import wire

PLAIN = Entry(StreamID(1, 2), {b"f": b"v", b"g": b"w"})
REPEATED = Entry(StreamID(1, 3), RepeatedFields((b"f", b"1", b"f", b"2")))
GONE = DeletedEntry(StreamID(1, 4))
CLAIMED = Entry(StreamID(1, 5), {b"f": b"v"}, 70, 3)

SHAPES: list[tuple[Reply, object, object, bytes, bytes]] = [
    (b"x", b"x", b"x", b"$1\r\nx\r\n", b"$1\r\nx\r\n"),
    (-5, -5, -5, b":-5\r\n", b":-5\r\n"),
    (None, None, None, b"$-1\r\n", b"_\r\n"),
    (NULL_ARRAY, None, None, b"*-1\r\n", b"_\r\n"),
    (OK, b"OK", b"OK", b"+OK\r\n", b"+OK\r\n"),
    (
        Map([(b"a", 1), (b"b", [NULL_ARRAY])]),
        [b"a", 1, b"b", [None]],
        {b"a": 1, b"b": [None]},
        b"*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n*1\r\n*-1\r\n",
        b"%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n*1\r\n_\r\n",
    ),
    (
        Entries([PLAIN, GONE]),
        [[b"1-2", [b"f", b"v", b"g", b"w"]], [b"1-4", None]],
        [[b"1-2", [b"f", b"v", b"g", b"w"]], [b"1-4", None]],
        b"*2\r\n*2\r\n$3\r\n1-2\r\n*4\r\n$1\r\nf\r\n$1\r\nv\r\n$1\r\ng\r\n$1\r\nw\r\n"
        b"*2\r\n$3\r\n1-4\r\n*-1\r\n",
        b"*2\r\n*2\r\n$3\r\n1-2\r\n*4\r\n$1\r\nf\r\n$1\r\nv\r\n$1\r\ng\r\n$1\r\nw\r\n"
        b"*2\r\n$3\r\n1-4\r\n_\r\n",
    ),
    (
        Streams([(b"k", [REPEATED])]),
        [[b"k", [[b"1-3", [b"f", b"1", b"f", b"2"]]]]],
        {b"k": [[b"1-3", [b"f", b"1", b"f", b"2"]]]},
        b"*1\r\n*2\r\n$1\r\nk\r\n*1\r\n*2\r\n$3\r\n1-3\r\n"
        b"*4\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\nf\r\n$1\r\n2\r\n",
        b"%1\r\n$1\r\nk\r\n*1\r\n*2\r\n$3\r\n1-3\r\n"
        b"*4\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\nf\r\n$1\r\n2\r\n",
    ),
    (
        Entries([CLAIMED]),
        [[b"1-5", [b"f", b"v"], 70, 3]],
        [[b"1-5", [b"f", b"v"], 70, 3]],
        b"*1\r\n*4\r\n$3\r\n1-5\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n:70\r\n:3\r\n",
        b"*1\r\n*4\r\n$3\r\n1-5\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n:70\r\n:3\r\n",
    ),
]


@pytest.mark.parametrize(("reply", "plain2", "plain3", "wire2", "wire3"), SHAPES)
def test_a_reply_has_one_shape_in_each_protocol(
    reply: Reply, plain2: object, plain3: object, wire2: bytes, wire3: bytes
) -> None:
    assert flatten(reply) == flatten(reply, RESP2) == plain2
    assert flatten(reply, RESP3) == plain3
    assert wire(reply, RESP2) == wire2
    assert wire(reply, RESP3) == wire3


def test_an_error_of_the_store_becomes_a_reply_with_its_code() -> None:
    assert ErrorReply.of(NoGroup("No such thing")).line == b"NOGROUP No such thing"
    assert ErrorReply.of(StoreFull("no space")).line == b"MISCONF no space"
    assert ErrorReply.of(InvalidID()).code == "ERR"


def test_an_error_stays_an_error_in_plain_python() -> None:
    error = ErrorReply("ERR", "x")
    assert flatten([error, Simple("a")]) == [error, b"a"]


def test_the_line_of_an_error_keeps_bytes_and_has_no_line_ends() -> None:
    text = b"k\xff\r\nx\n".decode("utf-8", "surrogateescape")
    assert ErrorReply("ERR", text).line == b"ERR k\xff  x"
