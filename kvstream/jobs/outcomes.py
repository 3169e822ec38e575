"""Ends of jobs: their results, and the commits that store these and acknowledge the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from kvstream.jobs.arguments import pack
from kvstream.jobs.dependents import Ends, dependents_key, nudge_dependents, tell_dependents
from kvstream.jobs.handle import DONE
from kvstream.jobs.history.child import (
    LARGE_RESULT,
    check_result,
    nudge_parent,
    parent_to_nudge,
    tell_of_result,
)
from kvstream.jobs.job import AnyJobs, Job
from kvstream.jobs.listing.ended import End, EndedJobs
from kvstream.jobs.results import Addition, Results, add_all
from kvstream.queue import finish
from kvstream.storage.contexts import contextmanager

if TYPE_CHECKING:
    from kvstream.store import Store


class Outcomes:
    """What a ``Jobs`` writes when jobs end."""

    name: str
    consumer: str
    format: str
    result_ttl: float
    ended: EndedJobs
    results: Results

    @property
    def _described(self) -> AnyJobs:
        return cast("AnyJobs", self)

    def record(
        self,
        job_id: str,
        status: bytes,
        ttl: float | None = None,
        fields: Mapping[str, str | bytes | int] = MappingProxyType({}),
    ) -> None:
        """Write the outcome of a job, in the open transaction if there is one."""
        ttl = self.result_ttl if ttl is None else ttl
        if ttl > 0:
            self.results.add(job_id, {"status": status, **fields}, ttl)

    def after_commit(self) -> None:
        """Give the streams that have new entries their names and rules, once a job has ended."""
        self.ended.name_new()
        self.results.set_rules()

    def note_end(self, job: Job, status: str, error: str = "") -> None:
        """List a job as ended, in the open transaction."""
        add_all(self._described.store, self.additions_of_end(job, status, error))

    def additions_of_end(self, job: Job, status: str, error: str = "") -> list[Addition]:
        """Return the entries that list a job as ended."""
        return self.ended.additions([End(job, status, job.took_ms, error)])

    @contextmanager
    def finishing(self, job: Job) -> Iterator[Store]:
        """End a job with its result, in one commit with the writes of the block."""
        assert job.message is not None
        job.ending = True
        jobs = self._described
        reads = not jobs.store.watches_reads
        parent = None if job.parent is None or reads else parent_to_nudge(jobs, job)
        try:
            with job.message.transaction() as store:
                yield store
                (tell_dependents if reads else nudge_dependents)(jobs, job)
                self._end([(job, self._outcome(job))])
                if reads and job.parent is not None:
                    tell_of_result(jobs, job)
                else:
                    nudge_parent(jobs, job, parent)
        except BaseException:
            job.ending = False
            raise

    def finish(self, jobs: Sequence[Job]) -> None:
        """End jobs with their results in one commit; raise LeaseLost if one has lost its lease."""
        ended = [(job, self._outcome(job)) for job in jobs]
        for job, outcome in ended:
            job.ending = True
            if len(outcome.get(b"result", b"")) > LARGE_RESULT:
                self._write_large(job, outcome)
        children = [job for job in jobs if job.parent is not None]
        keys = [dependents_key(self.name, job.id) for job in jobs]
        if not children and self._end(ended, keys):
            return
        described = self._described
        with described.store.brief_transaction():
            ends = Ends(described)
            for job in jobs:
                assert job.message is not None
                job.message.guard()
                ends.add(job.id, DONE.decode())
            ends.write()
            for job in children:
                tell_of_result(described, job)
            self._end(ended)

    def _write_large(self, job: Job, outcome: dict[bytes, Any]) -> None:
        """Write a result that a server may refuse before its job is acknowledged.

        A server undoes nothing of a transaction: the job would be gone without its result.
        """
        if self._described.store.own_engine is not None:
            return
        with self._described.store.brief_transaction():
            assert job.message is not None
            job.message.guard()
            self.results.add(job.id, outcome, job.task.result_ttl)
        outcome.clear()

    def _outcome(self, job: Job) -> dict[bytes, Any]:
        """Return the fields that say that a job is done; empty if its result is not kept.

        TypeError for a wrong result.
        """
        packed = pack(job.task.signature.dump_result(job.result), self.format)
        if job.parent is not None:
            job.result_packed = check_result(packed)
        if job.task.result_ttl <= 0:
            return {}
        return {
            b"status": DONE,
            b"result": packed,
            b"format": self.format,
            b"task": job.task.name,
            **({} if job.attempt == 1 else {b"attempt": str(job.attempt)}),
            b"worker": self.consumer,
            b"took": str(job.took_ms or 0),
        }

    def run_fields(self, job: Job) -> dict[bytes, str]:
        """Return what the record of a try says of its run."""
        took_ms = job.took_ms
        run = {b"attempt": str(job.attempt), b"worker": self.consumer}
        return run if took_ms is None else {**run, b"took": str(took_ms)}

    def _end(
        self, ended: Sequence[tuple[Job, Mapping[bytes, Any]]], unless: Sequence[bytes] = ()
    ) -> bool:
        """Acknowledge and delete the messages of jobs, and write their outcomes.

        An empty outcome was written before, or is not kept. Do nothing, and return False, if one of
        the keys ``unless`` exists.
        """
        messages: list[Any] = []
        results: list[Addition] = []
        for job, outcome in ended:
            assert job.message is not None
            messages.append(job.message)
            if outcome:
                results.append(self.results.addition(job, outcome))
        results += self.ended.additions([End(job, "done", job.took_ms) for job, _ in ended])
        return finish(messages, results, unless)
