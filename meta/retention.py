"""The retention of a stream: which entries the background removes, and how far it has come.

The rules are one row of the stream's queue tree, and in it stands what differs from the defaults
alone. With ``latest`` one row for each value of that field has the last entry with it, so the
memory does not grow with the number of values, and a crash loses nothing::

    rules row  := queue tree(u64) "P"              -> msgpack map of rule -> number | bytes | bool
    timer row  := queue tree(u64) "Pt"             -> at_ms(u64)        the timer that is valid
    cursor row := queue tree(u64) "Pc"             -> id                compacted up to here
    latest row := queue tree(u64) "Pk" digest(16)  -> id                the last entry of a value
    reap row   := queue tree(u64) "Pr" group       -> at_ms(u64)        the timer that is valid

``Progress`` is what is known in memory of a stream with rules; it can be computed again.
"""

from dataclasses import dataclass, field, replace
from hashlib import blake2b

from kvstream.meta.policy import decode_rules, encode_rules
from kvstream.types.ids import MIN_ID, StreamID

RULES_ROW, TIMER_ROW, CURSOR_ROW, LATEST_ROWS, REAP_ROWS = b"P", b"Pt", b"Pc", b"Pk", b"Pr"
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Retention:
    """The rules of one stream; 0, or an empty value, means that there is no such rule."""

    max_age_ms: int = 0
    """An entry goes when the time of its ID is so long ago."""
    max_length: int = 0
    """The first entries go while there are more."""
    max_bytes: int = 0
    """The first nodes go while all nodes have more bytes, counted as Redis's listpacks."""
    acked: bool = False
    """An entry goes once every group has read and acknowledged it."""
    latest: bytes = b""
    """A field: of entries with an equal value of it only the last one stays."""
    force: bool = False
    """Entries go even if a group has them pending or has not read them."""

    @property
    def is_empty(self) -> bool:
        """Return whether there is no rule."""
        return replace(self, force=False) == _NO_RULES

    def encode(self) -> bytes:
        return encode_rules(self)

    @classmethod
    def decode(cls, packed: bytes) -> "Retention":
        """Decode rules; raise ValueError if they are damaged or of a later version."""
        return cls(**decode_rules(packed, cls, "retention"))


_NO_RULES = Retention()


def latest_row(value: bytes) -> bytes:
    """Return the suffix of the row that has the last entry with a value."""
    return LATEST_ROWS + blake2b(value, digest_size=DIGEST_BYTES).digest()


@dataclass(slots=True)
class Segment:
    """Adjacent closed nodes and the bytes that they have together."""

    first: StreamID
    last: StreamID
    """The first IDs of its first and its last node."""
    nodes: int
    size: int


@dataclass(slots=True)
class Progress:
    """What is known of a stream with rules, in memory."""

    rules: Retention
    seen: tuple[object, ...] = ()
    """What the stream was like after the last check."""
    thinned_to: StreamID = MIN_ID
    """The node at which to look on for single entries that may go; MIN_ID: at the first one."""
    excess_to: StreamID = MIN_ID
    """The same for entries above MAXLEN or MAXBYTES."""
    pause_ms: int = 0
    """How long a check waits for acknowledgements."""
    segments: list[Segment] = field(default_factory=list)
    """The closed nodes that are counted."""
    counted: bool = False
    """All nodes are counted."""
    swept_to: bytes = b""
    """The latest row up to which rows of entries that have gone were deleted."""
