"""CLIENT TRACKING: invalidation messages for clients that cache keys.

A key that a tracking client reads is remembered until its invalidation is sent; in broadcast mode a
client gets every change of keys with its prefixes. Changes come from the index of keys and, for
changes inside a stream, from the command. Messages are sent after the replies of the turn: their
changes are committed by then, and no reply with older content follows them. REDIRECT names another
client that gets them instead; if that one speaks RESP2 it must be subscribed, and gets them as
messages of ``__redis__:invalidate``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvstream.commands.command import Attempt, Blocked, Command, Flag
from kvstream.commands.replies import RESP3, Push, Reply, Shared
from kvstream.layout.keys import key_of
from kvstream.meta.keyspace import KeyWatch
from kvstream.meta.txn import Txn
from kvstream.server.acl import User
from kvstream.server.runtime.client import Client, PendingReplies, Server
from kvstream.server.runtime.reply_queue import PendingReply

INVALIDATE = b"__redis__:invalidate"
"""The channel of the messages to a subscribed client that speaks RESP2."""
WAITING_MAX = 1000
"""Messages that wait behind a streamed reply; more are replaced by one for all keys."""


@dataclass(slots=True)
class Tracking:
    """The tracking options of one client."""

    modes: frozenset[bytes]
    """BCAST, OPTIN, OPTOUT, NOLOOP."""
    prefixes: list[bytes] = field(default_factory=list)
    redirect: int = 0
    """The ID of the client that gets the messages instead; 0: none."""
    caching: bool = False
    """CLIENT CACHING was sent for the next command or transaction."""
    broken: bool = False
    """The client of ``redirect`` is gone."""

    @property
    def remembers(self) -> bool:
        """Whether keys that the client reads now are remembered."""
        return b"BCAST" not in self.modes and (
            self.caching if b"OPTIN" in self.modes else not self.caching
        )


class Trackers:
    """The tracking clients of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.clients: dict[Client, Tracking] = {}
        self.known: dict[bytes, set[int]] = {}
        """Keys of all databases, and the IDs of clients that may cache them."""
        self._watch: KeyWatch | None = None
        self._messages: dict[Client, list[Sequence[bytes] | None]] = {}
        """Keys to invalidate, by tracking client; None: all keys."""
        self.prefixes: dict[bytes, dict[Client, None]] = {}
        """The clients in broadcast mode, by prefix."""
        self._lengths: set[int] = set()
        """The lengths of the prefixes."""
        self._broadcasts: dict[bytes, dict[bytes, Client | None]] = {}
        """Keys to invalidate, by prefix, with the client that changed them; None if several did."""

    def begin(self, client: Client, tracking: Tracking) -> None:
        """Begin tracking for a client."""
        if self._watch is None:
            self._watch = self._server.engine.catalog.index.watch()
        self.clients[client] = tracking
        for prefix in tracking.prefixes:
            self.prefixes.setdefault(prefix, {})[client] = None
            self._lengths.add(len(prefix))

    def end(self, client: Client) -> None:
        """End tracking for a client."""
        tracking = self.clients.pop(client, None)
        if tracking is None:
            return
        self._messages.pop(client, None)
        for prefix in tracking.prefixes:
            del self.prefixes[prefix][client]
            if not self.prefixes[prefix]:
                del self.prefixes[prefix]
                self._lengths = set(map(len, self.prefixes))
        if not self.clients:
            self._watch = None
            self.known.clear()

    def is_tracked(self, key: bytes) -> bool:
        """Return whether any client is notified of changes of a key."""
        return key in self.known or bool(self._prefixes_of(key))

    def _prefixes_of(self, key: bytes) -> list[bytes]:
        """Return the prefixes of broadcast mode with which a key begins."""
        prefixes = [key[:length] for length in self._lengths if length <= len(key)]
        return [prefix for prefix in prefixes if prefix in self.prefixes]

    # --- calls ----------------------------------------------------------------------------------

    def note_call(self, client: Client, command: Command, keys: list[bytes], changed: bool) -> None:
        """Note the keys that a call read; ``changed``: it may have changed them."""
        invalidates = Flag.INVALIDATES in command.flags
        if invalidates and command.keys is None:
            self._change_all()
        writes = Flag.WRITE in command.flags
        self.notice(client if writes else None, keys)
        if changed and invalidates:
            self._change(keys, client)
        tracking = self.clients.get(client)
        if tracking is None:
            return
        self.begin_call(client, command, keys)
        if client.queue is None and not command.name.startswith("client|"):
            tracking.caching = False

    def begin_call(self, client: Client, command: Command, keys: list[bytes]) -> None:
        """Remember the keys that a call reads; an incremental one reads them as it begins."""
        tracking = self.clients.get(client)
        if tracking is None or command.runs_scripts:
            return
        if Flag.READONLY in command.flags and tracking.remembers:
            for key in keys:
                self.known.setdefault(key, set()).add(client.id)

    def attempt_of(self, client: Client, wait: Blocked) -> Attempt:
        """Return the attempt of a blocked read that remembers its keys again.

        The change that serves the read also forgets them.
        """
        known = self.known
        keys = [key for key in map(key_of, wait.names) if client.id in known.get(key, ())]
        if not keys:
            return wait.attempt

        def attempt(txn: Txn) -> Reply:
            reply = wait.attempt(txn)
            if reply is not None and client in self.clients:
                for key in keys:
                    known.setdefault(key, set()).add(client.id)
            return reply

        return attempt

    def notice(self, client: Client | None = None, own: Sequence[bytes] = ()) -> None:
        """Note the changes of the index of keys; ``client`` made those of the keys ``own``."""
        watch = self._watch
        if watch is None:
            return
        if watch.broken:
            watch.broken = False
            self._change_all()
        while watch.changed:  # other threads expire keys too
            key = key_of(watch.changed.pop())
            self._change((key,), client if key in own else None)

    def _change(self, keys: Iterable[bytes], by: Client | None) -> None:
        for key in keys:
            alone = (key,)
            for number in self.known.pop(key, ()):
                client = self._server.clients.get(number)
                tracking = None if client is None else self.clients.get(client)
                if client is None or tracking is None or b"BCAST" in tracking.modes:
                    continue  # it is gone, or tracks no more
                if client is not by or b"NOLOOP" not in tracking.modes:
                    self._messages.setdefault(client, []).append(alone)
            for prefix in self._prefixes_of(key):
                changed = self._broadcasts.setdefault(prefix, {})
                changed[key] = by if changed.get(key, by) is by else None

    def _change_all(self) -> None:
        self.known.clear()
        self._broadcasts.clear()
        for client in self.clients:
            self._messages[client] = [None]

    # --- messages -------------------------------------------------------------------------------

    def messages(self) -> list[PendingReplies]:
        """Return the messages to send now; a client with a streamed reply gets its own later."""
        self.notice()
        most = self._server.options.tracked_keys_max
        while 0 < most < len(self.known):
            self._change((next(iter(self.known)),), None)
        for prefix in sorted(self._broadcasts):
            self._broadcast(prefix)
        self._broadcasts.clear()
        replies: list[PendingReplies] = []
        shared: dict[tuple[int, int], Shared] = {}
        sent: list[object] = []
        for client in list(self._messages):
            receiver = self._receiver(client)
            if receiver is None:
                replies += self._broken_redirect(client)
            elif receiver.reply_unfinished and not receiver.closing:
                if len(self._messages[client]) > WAITING_MAX:
                    self._messages[client] = [None]
                continue
            elif receiver.protocol == RESP3 or (
                self.clients[client].redirect and receiver.subscriptions
            ):
                for keys in self._messages[client]:
                    same = id(keys), receiver.protocol
                    if same not in shared:
                        shared[same] = _invalidation(receiver.protocol, keys)
                    replies.append(_message_to(receiver, shared[same]))
            sent.append(self._messages.pop(client))  # which keeps the identities
        return replies

    def _broadcast(self, prefix: bytes) -> None:
        """Make the messages of the changed keys with a prefix."""
        changed = self._broadcasts[prefix]
        names = sorted(changed)
        by_user: dict[User, list[bytes]] = {}
        for client in self.prefixes.get(prefix, ()):
            keys = by_user.get(client.user)
            if keys is None:  # names of forbidden keys stay secret
                keys = [name for name in names if client.user.may_read(name)]
                by_user[client.user] = keys
            if b"NOLOOP" in self.clients[client].modes and client in changed.values():
                keys = [name for name in keys if changed[name] is not client]
            if keys:
                self._messages.setdefault(client, []).append(keys)

    def _receiver(self, client: Client) -> Client | None:
        """Return the client that gets the messages of a client; None: it is gone or closing."""
        number = self.clients[client].redirect
        if not number:
            return client
        receiver = self._server.clients.get(number)
        return None if receiver is None or receiver.closing else receiver

    def _broken_redirect(self, client: Client) -> list[PendingReplies]:
        """Note that the client of ``redirect`` is gone; return the message about it."""
        tracking = self.clients[client]
        tracking.broken = True
        if client.protocol != RESP3:
            return []
        return [_message_to(client, Push([b"tracking-redir-broken", tracking.redirect]))]


def _invalidation(protocol: int, names: Sequence[bytes] | None) -> Shared:
    """Return the invalidation message in a protocol; ``names`` is None for all keys."""
    keys: Reply = None if names is None else [*names]
    if protocol == RESP3:
        return Shared(Push([b"invalidate", keys]))
    return Shared([b"message", INVALIDATE, keys])


def _message_to(client: Client, message: Reply) -> PendingReply:
    # Not a reply: no error may replace it.
    return PendingReply(client, message, protocol=client.protocol, depends=False, is_sent=True)


def figures(trackers: Trackers) -> Mapping[str, int]:
    """Return the tracking fields of INFO."""
    known = trackers.known
    return {
        "tracking_total_keys": len(known),
        "tracking_total_items": sum(map(len, known.values())),
        "tracking_total_prefixes": len(trackers.prefixes),
    }
