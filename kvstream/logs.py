"""Logging: Redis's levels, text and JSON formats, and a limit on repeated lines.

No line has a password or a value; names of keys and users may appear. The lines of failed jobs are
the exception: they have the text of the job's exception. Every module logs to a logger
of its own name, below ``kvstream``. The library configures no handler: the program does.
``kvstream serve`` is such a program, and calls ``logging_to``.

Handlers, filters and formatters are code of the program. They may take locks, and call the store.
So no record is emitted under a lock of kvstream: code that runs under one logs to a
``DeferredLogger``, and whoever has released the lock calls ``emit_deferred``.
"""

import atexit
import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import WatchedFileHandler
from pathlib import Path
from traceback import format_tb
from typing import Any, NamedTuple

from kvstream.errors import InvalidArgument
from kvstream.types.clock import monotonic

NOTICE = 25
"""The level between INFO and WARNING: events that an operator of a healthy server wants to see."""
LEVELS = {
    "debug": logging.DEBUG,
    "verbose": logging.INFO,
    "notice": NOTICE,
    "warning": logging.WARNING,
    "nothing": logging.CRITICAL + 1,
}
"""Redis's names of ``loglevel``; ``warning`` shows errors too."""
LEVEL = "notice"
FORMATS = ("text", "json")
ROOT = "kvstream"

WINDOW_S = 10.0
WINDOW_LINES = 10
"""The limit of one ``Throttle``: clients must not be able to fill the disk with log lines."""

_NAMES = {logging.INFO: "VERBOSE", NOTICE: "NOTICE"}
_TRACEBACK = "traceback_text"
"""The attribute of a record with the text of its traceback, which may quote values."""
_UNPRINTABLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
"""Names and keys come from clients, and must not be able to forge lines."""

logging.getLogger(ROOT).addHandler(logging.NullHandler())


class _Line(NamedTuple):
    """A line that a DeferredLogger keeps: to make its record may run code of the program."""

    at: float
    logger: str
    level: int
    file: str
    number: int
    message: str
    args: tuple[object, ...]
    error: Any
    function: str


deferred: deque[_Line] = deque()
"""What is still to be emitted, by any thread."""
_emitting: set[int] = set()
"""Threads that emit. A handler that calls kvstream begins no emission within its own."""


