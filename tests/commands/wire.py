"""Replies in the bytes of RESP, written for the tests: plainly, with no thought of speed."""

from collections.abc import Sequence

from kvstream.commands import (
    RESP3,
    Entries,
    ErrorReply,
    Map,
    NullArray,
    Reply,
    Simple,
    Streams,
)
from kvstream.commands.replies import Rows
from kvstream.records import Entry

CRLF = b"\r\n"


def wire(reply: Reply, protocol: int) -> bytes:
    """Return a reply as a server sends it."""
    if reply is None:
        return b"_\r\n" if protocol == RESP3 else b"$-1\r\n"
    if isinstance(reply, NullArray):
        return b"_\r\n" if protocol == RESP3 else b"*-1\r\n"
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, Simple):
        return b"+" + reply.text.encode() + CRLF
    if isinstance(reply, ErrorReply):
        return b"-" + reply.line + CRLF
    if isinstance(reply, Map):
        return _pairs(reply.pairs, protocol)
    if isinstance(reply, Entries):
        return _array([_entry(entry, protocol) for entry in reply.entries])
    if isinstance(reply, Streams):
        return _streams(reply, protocol)
    if isinstance(reply, Sequence) and not isinstance(reply, Rows):
        return _array([wire(item, protocol) for item in reply])
    raise TypeError(f"no reply of a stream command: {reply!r}")


def _array(items: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(items) + b"".join(items)


def _pairs(pairs: Sequence[tuple[Reply, Reply]], protocol: int) -> bytes:
    parts = [wire(part, protocol) for pair in pairs for part in pair]
    if protocol == RESP3:
        return b"%%%d\r\n" % len(pairs) + b"".join(parts)
    return _array(parts)


def _streams(reply: Streams, protocol: int) -> bytes:
    pairs = [(key, Entries(entries)) for key, entries in reply.streams]
    if protocol == RESP3:
        return _pairs(pairs, protocol)
    return _array([wire(pair, protocol) for pair in pairs])


def _entry(entry: Entry, protocol: int) -> bytes:
    fields: Reply = NullArray() if entry.fields is None else list(entry.flat)
    told = [] if entry.idle_ms is None else [entry.idle_ms, entry.deliveries]
    return wire([bytes(entry.id), fields, *told], protocol)
