"""The log of jobs: one line when a try begins, and one when it has ended.

::

    INFO     job <id> of <task> begins: attempt 1
    INFO     job <id> of <task> is done: attempt 1, 0.012 s
    INFO     job <id> of <task> waits: attempt 1, 0.012 s: pause        (a workflow)
    WARNING  job <id> of <task> failed: attempt 1, 0.012 s, tried again in 5 s: ValueError: text
    ERROR    job <id> of <task> failed for good: attempt 2, 0.012 s: ValueError: text

A final failure has the traceback too. A try that ends otherwise (its lease is lost, it is given
back) has a line as well. Each record has these facts in a dict, its attribute ``job``; the JSON
format shows them as fields.

Handlers of the log are the user's code. So nothing is logged while a lock is held or a transaction
is open, and what a handler raises is dropped: it cannot fail a job or end a worker.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstream.errors import KVStreamError, describe, format_trace, stored_text
from kvstream.logs import LEVELS, NOTICE
from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    from kvstream.jobs.job import Job

_ERROR_MAX = 1000
"""Characters of an exception's text in a line."""
_NAME_MAX = 200
"""Characters of an ID or of a task's name in a line: any program may have chosen them."""
_logger = logging.getLogger(__name__)


class Failure(NamedTuple):
    """An exception that ended a try, with its texts, which its own code has made once."""

    error: BaseException
    text: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return an exception with its texts; a long one is cut."""
        text = stored_text(describe(error)).decode()
        return cls(error, text, stored_text(format_trace(error), keep_end=True).decode())


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls never raise what a handler raises."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        with suppress(Exception, SystemExit):  # the text of an exception may raise that
            self.logger.log(level, msg, *args, stacklevel=2, **kwargs)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


def log_problem(
    logger: SafeLogger, level: int, message: str, *args: object, error: BaseException
) -> None:
    """Log a line with an error: the message of a KVStreamError, the traceback of any other one."""
    if isinstance(error, KVStreamError):
        logger.log(level, f"{message}: %s", *args, error)
    else:
        logger.log(level, message, *args, exc_info=error)


def logger_of(name: str) -> SafeLogger:
    """Return the logger of a module that runs jobs."""
    return SafeLogger(logging.getLogger(name))


def show(shows: bool, level: str) -> None:
    """Set whether starts and successes are logged, if ``level`` admits them.

    Failures are logged unless it is ``nothing``; with ``warning`` only failures are.
    """
    if LEVELS[level] <= NOTICE:
        _logger.setLevel(logging.INFO if shows else logging.WARNING)


def seconds_of(job: Job) -> float:
    """Return how long a try took, or takes so far."""
    if not job.begun:
        return 0.0
    return (monotonic() if job.returned is None else job.returned) - job.begun


def log_begun(job: Job) -> None:
    """Log that a try begins."""
    _write(logging.INFO, job, "begun", "begins: attempt %d", job.attempt)


def log_done(job: Job) -> None:
    """Log that the result of a try is written."""
    _log_end(logging.INFO, job, "done", "is done", "")


def log_retried(job: Job, failure: Failure, delay_s: float) -> None:
    """Log that a try has failed and its job is tried again."""
    rest = f", tried again in {delay_s:g} s"
    _log_end(logging.WARNING, job, "retry", "failed", rest, failure.text)


def log_failed(job: Job, failure: Failure) -> None:
    """Log that a job has failed and is not tried again, with the traceback."""
    _log_end(logging.ERROR, job, "failed", "failed for good", "", failure.text, failure)


def log_unrun(job: Job, outcome: str, why: str) -> None:
    """Log that a job is expired, skipped or put off, and why."""
    _log_end(logging.INFO, job, outcome, f"is {outcome}", f": {why}")


def log_waits(job: Job, why: str) -> None:
    """Log that a run of a workflow has ended without an outcome, and why."""
    _log_end(logging.INFO, job, "waits", "waits", f": {why}")


def log_late(job: Job, failure: Failure) -> None:
    """Log that a task has raised after the end of its job, such as that of its transaction."""
    _log_end(logging.ERROR, job, "failed", "failed after its end", "", failure.text, failure)


def log_lost(job: Job, why: str) -> None:
    """Log that a try has ended without an outcome: its lease is lost, or it is given back."""
    _log_end(logging.WARNING, job, "lost", "ended without an outcome", f": {why}")


def _log_end(
    level: int,
    job: Job,
    outcome: str,
    verb: str,
    rest: str,
    error: str = "",
    failure: Failure | None = None,
) -> None:
    if not _logger.isEnabledFor(level):
        return
    facts: dict[str, object] = {"seconds": round(seconds_of(job), 6)}
    if error:
        facts["error"] = _first(error, _ERROR_MAX)
        rest += f": {facts['error']}"
    text = f"{verb}: attempt %d, %.3f s%s"
    _write(level, job, outcome, text, job.attempt, seconds_of(job), rest, failure=failure, **facts)


def _write(
    level: int,
    job: Job,
    outcome: str,
    text: str,
    *args: object,
    failure: Failure | None = None,
    **facts: object,
) -> None:
    if not _logger.isEnabledFor(level):
        return
    job_id, task = _first(job.id, _NAME_MAX) or "?", _first(job.task_name, _NAME_MAX) or "?"
    facts = {"id": job_id, "task": task, "attempt": job.attempt, "outcome": outcome, **facts}
    extra: dict[str, object] = {"job": facts}
    raised, trace = None, None
    if failure is not None:
        error, trace = failure.error, failure.trace
        raised = type(error), error, error.__traceback__
        extra["traceback_text"] = trace
    with suppress(Exception, SystemExit):  # the text of an exception may raise that
        values = (job_id, task, *args)
        where = (_logger.name, level, __file__, 0)
        record = _logger.makeRecord(*where, f"job %s of %s {text}", values, raised, extra=extra)
        record.exc_text = trace  # formatters show it in place of the exception, however long
        _logger.handle(record)


def _first(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
