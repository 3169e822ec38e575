"""The store of the library's tests, and a stream of it."""

import pytest

from kvstream import Store, Stream
from tests.engine.sharing import clock, shared, store

__all__ = ["clock", "five", "shared", "store", "stream"]


@pytest.fixture
def stream(store: Store) -> Stream:
    """The stream "s", not created yet."""
    return store.stream("s")


@pytest.fixture
def five(stream: Stream) -> Stream:
    """The stream "s" of the entries 1-0 to 5-0."""
    for ms in range(1, 6):
        stream.add({"n": ms}, id=f"{ms}-0")
    return stream
