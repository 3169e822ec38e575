"""huey on a kvstream store: ``KVStreamHuey``, and its storage.

::

    from kvstream.adapters.huey import KVStreamHuey

    huey = KVStreamHuey("app", place="data")  # or the URL of a server

The queue is a stream for each priority. A task is pending with its worker until it was executed, so
that the task of a killed worker is executed again. The schedule is a stream, of which the scheduler
keeps the times in memory; a task that is due goes from there to the queue in one commit. Results,
locks and counters are strings.
"""

import heapq
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from math import isfinite
from typing import Any

from huey.api import Huey
from huey.constants import EmptyData
from huey.consumer import Consumer, Scheduler
from huey.signals import SIGNAL_INTERRUPTED
from huey.storage import BaseStorage

from kvstream.adapters.places import Place, Strings
from kvstream.adapters.tasks import LEASE_S, Ref, Tasks
from kvstream.errors import Conflict
from kvstream.stream import Stream
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.records import Entry
from kvstream.types.urls import AnyPath

_log = logging.getLogger(__name__)
__all__ = ["KVStreamHuey", "KVStreamStorage"]


def __dir__() -> list[str]:
    return __all__


class KVStreamStorage(BaseStorage):
    """The storage of huey, which deletes a task when it is read; with KVStreamHuey when it is done.

    ``lease`` is how many seconds a killed worker's task waits, ``read_timeout`` how long a read
    waits for a task, and ``expire_time`` how long results are kept (None: for ever).
    """

    blocking = True
    priority = True

    def __init__(
        self,
        name: str = "huey",
        place: AnyPath = "huey",
        *,
        lease: float = LEASE_S,
        read_timeout: float = 1.0,
        expire_time: float | None = None,
        late: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(name)
        self.place = Place(place, **options)
        self.tasks = Tasks(lambda: self.place.store, lease)
        self._queue = f"huey:{name}:queue"
        self.schedule = Schedule(self.place, f"huey:{name}:schedule")
        self._data = Strings(self.place, f"huey:{name}:data:")
        self._counters = Strings(self.place, f"huey:{name}:counter:")
        self._read_timeout, self._expire_time, self._late = read_timeout, expire_time, late
        self._read = threading.local()

    def close(self) -> None:
        self.tasks.close()
        self.place.close()

    # --- the queue ------------------------------------------------------------------------------

    def enqueue(self, data: bytes, priority: float | None = None) -> None:
        self.tasks.put(self._queue, data, priority or 0)

    def prepare(self, priority: float | None) -> None:
        """Make the queue of a priority, before a transaction in which a task is enqueued."""
        self.tasks.stream(self._queue, priority or 0)

    def dequeue(self) -> bytes | None:
        tasks = self.tasks.get(self._queue, block=self._read_timeout)
        if not tasks:
            return None
        if not self._late:
            self.tasks.ack(tasks[0].ref)
        self._read.ref = tasks[0].ref
        return tasks[0].body

    def last_read(self) -> Ref:
        """Return the place of the task that this thread has read last."""
        ref: Ref = self._read.ref
        return ref

    def queue_size(self) -> int:
        return self.tasks.size(self._queue)

    def enqueued_items(self, limit: int | None = None) -> list[bytes]:
        return self.tasks.items(self._queue, limit)

    def flush_queue(self) -> None:
        self.tasks.purge(self._queue)

    # --- the schedule ---------------------------------------------------------------------------

    def add_to_schedule(self, data: bytes, ts: datetime) -> None:
        self.schedule.add(data, ts)

    def read_schedule(self, ts: datetime) -> list[bytes]:
        due = self.schedule.due(ts)
        return [data for eid, data in due if self.schedule.stream.delete(eid)]

    def schedule_size(self) -> int:
        return len(self.schedule.stream)

    def scheduled_items(self, limit: int | None = None) -> list[bytes]:
        return self.schedule.items()[:limit]

    def flush_schedule(self) -> None:
        self.schedule.stream.trim(maxlen=0)

    # --- results, locks, revocations ------------------------------------------------------------

    def put_data(self, key: str | bytes, value: bytes, is_result: bool = False) -> None:
        self._data.put(key, value, self._expire_time if is_result else None)

    def peek_data(self, key: str | bytes) -> Any:
        value = self._data.get(key)
        return EmptyData if value is None else value

    def pop_data(self, key: str | bytes) -> Any:
        value = self._data.take(key)
        return EmptyData if value is None else value

    def delete_data(self, key: str | bytes) -> bool:
        return bool(self._data.delete(key))

    def has_data_for_key(self, key: str | bytes) -> bool:
        return self._data.exists(key)

    def put_if_empty(self, key: str | bytes, value: bytes, ttl: float | None = None) -> bool:
        return self._data.put_new(key, value, ttl)

    def result_store_size(self) -> int:
        return len(self._data.keys())

    def result_items(self) -> dict[str, bytes]:
        return {key.decode(): value for key, value in self._data.items()}

    def flush_results(self) -> None:
        self._data.clear()

    def incr(self, key: str | bytes, amount: int = 1) -> int:
        return self._counters.add(key, amount)

    def delete_counter(self, key: str | bytes) -> None:
        self._counters.delete(key)

    def flush_counters(self) -> None:
        self._counters.clear()


class Schedule:
    """Tasks with the times at which they are due: a stream, and its times in memory."""

    def __init__(self, place: Place, key: str) -> None:
        self._place, self._key = place, key
        self._times: list[tuple[float, StreamID]] = []
        """A heap of the times, and the entries' IDs."""
        self._seen = MIN_ID

    @property
    def stream(self) -> Stream:
        return self._place.store.stream(self._key)

    def add(self, data: bytes, ts: datetime) -> None:
        self.stream.add({"at": repr(ts.timestamp()), "task": data})

    def due(self, ts: datetime) -> Iterator[tuple[StreamID, bytes]]:
        """Yield the tasks that are due, the soonest first; they stay in the stream."""
        stream, now = self.stream, ts.timestamp()
        for entry in stream.scan(f"({self._seen}"):
            self._seen = entry.id
            if (at := _at(entry)) is None:
                _log.warning("the entry %s of %s is no scheduled task", entry.id, self._key)
            else:
                heapq.heappush(self._times, (at, entry.id))
        while self._times and self._times[0][0] <= now:
            eid = self._times[0][1]
            found = stream.get(eid)
            if found is not None:  # nobody else was faster
                yield eid, found.fields[b"task"]
            heapq.heappop(self._times)  # only now: what fails is due again

    def items(self) -> list[bytes]:
        """Return all tasks, the soonest first."""
        timed = [(at, each.id, each) for each in self.stream if (at := _at(each)) is not None]
        return [entry.fields[b"task"] for _, _, entry in sorted(timed)]


def _at(entry: Entry) -> float | None:
    """Return when a task is due; None for an entry of another program."""
    try:
        at = float(entry.fields[b"at"])
    except (KeyError, ValueError):
        return None
    return at if isfinite(at) and b"task" in entry.fields else None


class KVStreamHuey(Huey):
    """huey on a store: a task is done when it was executed, not when it was read.

    The arguments are those of Huey and of KVStreamStorage.
    """

    storage_class = KVStreamStorage

    def __init__(self, name: str = "huey", place: AnyPath = "huey", **options: Any) -> None:
        super().__init__(name, place=place, **{"late": True, **options})

    def create_consumer(self, **options: Any) -> Consumer:
        return _Consumer(self, **options)

    def dequeue(self) -> Any:
        storage = self.storage
        data = storage.dequeue()
        if data is None:
            return None
        if not isinstance(storage, KVStreamStorage):  # the memory of the immediate mode
            return self.deserialize_task(data)
        ref = storage.last_read()
        try:
            task = self.deserialize_task(data)
        except BaseException:
            storage.tasks.ack(ref)
            raise
        task.kvstream_ref = ref
        return task

    def execute(self, task: Any, timestamp: datetime | None = None) -> Any:
        ref = task.__dict__.pop("kvstream_ref", None)
        if ref is None:
            return super().execute(task, timestamp)
        tasks = self.storage.tasks
        try:
            result = super().execute(task, timestamp)
        except BaseException:
            tasks.release(ref)
            raise
        if task.__dict__.pop("kvstream_interrupted", False):
            tasks.nack(ref)
        else:
            tasks.ack(ref)
        return result

    def _emit(self, signal: str, task: Any, *args: Any, **kwargs: Any) -> None:
        if signal == SIGNAL_INTERRUPTED:
            task.kvstream_interrupted = True
        super()._emit(signal, task, *args, **kwargs)

    def enqueue_due(self, timestamp: datetime | None = None) -> None:
        """Move the tasks that are due from the schedule to the queue, each in one commit."""
        schedule, store = self.storage.schedule, self.storage.place.store
        for eid, data in schedule.due(timestamp or self._get_timestamp()):
            for task in self._deserialize_all([data]):
                self.storage.prepare(task.priority)
                with suppress(Conflict), store.transaction():  # Conflict: another was faster
                    if schedule.stream.get(eid) is not None:
                        schedule.stream.delete(eid)
                        self.enqueue(task)


class _Scheduler(Scheduler):
    def loop(self, now: datetime | None = None) -> None:
        try:
            self.huey.enqueue_due(now)
        except Exception:
            self._logger.exception("Error moving scheduled tasks.")
        super().loop(now)


class _Consumer(Consumer):
    scheduler_class = _Scheduler
