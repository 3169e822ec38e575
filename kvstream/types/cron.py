"""Cron expressions: the times that they name, forwards and backwards.

An expression has five fields (minute, hour, day of month, month, day of week) or six, of which the
first is the second; or it is a word such as ``@hourly``, or ``@every 10s``. Its times are those of
a time zone. Where clocks are changed, five fields mean what they mean to Debian's cron: a time that
is left out comes right after the gap, one that occurs twice counts the first time, and an hour or
minute that begins with ``*`` counts real time. So do six fields of which the first is one number.

``@every`` counts from the Unix epoch, whatever the zone: ``@every 24h`` is midnight of UTC.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache

from kvstream.errors import InvalidArgument, show
from kvstream.types.ids import duration_ms

EXPRESSION_MAX = 256
"""Characters of an expression."""
EVERY_MIN_MS = 1000
EVERY_MAX_MS = 366 * 86_400_000
_EVERY = "@every "
_WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MS = 1000


@dataclass(frozen=True, slots=True)
class Every:
    """The multiples of a time."""

    every_ms: int

    def after(self, ms: int) -> int | None:
        """Return the first time after a Unix time in milliseconds; None if there is none."""
        return (ms // self.every_ms + 1) * self.every_ms

    def until(self, ms: int) -> Iterator[int]:
        """Yield the times up to a Unix time in milliseconds, the latest first."""
        latest = ms // self.every_ms * self.every_ms
        yield from range(latest, -1, -self.every_ms)


@dataclass(frozen=True, slots=True)
class Fields:
    """The times of an expression with fields."""

    expression: str
    zone: tzinfo
    second: int = 0
    """Added to each time of five fields."""

    def _find(self, at_s: int, reverse: bool) -> Iterator[int]:
        from cronsim import CronSim

        begin = datetime.fromtimestamp(at_s - self.second, self.zone)
        for moment in CronSim(self.expression, begin, reverse=reverse):
            yield (int(moment.timestamp()) + self.second) * _MS

    def after(self, ms: int) -> int | None:
        """Return the first time after a Unix time in milliseconds; None if there is none."""
        moments = self._find(ms // _MS, reverse=False)
        # In an hour that occurs twice, the first found may lie in the one that has passed.
        return next((time_ms for time_ms in moments if time_ms > ms), None)

    def until(self, ms: int) -> Iterator[int]:
        """Yield the times up to a Unix time in milliseconds, the latest first."""
        last = ms + 1
        for time_ms in self._find(ms // _MS + 1, reverse=True):
            if time_ms < last:
                yield time_ms
                last = time_ms


Times = Every | Fields


def _is_text(value: object) -> bool:
    """Return whether a value is a text that UTF-8 can write."""
    with suppress(UnicodeEncodeError):
        return isinstance(value, str) and value.encode() is not None
    return False


def refuse_no_text(expression: object, zone: object) -> None:
    """Raise InvalidArgument unless an expression and the name of a time zone are text."""
    if not _is_text(expression):
        raise InvalidArgument(f"a cron expression is a text, not {show(expression)}")
    if not _is_text(zone):
        hint = "its name, such as Europe/Berlin"
        raise InvalidArgument(f"the time zone cannot be {show(zone)}: give {hint}")


@lru_cache(maxsize=1024)
def parse(expression: str, zone: str = "") -> Times:
    """Return the times of an expression in a time zone, UTC if that is empty.

    Raises InvalidArgument, which says what is wrong.
    """
    refuse_no_text(expression, zone)
    where = _zone(zone)
    if len(expression) > EXPRESSION_MAX:
        raise InvalidArgument(f"a cron expression has at most {EXPRESSION_MAX} characters")
    words = expression.split()
    plain = " ".join(words).lower()
    if plain.startswith(_EVERY):
        return _every(expression, plain.removeprefix(_EVERY))
    if plain.startswith("@"):
        if plain not in _WORDS:
            raise _wrong(expression, f"the words are {', '.join(_WORDS)} and @every 10s")
        words = _WORDS[plain].split()
    if len(words) not in (5, 6):
        raise _wrong(expression, f"it has {len(words)} fields, not 5, or 6 with seconds")
    second = 0
    if len(words) == 6 and words[0].isascii() and words[0].isdigit() and int(words[0]) < 60:
        second = int(words.pop(0))
    times = Fields(" ".join(words), where, second)
    _try(expression, times)
    return times


def _every(expression: str, text: str) -> Every:
    every_ms = duration_ms(text)
    if every_ms is None or not EVERY_MIN_MS <= every_ms <= EVERY_MAX_MS:
        raise _wrong(expression, "after @every comes a time from 1s to 366d, such as 10s or 1.5h")
    return Every(every_ms)


def _try(expression: str, times: Fields) -> None:
    from cronsim import CronSim, CronSimError

    try:
        CronSim(times.expression, datetime(2024, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise _wrong(expression, str(error).replace("Bad ", "bad field: ")) from None
    except Exception:  # a form that its parser does not expect
        raise _wrong(expression, "its fields cannot be parsed") from None


def _wrong(expression: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"the cron expression {show(expression)} is wrong: {why}")


def _zone(name: str) -> tzinfo:
    if name in ("", "UTC"):
        return UTC
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        hint = "give a name such as Europe/Berlin"
        if not available_timezones():
            hint = "this system has no time zones: install the package tzdata"
        raise InvalidArgument(f"the time zone {show(name)} is unknown: {hint}") from None
