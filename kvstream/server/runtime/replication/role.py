"""The role of a server, and its changes: between two turns, in the order of docs/internals.md.

A change is asked for within a turn. It happens behind the turn, since the rows of the turn are the
last ones of the old role, and a script that is suspended belongs to its turn.
"""

import logging
import ssl
from collections.abc import Callable
from functools import partial

from kvstream.engine.following import Source
from kvstream.errors import KVStreamError, ReplicationRefused
from kvstream.logs import NOTICE
from kvstream.replicas.connection import LinkOptions, link_context
from kvstream.replicas.follower import Follower
from kvstream.server.inert_settings import number_of, text_of
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.blocked_clients import BlockedClients
from kvstream.server.runtime.client import Server
from kvstream.server.runtime.loop import Loop
from kvstream.server.runtime.replication.replicas import Replicas
from kvstream.storage.changes import read_history
from kvstream.types.clock import monotonic

STOP_S = 1.0
"""How long a stop waits for the thread of the link, which applies nothing more."""
UNBLOCKED = "force unblock from blocking operation, instance state changed (master -> replica?)"

_log = logging.getLogger(__name__)


class Role:
    """The role of one server."""

    def __init__(
        self,
        server: Server,
        blocking: BlockedClients,
        loop: Loop,
        replicas: Replicas,
        changed: Callable[[], None],
    ) -> None:
        """``changed`` is called in the loop's thread after changes of the link."""
        self._server, self._engine = server, server.engine
        self._blocking, self._loop, self._replicas = blocking, loop, replicas
        self._changed = changed
        self.follower: Follower | None = None
        """What follows the primary; None: this server is one."""
        self._wanted: tuple[Source | None] | None = None
        """The role that was asked for in this turn."""

    @property
    def source(self) -> Source | None:
        """The primary that this server follows, as it was asked for last."""
        return self._engine.following.source if self._wanted is None else self._wanted[0]

    @property
    def is_due(self) -> bool:
        """Whether a change was asked for."""
        return self._wanted is not None

    def start(self) -> None:
        """Take the role that the store has."""
        following = self._engine.following
        if self._engine.database.loss is not None:
            following.end_history()
        if following.source is not None:
            self._start_follower(following.source)
        elif read_history(self._engine.database) is not None:
            self._engine.database.is_followed = True

    def stop(self) -> None:
        """End the link: the server stops."""
        if self.follower is not None:
            self.follower.stop()
            self.follower.join(STOP_S)

    def change(self, source: Source | None) -> None:
        """Follow a primary, or become one, behind the present turn.

        Raises ReplicationRefused without a server.
        """
        if not self._loop.suspends_turns:
            raise ReplicationRefused("a store of this process has no replicas: serve it")
        self._wanted = (source,)

    def take(self) -> bool:
        """Take the role that was asked for; return false if it is the present one.

        If that fails, as on a full disk, the role stays what it is.
        """
        assert self._wanted is not None
        (wanted,), self._wanted = self._wanted, None
        if wanted == self._engine.following.source:
            return False
        try:
            if wanted is None:
                self._promote()
            else:
                self._follow(wanted)
        except (KVStreamError, OSError) as error:
            _log.error("the role cannot be changed: %s", error)
            present = self._engine.following.source
            if present is not None and self.follower is None:
                self._start_follower(present)
        return True

    def hand_over(self, source: Source, last: int | None) -> bool:
        """Follow a replica of this server, which becomes the primary first.

        Nothing is done, and false returned, if there are rows behind the number ``last``.
        """
        return self._follow(source, last, hands_over=True)

    def take_back(self) -> None:
        """Be the primary again: the replica has not become one."""
        self._wanted = (None,)
        self.take()

    def _follow(self, source: Source, last: int | None = None, hands_over: bool = False) -> bool:
        self._stop_follower()
        if not self._engine.following.follow(source, last):
            return False
        self._replicas.drop_all()
        for client in list(self._server.clients.values()):
            self._blocking.unblock(client, UNBLOCKED)
        _log.log(NOTICE, "follows %s:%d from now on", *source)
        self._start_follower(source, hands_over)
        return True

    def _promote(self) -> None:
        """Become a primary; the link is closed first, so that nothing of it is applied later."""
        self._stop_follower()
        self._engine.following.promote()
        self._replicas.alone_since = monotonic()
        _log.log(NOTICE, "is a primary from now on")

    def _start_follower(self, source: Source, hands_over: bool = False) -> None:
        changed = partial(self._server.post, self._changed)
        own = self._engine, source, self.link_options, changed
        self.follower = Follower(*own, hands_over)
        self.follower.start()

    def _stop_follower(self) -> None:
        """Apply nothing more; the thread ends soon."""
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.stop()

    def link_options(self) -> LinkOptions:
        """Return how this server connects to others, by the present settings."""
        options = self._server.options
        return LinkOptions(
            number_of(options, "replica-announce-port") or options.port or options.tls_port,
            text_of(options, "replica-announce-ip"),
            text_of(options, "masteruser"),
            text_of(options, "masterauth"),
            number_of(options, "repl-timeout"),
            partial(_link_context, options) if number_of(options, "tls-replication") else None,
        )


def _link_context(options: ServerOptions) -> ssl.SSLContext:
    return link_context(
        options.tls_ca_cert_file,
        options.tls_cert_file,
        options.tls_key_file,
        options.tls_key_file_pass,
    )
