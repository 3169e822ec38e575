"""What a sample has: the figures of the queues and of the streams with groups, and of jobs.

The cost is bounded: ``STREAMS`` calls for streams, ``ENDS`` for each of at most ``APPLICATIONS``
applications, and the listing, which all pages share.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING

from kvstream.console.applications import names_in
from kvstream.console.figures import info_of
from kvstream.console.history.samples import JOBS, STREAM, Figures, Values
from kvstream.console.listing import is_dead
from kvstream.console.values import raw_of
from kvstream.errors import NoSuchKey, WrongType
from kvstream.jobs.listing.ended import TOOK
from kvstream.jobs.listing.filters import FAILED
from kvstream.jobs.stored import StoredJobs
from kvstream.meta.policy import DEAD_SUFFIX

if TYPE_CHECKING:
    from kvstream.console.listing import Listing
    from kvstream.store import Store
    from kvstream.types.records import Entry, KeyInfo

STREAMS, DEAD, APPLICATIONS, ENDS = 20, 8, 2, 7
"""Calls for streams, streams of dead letters, applications, and streams of ended jobs of each."""
READ = 50
"""Ended jobs of a stream that are read for their durations; more are counted alone."""


def take(store: Store, listing: Listing, since_ms: int, application: str | None = None) -> Values:
    """Return the figures now; what happens is counted from ``since_ms`` on."""
    values: Values = {}
    for name in _chosen(listing):
        figures = _stream(store, name)
        if figures:
            values[STREAM + name] = figures
    for key in listing.dead[:DEAD]:
        failed = _count(store, key.key, since_ms)
        origin = values.get(STREAM + key.key.removesuffix(DEAD_SUFFIX))
        if origin is not None:
            origin["failed"] = failed
        elif failed:
            values[STREAM + key.key] = {"failed": failed}
    for own in names_in(listing, application)[:APPLICATIONS]:
        values[JOBS + raw_of(own)] = _jobs(store, own, since_ms)
    return values


def _chosen(listing: Listing) -> list[bytes]:
    """Return the streams that are sampled: those with groups, with dead letters first, by length.

    The priorities of a queue are streams of their own.
    """
    dead = {each.key.removesuffix(DEAD_SUFFIX) for each in listing.dead}

    def order(key: KeyInfo) -> tuple[bool, int, bytes]:
        return key.key not in dead, -(key.length or 0), key.key

    found = [each for each in listing.streams if each.groups and not is_dead(each.key)]
    return [each.key for each in sorted(found, key=order)[:STREAMS]]


def _stream(store: Store, name: bytes) -> Figures:
    """Return the figures of a stream; of several groups those of the worst one."""
    info = info_of(store, name)
    if info is None or not info.groups:
        return {}
    figures: Figures = {
        "waiting": max(each.ready or 0 for each in info.groups),
        "in_work": max(each.leased for each in info.groups),
        "later": info.delayed + max(each.waiting + each.held for each in info.groups),
        "oldest_ms": max(each.oldest_ms for each in info.groups),
    }
    if info.added is not None:
        figures["added"] = info.added
    return figures


def _jobs(store: Store, name: str, since_ms: int) -> Figures:
    """Return how many jobs have ended, how, and how long the successful ones took."""
    jobs = StoredJobs(store, name)
    done, failed, took = 0, 0, list[int]()
    for status, task in jobs.ended.streams(("done", FAILED), None)[:ENDS]:
        ended = raw_of(jobs.ended.key(status, task))
        entries = _newest(store, ended, since_ms)
        number = len(entries) if len(entries) < READ else _count(store, ended, since_ms)
        if status == FAILED:
            failed += number
        else:
            done += number
            took += chain.from_iterable(_took(each) for each in entries)
    failed += sum(_count(store, raw_of(each), since_ms) for each in jobs.dead_keys()[:DEAD])
    figures = {"done": done, "failed": failed}
    return figures | ({"median_ms": round(median(took)), "slowest_ms": max(took)} if took else {})


def _took(entry: Entry[bytes]) -> list[int]:
    value = entry.fields.get(TOOK, b"")
    return [int(value)] if value.isdigit() else []


def _newest(store: Store, key: bytes, since_ms: int) -> list[Entry[bytes]]:
    with suppress(NoSuchKey, WrongType):
        return store.stream(key).revrange("+", since_ms, READ)
    return []


def _count(store: Store, key: bytes, since_ms: int) -> int:
    with suppress(NoSuchKey, WrongType):
        return store.stream(key).count(since_ms)
    return 0
