"""What people see: bytes, times, durations and sizes as text that any terminal can show.

Nothing here can be read back: ``json_values`` is for programs.
"""

from datetime import UTC, datetime

from kvstream.ids import StreamID

TIME_MS_MIN = 100_000_000_000
"""IDs below (March 1973) are counters given by hand, not times."""
TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999."""

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def printable(value: bytes | str) -> str:
    """Return one line of text in which whatever is not printable stands escaped.

    Bytes are taken as UTF-8; text may hold surrogate escapes. Control codes are escaped too: what
    lies in a store must not drive the terminal.
    """
    raw = value if isinstance(value, bytes) else _encoded(value)
    text = raw.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def quoted(value: bytes | str) -> str:
    """Return a printable name in quotes."""
    return f"'{printable(value)}'"


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a surrogate pair that escapes no byte
        return text.encode("utf-8", "backslashreplace")


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def shortened(text: str, width: int | None) -> str:
    """Return ``text`` in ``width`` characters at most; None: whole."""
    if width is None or len(text) <= width:
        return text
    return text[: max(width - 1, 0)] + "…"


def time_of(moment: StreamID | int | None) -> str:
    """Return the UTC time of an ID or of Unix milliseconds; empty where it is no time."""
    if moment is None:
        return ""
    ms = moment.ms if isinstance(moment, StreamID) else moment
    if not TIME_MS_MIN <= ms <= TIME_MS_MAX:
        return ""
    stamp = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{stamp:%Y-%m-%d %H:%M:%S}.{ms % 1000:03d}Z"


def duration(ms: int | None) -> str:
    """Return a number of milliseconds as people say it: ``850 ms``, ``4.2 s``, ``3h 20m``."""
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
    """Return a count with its thousands apart; ``unknown`` for None."""
    return "unknown" if count is None else f"{count:,}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return ``1 entry``, ``2 entries``."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"
