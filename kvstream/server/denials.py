"""ACL LOG: what was refused to whom, the last of it first.

What one user is refused again and again within a minute is one entry that counts.
"""

from dataclasses import dataclass
from itertools import count, islice

TOGETHER_MS = 60_000
"""Redis counts what is refused again within this time in the same entry."""


@dataclass(slots=True)
class Denial:
    """One entry of ACL LOG."""

    number: int
    reason: str
    """``auth``, ``command`` or ``key``."""
    context: str
    """``toplevel`` or ``multi``."""
    object: bytes
    """The command, or the key."""
    user: bytes
    client: str
    """The line of CLIENT LIST of who asked last."""
    created_ms: int
    updated_ms: int
    count: int = 1

    def is_of(self, other: "Denial") -> bool:
        """Tell whether another one is the same over again."""
        mine = (self.reason, self.context, self.object, self.user)
        same = mine == (other.reason, other.context, other.object, other.user)
        return same and other.created_ms - self.updated_ms <= TOGETHER_MS


class Denials:
    """The refusals of a server, newest first."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._entries: list[Denial] = []
        self._numbers = count()

    def add(
        self, reason: str, context: str, what: bytes, user: bytes, client: str, now_ms: int
    ) -> None:
        fresh = Denial(-1, reason, context, what, user, client, now_ms, now_ms)
        known = next((entry for entry in self._entries if entry.is_of(fresh)), None)
        if known is not None:
            self._entries.remove(known)
            known.count += 1
            known.client, known.updated_ms = client, now_ms
            fresh = known
        else:
            fresh.number = next(self._numbers)
        self._entries.insert(0, fresh)
        del self._entries[self._length :]

    def newest(self, most: int) -> list[Denial]:
        return list(islice(self._entries, max(most, 0)))

    def resize(self, length: int) -> None:
        """Keep at most so many entries from the next one on."""
        self._length = length

    def clear(self) -> None:
        self._entries.clear()
