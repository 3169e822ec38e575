"""What is looked up in the store for metrics: keys, streams, groups, and RocksDB's own figures.

A thread of its own does it, when somebody asks and the last sample is some seconds old. It takes
the store's lock for a millisecond at a time, so that no client waits for longer, and it waits for
nothing that a hanging loop could keep: who asks gets the last sample then.
"""

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from kvstream.engine.engine import Engine
from kvstream.errors import KVStreamError
from kvstream.meta.txn import Txn
from kvstream.operations import info, keyspace
from kvstream.operations.info import GroupFigures, StreamFigures
from kvstream.storage.batch import Family

SAMPLE_S = 5.0
"""A sample is shown for so long."""
WAIT_S = 2.0
"""So long a scrape waits for a new one; Prometheus gives up after ten seconds."""
SLICE_S = 0.001
"""The store's lock is held for so long, and a step."""
PAUSE_S = 0.001
"""The lock is not fair, and goes to those who wait for it only in a pause."""
KEYS_A_STEP = 50
KEYS_A_SAMPLE = 5000
"""Keys that one sample looks at in search of streams; the next one goes on from there."""
GROUPS_MAX = 100
"""Groups of one stream that are shown."""

SHARED_PROPERTIES = (
    *("block-cache-usage", "block-cache-capacity", "block-cache-pinned-usage"),
    *("num-running-compactions", "num-running-flushes", "background-errors"),
    *("is-write-stopped", "actual-delayed-write-rate"),
)
"""Of RocksDB: the same whichever column family is asked."""
FAMILY_PROPERTIES = (
    *("cur-size-all-mem-tables", "num-immutable-mem-table", "mem-table-flush-pending"),
    *("estimate-num-keys", "estimate-live-data-size", "estimate-table-readers-mem"),
    *("total-sst-files-size", "num-files-at-level0", "compaction-pending"),
    "estimate-pending-compaction-bytes",
)
"""Of RocksDB: of each column family."""


class StreamRow(NamedTuple):
    """One stream of a sample; the name opens with the number of its database."""

    name: bytes
    figures: StreamFigures


class GroupRow(NamedTuple):
    """One group of a sample."""

    stream: bytes
    group: bytes
    figures: GroupFigures


@dataclass(slots=True)
class Sample:
    """What the store was like at one time."""

    taken: float = field(default_factory=monotonic)
    seconds: float = 0.0
    """How long it took."""
    keys: dict[int, int] = field(default_factory=dict)
    """Of each database that has some."""
    streams: list[StreamRow] = field(default_factory=list)
    groups: list[GroupRow] = field(default_factory=list)
    streams_found: int = 0
    """All of them, as far as the walks over the keys have come."""
    groups_left_out: int = 0
    unreadable: int = 0
    """Streams and groups that are damaged."""
    shared: dict[str, int] = field(default_factory=dict)
    """RocksDB's figures by property."""
    families: dict[str, dict[str, int]] = field(default_factory=dict)
    """RocksDB's figures by property and column family."""
    log_bytes: int = 0
    store_bytes: int = 0


class Roll:
    """The streams that are shown: the first that were found, for as long as they exist."""

    def __init__(self, databases: int, most: int) -> None:
        self.names: dict[bytes, None] = {}
        self._databases = databases
        self._most = most
        self._at = (0, 0)
        """Database and generation from which the walk goes on."""
        self._seen = self._before = 0

    @property
    def found(self) -> int:
        """How many streams there are: those of the last whole walk, or of this one so far."""
        return max(self._seen, self._before, len(self.names))

    def step(self, txn: Txn) -> tuple[int, bool]:
        """Look at some keys; return how many, and whether the walk has come to its end."""
        db, cursor = self._at
        page = info.listed(txn, db, cursor, KEYS_A_STEP)
        for key in page:
            self._seen += key.is_stream
            if key.is_stream and len(self.names) < self._most:
                self.names[key.name] = None
        if len(page) == KEYS_A_STEP:
            self._at = (db, page[-1].generation + 1)
            return len(page), False
        self._at = (db + 1, 0)
        if self._at[0] < self._databases:
            return len(page), False
        self._at, self._before, self._seen = (0, 0), self._seen, 0
        return len(page), True


