"""The search: an exact name or ID leads to its page, else names that begin so are listed."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from kvstream.console.access import Role, requires
from kvstream.console.applications import stored_of
from kvstream.errors import RequestError
from kvstream.jobs.workflows.handle import is_workflow
from kvstream.remote.replies import is_key_refusal

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
    if _has(lambda: view.store.type(name) == "stream"):
        return view.go("streams", name)
    if _has(lambda: is_workflow(stored_of(view), text)):
        return view.go("jobs", name)
    found = [each for each in view.listing.keys if name in each]
    if not view.listing.whole and not found:
        pattern = _SPECIAL.sub(rb"\\\g<0>", name) + b"*"
        found = [each.key for each in islice(view.store.key_infos(pattern), FOUND)]
    return view.page("search.html", asked=text, found=found[:FOUND], count=len(found))


def _has(look: Callable[[], bool]) -> bool:
    """Return what a look says; False for a key that the server refuses to this user."""
    try:
        return look()
    except RequestError as error:
        if not is_key_refusal(error):
            raise
        return False
