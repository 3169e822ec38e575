"""What a command answers: values that a writer turns into RESP2 or RESP3.

A reply is ``bytes`` (a bulk string), ``int``, ``None`` (the null bulk string), a list of replies,
or one of the types below, which tell apart what the two protocols write differently. Entries stay
the records of the core until they are written: no list is built for each of them. This module
knows nothing of commands.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kvstream.errors import KVStreamError
from kvstream.layout.rows import Rows as Rows
from kvstream.layout.rows import Written as Written
from kvstream.logs import Throttle
from kvstream.types.ids import StreamID
from kvstream.types.records import AnyEntry

_log, _internal = logging.getLogger(__name__), Throttle()


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple string: a status such as OK, or a line of help."""

    text: str


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error; ``code`` is the word that opens its text on the wire."""

    code: str
    text: str

    @classmethod
    def of(cls, error: KVStreamError) -> "ErrorReply":
        """Return the reply that tells a client of ``error``."""
        return cls(error.code, error.reply.removeprefix(f"{error.code} "))

    @property
    def line(self) -> bytes:
        """The error as it goes over the wire, in one line whatever names it quotes."""
        text = f"{self.code} {self.text}".encode("utf-8", "surrogateescape")
        return text.rstrip(b"\r\n").replace(b"\r", b" ").replace(b"\n", b" ")


def internal_error(error: Exception) -> ErrorReply:
    """Log an error that should not have happened, and return what a client is told of it."""
    _internal.log(_log, logging.ERROR, "a request has failed inside", error=error)
    return ErrorReply("ERR", f"internal error: {type(error).__name__}")


class NullArray:
    """The null of what is an array otherwise: ``*-1`` in RESP2, where a null string is ``$-1``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL_ARRAY"


@dataclass(frozen=True, slots=True)
class Map:
    """Pairs: a map in RESP3, a flat array in RESP2."""

    pairs: "Sequence[tuple[Reply, Reply]]"


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries in a row, each ``[id, [field, value, ...]]``.

    An entry without fields is ``[id, null]``; one that a CLAIM read tells more about has its idle
    time and deliveries behind them.
    """

    entries: Sequence[AnyEntry]


@dataclass(frozen=True, slots=True)
class Alike:
    """Rows that differ by their IDs alone: each ``[id, *rest]``. A piece of a Gradual."""

    ids: Sequence[bytes]
    """As they are stored: 16 bytes each."""
    rest: "Sequence[Reply]"


@dataclass(frozen=True, slots=True)
class Gradual:
    """An array that is made step by step.

    A step is None where nothing is known yet, then the number of items, and from then on some of
    the items: Rows, Alike, a list of replies, or in Streams of Pairs. What reads the store for them
    sees it as it was when the Gradual was made, and raises Corruption where the items are not as
    many as was told.
    """

    steps: "Iterable[int | Rows | Alike | Sequence[Reply] | Sequence[Pair] | None]"


Pair: TypeAlias = tuple[bytes, Sequence[AnyEntry] | Gradual]
"""A key, and entries of it."""


@dataclass(frozen=True, slots=True)
class Bulk:
    """A bulk string that is made piece by piece, of what was there when the Bulk was made."""

    length: int
    pieces: Iterable[bytes]
    """They are as long as was told together, or raise Corruption."""


@dataclass(frozen=True, slots=True)
class Paged:
    """A long reply, to be written page by page between what others ask.

    For sessions that take ``pages``. Graduals and Bulks in it hold on to what they read from.
    """

    reply: "Reply"
    memory: int = 0
    """Bytes of memory that it takes, where the reply does not show it."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The entries of several keys: a map in RESP3, an array of ``[key, entries]`` in RESP2."""

    streams: Sequence[Pair] | Gradual


@dataclass(frozen=True, slots=True)
class Double:
    """A number with a fraction: a string in RESP2."""

    number: float

    @property
    def text(self) -> bytes:
        """The number in the shortest digits that tell it, without the ``.0`` of a whole one."""
        return repr(float(self.number)).removesuffix(".0").encode()


@dataclass(frozen=True, slots=True)
class BigNumber:
    """An integer of any size: a string in RESP2."""

    digits: str


@dataclass(frozen=True, slots=True)
class Attributed:
    """A reply with what is told about it besides; RESP2 has no place for that."""

    attributes: "Map"
    reply: "Reply"


