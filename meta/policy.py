"""The policy of a consumer group: how its entries are delivered, repeated and given up.

A policy is a part of the group's record, so it costs no read. In it stands what differs from the
defaults alone::

    policy := msgpack map of field name -> number | bytes | array of numbers

Times are milliseconds. 0, or an empty value, means that there is no such rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from random import random
from typing import Any

import msgpack

from kvstream.layout.keys import COUNTED_MAX

_pack = msgpack.Packer(use_bin_type=True).pack


@dataclass(frozen=True)
class GroupPolicy:
    """The rules of one group. Equal policies encode to equal bytes."""

    lease_ms: int = 0
    """An entry that is pending with a consumer for so long goes to the next reader of ``>``."""
    max_deliveries: int = 0
    """After so many deliveries an entry moves to the dead letters instead of being repeated."""
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
    max_in_flight: int = 0
    """At most so many entries are pending with consumers at a time."""
    rate_count: int = 0
    """At most so many entries are delivered in any window of ``rate_ms``."""
    rate_ms: int = 0
    paused: bool = False
    """Nothing is delivered."""
    reap_idle_ms: int = 0
    """A consumer idle for so long is deleted; its pending entries pass on."""
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


# --- the bytes of rules, of groups and of retention -----------------------------------------------


def encode_rules(rules: Any) -> bytes:
    """Return the bytes of a dataclass of rules: the fields that differ from their defaults."""
    values = {each.name: getattr(rules, each.name) for each in fields(rules)}
    defaults = _defaults(type(rules))
    return bytes(_pack({name: each for name, each in values.items() if each != defaults[name]}))


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
    return {each.name: each.default for each in fields(kind)}


def _is_sound(value: object, default: object) -> bool:
    """Return whether a decoded rule has the type of its default, and a possible value."""
    if type(value) is not type(default):
        return False
    numbers = value if isinstance(value, tuple) else (value,) if isinstance(value, int) else ()
    return all(type(each) in (int, bool) and 0 <= each < COUNTED_MAX for each in numbers)
