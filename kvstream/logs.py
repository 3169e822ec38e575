"""Logging: the levels of Redis, how a line is written, and how often one of a kind is.

Every module logs to a logger of its own name, below ``kvstream``. As a library nothing is
configured here: the program decides. ``kvstream serve`` is a program, and calls ``logging_to``.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import WatchedFileHandler
from pathlib import Path

from kvstream.errors import InvalidArgument

NOTICE = 25
"""What an operator wants to know of a server that is well: between INFO and WARNING."""
LEVELS = {
    "debug": logging.DEBUG,
    "verbose": logging.INFO,
    "notice": NOTICE,
    "warning": logging.WARNING,
    "nothing": logging.CRITICAL + 1,
}
"""Redis's names, as ``loglevel`` has them; errors are shown with warnings."""
LEVEL = "notice"
FORMATS = ("text", "json")
ROOT = "kvstream"

WINDOW_S = 10.0
WINDOW_LINES = 10
"""So many lines of one kind in so many seconds: who attacks must not fill the disk with them."""

_NAMES = {logging.INFO: "VERBOSE", NOTICE: "NOTICE"}
_UNPRINTABLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
"""Clients choose names and keys, and must not write lines of their own."""

logging.getLogger(ROOT).addHandler(logging.NullHandler())


class Throttle:
    """Lets some lines of one kind through and counts the others."""

    def __init__(
        self,
        lines: int = WINDOW_LINES,
        seconds: float = WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lines, self._seconds, self._clock = lines, seconds, clock
        self._until = 0.0
        self._left = lines
        self._skipped = 0

    def log(
        self,
        logger: logging.Logger,
        level: int,
        message: str,
        *args: object,
        error: BaseException | None = None,
    ) -> None:
        """Log a line, with the traceback of ``error``, or only count it."""
        if not logger.isEnabledFor(level):
            return
        now = self._clock()
        if now >= self._until:
            self._until, self._left = now + self._seconds, self._lines
        if not self._left:
            self._skipped += 1
            return
        self._left -= 1
        if self._skipped:
            message, args = f"{message} (%d more were not logged)", (*args, self._skipped)
            self._skipped = 0
        logger.log(level, message, *args, exc_info=error)


class TextFormatter(logging.Formatter):
    """``2026-11-23 06:01:02.345 WARNING text``, in local time; a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        message = record.getMessage().translate(_UNPRINTABLE)
        line = f"{at}.{int(record.msecs):03d} {_name_of(record)} {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object a line: ``time`` in UTC, ``level``, ``logger``, ``message``, ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": _name_of(record).lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def _name_of(record: logging.LogRecord) -> str:
    return _NAMES.get(record.levelno, record.levelname)


@contextmanager
def logging_to(path: Path | None, style: str, level: str) -> Iterator[Callable[[str], None]]:
    """Have this process log to a file or, with None, to stderr; yield what sets another level.

    A file that was moved away is made anew. What asyncio and threads have to tell goes there as
    well. Raises InvalidArgument where the file cannot be written.
    """
    try:
        handler = logging.StreamHandler() if path is None else _file_handler(path)
    except OSError as error:
        raise InvalidArgument(f"logfile {path}: {error.strerror}") from None
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    loggers = [logging.getLogger(name) for name in (ROOT, "asyncio")]
    before = [(each, each.level, each.propagate) for each in loggers]
    hook, threading.excepthook = threading.excepthook, _log_thread
    raises, logging.raiseExceptions = logging.raiseExceptions, False  # as where the disk is full

    def set_level(name: str) -> None:
        for each in loggers:
            each.setLevel(LEVELS[name])

    for each in loggers:
        each.addHandler(handler)
        each.propagate = False
    set_level(level)
    try:
        yield set_level
    finally:
        threading.excepthook, logging.raiseExceptions = hook, raises
        for each, number, propagate in before:
            each.removeHandler(handler)
            each.setLevel(number)
            each.propagate = propagate
        handler.close()


def _file_handler(path: Path) -> logging.Handler:
    return WatchedFileHandler(path, encoding="utf-8", errors="backslashreplace")


def _log_thread(told: threading.ExceptHookArgs) -> None:
    """Log what ended a thread."""
    if told.exc_type is SystemExit or told.exc_value is None:
        return
    name = "a thread" if told.thread is None else told.thread.name
    _log.error("%s has failed", name, exc_info=told.exc_value)


_log = logging.getLogger(__name__)
