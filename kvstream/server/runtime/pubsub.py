"""Pub/sub: who is subscribed to what, and the messages on their way to subscribers.

``publish`` is the only door to subscribers. A message is one object among the replies of its turn:
it is sent once the turn is committed, and dropped if the turn fails. Then its bytes, encoded once
for each protocol, are appended to the unsent messages of each receiver. These are sent in slices
between turns, so that a message to thousands of clients delays nobody. A client with a reply in the
same turn gets its messages at once, in order with the reply.

Keyspace notifications are messages, too. Operations note events in their transaction
(``meta/events/keys.py``). Those of a call are published right after it, in its turn; those of other
threads, such as expired keys, after their commit. While events of calls are wanted, XADDs are not
batched and no request takes the path of pipelines: so the events stand in the order of the calls.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, cast

from kvstream.commands.replies import RESP3
from kvstream.layout.keys import database_of, key_of
from kvstream.meta.events.keys import CHANNELS, EXPIRED, KEYEVENT, KEYMISS, KEYSPACE, Event
from kvstream.meta.txn import Txn
from kvstream.server.runtime.client import ChannelKind, Client, PendingReplies, Server
from kvstream.types.clock import perf_counter
from kvstream.types.glob import matcher
from kvstream.types.thresholds import DEFAULT, Thresholds

SENT_TOGETHER: Final = 16
"""Clients that get messages between two looks at the clock."""
NAME_BYTES: Final = 200
"""Memory of a subscription beside the bytes of its name."""
ROUTE_NAME_MAX: Final = 1024
"""The longest name, in bytes, of a channel whose receivers are cached."""

Heads = list[tuple[bytes, tuple[Client, ...]]]
"""The first bytes of a message, or all of it, and the clients that get them."""


class Route(NamedTuple):
    """The receivers of a channel's messages."""

    receivers: int
    heads: Heads
    """The head of the message: its bytes up to its text."""


class _Nobody:
    """Stands for the client of a message, which is no reply."""

    closing, lost, reply_unfinished = False, True, False


class Message:
    """A published message among the replies of its turn."""

    __slots__ = ("parts",)
    client: Client = cast(Client, _Nobody())

    def __init__(self, parts: Heads) -> None:
        self.parts = parts
        """The encoded message."""

    def encode(self) -> bytes:
        return b""

    def memory(self) -> int:
        """Return the bytes that the message takes while it waits."""
        return sum([len(data) for data, _ in self.parts])

    def depends_on_store(self) -> bool:
        """Return true: its turn may have written."""
        return True

    def fail(self, error: object) -> None:
        """Drop the message: its turn is not durable."""
        self.parts = []


