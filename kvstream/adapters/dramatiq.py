"""dramatiq on a kvstream store: a broker, and the backends of results and rate limiters.

::

    import dramatiq
    from dramatiq.results import Results
    from kvstream.adapters.dramatiq import KVStreamBackend, KVStreamBroker

    broker = KVStreamBroker("data")  # or the URL of a server
    broker.add_middleware(Results(backend=KVStreamBackend("data")))
    dramatiq.set_broker(broker)

A queue is a stream. A message is pending with its worker until it was processed, and renewed while
the worker lives; that of a killed one goes to another worker after ``lease`` seconds. A rejected
message moves to the queue of dead letters in one commit.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.common import xq_name
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout
from dramatiq.message import Message
from dramatiq.rate_limits.backend import RateLimiterBackend
from dramatiq.results.backend import Missing, ResultBackend

from kvstream.adapters.places import Place, Strings, retry_conflicts
from kvstream.adapters.tasks import LEASE_S, Ref, Task, Tasks
from kvstream.errors import KVStreamError
from kvstream.stream import Stream
from kvstream.types.clock import monotonic
from kvstream.types.urls import AnyPath

__all__ = [
    "KVStreamBackend",
    "KVStreamBroker",
    "KVStreamConsumer",
    "KVStreamMessage",
    "KVStreamRateLimiterBackend",
]


def __dir__() -> list[str]:
    return __all__


DEAD_MESSAGE_TTL_MS = 7 * 86_400_000
FULL_WAIT_S = 0.05
"""Pause of a consumer that has as many messages in work as it may."""


class KVStreamBroker(Broker):
    """A broker on a store.

    ``lease`` is how many seconds a killed worker's message waits, ``dead_message_ttl`` how many
    milliseconds a dead letter is kept. Further options are those of ``kvstream.open``.
    """

    def __init__(
        self,
        place: AnyPath,
        *,
        middleware: list[Any] | None = None,
        namespace: str = "dramatiq",
        lease: float = LEASE_S,
        dead_message_ttl: int = DEAD_MESSAGE_TTL_MS,
        **options: Any,
    ) -> None:
        super().__init__(middleware=middleware)
        self.place = Place(place, **options)
        self.tasks = Tasks(lambda: self.place.store, lease)
        self.namespace, self.dead_message_ttl = namespace, dead_message_ttl

    def close(self) -> None:
        self.tasks.close()
        self.place.close()

    def key(self, queue_name: str) -> str:
        """Return the key of the stream of a queue."""
        return f"{self.namespace}:{queue_name}"

    # --- queues ---------------------------------------------------------------------------------

    def declare_queue(self, queue_name: str) -> None:
        if queue_name in self.queues:
            return
        self.emit_before("declare_queue", queue_name)
        self.queues[queue_name] = None
        self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        return set(self.queues)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Add a message to its queue; the store holds it back for ``delay`` milliseconds."""
        self.emit_before("enqueue", message, delay)
        seconds = None if delay is None else delay / 1000
        with _connection_errors():
            self.tasks.put(self.key(message.queue_name), message.encode(), delay=seconds)
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Consumer:
        return KVStreamConsumer(self, queue_name, prefetch, timeout)

    def size(self, queue_name: str) -> int:
        """Return the number of messages of a queue, delayed ones and those in work included."""
        stream = self.place.store.stream(self.key(queue_name))
        return len(stream) + stream.delayed_count()

    def flush(self, queue_name: str) -> None:
        """Delete all messages of a queue, but its dead letters."""
        self.tasks.delete(self.key(queue_name))

    def flush_all(self) -> None:
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until a queue is empty, in tests; QueueJoinTimeout after ``timeout`` ms."""
        deadline = None if timeout is None else monotonic() + timeout / 1000
        while self.size(queue_name):
            if deadline is not None and monotonic() >= deadline:
                raise QueueJoinTimeout(queue_name)
            time.sleep(interval / 1000)

    # --- dead letters ---------------------------------------------------------------------------

    def dead_letters(self, queue_name: str) -> Stream:
        """Return the stream of the rejected messages of a queue."""
        return self.place.store.stream(self.key(xq_name(queue_name)))

    def bury(self, queue_name: str, ref: Ref, body: bytes) -> None:
        """Move a message to the dead letters, in one commit, and delete those that are too old.

        One that another worker has by now stays there.
        """
        oldest = int(time.time() * 1000) - self.dead_message_ttl
        self.tasks.bury(ref, body, self.key(xq_name(queue_name)), minid=(oldest, 0))


class KVStreamMessage(MessageProxy):
    """A message that was read, and where it stands."""

    def __init__(self, message: Message[Any], ref: Ref) -> None:
        super().__init__(message)
        self.ref = ref


class KVStreamConsumer(Consumer):
    """The consumer of a queue."""

    def __init__(
        self, broker: KVStreamBroker, queue_name: str, prefetch: int, timeout: int
    ) -> None:
        self._broker, self._queue_name = broker, queue_name
        self._prefetch, self._timeout_s = prefetch, timeout / 1000
        self._read: list[KVStreamMessage] = []
        """Messages that were read ahead."""
        self._work: set[Ref] = set()

    def __next__(self) -> MessageProxy | None:
        """Return the next message; None if there is none for the time of the consumer."""
        with _connection_errors():
            if not self._read:
                self._fetch()
        if not self._read:
            return None
        message = self._read.pop(0)
        self._work.add(message.ref)
        return message

    def _fetch(self) -> None:
        free = self._prefetch - len(self._work)
        if free <= 0:
            time.sleep(min(FULL_WAIT_S, self._timeout_s))
            return
        tasks = self._broker.tasks
        name = self._broker.key(self._queue_name)
        wrong: list[Task] = []
        for task in tasks.get(name, count=free, block=self._timeout_s):
            try:
                message = Message.decode(task.body)
            except Exception:  # it would come back for ever
                self._broker.logger.exception("Rejecting what is no message: %r.", task.body)
                wrong.append(task)
                continue
            self._read.append(KVStreamMessage(message, task.ref))
        for task in wrong:  # last: a store that is away must not lose the others
            self._broker.bury(self._queue_name, task.ref, task.body)

    def ack(self, message: Any) -> None:
        try:
            with _connection_errors():
                self._broker.tasks.ack(message.ref)
        finally:
            self._work.discard(message.ref)

    def nack(self, message: Any) -> None:
        """Move a message to the dead letters."""
        try:
            with _connection_errors():
                self._broker.bury(self._queue_name, message.ref, message.encode())
        finally:
            self._work.discard(message.ref)

    def requeue(self, messages: Iterable[Any]) -> None:
        """Give messages back: the next read gets them."""
        refs = [message.ref for message in messages]
        with _connection_errors():
            self._broker.tasks.nack(*refs)
        self._work.difference_update(refs)

    def close(self) -> None:
        read, self._read = self._read, []
        self.requeue(read)


class KVStreamBackend(ResultBackend):
    """The results of actors, as strings that expire."""

    def __init__(
        self,
        place: AnyPath,
        *,
        namespace: str = "dramatiq-results",
        encoder: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(namespace=namespace, encoder=encoder)
        self.place = Place(place, **options)
        self._results = Strings(self.place, f"{namespace}:")

    def _get(self, message_key: str) -> Any:
        data = self._results.get(message_key)
        return Missing if data is None else self.encoder.decode(data)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        self._results.put(message_key, self.encoder.encode(result), ttl / 1000)


class KVStreamRateLimiterBackend(RateLimiterBackend):
    """The counters of rate limiters and barriers, as strings that expire after ``ttl`` ms."""

    def __init__(
        self, place: AnyPath, *, namespace: str = "dramatiq-limits", **options: Any
    ) -> None:
        self.place = Place(place, **options)
        self._namespace = namespace
        self._counters = Strings(self.place, f"{namespace}:")

    def add(self, key: str, value: int, ttl: int) -> bool:
        return self._counters.put_new(key, b"%d" % value, ttl / 1000)

    def incr(self, key: str, amount: int, maximum: int, ttl: int) -> bool:
        return self._change(key, ttl, amount, lambda value: value <= maximum)

    def decr(self, key: str, amount: int, minimum: int, ttl: int) -> bool:
        return self._change(key, ttl, -amount, lambda value: value >= minimum)

    def incr_and_sum(
        self, key: str, keys: Callable[[], Iterable[str]], amount: int, maximum: int, ttl: int
    ) -> bool:
        def is_allowed(value: int) -> bool:
            return value <= maximum and amount + sum(map(self._value, keys())) <= maximum

        return self._change(key, ttl, amount, is_allowed)

    def _value(self, key: str) -> int:
        return int(self._counters.get(key) or 0)

    def _change(self, key: str, ttl: int, amount: int, is_allowed: Callable[[int], bool]) -> bool:
        """Add to a counter in one commit if the new value is allowed; return whether it is."""

        def once() -> bool:
            with self.place.store.transaction():
                value = self._value(key) + amount
                done = is_allowed(value)
                if done:
                    self._counters.put(key, b"%d" % value, ttl / 1000)
            return done

        return retry_conflicts(once, twice=False)

    def wait(self, key: str, timeout: int) -> bool:
        stream = self.place.store.stream(f"{self._namespace}:{key}")
        return bool(stream.read("0-0", count=1, block=timeout / 1000))

    def wait_notify(self, key: str, ttl: int) -> None:
        name = f"{self._namespace}:{key}"
        self.place.store.stream(name).add({"done": ""}, maxlen=1)
        self.place.store.expire(name, ttl / 1000)


@contextmanager
def _connection_errors() -> Iterator[None]:
    """Raise errors of the store as lost connections, after which a worker connects again."""
    try:
        yield
    except KVStreamError as error:
        raise ConnectionClosed(error) from error
