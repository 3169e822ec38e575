"""A task: a function whose calls can be enqueued as jobs."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from kvstream.engine.coerce import whole
from kvstream.engine.queue_arguments import Backoff, due_ms, moment_ms, rules_of, span_ms
from kvstream.errors import InvalidArgument, describe, nearest, show
from kvstream.jobs.arguments import Signature, digest, function_of, pack, unpack
from kvstream.jobs.dependents import dependencies_of, message_of, put_after
from kvstream.jobs.flow.rules import (
    NO_RULES,
    OF_ENQUEUE,
    Flow,
    OverLimit,
    check_options,
    put_options,
)
from kvstream.jobs.handle import JobHandle
from kvstream.jobs.history.child import Child, start_child
from kvstream.jobs.job import (
    AnyJobs,
    Job,
    Refused,
    UnknownTask,
    check_tags,
    new_id,
    to_seconds,
)
from kvstream.meta.policy import GroupPolicy
from kvstream.surface import Public
from kvstream.types.options import OnConflict

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

DELIVERIES_MIN = 5
"""A job whose workers die is given up after this number of deliveries, or ``retries`` + 1."""
BACKOFF = Backoff(1.0, 3600.0, 0.2)
"""The backoff of a task that names none: 1 s, 2 s, 4 s and so on, up to an hour."""
ELSEWHERE = MappingProxyType(
    {
        **dict.fromkeys(("delay", "send", "kiq", "defer", "spawn"), "enqueue(...)"),
        **dict.fromkeys(
            ("apply_async", "send_with_options", "schedule"), "with_options(delay=...).enqueue(...)"
        ),
        **dict.fromkeys(("signature_of", "message"), "enqueue(...)"),
    }
)
"""What to call instead of methods of Celery, dramatiq, huey, taskiq and Procrastinate."""


class Options(TypedDict, total=False):
    """How a job is enqueued; see ``Task.with_options``. None means that an option is not given."""

    delay: float | timedelta | None
    at: float | datetime | None
    key: str | None
    unique: str | bool | None
    window: float | timedelta | None
    on_conflict: OnConflict | None
    priority: str | None
    ttl: float | timedelta | None
    depends_on: Any
    """Handles of jobs, or their IDs."""
    if_failed: Literal["wait", "run", "fail"] | None
    tags: Sequence[str] | None
    debounce: float | timedelta | None
    max_wait: float | timedelta | None
    throttle: tuple[int, float | timedelta] | None
    over_limit: OverLimit | None
    expires: float | timedelta | None


OPTIONS = frozenset(Options.__annotations__)
"""Options that may stand among the arguments of ``enqueue``, unless a parameter has the name."""
WHEN = frozenset({"delay", "at"})
"""Options that take each other's place."""
_NOT_OF_MESSAGE = {"key", "unique", "priority", "tags", "depends_on", "if_failed"}
_OF_MESSAGE = (OPTIONS - OF_ENQUEUE - _NOT_OF_MESSAGE) | {"max_wait"}
"""Options that ``Queue.put`` gets as they are."""
_NONE: Options = {}


