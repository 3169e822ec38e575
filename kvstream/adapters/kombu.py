"""kombu, and so Celery, on a kvstream store: the transport ``kvstream://``.

::

    import kvstream.adapters.kombu  # registers the name

    kombu.Connection("kvstream:///var/lib/app")  # a directory, for any number of processes
    kombu.Connection("kvstream+redis://localhost:6379/0")  # a server

A queue is a stream for each priority (0 to 9, the highest first). A message is pending with its
reader until it is acknowledged. While the reader lives its messages are renewed, however long they
take; those of a dead one are delivered again after ``visibility_timeout`` seconds (30), one of the
``transport_options``. The others are ``shared``, ``durability``, ``db`` and ``wait_s`` of
``kvstream.open``.
"""

import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from queue import Empty
from time import sleep, time
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.utils.url import as_url

from kvstream.adapters.places import Place, Strings, retry_conflicts
from kvstream.adapters.tasks import BODY, LEASE_S, Ref, Tasks
from kvstream.errors import InvalidArgument, KVStreamError, describe
from kvstream.types.clock import monotonic
from kvstream.types.ids import StreamID
from kvstream.version import VERSION

__all__ = ["KVStreamChannel", "KVStreamQoS", "Transport"]


def __dir__() -> list[str]:
    return __all__


PREFIX = "kombu:"
WAIT_S = 1.0
"""Longest single wait for a message."""
FULL_WAIT_S = 0.05
"""The same while a channel has as many messages in work as it may."""
FANOUT_MESSAGES = 1000
"""Messages of a fanout exchange that a queue keeps for a slow reader."""

_REPLIES = re.compile(r"\.reply\.[^.]+\.pidbox$")
"""The names of the queues of clients of remote control."""
_log = logging.getLogger(__name__)
_STORE_OPTIONS = ("shared", "durability", "db", "wait_s")
for _scheme in ("kvstream", "kvstream+redis", "kvstream+rediss", "kvstream+unix"):
    TRANSPORT_ALIASES[_scheme] = "kvstream.adapters.kombu:Transport"


def place_of(url: str, options: Mapping[str, Any]) -> Place:
    """Return the place that a URL names: ``kvstream:///directory``, or that of a server."""
    parts = urlsplit(url.removeprefix("kvstream+"))
    if parts.scheme != "kvstream":
        return Place(url.removeprefix("kvstream+"))
    path = unquote(parts.netloc + parts.path)
    if path in ("", "/"):
        raise InvalidArgument("the URL names no directory: kvstream:///path or kvstream://path")
    return Place(path, **{name: options[name] for name in _STORE_OPTIONS if name in options})


