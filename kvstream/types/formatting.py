"""Values as text for people: names, times, durations, sizes and numbers."""

import re
from datetime import UTC, datetime
from functools import lru_cache

from kvstream.types.ids import StreamID

TIME_MS_MIN = 100_000_000_000
"""IDs below (March 1973) are taken as plain counters, not times."""
TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999."""

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def printable(value: bytes | str) -> str:
    """Return one line of text, with escapes for everything that is not printable.

    Bytes are decoded as UTF-8; text may contain surrogate escapes. Control codes are escaped, so
    that data cannot control the terminal.
    """
    raw = value if isinstance(value, bytes) else _encode(value)
    text = raw.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def quote(value: bytes | str) -> str:
    """Return a printable name in quotes."""
    return f"'{printable(value)}'"


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair that escapes no byte
        return text.encode("utf-8", "backslashreplace")


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def shorten(text: str, width: int | None) -> str:
    """Return ``text``, cut to ``width`` characters unless that is None."""
    if width is None or len(text) <= width:
        return text
    return text[: max(width - 1, 0)] + "…"


def unix_ms(moment: datetime) -> int:
    """Return a time in Unix milliseconds."""
    return round(moment.timestamp() * 1000)


def time_of(moment: StreamID | datetime | int | None) -> str:
    """Return the UTC time of an ID, a datetime or Unix milliseconds; empty if it is not a time."""
    if moment is None:
        return ""
    if isinstance(moment, StreamID):
        ms = moment.ms
    else:
        ms = unix_ms(moment) if isinstance(moment, datetime) else moment
    if not TIME_MS_MIN <= ms <= TIME_MS_MAX:
        return ""
    return f"{_second(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(maxsize=100)
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def duration(ms: int | None) -> str:
    """Return milliseconds as ``850 ms``, ``4.2 s`` or ``3h 20m``; ``never`` for None or -1."""
    if ms is None or ms < 0:
        return "never"
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    parts = []
    for unit, length in _UNITS:
        count, ms = divmod(ms, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def size(count: int) -> str:
    """Return a number of bytes in decimal units."""
    number = float(count)
    for unit in _SIZES:
        if number < 1000 or unit == _SIZES[-1]:
            break
        number /= 1000
    return f"{count} B" if unit == "B" else f"{number:.1f} {unit}"


def number(count: int | None) -> str:
    """Return a count with thousands separators; ``unknown`` for None."""
    return "unknown" if count is None else f"{count:,}"


def plural(count: int, noun: str) -> str:
    """Return ``1 entry``, ``2 entries``, ``2 keys``."""
    nouns = re.sub("([^aeiou])y$", r"\1ie", noun) + "s"
    return f"{count:,} {noun if count == 1 else nouns}"
