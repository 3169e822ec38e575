"""The actions, with the roles that may run them: each has a page for GET and one for POST."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from kvstream.console.access import Role, requires
from kvstream.console.actions import groups, jobs, letters, put, queues, retention, rules, streams
from kvstream.console.actions.plan import Planner, run, show

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View

ACTIONS: dict[str, tuple[Role, Planner]] = {
    "redrive": (Role.OPERATOR, letters.redrive),
    "cancel-redrive": (Role.OPERATOR, letters.cancel_redrive),
    "delete-letters": (Role.ADMIN, letters.delete_letters),
    "retry-jobs": (Role.OPERATOR, jobs.retry),
    "cancel-jobs": (Role.OPERATOR, jobs.cancel),
    "delete-jobs": (Role.ADMIN, jobs.delete),
    "drain-worker": (Role.OPERATOR, jobs.drain_worker),
    "stop-worker": (Role.OPERATOR, jobs.stop_worker),
    "pause": (Role.OPERATOR, queues.pause),
    "resume": (Role.OPERATOR, queues.resume),
    "pause-all": (Role.OPERATOR, queues.pause_all),
    "resume-all": (Role.OPERATOR, queues.resume_all),
    "policy": (Role.ADMIN, rules.policy),
    "purge": (Role.ADMIN, queues.purge),
    "run-schedule": (Role.OPERATOR, queues.run_schedule),
    "delete-schedule": (Role.ADMIN, queues.delete_schedule),
    "ack": (Role.OPERATOR, groups.ack),
    "nack": (Role.OPERATOR, groups.nack),
    "claim": (Role.OPERATOR, groups.claim),
    "delete-consumer": (Role.ADMIN, groups.delete_consumer),
    "seek": (Role.OPERATOR, groups.seek),
    "put": (Role.OPERATOR, put.put),
    "add": (Role.OPERATOR, put.add),
    "retention": (Role.ADMIN, retention.retention),
    "trim": (Role.ADMIN, streams.trim),
    "delete-entries": (Role.ADMIN, streams.delete_entries),
    "delete-stream": (Role.ADMIN, streams.delete_stream),
}


def _routes(name: str, role: Role, plan: Planner) -> list[Route]:
    def shown(view: View) -> Response:
        return show(view, plan(view))

    def done(view: View) -> Response:
        return run(view, plan(view))

    path = f"/do/{name}"
    return [
        Route(path, requires(role)(shown), methods=["GET"]),
        Route(path, requires(role)(done), methods=["POST"]),
    ]


ROUTES = [route for name, (role, plan) in ACTIONS.items() for route in _routes(name, role, plan)]