class KVStreamQoS(virtual.QoS):
    """Messages in work: an acknowledged one is deleted, a requeued one is given back."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.tasks.ack(_ref(delivery_tag))
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        tasks, ref = self.channel.tasks, _ref(delivery_tag)
        if requeue:
            tasks.nack(ref)
        else:
            tasks.ack(ref)
        self._quick_ack(delivery_tag)


class KVStreamChannel(virtual.Channel):
    """A channel, whose queues and bindings are in the store."""

    QoS = KVStreamQoS
    supports_fanout = True

    def __init__(self, connection: "Transport", **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.tasks, self._place = connection.tasks, connection.place
        self._bindings = connection.bindings
        self.events: dict[str, set[Any]] = defaultdict(set)
        """Callbacks of producers: that of a message which no queue takes is never called."""
        self._unacknowledged: set[str] = set()
        """The queues whose messages need no acknowledgement."""
        self._expiring: dict[str, tuple[float, float]] = {}
        """For each temporary queue its seconds to live, and when they were set last."""

    # --- messages -------------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        body = json.dumps(message).encode()
        if _REPLIES.search(queue):  # of a client that may be gone: its queue is not made again
            self._place.store.stream(PREFIX + queue).add({BODY: body}, nomkstream=True)
        else:
            self.tasks.put(PREFIX + queue, body, self._get_message_priority(message))

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        return self._read([queue], None)[1]

    def _read(self, queues: list[str], block: float | None) -> tuple[str, dict[str, Any]]:
        """Return a message of the queues and its queue; raise Empty if there is none."""
        while tasks := self.tasks.get(*(PREFIX + queue for queue in queues), block=block):
            task, block = tasks[0], None
            try:
                message = _message_of(task.body)
            except Exception as error:  # bytes of another program: they would come back for ever
                dead = f"{task.ref.key.decode()}:dead"
                _log.error("moving what is no message to %s: %s", dead, describe(error))
                self.tasks.bury(task.ref, task.body, dead)
                continue
            properties = message["properties"]
            expiration = properties.get("expiration")  # milliseconds since it was put
            if "expires" in message["headers"]:  # Celery's worker marks such a task as revoked
                expiration = None
            if expiration and time() * 1000 - task.ref.id.ms >= float(expiration):
                self.tasks.ack(task.ref)
                continue
            properties["delivery_tag"] = _tag(task.ref)
            if task.deliveries:
                message["redelivered"] = properties["delivery_info"]["redelivered"] = True
            return task.queue.removeprefix(PREFIX), message
        raise Empty

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self.tasks.ack(_ref(message.delivery_tag))
        return message

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        (self._unacknowledged.add if no_ack else self._unacknowledged.discard)(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def readable(self) -> list[str]:
        """Return the queues of which more messages may be read now."""
        if not self._consumers or not self.qos.can_consume():
            return []
        for queue in self._expiring:
            self._keep(queue)
        return list(self._active_queues)

    def _restore(self, message: Any) -> None:
        self.tasks.nack(_ref(message.delivery_tag))

    # --- queues ---------------------------------------------------------------------------------

    def _size(self, queue: str) -> int:
        return self.tasks.size(PREFIX + queue)

    def _purge(self, queue: str) -> int:
        return self.tasks.purge(PREFIX + queue)

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        """Make a queue; a temporary one is deleted once nobody has read it for its expiry."""
        self.tasks.stream(PREFIX + queue)
        expires = (kwargs.get("arguments") or {}).get("x-expires")
        if expires or auto_delete:
            self._expiring[queue] = (expires or 3_600_000) / 1000, 0.0
            self._keep(queue)

    def _keep(self, queue: str) -> None:
        seconds, since = self._expiring[queue]
        if monotonic() - since > seconds / 3 or not since:
            self._place.store.expire(PREFIX + queue, seconds)
            self._expiring[queue] = seconds, monotonic()

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self._place.store.exists(PREFIX + queue)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self.tasks.delete(PREFIX + queue)
        self._expiring.pop(queue, None)
        if args:
            exchange, *binding = args
            self._bind(exchange, lambda table: [each for each in table if each != binding])

    # --- exchanges ------------------------------------------------------------------------------

    def get_table(self, exchange: str) -> list[tuple[str, str, str]]:
        """Return the bindings of an exchange: routing key, pattern and queue."""
        return [(key, pattern, queue) for key, pattern, queue in self._table(exchange)]

    def _table(self, exchange: str) -> list[list[str]]:
        table: list[list[str]] = json.loads(self._bindings.get(exchange) or b"[]")
        return table

    def _queue_bind(self, exchange: str, *binding: Any) -> None:
        """Add a binding; forget those of queues that are gone, such as the replies of a client."""
        new = [each or "" for each in binding]
        if new not in self._table(exchange):
            gone = [each for each in self._table(exchange) if not self._has_queue(each[2])]
            gone.append(new)
            self._bind(exchange, lambda table: [*(each for each in table if each not in gone), new])

    def _bind(self, exchange: str, change: Callable[[list[list[str]]], list[list[str]]]) -> None:
        def once() -> None:
            with self._place.store.transaction():
                table = self._table(exchange)
                self._bindings.put(exchange, json.dumps(change(table)).encode())

        retry_conflicts(once)

    def _put_fanout(
        self, exchange: str, message: dict[str, Any], routing_key: str | None = None, **kwargs: Any
    ) -> None:
        """Add a message to each queue of an exchange; forget the queues that are gone."""
        body = {BODY: json.dumps(message).encode()}
        gone = []
        for binding in self._table(exchange):
            stream = self._place.store.stream(PREFIX + binding[2])
            if stream.add(body, maxlen=FANOUT_MESSAGES, approximate=True, nomkstream=True) is None:
                gone.append(binding)
        if gone:
            self._bind(exchange, lambda table: [each for each in table if each not in gone])


class Transport(virtual.Transport):
    """The transport: one reader for all channels of a connection."""

    Channel = KVStreamChannel
    can_parse_url = True
    default_port = None
    driver_type = driver_name = "kvstream"
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    connection_errors: Any = (*virtual.Transport.connection_errors, KVStreamError)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options = client.transport_options
        self.place = place_of(_url_of(client), options)
        lease = options.get("visibility_timeout", LEASE_S)
        self.tasks = Tasks(lambda: self.place.store, lease)
        self.bindings = Strings(self.place, f"{PREFIX}bindings:")
        self._turn = 0

    def driver_version(self) -> str:
        return VERSION

    def establish_connection(self) -> Any:
        self.place.store.exists(PREFIX)  # raises if nobody answers
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        self.tasks.close()
        self.place.close()

    def verify_connection(self, connection: Any) -> bool:
        return True

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Deliver one message of any channel; raise socket.timeout if none comes in time."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            queues = {queue: channel for channel in self.channels for queue in channel.readable()}
            full = any(channel._consumers and not channel.readable() for channel in self.channels)
            wait = FULL_WAIT_S if full or not queues else WAIT_S
            if deadline is not None:
                wait = min(wait, max(deadline - monotonic(), 0.001))
            if self._deliver_one(queues, wait):
                return
            if deadline is not None and monotonic() >= deadline:
                raise TimeoutError

    def _deliver_one(self, queues: dict[str, KVStreamChannel], wait: float) -> bool:
        if not queues:
            sleep(wait)
            return False
        with suppress(Empty):
            reader = next(iter(queues.values()))
            queue, message = reader._read(list(self._in_turn(queues)), wait)
            if queue in queues[queue]._unacknowledged:
                self.tasks.ack(_ref(message["properties"]["delivery_tag"]))
            self._deliver(message, queue)
            return True
        return False

    def _in_turn(self, queues: dict[str, KVStreamChannel]) -> Iterator[str]:
        """Yield the queues, each time beginning with another one, so that none starves."""
        names = list(queues)
        self._turn = (self._turn + 1) % len(names)
        yield from names[self._turn :] + names[: self._turn]


def _message_of(body: bytes) -> dict[str, Any]:
    """Return the message in a body; raise if it has no parts that kombu and ``_read`` need."""
    message: dict[str, Any] = json.loads(body)
    message["properties"]["delivery_info"].get("redelivered")
    float(message["properties"].get("expiration") or 0)
    "expires" in message["headers"]  # noqa: B015
    return message


def _url_of(client: Any) -> str:
    """Return the URL of a connection; kombu takes apart that of a failover."""
    if "://" in (client.hostname or ""):
        return str(client.hostname)
    path = "" if client.virtual_host == "/" else quote(client.virtual_host)  # "/" is kombu's none
    where = (client.hostname, client.port, client.userid, client.password, path)
    return str(as_url(client.transport_cls, *where))


def _tag(ref: Ref) -> str:
    return f"{ref.deliveries} {ref.id} {ref.key.decode()}"


def _ref(tag: str) -> Ref:
    deliveries, eid, key = tag.split(" ", 2)
    return Ref(key.encode(), StreamID.parse(eid), int(deliveries))
