"""The keys of a store, read for all viewers together.

A listing costs a call for each thousand keys. It is kept for five seconds, and for longer if there
are many keys, so neither the number of open pages nor that of the keys matters. Of more than
``KEYS_MAX`` keys the first are listed; others are found by their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from kvstream.console.shared_calls import SharedCall
from kvstream.meta.policy import DEAD_SUFFIX
from kvstream.migration.items import OWN_PREFIXES
from kvstream.types.clock import monotonic
from kvstream.types.glob import is_own_key, matcher
from kvstream.types.records import KeyInfo

if TYPE_CHECKING:
    from kvstream.store import Store

KEPT_S, KEPT_S_A_KEY = 5.0, 0.006
"""Seconds for which a listing is kept: a minimum, and seconds for each key. A listing of 10,000
keys takes 0.35 s of a server's processor time, so it is kept for 60 s."""
KEYS_MAX = 20_000
"""Keys that are listed: 10,000 streams of programs, and those that jobs keep beside them."""
_INTERNAL = re.compile(
    rb":(?:results?|notes|history|workflow|ended|tagged|after|dependents|workers?):|:ended$"
)
"""Parts of the names of streams that Jobs keep beside their queues."""
PRIORITIES = (b":high", b":low")
"""Ends of the names of streams that are priorities of a queue."""


@dataclass(frozen=True)
class Listing:
    """The keys as they were at one moment."""

    keys: dict[bytes, KeyInfo]
    """By name, in order of creation."""
    taken: float
    whole: bool
    """Whether the listing has all keys."""

    @property
    def is_fresh(self) -> bool:
        """Whether it is still kept."""
        return monotonic() - self.taken < kept_s(len(self.keys))

    @cached_property
    def streams(self) -> list[KeyInfo]:
        """The streams that programs have made, by name."""
        return [each for each in self._all if not is_internal(each.key)]

    @cached_property
    def _all(self) -> list[KeyInfo]:
        found = (each for each in self.keys.values() if each.type == "stream")
        return sorted(found, key=_by_name)

    def named(self, part: bytes, *, has_all: bool) -> tuple[list[KeyInfo], int]:
        """Return the streams with a part of a name, or a pattern with ``*``; how many are hidden.

        Hidden are those that kvstream keeps for itself, unless ``has_all``, or the part is the
        beginning of their names.
        """
        fits = matcher(part) if b"*" in part else lambda key: part in key
        found = [each for each in self._all if fits(each.key)]
        if has_all or is_own_key(part):
            return found, 0
        shown = [each for each in found if not is_internal(each.key)]
        return shown, len(found) - len(shown)

    @cached_property
    def dead(self) -> list[KeyInfo]:
        """The streams of dead letters, the longest first."""
        found = [each for each in self.streams if is_dead(each.key) and each.length]
        return sorted(found, key=lambda each: -(each.length or 0))

    @cached_property
    def migrations(self) -> list[bytes]:
        """The keys of migrations into this database that are under way."""
        return [each for each in self.keys if each.startswith(OWN_PREFIXES)]

    @cached_property
    def queues(self) -> list[bytes]:
        """The streams that may be queues, by name; a priority goes with its queue."""
        names = {each.key: each for each in self.streams if not is_dead(each.key)}
        bases = {base_of(name, names): None for name in names if self._may_be_queue(names[name])}
        return list(bases)

    def _may_be_queue(self, key: KeyInfo) -> bool:
        return bool(key.groups) or key.key + DEAD_SUFFIX in self.keys

    def priorities(self, queue: bytes) -> list[bytes]:
        """Return the streams of a queue, the most urgent first."""
        high, low = (queue + end for end in PRIORITIES)
        return [name for name in (high, queue, low) if name in self.keys or name == queue]


def _by_name(key: KeyInfo) -> bytes:
    return key.key


def kept_s(keys: int) -> float:
    """Return for how long a listing of so many keys is kept."""
    return max(KEPT_S, keys * KEPT_S_A_KEY)


def is_internal(name: bytes) -> bool:
    """Return whether a stream is one that kvstream keeps for itself."""
    return is_own_key(name) or _INTERNAL.search(name) is not None


def is_dead(name: bytes) -> bool:
    """Return whether a stream has the usual name of dead letters."""
    return name.endswith(DEAD_SUFFIX)


def base_of(name: bytes, names: dict[bytes, KeyInfo]) -> bytes:
    """Return the queue of a priority, if it is one; else the name."""
    for end in PRIORITIES:
        if name.endswith(end) and name.removesuffix(end) in names:
            return name.removesuffix(end)
    return name


class Listings:
    """Reads a listing when the one before is too old."""

    def __init__(self) -> None:
        self._reading: SharedCall[Listing] = SharedCall()
        self._last: Listing | None = None
        self._changes = 0

    def get(self, store: Store) -> Listing:
        """Return the listing of a store.

        While another viewer reads it, one that is too old is better than to wait.
        """
        last = self._last
        if last is not None and (last.is_fresh or self._reading.is_running):
            return last
        while True:
            changes = self._changes
            found = self._reading.run(lambda: self._read(store))
            if changes == self._changes:
                return found

    def _read(self, store: Store) -> Listing:
        changes = self._changes
        found = list(islice(store.key_infos(), KEYS_MAX + 1))
        keys = {each.key: each for each in found[:KEYS_MAX]}
        made = Listing(keys, monotonic(), len(found) <= KEYS_MAX)
        if changes == self._changes:
            self._last = made
        return made

    def forget(self) -> None:
        """Read the next listing anew: something was changed."""
        self._changes += 1
        self._last = None
