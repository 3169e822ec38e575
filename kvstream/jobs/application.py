"""``Jobs``: the tasks of an application, and the store that holds their jobs."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, overload

from kvstream import opening
from kvstream.engine.coerce import whole
from kvstream.engine.queue_arguments import Duration, check_priorities, one_of, rules_of
from kvstream.errors import (
    AccessDenied,
    ClientMissing,
    InvalidArgument,
    nearest,
    part_done,
    show,
)
from kvstream.jobs import schedules
from kvstream.jobs.arguments import check_format
from kvstream.jobs.dependents import AFTER, DEPENDENTS, tells_dependents
from kvstream.jobs.dependents import ENDED as TELLS
from kvstream.jobs.flow.rules import (
    OF_QUEUE,
    Flow,
    FlowRules,
    kept_for,
    queues_of_pools,
    refuse_for_cron,
)
from kvstream.jobs.handle import JobHandle
from kvstream.jobs.history.log import HISTORY, WORKFLOW
from kvstream.jobs.job import ID, Job, id_of, may_be_of_job, to_seconds
from kvstream.jobs.listing.ended import ENDED, ENDED_MAX, ENDED_TTL_S, TAGGED, EndedJobs
from kvstream.jobs.listing.face import Listing
from kvstream.jobs.middleware import Middleware
from kvstream.jobs.notes import NOTES
from kvstream.jobs.outcomes import Outcomes
from kvstream.jobs.results import OWN, RESULTS_MAX, SHARED, Results
from kvstream.jobs.schedules import SCHEDULED, Schedule
from kvstream.jobs.task import Task, built_in_task
from kvstream.jobs.workers.registry import WORKERS, WorkerRecord, workers_of
from kvstream.jobs.workflows.canvas import CHUNK, canvas_of, chunk_of
from kvstream.jobs.workflows.handle import CANVAS, WorkflowHandle, is_workflow
from kvstream.jobs.workflows.workflow import EVENTS_MAX, WORKFLOW_TTL_S, Workflow
from kvstream.operations.queues.schedules import refuse_most
from kvstream.queue import Queue
from kvstream.surface import Public
from kvstream.types.clock import now_ms
from kvstream.types.cron import parse
from kvstream.types.ids import StreamID, Ticket
from kvstream.types.options import MISFIRES, Misfire
from kvstream.types.urls import server_url, show_place

if TYPE_CHECKING:
    from kvstream.jobs.testing import Testing
    from kvstream.store import Store
    from kvstream.types.clock import Clock
    from kvstream.types.records import Fields
    from kvstream.types.urls import AnyPath

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT = "default"
"""The queue of tasks that name none; its stream has the name of the Jobs."""
PRIORITIES = ("high", "normal", "low")
RESULT_TTL_S = 3600.0
UNKNOWN_GRACE_S = 30.0
LEASE_S, LEASE_S_MIN = 30.0, 0.2
"""The lease of a job, unless a task has a shorter timeout. Workers extend it while they live."""
_RESERVED = frozenset(
    {
        *("dead", OWN, SHARED, AFTER, DEPENDENTS, ENDED, HISTORY, NOTES, SCHEDULED),
        *(TAGGED, WORKERS, WORKFLOW, *PRIORITIES),
    }
)
_log = logging.getLogger(__name__)


def _instances(middleware: Any) -> tuple[Middleware, ...]:
    several = (middleware,) if isinstance(middleware, type | Middleware) else tuple(middleware)
    for each in several:
        if isinstance(each, type):
            raise InvalidArgument(f"middleware is made of instances: {each.__name__}()")
    return several


def _name_of(function: Any) -> str:
    """Return the name of a function; InvalidArgument for another object, or one without a name."""
    if not callable(function):
        raise InvalidArgument(
            f"a task is a function, not {show(function)}: options have names, as in "
            '@jobs.task(name="mail")'
        )
    name = getattr(function, "__name__", None)
    if name is None:
        raise InvalidArgument(f"{show(function)} has no name: give the task a name=")
    return str(name)


class Jobs(Outcomes, Listing, Public):
    """The tasks of an application. The first use opens the store; ``close`` closes it.

    ``place`` is a directory or the URL of a server.
    Every method may be called from any thread. ::

        jobs = Jobs("data")


        @jobs.task(retries=3, backoff=[1, 10, 60], timeout=30)
        async def send_mail(to: str) -> str: ...


        send_mail.with_options(delay=60).enqueue("a@b.c").result(timeout=90)
    """

    _internal = frozenset(
        {
            *("dead_keys", "declare", "ended", "find_task", "finish", "finishing", "lease_s"),
            *("additions_of_end", "changes", "note_end", "now_ms", "put", "run_fields"),
            *("put_many", "queue_names", "queue_of", "queues_to_work", "record"),
            *("after_commit", "results"),
            *("fields_of_holder", "share", "testing", "use"),
        }
    )
    group = "workers"

    def __init__(
        self,
        place: AnyPath,
        *,
        name: str = "jobs",
        shared: bool | None = None,
        clock: Clock | None = None,
        format: str = "json",
        result_ttl: float | timedelta = RESULT_TTL_S,
        priorities: Sequence[str] = PRIORITIES,
        middleware: Sequence[Middleware] = (),
        application: str = "",
        unknown_grace: float | timedelta = UNKNOWN_GRACE_S,
        ended_ttl: float | timedelta = ENDED_TTL_S,
        ended_max: int = ENDED_MAX,
        results_max: int = RESULTS_MAX,
        **options: Any,
    ) -> None:
        """Describe the jobs; nothing is opened yet.

        ``shared``: whether many processes may open the directory, by default if redis-py is
        installed and no ``clock`` is given; with False this process has it alone.
        ``name`` begins the keys of all streams. ``format`` is that of arguments and results,
        "json" or "msgpack". ``result_ttl``: the seconds for which results are kept; of small ones
        of first tries about ``results_max`` at most, of other records any number.
        ``priorities``: the most urgent first. ``application`` names the program whose schedules
        these are, where others share the store; by default the file and variable of the Jobs.
        ``unknown_grace``: the seconds for which a worker leaves a job to other workers if it does
        not know its task, or that version of it. ``ended_ttl`` and ``ended_max``: the seconds for
        which jobs that have ended are listed, and how many of each task and outcome, or of each
        tag; 0: none. ``options`` are those of ``kvstream.open``.
        """
        self.place = place
        self.name = name
        self.format = check_format(format)
        self.middleware = _instances(middleware)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.schedules: list[Schedule] = []
        self.result_ttl = to_seconds(result_ttl, "result_ttl")
        self._priorities = check_priorities(priorities)
        self._application = application
        self._module = schedules.calling_module()
        self._declared: set[schedules.Place] = set()
        self.unknown_grace = to_seconds(unknown_grace, "unknown_grace")
        self.ended = EndedJobs(self, to_seconds(ended_ttl, "ended_ttl"), whole(ended_max, "max"))
        self.results = Results(self, whole(results_max, "results_max"))
        if options.get("decode"):
            raise InvalidArgument("a Jobs has a store of bytes: leave out decode")
        self._options: dict[str, Any] = {"shared": shared, **options}
        self._clock = clock
        self._store: Store | None = None
        self._queues: dict[str, Queue] = {}
        self._built_in: dict[str, Task[..., Any]] = {}
        self._lock = threading.RLock()
        self.consumer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        """The name of this process as a consumer of all queues."""
        self.testing: Testing | None = None
        """The test mode, while it lasts: jobs run inline, by a clock that a test turns."""

    def __repr__(self) -> str:
        tasks = ", ".join(self.tasks) or "none"
        return f"<Jobs {self.name!r} at {show_place(self.place)!r}, tasks: {tasks}>"

    @property
    def application(self) -> str:
        """The name of the program whose schedules these are; empty if it has none."""
        return self._application or schedules.path_of(self, self._module)

    # --- the store ------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store, which is opened by the first use."""
        store = self._store
        if store is not None:
            return store
        with self._lock:
            if self._store is None:
                self._store = self._open()
            return self._store

    def _open(self) -> Store:
        """Open the store; without ``shared`` a directory is shared if that is possible."""
        options = {name: value for name, value in self._options.items() if value is not None}
        is_own = self._clock is not None or options.get("read_only")
        if self._options["shared"] is None and not is_own and server_url(self.place) is None:
            with suppress(ClientMissing):
                return opening.open(self.place, **options, shared=True)
        if self._clock is not None:
            options["clock"] = self._clock
        store = opening.open(self.place, **options)
        try:
            if server_url(self.place) is not None:
                self._refuse_redis(store)
        except BaseException:
            store.close()
            raise
        return store

    def _refuse_redis(self, store: Store) -> None:
        """Raise ServerTooOld if the server would take jobs that no worker can run."""
        with suppress(AccessDenied):  # a program that may only enqueue
            Queue(store, self.name, group=self.group).policy()

    def close(self) -> None:
        """Close the store, if it is open; the next use opens it again."""
        self.use(None)

    def use(self, store: Store | None) -> None:
        """Use an open store in place of the present one, which is closed."""
        with self._lock:
            before, self._store = self._store, store
            self._queues.clear()
            self.ended.forget()
            self.results.forget()
        if before is not None:
            before.close()

    def share(self) -> None:
        """Open the directory as a shared one, as the processes of a worker do."""
        if server_url(self.place) is None and not self._options["shared"]:
            self.close()  # the module of the application may have opened it for itself
            self._options["shared"] = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def now_ms(self) -> int:
        """Return the Unix time in milliseconds, by the clock of the store if it has its own."""
        clock = self._clock if self.testing is None else self.testing.clock
        return now_ms() if clock is None else clock.now_ms()

    # --- tasks ----------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        function: None = ...,
        /,
        *,
        name: str | None = ...,
        queue: str | None = ...,
        retries: int = ...,
        backoff: Any = ...,
        timeout: float | timedelta | None = ...,
        dead_letter: str | bool | None = ...,
        unique: bool | str = ...,
        priority: str | None = ...,
        result_ttl: float | timedelta | None = ...,
        tags: Sequence[str] = ...,
        **flow: Unpack[FlowRules],
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retries: int = 0,
        backoff: Any = None,
        timeout: float | timedelta | None = None,
        dead_letter: str | bool | None = None,
        unique: bool | str = False,
        priority: str | None = None,
        result_ttl: float | timedelta | None = None,
        tags: Sequence[str] = (),
        **flow: Unpack[FlowRules],
    ) -> Any:
        """Make a function, sync or async, a task; it stays callable.

        ``retries``: how often it is tried again after an exception, after the delays of
        ``backoff``: seconds, a list of seconds (the last repeats), or Backoff. ``timeout``:
        seconds of one run. ``dead_letter``: the stream for jobs that are given up, by default
        ``<name>:dead``; False: none. ``unique``: True, or a template such as ``"welcome:{to}"``,
        is the default of ``enqueue``. ``tags``: words by which its jobs are found. ``flow``: see
        FlowRules. A task with a rate, a limit or a
        dead_letter of its own has a queue of its own, of the task's name, unless it names one.
        """
        rules = Flow(flow)
        limits = dict(rules.limits)
        if isinstance(dead_letter, str) and dead_letter != f"{self.name}:dead":
            limits["dead_letter"] = dead_letter

        def register(wrapped: Callable[..., Any]) -> Task[..., Any]:
            own = name or _name_of(wrapped)
            task: Task[..., Any] = Task(
                self,
                wrapped,
                name=own,
                queue=queue or (own if limits else rules.pool or DEFAULT),
                retries=retries,
                backoff=backoff,
                timeout=timeout,
                dead_letter=dead_letter,
                unique=unique,
                priority=priority,
                result_ttl=self.result_ttl if result_ttl is None else result_ttl,
                tags=tags,
                flow=rules,
            )
            self._register(task, limits)
            return task

        return register if function is None else register(function)

    @overload
    def workflow(self, function: Callable[P, R], /) -> Workflow[P, R]: ...
    @overload
    def workflow(
        self,
        function: None = ...,
        /,
        *,
        name: str | None = ...,
        queue: str | None = ...,
        timeout: float | timedelta | None = ...,
        version: str | int = ...,
        accepts: Sequence[str | int] = ...,
        max_events: int = ...,
        priority: str | None = ...,
        result_ttl: float | timedelta = ...,
    ) -> Callable[[Callable[P, R]], Workflow[P, R]]: ...
    def workflow(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        timeout: float | timedelta | None = None,
        version: str | int = 1,
        accepts: Sequence[str | int] = (),
        max_events: int = EVENTS_MAX,
        priority: str | None = None,
        result_ttl: float | timedelta = WORKFLOW_TTL_S,
    ) -> Any:
        """Make a function, sync or async, a workflow: a job made of steps that survive anything.

        Inside it ``kvstream.jobs.step``, ``pause``, ``wait_for``, ``gather`` and so on are called.
        ``timeout``: seconds from its begin to its end, waits included. ``version`` is stored with
        each new workflow; a worker runs those of its own version and of ``accepts``, others wait
        for another worker. ``max_events``: events that a history may have. ``result_ttl``: how long
        result and history are kept after the end, seven days by default. ``name``: by default that
        of the function. ::

            @jobs.workflow(timeout=timedelta(days=30))
            def onboard(user: str) -> str:
                account = step(create_account, user)
                pause(timedelta(days=1))
                return f"{account} is on board"
        """

        def register(wrapped: Callable[..., Any]) -> Workflow[..., Any]:
            workflow: Workflow[..., Any] = Workflow(
                self,
                wrapped,
                name=name or _name_of(wrapped),
                queue=queue or DEFAULT,
                limit=timeout,
                version=version,
                accepts=accepts,
                max_events=max_events,
                priority=priority,
                result_ttl=result_ttl,
            )
            self._register(workflow, {})
            return workflow

        return register if function is None else register(function)

    def find_task(self, name: str) -> Task[..., Any] | None:
        """Return the task of a name, which may be built in; None if there is none."""
        task = self.tasks.get(name) or self._built_in.get(name)
        if task is None and name == CANVAS:
            task = self._built_in[name] = canvas_of(self)
        elif task is None and name == TELLS:
            task = self._built_in[name] = built_in_task(self, tells_dependents(self), name)
        elif task is None and name.startswith(CHUNK):
            called = self.tasks.get(name.removeprefix(CHUNK))
            if called is not None:
                task = self._built_in[name] = chunk_of(self, called)
        return task

    def _register(self, task: Task[..., Any], limits: Mapping[str, Any]) -> None:
        if task.name in self.tasks:
            raise InvalidArgument(f"two tasks are called {task.name}: give one a name=")
        if task.queue in _RESERVED:
            raise InvalidArgument(f"a queue cannot be called {task.queue}")
        rules_of(order_by="key", **limits)  # InvalidArgument if one is wrong
        task.limits = dict(limits)
        for other in self.tasks.values():
            for limit in limits.keys() & other.limits.keys() if other.queue == task.queue else ():
                if other.limits[limit] != limits[limit]:
                    raise InvalidArgument(
                        f"{other.name} and {task.name} give the queue {task.queue} two values of "
                        f"{limit}: give one of them another queue="
                    )
        if task.default_priority is not None:
            self._check_priority(task, task.default_priority)
        with self._lock:
            self.tasks[task.name] = task
            self._queues.clear()

    def cron(
        self,
        expression: str,
        *,
        tz: str = "",
        misfire: Misfire = "once",
        most: int = 1,
        **options: Any,
    ) -> Callable[[Callable[P, R] | Task[P, R]], Task[P, R]]:
        """Make a function without arguments a task that runs at times of ``expression``.

        ``expression`` is that of cron, or ``@every 10s``, ``@hourly`` and so on; ``tz`` is a time
        zone such as ``"Europe/Berlin"``, by default UTC. ``misfire`` says what becomes of times at
        which no process had the store open: "skip", "once" (one run for all of them), or "all" (the
        latest ``most``). ``options`` are those of ``task``. The schedule is kept in the store and
        fires once for each time, however many workers there are. Workers store it when they start.
        Raises InvalidArgument at once if an expression, zone or rule is wrong.
        """
        parse(expression, tz)
        one_of(misfire, MISFIRES, "misfire")
        refuse_most(whole(most, "most"))

        def schedule(wrapped: Callable[P, R] | Task[P, R]) -> Task[P, R]:
            task = wrapped if isinstance(wrapped, Task) else self.task(**options)(wrapped)
            task.signature.dump((), {})  # TypeError if it needs arguments
            refuse_for_cron(task.flow, task.default_unique, task.name)
            self.schedules.append(Schedule(task, expression, tz, misfire, most))
            return task

        return schedule

    # --- queues ---------------------------------------------------------------------------------

    @property
    def lease_s(self) -> float:
        """The seconds after which another worker gets the job of a dead one."""
        timeouts = [task.timeout for task in self.tasks.values() if task.timeout is not None]
        return max(LEASE_S_MIN, min([LEASE_S, *timeouts]))

    def queue_names(self) -> list[str]:
        """Return the names of the queues that tasks use."""
        return list(dict.fromkeys(task.queue for task in self.tasks.values()))

    def queues(self, names: Sequence[str] = ()) -> list[Queue]:
        """Return the queues of these names, of all tasks if there are none."""
        if isinstance(names, str):
            raise InvalidArgument(f"queues are a list of names, not {show(names)}")
        known = self.queue_names()
        for name in names:
            if name not in known:
                near = nearest(name, known) or f": there are {', '.join(known)}"
                raise InvalidArgument(f"no task uses the queue {show(name)}{near}")
        return [self._queue(name) for name in names or known]

    def queues_to_work(self, names: Sequence[str]) -> list[Queue]:
        """Return the queues of a worker; InvalidArgument if there are none."""
        if not self.tasks:
            raise InvalidArgument(
                f"{self.name} has no task: import the modules of the tasks where the Jobs is made"
            )
        return self.queues(queues_of_pools(self.tasks.values(), names))

    def queue_of(self, task: Task[..., Any]) -> Queue:
        """Return the queue of a task."""
        return self._queue(task.queue)

    def dead_keys(self) -> list[str]:
        """Return the keys of the streams of dead letters."""
        own = (task.limits.get("dead_letter") for task in self.tasks.values())
        return list(dict.fromkeys([f"{self.name}:dead", *(str(key) for key in own if key)]))

    def _queue(self, name: str) -> Queue:
        known = self._queues.get(name)
        if known is not None:
            return known
        with self._lock:
            queue = self._queues.get(name)
            if queue is None:
                limits: dict[str, Any] = {}
                for task in self.tasks.values():
                    limits |= task.limits if task.queue == name else {}
                limits.setdefault("dead_letter", f"{self.name}:dead")
                queue = self._queues[name] = Queue(
                    self.store,
                    self.name if name == DEFAULT else f"{self.name}:{name}",
                    group=self.group,
                    consumer=self.consumer,
                    lease=self.lease_s,
                    order_by="key",
                    priorities=self._priorities_of(limits),
                    **limits,
                )
            return queue

    def _priorities_of(self, limits: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the priorities of a queue: one with limits has none, as they hold for each."""
        return () if limits.keys() & OF_QUEUE else self._priorities

    def _check_priority(self, task: Task[..., Any], priority: str | None) -> None:
        if priority is None or priority in self._priorities_of(task.limits):
            return
        if priority in self._priorities:
            raise InvalidArgument(f"{task.name} has limits, so its queue has no priorities")
        near = nearest(str(priority), self._priorities) or f": {', '.join(self._priorities)}"
        raise InvalidArgument(f"no such priority: {show(priority)}{near}")

    # --- jobs -----------------------------------------------------------------------------------

    def put(
        self,
        task: Task[..., R],
        job: Job,
        *,
        priority: str | None,
        unique: str | None = None,
        **options: Any,
    ) -> Any:
        """Put a job into the queue of its task; return its handle. See ``Queue.put``."""
        self._check_priority(task, priority)
        queue = self.queue_of(task)
        self.ended.note_queue(queue)
        where = queue.put(job.fields(), priority=priority, unique=unique, **options)
        handle: JobHandle[R] = JobHandle(self, job.id, task, where)
        if unique is not None:
            handle = self._claim_name(unique, handle, task, kept_for(options))
        if self.testing is not None:
            self.testing.run()
        return handle

    def _claim_name(
        self, unique: str, handle: JobHandle[R], task: Task[..., R], window: Duration | None
    ) -> JobHandle[R]:
        """Return the handle of the job that has a unique name; keep the name for ``window``."""
        with part_done(f"the job {handle.id} was put, unless another one has its unique name"):
            holder = self._holder_of(unique, handle, task)
            if holder is handle and window is not None:
                key = self._unique_key(unique)
                self.store.stream(key).add({ID: handle.id}, maxlen=1)
                self.store.expire(key, to_seconds(window, "window"))
        return holder

    def _holder_of(self, unique: str, handle: JobHandle[R], task: Task[..., R]) -> JobHandle[R]:
        """Return the handle of a job that was put, or of the one that has its unique name."""
        queue = self.queue_of(task)
        if self._is_new(handle, queue):
            return handle
        return self._holder(unique, handle.where, task, queue)

    def _is_new(self, handle: JobHandle[Any], queue: Queue) -> bool:
        """Return whether a job with a unique name was added, and not left out for another one."""
        if handle.where is None:  # in a transaction on a server
            return True
        stored = self._fields_at(handle.where, queue)
        if stored is None:  # a delay that is over by now, or a job that has ended
            return handle.status != "unknown"
        return stored.get(ID) == handle.id.encode()

    @staticmethod
    def _fields_at(where: StreamID | Ticket | None, queue: Queue) -> Fields | None:
        """Return the fields of a message; None if it is done."""
        for stream in queue.streams():
            if isinstance(where, StreamID):
                if (entry := stream.get(where)) is not None:
                    return entry.fields
            elif (page := stream.delayed(where, 1)) and page[0].ticket == where:
                return page[0].fields
        return None

    def _holder(self, unique: str, where: Any, task: Task[..., R], queue: Queue) -> JobHandle[R]:
        """Return the handle of the job that has a unique name; it may be done."""
        fields = self._fields_at(where, queue)
        if fields is None:
            fields = self.fields_of_holder(unique)
        return JobHandle(self, id_of(fields, where), task, where)

    def fields_of_holder(self, unique: str) -> dict[bytes, bytes]:
        """Return what is kept of the job that has a unique name for its window; empty if none."""
        last = self.store.stream(self._unique_key(unique)).revrange(count=1)
        return last[0].fields if last else {}

    def _unique_key(self, unique: str) -> str:
        return f"{self.name}:unique:{unique}"

    def put_many(
        self,
        task: Task[..., R],
        jobs: Sequence[Job],
        names: Sequence[str | None],
        *,
        priority: str | None,
        **options: Any,
    ) -> list[JobHandle[R]]:
        """Put jobs, with unique ``names`` or None, in one commit, and return their handles."""
        self._check_priority(task, priority)
        queue, fields = self.queue_of(task), [job.fields() for job in jobs]
        self.ended.note_queue(queue)
        places: Sequence[Any]
        if all(value is None for value in (*options.values(), *names)):
            places = queue.put_many(fields, priority=priority)
        else:
            with self.store.brief_transaction():
                places = [
                    queue.put(each, priority=priority, unique=name, **options)
                    for each, name in zip(fields, names, strict=True)
                ]
        found = zip(jobs, places, names, strict=True)
        with part_done("the jobs were put, unless others have their unique names"):
            handles: list[JobHandle[R]] = []
            for job, where, name in found:
                handle: JobHandle[R] = JobHandle(self, job.id, task, where)
                handles.append(handle if name is None else self._holder_of(name, handle, task))
        if self.testing is not None:
            self.testing.run()
        return handles

    def handle(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of a job by its ID, which need not exist.

        That of a workflow is a WorkflowHandle, and so is that of an ID that only a workflow has.
        """
        if self._has_workflows and is_workflow(self, str(job_id)):
            return WorkflowHandle(self, str(job_id))
        is_of_job = not self._has_workflows or may_be_of_job(str(job_id))
        return (JobHandle if is_of_job else WorkflowHandle)(self, str(job_id))

    @property
    def _has_workflows(self) -> bool:
        return any(isinstance(task, Workflow) for task in self.tasks.values())

    # --- workers --------------------------------------------------------------------------------

    def declare(self) -> None:
        """Create the queues with their policies, and store the schedules; workers do so first.

        A schedule that the application has declared before, and has no longer, is removed; those
        of other applications stay.
        """
        for queue in self.queues():
            queue.prepare()
            self.ended.note_queue(queue)
        schedules.declare(self, self._declared)

    def workers(self) -> list[WorkerRecord]:
        """Return the workers of the application, by name, and what they have in work now."""
        return workers_of(self)

    async def aworkers(self) -> list[WorkerRecord]:
        """Return the workers as ``workers`` does, without blocking the event loop."""
        return await asyncio.to_thread(workers_of, self)

    def test(self, *, start_ms: int | None = None) -> Testing:
        """Return the test mode: for a ``with`` block, jobs run inline, by a clock to be turned.

        ::

            with jobs.test() as testing:
                handle = send_mail.with_options(delay=60).enqueue("a@b.c")
                testing.turn(60)
                assert handle.result() == "sent"
        """
        from kvstream.jobs.testing import Testing

        return Testing(self, start_ms)
