"""Actions on jobs and their workers: retry, cancel, delete; drain, stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvstream.console.actions.plan import Plan, name_in
from kvstream.console.applications import OPEN, stored_of
from kvstream.console.command_lines import Part
from kvstream.console.values import whole
from kvstream.errors import InvalidArgument, NoSuchKey
from kvstream.jobs.listing.filters import ENDED
from kvstream.types.formatting import plural, time_of

if TYPE_CHECKING:
    from kvstream.console.view import View
    from kvstream.jobs import JobHandle
    from kvstream.jobs.stored import StoredJobs

CHOSEN_MAX, CHANGED_MAX = 100, 500
"""Jobs that one action changes: chosen ones, and those of a filter."""


def _plan(
    view: View,
    action: str,
    text: str,
    statuses: frozenset[str],
    change: Callable[[JobHandle[Any]], bool] | None,
    **more: Any,
) -> Plan:
    """Plan to change the jobs that are chosen, or those of the filter."""
    if view.asked("rate"):
        raise InvalidArgument(
            f"the console changes jobs at no rate: use kvstream jobs {action} --rate, or redrive "
            "the dead letters of the queue at one"
        )
    jobs, name = stored_of(view), view.asked("name")
    chosen = list(dict.fromkeys(view.request.query_params.getlist("id")))
    criteria = {} if chosen else _criteria(view, statuses)
    if chosen and change is not None:
        ids, rest = _chosen(jobs, chosen, statuses)
    elif criteria:
        page = jobs.find(count=CHANGED_MAX, **criteria)
        ids = [each.id for each in page.jobs]
        rest = f" There are more: these are the first {CHANGED_MAX}." if page.after else ""
    else:
        raise InvalidArgument("choose jobs, or all of a filter")

    def run(_: View) -> int:
        view.shown.applications.forget()
        if chosen:
            return sum(bool(change(jobs.existing(each))) for each in ids) if change else 0
        pages = jobs.changes(action, most=CHANGED_MAX, **criteria)
        return sum(len(page.done) for page in pages)

    return Plan(
        action=f"{action}-jobs",
        title=f"{action.capitalize()} {plural(len(ids), 'job')}",
        text=text.format(plural(len(ids), "job")) + rest,
        target=view.raw(jobs.name),
        command=_command(view, action, jobs.name, ids if chosen else None, criteria),
        run=run,
        back=view.url("jobs", name=name, status=view.asked("status")),
        count=len(ids),
        is_alone=True,
        keep={} if chosen else {"upto": view.asked("upto") or view.now_ms},
        facts={"ids": ids[:20]},
        **more,
    )


def _criteria(view: View, statuses: frozenset[str]) -> dict[str, Any]:
    """Return the filter of the address; what arrives after its preview does not meet it."""
    if not view.asked("all"):
        return {}
    asked = view.asked("status")
    if asked and asked not in statuses:
        raise InvalidArgument(f"this is not for jobs with the status {asked}")
    upto = whole(view.asked("upto")) or view.now_ms
    return {
        "status": [asked] if asked else sorted(statuses),
        "task": view.asked("task") or None,
        "tag": view.asked("tag") or None,
        "since": view.asked("since") or None,
        "failed_with": view.asked("text") or None,
        # delayed jobs have no time at which they came into their queue
        "until": None if asked == "scheduled" else time_of(upto),
    }


def _chosen(jobs: StoredJobs, chosen: list[str], statuses: frozenset[str]) -> tuple[list[str], str]:
    """Return the chosen jobs that can be changed, and a sentence on the others."""
    if len(chosen) > CHOSEN_MAX:
        raise InvalidArgument(f"choose at most {CHOSEN_MAX} jobs")
    found = [each for each in chosen if jobs.status(jobs.handle(each)) in statuses]
    others = len(chosen) - len(found)
    return found, f" Left out for their status: {plural(others, 'job')}." if others else ""


def _command(
    view: View, action: str, name: str, ids: list[str] | None, criteria: dict[str, Any]
) -> str:
    """Return the command that does the same."""
    options: list[Part] = [("--name", view.raw(name))]
    if ids is not None:
        return view.command("jobs", action, *options, *map(view.raw, ids))
    for each in criteria["status"] if action != "retry" else []:
        options.append(("--status", view.raw(each)))
    for option, value in criteria.items():
        if value is not None and option != "status":
            options.append((f"--{option.replace('_', '-')}", view.raw(str(value))))
    return view.command("jobs", action, *options, f"--count {CHANGED_MAX}")


def retry(view: View) -> Plan:
    """Plan to move failed jobs back to their queues."""
    text = "This moves {} back to the queue; each is tried as often as a new one."
    return _plan(view, "retry", text, frozenset({"failed"}), lambda handle: handle.retry())


def cancel(view: View) -> Plan:
    """Plan to cancel jobs that have not ended."""
    text = "This cancels {}. One that runs loses its lease, and its result is refused."
    return _plan(view, "cancel", text, OPEN, lambda handle: handle.cancel())


def delete(view: View) -> Plan:
    """Plan to delete ended jobs, with all that is kept of them."""
    text = "This deletes {} for good, with results, notes and dead letters."
    typed = view.raw(stored_of(view).name)
    return _plan(view, "delete", text, frozenset(ENDED), None, typed=typed)


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
        command=view.command("workers", action, ("--name", view.raw(jobs.name)), name),
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
