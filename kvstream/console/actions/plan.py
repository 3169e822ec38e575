"""A plan of an action: what it will do, and to how many messages.

GET shows the plan, POST makes it again and runs it: the preview and the action have one rule, and
both read the same query. What arrives after the preview is left out: ``keep`` adds the time of the
preview to the query of the form. Each action leaves an entry in the stream ``kvstream:audit``, in
the same commit. Some take many commits (a purge, changes of jobs): they leave one with the state
"begun" before, and one with what was really done, or the error, after it. A redrive of all letters
is begun in the commit of its entry, and goes on by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kvstream.errors import Conflict, InvalidArgument, KVStreamError, NoSuchKey, RequestError
from kvstream.types.formatting import printable
from kvstream.types.ids import StreamID

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View
    from kvstream.stream import Stream

AUDIT = b"kvstream:audit"
AUDIT_MAX = 100_000
"""Entries that the audit keeps."""
CHECKED = 50
"""Chosen entries that are looked at: as many as a page shows."""
IDS_MAX = 200
"""Messages that one action names."""


class Input(NamedTuple):
    """A field of the form of an action."""

    name: str
    title: str
    value: str = ""
    is_required: bool = True
    is_long: bool = False
    """It has several lines."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an action will do."""

    action: str
    title: str
    text: str
    """A sentence with the number of messages, which the page shows before the button."""
    target: bytes
    """The stream, or the ID of the job."""
    command: str
    """The same on the command line; empty if there is no such command."""
    run: Callable[[View], object]
    """Do it; an action of many commits returns how many messages have changed."""
    back: str
    """The page to which the browser goes afterwards."""
    count: int = 1
    """Messages that change; with 0 there is no button."""
    typed: bytes | None = None
    """A name that must be typed, for what cannot be undone."""
    inputs: Sequence[Input] = ()
    has_values: bool = False
    """The inputs are values of a message, which the audit does not repeat."""
    is_alone: bool = False
    """It takes many commits, or cannot be a part of a transaction on a server."""
    goes_on: bool = False
    """Its commit has only begun it, and says so in the audit."""
    keep: Mapping[str, Any] = field(default_factory=dict)
    """What the form adds to the query of the preview."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the audit notes besides who, what and how many."""


Planner: TypeAlias = "Callable[[View], Plan]"


def show(view: View, plan: Plan) -> Response:
    """Show a plan, with its button."""
    return view.page("plan.html", plan=plan, wrong=False)


def run(view: View, plan: Plan) -> Response:
    """Run a plan, and leave its entry in the audit."""
    if plan.typed is not None and view.given("typed") != printable(plan.typed):
        return view.page("plan.html", 400, plan=plan, wrong=True)
    if not plan.count:
        raise InvalidArgument("there is nothing to do any more")
    if plan.is_alone:
        _run_alone(view, plan)
    else:
        _run_in_one_commit(view, plan)
    view.shown.listings.forget()
    return view.to(plan.back)


def _run_in_one_commit(view: View, plan: Plan) -> None:
    """Run an action in the commit of its entry.

    A server carries out the other commands of a transaction of which it refuses one, so the entry
    may be there: another one says that the action has failed.
    """
    is_sent = False
    try:
        with view.store.transaction():
            plan.run(view)
            _audit_plan(view, plan, **({"state": "begun"} if plan.goes_on else {}))
            is_sent = True
    except RequestError as error:
        if is_sent and not isinstance(error, Conflict):
            with suppress(KVStreamError):
                _audit_plan(view, plan, state="failed", error=str(error)[:500])
        raise


def _run_alone(view: View, plan: Plan) -> None:
    """Run an action of many commits between two entries of the audit."""
    _audit_plan(view, plan, state="begun")
    view.has_begun = True
    try:
        changed = plan.run(view)
    except Exception as error:
        with suppress(KVStreamError):  # the store is away: the entry before says "begun"
            _audit_plan(view, plan, state="failed", error=str(error)[:500])
        raise
    count = changed if type(changed) is int else plan.count
    _audit_plan(view, replace(plan, count=count), state="done")


def _audit_plan(view: View, plan: Plan, **more: str) -> None:
    """Add the entry of an action."""
    given = {} if plan.has_values else {each.name: view.given(each.name) for each in plan.inputs}
    audit(view, plan.action, plan.target, plan.count, {**plan.facts, **given}, **more)


def audit(
    view: View, what: str, target: bytes, count: int, facts: Mapping[str, Any], **more: str
) -> None:
    """Add an entry to the audit: who, from where, what, how many."""
    client = view.request.client
    entry: dict[str, str | bytes] = {
        "who": view.user.name,
        "from": "" if client is None else client.host,
        "what": what,
        "target": target,
        "count": str(count),
        "facts": json.dumps(facts, default=str)[:2000],
        **more,
    }
    view.store.stream(AUDIT).add(entry, maxlen=AUDIT_MAX, approximate=True)


def ids_of(view: View) -> list[StreamID]:
    """Return the IDs that a form has chosen; InvalidArgument for none, or too many."""
    chosen = view.request.query_params.getlist("id")
    if not 0 < len(chosen) <= IDS_MAX:
        raise InvalidArgument(f"choose 1 to {IDS_MAX} messages, not {len(chosen)}")
    return [StreamID.parse(each) for each in dict.fromkeys(chosen)]


def name_in(view: View, name: str) -> bytes:
    """Return a name of the query; NoSuchKey if it is missing.

    The audit is refused, whatever the action is: what was done stays known.
    """
    if not view.asked(name):
        raise NoSuchKey(f"the address names no {name}")
    found = view.name(name)
    if found == AUDIT:
        raise InvalidArgument("the audit of the console is not changed by the console")
    return found


def still_there(stream: Stream, chosen: Sequence[StreamID]) -> list[StreamID]:
    """Return the chosen entries, of the first ``CHECKED`` those that are there."""
    first, rest = chosen[:CHECKED], chosen[CHECKED:]
    return [*(each for each in first if stream.get(each) is not None), *rest]
