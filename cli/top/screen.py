"""The state of ``top`` on a terminal: what is shown, which line is selected, what a key does.

There are three levels: all groups, the groups of one stream, the pending entries of one group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvstream.cli.tables import printable
from kvstream.cli.top.samples import SORTS, Line, Sample, lines_of

PENDING_SHOWN = 200
"""Pending entries of a group that are read for each sample."""

HELP = (
    ("up, down, j, k", "select a line; Page Up, Page Down, Home and End too"),
    ("Enter, right", "show the groups of the stream, then the pending entries of a group"),
    ("Esc, left", "go back; drop the filter"),
    ("s, S", "sort by the next column, or by the one before"),
    ("/", "show only streams and groups whose names have a text in them"),
    ("space", "take a sample now"),
    ("?, h", "show this help"),
    ("q, Ctrl-C", "quit"),
)
"""The keys, for the help."""

_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -(10**9), "end": 10**9, "g": -(10**9)}
_STEPS |= {"G": 10**9}

Place = tuple[bytes, bytes | None]
"""A line: a stream and a group of it."""


def place_of(line: Line) -> Place:
    """Return the stream and the group of a line."""
    return line.stream.name, line.group.name if line.group else None


@dataclass(slots=True)
class Screen:
    """The state; ``press`` changes it."""

    sort: str
    filter: str = ""
    """Only lines with this text in the name of the stream or group are shown."""
    typing: bool = False
    """Keys are the text of the filter."""
    help: bool = False
    ended: bool = False
    wants_sample: bool = False
    stream: bytes | None = None
    """The stream whose groups are shown; None: all streams."""
    group: bytes | None = None
    """The group whose pending entries are shown."""
    selected: Place | None = None
    """The selected line."""
    pinned: bool = False
    """The user has chosen that line, so it stays selected wherever it moves."""
    at: int = 0
    """The index of the selected line, or of the first pending entry."""
    first: int = 0
    """The index of the first line on the screen."""
    page: int = 10
    """Lines that the last frame showed."""

    def lines(self, sample: Sample) -> list[Line]:
        """Return the lines to show, sorted, and select one of them."""
        text = self.filter.lower()
        lines = [
            line
            for line in lines_of(sample, self.sort)
            if (self.stream is None or line.stream.name == self.stream)
            and any(text in printable(name or b"").lower() for name in place_of(line))
        ]
        places = list(map(place_of, lines))
        if self.pinned and self.selected in places:
            self.at = places.index(self.selected)
        self.at = max(0, min(self.at, len(lines) - 1))
        self.selected = places[self.at] if places else None
        return lines

    def scroll(self, count: int, room: int) -> int:
        """Return the index of the first of ``count`` lines that are shown in ``room``."""
        self.page = max(1, room)
        self.at = max(0, min(self.at, count - self.page))
        return self.at

    def press(self, key: str, sample: Sample) -> None:
        """Do what a key asks for; unknown keys do nothing."""
        if self.typing:
            self._type(key)
        elif key in ("q", "Q"):
            self.ended = True
        elif self.help:
            self.help = False
        elif key in ("?", "h"):
            self.help = True
        elif key == "/" and self.group is None:
            self.typing, self.filter = True, ""
            self._to_top()
        elif key in ("s", "S") and self.group is None:
            step = 1 if key == "s" else -1
            self.sort = SORTS[(SORTS.index(self.sort) + step) % len(SORTS)]
            self._to_top()
        elif key == " ":
            self.wants_sample = True
        elif key in ("enter", "right", "l"):
            self._open()
        elif key in ("esc", "left", "backspace"):
            self._back()
        else:
            self._move(key, sample)

    def _type(self, key: str) -> None:
        if key in ("enter", "esc"):
            self.typing = False
            self.filter = self.filter if key == "enter" else ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def _move(self, key: str, sample: Sample) -> None:
        step = {"pgup": -self.page, "pgdn": self.page}.get(key) or _STEPS.get(key, 0)
        if self.group is not None:
            self.at = max(0, self.at + step)
            return
        self.lines(sample)  # which may have changed since it was drawn
        self.at, self.pinned = self.at + step, False
        self.lines(sample)
        self.pinned = self.at > 0

    def _to_top(self) -> None:
        self.at, self.first, self.pinned = 0, 0, False

    def _open(self) -> None:
        if self.group is not None or self.selected is None:
            return
        stream, group = self.selected
        self.pinned = True
        if self.stream is None:
            self.stream, self.first, self.filter = stream, 0, ""
        elif group is not None:
            self.group, self.at, self.wants_sample = group, 0, True

    def _back(self) -> None:
        if self.group is not None:
            self.group = None
        else:
            self.stream, self.filter = None, ""
        self.first = 0

    def window(self, heights: Sequence[int], room: int) -> tuple[int, int]:
        """Return which lines fit into ``room``, the selected one among them."""
        self.first = max(0, min(self.first, self.at))
        while sum(heights[self.first : self.at + 1]) > room and self.first < self.at:
            self.first += 1
        end, used = self.first, 0
        while end < len(heights) and (used + heights[end] <= room or end == self.first):
            used += heights[end]
            end += 1
        while self.first and used + heights[self.first - 1] <= room:  # the end of the list
            self.first -= 1
            used += heights[self.first]
        self.page = max(1, end - self.first)
        return self.first, end
