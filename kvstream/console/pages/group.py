"""A group of a stream: its pending entries by age and owner, and its consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstream.console.access import Role, requires
from kvstream.console.figures import CONSUMERS_READ, info_of
from kvstream.console.names import name_of
from kvstream.console.view import ROWS

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View
    from kvstream.types.records import PendingEntry

SAMPLE = 300
"""The pending entries with the lowest IDs, whose ages are counted."""
CONSUMERS = 100
AGES = (
    ("under 10 s", 10_000),
    ("10 s to 1 m", 60_000),
    ("1 m to 10 m", 600_000),
    ("10 m to 1 h", 3_600_000),
    ("1 h to 1 d", 86_400_000),
    ("over 1 d", None),
)


@requires(Role.VIEWER)
def group(view: View) -> Response:
    name, group_name = view.part("stream"), view.part("group")
    found = view.store.stream(name).group(group_name)
    info = found.info()
    queue = info_of(view.store, name, 1, group_name)
    figures = queue.groups[0] if queue and queue.groups else None
    consumers = found.consumers() if info.consumers <= CONSUMERS_READ else []
    consumers.sort(key=lambda each: (-each.pending, each.idle))
    chosen, after = view.asked("consumer"), view.asked("after")
    consumer = name_of(chosen) if chosen else None
    is_filtered = bool(chosen or after)
    sample = found.pending_range("-", "+", SAMPLE)
    shown = sample[: ROWS + 1]
    if is_filtered:
        shown = found.pending_range(f"({after}" if after else "-", "+", ROWS + 1, consumer=consumer)
    return view.page(
        "group.html",
        name=name,
        group=info,
        figures=figures,
        policy=figures.policy if figures else None,
        consumers=consumers[:CONSUMERS],
        consumers_count=info.consumers,
        ages=ages_of(sample),
        sampled=len(sample),
        rows=shown[:ROWS],
        next=shown[ROWS - 1].id if len(shown) > ROWS else None,
        chosen=consumer,
    )


def ages_of(pending: list[PendingEntry]) -> list[tuple[str, int]]:
    """Return how many entries are pending for how long."""
    counts = [0] * len(AGES)
    for each in pending:
        idle = each.idle_ms or 0
        at = next(at for at, (_, end) in enumerate(AGES) if end is None or idle < end)
        counts[at] += 1
    return [(title, count) for (title, _), count in zip(AGES, counts, strict=True)]
