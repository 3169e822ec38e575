"""Keyspace notifications: events of keys, published to channels.

Operations note events in their transaction (``meta/key_events.py``). Those of a call are published
right after it, in its turn; those of other threads, such as expired keys, after their commit.
While events of calls are wanted, XADDs are not batched and no request takes the path of pipelines:
so the events stand in the order of the calls.
"""

from collections.abc import Callable, Iterable
from functools import partial

from kvstream.layout.keys import database_of, key_of
from kvstream.meta.key_events import CHANNELS, EXPIRED, KEYEVENT, KEYMISS, KEYSPACE, Event
from kvstream.meta.txn import Txn
from kvstream.server.runtime.client import Server

Noted = tuple[Event, bytes]


class Notifications:
    """The keyspace notifications of one server."""

    def __init__(self, server: Server, publish: Callable[[bytes, bytes], object]) -> None:
        """``publish`` sends a message to the subscribers of a channel."""
        self._server, self._send = server, publish
        self._catalog = server.engine.catalog
        self.of_calls = False
        """Whether events are wanted that calls cause, rather than the time."""
        server.engine.on_events = self._committed
        self.configure()

    def configure(self) -> None:
        """Note the classes of events that the options name from now on."""
        flags = self._server.options.notify_keyspace_events
        wanted = flags & ~CHANNELS if flags & CHANNELS else 0
        self._catalog.wanted_events = wanted
        self.of_calls = bool(wanted & ~EXPIRED.bit)

    def end(self) -> None:
        """Note no more events: the server has ended, and the store goes on."""
        self._catalog.wanted_events = 0
        self.of_calls = False

    def ran(self, txn: Txn, missed: list[bytes]) -> None:
        """Publish the events of a call; ``missed``: the keys that it has looked up in vain."""
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

    def _committed(self, events: list[Noted]) -> None:
        """Publish the events of a commit, whatever thread has made it."""
        self._server.post(partial(self._publish, events))

    def _publish(self, events: Iterable[Noted]) -> None:
        flags, publish = self._server.options.notify_keyspace_events, self._send
        for event, name in events:
            db, key = database_of(name), key_of(name)
            if flags & KEYSPACE:
                publish(b"__keyspace@%d__:%b" % (db, key), event.name)
            if flags & KEYEVENT:
                publish(b"__keyevent@%d__:%b" % (db, event.name), key)
