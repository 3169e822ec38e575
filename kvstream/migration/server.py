"""A live server: one connection per database, its version, and what this user may do on it."""

from dataclasses import dataclass
from typing import Any

from kvstream.errors import KVStreamError, NoSuchKey, RequestError
from kvstream.migration.items import STAGED_PREFIX
from kvstream.migration.places import Place
from kvstream.rdb.versions import Target, target_of
from kvstream.remote.connection import Connection, socket_connection
from kvstream.remote.failover import connect_present

BULK_BYTES_MAX = 512 << 20
"""Longest argument of a request if the server does not report it: Redis's default."""
REPLY_S = 300.0
"""Timeout of a reply: a RESTORE of half a gigabyte keeps a server busy."""
_REFUSALS = ("unknown command", "unknown subcommand", "NOPERM", "no permissions", "not allowed")

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class About:
    """The name and the version of a server."""

    name: str
    """``Redis``, ``Valkey`` or ``kvstream``."""
    version: Version
    """The version of Redis whose commands it has."""
    shown: str
    target: Target
    """The newest format of streams that it can hold."""


class Server:
    """A server that is read or written by one thread."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._connections: dict[int, Connection] = {}
        self._sockets: dict[int, Any] = {}
        self._has_database: dict[int, bool] = {}
        self.about, mode = self._describe()
        self.bulk_bytes_max = self._bulk_bytes_max()
        self.has_queues = self.about.name == "kvstream" and self._exports_queues()
        """Whether it gives and takes what a stream has as a queue."""
        self.is_cluster = "cluster" in mode
        """Whether it is a node of a cluster, which holds only a part of the keys."""

    def connection(self, db: int) -> Connection:
        """Return the connection to a database; nothing is sent before the first command."""
        if db not in self._connections:
            user, password = self.place.user, self.place.password
            address = self.place.address
            client = connect_present(address, reply_s=REPLY_S, user=user, password=password)
            self._connections[db] = Connection(client, db)
        return self._connections[db]

    def socket_connection(self, db: int) -> Any:
        """Return a connection of redis-py, for requests that are sent in parts."""
        if db not in self._sockets:
            self._sockets[db] = socket_connection(self.connection(db).client)
        return self._sockets[db]

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.disconnect()
        for connection in self._connections.values():
            connection.close()

    def has_database(self, db: int) -> bool:
        """Return whether the server has a database of this number, by selecting it."""
        if db not in self._has_database:
            self._has_database[db] = True
            try:
                self.connection(db).ask("PING")
            except RequestError as error:
                self._has_database[db] = "DB index" not in str(error)
        return self._has_database[db]

    def databases(self) -> list[int]:
        """Return the databases that have keys."""
        keyspace = self.connection(0).info("keyspace")
        return sorted(int(name.removeprefix("db")) for name in keyspace if name.startswith("db"))

    def _describe(self) -> tuple[About, str]:
        first = self.connection(self.place.database or 0)
        first.greet()
        fields = first.info("server")
        redis_version = str(fields.get("redis_version", "0.0"))
        valkey, own = fields.get("valkey_version"), fields.get("kvstream_version")
        name = "Valkey" if valkey else "kvstream" if own else "Redis"
        about = About(
            name,
            _version(redis_version),
            f"{name} {valkey or own or redis_version}",
            target_of(redis_version, valkey=valkey is not None),
        )
        return about, str(fields.get("redis_mode") or fields.get("server_mode") or "standalone")

    def _exports_queues(self) -> bool:
        """Ask for the queue of a key that is not there; who lacks the right gets an error later."""
        try:
            self.connection(0).ask("KVSTREAM.QUEUE", "EXPORT", STAGED_PREFIX + b"probe")
        except RequestError as error:
            return "unknown" not in str(error)
        return True

    def _bulk_bytes_max(self) -> int:
        try:
            reply = self.connection(0).ask("CONFIG", "GET", "proto-max-bulk-len")
        except KVStreamError:  # hosted servers refuse CONFIG
            return BULK_BYTES_MAX
        return int(reply[1]) if reply else BULK_BYTES_MAX


def _version(text: str) -> Version:
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        raise RequestError(f"the server reports no version that is known: {text!r}")
    return int(major), int(minor)


def is_refused(error: RequestError) -> bool:
    """Return whether a server lacks a command, or does not allow it to this user."""
    return any(refusal in str(error) for refusal in _REFUSALS)


def memory_of(connection: Connection, key: bytes) -> int:
    """Return about how many bytes a key takes; 0 if the server does not tell."""
    try:
        return connection.ask("MEMORY", "USAGE", key) or 0
    except NoSuchKey:
        raise
    except RequestError:
        return 0
