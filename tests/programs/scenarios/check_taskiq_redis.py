"""taskiq-redis: its brokers of streams and channels, results, schedules, and killed workers."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
import warnings
from datetime import UTC, datetime

import pytest
from redis.asyncio import Redis
from taskiq import BrokerMessage, ScheduledTask, TaskiqResult
from taskiq.depends.progress_tracker import TaskProgress, TaskState
from taskiq_redis import (
    ListQueueBroker,
    ListRedisScheduleSource,
    PubSubBroker,
    RedisAsyncResultBackend,
    RedisScheduleSource,
    RedisStreamBroker,
)

URL = f"redis://127.0.0.1:{os.environ['REDIS_PORT']}/0"
PATIENCE_S = 60


@pytest.fixture(autouse=True)
async def client():
    async with Redis.from_url(URL) as client:
        await client.flushall()
        yield client


def message(text, **labels):
    return BrokerMessage(task_id=text, task_name="t", message=text.encode(), labels=labels)


def streams(**options):
    return RedisStreamBroker(URL, xread_block=100, **options)


async def received(broker, count, acknowledge=True):
    found = []
    async for each in broker.listen():
        found.append(each.data.decode())
        if acknowledge:
            await each.ack()
        if len(found) == count:
            return found


async def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_stream_broker_hands_out_each_task_once(client):
    broker = streams()
    await broker.startup()
    for n in range(50):
        await broker.kick(message(str(n)))
    assert sorted(await received(broker, 50), key=int) == [str(n) for n in range(50)]
    assert (await client.xpending("taskiq", "taskiq"))["pending"] == 0
    await broker.shutdown()


async def test_stream_broker_goes_on_after_a_batch():
    broker = streams(xread_count=3)
    await broker.startup()
    for n in range(20):
        await broker.kick(message(str(n)))
    assert len(await asyncio.wait_for(received(broker, 20), PATIENCE_S)) == 20
    await broker.shutdown()


async def test_stream_broker_takes_over_what_was_not_acknowledged(client):
    first, second = (streams(idle_timeout=100) for _ in range(2))
    await first.startup()
    await first.kick(message("lost"))
    assert await received(first, 1, acknowledge=False) == ["lost"]
    await asyncio.sleep(0.2)
    await first.kick(message("new"))
    assert sorted(await asyncio.wait_for(received(second, 2), PATIENCE_S)) == ["lost", "new"]
    assert (await client.xpending("taskiq", "taskiq"))["pending"] == 0
    await first.shutdown()
    await second.shutdown()


async def test_stream_broker_reads_additional_streams():
    broker = streams(additional_streams={"urgent": ">"})
    await broker.startup()
    await broker.kick(message("a"))
    await broker.kick(message("b", queue_name="urgent"))
    assert sorted(await asyncio.wait_for(received(broker, 2), PATIENCE_S)) == ["a", "b"]
    await broker.shutdown()


async def test_stream_broker_keeps_its_length(client):
    broker = streams(maxlen=20, approximate=False)
    await broker.startup()
    for n in range(50):
        await broker.kick(message(str(n)))
    assert await client.xlen("taskiq") == 20
    await broker.shutdown()


async def test_pubsub_broker_tells_every_worker(client):
    brokers = [PubSubBroker(URL) for _ in range(3)]

    async def first_of(broker):
        async for each in broker.listen():
            return each

    workers = [asyncio.create_task(first_of(broker)) for broker in brokers]

    async def all_listen():
        return (await client.pubsub_numsub("taskiq"))[0][1] == 3

    await until(all_listen)
    await brokers[0].kick(message("to all"))
    assert await asyncio.wait_for(asyncio.gather(*workers), PATIENCE_S) == [b"to all"] * 3
    for broker in brokers:
        await broker.shutdown()


@pytest.mark.parametrize("keep", [True, False])
async def test_results(client, keep):
    backend = RedisAsyncResultBackend(URL, keep_results=keep, result_ex_time=60)
    result = TaskiqResult(is_err=False, return_value={"n": 1}, execution_time=0.1)
    assert not await backend.is_result_ready("one")
    await backend.set_result("one", result)
    assert await backend.is_result_ready("one")
    assert 0 < await client.ttl("one") <= 60
    assert await backend.get_result("one") == result
    assert await backend.is_result_ready("one") == keep
    await backend.shutdown()


async def test_progress():
    backend = RedisAsyncResultBackend(URL)
    assert await backend.get_progress("one") is None
    progress = TaskProgress(state=TaskState.STARTED, meta=3)
    await backend.set_progress("one", progress)
    assert await backend.get_progress("one") == progress
    await backend.shutdown()


def scheduled(**options):
    return ScheduledTask(
        task_name="t",
        labels={},
        args=[],
        kwargs={},
        schedule_id=uuid.uuid4().hex,
        **options,
    )


async def test_schedules():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = RedisScheduleSource(URL, buffer_size=2)
    by_cron = [scheduled(cron="* * * * *") for _ in range(5)]
    once = scheduled(time=datetime(2030, 1, 1, tzinfo=UTC))
    for each in (*by_cron, once):
        await source.add_schedule(each)
    assert len(await source.get_schedules()) == 6
    await source.post_send(once)
    await source.delete_schedule(by_cron[0].schedule_id)
    left = {each.schedule_id for each in await source.get_schedules()}
    assert left == {each.schedule_id for each in by_cron[1:]}
    await source.shutdown()


async def test_list_schedules():
    source = ListRedisScheduleSource(URL)
    await source.startup()
    await source.add_schedule(scheduled(cron="* * * * *"))
    assert len(await source.get_schedules()) == 1
    await source.shutdown()


async def test_list_broker():
    broker = ListQueueBroker(URL)
    await broker.kick(message("one"))
    async for each in broker.listen():
        assert each == b"one"
        break
    await broker.shutdown()


class Workers:
    """Processes of `taskiq worker`, in groups that are killed as a whole."""

    def __init__(self):
        self.running = [self.start() for _ in range(2)]

    def start(self):
        command = [sys.executable, "-m", "taskiq", "worker", "taskiq_app:broker", "--workers", "1"]
        command += ["--max-async-tasks", "20", "--log-level", "ERROR"]
        return subprocess.Popen(command, start_new_session=True)

    def kill(self, process):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def replace_first(self):
        self.kill(self.running.pop(0))
        self.running.append(self.start())

    def end(self):
        for process in self.running:
            self.kill(process)


async def test_a_thousand_tasks_are_done_though_workers_are_killed(client):
    import taskiq_app

    await taskiq_app.broker.startup()

    async def all_are_done(count):
        entries = await client.xrange("done")
        return {int(fields[b"n"]) for _, fields in entries if int(fields[b"n"]) >= 0} == set(
            range(count)
        )

    async def progressed(count):
        return await client.xlen("done") >= count

    kicked, workers = [], Workers()
    try:
        for first in range(0, 1000, 500):
            begun = await client.xlen("done")
            kicked += [await taskiq_app.square.kiq(n) for n in range(first, first + 500)]
            await until(lambda least=begun + 50: progressed(least))
            workers.replace_first()
        deadline = time.monotonic() + PATIENCE_S

        # A worker looks for what others have left only once it gets a new task.
        while not await all_are_done(1000):
            assert time.monotonic() < deadline
            await taskiq_app.square.kiq(-1)
            await asyncio.sleep(0.2)
        for n in (0, 500, 999):
            assert (await kicked[n].wait_result(timeout=90)).return_value == n * n
    finally:
        workers.end()
        await taskiq_app.done.aclose()
        await taskiq_app.broker.shutdown()
