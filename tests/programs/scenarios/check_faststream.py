"""faststream: subscribers and publishers of streams and channels, RPC, batches, groups."""

import asyncio
import os

import pytest
from faststream import AckPolicy, Path
from faststream.redis import PubSub, RedisBroker, RedisResponse, StreamSub
from faststream.redis.annotations import RedisStreamMessage
from redis.asyncio import Redis

URL = f"redis://127.0.0.1:{os.environ['REDIS_PORT']}/0"
PATIENCE_S = 30


@pytest.fixture(autouse=True)
async def client():
    async with Redis.from_url(URL) as client:
        await client.flushall()
        yield client


@pytest.fixture
async def broker():
    broker = RedisBroker(URL)
    yield broker
    await broker.stop()


class Got:
    """What subscribers have received."""

    def __init__(self):
        self.all = []

    async def wait(self, count):
        async with asyncio.timeout(PATIENCE_S):
            while len(self.all) < count:
                await asyncio.sleep(0.01)
        return self.all


@pytest.fixture
def got():
    return Got()


async def test_channel(broker, got):
    @broker.subscriber("news")
    async def handle(text: str):
        got.all.append(text)

    await broker.start()
    for n in range(20):
        await broker.publish(f"m{n}", "news")
    assert await got.wait(20) == [f"m{n}" for n in range(20)]


async def test_channel_by_pattern(broker, got):
    @broker.subscriber(PubSub("logs.{level}", pattern=True))
    async def handle(text: str, level: str = Path()):
        got.all.append((level, text))

    await broker.start()
    await broker.publish("a", "logs.info")
    await broker.publish("b", "logs.error")
    await broker.publish("c", "other")
    assert await got.wait(2) == [("info", "a"), ("error", "b")]


async def test_reply_to_a_channel(broker, got):
    @broker.subscriber("questions")
    @broker.publisher("answers")
    async def double(n: int):
        return n * 2

    @broker.subscriber("answers")
    async def handle(n: int):
        got.all.append(n)

    await broker.start()
    await broker.publish(21, "questions")
    assert await got.wait(1) == [42]


async def test_rpc_over_a_channel(broker):
    @broker.subscriber("double")
    async def double(n: int):
        return n * 2

    await broker.start()
    for n in range(10):
        reply = await broker.request(n, "double", timeout=PATIENCE_S)
        assert await reply.decode() == n * 2


async def test_rpc_over_a_stream(broker):
    @broker.subscriber(stream="double")
    async def double(n: int):
        return RedisResponse(n * 2, correlation_id="1")

    await broker.start()
    reply = await broker.request(4, stream="double", timeout=PATIENCE_S)
    assert await reply.decode() == 8


async def test_rpc_that_nobody_answers(broker):
    @broker.subscriber("slow")
    async def slow(n: int):
        await asyncio.sleep(2)

    await broker.start()
    with pytest.raises(TimeoutError):
        await broker.request(1, "slow", timeout=0.2)


async def test_reply_to_option(broker, got):
    @broker.subscriber("asked")
    async def answer(n: int):
        return n + 1

    @broker.subscriber("told")
    async def handle(n: int):
        got.all.append(n)

    await broker.start()
    await broker.publish(1, "asked", reply_to="told")
    assert await got.wait(1) == [2]


async def test_stream(broker, got):
    @broker.subscriber(stream=StreamSub("orders", polling_interval=10))
    async def handle(order: dict):
        got.all.append(order["n"])

    await broker.start()
    for n in range(50):
        await broker.publish({"n": n}, stream="orders")
    assert await got.wait(50) == list(range(50))


async def test_stream_from_its_beginning(broker, got, client):
    await broker.connect()
    for n in range(5):
        await broker.publish(n, stream="orders")

    @broker.subscriber(stream=StreamSub("orders", last_id="0", polling_interval=10))
    async def handle(n: int):
        got.all.append(n)

    await broker.start()
    assert await got.wait(5) == list(range(5))


