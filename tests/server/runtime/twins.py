"""Two streams that get the same changes, one of them in steps."""

import random
from collections.abc import Sequence
from typing import Any

from tests.commands.dispatcher import Dispatcher, flatten
from tests.server.talking import Server

ENTRIES = 40
IDS = [f"{number}-1" for number in range(1, ENTRIES + 1)]
CHANGES = (
    *[("XADD", "KEY", "NEXT", "f", "v")] * 5,
    ("XDEL", "KEY", "ID"),
    ("XDEL", "KEY", "ID", "ID", "ID"),
    ("XDELEX", "KEY", "DELREF", "IDS", "1", "ID"),
    ("XTRIM", "KEY", "MINID", "ID"),
    ("XTRIM", "KEY", "MAXLEN", "33"),
    ("XACK", "KEY", "g", "ID", "ID"),
    ("XNACK", "KEY", "g", "FAIL", "IDS", "2", "ID", "ID"),
    ("XCLAIM", "KEY", "g", "w", "0", "ID", "ID"),
    ("XREADGROUP", "GROUP", "g", "v", "COUNT", "5", "STREAMS", "KEY", ">"),
)
RARE = (
    ("XGROUP", "DESTROY", "KEY", "g"),
    ("XGROUP", "CREATE", "KEY", "g", "0"),
    ("XTRIM", "KEY", "MAXLEN", "0"),
    ("XSETID", "KEY", "3-0"),
    ("DEL", "KEY"),
    ("SET", "KEY", "v"),
)


def shown(server: Server, key: str) -> Any:
    """Return the complete state of a stream, outside the turns."""
    ask = Dispatcher(server.engine).execute
    full = [b"XINFO", b"STREAM", key.encode(), b"FULL", b"COUNT", b"0"]
    return flatten(ask([b"XRANGE", key.encode(), b"-", b"+"])), flatten(ask(full))


class Twins:
    """Two streams that get the same changes."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._execute = Dispatcher(server.engine).execute
        self.draw = random.Random(seed)
        self._last = ENTRIES

    def ask(self, *words: str) -> Any:
        return flatten(self._execute([word.encode() for word in words]))

    def both(self, words: tuple[str, ...]) -> None:
        self._last += words[0] == "XADD"
        places = {"NEXT": f"{self._last}-1"}
        named = [
            self.draw.choice(IDS) if word == "ID" else places.get(word, word) for word in words
        ]
        for key in "st":
            self.ask(*[key if word == "KEY" else word for word in named])

    def begin(self) -> None:
        self.ask("DEL", "s", "t")
        self._last = 0
        for _ in range(ENTRIES):
            self.both(("XADD", "KEY", "NEXT", "f", "v"))
        self.both(("XGROUP", "CREATE", "KEY", "g", "0"))
        for number in (15, 1, 9):
            self.both(
                ("XREADGROUP", "GROUP", "g", "w", "COUNT", str(number), "STREAMS", "KEY", ">")
            )

    def change(self, rarely: bool, kinds: Sequence[tuple[str, ...]] = CHANGES) -> None:
        for _ in range(self.draw.randint(0, 3)):
            self.both(self.draw.choice(kinds))
        if rarely and self.draw.random() < 0.1:
            self.both(self.draw.choice(RARE))

    def are_alike(self) -> bool:
        one, other = [shown(self._server, key) for key in "st"]
        return bool(one == other)
