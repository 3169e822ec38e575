"""When keys were last used: of as many as there is room for, in memory alone."""

from kvstream.layout.keys import database_of, key_of, qualified

USED_MAX = 20_000
"""Keys that are noted one by one, at least of the last that were used, at most twice as many."""


class Usage:
    """The last use of keys, in milliseconds of Unix time, by the names of callers.

    Two generations: a key that is in neither has not been used since the older one began.
    """

    __slots__ = ("_before", "_recent_since", "_since", "recent")

    def __init__(self) -> None:
        self.recent: dict[bytes, int] = {}
        """The younger one; whoever puts a key into it calls ``age`` where it gets too large."""
        self._before: dict[bytes, int] = {}
        self._since = self._recent_since = -1

    def begin(self, now_ms: int) -> None:
        """Have all keys count as used now, unless that was done before."""
        if self._since < 0:
            self._since = self._recent_since = now_ms

    def note(self, names: list[bytes], now_ms: int, idle_s: int = 0) -> None:
        """Note that keys are used now, or were so long ago."""
        recent, used = self.recent, now_ms - 1000 * idle_s
        for name in names:  # a third sooner than by way of a dict of them
            recent[name] = used
        if len(recent) > USED_MAX:
            self.age(now_ms)

    def age(self, now_ms: int) -> None:
        """Begin a generation."""
        self._before, self.recent = self.recent, {}
        self._since, self._recent_since = self._recent_since, now_ms

    def idle_s(self, name: bytes, now_ms: int) -> int:
        """Return for how many seconds a key has not been used; it may be more."""
        self.begin(now_ms)
        used = self.recent.get(name)
        if used is None:
            used = self._before.get(name, self._since)
        return max(0, now_ms // 1000 - used // 1000)

    def swap(self, one: int, other: int) -> None:
        """Have the keys of a database count as those of another, and the other way round."""
        numbers = {one: other, other: one}
        self.recent = _renumbered(self.recent, numbers)
        self._before = _renumbered(self._before, numbers)


def _renumbered(used: dict[bytes, int], numbers: dict[int, int]) -> dict[bytes, int]:
    return {
        qualified(numbers.get(db := database_of(name), db), key_of(name)): at
        for name, at in used.items()
    }
