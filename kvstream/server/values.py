"""Kinds of values that settings have: what reads each, and refuses what it cannot be."""

from collections.abc import Callable
from typing import TypeAlias

from kvstream.commands.args import I64_MAX, at_least, integer
from kvstream.commands.settings import memory_size
from kvstream.errors import InvalidArgument

_ALL = 100
Parse: TypeAlias = Callable[[bytes], object]


def count(least: int, most: int = I64_MAX) -> Parse:
    def parse(raw: bytes) -> int:
        return _within(integer(raw, "argument couldn't be parsed into an integer"), least, most)

    return parse


def memory(least: int, most: int = I64_MAX) -> Parse:
    """Return what reads bytes, also as ``4kb`` or ``1g``."""

    def parse(raw: bytes) -> int:
        return _within(memory_size(raw), least, most)

    return parse


def memory_or_share(raw: bytes) -> object:
    """Read bytes, or percents of something."""
    try:
        if not raw.endswith(b"%"):
            return memory_size(raw)
        share = at_least(0, raw[:-1], "", "")
    except InvalidArgument:
        raise InvalidArgument("argument must be a memory or percent value") from None
    if share > _ALL:
        raise InvalidArgument("percentage argument must be less or equal to 100")
    return b"%d%%" % share


def _within(value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise InvalidArgument(f"argument must be between {least} and {most} inclusive")
    return value


def truth(raw: bytes) -> bool:
    if raw.lower() not in (b"yes", b"no"):
        raise InvalidArgument("argument must be 'yes' or 'no'")
    return raw.lower() == b"yes"
