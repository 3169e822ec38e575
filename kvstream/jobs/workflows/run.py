"""One run of a workflow: replays the history, runs the next steps, and ends when it must wait.

A run calls the function of the workflow from its top. Each call of ``step``, ``pause`` and so on
has a number; where the history has its outcome, that is given back. At the first call without one
the run does new work: each finished step is one commit, guarded by the lease of the wake and by the
generation, so that of two workers only one goes on. When the workflow must wait, one commit writes
what it waits for, puts the timer and acknowledges the wake, and RunEnded leaves the function.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from time import sleep
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kvstream.errors import (
    Conflict,
    InvalidArgument,
    JobError,
    KVStreamError,
    LeaseLost,
    NonDeterministic,
    RequestError,
    ServerUnavailable,
    StepFailed,
    UnknownOutcome,
    describe,
    show,
)
from kvstream.jobs.handle import AWAY_S
from kvstream.jobs.history import events
from kvstream.jobs.history.child import LARGE_RESULT, Child, tell_parent
from kvstream.jobs.history.events import CHILD, DONE, FAILED, OPEN, STEP, Call, Event, Fields
from kvstream.jobs.history.log import RUNNING, WAITING, State, WorkflowLog
from kvstream.jobs.job import Job, JobTimeout, RunEnded
from kvstream.jobs.job_log import Failure
from kvstream.jobs.workflows.step import Attempt, Spec, attempt_here
from kvstream.queue import finish
from kvstream.storage.contexts import contextmanager
from kvstream.store import Store
from kvstream.types.clock import monotonic
from kvstream.types.ids import StreamID

if TYPE_CHECKING:
    from kvstream.jobs.history.events import History

T = TypeVar("T")

_PACKAGE = "kvstream.jobs"
_UNDO_ROOM = 1000
"""Events beyond the bound of a history that the end of a workflow may need."""


class _News(Exception):
    """Others have added events since the run has read them."""


class AnyWorkflow(Protocol):
    """The workflow, as its runs see it."""

    name: str
    is_async: bool
    limit_s: float | None


class Run:
    """One run of a workflow, in one worker."""

    def __init__(
        self, workflow: AnyWorkflow, job: Job, log: WorkflowLog, state: State, past: History
    ) -> None:
        self.workflow, self.job, self.log, self.state, self.history = (
            *(workflow, job, log, state),
            past,
        )
        self.seq = 0
        """The number of the last call."""
        self.undoes: list[Spec] = []
        self.undoing = False
        self.ended: RunEnded | None = None
        self.wrong: NonDeterministic | None = None
        """The code does not fit the history, whatever it makes of the exception."""
        self.failed: Event | None = None
        """The event that says how the function has failed."""
        self._busy = self._line = ""
        self._cut = ""
        """The call whose await was cancelled: whether it was depends on the clock."""
        self._old = set[str]()
        """Patches that this workflow goes without."""
        self._unwritten: list[tuple[str, Fields]] = []
        clock = log.jobs
        self._ahead_ms = 0 if log.store.own_engine else log.store.now_ms() - clock.now_ms()

    # --- time -----------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the Unix milliseconds by the clock of the store."""
        own = self.log.store.own_engine
        return self.log.jobs.now_ms() + self._ahead_ms if own is None else self.log.store.now_ms()

    @property
    def deadline_ms(self) -> int | None:
        """When the workflow has taken too long; None without a limit, and while it is undone."""
        limit_s = self.workflow.limit_s
        if limit_s is None or self.undoing:
            return None
        return self.history.begun_ms + round(limit_s * 1000)

    def left_s(self) -> float | None:
        """Return the seconds until the deadline; None without one."""
        deadline = self.deadline_ms
        return None if deadline is None else max(0.0, (deadline - self.now_ms()) / 1000)

    def refuse_late(self) -> None:
        """Raise JobTimeout after the deadline."""
        if self.left_s() == 0.0:
            raise JobTimeout(
                f"{self.workflow.name} has taken more than {self.workflow.limit_s:g} s"
            )

    # --- the calls of the function --------------------------------------------------------------

    def refuse_within_step(self, what: str) -> None:
        """Raise for a call that no replay could find: within a step, or after the end."""
        if self.ended is not None:
            raise self.ended
        attempt = attempt_here.get()
        if attempt is not None:
            raise InvalidArgument(
                f"{what} is called within the step {attempt.spec.name}: a step is a plain "
                "function; the workflow itself calls its steps"
            )

    def note_line(self) -> None:
        """Note the line of a call in an async workflow, which other threads may end."""
        self._line = line_of_caller()

    @property
    def line(self) -> str:
        """The file and line of the code that has made the call."""
        return self._line or line_of_caller()

    def call(self, kind: str, name: str, digest: str = "") -> Call | None:
        """Begin the next call of the function; return what the history has of it.

        Raises NonDeterministic if the history has another call in its place.
        """
        if self.wrong is not None:
            raise self.wrong
        if self._cut and not self.undoing:
            raise InvalidArgument(
                f"{self._cut} was cancelled while it was awaited, which no replay would repeat: "
                "use the timeout of step.with_options(), wait_for() or the workflow"
            )
        seq = self.seq + 1
        call = self.history.calls.get(seq)
        if call is None:
            self._refuse_more()
            self.seq = seq
            return None
        self.fail_again(call)
        if (call.kind, call.name) != (kind, name):
            found = Call(kind, name).shown
            raise self._refuse(
                f"call {seq} of {self.workflow.name} is {found} at {self.line}, but the history "
                f"has {call.shown} there: the code has changed, or depends on what is not "
                "recorded; see patched()"
            )
        if digest and call.digest and digest != call.digest:
            raise self._refuse(
                f"call {seq} of {self.workflow.name}, {call.shown} at {self.line}, has other "
                "arguments than in the history: take the time and random numbers from now(), "
                "uuid4() and random(), or see patched()"
            )
        self.seq = seq
        return call

    def fail_again(self, call: Call | None) -> None:
        """Raise what the function has failed with, if ``call`` is its failure."""
        if call is not None and call.kind == events.FAILING and not self.undoing:
            assert call.event is not None
            self.failed = call.event
            raise JobError(call.event.text("error"))

    def _fail_here_again(self) -> None:
        """Raise what the function has failed with, if it did so within the call that goes on."""
        self.fail_again(self.history.calls.get(self.seq + 1))

    def _refuse(self, text: str) -> NonDeterministic:
        self.wrong = NonDeterministic(text)
        return self.wrong

    def _refuse_more(self) -> None:
        """Raise if the workflow may make no more calls."""
        self.refuse_late()
        room = self.state.bound + (_UNDO_ROOM if self.undoing else 0)
        if self.history.count >= room:
            raise JobError(
                f"the history of {self.workflow.name} has {self.history.count} events, and may "
                f"have {self.state.bound}: give it a larger max_events, or let it end and enqueue "
                "another workflow for the rest"
            )

    def note(self, kind: str, **values: str | bytes) -> None:
        """Add an event: at once to what this run knows, and to the store with the next commit."""
        stored = {
            name: value if isinstance(value, bytes) else value.encode()
            for name, value in values.items()
        }
        self.history.take(Event(kind, stored, StreamID(self.now_ms(), 0)))
        self._unwritten.append((kind, values))

    def do(self, function: Callable[..., T], *args: Any) -> Any:
        """Call a method that may wait; in an async workflow return an awaitable of it."""
        if self.workflow.is_async:
            return self._in_thread(function, *args)
        return function(*args)

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        with self.busy(getattr(function, "__name__", "this")):
            return await _to_end(function, *args)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Refuse a second call while one is awaited: their order would be another in a replay."""
        if self._busy:
            raise InvalidArgument(
                f"{what} is called while {self._busy} is awaited: await one after the other, and "
                "give what runs side by side to gather() as children"
            )
        self._busy, before = what, self.seq
        try:
            yield
        except asyncio.CancelledError:
            self._cut = what
            if self.seq not in self.history.calls:
                self.seq = before
            raise
        finally:
            self._busy = ""

    # --- commits --------------------------------------------------------------------------------

    def commit(self, block: Callable[[], T]) -> T:
        """Run a block with the new events as one commit; end the run if it may not go on."""
        try:
            done = self._commit(lambda: self._guarded(block))
        except RunEnded as ended:
            self.ended = ended
            if ended.outcome == "ended":
                self._drop_wake()
            raise
        except LeaseLost as error:
            raise self._end("lost", str(error)) from error
        except (RequestError, _News) as error:
            if isinstance(error, Conflict):
                raise self._end("lost", str(error)) from error
            raise
        except KVStreamError as error:
            raise self._end("lost", describe(error)) from error
        self._unwritten.clear()
        return done

    def _commit(self, block: Callable[[], T]) -> T:
        """Run a block as one commit; wait for a server that is away, for as long as a lease."""
        until = monotonic() + self.log.jobs.lease_s
        while True:
            try:
                return self.log.commit(block)
            except ServerUnavailable:
                if monotonic() >= until or _has_loop():
                    raise
            sleep(AWAY_S)

    def _guarded(self, block: Callable[[], T]) -> T:
        assert self.job.message is not None
        self.job.message.guard()
        state = self.log.state()
        if state is None or (state.generation, state.status) != (self.state.generation, RUNNING):
            raise RunEnded("ended", "it was cancelled or retried by hand, or has expired")
        return block()

    def _end(self, outcome: str, why: str) -> RunEnded:
        self.ended = RunEnded(outcome, why)
        return self.ended

    def _drop_wake(self) -> None:
        """Acknowledge a wake that leads to nothing."""
        assert self.job.message is not None
        with suppress(KVStreamError):
            finish([self.job.message])

    def flush(self) -> None:
        """Write the new events, if there are any."""
        if self._unwritten:
            self.commit(lambda: self.log.add_all(self._unwritten))

    # --- waiting --------------------------------------------------------------------------------

    def wait(
        self,
        why: str,
        *,
        until_ms: int | None = None,
        names: Iterable[str] = (),
        left: int = 0,
        raises: bool = False,
    ) -> None:
        """Return if others have added events since; else end the run until there is something.

        ``names`` are signals, ``left`` is a number of children, ``raises``: the first that fails
        wakes, too.
        """
        self._fail_here_again()
        self.refuse_late()
        times = [at for at in (until_ms, self.deadline_ms) if at is not None]
        state = replace(
            self.state, status=WAITING, generation=self.state.generation + 1, names=list(names)
        )
        state.left, state.raises, state.why, state.lives = left, raises, why, 0
        try:
            self.commit(lambda: self._suspend(state, min(times, default=None)))
        except _News:
            self.refresh()
            return
        raise self._end("waits", why)

    def _suspend(self, state: State, wake_ms: int | None) -> None:
        assert self.job.message is not None
        entries = self.log.entries(self.history.read_to)
        if any(Event.of(entry).kind in events.OF_OTHERS for entry in entries):
            raise _News
        self.log.add_all(self._unwritten)
        if wake_ms is not None:
            self.log.wake(state, wake_ms)
        self.log.write(state)
        finish([self.job.message])

    def refresh(self) -> None:
        """Take the events that others have added."""
        self.history.take_new(self.log.entries(self.history.read_to))

    def pause(self, until_ms: int) -> None:
        """Wait until a time."""
        call = self.call(events.PAUSE, "pause")
        if call is None:
            self.note(events.PAUSE, seq=str(self.seq), until=str(until_ms))
            call = self.history.calls[self.seq]
        until_ms = call.until_ms or 0
        while self.history.last_seq <= self.seq and self.now_ms() < until_ms:
            self.wait("pause", until_ms=until_ms)

    def wait_for(self, name: str, timeout_ms: int | None) -> Any:
        """Wait for a signal; return its value, or raise TimeoutError."""
        call = self.call(events.WAIT, name)
        if call is None:
            until = {} if timeout_ms is None else {"until": str(self.now_ms() + timeout_ms)}
            self.note(events.WAIT, seq=str(self.seq), name=name, **until)
            call = self.history.calls[self.seq]
        until_ms = call.until_ms
        while call.status == OPEN:
            self._fail_here_again()
            if (signal := self.history.next_signal(name)) is not None:
                self.note(events.RECEIVED, seq=str(self.seq), signal=str(signal.id))
            elif until_ms is not None and self.now_ms() >= until_ms:
                self._time_out(name)
            else:
                self.wait(f"signal {name}", until_ms=until_ms, names=[name])
        if call.status == FAILED:
            raise TimeoutError(f"no signal {name!r} has come in time")
        assert call.event is not None
        return call.event.value("value")

    def _time_out(self, name: str) -> None:
        """End a wait at its timeout, unless its signal has come at the last moment."""
        self.refresh()
        if self.history.next_signal(name) is None:
            self.note(events.RECEIVED, seq=str(self.seq))

    # --- values ---------------------------------------------------------------------------------

    def value(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a recorded value, which the first run makes."""
        call = self.call(events.VALUE, name)
        if call is not None:
            assert call.event is not None
            return call.event.value("result")
        plain = make()
        fields = events.value_fields("result", plain, self.log.jobs.format)
        self.note(events.VALUE, seq=str(self.seq), name=name, **fields)
        return plain

    def patched(self, name: str) -> bool:
        """Return whether this workflow came to this line with the new code."""
        if name in self.history.patches:
            return True
        if name in self._old or self.history.last_seq > self.seq:
            self._old.add(name)
            return False
        self.note(events.PATCHED, name=name)
        return True

    def publish(self, name: str, fields: Fields) -> None:
        """Publish a value: once, or with each try of the step that does so."""
        attempt = attempt_here.get()
        if attempt is not None:
            attempt.refuse_late()
            self.log.commit(lambda: self.log.add(events.PUBLISHED, name=name, **fields))
            return
        if self.call(events.PUBLISHED, name) is None:
            self.note(events.PUBLISHED, seq=str(self.seq), name=name, **fields)

    # --- steps ----------------------------------------------------------------------------------

    def step(self, spec: Spec) -> Any:
        """Run a step, or return what it has returned before."""
        found = self.begin_step(spec)
        while isinstance(found, Attempt):
            try:
                result = found.run()
            except RunEnded:
                raise
            except BaseException as error:
                found = self.end_failed_try(found, error)
            else:
                found = self.end_step(found, result)
        return self.outcome(found, spec)

    async def astep(self, spec: Spec) -> Any:
        """Run a step of an async workflow."""
        with self.busy(spec.name):
            found = await _to_end(self.begin_step, spec)
            while isinstance(found, Attempt):
                try:
                    result = await found.arun()
                except RunEnded:
                    raise
                except BaseException as error:
                    if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                        raise
                    found = await _to_end(self.end_failed_try, found, error)
                else:
                    found = await _to_end(self.end_step, found, result)
            return self.outcome(found, spec)

    def begin_step(self, spec: Spec) -> Attempt | Call:
        """Return what the history has of a finished step, or the try that is to run now."""
        if self.ended is not None:
            raise self.ended
        call = self.call(STEP, spec.name, spec.digest)
        if call is not None and call.status != OPEN:
            return call
        tries = 0 if call is None else call.tries
        if call is not None and call.until_ms is not None:
            self._fail_here_again()
            self._wait_to_retry(spec, call.until_ms)
            self.refuse_late()
        self.flush()
        return self._new_try(spec, tries + 1)

    def _new_try(self, spec: Spec, number: int) -> Attempt:
        return Attempt(spec, self.seq, number, self.now_ms(), self.left_s())

    def _wait_to_retry(self, spec: Spec, until_ms: int) -> None:
        while self.now_ms() < until_ms:
            self.wait(f"retry of {spec.name}", until_ms=until_ms)

    def end_failed_try(self, attempt: Attempt, error: BaseException) -> Attempt | Call:
        """Record a try that has failed; return the next one, if it is due already."""
        if attempt.settled:  # by its transaction
            return self.history.calls[attempt.seq]
        if attempt.is_late:  # the whole workflow is: a replay finds no step here
            if attempt.seq not in self.history.calls:
                self.seq -= 1
            raise JobTimeout(
                f"{self.workflow.name} has taken more than {self.workflow.limit_s:g} s"
            ) from error
        spec, failure = attempt.spec, Failure.of(error)
        fields = self._fields_of(attempt) | {"error": failure.text, "traceback": failure.trace}
        delay_s = spec.delay_s(attempt.number, error)
        if delay_s is None:
            self.note(STEP, **fields, status=FAILED)
            self.flush()
            return self.history.calls[attempt.seq]
        until_ms = self.now_ms() + round(delay_s * 1000)
        self.note(events.TRIED, **fields, until=str(until_ms))
        self._wait_to_retry(spec, until_ms)
        self.flush()
        return self._new_try(spec, attempt.number + 1)

    def end_step(self, attempt: Attempt, result: Any) -> Call:
        """Record a step that has returned, in one commit."""
        if attempt.settled:
            return self.history.calls[attempt.seq]
        try:
            packed = attempt.spec.pack_result(result, self.log.jobs.format)
        except TypeError as error:
            return self._refuse_result(attempt, error)
        fields = events.packed_fields("result", packed, self.log.jobs.format)
        self.note(STEP, **self._fields_of(attempt), status=DONE, **fields)
        try:
            self.flush()
        except RequestError as error:
            self._unwritten.clear()
            return self._refuse_result(attempt, error)
        return self.history.calls[attempt.seq]

    def _refuse_result(self, attempt: Attempt, error: Exception) -> Call:
        """End a step whose result cannot be stored: another try would not help."""
        text = f"the result of the step {attempt.spec.name} cannot be stored: {error}"
        failed = {"error": f"TypeError: {text}", "traceback": "", "status": FAILED}
        self.note(STEP, **self._fields_of(attempt), **failed)
        self.flush()
        return self.history.calls[attempt.seq]

    def _fields_of(self, attempt: Attempt) -> dict[str, str]:
        spec = attempt.spec
        fields = {"seq": str(attempt.seq), "name": spec.name, "digest": spec.digest}
        fields |= {"attempt": str(attempt.number), "from": str(attempt.from_ms)}
        return fields | ({"of": str(spec.of)} if spec.of else {})

    def outcome(self, call: Call, spec: Spec) -> Any:
        """Return the result of a finished step; raise StepFailed if it has failed."""
        assert call.event is not None
        if call.status == FAILED:
            raise _step_failed(call.name, call.event)
        try:
            return spec.load_result(call.event.value("result"))
        except Exception as error:
            raise self._refuse(
                f"the result of {call.name} in the history cannot be read by its type hint at "
                f"{self.line}: {describe(error)}"
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[Store]:
        """Run the block and the end of the step that runs now as one commit."""
        attempt, job = attempt_here.get(), self.job
        if attempt is None:
            raise InvalidArgument("job.transaction() of a workflow is for the code of a step")
        attempt.refuse_late()
        job.result = None
        try:
            with self.log.store.transaction():
                self._guarded(lambda: None)
                yield self.log.store
                form = self.log.jobs.format
                packed = attempt.spec.pack_result(job.result, form)
                fields = self._fields_of(attempt) | {"status": DONE}
                result = events.packed_fields("result", packed, form)
                attempt.settle()
                self.log.add(STEP, **fields, **result)
        except RunEnded as ended:
            self.ended = ended
            self._drop_wake()
            raise
        except UnknownOutcome as error:  # it may be done: another run sees whether it is
            raise self._end("lost", describe(error)) from error
        except BaseException:
            attempt.unsettle()
            raise
        attempt.has_settled()
        self.note(STEP, **fields, **result)
        self._unwritten.pop()

    # --- children -------------------------------------------------------------------------------

    def start(self, task: Any, options: Any, args: Any, kwargs: Any) -> Child[Any]:
        """Start a job as a child; return it."""
        return self._start(task, task.pack_call(args, kwargs), options, False)

    def start_plain(self, task: Any, named: dict[str, Any]) -> Child[Any]:
        """Start a job with plain arguments as a child whose result stays plain data."""
        return self._start(task, task.pack_plain(named), {}, True)

    def _start(self, task: Any, packed: bytes, options: Any, is_plain: bool) -> Child[Any]:
        digest = task.digest_of(packed)
        call = self.call(CHILD, task.name, digest)
        if call is not None:
            return Child(self, task, call.child, is_plain=is_plain)
        try:
            job: Job = task.new_packed_job(packed, options.get("key"))
        except Exception:  # a middleware has refused it
            self.seq -= 1
            raise
        job.parent = self.log.id
        self.flush()
        fields = {"seq": str(self.seq), "name": task.name, "digest": digest}
        self.note(CHILD, **fields, child=job.id)

        def put() -> None:
            self.log.add_all(self._unwritten)
            task.put_child(job, options)

        try:
            self.commit(put)
        except RequestError:  # the child was not started
            self._unwritten.clear()
            del self.history.calls[self.seq]
            self.seq -= 1
            raise
        return Child(self, task, job.id, is_plain=is_plain)

    def gather_one(self, child: Child[Any]) -> Any:
        """Wait for one child, and return its result."""
        return self.gather([child], None, False)[0]

    def gather(self, children: Iterable[Child[Any]], limit: int | None, collect: bool) -> list[Any]:
        """Wait for children, of which at most ``limit`` run at a time; return results in order.

        Their ends are taken in the order of the history, so that each run starts them in one order.
        """
        coming, started, open_ids = iter(children), list[Child[Any]](), set[str]()
        ends, seen, more = self._ends(), set[str](), True
        while True:
            while more and (limit is None or len(open_ids) < limit):
                child = next(coming, None)
                more = child is not None
                if child is not None:
                    started.append(_check_child(child))
                    open_ids.update({child.id} - seen)
            if not open_ids:
                break
            if len(seen) == len(ends):
                left = 1 if more else len(open_ids)
                self.wait(f"{len(open_ids)} children", left=left, raises=not collect)
                ends = self._ends()
                continue
            child_id, end = ends[len(seen)]
            seen.add(child_id)
            if child_id in open_ids:
                open_ids.discard(child_id)
                if not collect and end.text("status") != DONE:
                    name = next(child.name for child in started if child.id == child_id)
                    raise _step_failed(name, end)
        return [self._result_of(child, collect) for child in started]

    def _ends(self) -> list[tuple[str, Event]]:
        """Return the ends of all children so far, in the order of the history."""
        ends = list(self.history.children.items())
        return ends if self.undoing else ends[: self.history.ends_before_failing]

    def _result_of(self, child: Child[Any], collect: bool) -> Any:
        end = self.history.children[child.id]
        if end.text("status") == DONE:
            return child.load(end.value("result"))
        failed = _step_failed(child.name, end)
        if collect:
            return failed
        raise failed

    def first_completed(self, children: list[Child[Any]]) -> Child[Any]:
        """Wait for the first of some children to end; return it."""
        by_id = {_check_child(child).id: child for child in children}
        while True:
            for child_id, _ in self._ends():
                if child_id in by_id:
                    return by_id[child_id]
            self.wait(f"the first of {len(by_id)} children", left=1)

    # --- the end --------------------------------------------------------------------------------

    def begin_undoing(self, error: BaseException) -> None:
        """Record why the function has failed, before what it has done is undone."""
        self.undoing = True
        self.seq += 1
        call = self.history.calls.get(self.seq)
        if call is not None and call.kind == events.FAILING:
            self.failed = call.event
            return
        failure = Failure.of(error)
        fields = {"error": failure.text, "traceback": failure.trace}
        self.note(events.FAILING, seq=str(self.seq), **fields)
        self.failed = self.history.calls[self.seq].event

    def refuse_rest(self) -> None:
        """Raise NonDeterministic if the function has returned before the end of its history."""
        if self.wrong is not None:
            raise self.wrong
        rest = self.history.calls.get(self.seq + 1)
        self.fail_again(rest)
        if rest is not None:
            raise NonDeterministic(
                f"{self.workflow.name} has returned after {self.seq} calls, but the history has "
                f"{rest.shown} next: the code has changed; see patched()"
            )

    def finish(self, status: str, outcome: Fields, packed: bytes = b"") -> None:
        """End the workflow, in one commit with the acknowledgement of its wake."""
        assert self.job.message is not None
        message = self.job.message
        is_large = len(packed) > LARGE_RESULT and self.log.store.own_engine is None
        if is_large:  # a server that refuses it would do the rest of the last commit

            def record() -> None:
                self.log.add_all(self._unwritten)
                self.log.record(self.state, status, outcome)

            self.commit(record)

        def end() -> None:
            self.log.add_all(self._unwritten)
            state = replace(self.state)
            end_workflow(self.log, state, status, outcome, packed, is_recorded=is_large)
            finish([message])

        self.commit(end)


def end_workflow(
    log: WorkflowLog,
    state: State,
    status: str,
    outcome: Fields,
    packed: bytes = b"",
    *,
    is_recorded: bool = False,
) -> None:
    """Write the end of a workflow, and tell its parent, in the open transaction."""
    if state.parent:
        told: Fields = {name: outcome[name] for name in ("error", "traceback") if name in outcome}
        if status == DONE:
            told = events.packed_fields("result", packed, log.jobs.format)
        tell_parent(log.jobs, state.parent, log.id, status, told)
    log.end(state, status, outcome, is_recorded)


def _check_child(child: Any) -> Child[Any]:
    if not isinstance(child, Child):
        raise InvalidArgument(f"{show(child)} is no child: start tasks with task.start()")
    return child


def _step_failed(name: str, event: Event) -> StepFailed:
    """Return the exception of a step or child that has failed, or was cancelled."""
    text = event.text("error") or event.text("status")
    failed = StepFailed(f"{name}: {text}")
    failed.step, failed.error, failed.traceback = name, text, event.text("traceback")
    return failed


def line_of_caller() -> str:
    """Return the file and line of the code that has made the call."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_of_jobs(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_of_jobs(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__package__")).startswith(_PACKAGE)


def _has_loop() -> bool:
    """Return whether an event loop runs in this thread, which must not block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _to_end(function: Callable[..., T], *args: Any) -> T:
    """Run a function in a thread, and wait for its end even if the task is cancelled."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        if not work.cancelled() and isinstance(work.exception(), RunEnded):
            return work.result()
        raise


def _is_cancelled() -> bool:
    running = asyncio.current_task()
    return running is not None and running.cancelling() > 0
