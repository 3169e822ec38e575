"""Encode reply values in RESP2 and RESP3.

This module knows the types of kvstream.commands.replies, no command and no socket. Entries are
encoded from their records, rows from the stored bytes.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Final

from kvstream.commands.replies import (
    RESP2,
    RESP3,
    Alike,
    Attributed,
    BigNumber,
    Boolean,
    Bulk,
    Double,
    EncodedEntries,
    Entries,
    ErrorReply,
    Gradual,
    Map,
    NullArray,
    Paged,
    Push,
    Pushes,
    Reply,
    Rows,
    SetReply,
    Shared,
    Simple,
    StoredEntry,
    Streams,
    Verbatim,
)
from kvstream.errors import Corruption
from kvstream.layout.rows import TEXT_BYTES_MAX, Text, text_of
from kvstream.resp import twins
from kvstream.types.ids import StreamID
from kvstream.types.records import AnyEntry

CHUNK: Final = 64 << 10
"""Bytes from which on a page of a long reply is complete."""
PARTS_TOGETHER: Final = 256
"""Parts of a page at most: a part may take a microsecond."""
ROWS_TOGETHER: Final = 128
"""Rows decoded by one call if they cannot be written as stored."""

_Leaf = Callable[[Any, int], bytes]
_Branch = Callable[[Any, int], tuple[bytes, Iterable[Any]]]
_Pages = Callable[[Any, int], Iterator[bytes]]
_FIELD = b"$%d\r\n%b\r\n"
_FIELDS = [_FIELD * count for count in range(65)]
"""Templates of so many strings: one formatting makes all fields of an entry."""


def encode(reply: Reply, protocol: int) -> bytes:
    """Encode a reply; raise Corruption if it has damaged rows."""
    kind: Any = type(reply)
    if kind is bytes:  # an ID: the most common reply
        return b"$%d\r\n%b\r\n" % (len(reply), reply)  # type: ignore[arg-type, str-format]
    leaf = _LEAVES.get(kind)
    if leaf is not None:
        return leaf(reply, protocol)
    if twins is not None:
        encoded = twins.encode_reply(reply, protocol)
        if encoded is not None:
            return encoded
    return b"".join(_PAGES.get(kind, _parts)(reply, protocol))


def encode_all(replies: list[Reply], protocol: int) -> bytes:
    """Encode replies one after another; raise Corruption if one has damaged rows."""
    if twins is not None:
        return twins.encode_all(replies, protocol, encode)
    return b"".join([encode(reply, protocol) for reply in replies])


def encode_pages(reply: Reply, protocol: int) -> Iterator[bytes]:
    """Yield a reply in pages of about 64 KB, each made when it is asked for.

    Each takes little time; some may be empty. Corruption is raised at the damaged row, in the
    middle of the reply: then the connection can only be closed.
    """
    page: list[bytes] = []
    size = 0
    for part in _parts(reply, protocol):
        page.append(part)
        size += len(part)
        if size >= CHUNK or len(page) >= PARTS_TOGETHER or not part:
            yield b"".join(page)
            page, size = [], 0
    if page:
        yield b"".join(page)


def _parts(reply: Reply, protocol: int) -> Iterator[bytes]:
    """Yield a reply in whole strings, entries and so on, each made when it is asked for."""
    kind: Any = type(reply)
    leaf = _LEAVES.get(kind)
    if leaf is _bulk and len(reply) > CHUNK:  # type: ignore[arg-type]
        yield from _slices(reply)  # type: ignore[arg-type]
    elif leaf is not None:
        yield leaf(reply, protocol)
    elif kind in _PAGES:
        yield from _PAGES[kind](reply, protocol)
    else:
        branch: _Branch = _BRANCHES.get(kind, _array)
        yield from _with_children(*branch(reply, protocol), protocol)


def _with_children(head: bytes, children: Iterable[Any], protocol: int) -> Iterator[bytes]:
    yield head
    yield from _children(children, protocol)


def _children(children: Iterable[Any], protocol: int) -> Iterator[bytes]:
    for child in children:
        leaf = _LEAVES.get(type(child))
        if leaf is None or (leaf is _bulk and len(child) > CHUNK):
            yield from _parts(child, protocol)
        else:
            yield leaf(child, protocol)


def _slices(data: bytes) -> Iterator[bytes]:
    yield b"$%d\r\n" % len(data)
    for at in range(0, len(data), CHUNK):
        yield data[at : at + CHUNK]
    yield b"\r\n"


# --- values without parts -----------------------------------------------------------------------


def _bulk(data: bytes, _protocol: int) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _double(reply: Double, protocol: int) -> bytes:
    return b",%b\r\n" % reply.text if protocol == RESP3 else _bulk(reply.text, protocol)


def _big_number(reply: BigNumber, protocol: int) -> bytes:
    digits = reply.digits.encode()
    return b"(%b\r\n" % digits if protocol == RESP3 else _bulk(digits, protocol)


def _boolean(reply: Boolean, protocol: int) -> bytes:
    if protocol == RESP3:
        return b"#t\r\n" if reply.truth else b"#f\r\n"
    return b":1\r\n" if reply.truth else b":0\r\n"


def _verbatim(reply: Verbatim, protocol: int) -> bytes:
    data = reply.data
    if protocol == RESP3:
        return b"=%d\r\n%b:%b\r\n" % (len(data) + 4, reply.format.encode(), data)
    return _bulk(data, protocol)


def _simple(reply: Simple, _protocol: int) -> bytes:
    return reply.line


def _null(_reply: None, protocol: int) -> bytes:
    return b"_\r\n" if protocol == RESP3 else b"$-1\r\n"


def _null_array(_reply: NullArray | None, protocol: int) -> bytes:
    return b"_\r\n" if protocol == RESP3 else b"*-1\r\n"


def _encode_shared(reply: Shared, protocol: int) -> bytes:
    encoded = reply.encoded.get(protocol)
    if encoded is None:
        encoded = reply.encoded[protocol] = encode(reply.reply, protocol)
    return encoded


def _encode_entries(reply: EncodedEntries, _protocol: int) -> bytes:
    return b"".join((b"*%d\r\n" % len(reply), *reply.parts))


_LEAVES: dict[type, _Leaf] = {
    bytes: _bulk,
    EncodedEntries: _encode_entries,
    Shared: _encode_shared,
    int: lambda reply, _: b":%d\r\n" % reply,
    type(None): _null,
    NullArray: _null_array,
    Simple: _simple,
    ErrorReply: ErrorReply.encoded,
    BigNumber: _big_number,
    Double: _double,
    Boolean: _boolean,
    Verbatim: _verbatim,
}


# --- values with parts: a head, then the parts ---------------------------------------------------


def _array(items: Sequence[Reply], _protocol: int) -> tuple[bytes, Iterable[Any]]:
    return b"*%d\r\n" % len(items), items


def _map(reply: Map, protocol: int) -> tuple[bytes, Iterable[Any]]:
    count = len(reply.pairs)
    head = b"%%%d\r\n" % count if protocol == RESP3 else b"*%d\r\n" % (2 * count)
    return head, chain.from_iterable(reply.pairs)


def _encode_attributed(reply: Attributed, protocol: int) -> tuple[bytes, Iterable[Any]]:
    if protocol != RESP3:
        return b"", (reply.reply,)
    pairs = reply.attributes.pairs
    return b"|%d\r\n" % len(pairs), chain(chain.from_iterable(pairs), (reply.reply,))


def _items(mark: bytes) -> _Branch:
    def open_items(reply: SetReply | Push, protocol: int) -> tuple[bytes, Iterable[Any]]:
        head = mark if protocol == RESP3 else b"*"
        return b"%b%d\r\n" % (head, len(reply.items)), reply.items

    return open_items


_BRANCHES: dict[type, _Branch] = {
    Map: _map,
    Attributed: _encode_attributed,
    SetReply: _items(b"~"),
    Push: _items(b">"),
    Pushes: lambda reply, _: (b"", reply.pushes),
}


# --- entries, a page at a time ------------------------------------------------------------------


def _streams(reply: Streams, protocol: int) -> Iterator[bytes]:
    streams = reply.streams
    for step in streams.steps if isinstance(streams, Gradual) else (len(streams), streams):
        if step is None:
            yield b""
        elif isinstance(step, int):
            yield b"%b%d\r\n" % (b"%" if protocol == RESP3 else b"*", step)
        else:
            yield from _pairs(step, protocol)  # type: ignore[arg-type]


def _pairs(pairs: Sequence[Any], protocol: int) -> Iterator[bytes]:
    head = b"" if protocol == RESP3 else b"*2\r\n"
    for key, entries in pairs:
        if type(entries) is Rows and twins is not None:
            encoded = twins.encode_rows(entries.page, entries.prefix, 0, CHUNK)
            if encoded is not None and encoded[1] == len(entries.page):  # most streams have few
                parts = head, len(key), key, encoded[1], encoded[0]
                yield b"%b$%d\r\n%b\r\n*%d\r\n%b" % parts
                continue
        yield b"%b$%d\r\n%b\r\n" % (head, len(key), key)
        yield from _entries(entries, protocol)


def _entries(entries: Sequence[AnyEntry] | Gradual, protocol: int) -> Iterator[bytes]:
    if type(entries) is Rows:
        return _rows(entries, protocol)
    if type(entries) is EncodedEntries:
        return chain((b"*%d\r\n" % len(entries),), entries.parts)
    if isinstance(entries, Gradual):
        return _gradual(entries, protocol)
    return _records(entries, protocol)


def _records(entries: Sequence[AnyEntry], protocol: int) -> Iterator[bytes]:
    yield b"*%d\r\n" % len(entries)
    at = 0
    if twins is not None and type(entries) is list:
        while at < len(entries):
            encoded = twins.encode_entries(entries, at, CHUNK, protocol)
            if encoded is None:
                break
            part, at = encoded
            yield part
    for entry in entries[at:]:
        yield _entry(entry, protocol)


def _rows(rows: Rows, protocol: int) -> Iterator[bytes]:
    yield b"*%d\r\n" % len(rows)
    yield from _items_of_rows(rows, protocol)


def _items_of_rows(rows: Rows, protocol: int) -> Iterator[bytes]:
    page = rows.page
    at = 0
    if twins is not None and type(page) is list:
        while at < len(page):
            encoded = twins.encode_rows(page, rows.prefix, at, CHUNK)
            if encoded is None:
                break
            part, at = encoded
            yield part
    for start in range(at, len(page), ROWS_TOGETHER):
        for entry in Rows(page[start : start + ROWS_TOGETHER], rows.prefix):
            yield _encode_stored(entry, protocol)


def write_rows(page: list[tuple[bytes, bytes]], prefix: int, most: int) -> Text | None:
    """Return the text of rows; None if it exceeds ``most`` bytes, or a row is not plain."""
    if twins is not None:
        written = twins.write_rows(page, prefix, most)
        return None if written is None else text_of(written)
    return write_rows_in_python(page, prefix, most)


def write_rows_in_python(page: list[tuple[bytes, bytes]], prefix: int, most: int) -> Text | None:
    """The Python twin of ``write_rows``."""
    if most > TEXT_BYTES_MAX or sum(len(value) for _, value in page) > most:
        return None
    try:
        parts = [_encode_stored(entry, RESP2) for entry in Rows(page, prefix)]
    except Corruption:
        return None
    ends = array("I", accumulate(map(len, parts)))
    if ends and ends[-1] > most:
        return None
    return text_of((b"".join([key[prefix:] for key, _ in page]), ends.tobytes(), b"".join(parts)))


def _encode_stored(entry: AnyEntry, protocol: int) -> bytes:
    """Return an entry whose value decoding accepts, but the writer of rows does not."""
    if not entry.fields:
        raise Corruption("a message's value holds no fields")
    try:
        return _entry(entry, protocol)
    except TypeError as error:
        raise Corruption(f"a message's value holds more than bytes: {error}") from None


def _entry(entry: AnyEntry, protocol: int) -> bytes:
    eid = b"%d-%d" % entry.id
    fields = _null_array(None, protocol) if entry.fields is None else _strings(entry.flat)
    if entry.idle_ms is None:
        return b"*2\r\n$%d\r\n%b\r\n%b" % (len(eid), eid, fields)
    idle = encode(entry.idle_ms, protocol) + encode(entry.deliveries, protocol)
    return b"*4\r\n$%d\r\n%b\r\n%b%b" % (len(eid), eid, fields, idle)


def _strings(flat: Sequence[bytes]) -> bytes:
    count = len(flat)
    template = _FIELDS[count] if count < len(_FIELDS) else _FIELD * count
    return b"*%d\r\n" % count + template % tuple(
        chain.from_iterable(zip(map(len, flat), flat, strict=True))
    )


# --- values that are made in steps ---------------------------------------------------------------


def _gradual(reply: Gradual, protocol: int) -> Iterator[bytes]:
    """Yield an array; an empty string for each step without a value, so that others can run."""
    for step in reply.steps:
        if step is None:
            yield b""
        elif isinstance(step, int):
            yield b"*%d\r\n" % step
        elif isinstance(step, Rows):
            yield from _items_of_rows(step, protocol)
        elif isinstance(step, Alike):
            yield _alike(step, protocol)
        else:
            yield from _children(step, protocol)


def _bulk_in_pieces(reply: Bulk, protocol: int) -> Iterator[bytes]:
    yield b"$%d\r\n" % reply.length
    yield from reply.pieces
    yield b"\r\n"


def _alike(rows: Alike, protocol: int) -> bytes:
    head = b"*%d\r\n" % (1 + len(rows.rest))
    tail = b"".join([encode(each, protocol) for each in rows.rest])
    ids = rows.ids if type(rows.ids) is list else list(rows.ids)
    if twins is not None:
        encoded = twins.encode_alike(ids, head, tail)
        if encoded is not None:
            return encoded
    return b"".join([_bulk_id(head, eid) + tail for eid in ids])


def _bulk_id(head: bytes, packed: bytes) -> bytes:
    eid = bytes(StreamID.unpack(packed))
    return b"%b$%d\r\n%b\r\n" % (head, len(eid), eid)


_PAGES: dict[type, _Pages] = {
    Gradual: _gradual,
    Bulk: _bulk_in_pieces,
    Paged: lambda reply, protocol: _parts(reply.reply, protocol),
    Entries: lambda reply, protocol: _entries(reply.entries, protocol),
    Rows: _rows,
    StoredEntry: lambda reply, protocol: _items_of_rows(reply.rows, protocol),
    Streams: _streams,
}
