"""The search: an exact name or ID leads to its page, else names that begin so are listed."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from kvstream.console.access import Role, requires
from kvstream.console.applications import stored_of
from kvstream.jobs.workflows.handle import is_workflow

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View

FOUND = 50
_JOB = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
"""The IDs that jobs are given."""
_SPECIAL = re.compile(rb"[*?\[\]\\]")


@requires(Role.VIEWER)
def search(view: View) -> Response:
    text = view.asked("q").strip()
    if not text:
        return view.go("streams")
    if _JOB.fullmatch(text):
        return view.go("jobs", text)
    name = text.encode("utf-8", "surrogateescape")
    if view.store.type(name) == "stream":
        return view.go("streams", name)
    if is_workflow(stored_of(view), text):
        return view.go("jobs", name)
    found = [each for each in view.listing.keys if name in each]
    if not view.listing.whole and not found:
        pattern = _SPECIAL.sub(rb"\\\g<0>", name) + b"*"
        found = list(islice(view.store.scan_keys(pattern), FOUND))
    return view.page("search.html", asked=text, found=found[:FOUND], count=len(found))
