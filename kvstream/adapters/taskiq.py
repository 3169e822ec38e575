"""taskiq on a kvstream store: a broker, a result backend and a source of schedules.

::

    from kvstream.adapters.taskiq import KVStreamBroker, KVStreamResultBackend

    broker = KVStreamBroker("data").with_result_backend(KVStreamResultBackend("data"))

A place is a directory or the URL of a server. The queue is a stream for each priority (the label
``priority``). A task is pending with its worker until it is acknowledged, and renewed while the
worker lives; that of a killed one goes to another worker after ``lease`` seconds.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, ParamSpec, TypeVar

from taskiq import (
    AckableMessage,
    AsyncBroker,
    AsyncResultBackend,
    BrokerMessage,
    ScheduledTask,
    ScheduleSource,
    TaskiqResult,
)
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError
from taskiq.serializers import JSONSerializer

from kvstream.adapters.places import Place, Strings
from kvstream.adapters.tasks import LEASE_S, Tasks
from kvstream.aio import AsyncStore, StoreOfLoop
from kvstream.engine.coerce import at_least_1
from kvstream.errors import StoreClosed, describe
from kvstream.store import Store
from kvstream.types.urls import AnyPath

__all__ = ["KVStreamBroker", "KVStreamResultBackend", "KVStreamScheduleSource"]


def __dir__() -> list[str]:
    return __all__


P = ParamSpec("P")
T = TypeVar("T")

WAIT_S = 1.0
"""Longest single wait for a task."""
_log = logging.getLogger(__name__)


class AsyncPlace(Place):
    """A place whose store belongs to an event loop: the parts of a broker share it."""

    def __init__(self, place: AnyPath, **options: Any) -> None:
        super().__init__(place, **options)
        self._async: AsyncStore | None = None
        self._using = AsyncExitStack()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that uses ``store``; open the store first."""
        if self._async is None:
            using = StoreOfLoop(self.address, **self.options)
            self._async = await self._using.enter_async_context(using)
        return await self._async.call(function, *args, **kwargs)

    @property
    def is_open(self) -> bool:
        """Whether a call has opened the store, and it was not closed since."""
        return self._async is not None

    @property
    def store(self) -> Store:
        """The open store, for a function that ``call`` runs."""
        if self._async is None:
            raise StoreClosed
        return self._async.plain

    async def aclose(self) -> None:
        """Close the store if no other place uses it; the next call opens it again."""
        self._async = None
        await self._using.aclose()


class KVStreamBroker(AsyncBroker):
    """A broker whose queue is in a store; ``count`` tasks are read at once."""

    def __init__(
        self,
        place: AnyPath,
        *,
        queue_name: str = "taskiq",
        lease: float = LEASE_S,
        count: int = 1,
        **options: Any,
    ) -> None:
        super().__init__()
        self.place = AsyncPlace(place, **options)
        self.tasks = Tasks(lambda: self.place.store, lease)
        self.queue_name, self._count = queue_name, at_least_1(count, "count")

    async def shutdown(self) -> None:
        await super().shutdown()
        if self.place.is_open:
            await self.place.call(self.tasks.close)
        await self.place.aclose()

    async def kick(self, message: BrokerMessage) -> None:
        """Add a task; the store holds it back for as many seconds as its label ``delay`` says."""
        priority, delay = (message.labels.get(label) for label in ("priority", "delay"))
        seconds = None if delay is None else float(delay)
        put = partial(self.tasks.put, self.queue_name, message.message)
        await self.place.call(put, float(priority or 0), seconds)

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield tasks; each stays this worker's until it is acknowledged."""
        get = partial(self.tasks.get, self.queue_name, count=self._count, block=WAIT_S)
        while True:
            for task in await self.place.call(get):
                ack = partial(self.place.call, self.tasks.ack, task.ref)
                yield AckableMessage(data=task.body, ack=ack)


class KVStreamResultBackend(AsyncResultBackend[Any]):
    """Results as strings, which expire after ``result_ex_time`` seconds (None: never).

    Without ``keep_results`` a result is deleted when it is read.
    """

    def __init__(
        self,
        place: AnyPath,
        *,
        keep_results: bool = True,
        result_ex_time: float | None = 86_400,
        prefix: str = "taskiq",
        serializer: TaskiqSerializer | None = None,
        **options: Any,
    ) -> None:
        self.place = AsyncPlace(place, **options)
        self.serializer = serializer or JSONSerializer()
        self._results = Strings(self.place, f"{prefix}:result:")
        self._progress = Strings(self.place, f"{prefix}:progress:")
        self._keep, self._ttl = keep_results, result_ex_time

    async def shutdown(self) -> None:
        await self.place.aclose()

    async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
        data = self.serializer.dumpb(result.model_dump(mode="json"))
        await self.place.call(self._results.put, task_id, data, self._ttl)

    async def is_result_ready(self, task_id: str) -> bool:
        return await self.place.call(self._results.exists, task_id)

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Any]:
        read = self._results.get if self._keep else self._results.take
        data = await self.place.call(read, task_id)
        if data is None:
            raise ResultGetError
        result = TaskiqResult[Any].model_validate(self.serializer.loadb(data))
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        data = self.serializer.dumpb(progress.model_dump(mode="json"))
        await self.place.call(self._progress.put, task_id, data, self._ttl)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        data = await self.place.call(self._progress.get, task_id)
        if data is None:
            return None
        return TaskProgress[Any].model_validate(self.serializer.loadb(data))


class KVStreamScheduleSource(ScheduleSource):
    """Schedules as entries of a stream; one for a single time is deleted when it was sent."""

    def __init__(self, place: AnyPath, *, name: str = "taskiq:schedules", **options: Any) -> None:
        self.place = AsyncPlace(place, **options)
        self._name = name

    async def shutdown(self) -> None:
        await self.place.aclose()

    async def get_schedules(self) -> list[ScheduledTask]:
        bodies = await self.place.call(self._read)
        schedules: list[ScheduledTask] = []
        for body in bodies:
            try:
                schedules.append(ScheduledTask.model_validate_json(body))
            except ValueError as error:  # bytes of another program
                _log.warning("a schedule of %s cannot be read: %s", self._name, describe(error))
        return schedules

    def _read(self) -> list[bytes]:
        entries = [entry.fields for entry in self.place.store.stream(self._name).scan()]
        found = {each.get(b"id"): each[b"schedule"] for each in entries if b"schedule" in each}
        return list(found.values())

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Add a schedule; it replaces one with the same ID."""
        await self.place.call(self._add, schedule.schedule_id, schedule.model_dump_json())

    def _add(self, schedule_id: str, body: str) -> None:
        stream = self.place.store.stream(self._name)
        added = stream.add({"id": schedule_id, "schedule": body})
        self._delete(schedule_id, f"({added}")

    async def delete_schedule(self, schedule_id: str) -> None:
        await self.place.call(self._delete, schedule_id, "+")

    def _delete(self, schedule_id: str, end: str) -> None:
        stream, wanted = self.place.store.stream(self._name), schedule_id.encode()
        ids = [entry.id for entry in stream.scan("-", end) if entry.fields.get(b"id") == wanted]
        if ids:
            stream.delete(ids)

    async def post_send(self, task: ScheduledTask) -> None:
        if task.time is not None:
            await self.delete_schedule(task.schedule_id)