class DeferredLogger:
    """A logger for code that runs under a lock; its records are emitted after the release."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def isEnabledFor(self, level: int) -> bool:
        return self._logger.isEnabledFor(level)

    def log(
        self, level: int, message: str, *args: object, exc_info: BaseException | None = None
    ) -> None:
        """Note a line, which ``emit_deferred`` emits."""
        if not self._logger.isEnabledFor(level):
            return
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        error = None if exc_info is None else (type(exc_info), exc_info, exc_info.__traceback__)
        code, logger = frame.f_code, self._logger.name
        place = code.co_filename, frame.f_lineno
        line = _Line(time.time(), logger, level, *place, message, args, error, code.co_name)
        deferred.append(line)

    def debug(self, message: str, *args: object) -> None:
        self.log(logging.DEBUG, message, *args)

    def info(self, message: str, *args: object) -> None:
        self.log(logging.INFO, message, *args)

    def warning(self, message: str, *args: object) -> None:
        self.log(logging.WARNING, message, *args)

    def error(self, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        self.log(logging.ERROR, message, *args, exc_info=exc_info)


def emit_deferred() -> None:
    """Emit what was logged under a lock; the caller must have no lock.

    The work that logged it is done, so a handler that raises is reported as logging does.
    """
    thread = threading.get_ident()
    if not deferred or thread in _emitting:
        return
    try:  # first: an interrupt must not leave the mark behind
        _emitting.add(thread)
        while deferred:
            try:
                line = deferred.popleft()
            except IndexError:  # another thread was quicker
                return
            _emit(line)
    finally:
        _emitting.discard(thread)


def _emit(line: _Line) -> None:
    logger = logging.getLogger(line.logger)
    try:  # a program may have set its own class of loggers, and its factory of records
        record = logger.makeRecord(*line[1:])
        record.created, record.msecs = line.at, line.at % 1 * 1000
        logger.handle(record)
    except Exception:
        logging.Handler().handleError(logging.makeLogRecord({"msg": line.message}))


atexit.register(emit_deferred)


class Throttle:
    """Logs some lines of a window of time and counts the others."""

    def __init__(
        self,
        lines: int = WINDOW_LINES,
        seconds: float = WINDOW_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._lines, self._seconds, self._clock = lines, seconds, clock
        self._until = 0.0
        self._left = lines
        self._skipped = 0

    def log(
        self,
        logger: logging.Logger | logging.LoggerAdapter[logging.Logger] | DeferredLogger,
        level: int,
        message: str,
        *args: object,
        error: BaseException | None = None,
    ) -> None:
        """Log a line, with the traceback of ``error``, or count it if the window is used up."""
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


class _Formatter(logging.Formatter):
    """Formats an exception without the values that its text may quote."""

    def traceback_of(self, record: logging.LogRecord) -> str:
        """Return the traceback of a record, or of its exception; empty if it has none."""
        if text := getattr(record, _TRACEBACK, ""):
            return str(text).rstrip("\n")
        return self.formatException(record.exc_info) if record.exc_info else ""

    def formatException(self, ei: Any) -> str:
        """Return the traceback of an exception, after those of its causes.

        The text of an exception is shown only if it comes from the system or RocksDB: that of
        KeyError or ValueError may be a client's data.
        """
        error, parts = ei[1], []
        while error is not None:
            shown = isinstance(error, OSError) or type(error) is Exception
            text = f": {error}" if shown else ""
            trace = "".join(format_tb(error.__traceback__))
            parts.append(f"Traceback (most recent call last):\n{trace}{type(error).__name__}{text}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n\n".join(reversed(parts))


class TextFormatter(_Formatter):
    """``2026-11-23 06:01:02.345 WARNING server.net.tls: text`` in local time; then a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        module = record.name.removeprefix(f"{ROOT}.")
        message = record.getMessage().translate(_UNPRINTABLE)
        line = f"{at}.{int(record.msecs):03d} {_name_of(record)} {module}: {message}"
        trace = self.traceback_of(record)
        if getattr(record, _TRACEBACK, ""):  # a value in it must not begin a line
            lines = [each.translate(_UNPRINTABLE) for each in trace.split("\n")]
            trace = "\n".join(f"  {each}" for each in lines)
        return f"{line}\n{trace}" if trace else line


class JsonFormatter(_Formatter):
    """One object per line: ``time`` in UTC, ``level``, ``logger``, ``message``, ``exception``.

    Lines about a job have its facts too, as the object ``job``.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": _name_of(record).lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if job := getattr(record, "job", None):
            fields["job"] = job
        if trace := self.traceback_of(record):
            fields["exception"] = trace
        return json.dumps(fields)


def _name_of(record: logging.LogRecord) -> str:
    return _NAMES.get(record.levelno, record.levelname)


@contextmanager
def logging_to(path: Path | None, style: str, level: str) -> Iterator[Callable[[str], None]]:
    """Log to a file, or to stderr for None, within the block; yield a function to set the level.

    A log file that was moved away is created again. Messages of asyncio and uncaught exceptions of
    threads are logged as well. Raises InvalidArgument if the file cannot be written.
    """
    try:
        handler: logging.Handler = logging.StreamHandler()
        if path is not None:
            handler = WatchedFileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InvalidArgument(f"logfile {path}: {error.strerror}") from None
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    loggers = [logging.getLogger(name) for name in (ROOT, "asyncio")]
    before = [(logger, logger.level, logger.propagate) for logger in loggers]
    hook, threading.excepthook = threading.excepthook, _log_thread
    raises, logging.raiseExceptions = logging.raiseExceptions, False  # on a full disk, for example

    def set_level(name: str) -> None:
        for logger in loggers:
            logger.setLevel(LEVELS[name])

    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    set_level(level)
    try:
        yield set_level
    finally:
        threading.excepthook, logging.raiseExceptions = hook, raises
        for logger, number, propagate in before:
            logger.removeHandler(handler)
            logger.setLevel(number)
            logger.propagate = propagate
        handler.close()


def _log_thread(failure: threading.ExceptHookArgs) -> None:
    """Log the exception that ended a thread."""
    if failure.exc_type is SystemExit or failure.exc_value is None:
        return
    name = "a thread" if failure.thread is None else failure.thread.name
    _log.error("%s has failed", name, exc_info=failure.exc_value)


_log = logging.getLogger(__name__)