class Task(Public, Generic[P, R_co]):
    """A function of a ``Jobs``; calling it runs the function here and now."""

    _internal = frozenset(
        {
            *("call", "delay_s", "digest_of", "end", "limits", "load", "max_deliveries"),
            *(
                "backoff",
                "merge_options",
                "new_job",
                "new_packed_job",
                "pack_call",
                "is_workflow",
                "pack_plain",
            ),
            *("check_child", "default_unique", "flow", "put_child", "signature"),
        }
    )
    _known_options, _noun = OPTIONS, "job"
    is_workflow = False

    def __init__(
        self,
        jobs: AnyJobs,
        function: Callable[P, R_co],
        *,
        name: str,
        queue: str,
        retries: int,
        backoff: Any,
        timeout: float | timedelta | None,
        dead_letter: str | bool | None,
        unique: bool | str,
        priority: str | None,
        result_ttl: float | timedelta,
        tags: Sequence[str] = (),
        flow: Flow = NO_RULES,
    ) -> None:
        functools.update_wrapper(self, function)  # first: an object may have such attributes
        self.jobs = jobs
        self.function = function
        self.name = _text(name, "the name of a task")
        self.queue = _text(queue, "queue")
        self.retries = whole(retries, "retries")
        self.timeout = None if timeout is None else to_seconds(timeout, "timeout")
        self.dead_letter = dead_letter
        self.result_ttl = to_seconds(result_ttl, "result_ttl")
        self.tags = check_tags(tags)
        self.default_unique = unique
        self.flow = flow
        self.default_priority = priority
        self.limits: dict[str, Any] = {}
        """Rules of its queue: rate, max_in_flight, dead_letter."""
        self.backoff = backoff
        self._backoff = backoff_of(backoff)
        self.signature = Signature(function, self.name)
        self._options = self._known_options.difference(self.signature.by_name)
        """Those that may stand among the arguments of ``enqueue``."""
        self.is_async = inspect.iscoroutinefunction(function_of(function))
        self._check()

    def _check(self) -> None:
        """Raise InvalidArgument for options that make no sense."""
        if self.retries < 0:
            raise InvalidArgument(f"retries must be at least 0, not {self.retries}")
        if self.timeout is not None and self.timeout <= 0:
            raise InvalidArgument(f"timeout must be above 0, not {self.timeout:g}")
        if self.dead_letter not in (None, False):
            _text(self.dead_letter, "dead_letter")
        self._check_unique(self.default_unique)
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise InvalidArgument(f"{self.name} is a generator: a task returns its result")

    def _check_unique(self, unique: str | bool) -> None:
        """Raise InvalidArgument for what is neither True or False nor a template of parameters."""
        if isinstance(unique, str):
            self.signature.check_template(unique)
        elif type(unique) is not bool:
            raise InvalidArgument(f"unique is True or a template, not {show(unique)}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    if not TYPE_CHECKING:  # for a type checker a Task has no other attributes

        def __getattr__(self, name: str) -> Any:
            hint = f": use task.{ELSEWHERE[name]}" if name in ELSEWHERE else ""
            raise AttributeError(f"a Task has no {name}{hint}", name=name, obj=self)

    # --- enqueueing -----------------------------------------------------------------------------

    @overload
    def enqueue(
        self: Task[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[T]: ...
    @overload
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]: ...
    def enqueue(self, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Enqueue a call; return its handle. Arguments that do not fit raise TypeError.

        The options of ``with_options`` may stand among the arguments, but no type checker knows
        them there. If a parameter of the function has the name of an option, the argument is the
        parameter's: give that option to ``with_options``. ::

            send_mail.enqueue("a@b.c")
            send_mail.with_options(delay=60).enqueue("a@b.c")
        """
        given = {name: kwargs.pop(name) for name in self._options.intersection(kwargs)}
        return self._enqueue(self.merge_options(_NONE, given) if given else _NONE, args, kwargs)

    def with_options(self, **options: Unpack[Options]) -> TaskWithOptions[P, R_co]:
        """Return the task with options for jobs that are enqueued through it.

        ``delay`` (seconds or timedelta) or ``at`` (datetime or Unix seconds): not before then.
        ``key``: jobs of one key run in order, one at a time. ``unique``: no second job of this name
        for the ``window``; ``"mail:{to}"`` has the argument ``to`` in it (``{{`` is a brace), True
        makes the name of all arguments. ``on_conflict``: "skip" (the default) returns the handle of
        the first, "replace", "debounce", or "after" (once more, after the first).
        ``priority``: one of those of the Jobs. ``ttl``: not after so many seconds. ``tags``: words
        by which the job is found, beside those of the task.
        ``depends_on``: handles of jobs, or their IDs: it starts once all have ended well. If one
        fails or is cancelled it waits on (``if_failed="wait"``), for a retry that ends well; with
        "run" it starts all the same, with "fail" it fails too.
        """
        return TaskWithOptions(self, self.merge_options(_NONE, options))

    def merge_options(self, options: Options, given: Mapping[str, Any]) -> Options:
        """Return options, updated by those given; raise InvalidArgument for a wrong template."""
        for name in given.keys() - self._known_options:
            near = nearest(name, self._known_options)
            raise TypeError(f"a {self._noun} has no option {show(name)}{near}")
        new = {name: value for name, value in given.items() if value is not None}
        if "unique" in new:
            self._check_unique(new["unique"])
        if "tags" in new:
            new["tags"] = check_tags(new["tags"])
        check_options({**self.flow.defaults, **options, **new})
        before = {} if WHEN.isdisjoint(new) else dict.fromkeys(WHEN)
        return cast(Options, {**options, **before, **new})

    def _enqueue(
        self, options: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> JobHandle[Any]:
        job = self.new_job(args, kwargs, options.get("key"), tags=options.get("tags"))
        unique = self._unique_name(options.get("unique"), args, kwargs, job)
        given: Mapping[str, Any] = options
        if options or self.flow.defaults:
            unique, given = put_options(self.flow, options, self.name, job.key, unique)
            job.expires_ms = self._expires_ms(options, given)
        if options.get("depends_on"):
            return self._enqueue_after(options, job, unique)
        priority = options.get("priority") or self.default_priority
        of_message = {name: value for name, value in given.items() if name in _OF_MESSAGE}
        handle: JobHandle[Any] = self.jobs.put(
            self, job, priority=priority, unique=unique, **of_message
        )
        return handle

    def _expires_ms(self, options: Mapping[str, Any], given: Mapping[str, Any]) -> int:
        """Return the Unix time after which a job is not run any more; 0: there is none."""
        expires_s = self.flow.expires_s(options)
        if expires_s is None:
            return 0
        if given.get("at") is not None:
            due_ms = moment_ms(given["at"], "at")
        else:
            due_ms = self.jobs.now_ms() + span_ms(given.get("delay") or 0, "delay")
        return due_ms + round(expires_s * 1000)

    def _enqueue_after(self, options: Options, job: Job, unique: str | None) -> JobHandle[Any]:
        """Enqueue a job that waits for others."""
        dependencies = dependencies_of(self.jobs, options)
        if unique is not None:
            raise InvalidArgument(
                f"a job with depends_on cannot be unique, debounced or throttled: give {self.name} "
                "unique=False"
            )
        priority = options.get("priority") or self.default_priority
        queue = self.jobs.queue_of(self)
        self.jobs.ended.note_queue(queue)
        stream = queue.stream_for(priority)
        put_after(self.jobs, job.id, message_of(job.fields(), stream, options), dependencies)
        if self.jobs.testing is not None:
            self.jobs.testing.run()
        return JobHandle(self.jobs, job.id, self)

    @overload
    async def aenqueue(
        self: Task[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[T]: ...
    @overload
    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]: ...
    async def aenqueue(self, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Enqueue a call as ``enqueue`` does, without blocking the event loop."""
        return await asyncio.to_thread(functools.partial(self.enqueue, *args, **kwargs))

    @overload
    def enqueue_many(
        self: Task[P, Coroutine[Any, Any, T]],
        calls: Iterable[Sequence[Any] | Mapping[str, Any]],
        *,
        delay: float | timedelta | None = ...,
        at: float | datetime | None = ...,
        key: str | None = ...,
        priority: str | None = ...,
        ttl: float | timedelta | None = ...,
        tags: Sequence[str] = ...,
    ) -> list[JobHandle[T]]: ...
    @overload
    def enqueue_many(
        self,
        calls: Iterable[Sequence[Any] | Mapping[str, Any]],
        *,
        delay: float | timedelta | None = ...,
        at: float | datetime | None = ...,
        key: str | None = ...,
        priority: str | None = ...,
        ttl: float | timedelta | None = ...,
        tags: Sequence[str] = ...,
    ) -> list[JobHandle[R_co]]: ...
    def enqueue_many(
        self,
        calls: Iterable[Sequence[Any] | Mapping[str, Any]],
        *,
        delay: float | timedelta | None = None,
        at: float | datetime | None = None,
        key: str | None = None,
        priority: str | None = None,
        ttl: float | timedelta | None = None,
        tags: Sequence[str] = (),
    ) -> list[JobHandle[Any]]:
        """Enqueue many calls in one commit; return a handle for each.

        A call is a sequence of positional arguments or a mapping of named ones. The calls of a task
        with ``unique=`` are unique, as with ``enqueue``. ::

            send_mail.enqueue_many([("a@b.c",), ("d@e.f",)])
        """
        jobs: list[Job] = []
        names: list[str | None] = []
        checked = check_tags(tags)
        for call in calls:
            if isinstance(call, str | bytes) or not isinstance(call, Sequence | Mapping):
                raise TypeError(
                    f"a call is a tuple or list of arguments, or a mapping, not {show(call)}"
                )
            args, kwargs = ((), call) if isinstance(call, Mapping) else (tuple(call), {})
            jobs.append(self.new_job(args, kwargs, key, tags=checked))
            names.append(self._unique_name(None, args, kwargs, jobs[-1]))
        priority = priority or self.default_priority
        options: dict[str, Any] = {"delay": delay, "at": at, "ttl": ttl}
        given = {name: value for name, value in options.items() if value is not None}
        for at_job, job in enumerate(jobs):
            names[at_job], of_flow = put_options(self.flow, given, self.name, key, names[at_job])
            job.expires_ms = self._expires_ms({}, of_flow)
        return self._put_many(jobs, names, priority=priority, **(of_flow if jobs else options))

    def _put_many(
        self, jobs: Sequence[Job], names: Sequence[str | None], **options: Any
    ) -> list[JobHandle[Any]]:
        return self.jobs.put_many(self, jobs, names, **options)

    @overload
    async def aenqueue_many(
        self: Task[P, Coroutine[Any, Any, T]], calls: Iterable[Any], **options: Any
    ) -> list[JobHandle[T]]: ...
    @overload
    async def aenqueue_many(
        self, calls: Iterable[Any], **options: Any
    ) -> list[JobHandle[R_co]]: ...
    async def aenqueue_many(self, calls: Iterable[Any], **options: Any) -> list[JobHandle[Any]]:
        """Enqueue many calls as ``enqueue_many`` does, without blocking the event loop."""
        return await asyncio.to_thread(functools.partial(self.enqueue_many, calls, **options))

    def s(self, *args: Any, **kwargs: Any) -> Call:
        """Return a call for ``chain``, ``group`` and ``chord``.

        In a chain it gets the result of the call before as its first argument.
        """
        return Call(self, args, kwargs, False)

    def si(self, *args: Any, **kwargs: Any) -> Call:
        """Return a call that gets no result of the one before."""
        return Call(self, args, kwargs, True)

    # --- in a workflow --------------------------------------------------------------------------

    @overload
    def start(
        self: Task[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Child[T]: ...
    @overload
    def start(self, /, *args: P.args, **kwargs: P.kwargs) -> Child[R_co]: ...
    def start(self, /, *args: Any, **kwargs: Any) -> Child[Any]:
        """Start a job as a child of the workflow that calls this; ``gather`` waits for children."""
        return start_child(self, _NONE, args, kwargs)

    def run(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run a job as a step of the workflow that calls this: start it and wait for its result.

        In an async workflow the result is awaited.
        """
        return start_child(self, _NONE, args, kwargs).result()

    def pack_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Return the arguments of a call as a message has them."""
        return pack(self.signature.dump(args, kwargs), self.jobs.format)

    def pack_plain(self, named: Mapping[str, Any]) -> bytes:
        """Return arguments that are plain data as a message has them."""
        return pack([[], dict(named)], self.jobs.format)

    def digest_of(self, packed: bytes) -> str:
        """Return a digest of packed arguments."""
        return digest(self.signature.without_defaults(unpack(packed, self.jobs.format)))

    def new_packed_job(self, packed: bytes, options: Mapping[str, Any]) -> Job:
        """Return the job of a call whose arguments are packed, before it is enqueued."""
        job = self._new_job(packed, options.get("key"), None, options.get("tags"))
        job.expires_ms = self._expires_ms(options, options)
        return job

    def check_child(self, options: Mapping[str, Any]) -> None:
        """Raise InvalidArgument for options that ``put_child`` would refuse."""
        due_ms(options.get("delay"), options.get("at"), self.jobs.store)
        self.jobs.queue_of(self).stream_for(options.get("priority") or self.default_priority)

    def put_child(self, job: Job, options: Mapping[str, Any]) -> Any:
        """Put a child of a workflow into the queue, in the open transaction; return its place."""
        when = {name: options[name] for name in WHEN if options.get(name) is not None}
        priority = options.get("priority") or self.default_priority
        return self.jobs.queue_of(self).put(job.fields(), priority=priority, **when)

    def new_job(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        key: str | None,
        job_id: str | None = None,
        tags: Sequence[str] | None = None,
    ) -> Job:
        """Return the job of a call, before it is enqueued."""
        packed = pack(self.signature.dump(args, kwargs), self.jobs.format)
        return self._new_job(packed, key, job_id, tags)

    def _new_job(
        self,
        packed: bytes,
        key: str | None,
        job_id: str | None,
        tags: Sequence[str] | None = None,
    ) -> Job:
        now, form, version = self.jobs.now_ms(), self.jobs.format, self.signature.version
        job = Job(job_id or new_id(now), self.name, packed, form, version, key, {}, now, task=self)
        job.tags = check_tags((*self.tags, *tags)) if tags else self.tags
        for middleware in self.jobs.middleware:
            middleware.enqueued(job)
        return job

    def _unique_name(
        self, unique: str | bool | None, args: Any, kwargs: Any, job: Job
    ) -> str | None:
        """Return the unique name of a job; None if it is not to be unique."""
        wanted = self.default_unique if unique is None else unique
        if wanted is True:
            plain = self.signature.without_defaults(unpack(job.packed, job.form))
            return f"{self.name}:{digest(plain)}"
        if wanted is False:
            return None
        return self.signature.fill_template(wanted, args, kwargs)

    # --- running --------------------------------------------------------------------------------

    def load(self, job: Job) -> None:
        """Set the arguments of a job; raise Refused if they do not fit this version of the task.

        UnknownTask if the job is of another version, which another worker may have.
        """
        if job.generation is not None:
            raise UnknownTask(f"{self.name} is a task here, and was enqueued as a workflow")
        try:
            job.args, job.kwargs = self.signature.load(unpack(job.packed, job.form))
        except Exception as error:  # any program may have written them, and types check them
            version = self.signature.version
            which = (
                f"it was enqueued for version {job.version or '?'} of the task, this is {version}"
                if job.version != version
                else f"version {version}"
            )
            # No Jobs has enqueued a message without a version: no other worker can run it either.
            kind = UnknownTask if job.version and job.version != version else Refused
            why = str(error) if isinstance(error, TypeError | ValueError) else describe(error)
            raise kind(f"the arguments do not fit {self.name}: {why} ({which})") from None

    def call(self, job: Job) -> Any:
        """Run the function of a job whose arguments are loaded."""
        return self.function(*job.args, **job.kwargs)

    def end(self, job: Job) -> None:
        """End a job that has returned, in one commit."""
        self.jobs.finish([job])

    @property
    def max_deliveries(self) -> int:
        return max(self.retries + 1, DELIVERIES_MIN)

    def delay_s(self, failures: int) -> float:
        """Return the seconds before the next try of a job that has failed ``failures`` times."""
        return self._backoff.delay_ms(failures) / 1000


class Call(NamedTuple):
    """A call of a task, as a part of a canvas; ``Task.s`` makes it."""

    task: Task[..., Any]
    """The task."""
    args: tuple[Any, ...]
    """Arguments by place."""
    kwargs: dict[str, Any]
    """Arguments by name."""
    is_immutable: bool
    """It gets no result of the call before."""


class TaskWithOptions(Generic[P, R_co]):
    """A task and the options of the jobs that are enqueued through it. ::

    send_mail.with_options(delay=60, key="user-7").enqueue("a@b.c")
    """

    __slots__ = ("_options", "_task")

    def __init__(self, task: Task[P, R_co], options: Options) -> None:
        self._task, self._options = task, options

    def __repr__(self) -> str:
        options = self._options.items()
        given = [f"{name}={value!r}" for name, value in options if value is not None]
        return f"<Task {self._task.name} with {', '.join(given) or 'no options'}>"

    def with_options(self, **options: Unpack[Options]) -> TaskWithOptions[P, R_co]:
        """Return the task with these options, and its earlier ones that are not given again.

        ``delay`` and ``at`` take each other's place. See ``Task.with_options``.
        """
        return TaskWithOptions(self._task, self._task.merge_options(self._options, options))

    @overload
    def enqueue(
        self: TaskWithOptions[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[T]: ...
    @overload
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]: ...
    def enqueue(self, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Enqueue a call; all arguments are the function's. See ``Task.enqueue``."""
        return self._task._enqueue(self._options, args, kwargs)

    @overload
    def start(
        self: TaskWithOptions[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Child[T]: ...
    @overload
    def start(self, /, *args: P.args, **kwargs: P.kwargs) -> Child[R_co]: ...
    def start(self, /, *args: Any, **kwargs: Any) -> Child[Any]:
        """Start a job as a child of the workflow that calls this. See ``Task.start``."""
        return start_child(self._task, self._options, args, kwargs)

    def run(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run a job as a step of the workflow that calls this. See ``Task.run``."""
        return start_child(self._task, self._options, args, kwargs).result()

    @overload
    async def aenqueue(
        self: TaskWithOptions[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[T]: ...
    @overload
    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]: ...
    async def aenqueue(self, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Enqueue a call as ``enqueue`` does, without blocking the event loop."""
        return await asyncio.to_thread(functools.partial(self.enqueue, *args, **kwargs))


def built_in_task(jobs: AnyJobs, function: Callable[..., Any], name: str) -> Task[..., Any]:
    """Return a task of kvstream itself, whose result is not kept."""
    return Task(
        jobs,
        function,
        name=name,
        queue="default",
        retries=100,
        backoff=None,
        timeout=None,
        dead_letter=None,
        unique=False,
        priority=None,
        result_ttl=0,
    )


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"{what} is a text, not {show(value)}")
    return value


def backoff_of(backoff: Any) -> GroupPolicy:
    """Return the policy with a backoff."""
    rules = rules_of(backoff=BACKOFF if backoff is None else backoff)
    if not rules["backoff_ms"]:
        raise InvalidArgument("backoff is empty: give retries=0, or the seconds before each try")
    return GroupPolicy(**rules)
