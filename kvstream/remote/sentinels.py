"""What Sentinels say: where the primary of a name is, and where its replicas are.

Each is asked in turn, the one that has answered last first. Their answers may be old: after a
failover some of them name the former primary for a while, and a server that restarts may not have
been told its role yet. So who asks looks at the role of the server that was named, and asks again.
``remote/failover.py`` says how often.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from kvstream.errors import InvalidArgument, KVStreamError
from kvstream.remote.connection import Connection, Link, connect
from kvstream.remote.replies import members
from kvstream.remote.server_errors import NotPrimary
from kvstream.types.urls import Sentinels, netloc_of

ASK_S = 1.0
"""Timeout of connecting to a Sentinel, and of its answer."""
_AWAY = ("s_down", "o_down", "disconnected", "master_down")
"""Flags of a replica that does not answer, or does not follow."""


class Address(NamedTuple):
    """Where a server is, as a Sentinel has said."""

    host: str
    port: int

    def __str__(self) -> str:
        return netloc_of(self.host, self.port)


class Said(NamedTuple):
    """The answer of a Sentinel."""

    sentinel: str
    address: Address | None
    error: KVStreamError | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.sentinel}: {self.error}"
        return f"{self.sentinel} " + (
            "does not know the name" if self.address is None else f"names {self.address}"
        )


class Asker:
    """Asks the Sentinels of a URL."""

    def __init__(
        self, sentinels: Sentinels, connection_type: type[Connection] = Connection
    ) -> None:
        self.sentinels = sentinels
        self._connection_type = connection_type
        self._order = list(sentinels.addresses)

    def primaries(self) -> Iterator[Said]:
        """Ask one Sentinel after the other for the primary, and yield what each says."""
        for each in list(self._order):
            try:
                reply = self._ask(each, "GET-MASTER-ADDR-BY-NAME")
            except InvalidArgument:  # an option of the URL
                raise
            except KVStreamError as error:
                yield Said(each, None, error)
                continue
            self._prefer(each)
            yield Said(each, None if reply is None else Address(reply[0].decode(), int(reply[1])))

    def replicas(self) -> list[Address]:
        """Return the replicas that follow, as the first Sentinel that answers says.

        There are none if no Sentinel answers. Those that are never promoted are among them.
        """
        for each in list(self._order):
            try:
                rows = [members(row) for row in self._ask(each, "REPLICAS")]
            except KVStreamError:
                continue
            self._prefer(each)
            return [
                Address(row["ip"].decode(), int(row["port"]))
                for row in rows
                if not set(row["flags"].decode().split(",")) & set(_AWAY)
                and row.get("master-link-status") == b"ok"
            ]
        return []

    def _ask(self, sentinel: str, command: str) -> Any:
        url = self.sentinels.sentinel(sentinel)
        connection = self._connection_type(connect(url, ASK_S, ASK_S))
        try:
            return connection.ask("SENTINEL", command, self.sentinels.name)
        finally:
            connection.close()

    def _prefer(self, sentinel: str) -> None:
        """Ask this Sentinel first the next time."""
        self._order = [sentinel, *(each for each in self._order if each != sentinel)]


def require_primary(link: Link) -> None:
    """Raise NotPrimary if a connection leads to a replica.

    A server that has become one is refused here whenever it is connected to again.
    """
    role = role_of(link)
    if role not in ("master", ""):
        raise NotPrimary("it is a replica now")


def role_of(link: Link) -> str:
    """Return the role of a server: ``master`` or ``slave``; empty if it tells nobody."""
    from redis import ResponseError

    for word in ("HELLO", "ROLE"):
        try:
            reply = link.ask((word,))
        except ResponseError:  # not every user may send it
            continue
        role = reply[0] if word == "ROLE" else members(reply).get("role", b"")
        return "slave" if role == b"replica" else bytes(role).decode()
    return ""
