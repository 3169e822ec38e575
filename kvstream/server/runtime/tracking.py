"""Caches of clients: which keys clients have been told of, and who hears that they have changed.

A key that a tracking client has read is remembered, and forgotten with the message that it has
changed; in broadcast mode a client names prefixes and hears of every change behind them. What a
call has changed is known from the index of keys and, for what happens inside of streams, from the
call itself. Messages are gathered during a turn and go out behind its replies: the change that one
tells of is committed by then, and a reply of older content never comes behind it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from kvstream.commands.command import Attempt, Blocked, Command, Flag
from kvstream.commands.replies import RESP3, Paged, Push, Reply, Streams
from kvstream.engine.engine import Engine
from kvstream.layout.keys import key_of
from kvstream.meta.keyspace import KeyWatch
from kvstream.meta.txn import Txn
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client import Argv, Client
from kvstream.server.runtime.reply_queue import Kept, Slot

HELD_MAX = 1000
"""Messages that wait behind a long reply: of more it is said that all keys have changed."""
_INSIDE = frozenset(
    {
        *("xackdel", "xadd", "xdel", "xdelex", "xgroup|create", "xidmprecord", "xsetid", "xtrim"),
        "kvstream.load|state",
    }
)
"""Commands that change a stream without the index of keys being told."""
_ALL = frozenset({"flushall", "flushdb"})
"""Commands that delete any number of keys."""


@dataclass(slots=True)
class Tracking:
    """How one client wants to hear of changes."""

    modes: frozenset[bytes]
    """Of BCAST, OPTIN, OPTOUT, NOLOOP."""
    prefixes: list[bytes] = field(default_factory=list)
    redirect: int = 0
    """The client that hears instead; 0: the one itself."""
    caching: bool = False
    """CLIENT CACHING was said for the next command or transaction."""
    broken: bool = False
    """The client that was to hear instead has gone."""

    @property
    def remembers(self) -> bool:
        """Tell whether what it reads now is remembered."""
        return b"BCAST" not in self.modes and (
            self.caching if b"OPTIN" in self.modes else not self.caching
        )

    def hears_of(self, key: bytes) -> bytes | None:
        """Return the prefix by which a broadcast of a key is for it, None where it is not."""
        return next(filter(key.startswith, self.prefixes), None)


class Owner(Protocol):
    """What is needed of the executor."""

    engine: Engine
    clients: dict[int, Client]
    options: ServerOptions


class Trackers:
    """The tracking clients of one server."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.clients: dict[Client, Tracking] = {}
        self.known: dict[bytes, set[int]] = {}
        """Keys, of whatever database, and the numbers of clients that may have them."""
        self._watch: KeyWatch | None = None
        self._messages: dict[Client, list[Sequence[bytes] | None]] = {}
        """By who tracks; None: all keys."""
        self._broadcasts: dict[Client, set[tuple[bytes, bytes]]] = {}
        """Prefixes and keys behind them, by who tracks."""

    def begin(self, client: Client, tracking: Tracking) -> None:
        """Have a client hear of changes from here on."""
        if self._watch is None:
            self._watch = self._owner.engine.catalog.index.watch()
        self.clients[client] = tracking

    def end(self, client: Client) -> None:
        """Have a client hear nothing any more."""
        if self.clients.pop(client, None) is None:
            return
        self._messages.pop(client, None)
        self._broadcasts.pop(client, None)
        if not self.clients:
            self._watch = None
            self.known.clear()

    @property
    def prefixes(self) -> set[bytes]:
        """The prefixes of which somebody hears."""
        return {prefix for each in self.clients.values() for prefix in each.prefixes}

    def concerns(self, key: bytes) -> bool:
        """Tell whether somebody hears of a change of a key."""
        return key in self.known or any(
            each.hears_of(key) is not None for each in self.clients.values()
        )

    # --- calls ----------------------------------------------------------------------------------

    def ran(self, client: Client, command: Command, argv: Argv, changed: bool) -> None:
        """Take what a call has shown and changed; ``changed``: something, so far in its turn."""
        keys = command.keys_of(argv)
        if command.name in _ALL:
            self._change_all()
        writes = Flag.WRITE in command.flags
        self.notice(client if writes else None, keys)
        if changed and command.name in _INSIDE:
            self._change(keys, client)
        tracking = self.clients.get(client)
        if tracking is None:
            return
        self.began(client, command, argv)
        if client.queue is None and not command.name.startswith("client|"):
            tracking.caching = False

    def began(self, client: Client, command: Command, argv: Argv) -> None:
        """Remember what a call shows; of one in steps it may be how keys are as it begins."""
        tracking = self.clients.get(client)
        if tracking is not None and Flag.READONLY in command.flags and tracking.remembers:
            for key in command.keys_of(argv):
                self.known.setdefault(key, set()).add(client.id)

    def attempt_of(self, client: Client, wait: Blocked) -> Attempt:
        """Return what a wait tries, so that what it shows is remembered as its call's keys were.

        What it finds tells of a change, by which they are forgotten.
        """
        known = self.known
        keys = [key for key in map(key_of, wait.names) if client.id in known.get(key, ())]
        if not keys:
            return wait.attempt

        def attempt(txn: Txn) -> Streams | Paged | None:
            reply = wait.attempt(txn)
            if reply is not None and client in self.clients:
                for key in keys:
                    known.setdefault(key, set()).add(client.id)
            return reply

        return attempt

    def notice(self, client: Client | None = None, own: Sequence[bytes] = ()) -> None:
        """Take what the index of keys was told: of ``own`` by a call of ``client``."""
        watch = self._watch
        if watch is None:
            return
        if watch.broken:
            watch.broken = False
            self._change_all()
        while watch.changed:  # by other threads too, which expire keys
            key = key_of(watch.changed.pop())
            self._change((key,), client if key in own else None)

    def _change(self, keys: Iterable[bytes], by: Client | None) -> None:
        for key in keys:
            for number in self.known.pop(key, ()):
                client = self._owner.clients.get(number)
                tracking = None if client is None else self.clients.get(client)
                if client is None or tracking is None or b"BCAST" in tracking.modes:
                    continue  # it has gone, or changed its mind
                if client is not by or b"NOLOOP" not in tracking.modes:
                    self._messages.setdefault(client, []).append((key,))
            for client, tracking in self.clients.items():
                prefix = tracking.hears_of(key)
                if prefix is not None and (client is not by or b"NOLOOP" not in tracking.modes):
                    self._broadcasts.setdefault(client, set()).add((prefix, key))

    def _change_all(self) -> None:
        self.known.clear()
        for client in self.clients:
            self._broadcasts.pop(client, None)
            self._messages[client] = [None]

    # --- messages -------------------------------------------------------------------------------

    def messages(self) -> list[Kept]:
        """Return what is to be said now, and have it said.

        Who gets a long reply page by page, or waits for one, hears of it behind that.
        """
        self.notice()
        most = self._owner.options.tracked_keys_max
        while 0 < most < len(self.known):
            self._change((next(iter(self.known)),), None)
        for client, pairs in self._broadcasts.items():
            said = self._messages.setdefault(client, [])
            for _, group in groupby(sorted(pairs), itemgetter(0)):
                said.append([key for _, key in group])
        self._broadcasts.clear()
        slots: list[Kept] = []
        for client in list(self._messages):
            hearer = self._hearer(client)
            if hearer is None:
                slots += self._told_as_broken(client)
            elif hearer.paged and not hearer.closing:
                if len(self._messages[client]) > HELD_MAX:
                    self._messages[client] = [None]
                continue
            elif hearer.protocol == RESP3:
                slots += [
                    _said(hearer, b"invalidate", None if keys is None else list(keys))
                    for keys in self._messages[client]
                ]
            del self._messages[client]
        return slots

    def _hearer(self, client: Client) -> Client | None:
        """Return who hears for a client; None: that one has gone, or is about to."""
        number = self.clients[client].redirect
        if not number:
            return client
        hearer = self._owner.clients.get(number)
        return None if hearer is None or hearer.closing else hearer

    def _told_as_broken(self, client: Client) -> list[Kept]:
        tracking = self.clients[client]
        tracking.broken = True
        if client.protocol != RESP3:
            return []
        return [_said(client, b"tracking-redir-broken", tracking.redirect)]


def _said(client: Client, what: bytes, of: Reply) -> Slot:
    # Not a reply: an error in its place would be taken for one.
    return Slot(client, Push([what, of]), protocol=RESP3, keeps=False, told=True)


def shown(trackers: Trackers) -> Mapping[str, int]:
    """Return what INFO tells of them, by its words."""
    known = trackers.known
    return {
        "tracking_total_keys": len(known),
        "tracking_total_items": sum(map(len, known.values())),
        "tracking_total_prefixes": len(trackers.prefixes),
    }