class PubSub:
    """The subscriptions of one server's clients, and their unsent messages."""

    def __init__(
        self,
        deliver: Callable[[Message], None],
        streaming: Container[Client],
        sizes: Thresholds = DEFAULT,
    ) -> None:
        """``deliver`` puts a message among the replies of the turn.

        ``streaming`` has the clients that are in the middle of a reply.
        """
        self._deliver, self._streaming, self.sizes = deliver, streaming, sizes
        self.monitors: dict[Client, None] = {}
        """The clients of MONITOR: its lines are sent like messages."""
        self.is_used = False
        """Whether there are receivers or unsent messages; it may stay True for a while."""
        self.published = 0
        """Messages, with subscribers or without."""
        self.clients: dict[Client, int] = {}
        """The subscribed clients, and the bytes of memory that their subscriptions take."""
        self.names: dict[ChannelKind, dict[bytes, dict[Client, None]]] = {
            kind: {} for kind in ChannelKind
        }
        """The subscribers by channel or pattern."""
        self._tests: dict[bytes, Callable[[bytes], bool]] = {}
        """The matchers of the patterns."""
        self._routes: dict[ChannelKind, dict[bytes, Route]] = {
            ChannelKind.CHANNEL: {},
            ChannelKind.SHARD: {},
        }
        self._groups: dict[tuple[ChannelKind, bytes], Heads] = {}
        """The subscribers of a channel or pattern by the first byte of their messages."""
        self._unsent: dict[Client, list[bytes]] = {}
        self._unsent_bytes = 0
        self.queue: deque[Client] = deque()
        """The clients with unsent messages, first come first served."""
        self.behind: dict[Client, list[bytes]] = {}
        """Messages that wait until a streamed reply is complete."""

    # --- subscriptions --------------------------------------------------------------------------

    def subscribe(self, client: Client, kind: ChannelKind, name: bytes) -> None:
        """Subscribe a client to a channel or pattern."""
        if client.subscriptions is None:
            client.subscriptions = {each: {} for each in ChannelKind}
            self.clients[client] = 0
            self.is_used = True
        if name in client.subscriptions[kind]:
            return
        self.clients[client] += NAME_BYTES + len(name)
        client.subscriptions[kind][name] = None
        self.names[kind].setdefault(name, {})[client] = None
        if kind is ChannelKind.PATTERN and name not in self._tests:
            self._tests[name] = matcher(name)
        self._drop_routes(kind, name)

    def unsubscribe(self, client: Client, kind: ChannelKind, name: bytes) -> None:
        """Unsubscribe a client, if it is subscribed."""
        subscriptions = client.subscriptions
        if subscriptions is None or name not in subscriptions[kind]:
            return
        del subscriptions[kind][name]
        self.clients[client] -= NAME_BYTES + len(name)
        subscribers = self.names[kind][name]
        del subscribers[client]
        if not subscribers:
            del self.names[kind][name]
            if kind is ChannelKind.PATTERN:
                del self._tests[name]
        self._drop_routes(kind, name)
        if not any(subscriptions.values()):
            client.subscriptions = None
            del self.clients[client]

    def leave(self, client: Client) -> None:
        """Unsubscribe a client from everything."""
        for kind in ChannelKind:
            for name in names_of(client, kind):
                self.unsubscribe(client, kind, name)

    def forget(self, client: Client) -> None:
        """Forget a client that is gone."""
        self.leave(client)
        self._take(client)
        self.behind.pop(client, None)

    def encode_anew(self) -> None:
        """Encode the next messages anew: a subscriber has switched its protocol."""
        self._groups.clear()
        for routes in self._routes.values():
            routes.clear()

    def _drop_routes(self, kind: ChannelKind, name: bytes) -> None:
        self._groups.pop((kind, name), None)
        if kind is ChannelKind.PATTERN:
            self._routes[ChannelKind.CHANNEL].clear()
        else:
            self._routes[kind].pop(name, None)

    # --- publishing -----------------------------------------------------------------------------

    def publish(self, channel: bytes, message: bytes, shard: bool = False) -> int:
        """Send a message with the replies of this turn; return the number of receivers.

        A client that is subscribed to the channel and to patterns gets it, and counts, for each.
        Call it in the executor's thread; outside a turn the message is sent at once.
        """
        self.published += 1
        if not self.clients:
            return 0
        kind = ChannelKind.SHARD if shard else ChannelKind.CHANNEL
        route = self._routes[kind].get(channel) or self._find(kind, channel)
        if route.receivers:
            body = b"$%d\r\n%b\r\n" % (len(message), message)
            self._deliver(Message([(head + body, clients) for head, clients in route.heads]))
        return route.receivers

    def to_monitors(self, line: bytes) -> None:
        """Send a line to the MONITOR clients with the replies of this turn."""
        self.is_used = True
        self._deliver(Message([(line, tuple(self.monitors))]))

    def _find(self, kind: ChannelKind, channel: bytes) -> Route:
        """Find and cache the receivers of a channel."""
        begin = _begin(b"%bmessage" % kind.value.encode(), channel)
        heads = self._heads(kind, channel, begin)
        if kind is ChannelKind.CHANNEL:
            for pattern, matches in self._tests.items():
                if matches(channel):
                    heads += self._heads(
                        ChannelKind.PATTERN, pattern, _begin(b"pmessage", pattern, channel)
                    )
        route = Route(sum([len(clients) for _, clients in heads]), heads)
        routes = self._routes[kind]
        if len(channel) <= ROUTE_NAME_MAX:
            if len(routes) >= self.sizes.cached_routes:
                routes.clear()
            routes[channel] = route
        return route

    def _heads(self, kind: ChannelKind, name: bytes, begin: bytes) -> Heads:
        """Return the heads of a message: one for the subscribers of each protocol."""
        subscribers = self.names[kind].get(name)
        if subscribers is None:
            return []
        groups = self._groups.get((kind, name))
        if groups is None:
            heads = (
                (sign, tuple([each for each in subscribers if (each.protocol == RESP3) is pushes]))
                for sign, pushes in ((b"*", False), (b">", True))
            )
            groups = self._groups[kind, name] = [group for group in heads if group[1]]
        return [(sign + begin, clients) for sign, clients in groups]

    # --- sending --------------------------------------------------------------------------------

    def has_messages(self, replies: Sequence[PendingReplies]) -> bool:
        """Return whether messages are among the replies of a turn, or wait from earlier ones."""
        if self._unsent or self.behind:
            return True
        self.is_used = bool(self.clients or self.monitors)
        for pending in replies:  # noqa: SIM110 - any() takes three times as long
            if type(pending) is Message:
                return True
        return False

    def append(self, messages: list[Message]) -> None:
        """Append messages to the unsent ones of their receivers.

        Messages in a row to the same receivers are joined first.
        """
        texts: list[bytes] = []
        before: tuple[Client, ...] = ()
        for message in messages:
            for data, clients in message.parts:
                if clients is not before:
                    self._append(b"".join(texts), before)
                    texts, before = [], clients
                texts.append(data)
        self._append(b"".join(texts), before)

    def _append(self, data: bytes, clients: tuple[Client, ...]) -> None:
        unsent, queue = self._unsent, self.queue
        self._unsent_bytes += len(data) * len(clients)
        for client in clients:
            before = unsent.get(client)
            if before is None:
                unsent[client] = [data]
                queue.append(client)
            else:
                before.append(data)

    def append_reply(self, client: Client, reply: bytes) -> None:
        """Append a reply; ``send`` must be called."""
        self._unsent.setdefault(client, []).append(reply)
        self._unsent_bytes += len(reply)

    def send(self, client: Client) -> None:
        """Send a client its unsent messages and replies."""
        data = self._take(client)
        if not data or client.lost:
            return
        if client in self._streaming:
            self.behind.setdefault(client, []).append(data)
            return
        if client in self.behind:
            data = b"".join((*self.behind.pop(client), data))
        client.send(data)

    def _take(self, client: Client) -> bytes:
        """Remove and return a client's unsent messages and replies."""
        parts = self._unsent.pop(client, None)
        if parts is None:
            return b""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._unsent_bytes -= len(data)
        return data

    def memory_of(self, client: Client) -> int:
        """Return the bytes that a client's subscriptions and waiting messages take."""
        return self.clients.get(client, 0) + self.unread_of(client)

    def unread_of(self, client: Client) -> int:
        """Return the bytes of the messages that wait behind a client's streamed reply."""
        return sum(map(len, self.behind[client])) if client in self.behind else 0

    def send_some(self) -> None:
        """Send messages for ``slice_s``; for longer while there are too many."""
        if self.behind:
            for client in [each for each in self.behind if each not in self._streaming]:
                client.send(b"".join(self.behind.pop(client)))
        queue, sent, most = self.queue, 0, self.sizes.unsent_bytes
        until = perf_counter() + self.sizes.slice_s
        while queue:
            self.send(queue.popleft())
            sent += 1
            if sent % SENT_TOGETHER or self._unsent_bytes > most:
                continue
            if perf_counter() >= until:
                return


