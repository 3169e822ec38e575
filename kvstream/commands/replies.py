"""Replies of commands: values that ``kvstream.resp`` encodes as RESP2 or RESP3.

A reply is ``bytes`` (a bulk string), ``int``, ``None`` (the null bulk string), a list of replies,
or one of the types below, which the two protocols encode differently. Entries stay records until
they are encoded: no list is built for each of them.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kvstream.errors import KVStreamError, RequestError, public_name
from kvstream.layout.rows import EncodedEntries as EncodedEntries
from kvstream.layout.rows import Rows as Rows
from kvstream.logs import DeferredLogger, Throttle
from kvstream.types.records import AnyEntry

_log, _internal = DeferredLogger(__name__), Throttle()


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple string: a status such as OK, or a line of help."""

    text: str
    line: bytes = field(init=False, repr=False, compare=False)
    """The text on the wire: most replies are the same few."""

    def __post_init__(self) -> None:
        line = b"+%b\r\n" % self.text.encode("utf-8", "surrogateescape")
        object.__setattr__(self, "line", line)


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error; ``code`` is the first word of its text on the wire."""

    code: str
    text: str
    kind: type[KVStreamError] = field(default=RequestError, compare=False)
    """The class of the exception, which KVSTREAM.ERRORS shows, as it does the detail."""
    detail: str = field(default="", compare=False)

    @classmethod
    def of(cls, error: KVStreamError) -> "ErrorReply":
        """Return the reply for an exception."""
        text = error.reply.removeprefix(f"{error.code} ")
        return cls(error.code, text, type(error), error.detail)

    @property
    def line(self) -> bytes:
        """The error as one line on the wire, with line breaks in quoted names replaced."""
        words = f"{self.code} {self.text}" if self.text else self.code
        text = words.encode("utf-8", "surrogateescape")
        return text.rstrip(b"\r\n").replace(b"\r", b" ").replace(b"\n", b" ")

    def encoded(self, protocol: int) -> bytes:
        """Return the error as it is sent."""
        shown = self
        if protocol == RESP2_WITH_CLASSES:
            kind = f"{public_name(self.kind)}: " if self.code == KVStreamError.code else ""
            detail = f"\t{self.detail}" if self.detail else ""
            shown = ErrorReply(self.code, f"{kind}{self.text}{detail}")
        return b"-%b\r\n" % shown.line


def internal_error(error: Exception) -> ErrorReply:
    """Log an unexpected exception and return its reply."""
    _internal.log(_log, logging.ERROR, "a request has failed inside", error=error)
    return ErrorReply("ERR", f"internal error: {type(error).__name__}")


class NullArray:
    """The null array: ``*-1`` in RESP2, where the null bulk string is ``$-1``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL_ARRAY"


@dataclass(slots=True)
class Map:
    """Pairs: a map in RESP3, a flat array in RESP2."""

    pairs: "Sequence[tuple[Reply, Reply]]"


@dataclass(frozen=True, slots=True)
class Entries:
    """A list of entries, each ``[id, [field, value, ...]]``.

    An entry without fields is ``[id, null]``; one of XREADGROUP CLAIM has its idle time and
    delivery count after the fields.
    """

    entries: Sequence[AnyEntry]


@dataclass(slots=True)
class StoredEntry:
    """One entry, ``[id, [field, value, ...]]``, as its row has it."""

    rows: Rows
    """A single row."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Rows ``[id, *rest]`` that differ only by their IDs: a piece of a Gradual."""

    ids: Sequence[bytes]
    """16 bytes each, as they are stored."""
    rest: "Sequence[Reply]"


@dataclass(frozen=True, slots=True)
class Gradual:
    """An array that is read step by step, from the store as it was when the Gradual was made.

    The steps are None while the number of items is unknown, then the number, then the items in
    pieces: Rows, Alike, a list of replies, or in Streams a list of Pairs. They raise Corruption if
    the items are not as many as the number.
    """

    steps: "Iterable[int | Rows | Alike | Sequence[Reply] | Sequence[Pair] | None]"


Pair: TypeAlias = tuple[bytes, Sequence[AnyEntry] | Gradual]
"""A key and its entries."""


@dataclass(frozen=True, slots=True)
class Bulk:
    """A bulk string that is read piece by piece, as it was when the Bulk was made."""

    length: int
    pieces: Iterable[bytes]
    """They raise Corruption if they do not have ``length`` bytes together."""


@dataclass(frozen=True, slots=True)
class Paged:
    """A long reply, written page by page while other clients are served.

    It is for sessions with ``pages``. Its Graduals and Bulks keep the snapshot they read from.
    """

    reply: "Reply"
    memory: int = 0
    """Its memory in bytes; 0: estimated from the reply."""


@dataclass(slots=True)
class Streams:
    """The entries of several keys: a map in RESP3, an array of ``[key, entries]`` in RESP2."""

    streams: Sequence[Pair] | Gradual


@dataclass(slots=True, eq=False)
class Shared:
    """A reply to several clients: it is encoded once for each protocol."""

    reply: "Reply"
    encoded: dict[int, bytes] = field(default_factory=dict)
    """The bytes by protocol."""


@dataclass(frozen=True, slots=True)
class Double:
    """A number with a fraction: a string in RESP2."""

    number: float

    @property
    def text(self) -> bytes:
        """The shortest digits of the number, without the ``.0`` of an integer."""
        return repr(float(self.number)).removesuffix(".0").encode()


@dataclass(frozen=True, slots=True)
class BigNumber:
    """An integer of any size: a string in RESP2."""

    digits: str


@dataclass(frozen=True, slots=True)
class Attributed:
    """A reply with attributes, which RESP2 leaves out."""

    attributes: "Map"
    reply: "Reply"


@dataclass(frozen=True, slots=True)
class Boolean:
    """A boolean: 1 or 0 in RESP2."""

    truth: bool


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A text for people, such as INFO: a bulk string in RESP2."""

    text: str
    format: str = "txt"
    """The format of the text, in three letters."""

    @property
    def data(self) -> bytes:
        return self.text.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class SetReply:
    """A set: an array in RESP2."""

    items: "Sequence[Reply]"


@dataclass(frozen=True, slots=True)
class Push:
    """A push message, which answers no request: an array in RESP2."""

    items: "Sequence[Reply]"


@dataclass(frozen=True, slots=True)
class Pushes:
    """Several pushes that answer one request, such as those of SUBSCRIBE, one for each channel."""

    pushes: Sequence[Push]


Reply: TypeAlias = (
    "bytes | int | Sequence[Reply] | Simple | Map | Entries | Streams | Rows | NullArray | "
    "EncodedEntries | StoredEntry | ErrorReply | Double | BigNumber | Boolean | Verbatim | "
    "SetReply | Push | Pushes | Attributed | Gradual | Bulk | Paged | Shared | None"
)

OK: Final = Simple("OK")
NULL_ARRAY: Final = NullArray()

RESP2, RESP3 = 2, 3
RESP2_WITH_CLASSES: Final = 20
"""RESP2 in which errors with the code ERR name their class: see KVSTREAM.ERRORS."""
