"""The steps of a run: tries, their ends in one commit each, and what a replay gives back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from kvstream.errors import (
    Conflict,
    InvalidArgument,
    RequestError,
    ServerUnavailable,
    UnknownOutcome,
    describe,
)
from kvstream.jobs.history import events
from kvstream.jobs.history.child import step_failed
from kvstream.jobs.history.events import DONE, FAILED, OPEN, STEP, Call
from kvstream.jobs.job import JobTimeout, RunEnded
from kvstream.jobs.job_log import Failure
from kvstream.jobs.workflows.replay import Replay, to_end
from kvstream.jobs.workflows.step import Attempt, Spec, attempt_here
from kvstream.storage.contexts import contextmanager
from kvstream.store import Store


class StepRuns(Replay):
    """The steps of one run."""

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
            found = await to_end(self.begin_step, spec)
            while isinstance(found, Attempt):
                try:
                    result = await found.arun()
                except RunEnded:
                    raise
                except BaseException as error:
                    if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                        raise
                    found = await to_end(self.end_failed_try, found, error)
                else:
                    found = await to_end(self.end_step, found, result)
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
            self.fail_here_again()
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
            self.unwritten.clear()
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
            raise step_failed(call.name, call.event)
        try:
            return spec.load_result(call.event.value("result"))
        except Exception as error:
            raise self.refuse(
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
                self.guarded(lambda: None)
                yield self.log.store
                form = self.log.jobs.format
                packed = attempt.spec.pack_result(job.result, form)
                fields = self._fields_of(attempt) | {"status": DONE}
                result = events.packed_fields("result", packed, form)
                attempt.settle()
                self.log.add(STEP, **fields, **result)
        except RunEnded as ended:
            self.ended = ended
            self.drop_wake()
            raise
        except (
            Conflict,
            ServerUnavailable,
            UnknownOutcome,
        ) as error:  # another run sees whether it is done
            raise self.end_run("lost", describe(error)) from error
        except BaseException:
            attempt.unsettle()
            raise
        attempt.has_settled()
        self.note(STEP, **fields, **result)
        self.unwritten.pop()


def _is_cancelled() -> bool:
    running = asyncio.current_task()
    return running is not None and running.cancelling() > 0
