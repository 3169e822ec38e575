"""A taskiq program on taskiq-redis whose workers a test kills."""

import asyncio
import os

from redis.asyncio import Redis
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

URL = f"redis://127.0.0.1:{os.environ['REDIS_PORT']}/0"

results = RedisAsyncResultBackend(URL, result_ex_time=600)
# A lock that a killed worker holds ends; what it had not acknowledged is taken over.
broker = RedisStreamBroker(
    URL,
    queue_name="jobs",
    consumer_id="0",
    xread_block=200,
    xread_count=20,
    idle_timeout=1000,
    unacknowledged_lock_timeout=1,
).with_result_backend(results)
done = Redis.from_url(URL)


@broker.task(task_name="square")
async def square(n: int) -> int:
    """Return the square, and record that the task was done."""
    await asyncio.sleep(0.005)
    await done.xadd("done", {"n": n})
    return n * n
