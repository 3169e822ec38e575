"""The list of streams, and one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvstream.console.access import Role, requires
from kvstream.console.actions.retention import texts_of
from kvstream.console.figures import groups_of, info_of
from kvstream.console.history import plots
from kvstream.console.history.plots import plots_of
from kvstream.console.history.samples import STREAM
from kvstream.console.names import name_of
from kvstream.console.values import raw_of
from kvstream.console.view import ROWS
from kvstream.errors import KVStreamError, NoSuchKey, WrongType
from kvstream.types.records import KeyInfo

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View
    from kvstream.store import Store
    from kvstream.stream import Stream

BARS = 30
"""Buckets of the histogram; each is a call."""
SPANS = {"15m": 900, "1h": 3600, "1d": 86_400, "30d": 2_592_000}
"""The spans of the histogram, in seconds."""
_SORTS = {
    "name": lambda key: key.key,
    "length": lambda key: (-(key.length or 0), key.key),
    "newest": lambda key: (-(key.last_id.ms if key.last_id else 0), key.key),
}
GROUPS = 100


class StreamRow(NamedTuple):
    """A line of the list."""

    key: KeyInfo
    lag: int | None
    pending: int | None


@requires(Role.VIEWER)
def streams(view: View) -> Response:
    listing, sort = view.listing, view.asked("sort", "name")
    asked, has_all = view.asked("q"), bool(view.asked("all"))
    found, hidden = listing.named(raw_of(asked), has_all=has_all)
    found = sorted(found, key=_SORTS.get(sort, _SORTS["name"]))
    start = _start(found, view.asked("after"), sort)
    shown = found[start : start + ROWS]
    return view.page(
        "streams.html",
        rows=[_row(view.store, each) for each in shown],
        count=len(found),
        hidden=hidden,
        asked=asked,
        sort=sort,
        sorts=list(_SORTS),
        is_whole=listing.whole,
        next=shown[-1].key if start + ROWS < len(found) else None,
    )


def _start(found: list[KeyInfo], after: str, sort: str) -> int:
    """Return the index of the first stream after one; 0 if that is gone, unless by name."""
    if not after:
        return 0
    name = name_of(after)
    if sort == "name":
        return sum(each.key <= name for each in found)
    return next((at + 1 for at, each in enumerate(found) if each.key == name), 0)


def _row(store: Store, key: KeyInfo) -> StreamRow:
    """Return a line; only streams with groups cost a call."""
    if not key.groups:
        return StreamRow(key, None, None)
    try:
        groups = groups_of(store.stream(key.key), key.groups)
    except (NoSuchKey, WrongType):
        return StreamRow(key, None, None)
    if groups is None:
        return StreamRow(key, None, None)
    lags = [each.lag for each in groups if each.lag is not None]
    return StreamRow(key, max(lags, default=None), sum(each.pending for each in groups))


@requires(Role.VIEWER)
def stream(view: View) -> Response:
    name = view.part("stream")
    found = view.store.stream(name)
    info = found.info()
    groups = groups_of(found, info.groups)
    queue = info_of(view.store, name) if groups is not None else None
    figures = {each.name: each for each in queue.groups} if queue else {}
    span = view.asked("span", "1h")
    span_s = SPANS.get(span, SPANS["1h"])
    return view.page(
        "stream.html",
        name=name,
        info=info,
        groups=[(each, figures.get(each.name)) for each in (groups or ())[:GROUPS]],
        groups_count=info.groups,
        queue=queue,
        retention=texts_of(queue.retention if queue else None),
        ttl=view.store.ttl(name),
        plots=plots_of(view, plots.STREAM, [STREAM + name]),
        bars=_bars(view, found, span_s) if queue is not None else None,
        span=span,
        spans=list(SPANS),
    )


def _bars(view: View, found: Stream, span_s: int) -> list[tuple[int, int]]:
    """Return the begin and number of entries of each bucket; counting reads no entries."""
    step = span_s * 1000 // BARS
    begin = view.now_ms - step * BARS
    try:
        return [
            (at, found.count(f"{at}-0", f"{at + step - 1}"))
            for at in range(begin, begin + step * BARS, step)
        ]
    except KVStreamError:  # an older server
        return []
