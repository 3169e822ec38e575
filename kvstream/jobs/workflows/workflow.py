"""A workflow: a job made of steps, whose finished steps survive everything; and its handle.

``Jobs.workflow`` makes one of a function. ``run`` executes it, ``history.events`` has its events,
and ``history.log`` keeps them in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, Unpack, cast, overload

from kvstream.engine.coerce import at_least_1
from kvstream.engine.queue_arguments import due_ms
from kvstream.errors import (
    InvalidArgument,
    JobUnknown,
    KVStreamError,
    LeaseLost,
    StepFailed,
    describe,
    show,
)
from kvstream.jobs.arguments import codec_of, pack, unpack
from kvstream.jobs.dependents import (
    HAS_FAILED,
    Dependencies,
    dependencies_of,
    failure_of,
    text_of,
)
from kvstream.jobs.handle import LOOK_S, RETRY, JobHandle
from kvstream.jobs.history import events
from kvstream.jobs.history.child import check_result, running, take_nudge
from kvstream.jobs.history.events import (
    CANCELLED,
    CHILD,
    DONE,
    FAILED,
    OPEN,
    STEP,
    Call,
    Event,
    Fields,
)
from kvstream.jobs.history.log import (
    NUDGE,
    QUEUED,
    RUNNING,
    SCHEDULED,
    WAITING,
    State,
    WorkflowLog,
)
from kvstream.jobs.job import TASK, AnyJobs, Job, Refused, RunEnded, to_seconds
from kvstream.jobs.job_log import Failure, logger_of
from kvstream.jobs.task import Options, Task, TaskWithOptions
from kvstream.jobs.workflows.run import Run, end_workflow
from kvstream.queue import finish
from kvstream.types.ids import MIN_ID, StreamID

if TYPE_CHECKING:
    from kvstream.stream import Stream

    pass

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

EVENTS_MAX = 10_000
WORKFLOW_TTL_S = 7 * 86_400.0
LIVES_MAX = 5
"""A workflow whose workers die is given up after so many runs without progress."""
ELSEWHERE_S = 5.0
"""Pause before another worker may take a workflow whose version this one does not know."""
CANVAS = "kvstream.canvas"
"""The name of the built-in workflow that runs canvases."""
TOTAL = "total"
"""What a batch publishes: the number of its children."""
_ID_MAX = 1000
"""Characters of an ID."""
_PAGE = 500
_log = logger_of(__name__)


class WorkflowOptions(Options, total=False):
    """How a workflow is enqueued: ``id``, ``delay``, ``at``, ``priority``, ``depends_on``."""

    id: str | None


class Step(NamedTuple):
    """What a workflow has done, or does: a step, a child, a pause or a wait."""

    kind: str
    """"step", "child", "pause" or "wait"."""
    name: str
    status: str
    """"done", "failed", "cancelled" (a child), or "open"."""
    attempt: int
    """The tries so far of a step."""
    begun: datetime
    ended: datetime | None
    result: Any
    """Plain data."""
    error: str | None
    traceback: str | None


class Update(NamedTuple):
    """What a workflow has published."""

    name: str
    value: Any
    at: datetime


class Counts(NamedTuple):
    """The children of a workflow by their state."""

    total: int
    """Those started so far; of a batch, all of them."""
    done: int
    failed: int
    cancelled: int
    open: int
    """Those that have not ended, or of a batch not begun."""


class Workflow(Task[P, R_co]):
    """A function of a ``Jobs`` that is made of steps; ``enqueue`` begins one."""

    _internal = frozenset({"create", "end_failed", "limit_s", "stream_of", "version"})
    _known_options, _noun = (
        frozenset({"id", "delay", "at", "priority", "depends_on", "if_failed"}),
        "workflow",
    )

    def __init__(
        self,
        jobs: AnyJobs,
        function: Callable[P, R_co],
        *,
        name: str,
        queue: str,
        limit: float | timedelta | None,
        version: str | int,
        accepts: Sequence[str | int],
        max_events: int,
        priority: str | None,
        result_ttl: float | timedelta,
    ) -> None:
        super().__init__(
            jobs,
            function,
            name=name,
            queue=queue,
            retries=0,
            backoff=None,
            timeout=None,
            dead_letter=None,
            unique=False,
            priority=priority,
            result_ttl=result_ttl,
        )
        self.limit_s = None if limit is None else to_seconds(limit, "timeout")
        if self.limit_s is not None and self.limit_s <= 0:
            raise InvalidArgument(f"timeout must be above 0, not {self.limit_s:g}")
        if self.result_ttl <= 0:
            raise InvalidArgument("result_ttl of a workflow must be above 0: it keeps the history")
        if isinstance(accepts, str):
            raise InvalidArgument(f"accepts is a list of versions, not {show(accepts)}")
        self.version = str(version)
        self._accepted = {self.version, *map(str, accepts)}
        self._max_events = at_least_1(max_events, "max_events")

    def __repr__(self) -> str:
        return f"<Workflow {self.name}>"

    @property
    def max_deliveries(self) -> int:
        return 1 << 31  # ``load`` counts the runs without progress

    # --- enqueueing -----------------------------------------------------------------------------

    @overload
    def enqueue(
        self: Workflow[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> WorkflowHandle[T]: ...
    @overload
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> WorkflowHandle[R_co]: ...
    def enqueue(self, /, *args: Any, **kwargs: Any) -> WorkflowHandle[Any]:
        """Begin a workflow, and return its handle; with the ID of one that exists, that one's.

        The options of ``with_options`` may stand among the arguments, as with a task. ::

            onboard.enqueue("ann", id="onboard:ann")
        """
        return cast("WorkflowHandle[Any]", super().enqueue(*args, **kwargs))

    def with_options(self, **options: Unpack[WorkflowOptions]) -> WorkflowWithOptions[P, R_co]:
        """Return the workflow with options for what is enqueued through it.

        ``id``: a second one with that ID is the first, until its result is no longer kept.
        ``delay`` or ``at``: it begins then. ``priority``: that of all its runs. ``depends_on``,
        ``if_failed``: it begins once other jobs have ended, as with a task.
        """
        return WorkflowWithOptions(self, self.merge_options({}, options))

    def handle(self, workflow_id: str) -> WorkflowHandle[Any]:
        """Return the handle of a workflow by its ID, which need not exist."""
        return WorkflowHandle(self.jobs, str(workflow_id), self)

    def _enqueue(
        self, options: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> WorkflowHandle[Any]:
        job = self.new_job(args, kwargs, None, _check_id(options.get("id")))
        self._create_all([job], options)
        return WorkflowHandle(self.jobs, job.id, self)

    def _put_many(
        self, jobs: Sequence[Job], names: Sequence[str | None], **options: Any
    ) -> list[JobHandle[Any]]:
        if options.get("ttl") is not None or any(job.key is not None for job in jobs):
            raise InvalidArgument("a workflow has no key and no ttl: leave them out")
        self._create_all(jobs, options)
        return [WorkflowHandle(self.jobs, job.id, self) for job in jobs]

    def _create_all(self, jobs: Sequence[Job], options: Mapping[str, Any]) -> None:
        log, after = WorkflowLog(self.jobs, ""), None
        if options.get("depends_on"):
            if options.get("delay") is not None or options.get("at") is not None:
                raise InvalidArgument("a workflow with depends_on has no delay: begin with pause()")
            after = dependencies_of(self.jobs, options)
        log.commit(lambda: [self.create(job, options, after) for job in jobs])
        if self.jobs.testing is not None:
            self.jobs.testing.run()

    def put_child(self, job: Job, options: Mapping[str, Any]) -> None:
        """Begin a child of another workflow, in the open transaction."""
        self.create(job, options)

    def create(
        self, job: Job, options: Mapping[str, Any], after: Dependencies | None = None
    ) -> bool:
        """Begin a workflow, in the open transaction; False if there is one with that ID."""
        log = WorkflowLog(self.jobs, job.id)
        if log.state() is not None:
            return False
        at_ms = due_ms(options.get("delay"), options.get("at"), self.jobs.store)
        stream = self.stream_of(job, options.get("priority") or self.default_priority)
        state = State(
            *(QUEUED if at_ms is None else SCHEDULED, self.name, stream.key.decode()),
            at_ms=job.enqueued_ms,
            ttl_ms=round(self.result_ttl * 1000),
            bound=self._max_events,
            parent=job.parent or "",
            headers=job.headers,
        )
        due = {} if at_ms is None else {"due": str(at_ms)}
        args = events.packed_fields("args", job.packed, job.form)
        outcome = DONE if after is None else after.register(job.id, {TASK: self.name})
        log.add(events.BEGUN, task=self.name, version=self.version, **args, **due)
        if outcome == FAILED:
            log.end(state, FAILED, dict(failure_of(HAS_FAILED)), is_recorded=False)
            return True
        if outcome == DONE:
            log.wake(state, at_ms)
        elif after is not None:
            state.status, state.why, state.after = WAITING, text_of(len(after.ids)), True
        log.write(state)
        return True

    def stream_of(self, job: Job, priority: str | None) -> Stream[bytes]:
        """Return the stream that the wakes of a workflow are put into."""
        return self.jobs.queue_of(self).stream_for(priority)

    # --- running --------------------------------------------------------------------------------

    def load(self, job: Job) -> None:
        """Begin a run: read the history, and mark the workflow as running.

        RunEnded if the wake is of an earlier wait, or the version is not known here.
        """
        log = WorkflowLog(self.jobs, job.id)
        if job.generation is None:
            self._take(job, log, partial(self.create, job, {}), "its schedule has begun it")
        if job.generation == NUDGE:
            self._take(job, log, partial(take_nudge, self.jobs, job), "a child of it has ended")
        try:
            past, state = log.history(), log.state()
            if state is not None and state.status == CANCELLED:
                _cancel_children(self.jobs, past.open_children())
            why = self._unknown(job, past)
            begun = log.commit(lambda: self._begin(log, job, past, why))
        except LeaseLost as error:
            raise RunEnded("lost", str(error)) from error
        except KVStreamError as error:
            raise RunEnded("lost", describe(error)) from error
        if begun is None:
            raise RunEnded("stale", why or "there was nothing to wake")
        if begun.lives > LIVES_MAX:
            at = past.calls[past.last_seq].shown if past.calls else "its begin"
            raise Refused(f"it has killed its workers {LIVES_MAX} times after {at}")
        job.run = Run(self, job, log, begun, past)

    @staticmethod
    def _take(job: Job, log: WorkflowLog, act: Callable[[], object], why: str) -> None:
        """Do what a message asks for that runs nothing; always raises RunEnded."""
        message = job.message
        assert message is not None

        def take() -> None:
            message.guard()
            act()
            finish([message])

        try:
            log.commit(take)
        except KVStreamError as error:
            raise RunEnded("lost", describe(error)) from error
        raise RunEnded("stale", why)

    def _unknown(self, job: Job, past: events.History) -> str:
        """Load the arguments; return why this worker cannot run the workflow, if so."""
        if past.begun is None:
            return ""
        version = past.begun.text("version")
        if version not in self._accepted:
            known = ", ".join(sorted(self._accepted))
            return (
                f"version {version} of {self.name} is not known to this worker, which has {known}"
            )
        try:
            packed, form = past.begun.fields["args"], past.begun.text("format") or "json"
            job.args, job.kwargs = self.signature.load(unpack(packed, form))
        except Exception as error:  # types check them
            return f"the arguments do not fit version {self.version} of {self.name}: {error}"
        return ""

    @staticmethod
    def _begin(log: WorkflowLog, job: Job, past: events.History, why: str) -> State | None:
        """Mark a workflow as running; None if its wake is dropped or put off."""
        message = job.message
        assert message is not None
        message.guard()
        state = log.state()
        if state is None or state.has_ended or state.generation != job.generation:
            finish([message])
            return None
        if why:
            state.why = why
            log.write(state)
            message.nack_with(delay_ms=round(ELSEWHERE_S * 1000), untried=True)
            return None
        if state.status == RUNNING:
            has_gone_on = state.progress != past.progress
            state.lives = 1 if has_gone_on else state.lives + (job.attempt > state.attempt)
            state.progress = past.progress
        state.attempt = job.attempt
        state.rest()
        state.status = RUNNING
        log.write(state)
        return state

    def call(self, job: Job) -> Any:
        """Run the function, or return a coroutine that does; RunEnded if it has to wait."""
        if self.is_async:
            return self._acall(job.run, job)
        token = running.set(job.run)
        try:
            return self._call(job.run, job)
        finally:
            running.reset(token)

    def _call(self, run: Run, job: Job) -> Any:
        try:
            result = super().call(job)
            _refuse_end(run)
        except Exception as error:
            _refuse_undoing(run)
            if run.undoes:
                run.begin_undoing(error)
                for spec in reversed(run.undoes):
                    with suppress(StepFailed):
                        run.step(spec)
            raise
        return result

    async def _acall(self, run: Run, job: Job) -> Any:
        running.set(run)
        try:
            result = await super().call(job)
            _refuse_end(run)
        except Exception as error:
            _refuse_undoing(run)
            if run.undoes:
                run.begin_undoing(error)
                for spec in reversed(run.undoes):
                    with suppress(StepFailed):
                        await run.astep(spec)
            raise
        return result

    # --- the end --------------------------------------------------------------------------------

    def end(self, job: Job) -> None:
        """End a workflow that has returned; LeaseLost if another worker, or nobody, has it."""
        form = self.jobs.format
        packed = check_result(pack(self.signature.dump_result(job.result), form))
        outcome: Fields = {"result": packed, "format": form}
        self._finish(job, DONE, outcome, packed)

    def end_failed(self, job: Job, failure: Failure, recorded: bool = True) -> None:
        """End a workflow that has failed, or that could not be begun."""
        outcome: Fields = {"error": failure.text, "traceback": failure.trace}
        run = job.run
        if run is not None and run.failed is not None:  # the first run that failed knows more
            outcome = {name: run.failed.text(name) for name in outcome}
        self._finish(job, FAILED, outcome)

    def _finish(self, job: Job, status: str, outcome: Fields, packed: bytes = b"") -> None:
        if job.run is None:
            _end_unbegun(WorkflowLog(self.jobs, job.id), job, outcome)
            return
        try:
            job.run.finish(status, outcome, packed)
        except RunEnded as ended:
            raise LeaseLost(ended.why) from None


def _refuse_end(run: Run) -> None:
    """Raise if the function has swallowed the end of its run, or skips what is in the history."""
    if run.ended is not None:
        raise run.ended
    run.refuse_rest()


def _refuse_undoing(run: Run) -> None:
    """Raise if the run has ended without an outcome, or does not fit its history."""
    if run.ended is not None:
        raise run.ended from None
    if run.wrong is not None:
        raise run.wrong from None


def _end_unbegun(log: WorkflowLog, job: Job, outcome: Fields) -> None:
    """End a workflow that has failed before a run of it could begin."""
    message = job.message
    assert message is not None

    def end() -> None:
        message.guard()
        state = log.state()
        if state is not None and not state.has_ended and state.generation == job.generation:
            end_workflow(log, state, FAILED, outcome)
        finish([message])

    log.commit(end)


def _cancel_children(jobs: AnyJobs, children: Sequence[str]) -> None:
    """Cancel children of a cancelled workflow; those that have ended stay as they are."""
    for child in children:
        with suppress(InvalidArgument):
            jobs.handle(child).cancel()


def _check_id(workflow_id: Any) -> str | None:
    if workflow_id is None:
        return None
    if not isinstance(workflow_id, str) or not 0 < len(workflow_id) <= _ID_MAX:
        raise InvalidArgument(f"the id of a workflow is a text, not {show(workflow_id)}")
    return workflow_id


def is_workflow(jobs: AnyJobs, job_id: str) -> bool:
    """Return whether there is a workflow with an ID."""
    return WorkflowLog(jobs, job_id).state() is not None


class WorkflowWithOptions(TaskWithOptions[P, R_co]):
    """A workflow and the options of those that are enqueued through it."""

    __slots__ = ()

    @overload
    def enqueue(
        self: WorkflowWithOptions[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> WorkflowHandle[T]: ...
    @overload
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> WorkflowHandle[R_co]: ...
    def enqueue(self, /, *args: Any, **kwargs: Any) -> WorkflowHandle[Any]:
        """Begin a workflow; all arguments are the function's. See ``Workflow.enqueue``."""
        return cast("WorkflowHandle[Any]", super().enqueue(*args, **kwargs))


