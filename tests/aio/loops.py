"""Run the coroutine of a test, and wait in it for conditions."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.patience import LOOK_S, PATIENCE_S

T = TypeVar("T")


async def patient(event: Awaitable[T]) -> T:
    """Await a result; fail after PATIENCE_S."""
    async with asyncio.timeout(PATIENCE_S):
        return await event


async def until(condition: Callable[[], object]) -> None:
    """Return once ``condition`` holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(LOOK_S)
