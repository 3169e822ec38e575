"""SLOWLOG: the commands that took long, with their first words.

Limits, replies and the counters of INFO are those of Redis 8.10:
https://redis.io/commands/slowlog-get
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

WORDS_MAX = 32
BYTES_MAX = 128
"""Words of a request that are kept, and bytes of a word: Redis's defaults."""


@dataclass(slots=True)
class SlowCalls:
    """How many calls were slow, and how long they took."""

    count: int = 0
    microseconds: int = 0
    longest: int = 0
    """Microseconds of the slowest call."""

    def add(self, microseconds: int) -> None:
        self.count += 1
        self.microseconds += microseconds
        self.longest = max(self.longest, microseconds)


@dataclass(frozen=True, slots=True)
class SlowCommand:
    """One entry of SLOWLOG GET."""

    number: int
    at: int
    """Unix seconds."""
    microseconds: int
    argv: list[bytes]
    address: str
    name: bytes
    words: int
    """The words of the request; ``argv`` may have fewer."""


class Slowlog:
    """The slow commands, newest first."""

    def __init__(self, length: int, words_max: int, bytes_max: int) -> None:
        """Keep ``length`` commands, of each so many words of at most so many bytes."""
        self._entries: deque[SlowCommand] = deque(maxlen=length)
        self.words_max, self.bytes_max = words_max, bytes_max
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_off(self) -> bool:
        """Whether it keeps no command."""
        return self._entries.maxlen == 0

    def add(self, at: int, microseconds: int, argv: list[bytes], address: str, name: bytes) -> None:
        """Add a command; ``address`` and ``name`` are its client's."""
        kept = cut(argv, self.words_max, self.bytes_max)
        entry = SlowCommand(self._next, at, microseconds, kept, address, name, len(argv))
        self._entries.appendleft(entry)
        self._next += 1

    def newest(self, count: int) -> list[SlowCommand]:
        """Return the newest entries; all of them for a negative count."""
        return list(islice(self._entries, len(self) if count < 0 else count))

    def resize(self, length: int) -> None:
        """Set the length of the log."""
        self._entries = deque(islice(self._entries, length), maxlen=length)

    def clear(self) -> None:
        self._entries.clear()


def cut(
    argv: Sequence[bytes], words_max: int = WORDS_MAX, bytes_max: int = BYTES_MAX
) -> list[bytes]:
    """Return the words of a request; the last one says how many were left out."""
    words = [_cut_word(word, bytes_max) for word in argv[:words_max]]
    if len(argv) > words_max:
        words[-1] = b"... (%d more arguments)" % (len(argv) - words_max + 1)
    return words


def _cut_word(word: bytes, bytes_max: int) -> bytes:
    if len(word) <= bytes_max:
        return word
    return b"%b... (%d more bytes)" % (word[:bytes_max], len(word) - bytes_max)
