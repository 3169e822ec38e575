"""The slow log: the last commands that took long, their words cut as Redis cuts them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from kvstream.server.monitoring import quoted

WORDS_MAX = 32
BYTES_MAX = 128


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


class Slowlog:
    """The slow commands, newest first."""

    def __init__(self, length: int) -> None:
        self._entries: deque[SlowCommand] = deque(maxlen=max(length, 0))
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, at: int, microseconds: int, argv: list[bytes], address: str, name: bytes) -> None:
        if self._entries.maxlen == 0:
            return
        entry = SlowCommand(self._next, at, microseconds, cut(argv), address, name)
        self._entries.appendleft(entry)
        self._next += 1

    def newest(self, count: int) -> list[SlowCommand]:
        """Return the newest entries; all of them for a negative count."""
        return list(islice(self._entries, len(self) if count < 0 else count))

    def resize(self, length: int) -> None:
        """Keep at most so many entries from here on."""
        self._entries = deque(islice(self._entries, length), maxlen=length)

    def clear(self) -> None:
        self._entries.clear()


class Shown:
    """Words as a line of the log shows them, cut; made only where that line is written."""

    def __init__(self, argv: Sequence[bytes]) -> None:
        self._argv = argv

    def __str__(self) -> str:
        return " ".join(map(quoted, cut(self._argv)))


def cut(argv: Sequence[bytes]) -> list[bytes]:
    """Return the words of a request, the rest of long ones told in numbers."""
    words = [_cut_word(word) for word in argv[:WORDS_MAX]]
    if len(argv) > WORDS_MAX:
        words[-1] = b"... (%d more arguments)" % (len(argv) - WORDS_MAX + 1)
    return words


def _cut_word(word: bytes) -> bytes:
    if len(word) <= BYTES_MAX:
        return word
    return b"%b... (%d more bytes)" % (word[:BYTES_MAX], len(word) - BYTES_MAX)
