"""Replies of commands, in one form for every implementation.

bytes for bulk and simple strings, int, None for null, lists; maps are flat lists, as in RESP2; an
error reply is an ``Error``, equal by its text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Argument = str | bytes | int
Reply: TypeAlias = Any
Run = Callable[..., Reply]


@dataclass(frozen=True)
class Error:
    """An error reply; ``text`` begins with its code."""

    text: bytes

    @property
    def code(self) -> bytes:
        return self.text.split(b" ", 1)[0]


def err(text: str) -> Error:
    """Return the error reply of that text, with the code ERR."""
    return Error(f"ERR {text}".encode())


def encode(argv: Sequence[Argument]) -> list[bytes]:
    """Return the arguments as a client sends them."""
    return [arg if isinstance(arg, bytes) else str(arg).encode() for arg in argv]
