"""Begins and ends of several workflows in one commit each.

A commit costs more than what most wakes write. So a worker begins the workflows that it has taken
in one commit, and ends those that have returned meanwhile in another. If one of them cannot, since
its lease is lost or it was cancelled, nothing is done, and each is begun or ended by itself. This
holds in the process that owns the store: elsewhere workflows that share a parent would conflict.

Code of the user, that of the types of arguments and results, runs before these commits: a commit
has the lock of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kvstream.jobs.job import AnyJobs, Job


def begin_together(jobs: AnyJobs, taken: Sequence[Job]) -> None:
    """Begin the workflows among jobs that were taken, if there are several."""
    workflows = [job for job in taken if job.generation is not None and job.task.is_workflow]
    if len(workflows) < 2 or jobs.store.own_engine is None:
        return
    try:
        with suppress(Exception):
            for job in workflows:
                job.task.read(job)
            with jobs.store.brief_transaction():
                for job in workflows:
                    job.task.prepare(job)
            workflows = []
    finally:
        for job in workflows:
            job.task.forget(job)


def end_together(jobs: AnyJobs, returned: Sequence[Job]) -> None:
    """End the workflows among jobs that have returned, if there are several."""
    workflows = [job for job in returned if job.run is not None]
    if len(workflows) < 2 or jobs.store.own_engine is None:
        return
    marks = [(job.run, job.run.mark()) for job in workflows]
    try:
        with suppress(Exception):
            for job in workflows:
                job.task.pack_result(job)
            with jobs.store.brief_transaction():
                for job in workflows:
                    job.task.end(job)
            for job in workflows:
                job.settled = True
            marks = []
    finally:
        for run, mark in marks:
            run.go_back(mark)
