"""Plots of samples, as shapes that a template draws as SVG.

The picture is stretched to the width of the page, so text is beside it and not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kvstream.console.applications import ENDED_KEY
from kvstream.console.history.samples import SPANS, SUMS, TOTALS, Sample, Span
from kvstream.console.history.samples import STREAM as STREAM_KIND
from kvstream.types.formatting import duration, number

if TYPE_CHECKING:
    from kvstream.console.history.recorder import Histories
    from kvstream.console.listing import Listing
    from kvstream.store import Store

WIDTH, HEIGHT = 600, 60
"""The units of a picture."""
HITS = 30
"""Parts of a plot that say their time and value."""
_GREATEST = frozenset({"oldest_ms", "median_ms", "slowest_ms"})
"""Figures of which several series together have the maximum, not the sum."""
_DAY_MS = 86_400_000


class Figure(NamedTuple):
    """A figure that is plotted."""

    name: str
    title: str
    note: str = ""


QUEUE = (
    Figure("added", "Added", "in each {}"),
    Figure("waiting", "Waiting"),
    Figure("oldest_ms", "Oldest"),
    Figure("failed", "Given up", "in each {}"),
)
STREAM = QUEUE[:3]
JOBS = (
    Figure("done", "Done", "in each {}"),
    Figure("failed", "Failed", "in each {}"),
    Figure("median_ms", "Duration", "median"),
    Figure("slowest_ms", "Slowest"),
)

Points = Sequence["int | None"]


class AnyView(Protocol):
    """The request for a page, as plots see it."""

    @property
    def histories(self) -> Histories: ...
    @property
    def listing(self) -> Listing: ...
    @property
    def sees_all(self) -> bool: ...

    store: Store
    now_ms: int

    def asked(self, name: str, default: str = "") -> str: ...


class Hit(NamedTuple):
    """A part of a plot that says what it shows."""

    x: float
    width: float
    text: str


class Plot(NamedTuple):
    """One figure over time."""

    name: str
    points: Points
    """A value at the end of each step, oldest first; None where no sample was taken."""
    title: str
    note: str
    now: str
    top: str
    middle: str
    line: str
    """The path of the line; nothing is drawn where no sample was taken."""
    area: str
    hits: list[Hit]
    text: str
    """What the plot shows, for those who do not see it."""


class Plots(NamedTuple):
    """The plots of a page, over one span."""

    span: Span
    spans: Sequence[Span]
    plots: list[Plot]
    times: tuple[str, str, str]
    """Where the plots begin, their middle, and their end."""
    end_ms: int
    is_empty: bool


def plots_of(view: AnyView, figures: Sequence[Figure], fields: Iterable[bytes] | None) -> Plots:
    """Return the plots of some series together, for the span that the address names.

    ``fields`` are those of the series; None: all streams.
    """
    span = next((each for each in SPANS if each.title == view.asked("past")), SPANS[0])
    samples = view.histories.get(view.store, span, view.now_ms)
    end_ms = view.now_ms - view.now_ms % span.step_ms
    wanted = fields if view.sees_all else _visible(view.listing, fields)
    wanted = None if wanted is None else list(wanted)
    rows = [points_of(samples, wanted, each.name, span, end_ms) for each in figures]
    return Plots(
        span=span,
        spans=SPANS,
        plots=[_plot(each, row, span, end_ms) for each, row in zip(figures, rows, strict=True)],
        times=_times(span, end_ms),
        end_ms=end_ms,
        is_empty=not any(value is not None for row in rows for value in row),
    )


def _visible(listing: Listing, fields: Iterable[bytes] | None) -> list[bytes]:
    """Return the series of what a user of a server may see: samples have all streams in one."""
    if fields is None:
        return [STREAM_KIND + each.key for each in listing.streams]
    return [each for each in fields if _key_of(each) in listing.keys]


def _key_of(field: bytes) -> bytes:
    """Return a key that only those see who may see a series."""
    return field[1:] if field.startswith(STREAM_KIND) else field[1:] + ENDED_KEY


def points_of(
    samples: Sequence[Sample], fields: list[bytes] | None, name: str, span: Span, end_ms: int
) -> Points:
    """Return a figure at the end of each step, oldest first; None where no sample was taken."""
    points: list[int | None] = [None] * span.rows
    for at, sample in enumerate(samples):
        slot = span.rows - 1 - (end_ms - sample.at_ms) // span.step_ms
        if not 0 <= slot < span.rows:
            continue
        if name not in TOTALS:
            points[slot] = _together(sample, fields, name)
        elif at:
            points[slot] = _growth(samples[at - 1], sample, fields, name, span.step_ms)
    return points


def _fields(sample: Sample, fields: list[bytes] | None) -> Iterable[bytes]:
    if fields is None:
        return [each for each in sample.values if each.startswith(b"s")]
    return [each for each in fields if each in sample.values]


def _together(sample: Sample, fields: list[bytes] | None, name: str) -> int | None:
    rows = [sample.values[each] for each in _fields(sample, fields)]
    if name in SUMS:
        return sum(row.get(name, 0) for row in rows) if rows else None
    found = [row[name] for row in rows if name in row]
    if not found:
        return None
    return max(found) if name in _GREATEST else sum(found)


def _growth(
    before: Sample, sample: Sample, fields: list[bytes] | None, name: str, step_ms: int
) -> int | None:
    """Return how much a total has grown in a step; None if it is new, or the stream is."""
    grown = [
        sample.values[each][name] - before.values[each][name]
        for each in _fields(sample, fields)
        if name in sample.values[each] and name in before.values.get(each, {})
    ]
    passed_ms = sample.at_ms - before.at_ms
    if not grown or passed_ms <= 0 or min(grown) < 0:
        return None
    return round(sum(grown) * step_ms / passed_ms)


# --- drawing --------------------------------------------------------------------------------------


def _plot(figure: Figure, points: Points, span: Span, end_ms: int) -> Plot:
    show: Callable[[int], str] = duration if figure.name.endswith("_ms") else number
    known = [each for each in points if each is not None]
    most = max(known, default=0)
    top = _top(most, figure.name.endswith("_ms"))
    note = figure.note.format(span.step)
    now = show(known[-1]) if known else "-"
    text = f"{figure.title}: {now} now, at most {show(most)} in the last {span.title}"
    return Plot(
        *(figure.name, points, figure.title, note, now, show(top), show(top // 2)),
        line=_path(points, top, is_closed=False),
        area=_path(points, top, is_closed=True),
        hits=_hits(points, span, end_ms, show),
        text=text if known else f"{figure.title}: no samples in the last {span.title}",
    )


def _top(most: int, is_time: bool) -> int:
    """Return a round number that is not below the greatest value, and whose half is round."""
    if is_time:
        scale = (100, 1000, 10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000, _DAY_MS)
        found = next((each for each in scale if each >= most), None)
        return found or -(-most // _DAY_MS) * _DAY_MS
    unit = 1
    while True:
        for each in (2, 4, 10):
            if each * unit >= most:
                return each * unit
        unit *= 10


def _path(points: Points, top: int, is_closed: bool) -> str:
    """Return the path of the steps; runs of known points are drawn by themselves."""
    width, parts, at = WIDTH / len(points), [], 0
    while at < len(points):
        if points[at] is None:
            at += 1
            continue
        first = at
        drawn: list[str] = []
        while at < len(points) and (value := points[at]) is not None:
            y = round(HEIGHT - (HEIGHT - 2) * value / top, 1)
            if not drawn or drawn[-1] != f"V{y:g}":
                drawn.append(f"V{y:g}")
            drawn.append(f"H{(at + 1) * width:.6g}")
            at += 1
        start = f"{first * width:.6g}"
        if is_closed:
            parts.append(f"M{start} {HEIGHT}{''.join(drawn)}V{HEIGHT}Z")
        else:
            parts.append(f"M{start} {drawn[0][1:]}{''.join(drawn[1:])}")
    return "".join(parts)


def _hits(points: Points, span: Span, end_ms: int, show: Callable[[int], str]) -> list[Hit]:
    """Return the parts of a plot, each with its time and greatest value."""
    size = -(-len(points) // HITS)
    width = WIDTH / len(points)
    hits = []
    for at in range(0, len(points), size):
        part = [each for each in points[at : at + size] if each is not None]
        if part:
            start_ms = end_ms - (len(points) - at) * span.step_ms
            text = f"{_time(start_ms, span, True)}: {show(max(part))}"
            hits.append(Hit(round(at * width, 1), round(size * width, 1), text))
    return hits


def _times(span: Span, end_ms: int) -> tuple[str, str, str]:
    length_ms = span.rows * span.step_ms
    begin, middle, end = (_time(end_ms - length_ms * n // 2, span) for n in (2, 1, 0))
    return begin, middle, f"{end} UTC"


def _time(ms: int, span: Span, is_exact: bool = False) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    if span.rows * span.step_ms > _DAY_MS:
        return moment.strftime("%b %d %H:%M" if is_exact else "%b %d")
    return moment.strftime("%H:%M:%S" if is_exact and span.step_ms < 60_000 else "%H:%M")


__all__ = ["JOBS", "QUEUE", "STREAM", "Plots", "plots_of", "points_of"]
