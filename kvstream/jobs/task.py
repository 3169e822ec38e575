"""A task: a function whose calls can be enqueued as jobs."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from random import random
from typing import Any, Generic, ParamSpec, TypeVar

from kvstream.errors import InvalidArgument, shown
from kvstream.jobs.arguments import Signature, pack, unpack
from kvstream.jobs.handle import JobHandle
from kvstream.jobs.job import AnyJobs, Job, Refused, new_id

P = ParamSpec("P")
R = TypeVar("R")

DELIVERIES_MIN = 5
"""A job whose workers die is given up after so many deliveries, or ``retries`` and one."""
BACKOFF_FIRST_S, BACKOFF_CAP_S, BACKOFF_JITTER = 1.0, 3600.0, 0.2
"""The backoff of a task that names none: 1 s, 2 s, 4 s and so on, up to an hour."""
OPTIONS = frozenset({"delay", "at", "key", "unique", "window", "on_conflict", "priority", "ttl"})
"""What ``enqueue`` takes beside the arguments of the function."""


def seconds_of(span: float | timedelta) -> float:
    """Return a duration in seconds."""
    return span.total_seconds() if isinstance(span, timedelta) else span


class Task(Generic[P, R]):
    """A function of a ``Jobs``; calling it runs the function here and now."""

    def __init__(
        self,
        jobs: AnyJobs,
        function: Callable[P, R],
        *,
        name: str,
        queue: str,
        retries: int,
        backoff: Any,
        timeout: float | None,
        dead_letter: str | bool | None,
        unique: bool | str,
        priority: str | None,
        result_ttl: float,
    ) -> None:
        self.jobs = jobs
        self.function = function
        self.name = name
        self.queue = queue
        self.retries = retries
        self.timeout = timeout
        self.dead_letter = dead_letter
        self.result_ttl = result_ttl
        self._unique = unique
        self.default_priority = priority
        self.limits: dict[str, Any] = {}
        """Rules of its queue: rate, max_in_flight, dead_letter."""
        self._backoff = backoff
        self.signature = Signature(function)
        self.is_async = inspect.iscoroutinefunction(function)
        functools.update_wrapper(self, function)
        if taken := sorted(OPTIONS.intersection(self.signature.by_name)):
            raise InvalidArgument(
                f"the parameter {taken[0]!r} of {name} has the name of an option of enqueue: "
                "rename it, or make it positional-only"
            )
        self.delay_s(1)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    # --- enqueueing -----------------------------------------------------------------------------

    def enqueue(
        self,
        *args: Any,
        delay: float | timedelta | None = None,
        at: float | datetime | None = None,
        key: str | None = None,
        unique: str | bool | None = None,
        window: float | timedelta | None = None,
        on_conflict: str = "skip",
        priority: str | None = None,
        ttl: float | timedelta | None = None,
        **kwargs: Any,
    ) -> JobHandle[Any]:
        """Enqueue a call; return its handle. Arguments that do not fit raise TypeError.

        ``delay`` (seconds or timedelta) or ``at`` (datetime or Unix seconds): not before then.
        ``key``: jobs of one key run in order, one at a time. ``unique``: no second job of this name
        for the ``window``; True makes the name of the arguments. ``on_conflict``: "skip" returns
        the handle of the first, "replace", "debounce", or "after" (once more, after the first).
        ``priority``: one of those of the Jobs. ``ttl``: not after so many seconds.
        """
        job = self._job(args, kwargs, key)
        name = self._unique_name(unique, args, kwargs, job)
        handle: JobHandle[Any] = self.jobs.put(
            self,
            job,
            delay=delay,
            at=at,
            ttl=ttl,
            unique=name,
            window=window,
            on_conflict=on_conflict,
            priority=priority or self.default_priority,
        )
        return handle

    async def aenqueue(self, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Enqueue a call as ``enqueue`` does, without blocking the event loop."""
        return await asyncio.to_thread(functools.partial(self.enqueue, *args, **kwargs))

    def enqueue_many(
        self,
        calls: Iterable[Sequence[Any] | Mapping[str, Any]],
        *,
        delay: float | timedelta | None = None,
        at: float | datetime | None = None,
        key: str | None = None,
        priority: str | None = None,
        ttl: float | timedelta | None = None,
    ) -> list[JobHandle[Any]]:
        """Enqueue many calls in one commit; return a handle for each.

        A call is a sequence of positional arguments or a mapping of named ones. ::

            send_mail.enqueue_many([("a@b.c",), ("d@e.f",)])
        """
        jobs = []
        for call in calls:
            if isinstance(call, str | bytes) or not isinstance(call, Sequence | Mapping):
                raise TypeError(
                    f"a call is a tuple or list of arguments, or a mapping, not {shown(call)}"
                )
            args, kwargs = ((), call) if isinstance(call, Mapping) else (tuple(call), {})
            jobs.append(self._job(args, kwargs, key))
        priority = priority or self.default_priority
        return self.jobs.put_many(self, jobs, priority=priority, delay=delay, at=at, ttl=ttl)

    async def aenqueue_many(self, calls: Iterable[Any], **options: Any) -> list[JobHandle[Any]]:
        """Enqueue many calls as ``enqueue_many`` does, without blocking the event loop."""
        return await asyncio.to_thread(functools.partial(self.enqueue_many, calls, **options))

    def _job(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: str | None) -> Job:
        now = self.jobs.now_ms()
        job = Job(
            id=new_id(now),
            task_name=self.name,
            packed=pack(self.signature.dump(args, kwargs), self.jobs.format),
            form=self.jobs.format,
            version=self.signature.version,
            key=key,
            enqueued_ms=now,
            task=self,
        )
        for middleware in self.jobs.middleware:
            middleware.enqueued(job)
        return job

    def _unique_name(
        self, unique: str | bool | None, args: Any, kwargs: Any, job: Job
    ) -> str | None:
        wanted = self._unique if unique is None else unique
        if wanted is True:
            return f"{self.name}:{hashlib.blake2s(job.packed, digest_size=16).hexdigest()}"
        if not wanted:
            return None
        return wanted if unique is not None else self.signature.formatted(wanted, args, kwargs)

    # --- running --------------------------------------------------------------------------------

    def load(self, job: Job) -> None:
        """Set the arguments of a job; raise Refused if they do not fit this version of the task."""
        try:
            job.args, job.kwargs = self.signature.load(unpack(job.packed, job.form))
        except (TypeError, ValueError) as error:
            version = self.signature.version
            which = (
                f"it was enqueued for version {job.version or '?'} of the task, this is {version}"
                if job.version != version
                else f"version {version}"
            )
            raise Refused(f"the arguments do not fit {self.name}: {error} ({which})") from None

    @property
    def max_deliveries(self) -> int:
        return max(self.retries + 1, DELIVERIES_MIN)

    def delay_s(self, failures: int) -> float:
        """Return the seconds before the next try, after so many failures."""
        backoff = self._backoff
        if isinstance(backoff, int | float | timedelta):
            return seconds_of(backoff)
        if hasattr(backoff, "cap"):
            first, cap, jitter = map(float, backoff)
            delay = min(cap, first * 2.0 ** min(failures - 1, 60))
            return delay * (1 - jitter * random())
        try:
            delays = [float(seconds_of(each)) for each in backoff]
            return delays[min(failures, len(delays)) - 1]
        except (TypeError, ValueError, IndexError):
            raise InvalidArgument(
                f"backoff is a number of seconds, a list of them, or Backoff, not {shown(backoff)}"
            ) from None
