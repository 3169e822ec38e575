"""The rules of groups and of streams: a group's policy, a stream's retention.

A policy says how the entries of a group are delivered, repeated and given up. It is a part of the
group's record, so it costs no read. Retention says which entries of a stream the background
removes. Both are stored as the fields that differ from their defaults::

    rules := msgpack map of field name -> number | bytes | bool | array of numbers

Times are milliseconds. 0, or an empty value, means that there is no such rule.

The rules of retention are one row of the stream's queue tree; other rows say how far it has come.
With ``latest`` there is a row for each value of that field, with the last entry that has it. So the
memory does not grow with the number of values, and a crash loses nothing::

    rules row  := queue tree(u64) "P"              -> rules
    timer row  := queue tree(u64) "Pt"             -> at_ms(u64)        the timer that is valid
    cursor row := queue tree(u64) "Pc"             -> id                compacted up to here
    latest row := queue tree(u64) "Pk" digest(16)  -> id                the last entry of a value
    reap row   := queue tree(u64) "Pr" group       -> at_ms(u64)        the timer that is valid
    added row  := queue tree(u64) "Pa"             -> entries(u64)      that timers alone have added

``Progress`` is what is known in memory of a stream with rules; it can be computed again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from random import random
from typing import Any

import msgpack

from kvstream.layout.keys import COUNTED_MAX
from kvstream.surface import Public
from kvstream.types.ids import MIN_ID, StreamID

_pack = msgpack.Packer(use_bin_type=True).pack


@dataclass(frozen=True)
class GroupPolicy(Public):
    """The rules of one group. Equal policies encode to equal bytes."""

    _internal = frozenset({"decode", "delay_ms", "encoded", "keyed_tree", "limits", "with_rules"})

    lease_ms: int = 0
    """An entry that is pending with a consumer for longer goes to the next reader of ``>``."""
    max_deliveries: int = 0
    """After this number of deliveries an entry moves to the dead letters."""
    backoff_ms: tuple[int, ...] = ()
    """The delay after the first failure, the second, and so on; the last one repeats."""
    backoff_cap_ms: int = 0
    """If set, the delay doubles from ``backoff_ms[0]`` up to this."""
    jitter_percent: int = 0
    """A delay is shortened by up to this share of it, at random."""
    dead_letter: bytes = b""
    """The key of the dead-letter stream, in the same database; none: see ``dead_key``."""
    order_by: bytes = b""
    """A field: entries of equal value are delivered in order, ``max_per_key`` at a time."""
    max_per_key: int = 1
    """The most entries of one value of ``order_by`` that are pending with consumers at a time."""
    fair: bool = False
    """The values of ``order_by`` take turns, however many entries each of them has."""
    max_in_flight: int = 0
    """The most entries that are pending with consumers at a time."""
    rate_count: int = 0
    """The most entries that are delivered in any window of ``rate_ms``."""
    rate_ms: int = 0
    """The length of the window of ``rate_count``, in milliseconds."""
    paused: bool = False
    """Nothing is delivered."""
    reap_idle_ms: int = 0
    """A consumer that is idle for longer is deleted; its pending entries are given back."""
    keyed_tree: int = 0
    """The tree of the entries by their value of ``order_by``; not a rule."""

    @cached_property
    def encoded(self) -> bytes:
        return encode_rules(self)

    @classmethod
    def decode(cls, packed: bytes) -> "GroupPolicy":
        """Decode a policy; raise ValueError if it is damaged or of a later version."""
        return cls(**decode_rules(packed, cls, "policy"))

    def with_rules(self, changes: Mapping[str, Any]) -> "GroupPolicy":
        """Return the policy with some rules changed."""
        return replace(self, **changes)

    @cached_property
    def limits(self) -> bool:
        """Whether it limits how much is delivered."""
        return bool(self.paused or self.rate_count or self.max_in_flight)

    @property
    def is_empty(self) -> bool:
        """Return whether it has no rule."""
        return replace(self, keyed_tree=0) == _EMPTY

    def delay_ms(self, deliveries: int) -> int:
        """Return the delay before an entry that failed ``deliveries`` times is repeated."""
        if not self.backoff_ms:
            return 0
        failed = max(1, deliveries)
        if self.backoff_cap_ms:
            doubled = self.backoff_ms[0] << min(failed - 1, _DOUBLINGS_MAX)
            delay = min(doubled, self.backoff_cap_ms)
        else:
            delay = self.backoff_ms[min(failed, len(self.backoff_ms)) - 1]
        return delay - int(delay * self.jitter_percent / 100 * random())

    def dead_key(self, key: bytes) -> bytes:
        """Return the key of the dead letters of a group of stream ``key``."""
        return self.dead_letter or key + DEAD_SUFFIX


DEAD_SUFFIX = b":dead"
_DOUBLINGS_MAX = 62
_EMPTY = GroupPolicy()


# --- retention ------------------------------------------------------------------------------------

RULES_ROW, TIMER_ROW, CURSOR_ROW, LATEST_ROWS, REAP_ROWS = b"P", b"Pt", b"Pc", b"Pk", b"Pr"
ADDED_ROW = b"Pa"
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Retention(Public):
    """The rules of one stream; 0, or an empty value, means that there is no such rule."""

    _internal = frozenset({"decode", "encode"})

    max_age_ms: int = 0
    """An entry is removed when the time of its ID is longer ago."""
    max_length: int = 0
    """The first entries are removed while there are more."""
    max_bytes: int = 0
    """The first nodes are removed while all nodes have more bytes, counted as Redis's listpacks."""
    acked: bool = False
    """An entry is removed once every group has read and acknowledged it."""
    latest: bytes = b""
    """A field: of entries with an equal value of it only the last one stays."""
    force: bool = False
    """Entries are removed even if a group has them pending or has not read them."""

    @property
    def is_empty(self) -> bool:
        """Return whether there is no rule."""
        return not (
            self.max_age_ms or self.max_length or self.max_bytes or self.acked or self.latest
        )

    def encode(self) -> bytes:
        return encode_rules(self)

    @classmethod
    def decode(cls, packed: bytes) -> "Retention":
        """Decode rules; raise ValueError if they are damaged or of a later version."""
        return cls(**decode_rules(packed, cls, "retention"))


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
    timed: StreamID = MIN_ID
    """The first entry, whose age a timer waits for; MIN_ID: none does."""
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
    """The latest row up to which the rows of deleted entries were removed."""


