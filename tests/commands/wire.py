"""A simple encoder of replies in RESP for the tests."""

from collections.abc import Sequence

from kvstream.commands.replies import (
    RESP3,
    Alike,
    EncodedEntries,
    Entries,
    ErrorReply,
    Gradual,
    Map,
    NullArray,
    Reply,
    Rows,
    Simple,
    StoredEntry,
    Streams,
)
from kvstream.types.ids import StreamID
from kvstream.types.records import AnyEntry

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
    if isinstance(reply, Rows | EncodedEntries):
        return _array([_entry(entry, protocol) for entry in reply])
    if isinstance(reply, StoredEntry):
        return _entry(reply.rows[0], protocol)
    if isinstance(reply, Entries):
        return _array([_entry(entry, protocol) for entry in reply.entries])
    if isinstance(reply, Streams):
        return _streams(reply, protocol)
    if isinstance(reply, Gradual):
        return _array([item for step in reply.steps for item in _items(step, protocol)])
    if isinstance(reply, Sequence) and not isinstance(reply, Rows | EncodedEntries):
        return _array([wire(item, protocol) for item in reply])
    raise TypeError(f"no reply of a stream command: {reply!r}")


def _items(step: object, protocol: int) -> list[bytes]:
    """Return the items that a step of a Gradual yields: those of stream commands are Alike."""
    if step is None or isinstance(step, int):
        return []
    assert isinstance(step, Alike)
    ids = [bytes(StreamID.unpack(eid)) for eid in step.ids]
    return [wire([eid, *step.rest], protocol) for eid in ids]


def _array(items: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(items) + b"".join(items)


def _pairs(pairs: Sequence[tuple[Reply, Reply]], protocol: int) -> bytes:
    parts = [wire(part, protocol) for pair in pairs for part in pair]
    if protocol == RESP3:
        return b"%%%d\r\n" % len(pairs) + b"".join(parts)
    return _array(parts)


def _streams(reply: Streams, protocol: int) -> bytes:
    pairs: list[tuple[Reply, Reply]] = []
    assert not isinstance(reply.streams, Gradual)
    for key, entries in reply.streams:
        assert not isinstance(entries, Gradual)
        pairs.append((key, Entries(entries)))
    if protocol == RESP3:
        return _pairs(pairs, protocol)
    return _array([wire(pair, protocol) for pair in pairs])


def _entry(entry: AnyEntry, protocol: int) -> bytes:
    fields: Reply = NullArray() if entry.fields is None else list(entry.flat)
    found = [] if entry.idle_ms is None else [entry.idle_ms, entry.deliveries]
    return wire([bytes(entry.id), fields, *found], protocol)
