"""The jobs of an application, read from its store without its code.

Jobs of one application are in streams that begin with its name: its queues, the dead letters and
the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from kvstream.errors import InvalidArgument, RequestError
from kvstream.jobs.application import Jobs
from kvstream.jobs.dependents import AFTER, DEPENDENTS, waits_for
from kvstream.jobs.handle import JobHandle
from kvstream.jobs.history.log import HISTORY, WORKFLOW, WorkflowLog
from kvstream.jobs.job import ID
from kvstream.jobs.listing.ended import ENDED, TAGGED
from kvstream.jobs.listing.filters import Criteria, JobInfo, filter_of
from kvstream.jobs.listing.pages import all_jobs
from kvstream.jobs.listing.sources import dependent_of, find_end, info_of, text_key
from kvstream.jobs.notes import NOTES
from kvstream.jobs.results import OWN, SHARED
from kvstream.jobs.workers.registry import is_of_registry
from kvstream.jobs.workflows.handle import WorkflowHandle, is_workflow
from kvstream.meta.policy import DEAD_SUFFIX
from kvstream.queue import Queue
from kvstream.types.formatting import printable

if TYPE_CHECKING:
    from kvstream.store import Store


class StoredJobs(Jobs):
    """The jobs of an application whose code is not there."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__("", name=name)
        self.use(store)

    def queues(self, names: Sequence[str] = ()) -> list[Queue]:
        """Return a queue for each stream of jobs, each priority by itself."""
        return [Queue(self.store, key, group=self.group) for key in self._keys()]

    def _keys(self) -> list[bytes]:
        """Return the keys of the queues; in a store of an earlier version all keys are read."""
        named = self.ended.queue_keys()
        if named:
            return [key.encode("utf-8", "surrogateescape") for key in named]
        store, name = self.store, self.name.encode("utf-8", "surrogateescape")
        parts = (AFTER, DEPENDENTS, OWN, SHARED, WORKFLOW, HISTORY, NOTES, ENDED, TAGGED)
        others = (name + DEAD_SUFFIX, *(name + f":{part}".encode() for part in parts))
        keys = [
            key
            for key in store.scan_keys(name + b":*")
            if not key.startswith(others) and not is_of_registry(self.name, key)
        ]
        return sorted(key for key in (name, *keys) if store.type(key) == "stream")

    def handle(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of a job or workflow, which need not exist."""
        return (WorkflowHandle if is_workflow(self, job_id) else JobHandle)(self, job_id)

    def existing(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of a job; RequestError if nothing is known of it."""
        handle = self.handle(job_id)
        if self.status(handle) == "unknown":
            raise RequestError(
                f"no job {job_id} of {printable(self.name)!r} is known: it ended longer ago than "
                "its result is kept, or it has another --name"
            )
        return handle

    @staticmethod
    def status(handle: JobHandle[Any]) -> str:
        """Return the status of a job; "unknown" if only a workflow can have its ID."""
        try:
            return handle.status
        except InvalidArgument:
            return "unknown"

    def depends_on(self, job_id: str, count: int) -> list[tuple[str, str]]:
        """Return the first jobs that a job waits for, with their statuses."""
        found = waits_for(self, job_id)[:count]
        return [(each, self.status(self.handle(each))) for each in found]

    def find_all(self, **criteria: Unpack[Criteria]) -> Iterator[JobInfo]:
        """Yield all jobs that meet criteria."""
        return all_jobs(self, filter_of(criteria, self.store.now_ms))

    def info(self, handle: JobHandle[Any]) -> JobInfo | None:
        """Return what the message of a job has, or its dead letter; None if it has neither."""
        if isinstance(handle, WorkflowHandle):
            return None
        found = handle.message()
        if found is None:
            return dependent_of(self, handle.id)
        stream, where, fields = found
        return info_of(fields, where, handle.status, text_key(stream))

    def find_ended(
        self, job_id: str, status: str | None = None, task: str | None = None
    ) -> JobInfo | None:
        """Return a job that is listed as ended, though its result may not be kept any more."""
        return find_end(self, filter_of({}, self.store.now_ms), job_id, status, task)

    def holder_of(self, unique: str) -> str:
        """Return the ID of the job that has kept a unique name for its window; else an empty text.

        A name without a window is kept beside the message of its job alone, and is not found.
        """
        fields = self.fields_of_holder(unique)
        return fields.get(ID, b"").decode("utf-8", "surrogateescape")

    def facts(self, handle: JobHandle[Any]) -> dict[str, Any]:
        """Return the task of a job without a message, and of a workflow more."""
        if not isinstance(handle, WorkflowHandle):
            return {"id": handle.id, "task": handle.task_name}
        state = WorkflowLog(self, handle.id).state()
        if state is None:
            return {"id": handle.id}
        queue = None if state.has_ended else state.queue
        return {"id": handle.id, "task": state.task, "queue": queue, "enqueued_ms": state.at_ms}
