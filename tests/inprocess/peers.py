"""The peers of a program of redis-py: a store of its own process, or a redis-server."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import redis
import redis.asyncio

from kvstream import Store, connect, connect_async


@dataclass
class Peer:
    """Makes clients, and closes those that a test has left open."""

    name: str
    make: Callable[..., redis.Redis]
    make_async: Callable[..., redis.asyncio.Redis]
    _clients: list[redis.Redis] = field(default_factory=list)

    def client(self, **options: Any) -> Any:
        """Return a client for threads; the types of its methods are too wide to be useful."""
        client = self.make(**options)
        self._clients.append(client)
        return client

    @contextlib.asynccontextmanager
    async def tasks_client(self, **options: Any) -> Any:
        """Give a client for asyncio, and close it."""
        client = self.make_async(**options)
        try:
            yield client
        finally:
            await client.aclose()

    def close(self) -> None:
        for client in self._clients:
            client.close()


def in_process(store: Store) -> Peer:
    """Return the clients of an open store."""
    return Peer(
        "in process",
        lambda **options: connect(store, **options),
        lambda **options: connect_async(store, **options),
    )


def on_a_server(port: int) -> Peer:
    """Return the clients of a redis-server."""

    def make(pool: Any = None, **options: Any) -> redis.Redis:
        if pool is None:
            return redis.Redis(port=port, **options)
        return redis.Redis.from_pool(pool(port=port, **options))

    return Peer("redis-server", make, lambda **options: redis.asyncio.Redis(port=port, **options))


@contextlib.contextmanager
def closing(peer: Peer) -> Iterator[Peer]:
    try:
        yield peer
    finally:
        peer.close()
