"""Kinds of values that settings have: what reads each, and refuses what it cannot be."""

from collections.abc import Callable
from typing import TypeAlias

from kvstream.commands.args import I64_MAX, at_least, integer
from kvstream.commands.settings import memory_size, within
from kvstream.errors import InvalidArgument

_ALL = 100
Parse: TypeAlias = Callable[[bytes], object]


def count(least: int, most: int = I64_MAX, unsigned: bool = False) -> Parse:
    """Return what reads a number; ``unsigned`` as in ``within``."""

    def parse(raw: bytes) -> int:
        number = integer(raw, "argument couldn't be parsed into an integer")
        return within(number, least, most, unsigned)

    return parse


def memory(least: int, unsigned: bool = True) -> Parse:
    """Return what reads bytes, also as ``4kb`` or ``1g``; ``unsigned`` as in ``within``."""

    def parse(raw: bytes) -> int:
        return within(memory_size(raw), least, I64_MAX, unsigned)

    return parse


def clamped(parse: Parse, least: int, most: int = I64_MAX) -> Parse:
    """Return what reads a number and takes the nearest one that is allowed."""

    def nearest(raw: bytes) -> int:
        number = parse(raw)
        assert isinstance(number, int)
        return min(max(number, least), most)

    return nearest


def memory_or_share(raw: bytes) -> object:
    """Read bytes, or percents of something."""
    is_share = raw.endswith(b"%")
    try:
        number = at_least(0, raw[:-1], "", "") if is_share else memory_size(raw)
    except InvalidArgument:
        raise InvalidArgument("argument must be a memory or percent value") from None
    if number > (_ALL if is_share else I64_MAX):
        raise InvalidArgument("percentage argument must be less or equal to 100")
    return b"%d%%" % number if is_share and number else number


def word(*words: bytes) -> Parse:
    """Return what reads one of some words."""

    def parse(raw: bytes) -> object:
        if raw.lower() not in words:
            told = ", ".join(each.decode() for each in words)
            raise InvalidArgument(f"argument(s) must be one of the following: {told}")
        return raw.lower()

    return parse


def split(raw: bytes) -> list[bytes]:
    """Return the words of a setting that takes several: one space parts two words."""
    return raw.split(b" ") if raw else []


def truth(raw: bytes) -> bool:
    if raw.lower() not in (b"yes", b"no"):
        raise InvalidArgument("argument must be 'yes' or 'no'")
    return raw.lower() == b"yes"