class WorkflowHandle(JobHandle[R]):
    """A workflow that was enqueued; ``await`` it for its result in asyncio."""

    __slots__ = ()

    def __init__(self, jobs: AnyJobs, workflow_id: str, task: Any = None) -> None:
        """``task``: what loads the result by its type hint."""
        super().__init__(jobs, workflow_id, task)
        self._jobs = jobs

    def __repr__(self) -> str:
        return f"<WorkflowHandle {self.id}>"

    @property
    def _workflow_log(self) -> WorkflowLog:
        return WorkflowLog(self._jobs, self.id)

    def _state(self) -> State:
        """Return the state; JobUnknown if there is none."""
        state = self._workflow_log.state()
        if state is None:
            raise self._unknown()
        return state

    def _unknown(self) -> JobUnknown:
        return JobUnknown(
            f"there is no workflow {self.id}: it was not enqueued, or ended longer ago than its "
            "history is kept"
        )

    @property
    def status(self) -> str:
        """Where the workflow is.

        ``"scheduled"`` (delayed), ``"queued"``, ``"running"``, ``"waiting"`` (see ``waits_for``),
        ``"done"``, ``"failed"``, ``"cancelled"``, or ``"unknown"``: there is none, or it ended
        longer ago than its history is kept.
        """
        state = self._workflow_log.state()
        return "unknown" if state is None else state.status

    @property
    def waits_for(self) -> str | None:
        """What the workflow waits for, such as ``"signal confirmed"``; None if it does not wait.

        For a workflow whose version no worker knows, it says so.
        """
        state = self._workflow_log.state()
        if state is not None and state.after:
            return super().waits_for
        return (state.why or None) if state is not None else None

    def steps(self) -> list[Step]:
        """Return what the workflow has done so far, in order; JobUnknown if there is none."""
        self._state()
        past = self._workflow_log.history()
        kinds = (STEP, CHILD, events.PAUSE, events.WAIT)
        calls = [call for _, call in sorted(past.calls.items()) if call.kind in kinds]
        return [_shown(call, past) for call in calls]

    def counts(self) -> Counts:
        """Return how many children there are, and how many have ended how."""
        self._state()
        past = self._workflow_log.history()
        children = [call.child for call in past.calls.values() if call.kind == CHILD]
        ended = [
            past.children[child].text("status") for child in children if child in past.children
        ]
        done, failed, cancelled = (ended.count(each) for each in (DONE, FAILED, CANCELLED))
        total = len(children)
        if TOTAL in past.published and self._state().task == CANVAS:
            total = max(total, past.published[TOTAL].value("value"))
        return Counts(total, done, failed, cancelled, total - len(ended))

    # --- signals and updates --------------------------------------------------------------------

    def send(self, name: str, value: Any = None) -> bool:
        """Send a signal, which ``wait_for(name)`` returns; False if the workflow has ended.

        It is kept until the workflow waits for it. Two signals of one name end two waits, in
        order. ``value`` is plain data. Raises JobUnknown if there is no such workflow. In a
        transaction it is part of that.
        """
        events.check_name(name, "a signal")
        form = self._jobs.format
        fields = events.value_fields("value", codec_of(Any).dump(value), form)
        log = self._workflow_log

        def add() -> bool:
            state = log.state()
            if state is None:
                raise self._unknown()
            if state.has_ended:
                return False
            if len(log.stream) >= state.bound:
                raise InvalidArgument(
                    f"the history of the workflow {self.id} is full: it has {state.bound} events"
                )
            log.add(events.SIGNAL, name=name, **fields)
            if state.status == WAITING and name in state.names:
                log.wake_now(state)
            return True

        done = log.commit(add)
        if self._jobs.testing is not None:
            self._jobs.testing.run()
        return done

    async def asend(self, name: str, value: Any = None) -> bool:
        """Send a signal as ``send`` does, without blocking the event loop."""
        return await asyncio.to_thread(partial(self.send, name, value))

    def published(self) -> dict[str, Any]:
        """Return the last value of each name that the workflow has published."""
        self._state()
        found = self._workflow_log.history().published
        return {name: event.value("value") for name, event in found.items()}

    def updates(self) -> Iterator[Update]:
        """Yield what the workflow publishes, from its begin to its end; JobUnknown without one."""
        after, more = MIN_ID, True
        while more:
            after, found, more = self._read_updates(after)
            yield from found

    async def aupdates(self) -> AsyncIterator[Update]:
        """Yield what the workflow publishes as ``updates`` does, without blocking the loop."""
        after, more = MIN_ID, True
        while more:
            after, found, more = await asyncio.to_thread(self._read_updates, after)
            for update in found:
                yield update

    def _read_updates(self, after: StreamID) -> tuple[StreamID, list[Update], bool]:
        """Wait for events; return the ID of the last, the updates, and whether more may come."""
        state = self._workflow_log.state()
        if state is None and after == MIN_ID:
            raise self._unknown()
        is_over = state is None or state.has_ended
        block = None if is_over or self._jobs.testing is not None else LOOK_S
        entries = self._workflow_log.stream.read(after, count=_PAGE, block=block)
        found = [Event.of(entry) for entry in entries]
        updates = [
            Update(event.text("name"), event.value("value"), _time(event.id.ms))
            for event in found
            if event.kind == events.PUBLISHED
        ]
        more = bool(entries) or not (is_over or self._jobs.testing is not None)
        return (entries[-1].id if entries else after), updates, more

    # --- by hand --------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Cancel the workflow and its children; return False if it had ended before.

        A step that runs goes on to its end, and its result is dropped. Nothing is undone.
        """
        log = self._workflow_log

        def end() -> list[str] | None:
            state = log.state()
            if state is None or state.has_ended:
                return None
            children = log.history().open_children()
            end_workflow(log, state, CANCELLED, {})
            if children:  # a worker cancels them if this process dies now
                log.wake(state)
            return children

        children = log.commit(end)
        if children is None:
            return False
        _cancel_children(self._jobs, children)
        return True

    def retry(self, from_step: str | None = None) -> bool:
        """Run a failed workflow on; return whether it had failed.

        It goes back to the first step that failed or was undone, or to the first step or child
        named ``from_step``: what came before is not run again. InvalidArgument if no step has that
        name.
        """
        log = self._workflow_log

        def go_back() -> bool:
            state = log.state()
            if state is None or state.status != FAILED:
                return False
            past = log.history()
            to = past.retry_seq(from_step)
            if to is None:
                raise InvalidArgument(
                    f"the workflow {self.id} has no step {show(from_step)}: it has "
                    f"{', '.join(dict.fromkeys(past.step_names())) or 'none'}"
                )
            state.status, state.generation, state.lives = QUEUED, state.generation + 1, 0
            log.add(events.RETRIED, to=str(to))
            log.wake(state)
            log.write(state)
            log.persist()
            end = past.end
            failed = {name: end.text(name) if end else "" for name in ("error", "traceback")}
            self._jobs.record(self.id, RETRY, state.ttl_ms / 1000, failed)
            return True

        done = log.commit(go_back)
        if self._jobs.testing is not None:
            self._jobs.testing.run()
        return done


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _shown(call: Call, past: events.History) -> Step:
    """Return a call as the handle shows it."""
    event, status, ended_ms = call.event, call.status, call.ended_ms
    if call.kind == CHILD and call.child in past.children:
        event = past.children[call.child]
        status, ended_ms = event.text("status"), event.id.ms
    if call.kind == events.PAUSE and past.end is None and call is past.calls[past.last_seq]:
        status, ended_ms = OPEN, 0
    elif call.kind == events.PAUSE:
        status, ended_ms = DONE, call.until_ms or 0
    name = {STEP: "result", CHILD: "result", events.WAIT: "value"}.get(call.kind, "")
    assert event is not None
    has_result = status == DONE and name in event.fields
    return Step(
        kind=call.kind,
        name=call.name,
        status=status,
        attempt=max(1, event.number("attempt")),
        begun=_time(call.from_ms),
        ended=_time(ended_ms) if status != OPEN else None,
        result=event.value(name) if has_result else None,
        error=event.text("error") or None,
        traceback=event.text("traceback") or None,
    )
