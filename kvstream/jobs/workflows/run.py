"""One run of a workflow: replays the history, runs the next steps, and ends when it must wait.

A run calls the function of the workflow from its top. Each call of ``step``, ``pause`` and so on
has a number (``replay``). Each finished step is one commit (``step_runs``, ``commits``), and so is
each start of a child (``children``).
"""

from __future__ import annotations

from dataclasses import replace

from kvstream.errors import NonDeterministic
from kvstream.jobs.dependents import forget_waiting, tell_of_end
from kvstream.jobs.history import events
from kvstream.jobs.history.child import LARGE_RESULT, tell_parent
from kvstream.jobs.history.events import DONE, Fields, History
from kvstream.jobs.history.log import State, WorkflowLog
from kvstream.jobs.job import Job
from kvstream.jobs.job_log import Failure
from kvstream.jobs.results import add_all
from kvstream.jobs.workflows.children import Children
from kvstream.jobs.workflows.commits import AnyWorkflow
from kvstream.jobs.workflows.step import Spec
from kvstream.jobs.workflows.step_runs import StepRuns
from kvstream.queue import Message


class Run(StepRuns, Children):
    """One run of a workflow, in one worker."""

    def __init__(
        self, workflow: AnyWorkflow, job: Job, log: WorkflowLog, state: State, past: History
    ) -> None:
        super().__init__(workflow, job, log, state, past)
        self.undoes: list[Spec] = []

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
        fields["cause"] = str(self.history.cause_of(error))
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
                self.write_new()
                add_all(self.log.store, [self.log.record(self.state, status, outcome)])

            self.commit(record)

        def end() -> None:
            self.write_new()
            state = replace(self.state)
            end_workflow(self.log, state, status, outcome, packed, is_large, message)

        self.commit(end)


def end_workflow(
    log: WorkflowLog,
    state: State,
    status: str,
    outcome: Fields,
    packed: bytes = b"",
    is_recorded: bool = False,
    wake: Message | None = None,
) -> None:
    """Write the end of a workflow, and tell its parent, in the open transaction.

    ``wake`` is acknowledged.
    """
    if state.parent:
        told: Fields = {name: outcome[name] for name in ("error", "traceback") if name in outcome}
        if status == DONE:
            told = events.packed_fields("result", packed, log.jobs.format)
        tell_parent(log.jobs, state.parent, log.id, status, told)
    tell_of_end(log.jobs, log.id, status)
    if state.after:
        forget_waiting(log.jobs, log.id)
    log.end(state, status, outcome, is_recorded, wake)
