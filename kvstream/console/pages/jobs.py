"""The jobs of an application: the list by status and task, one job, and its workers."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvstream.console.access import Role, requires
from kvstream.console.applications import OPEN, STATUSES, stored_of
from kvstream.console.history import plots
from kvstream.console.history.plots import plots_of
from kvstream.console.history.samples import JOBS
from kvstream.console.names import name_of
from kvstream.console.view import ROWS
from kvstream.errors import InvalidArgument, KVStreamError, NoSuchKey
from kvstream.jobs import WorkflowHandle
from kvstream.jobs.job import HEADERS
from kvstream.jobs.listing.filters import ENDED
from kvstream.types.ids import StreamID, Ticket

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View
    from kvstream.jobs import JobHandle, JobInfo
    from kvstream.jobs.stored import StoredJobs

STEPS, LINES = 200, 100
"""Steps of a workflow, and lines of its log, that a page shows: the last ones."""


@requires(Role.VIEWER)
def jobs(view: View) -> Response:
    applications = view.shown.applications
    stored = stored_of(view)
    status, task, text = (view.asked(name) for name in ("status", "task", "text"))
    page = stored.find(
        count=ROWS,
        after=view.asked("after") or None,
        status=status or None,
        task=task or None,
        tag=view.asked("tag") or None,
        since=view.asked("since") or None,
        failed_with=text or None,
    )
    counts = applications.counts(stored)
    return view.page(
        "jobs.html",
        name=stored.name,
        names=applications.names(view),
        page=page,
        counts=counts,
        plots=plots_of(view, plots.JOBS, [JOBS + view.raw(stored.name)]),
        statuses=STATUSES,
        can_cancel=status in OPEN,
        can_delete=status in ENDED,
        status=status,
        task=task,
        text=text,
        tag=view.asked("tag"),
        since=view.asked("since"),
    )


@requires(Role.VIEWER)
def job(view: View) -> Response:
    stored, job_id = stored_of(view), _id_in(view)
    handle = handle_of(view, stored, job_id)
    try:
        status = handle.status
    except InvalidArgument:  # only a workflow can have such an ID
        status = "unknown"
    ended = stored.find_ended(job_id) if status == "unknown" else None
    status = ended.status if ended else status
    if status == "unknown":
        raise NoSuchKey(
            f"no job {job_id} of {stored.name} is known: it ended longer ago than its result is "
            "kept, or another application has it"
        )
    is_workflow = isinstance(handle, WorkflowHandle)
    about = ended or stored.info(handle)
    task = about.task if about else stored.facts(handle).get("task")
    if about is None and status in ENDED and task:
        about = stored.find_ended(job_id, status, task)
    return view.page(
        "job.html",
        name=stored.name,
        id=job_id,
        status=status,
        has_ended=status in ENDED,
        error=handle.error,
        traceback=handle.traceback,
        progress=handle.progress,
        tries=[] if is_workflow else handle.tries[-STEPS:],
        lines=handle.log()[-LINES:],
        steps=handle.steps()[-STEPS:] if isinstance(handle, WorkflowHandle) else None,
        result=_result(handle) if status == "done" else None,
        about=about,
        headers=None if about is None else headers_of(view, about),
        task=task,
        is_workflow=is_workflow,
    )


def _id_in(view: View) -> str:
    """Return the ID in the path; a program may have chosen one with any characters."""
    return name_of(view.request.path_params["id"]).decode("utf-8", "surrogateescape")


def handle_of(view: View, stored: StoredJobs, job_id: str) -> JobHandle[Any]:
    """Return the handle of a job; the address may say where its message is."""
    from kvstream.jobs import JobHandle

    handle, place = stored.handle(job_id), view.asked("at")
    if not place or isinstance(handle, WorkflowHandle):
        return handle
    where = Ticket.parse(place) if place.startswith("@") else StreamID.parse(place)
    return JobHandle(stored, job_id, None, where)


def headers_of(view: View, job: JobInfo) -> dict[str, Any] | None:
    """Return the headers of a job whose message is there, or its dead letter; None without any."""
    stream, place = view.store.stream(view.raw(job.stream)), job.place
    found: Any = None
    if isinstance(place, StreamID):
        found = stream.get(place)
    elif isinstance(place, Ticket):
        found = next(iter(stream.delayed(place, 1)), None)
    raw = b"" if found is None else found.fields.get(HEADERS, b"")
    with suppress(ValueError, RecursionError):
        headers = json.loads(raw)
        return headers if isinstance(headers, dict) and headers else None
    return None


def _result(handle: JobHandle[Any]) -> Any:
    """Return what a job has returned, as text; an error if it cannot be read."""
    try:
        return handle.result(0)
    except (KVStreamError, TimeoutError) as error:
        return f"({error})"


@requires(Role.VIEWER)
def workers(view: View) -> Response:
    stored = stored_of(view)
    return view.page(
        "workers.html",
        name=stored.name,
        names=view.shown.applications.names(view),
        workers=stored.workers()[:ROWS],
    )
