"""What a command answers: values that a writer turns into RESP2 or RESP3.

A reply is ``bytes`` (a bulk string), ``int``, ``None`` (the null bulk string), a list of replies,
or one of the types below, which tell apart what the two protocols write differently. Entries stay
the records of the core until they are written: no list is built for each of them. This module
knows nothing of commands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kvstream.errors import KVStreamError
from kvstream.records import Entry


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
        return cls(error.code, str(error))

    @property
    def line(self) -> bytes:
        """The error as it goes over the wire, in one line whatever names it quotes."""
        text = f"{self.code} {self.text}".encode("utf-8", "surrogateescape")
        return text.rstrip(b"\r\n").replace(b"\r", b" ").replace(b"\n", b" ")


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

    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Streams:
    """The entries of several keys: a map in RESP3, an array of ``[key, entries]`` in RESP2."""

    streams: Sequence[tuple[bytes, Sequence[Entry]]]


Reply: TypeAlias = (
    "bytes | int | Sequence[Reply] | Simple | Map | Entries | Streams | NullArray | ErrorReply | "
    "None"
)

OK: Final = Simple("OK")
NULL_ARRAY: Final = NullArray()

RESP2, RESP3 = 2, 3


def flatten(reply: Reply, protocol: int = RESP2) -> Any:
    """Return a reply in plain Python: what a client that decodes nothing would show.

    Both nulls are None, simple strings are bytes, errors stay ErrorReply; maps are flat lists in
    RESP2 and dicts in RESP3.
    """
    if isinstance(reply, bytes | int | ErrorReply) or reply is None:
        return reply
    if isinstance(reply, Simple):
        return reply.text.encode("utf-8", "surrogateescape")
    if isinstance(reply, NullArray):
        return None
    if isinstance(reply, Map):
        pairs = [(flatten(name, protocol), flatten(value, protocol)) for name, value in reply.pairs]
        return dict(pairs) if protocol == RESP3 else [part for pair in pairs for part in pair]
    if isinstance(reply, Entries):
        return [_flat_entry(entry) for entry in reply.entries]
    if isinstance(reply, Streams):
        read = [(key, [_flat_entry(entry) for entry in entries]) for key, entries in reply.streams]
        return dict(read) if protocol == RESP3 else [list(pair) for pair in read]
    return [flatten(item, protocol) for item in reply]


def _flat_entry(entry: Entry) -> list[Any]:
    fields = None if entry.fields is None else list(entry.flat)
    told = [] if entry.idle_ms is None else [entry.idle_ms, entry.deliveries]
    return [bytes(entry.id), fields, *told]
