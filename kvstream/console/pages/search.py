"""The search: a name, a unique name, or an ID leads to its page; else names are listed."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from kvstream.console.access import Role, requires
from kvstream.console.applications import stored_of
from kvstream.errors import RequestError
from kvstream.jobs.workflows.handle import is_workflow
from kvstream.remote.replies import is_key_refusal
from kvstream.types.glob import is_listed
from kvstream.types.ids import StreamID

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View

T = TypeVar("T")
FOUND = 50
_JOB = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
"""The IDs that jobs are given."""
_ENTRY = re.compile(r"\d{1,20}-\d{1,20}")
STREAMS = 40
"""Streams in which an entry is looked for by its ID."""
_SPECIAL = re.compile(rb"[*?\[\]\\]")


@requires(Role.VIEWER)
def search(view: View) -> Response:
    text = view.asked("q").strip()
    if not text:
        return view.go("streams")
    if _JOB.fullmatch(text):
        return view.go("jobs", text)
    name = text.encode("utf-8", "surrogateescape")
    if _ENTRY.fullmatch(text):
        return _entry(view, text)
    if _has(lambda: view.store.type(name) == "stream"):
        return view.go("streams", name)
    if _has(lambda: is_workflow(stored_of(view), text)):
        return view.go("jobs", name)
    if holder := _has(lambda: stored_of(view).holder_of(text)):
        return view.go("jobs", view.raw(holder))
    keys, hidden = view.listing.named(name, has_all=bool(view.asked("all")))
    if not view.listing.whole and not keys:
        pattern = _SPECIAL.sub(rb"\\\g<0>", name) + b"*"
        page = islice(view.store.key_infos(pattern), FOUND)
        keys = [each for each in page if each.type == "stream" and is_listed(each.key, name)]
    found = [each.key for each in keys[:FOUND]]
    return _list(view, text, found, len(keys), hidden=hidden)


def _list(view: View, asked: str, found: list[bytes], count: int, **more: Any) -> Response:
    values = {"entry": "", "left": 0, "hidden": 0, **more}
    return view.page("search.html", 200, values, asked=asked, found=found, count=count)


def _entry(view: View, text: str) -> Response:
    """Look for an entry by its ID, in the streams that may have it; one leads to its page."""
    eid = StreamID.parse(text)
    able = [each for each in view.listing.streams if each.length and (each.last_id or eid) >= eid]
    able.sort(key=lambda each: -(each.length or 0))
    asked = [each.key for each in able[:STREAMS]]

    def is_in(key: bytes) -> bool:
        return bool(_has(lambda: view.store.stream(key).get(eid) is not None))

    found = [each for each in asked if is_in(each)]
    if len(found) == 1:
        return view.go("streams", found[0], "entries", text)
    return _list(view, text, found, len(found), entry=text, left=len(able) - len(asked))


def _has(look: Callable[[], T]) -> T | None:
    """Return the result of ``look``; None for a key that the server refuses to this user."""
    try:
        return look()
    except RequestError as error:
        if not is_key_refusal(error):
            raise
        return None
