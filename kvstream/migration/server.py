"""A live server: its connections, one for each database, and what it says of itself.

It knows how to ask, and neither what is asked for nor why.
"""

from dataclasses import dataclass
from typing import Any

from kvstream.errors import KVStreamError, RequestError
from kvstream.migration.places import Place
from kvstream.rdb.targets import Target, target_of
from kvstream.remote.connection import Connection, connect
from kvstream.remote.replies import sections_of

BULK_BYTES_MAX = 512 << 20
"""The longest value of a request where the server does not tell another: Redis's default."""
REPLY_S = 300.0
"""How long a reply is waited for: a RESTORE of half a gigabyte keeps a server busy."""

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class About:
    """What a server is."""

    name: str
    """``Redis``, ``Valkey`` or ``kvstream``."""
    version: Version
    """Of Redis, whose commands it has: what decides which may be sent."""
    shown: str
    target: Target
    """What it can hold."""


class Server:
    """A server that is read or written, by one thread."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._connections: dict[int, Connection] = {}
        self._clients: dict[int, Any] = {}
        self._raw: dict[int, Any] = {}
        self.about = self._about()
        self.bulk_bytes_max = self._bulk_bytes_max()
        self.is_cluster = "cluster" in self._mode
        """Whether it has only a part of the keys, and takes no others."""

    def connection(self, db: int) -> Connection:
        """Return the connection to a database; nothing is sent before the first command."""
        if db not in self._connections:
            client = connect(self.place.address, reply_s=REPLY_S)
            settings = client.connection_pool.connection_kwargs
            if self.place.user is not None:
                settings["username"] = self.place.user
            if self.place.password is not None:
                settings["password"] = self.place.password
            self._connections[db] = Connection(client, db)
            self._clients[db] = client
        return self._connections[db]

    def client(self, db: int) -> Any:
        """Return the client of redis-py below the connection to a database."""
        self.connection(db)
        return self._clients[db]

    def raw(self, db: int) -> Any:
        """Return a connection of redis-py, for requests that are sent in parts."""
        if db not in self._raw:
            self._raw[db] = self.client(db).connection_pool.make_connection()
        return self._raw[db]

    def close(self) -> None:
        for connection in self._raw.values():
            connection.disconnect()
        for connection in self._connections.values():
            connection.close()

    def databases(self) -> list[int]:
        """Return the databases in which there is a key."""
        told = sections_of(self.connection(0).ask("INFO", "keyspace")).get("keyspace", {})
        return sorted(int(name.removeprefix("db")) for name in told if name.startswith("db"))

    def _about(self) -> About:
        first = self.connection(self.place.database or 0)
        first.greet()
        told = sections_of(first.ask("INFO", "server")).get("server", {})
        self._mode = str(told.get("redis_mode") or told.get("server_mode") or "standalone")
        redis_version = str(told.get("redis_version", "0.0"))
        valkey = told.get("valkey_version")
        own = told.get("kvstream_version")
        name = "Valkey" if valkey else "kvstream" if own else "Redis"
        return About(
            name,
            _version(redis_version),
            f"{name} {valkey or own or redis_version}",
            target_of(redis_version, valkey=valkey is not None),
        )

    def _bulk_bytes_max(self) -> int:
        try:
            reply = self.connection(0).ask("CONFIG", "GET", "proto-max-bulk-len")
        except KVStreamError:  # hosted servers tell nobody
            return BULK_BYTES_MAX
        return int(reply[1]) if reply else BULK_BYTES_MAX


def _version(text: str) -> Version:
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        raise RequestError(f"the server does not tell its version: {text!r}")
    return int(major), int(minor)
