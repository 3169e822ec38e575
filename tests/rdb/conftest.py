"""The compiled twins, where there are any, and servers that take payloads and load files."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvstream.rdb import twins as compiled
from tests.operations.fixtures import redis_server
from tests.rdb.redis_files import RedisFiles

Start = Callable[..., RedisFiles]
__all__ = ["Start", "redis_files", "redis_server", "twins"]


@pytest.fixture(scope="session")
def twins() -> Any:
    """The compiled module; without one the test is skipped, or fails if nothing may be."""
    if compiled is None:
        if os.environ.get("KVSTREAM_REQUIRE_ALL") and os.environ.get("KVSTREAM_PURE") != "1":
            pytest.fail("the compiled twins are not installed: they need a C compiler")
        pytest.skip("the compiled twins are not installed, or not wanted")
    return compiled


@pytest.fixture
def redis_files(tmp_path: Path) -> Iterator[Start]:
    """Start a redis-server that has a directory to itself: ``redis_files("name", **settings)``."""
    with ExitStack() as stack:

        def start(name: str = "redis", **settings: object) -> RedisFiles:
            return stack.enter_context(RedisFiles(tmp_path / name, **settings))

        yield start
