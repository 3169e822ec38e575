"""A program as users write it, which type checkers accept: see test_type_checkers.py."""

import asyncio
from collections.abc import Iterator

import kvstream
from kvstream import Consumer, DeletedEntry, Durability, Entry, Group, Store, Stream, StreamID


def produce(orders: Stream, rows: list[dict[str, str | int]]) -> list[StreamID]:
    first: StreamID = orders.add({"sku": "a1", "qty": 2}, maxlen=1_000_000, approximate=True)
    return [first, *orders.add_many(rows)]


def quantities(orders: Stream) -> Iterator[int]:
    for entry in orders.range(start="now-15m"):
        yield int(entry.fields[b"qty"])
    newest = orders.get("1-0")
    if newest is not None:
        yield int(newest.fields[b"qty"].decode())


def consume(store: Store, group: Group, worker: Consumer) -> None:
    for entry in worker.read(count=10, block=5.0, claim_min_idle=60):
        with store.transaction():
            store.stream("invoices").add({"order": entry.id.ms, "sku": entry.fields[b"sku"]})
            group.ack(entry)
    for old in worker.history():
        if isinstance(old, DeletedEntry):
            worker.ack(old)
        else:
            worker.nack(old, mode="FATAL")
    for left in store.read_group("g", "w", {"orders": "0"})[b"orders"]:
        value: bytes | None = None if left.fields is None else left.fields[b"sku"]
        print(value, left.id.ms)
    for claimed in worker.claim("1-0", justid=True):
        worker.ack(claimed.id)
    owners: dict[bytes, int] = group.pending().consumers
    print(owners, [row.consumer.decode() for row in group.pending_range()])


def text(store: Store[str]) -> dict[str, str]:
    jobs: Stream[str] = store.stream("jobs")
    worker = jobs.create_group("g", exist_ok=True).consumer("w")
    for entry in worker.listen():
        worker.ack(entry)
        return entry.fields
    names: list[str] = [jobs.key.upper(), *store.keys(), *store.read({"jobs": "0"})]
    return {name: group.name for name in names for group in jobs.groups()}


def show(entry: Entry[str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in entry.pairs)


async def asynchronous() -> None:
    async with kvstream.aio.open("data") as store:
        group = await store.stream("jobs").create_group("workers", start="0", exist_ok=True)
        async for job in group.consumer("w").listen():
            async with store.transaction():
                await store.stream("done").add({"job": str(job.id), b"sku": job.fields[b"sku"]})
                await group.ack(job)
    async with kvstream.aio.open("redis://localhost", db=1, decode=True, errors="replace") as texts:
        jobs = texts.stream("jobs")
        print([show(entry) for entry in await jobs.range()], (await jobs.info()).length)
        print([name.upper() async for name in texts.scan_keys()])


def main(flag: bool) -> None:
    with kvstream.open("data", durability="always", block_cache_bytes=1 << 26) as store:
        orders = store.stream("orders")
        group = orders.create_group("g", start="0", exist_ok=True)
        produce(orders, [{"sku": "b", "qty": 1}])
        consume(store, group, group.consumer("w"))
        print(sum(quantities(orders)), len(orders), [*orders])
    with kvstream.open("redis://localhost:6379", decode=True) as server:
        print(text(server), [show(entry) for entry in server.stream("jobs")])
    with kvstream.open("data", shared=True, wait_s=5, decode=True, errors="replace") as shared:
        print(text(shared))
    with kvstream.open("data", decode=flag) as either:
        print(either.size(), len(either.stream("jobs").range()))
    with Store.open("data", durability=Durability.NO, read_only=True) as reader:
        reader.stream("orders").add({"share": 0.5, "raw": b"x"})
    asyncio.run(asynchronous())
