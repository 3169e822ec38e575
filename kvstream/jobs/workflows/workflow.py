"""A workflow: a job made of steps, whose finished steps survive everything; and its handle.

``Jobs.workflow`` makes one of a function. ``run`` executes it, ``history.events`` has its events,
and ``history.log`` keeps them in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, Unpack, cast, overload

from kvstream.engine.coerce import at_least_1
from kvstream.engine.queue_arguments import due_ms
from kvstream.errors import (
    InvalidArgument,
    KVStreamError,
    LeaseLost,
    StepFailed,
    describe,
    show,
)
from kvstream.jobs.arguments import pack, unpack
from kvstream.jobs.dependents import (
    STARTS,
    Dependencies,
    dependencies_of,
    outcome_by,
    text_of,
)
from kvstream.jobs.handle import JobHandle
from kvstream.jobs.history import events
from kvstream.jobs.history.cache import Histories
from kvstream.jobs.history.child import check_result, running, take_nudge
from kvstream.jobs.history.events import (
    CANCELLED,
    DONE,
    FAILED,
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
from kvstream.jobs.job_log import Failure
from kvstream.jobs.task import Options, Task, TaskWithOptions
from kvstream.jobs.workflows.handle import WorkflowHandle, cancel_children
from kvstream.jobs.workflows.run import Run, end_workflow
from kvstream.queue import finish

if TYPE_CHECKING:
    from kvstream.stream import Stream

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
_ID_MAX = 1000
"""Characters of an ID."""


class WorkflowOptions(Options, total=False):
    """How a workflow is enqueued: ``id``, ``delay``, ``at``, ``priority``, ``depends_on``."""

    id: str | None


class Begin(NamedTuple):
    """The begin of a run."""

    log: WorkflowLog
    past: events.History
    why: str
    """Why this worker cannot run the workflow; empty if it can."""
    state: State | None
    """None: the wake was dropped or put off."""


class Workflow(Task[P, R_co]):
    """A function of a ``Jobs`` that is made of steps; ``enqueue`` begins one."""

    is_workflow = True
    _internal = frozenset(
        {
            *("create", "end_failed", "forget", "limit_s", "pack_result", "prepare", "read"),
            *("stream_of", "version"),
        }
    )
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
        self._histories = Histories()
        self._prepared: dict[Job, Begin] = {}
        """Runs that were begun together, until each is loaded."""

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
        """Begin a workflow, and return its handle; an ID in use returns that of the existing one.

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
        self.jobs.ended.note_queue(self.jobs.queue_of(self))
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
        fate = STARTS if after is None else after.register(job.id, {TASK: self.name})
        log.add(events.BEGUN, task=self.name, version=self.version, **args, **due)
        if fate is not None and fate.error:
            log.end(state, fate.status, outcome_by(fate))
            return True
        if fate is not None:
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
            begin = self._prepared.pop(job, None) or self._prepare(job, log)
        except LeaseLost as error:
            raise RunEnded("lost", str(error)) from error
        except KVStreamError as error:
            raise RunEnded("lost", describe(error)) from error
        if begin.state is None:
            raise RunEnded("stale", begin.why or "there was nothing to wake")
        past = begin.past
        if begin.state.lives > LIVES_MAX:
            at = past.calls[past.last_seq].shown if past.calls else "its begin"
            raise Refused(f"it has killed its workers {LIVES_MAX} times after {at}")
        try:
            job.run = Run(self, job, begin.log, begin.state, past)
        except KVStreamError as error:  # it asks a server for its time
            raise RunEnded("lost", describe(error)) from error

    def _prepare(self, job: Job, log: WorkflowLog) -> Begin:
        """Read the history, and mark the workflow as running."""
        past = self._histories.read(log)
        if past.end is not None and past.end.kind == CANCELLED:
            cancel_children(self.jobs, past.open_children())
        why = self._unknown(job, past)
        return Begin(log, past, why, log.commit(lambda: self._begin(log, job, past, why)))

    def read(self, job: Job) -> None:
        """Do the reads of ``load`` before it, unless the workflow has ended."""
        if job.generation not in (None, NUDGE):
            log = WorkflowLog(self.jobs, job.id)
            past = self._histories.read(log)
            if past.end is None:  # else it may have many children to cancel
                self._prepared[job] = Begin(log, past, self._unknown(job, past), None)

    def prepare(self, job: Job) -> None:
        """Do the writes of ``load`` before it, in the open transaction, if ``read`` has."""
        begin = self._prepared.get(job)
        if begin is not None:
            state = self._begin(begin.log, job, begin.past, begin.why)
            self._prepared[job] = begin._replace(state=state)

    def forget(self, job: Job) -> None:
        """Forget what was prepared: its transaction was undone."""
        self._prepared.pop(job, None)

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
        if not job.result_packed:
            self.pack_result(job)
        outcome: Fields = {"result": job.result_packed, "format": self.jobs.format}
        self._finish(job, DONE, outcome, job.result_packed)

    def pack_result(self, job: Job) -> None:
        """Pack the result of a workflow, before the commit of its end."""
        plain = self.signature.dump_result(job.result)
        job.result_packed = check_result(pack(plain, self.jobs.format))

    def end_failed(self, job: Job, failure: Failure, recorded: bool = True) -> None:
        """End a workflow that has failed, or that could not be begun."""
        outcome: Fields = {"error": failure.text, "traceback": failure.trace}
        run = job.run
        if run is not None:
            outcome["cause"] = str(run.history.cause_of(failure.error))
        if run is not None and run.failed is not None:  # the first run that failed knows more
            outcome = {name: run.failed.text(name) for name in outcome}
        self._finish(job, FAILED, outcome)

    def _finish(self, job: Job, status: str, outcome: Fields, packed: bytes = b"") -> None:
        self._histories.take(job.id)
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
            end_workflow(log, state, FAILED, outcome, wake=message)
        else:
            finish([message])

    log.commit(end)


def _check_id(workflow_id: Any) -> str | None:
    if workflow_id is None:
        return None
    if not isinstance(workflow_id, str) or not 0 < len(workflow_id) <= _ID_MAX:
        raise InvalidArgument(f"the id of a workflow is a text, not {show(workflow_id)}")
    return workflow_id


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