@dataclass(frozen=True, slots=True)
class Boolean:
    """A truth: 1 or 0 in RESP2."""

    truth: bool


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A text for people to read, as INFO gives it: a plain string in RESP2."""

    text: str
    format: str = "txt"
    """Three letters that name the kind of text."""

    @property
    def data(self) -> bytes:
        return self.text.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class SetReply:
    """What has no order: an array in RESP2."""

    items: "Sequence[Reply]"


@dataclass(frozen=True, slots=True)
class Push:
    """News that answer no request, such as MONITOR's lines: an array in RESP2."""

    items: "Sequence[Reply]"


Reply: TypeAlias = (
    "bytes | int | Sequence[Reply] | Simple | Map | Entries | Streams | Rows | NullArray | "
    "Written | ErrorReply | Double | BigNumber | Boolean | Verbatim | SetReply | Push | "
    "Attributed | Gradual | Bulk | Paged | None"
)

OK: Final = Simple("OK")
NULL_ARRAY: Final = NullArray()

RESP2, RESP3 = 2, 3


def flatten(reply: Reply, protocol: int = RESP2) -> Any:
    """Return a reply in plain Python: what a client that decodes nothing would show.

    Both nulls are None, simple strings are bytes, errors stay ErrorReply; maps are flat lists in
    RESP2 and dicts in RESP3. Sets are lists: their items may be maps.
    """
    if isinstance(reply, bytes | int | ErrorReply) or reply is None:
        return reply
    if isinstance(reply, Sequence) and not isinstance(reply, Rows | Written):
        return [flatten(item, protocol) for item in reply]
    return _FLAT[type(reply)](reply, protocol)


def _flat_map(reply: Map, protocol: int) -> Any:
    pairs = [(flatten(name, protocol), flatten(value, protocol)) for name, value in reply.pairs]
    return dict(pairs) if protocol == RESP3 else [part for pair in pairs for part in pair]


def _flat_streams(reply: Streams, protocol: int) -> Any:
    streams = reply.streams
    if isinstance(streams, Gradual):
        streams = [pair for step in streams.steps if isinstance(step, list) for pair in step]
    read = [(key, _flat_entries(entries, protocol)) for key, entries in streams]
    return dict(read) if protocol == RESP3 else [list(pair) for pair in read]


def _flat_entries(entries: Sequence[AnyEntry] | Gradual, protocol: int) -> list[Any]:
    if isinstance(entries, Gradual):
        return _flat_gradual(entries, protocol)
    return [_flat_entry(entry) for entry in entries]


def _flat_gradual(reply: Gradual, protocol: int) -> list[Any]:
    pieces: list[Any] = [step for step in reply.steps if not isinstance(step, int | None)]
    return [item for piece in pieces for item in flatten(piece, protocol)]


def _flat_alike(reply: Alike, protocol: int) -> list[Any]:
    rest = [flatten(each, protocol) for each in reply.rest]
    return [[bytes(StreamID.unpack(eid)), *rest] for eid in reply.ids]


def _flat_entry(entry: AnyEntry) -> list[Any]:
    fields = None if entry.fields is None else list(entry.flat)
    told = [] if entry.idle_ms is None else [entry.idle_ms, entry.deliveries]
    return [bytes(entry.id), fields, *told]


_FLAT: dict[type, Callable[[Any, int], Any]] = {
    Simple: lambda reply, _: reply.text.encode("utf-8", "surrogateescape"),
    NullArray: lambda _reply, _: None,
    Map: _flat_map,
    Entries: lambda reply, protocol: _flat_entries(reply.entries, protocol),
    Rows: _flat_entries,
    Written: _flat_entries,
    Alike: _flat_alike,
    Gradual: _flat_gradual,
    Bulk: lambda reply, _: b"".join(reply.pieces),
    Paged: lambda reply, protocol: flatten(reply.reply, protocol),
    Streams: _flat_streams,
    Double: lambda reply, protocol: reply.number if protocol == RESP3 else reply.text,
    BigNumber: lambda reply, _: reply.digits.encode(),
    Attributed: lambda reply, protocol: flatten(reply.reply, protocol),
    Boolean: lambda reply, protocol: reply.truth if protocol == RESP3 else int(reply.truth),
    Verbatim: lambda reply, _: reply.data,
    SetReply: lambda reply, protocol: flatten(reply.items, protocol),
    Push: lambda reply, protocol: flatten(reply.items, protocol),
}
