"""Dispatchers on stores, called with words in place of argument lists."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvstream import ManualClock, Store
from kvstream.commands.replies import ErrorReply
from tests.commands.dispatcher import Dispatcher, flatten
from tests.opening import Stores
from tests.operations.fixtures import redis_server
from tests.server.conftest import redis82_port, redis82_process

__all__ = ["redis82_port", "redis82_process", "redis_server"]

Say = Callable[..., Any]
"""``say("XADD s * f v")`` or ``say("XADD", "s", "*", b"f", "")``: the reply in plain Python."""


def words(*parts: str | bytes) -> list[bytes]:
    """Return the arguments of one line of words, or of several parts unchanged."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0].encode().split()
    return [part if isinstance(part, bytes) else part.encode() for part in parts]


def speaker(dispatcher: Dispatcher) -> Say:
    """Return a function that runs one command; an error is returned as the text of its line."""

    def say(*parts: str | bytes) -> Any:
        reply = flatten(dispatcher.execute(words(*parts)))
        if isinstance(reply, ErrorReply):
            return reply.line.decode("utf-8", "surrogateescape")
        return reply

    return say


@pytest.fixture
def dispatcher(store: Store) -> Dispatcher:
    """A dispatcher on an empty store; its clock moves only when the test advances it."""
    return Dispatcher(store.engine)


@pytest.fixture
def say(dispatcher: Dispatcher) -> Say:
    """Run one command on an empty store."""
    return speaker(dispatcher)


@pytest.fixture(scope="module")
def shared_say(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Say]:
    """Run one command on a store that the tests of a module share, as they change nothing."""
    stores = Stores(tmp_path_factory.mktemp("shared"), ManualClock())
    yield speaker(Dispatcher(stores().engine))
    stores.finish()
