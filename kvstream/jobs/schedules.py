"""The schedules of an application: workers store them, and remove those that it has dropped.

Applications may share a store, and the name of their Jobs. So each schedule names the application
that has declared it, in the field ``app`` of its messages, and no other one removes it. By default
an application has the name of the file and variable of its ``Jobs``. A Jobs that no variable of a
module holds has no name: only the same object removes what it has declared.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstream.jobs.arguments import pack
from kvstream.jobs.job import APP, ARGS, EXPIRES_AFTER, FORMAT, TAGS, TASK, VERSION, AnyJobs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from kvstream.jobs.task import Task
    from kvstream.stream import Stream
    from kvstream.types import records
    from kvstream.types.options import Misfire

Place = tuple[bytes, bytes]
"""The key of a stream, and the name of a schedule."""

SCHEDULED = "scheduled"
"""The stream that lists the queues that have had schedules, except the default one."""
_CRON = b"cron:"
_log = logging.getLogger(__name__)


class Schedule(NamedTuple):
    """When a task runs by itself."""

    task: Task[..., Any]
    """The task that runs."""
    cron: str
    """The cron expression of its times."""
    tz: str
    """The time zone of the expression, such as ``Europe/Berlin``."""
    misfire: Misfire
    """What becomes of times that passed while nothing was there to enqueue the job."""
    most: int
    """How many jobs ``"all"`` makes up for at once."""

    @property
    def name(self) -> str:
        """The name of the schedule in the stream of its queue."""
        return f"{_CRON.decode()}{self.task.name}:{self.cron}"


# --- the application ----------------------------------------------------------------------------


def calling_module() -> str:
    """Return the name of the module whose code makes a Jobs."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) == _package(globals()):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _package(names: dict[str, Any]) -> object:
    return names.get("__package__")


def path_of(jobs: AnyJobs, module_name: str) -> str:
    """Return the file and variable of a Jobs, such as ``/srv/app.py:jobs``; empty without one."""
    module: ModuleType | None = sys.modules.get(module_name)
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return ""
    names = sorted(name for name, value in list(vars(module).items()) if value is jobs)
    return f"{os.path.abspath(file)}:{names[0]}" if names else ""


# --- declaring ----------------------------------------------------------------------------------


def declare(jobs: AnyJobs, declared: set[Place]) -> None:
    """Store the schedules of an application, and remove those that it has no longer.

    ``declared`` are the schedules that this object has stored before; the new ones are added.
    """
    application = jobs.application
    wanted = {
        (_key_of(jobs, schedule.task), schedule.name.encode()): schedule
        for schedule in jobs.schedules
    }
    for stream in _streams(jobs, {key for key, _ in wanted}):
        for found in stream.schedules():
            place = stream.key, found.name
            if place in wanted:
                continue
            is_declared = found.name.startswith(_CRON)
            if is_declared and (place in declared or _is_own(jobs, application, found)):
                _remove(stream, found, application)
                declared.discard(place)
            elif _text(found.fields.get(TASK, b"")) not in jobs.tasks:
                _note(stream, found, "is for a task that this application does not have")
            elif is_declared and _is_of_task(jobs, found):
                _note(stream, found, "is for a task of this application")
    for (key, _), schedule in wanted.items():
        jobs.store.stream(key).schedule(
            schedule.name,
            schedule.cron,
            _fields(schedule.task, jobs.format, application),
            tz=schedule.tz,
            misfire=schedule.misfire,
            most=schedule.most,
        )
    declared.update(wanted)


def _key_of(jobs: AnyJobs, task: Task[..., Any]) -> bytes:
    """Return the key of the stream that a schedule of a task adds to: that of its priority."""
    return jobs.queue_of(task).stream_for(task.default_priority).key


def _is_own(jobs: AnyJobs, application: str, found: records.Schedule) -> bool:
    """Return whether this application has declared a schedule.

    A schedule of an earlier version names no application. It belongs to the one that has a schedule
    for the same task now.
    """
    owner = found.fields.get(APP)
    if owner is None:
        return _is_of_task(jobs, found)
    return owner.decode("utf-8", "replace") == application


def _is_of_task(jobs: AnyJobs, found: records.Schedule) -> bool:
    """Return whether the application has a schedule for the task of a stored one."""
    return found.fields.get(TASK) in {each.task.name.encode() for each in jobs.schedules}


def _remove(stream: Stream, found: records.Schedule, application: str) -> None:
    _log.warning(
        "the schedule %s of queue %s is removed: the application %s has declared it, and has it no "
        "more",
        *(_text(found.name), _text(stream.key), application or "of this Jobs"),
    )
    stream.delete_schedule(found.name)


def _note(stream: Stream, found: records.Schedule, why: str) -> None:
    """Log that a schedule of another application stays, which may be left over or have no task."""
    key, name = _text(stream.key), _text(found.name)
    owner = _text(found.fields.get(APP, b"")) or "an unknown program"
    _log.warning(
        "the schedule %s of queue %s (task: %s) %s, but %s has declared it, so it stays: "
        "kvstream schedule rm %s '%s' removes it",
        *(name, key, _text(found.fields.get(TASK, b"none")), why, owner, key, name),
    )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _streams(jobs: AnyJobs, now: Iterable[bytes]) -> list[Stream]:
    """Return the streams that may have schedules, also of queues that are not used any more.

    The streams with the keys ``now`` are recorded: they get schedules.
    """
    default = jobs.name.encode()
    noted = jobs.store.stream(f"{jobs.name}:{SCHEDULED}")
    keys = {default, *(entry.fields[b"queue"] for entry in noted.range())}
    for key in set(now) - keys:
        noted.add({"queue": key})
        keys.add(key)
    return [jobs.store.stream(key) for key in sorted(keys)]


def _fields(task: Task[..., Any], form: str, application: str) -> dict[bytes, str | bytes]:
    """Return the fields of the messages of a task's schedule."""
    found: dict[bytes, str | bytes] = {
        TASK: task.name,
        ARGS: pack(task.signature.dump((), {}), form),
        VERSION: task.signature.version,
    }
    if form != "json":
        found[FORMAT] = form
    if application:
        found[APP] = application
    if task.tags:
        found[TAGS] = ",".join(task.tags)
    expires_s = task.flow.expires_s({})
    if expires_s is not None:
        found[EXPIRES_AFTER] = str(round(expires_s * 1000))
    return found