# --- the bytes of rules ---------------------------------------------------------------------------

_ENCODED_MAX = 128
"""Rules whose bytes are kept: many streams and groups have the same."""


@lru_cache(maxsize=_ENCODED_MAX)
def encode_rules(rules: Any) -> bytes:
    """Return the bytes of a dataclass of rules: the fields that differ from their defaults."""
    values = {rule.name: getattr(rules, rule.name) for rule in fields(rules)}
    defaults = _defaults(type(rules))
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    return bytes(_pack(changed))


def decode_rules(packed: bytes, kind: type[Any], what: str) -> dict[str, Any]:
    """Return the fields of a dataclass of rules; ValueError if they are damaged or unknown."""
    try:
        rules = msgpack.unpackb(packed, use_list=False)
    except Exception as error:  # msgpack raises errors of many classes
        raise ValueError(f"a {what} that cannot be decoded: {error!r}") from error
    defaults = _defaults(kind)
    if type(rules) is not dict or not all(
        name in defaults and _is_sound(value, defaults[name]) for name, value in rules.items()
    ):
        raise ValueError(f"a {what} with unknown or damaged rules")
    return rules


def _defaults(kind: type[Any]) -> dict[str, Any]:
    return {rule.name: rule.default for rule in fields(kind)}


def _is_sound(value: object, default: object) -> bool:
    """Return whether a decoded rule has the type of its default, and a possible value."""
    if type(value) is not type(default):
        return False
    numbers = value if isinstance(value, tuple) else (value,) if isinstance(value, int) else ()
    return all(type(number) in (int, bool) and 0 <= number < COUNTED_MAX for number in numbers)
