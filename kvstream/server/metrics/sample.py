"""Samples of the store for metrics: keys, streams, groups, and RocksDB's properties.

A thread of its own takes a sample when a scrape finds that the last one is too old. It holds the
lock of the store for a millisecond at a time, so clients wait no longer than that. If it takes too
long, because the loop hangs, the scrape gets the last sample.
"""

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstream.engine.engine import Engine
from kvstream.errors import KVStreamError
from kvstream.meta.txn import Txn
from kvstream.operations import info, keyspace
from kvstream.operations.info import GroupFigures, StreamFigures
from kvstream.operations.queues.workers import (
    RegistryScan,
    WorkersFigures,
    add_worker,
    latest_beats,
)
from kvstream.storage.batch import Family
from kvstream.types.clock import monotonic


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of samples and pages; times are in seconds."""

    sample_s: float = 5.0
    """The age at which a sample is replaced."""
    wait_s: float = 2.0
    """How long a scrape waits for a new sample; Prometheus gives up after ten seconds."""
    slice_s: float = 0.001
    """How long the lock of the store is held, plus one step."""
    keys_per_sample: int = 5000
    """Keys that one sample scans for streams; the next one continues there."""
    request_s: float = 10.0
    """Time of a client from its connection to the end of the response; then it is disconnected."""
    hung_s: float = 10.0
    """A loop that has not run for this time counts as hanging."""


LIMITS = Limits()
PAUSE_S = 0.001
"""Pause between two slices: the lock is not fair, so waiting threads get it only then."""
KEYS_PER_STEP = 50
GROUPS_MAX = 100
"""Groups of one stream that have metrics."""

SHARED_PROPERTIES = (
    *("block-cache-usage", "block-cache-capacity", "block-cache-pinned-usage"),
    *("num-running-compactions", "num-running-flushes", "background-errors"),
    *("is-write-stopped", "actual-delayed-write-rate"),
)
"""Properties of RocksDB as a whole."""
FAMILY_PROPERTIES = (
    *("cur-size-all-mem-tables", "num-immutable-mem-table", "mem-table-flush-pending"),
    *("estimate-num-keys", "estimate-live-data-size", "estimate-table-readers-mem"),
    *("total-sst-files-size", "num-files-at-level0", "compaction-pending"),
    "estimate-pending-compaction-bytes",
)
"""Properties of RocksDB for each column family."""


class StreamRow(NamedTuple):
    """One stream of a sample; its name starts with the number of its database."""

    name: bytes
    figures: StreamFigures


class GroupRow(NamedTuple):
    """One group of a sample."""

    stream: bytes
    group: bytes
    figures: GroupFigures


@dataclass(slots=True)
class Sample:
    """The state of the store at one time."""

    taken: float = field(default_factory=monotonic)
    seconds: float = 0.0
    """The time it took."""
    keys: dict[int, int] = field(default_factory=dict)
    """Keys of each database that is not empty."""
    streams: list[StreamRow] = field(default_factory=list)
    groups: list[GroupRow] = field(default_factory=list)
    streams_found: int = 0
    """All streams that the scans of the keys have found."""
    groups_left_out: int = 0
    unreadable: int = 0
    """Damaged streams and groups."""
    shared: dict[str, int] = field(default_factory=dict)
    """Properties of RocksDB."""
    families: dict[str, dict[str, int]] = field(default_factory=dict)
    """Properties of RocksDB, by column family."""
    workers: list[tuple[bytes, WorkersFigures]] = field(default_factory=list)
    """The figures of each registry of workers, by its name."""
    log_bytes: int = 0
    store_bytes: int = 0


class SampledStreams:
    """The streams that have metrics: the first that are found, as long as they exist."""

    def __init__(self, databases: int, most: int) -> None:
        self.names: dict[bytes, None] = {}
        self.registries = RegistryScan(databases)
        """The registries of workers among them, however many streams have metrics."""
        self._databases = databases
        self._most = most
        self._at = (0, 0)
        """The database and generation at which the scan continues."""
        self._seen = self._before = 0

    @property
    def found(self) -> int:
        """The number of streams: of the last complete scan, or of this one so far."""
        return max(self._seen, self._before, len(self.names))

    def step(self, txn: Txn) -> tuple[int, bool]:
        """Scan some keys; return their number, and whether the scan is complete."""
        db, cursor = self._at
        page = info.list_keys(txn, db, cursor, KEYS_PER_STEP)
        for key in page:
            self._seen += key.is_stream
            if key.is_stream:
                self.registries.note(key.name)
            if key.is_stream and len(self.names) < self._most:
                self.names[key.name] = None
        if len(page) == KEYS_PER_STEP:
            self._at = (db, page[-1].generation + 1)
            return len(page), False
        self._at = (db + 1, 0)
        if self._at[0] < self._databases:
            return len(page), False
        self._at, self._before, self._seen = (0, 0), self._seen, 0
        return len(page), True


class Sampler:
    """Takes samples on demand, in a thread."""

    def __init__(self, engine: Engine, most_streams: int, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.failures = 0
        """Samples that failed."""
        self._engine = engine
        self._streams = SampledStreams(engine.options.databases, most_streams)
        self._txn: Txn | None = None
        self._sample, self._taken = Sample(), 0
        self._changed = threading.Condition()
        self._wanted = self._stopping = False
        self._thread = threading.Thread(target=self._work, name="kvstream-sampler", daemon=True)
        self._thread.start()

    def latest(self) -> Sample:
        """Return a recent sample; an older one if no new one is ready in time."""
        with self._changed:
            taken, limits = self._taken, self.limits
            if taken and monotonic() - self._sample.taken < limits.sample_s:
                return self._sample
            self._wanted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._taken != taken or self._stopping, limits.wait_s)
            return self._sample

    def stop(self) -> None:
        """End the thread; call it before the store is closed."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(self.limits.wait_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._stopping)
                if self._stopping:
                    return
            sample = self._try_take()
            with self._changed:
                self._wanted = False
                if sample is not None:
                    self._sample = sample
                    self._taken += 1
                self._changed.notify_all()

    def _try_take(self) -> Sample | None:
        try:
            return self._take()
        except KVStreamError:  # the store is closed, or its keys are damaged
            self.failures += 1
        except Exception:  # report it; the next sample may succeed
            self.failures += 1
            report = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            threading.excepthook(report)
        return None

    def _take(self) -> Sample:
        begun = monotonic()
        sample = Sample()
        self._run_in_slices(self._steps(sample))
        self._read_properties(sample)
        sample.taken = monotonic()
        sample.seconds = sample.taken - begun
        return sample

    # --- under the lock -------------------------------------------------------------------------

    def _run_in_slices(self, steps: Iterator[None]) -> None:
        """Run the steps in turns of the store; a turn has the steps that fit into a slice."""
        done = False
        while not done and not self._stopping:
            self._txn = txn = self._engine.begin_turn()
            until = monotonic() + self.limits.slice_s
            try:
                while True:
                    done = next(steps, self) is self
                    if done or monotonic() >= until:
                        break
            except BaseException:
                self._engine.undo_turn(txn)
                raise
            self._engine.commit_turn(txn)  # no wait for an fsync: nothing was written
            time.sleep(PAUSE_S)

    @property
    def _now(self) -> Txn:
        """The transaction of this slice."""
        assert self._txn is not None
        return self._txn

    def _steps(self, sample: Sample) -> Iterator[None]:
        for db in range(self._engine.options.databases):
            count = keyspace.size(self._now, db)
            if count:
                sample.keys[db] = count
        yield
        scanned, complete = 0, False
        while scanned < self.limits.keys_per_sample and not complete:
            count, complete = self._streams.step(self._now)
            scanned += max(count, 1)
            yield
        for name in list(self._streams.names):
            yield from self._stream_steps(sample, name)
        sample.streams_found = self._streams.found
        for name in list(self._streams.registries.names):
            yield from self._workers_steps(sample, name)

    def _workers_steps(self, sample: Sample, name: bytes) -> Iterator[None]:
        """Sample the workers of one registry."""
        beats, figures = latest_beats(self._now, name), WorkersFigures()
        if not beats:
            self._streams.registries.names.pop(name, None)
        yield
        for beat in beats:
            add_worker(figures, beat, self._now.now_ms)
            yield
        if figures.states:
            sample.workers.append((name, figures))

    def _stream_steps(self, sample: Sample, name: bytes) -> Iterator[None]:
        """Sample a stream and its groups; a damaged one is counted and skipped."""
        try:
            figures = info.stream_figures(self._now, name)
            groups = info.group_names(self._now, name, GROUPS_MAX)
        except KVStreamError:
            sample.unreadable += 1
            return
        if figures is None:
            del self._streams.names[name]
            return
        sample.streams.append(StreamRow(name, figures))
        sample.groups_left_out += max(0, figures.groups - len(groups))
        yield
        for group in groups:
            try:
                yield from self._group_steps(sample, name, group)
            except KVStreamError:
                sample.unreadable += 1

    def _group_steps(self, sample: Sample, stream: bytes, group: bytes) -> Iterator[None]:
        counted = info.Counted()
        while counted.following is not None:
            counted = info.count_pending(self._now, stream, group, counted)
            yield
        figures = info.group_figures(self._now, stream, group, counted)
        if figures is not None:
            sample.groups.append(GroupRow(stream, group, figures))

    # --- without the lock -----------------------------------------------------------------------

    def _read_properties(self, sample: Sample) -> None:
        database = self._engine.database
        for name in SHARED_PROPERTIES:
            sample.shared[name] = database.property_int(f"rocksdb.{name}", Family.MESSAGES)
        for name in FAMILY_PROPERTIES:
            sample.families[name] = {
                family.name.lower(): database.property_int(f"rocksdb.{name}", family)
                for family in Family
            }
            time.sleep(0)  # releases the GIL
        sample.log_bytes = database.size_on_disk(".log")
        sample.store_bytes = database.size_on_disk()
