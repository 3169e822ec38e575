"""The first page: what failed, which queues need attention, which groups are behind."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from kvstream.console.access import Role, requires
from kvstream.console.failures import Failure, grouped, newest
from kvstream.console.figures import QueueRow, groups_of, queue_rows, troubled_first
from kvstream.console.history import plots
from kvstream.console.history.plots import plots_of
from kvstream.console.listing import Listing
from kvstream.console.server_info import Sections
from kvstream.errors import NoSuchKey, WrongType
from kvstream.types.records import GroupInfo

if TYPE_CHECKING:
    from starlette.responses import Response

    from kvstream.console.view import View
    from kvstream.store import Store

QUEUE_CALLS, DEAD_STREAMS, LAG_CALLS = 24, 3, 10
"""Calls for the queues, streams of dead letters that are read, and calls for the lag of groups."""
LETTERS = 100
_FIGURES = (
    "instantaneous_ops_per_sec",
    "uptime_in_seconds",
    "rdb_last_save_time",
    "slowlog_commands_count",
)
START_S = 5
"""Seconds that the start of a server takes at most: an older checkpoint is none of this process."""
SHOWN = 8
"""Lines of each table."""


@requires(Role.VIEWER)
def overview(view: View) -> Response:
    store, listing = view.store, view.listing
    queues = _queues(store, listing)
    failures = _failures(store, listing)
    return view.page(
        "overview.html",
        dead=sum(each.length or 0 for each in listing.dead),
        failures=failures[:SHOWN],
        more_failures=max(0, len(failures) - SHOWN),
        queues=queues[:SHOWN],
        more_queues=max(0, len(listing.queues) - SHOWN),
        lags=_lags(store, listing, {name for each in queues for name in each.streams}),
        facts=_facts(view.info, view.now_ms),
        plots=plots_of(view, plots.QUEUE, None),
        streams=len(listing.streams),
        is_whole=listing.whole,
        ready=sum(each.ready or 0 for each in queues),
        leased=sum(each.leased for each in queues),
        later=sum(each.waiting + each.held + each.delayed for each in queues),
        oldest_ms=max((each.oldest_ms for each in queues), default=0),
    )


def _queues(store: Store, listing: Listing) -> list[QueueRow]:
    """Return the first queues: those with dead letters, then those with many entries."""
    dead = {each.key.removesuffix(b":dead") for each in listing.dead}

    def order(name: bytes) -> tuple[bool, int]:
        keys = (listing.keys.get(each) for each in listing.priorities(name))
        return name not in dead, -sum(key.length or 0 for key in keys if key is not None)

    rows, _ = queue_rows(store, listing, sorted(listing.queues, key=order), QUEUE_CALLS)
    return troubled_first(rows)


def _failures(store: Store, listing: Listing) -> list[Failure]:
    found: list[Failure] = []
    for each in listing.dead[:DEAD_STREAMS]:
        found += grouped(each.key, newest(store, each.key, LETTERS))
    return sorted(found, key=lambda each: -each.last.id.ms)


def _lags(
    store: Store, listing: Listing, queues: Container[bytes]
) -> list[tuple[bytes, GroupInfo]]:
    """Return the groups that are furthest behind, of the longest streams that are no queues."""
    plain = [
        each for each in listing.streams if each.groups and each.length and each.key not in queues
    ]
    plain.sort(key=lambda each: -(each.length or 0))
    rows: list[tuple[bytes, GroupInfo]] = []
    for each in plain[:LAG_CALLS]:
        try:
            groups = groups_of(store.stream(each.key), each.groups) or []
        except (NoSuchKey, WrongType):
            continue
        rows += [(each.key, group) for group in groups if group.lag or group.pending]
    return sorted(rows, key=lambda row: -(row[1].lag or 0))[:SHOWN]


def _facts(sections: Sections, now_ms: int) -> dict[str, Any]:
    """Return what is known of the place: commands, disk, uptime, checkpoint, slow requests."""
    flat = {name: value for part in sections.values() for name, value in part.items()}
    rate, uptime, saved, slow = (
        None if flat.get(name) is None else int(float(flat[name])) for name in _FIGURES
    )
    begun = None if uptime is None else now_ms // 1000 - uptime
    # a server takes its start for the time of the last checkpoint, until it makes one
    is_saved = begun is not None and saved is not None and saved > begun + START_S
    return {
        "rate": rate,
        "size": flat.get("size_on_disk") or flat.get("aof_current_size"),
        "uptime_s": uptime,
        "checkpoint": saved * 1000 if saved is not None and is_saved else None,
        "slow": slow,
    }