async def test_stream_in_batches(broker, got):
    @broker.subscriber(stream=StreamSub("orders", batch=True, max_records=10, polling_interval=10))
    async def handle(numbers: list[int]):
        assert len(numbers) <= 10
        got.all.extend(numbers)

    await broker.start()
    for n in range(50):
        await broker.publish(n, stream="orders")
    assert await got.wait(50) == list(range(50))


async def test_group_acknowledges(broker, got, client):
    @broker.subscriber(stream=StreamSub("orders", group="g", consumer="c", polling_interval=10))
    async def handle(n: int):
        got.all.append(n)

    await broker.start()
    for n in range(20):
        await broker.publish(n, stream="orders")
    assert await got.wait(20) == list(range(20))
    async with asyncio.timeout(PATIENCE_S):
        while (await client.xpending("orders", "g"))["pending"]:
            await asyncio.sleep(0.01)


async def test_group_of_two_consumers_shares(broker, got):
    for name in ("a", "b"):

        @broker.subscriber(
            stream=StreamSub("orders", group="g", consumer=name, polling_interval=10)
        )
        async def handle(n: int):
            got.all.append(n)
            await asyncio.sleep(0.01)

    await broker.start()
    for n in range(40):
        await broker.publish(n, stream="orders")
    assert sorted(await got.wait(40)) == list(range(40))


async def test_group_leaves_what_has_failed_pending(broker, got, client):
    @broker.subscriber(
        stream=StreamSub("orders", group="g", consumer="c", polling_interval=10),
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )
    async def handle(n: int):
        got.all.append(n)
        raise ValueError(n)

    await broker.start()
    await broker.publish(1, stream="orders")
    await got.wait(1)
    assert (await client.xpending("orders", "g"))["pending"] == 1


async def test_takes_over_idle_entries(broker, got, client):
    await client.xgroup_create("orders", "g", id="0", mkstream=True)
    await broker.connect()
    await broker.publish("left", stream="orders")
    await client.xreadgroup("g", "gone", {"orders": ">"})

    @broker.subscriber(
        stream=StreamSub("orders", group="g", consumer="c", min_idle_time=50, polling_interval=10)
    )
    async def handle(text: str):
        got.all.append(text)

    await broker.start()
    assert (await got.wait(1))[0] == "left"


async def test_manual_acknowledgement(broker, got, client):
    @broker.subscriber(
        stream=StreamSub("orders", group="g", consumer="c", polling_interval=10),
        ack_policy=AckPolicy.MANUAL,
    )
    async def handle(n: int, message: RedisStreamMessage):
        await message.ack()
        got.all.append(n)

    await broker.start()
    await broker.publish(1, stream="orders")
    await got.wait(1)
    assert (await client.xpending("orders", "g"))["pending"] == 0


async def test_stream_keeps_its_length(broker, client):
    await broker.connect()
    for n in range(30):
        await broker.publish(n, stream="orders", maxlen=10)
    assert await client.xlen("orders") >= 10


async def test_get_one_and_iterate(broker, got):
    subscriber = broker.subscriber(stream=StreamSub("orders", last_id="0", polling_interval=10))
    await broker.start()
    await broker.publish("one", stream="orders")
    message = await subscriber.get_one(timeout=PATIENCE_S)
    assert await message.decode() == "one"


async def test_get_one_of_a_channel(broker):
    subscriber = broker.subscriber("news")
    await broker.start()

    async def publish():
        await asyncio.sleep(0.2)
        await broker.publish("one", "news")

    message, _ = await asyncio.gather(subscriber.get_one(timeout=PATIENCE_S), publish())
    assert await message.decode() == "one"


async def test_pipeline(broker, got):
    @broker.subscriber("news")
    async def handle(n: int):
        got.all.append(n)

    await broker.start()
    async with broker._connection.pipeline() as pipe:
        for n in range(10):
            await broker.publish(n, "news", pipeline=pipe)
        await pipe.execute()
    assert await got.wait(10) == list(range(10))


async def test_ping(broker):
    await broker.start()
    assert await broker.ping(timeout=5)


async def test_list(broker, got):
    @broker.subscriber(list="jobs")
    async def handle(n: int):
        got.all.append(n)

    await broker.start()
    await broker.publish(1, list="jobs")
    assert await got.wait(1) == [1]
