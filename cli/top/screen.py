"""The state of ``top`` on a terminal: the order, the filter, what is scrolled to; what keys do."""

from dataclasses import dataclass

from kvstream.cli.tables import printable
from kvstream.cli.top.samples import SORTS, Line, Sample, lines_of

HELP = (
    ("up, down, j, k", "scroll by a line; Page Up, Page Down, Home and End too"),
    ("s, S", "sort by the next column, or by the one before"),
    ("/", "show only streams and groups whose names have a text in them; Esc drops it"),
    ("space", "take a sample now"),
    ("?, h", "show this help"),
    ("q, Ctrl-C", "quit"),
)
"""The keys, for the help."""

_FAR = 10**9
_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -_FAR, "g": -_FAR, "end": _FAR, "G": _FAR}


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
    first: int = 0
    """The index of the first line on the screen."""
    page: int = 10
    """Lines that the last frame showed."""

    def lines(self, sample: Sample) -> list[Line]:
        """Return the lines to show, sorted."""
        text = self.filter.lower()
        return [
            line
            for line in lines_of(sample, self.sort)
            if text in printable(line.stream.name).lower()
            or (line.group is not None and text in printable(line.group.name).lower())
        ]

    def scroll(self, count: int, room: int) -> slice:
        """Return which of ``count`` lines are shown in ``room``."""
        self.page = max(1, room)
        self.first = max(0, min(self.first, count - self.page))
        return slice(self.first, self.first + self.page)

    def press(self, key: str) -> None:
        """Do what a key asks for; unknown keys do nothing."""
        if self.typing:
            self._type(key)
        elif key in ("q", "Q"):
            self.ended = True
        elif self.help or key in ("?", "h"):
            self.help = not self.help
        elif key == "/":
            self.typing, self.filter, self.first = True, "", 0
        elif key in ("s", "S"):
            step = 1 if key == "s" else -1
            self.sort = SORTS[(SORTS.index(self.sort) + step) % len(SORTS)]
            self.first = 0
        elif key == " ":
            self.wants_sample = True
        elif key == "esc":
            self.filter = ""
        else:
            step = {"pgup": -self.page, "pgdn": self.page}.get(key) or _STEPS.get(key, 0)
            self.first = max(0, self.first + step)

    def _type(self, key: str) -> None:
        if key in ("enter", "esc"):
            self.typing = False
            self.filter = self.filter if key == "enter" else ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key
