"""Parsers of the values of settings, as Redis writes them: numbers, sizes of memory, words."""

import re
from collections.abc import Callable
from typing import TypeAlias

from kvstream.commands.args import I64_MAX, at_least, integer
from kvstream.errors import InvalidArgument

_MEMORY = re.compile(rb"([0-9]{0,127})(b|k|kb|m|mb|g|gb)?", re.IGNORECASE)
_UNITS = {
    b"": 1,
    b"b": 1,
    b"k": 1000,
    b"kb": 1 << 10,
    b"m": 1000**2,
    b"mb": 1 << 20,
    b"g": 1000**3,
    b"gb": 1 << 30,
}
_ALL = 100

Parse: TypeAlias = Callable[[bytes], object]
"""Parses the value of a setting, or raises InvalidArgument with the reason."""


def memory_size(raw: bytes) -> int:
    """Parse ``100``, ``4kb`` or ``1g`` into bytes; no digits are 0."""
    match = _MEMORY.fullmatch(raw)
    if match is None:
        raise InvalidArgument("argument must be a memory value")
    return int(match[1] or 0) * _UNITS[(match[2] or b"").lower()]


def within(value: int, least: int, most: int) -> int:
    """Return a value within its bounds, or raise InvalidArgument with the reason."""
    if not least <= value <= most:
        raise InvalidArgument(f"argument must be between {least} and {most} inclusive")
    return value


def count(least: int, most: int = I64_MAX) -> Parse:
    """Return a parser of numbers."""

    def parse(raw: bytes) -> int:
        number = integer(raw, "argument couldn't be parsed into an integer")
        return within(number, least, most)

    return parse


def memory(least: int, most: int = I64_MAX) -> Callable[[bytes], int]:
    """Return a parser of bytes, also as ``4kb`` or ``1g``."""

    def parse(raw: bytes) -> int:
        return within(memory_size(raw), least, most)

    return parse


def clamp(parse: Parse, least: int, most: int = I64_MAX) -> Parse:
    """Return a parser of numbers that takes the nearest allowed one."""

    def nearest(raw: bytes) -> int:
        number = parse(raw)
        assert isinstance(number, int)
        return min(max(number, least), most)

    return nearest


def memory_or_share(raw: bytes) -> object:
    """Parse bytes, or a percentage."""
    is_share = raw.endswith(b"%")
    try:
        number = at_least(0, raw[:-1], "", "") if is_share else memory_size(raw)
    except InvalidArgument:
        raise InvalidArgument("argument must be a memory or percent value") from None
    if number > (_ALL if is_share else I64_MAX):
        raise InvalidArgument("percentage argument must be less or equal to 100")
    return b"%d%%" % number if is_share and number else number


def word(*allowed: bytes) -> Parse:
    """Return a parser of one of some words."""

    def parse(raw: bytes) -> object:
        if raw.lower() not in allowed:
            listed = ", ".join(each.decode() for each in allowed)
            raise InvalidArgument(f"argument(s) must be one of the following: {listed}")
        return raw.lower()

    return parse


def words(*allowed: bytes) -> Parse:
    """Return a parser of one or more of some words."""
    parse_one = word(*allowed)

    def parse(raw: bytes) -> object:
        for each in raw.split() or [raw]:
            parse_one(each)
        return raw.lower()

    return parse


def split(raw: bytes) -> list[bytes]:
    """Return the words of a value; one space separates two words."""
    return raw.split(b" ") if raw else []


def truth(raw: bytes) -> bool:
    if raw.lower() not in (b"yes", b"no"):
        raise InvalidArgument("argument must be 'yes' or 'no'")
    return raw.lower() == b"yes"
