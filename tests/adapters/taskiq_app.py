"""A taskiq program whose workers a test kills."""

import asyncio
import os

from kvstream.adapters.taskiq import KVStreamBroker, KVStreamResultBackend
from tests.adapters.conftest import LEASE_S, options_of

PLACE = os.environ["KVSTREAM_PLACE"]

broker = KVStreamBroker(PLACE, lease=LEASE_S, **options_of(PLACE)).with_result_backend(
    KVStreamResultBackend(PLACE, **options_of(PLACE))
)


@broker.task(task_name="note")
async def note(n: int) -> None:
    await asyncio.sleep(0.01)
    await broker.place.call(lambda: broker.place.store.stream("done").add({"n": n}))
