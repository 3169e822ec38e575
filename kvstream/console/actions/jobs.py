"""Actions on jobs and their workers: retry, cancel; drain, stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvstream.console.actions.plan import Plan, name_in, words
from kvstream.console.applications import OPEN, stored_of
from kvstream.errors import InvalidArgument, NoSuchKey
from kvstream.types.formatting import plural

if TYPE_CHECKING:
    from kvstream.console.view import View
    from kvstream.jobs import JobHandle

CHANGED_MAX = 100
"""Jobs that one action changes."""


def _ids(view: View, statuses: frozenset[str]) -> tuple[list[str], str]:
    """Return the IDs of the jobs that are chosen or meet the filter, and what is left out."""
    chosen = list(dict.fromkeys(view.request.query_params.getlist("id")))
    if chosen:
        if len(chosen) > CHANGED_MAX:
            raise InvalidArgument(f"choose at most {CHANGED_MAX} jobs")
        jobs = stored_of(view)
        found = [each for each in chosen if jobs.status(jobs.handle(each)) in statuses]
        others = len(chosen) - len(found)
        return found, f" Left out for their status: {plural(others, 'job')}." if others else ""
    if not view.asked("all"):
        raise InvalidArgument("choose jobs, or all of a filter")
    asked = view.asked("status")
    if asked and asked not in statuses:
        raise InvalidArgument(f"this is not for jobs with the status {asked}")
    page = stored_of(view).find(
        count=CHANGED_MAX,
        status=[asked] if asked else sorted(statuses),
        task=view.asked("task") or None,
        tag=view.asked("tag") or None,
        since=view.asked("since") or None,
        failed_with=view.asked("text") or None,
    )
    more = f" There are more: these are the first {CHANGED_MAX}." if page.after else ""
    return [each.id for each in page.jobs], more


def _plan(
    view: View,
    action: str,
    text: str,
    statuses: frozenset[str],
    change: Callable[[JobHandle[Any]], bool],
) -> Plan:
    jobs = stored_of(view)
    ids, rest = _ids(view, statuses)

    def run(_: View) -> None:
        for each in ids:
            change(jobs.existing(each))
        view.shown.applications.forget()

    shown = [view.raw(each) for each in ids[:2]]
    end = f" ... ({len(ids)} IDs)" if len(ids) > 2 else ""
    return Plan(
        action=f"{action}-jobs",
        title=f"{action.capitalize()} {plural(len(ids), 'job')}",
        text=text.format(plural(len(ids), "job")) + rest,
        target=view.raw(jobs.name),
        command=words("jobs", action, "--name", view.raw(jobs.name), *shown) + end,
        run=run,
        back=view.url("jobs", name=jobs.name, status=view.asked("status")),
        count=len(ids),
        is_alone=True,
        facts={"ids": ids[:20]},
    )


def retry(view: View) -> Plan:
    """Plan to move failed jobs back to their queues."""
    text = "This moves {} back to the queue; each is tried as often as a new one."
    return _plan(view, "retry", text, frozenset({"failed"}), lambda handle: handle.retry())


def cancel(view: View) -> Plan:
    """Plan to cancel jobs that have not ended."""
    text = "This cancels {}. One that runs loses its lease, and its result is refused."
    return _plan(view, "cancel", text, OPEN, lambda handle: handle.cancel())


def _plan_end(view: View, action: str, text: str, states: frozenset[str]) -> Plan:
    """Plan to end a worker in one of some states, by a request that it reads."""
    jobs, name = stored_of(view), name_in(view, "worker")
    worker = next((each for each in jobs.workers() if view.raw(each.name) == name), None)
    if worker is None:
        raise NoSuchKey("no worker has this name: it has ended")
    place = f"{worker.host}, process {worker.pid}"
    return Plan(
        action=f"{action}-worker",
        title=f"{action.capitalize()} the worker on {place}",
        text=text.format(plural(len(worker.jobs), "job")),
        target=name,
        command=words("workers", action, "--name", view.raw(jobs.name), name),
        run=lambda _: worker.drain() if action == "drain" else worker.stop(),
        back=view.url("workers", name=jobs.name),
        count=int(worker.state in states),
        is_alone=True,
        facts={"jobs": [each.id for each in worker.jobs[:20]]},
    )


def drain_worker(view: View) -> Plan:
    """Plan to let a worker finish what it runs, and end."""
    text = "It finishes what it has in work ({}), takes nothing more, and ends."
    return _plan_end(view, "drain", text, frozenset({"working", "silent"}))


def stop_worker(view: View) -> Plan:
    """Plan to stop a worker, as SIGTERM does."""
    text = "Its jobs ({}) may finish within its grace; the others are given back. Then it ends."
    return _plan_end(view, "stop", text, frozenset({"working", "silent", "draining"}))