class Sampler:
    """Takes samples when they are asked for."""

    def __init__(self, engine: Engine, most_streams: int) -> None:
        self.failures = 0
        """Samples that could not be taken."""
        self._engine = engine
        self._roll = Roll(engine.options.databases, most_streams)
        self._txn: Txn | None = None
        self._sample, self._taken = Sample(), 0
        self._changed = threading.Condition()
        self._wanted = self._stopping = False
        self._thread = threading.Thread(target=self._work, name="kvstream-sampler", daemon=True)
        self._thread.start()

    def latest(self) -> Sample:
        """Return a sample of the last seconds; an older one where none can be had now."""
        with self._changed:
            taken = self._taken
            if taken and monotonic() - self._sample.taken < SAMPLE_S:
                return self._sample
            self._wanted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._taken != taken or self._stopping, WAIT_S)
            return self._sample

    def stop(self) -> None:
        """End the thread; before the store is closed."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(WAIT_S)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._stopping)
                if self._stopping:
                    return
            sample = self._tried()
            with self._changed:
                self._wanted = False
                if sample is not None:
                    self._sample = sample
                    self._taken += 1
                self._changed.notify_all()

    def _tried(self) -> Sample | None:
        try:
            return self._take()
        except KVStreamError:  # closed, or so damaged that not even the keys can be listed
            self.failures += 1
        except Exception:  # reported as for a thread; the next one may succeed
            self.failures += 1
            report = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            threading.excepthook(report)
        return None

    def _take(self) -> Sample:
        begun = monotonic()
        sample = Sample()
        self._run_in_slices(self._steps(sample))
        self._ask_rocksdb(sample)
        sample.taken = monotonic()
        sample.seconds = sample.taken - begun
        return sample

    # --- under the lock -------------------------------------------------------------------------

    def _run_in_slices(self, steps: Iterator[None]) -> None:
        """Run steps, each inside of a turn of the store, as many in one as fit into a slice."""
        done = False
        while not done and not self._stopping:
            self._txn = txn = self._engine.begin_turn()
            until = monotonic() + SLICE_S
            try:
                while True:
                    done = next(steps, self) is self
                    if done or monotonic() >= until:
                        break
            except BaseException:
                self._engine.undo_turn(txn)
                raise
            self._engine.commit_turn(txn)  # not waited for: nothing has been written
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
        looked, over = 0, False
        while looked < KEYS_A_SAMPLE and not over:
            count, over = self._roll.step(self._now)
            looked += max(count, 1)
            yield
        for name in list(self._roll.names):
            yield from self._stream_steps(sample, name)
        sample.streams_found = self._roll.found

    def _stream_steps(self, sample: Sample, name: bytes) -> Iterator[None]:
        """Look at a stream and its groups; damage of one leaves the others to be shown."""
        try:
            found = info.stream_figures(self._now, name)
            groups = info.group_names(self._now, name, GROUPS_MAX)
        except KVStreamError:
            sample.unreadable += 1
            return
        if found is None:
            del self._roll.names[name]
            return
        sample.streams.append(StreamRow(name, found))
        sample.groups_left_out += max(0, found.groups - len(groups))
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
        figured = info.group_figures(self._now, stream, group, counted)
        if figured is not None:
            sample.groups.append(GroupRow(stream, group, figured))

    # --- beside it ------------------------------------------------------------------------------

    def _ask_rocksdb(self, sample: Sample) -> None:
        database = self._engine.database
        for name in SHARED_PROPERTIES:
            sample.shared[name] = database.property_int(f"rocksdb.{name}", Family.MESSAGES)
        for name in FAMILY_PROPERTIES:
            sample.families[name] = {
                family.name.lower(): database.property_int(f"rocksdb.{name}", family)
                for family in Family
            }
            time.sleep(0)  # lets go of the GIL
        sample.log_bytes = database.size_on_disk(".log")
        sample.store_bytes = database.size_on_disk()
