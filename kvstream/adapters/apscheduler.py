"""APScheduler 3 on a kvstream store: a job store.

::

    from apscheduler.schedulers.background import BackgroundScheduler
    from kvstream.adapters.apscheduler import KVStreamJobStore

    scheduler = BackgroundScheduler(jobstores={"default": KVStreamJobStore("data")})

The jobs are entries of a stream. The scheduler follows it, so that a job which another process has
added or changed runs in time. As in all job stores of APScheduler 3, jobs are pickled, and one
scheduler at a time should run them.
"""

import pickle
import threading
from datetime import datetime
from typing import Any

from apscheduler.job import Job
from apscheduler.jobstores.base import BaseJobStore, ConflictingIdError, JobLookupError

from kvstream.adapters.places import Place, Records
from kvstream.errors import KVStreamError
from kvstream.types.urls import AnyPath

__all__ = ["KVStreamJobStore"]


def __dir__() -> list[str]:
    return __all__


WAIT_S = 0.25
"""Longest single wait for a change by another process."""


class KVStreamJobStore(BaseJobStore):
    """Jobs in a store: a directory, or the URL of a server.

    ``key`` is the stream of the jobs. Further options are those of ``kvstream.open``.
    """

    def __init__(
        self,
        place: AnyPath,
        key: str = "apscheduler:jobs",
        pickle_protocol: int = pickle.HIGHEST_PROTOCOL,
        **options: Any,
    ) -> None:
        super().__init__()
        self.place = Place(place, **options)
        self._records = Records(self.place, key)
        self._pickle_protocol = pickle_protocol
        self._stopped = threading.Event()

    def start(self, scheduler: Any, alias: str) -> None:
        super().start(scheduler, alias)
        self._stopped.clear()
        self._follower = threading.Thread(target=self._follow, name="kvstream-jobs", daemon=True)
        if scheduler is not None:
            self._follower.start()

    def shutdown(self) -> None:
        self._stopped.set()
        if self._follower.is_alive():
            self._follower.join()
        self.place.close()

    def _follow(self) -> None:
        """Wake the scheduler when a job was added or changed, by this process or another."""
        after: Any = "0-0"
        while not self._stopped.is_set():
            try:
                entries = self._records.stream.read(after, block=WAIT_S)
            except KVStreamError:
                self._logger.exception("Unable to follow the jobs")
                self._stopped.wait(WAIT_S)
                continue
            if entries:
                after = entries[-1].id
                self._scheduler.wakeup()

    # --- jobs -----------------------------------------------------------------------------------

    def lookup_job(self, job_id: str) -> Job | None:
        return next((job for job in self._jobs() if job.id == job_id), None)

    def get_due_jobs(self, now: datetime) -> list[Job]:
        return [job for job in self._list_unpaused() if job.next_run_time <= now]

    def get_next_run_time(self) -> datetime | None:
        return next((job.next_run_time for job in self._list_unpaused()), None)

    def get_all_jobs(self) -> list[Job]:
        paused = [job for job in self._jobs() if job.next_run_time is None]
        return self._list_unpaused() + paused

    def _list_unpaused(self) -> list[Job]:
        """Return the jobs that are not paused, the soonest first."""
        jobs = [job for job in self._jobs() if job.next_run_time is not None]
        return sorted(jobs, key=lambda job: job.next_run_time)

    def _jobs(self) -> list[Job]:
        """Return all jobs; delete those that cannot be restored, as other job stores do."""
        jobs: list[Job] = []
        if self._stopped.is_set():  # a scheduler looks once more after it has stopped
            return jobs
        for job_id, state in self._records.all().items():
            try:
                job = Job.__new__(Job)
                job.__setstate__(pickle.loads(state))
            except Exception:
                self._logger.exception("Unable to restore job %r -- removing it", job_id)
                self._records.delete(job_id)
                continue
            job._scheduler, job._jobstore_alias = self._scheduler, self._alias
            jobs.append(job)
        return jobs

    def add_job(self, job: Job) -> None:
        if not self._records.put(job.id, self._state(job), exists=False):
            raise ConflictingIdError(job.id)

    def update_job(self, job: Job) -> None:
        if not self._records.put(job.id, self._state(job), exists=True):
            raise JobLookupError(job.id)

    def _state(self, job: Job) -> bytes:
        return pickle.dumps(job.__getstate__(), self._pickle_protocol)

    def remove_job(self, job_id: str) -> None:
        if not self._records.delete(job_id):
            raise JobLookupError(job_id)

    def remove_all_jobs(self) -> None:
        self._records.clear()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.place!r}>"