def names_of(client: Client, kind: ChannelKind) -> list[bytes]:
    """Return the channels or patterns of a client's subscriptions of a kind."""
    return [] if client.subscriptions is None else list(client.subscriptions[kind])


def has_forbidden(client: Client) -> bool:
    """Return whether a client has a subscription that its user may not use."""
    return any(
        not client.user.allows_channel(name, kind is ChannelKind.PATTERN)
        for kind in ChannelKind
        for name in names_of(client, kind)
    )


def count_subscriptions(client: Client, kind: ChannelKind) -> int:
    """Return the number of subscriptions that the reply to a SUBSCRIBE of a kind shows.

    Channels and patterns count together, shard channels on their own.
    """
    subscriptions = client.subscriptions
    if subscriptions is None:
        return 0
    counted = (kind,) if kind is ChannelKind.SHARD else (ChannelKind.CHANNEL, ChannelKind.PATTERN)
    return sum([len(subscriptions[each]) for each in counted])


def _begin(*words: bytes) -> bytes:
    """Return the head of a message, up to its text, without the first byte."""
    strings = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"%d\r\n%b" % (len(words) + 1, b"".join(strings))


# --- keyspace notifications -----------------------------------------------------------------------

Noted = tuple[Event, bytes]


class Notifications:
    """The keyspace notifications of one server."""

    def __init__(self, server: Server, publish: Callable[[bytes, bytes], object]) -> None:
        """``publish`` sends a message to the subscribers of a channel."""
        self._server, self._send = server, publish
        self.of_calls = False
        """Whether events of calls are wanted, not only those of expiry."""
        self.configure()

    def configure(self) -> None:
        """Note the classes of events that the options name from now on."""
        flags = self._server.options.notify_keyspace_events
        wanted = flags & ~CHANNELS if flags & CHANNELS else 0
        self._server.engine.publish_events(wanted, self._publish_committed)
        self.of_calls = bool(wanted & ~EXPIRED.bit)

    def end(self) -> None:
        """Note no more events: the server has ended, and the store goes on."""
        self._server.engine.publish_events(0, self._publish_committed)
        self.of_calls = False

    def publish_call(self, txn: Txn, missed: list[bytes]) -> None:
        """Publish the events of a call; ``missed`` are keys that it did not find."""
        if missed and txn.wanted_events & KEYMISS.bit:
            at = 0
            while at < len(txn.events) and txn.events[at][0] is EXPIRED:
                at += 1
            txn.events[at:at] = [(KEYMISS, name) for name in missed]
        if txn.events:
            self.publish(txn)

    def publish(self, txn: Txn) -> None:
        """Publish the events that a transaction has noted so far."""
        events, txn.events = txn.events, []
        self._publish(events)

    def _publish_committed(self, events: list[Noted]) -> None:
        """Publish the events of a commit of any thread."""
        self._server.post(partial(self._publish, events))

    def _publish(self, events: Iterable[Noted]) -> None:
        flags, publish = self._server.options.notify_keyspace_events, self._send
        for event, name in events:
            db, key = database_of(name), key_of(name)
            if flags & KEYSPACE:
                publish(b"__keyspace@%d__:%b" % (db, key), event.name)
            if flags & KEYEVENT:
                publish(b"__keyevent@%d__:%b" % (db, event.name), key)
