"""A program as users write it, which type checkers accept: see test_type_checkers.py."""

import asyncio
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import kvstream
from kvstream import (
    Backoff,
    Consumer,
    DeletedEntry,
    Durability,
    Entry,
    Group,
    Inbox,
    Jobs,
    LeaseLost,
    LeaseOutcome,
    Message,
    Queue,
    Store,
    Stream,
    StreamID,
    Ticket,
)


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


def queues(store: Store, texts: Store[str]) -> None:
    emails = Queue(
        store, "emails", lease=30, max_deliveries=5, backoff=[1, 10, 60], order_by="user"
    )
    urgent = Queue(
        texts,
        "urgent",
        backoff=Backoff(1, timedelta(hours=1), jitter=0.2),
        rate=(100, 60),
        priorities=("high", "normal", "low"),
    )
    ticket: StreamID | Ticket = emails.put({"to": "ann"}, delay=timedelta(minutes=5), unique="w7")
    urgent.put({"to": "bob"}, at=datetime(2030, 1, 1, tzinfo=UTC), priority="high")
    several: list[LeaseOutcome] = emails.ack(*emails.get(10, block=5.0))
    inbox = Inbox(sqlite3.connect("app.db"))
    for message in emails.listen():
        work(message)
        with message.transaction() as same, inbox.handle(message) as is_new:
            same.stream("sent").add({"to": message.fields[b"to"], "new": int(is_new)})
    for letter in urgent.dead():
        name: str = letter.fields["to"] + letter.error + letter.origin
        print(name, letter.at.isoformat(), urgent.redrive(letter, rate=(10, 1)).streams)
    print(several, emails.cancel(ticket), urgent.info().oldest_age)
    store.stream("emails").schedule("nightly", "0 3 * * *", {"to": "all"}, tz="Europe/Berlin")
    rules = store.stream("emails").group("workers").set_policy(max_in_flight=10)
    print(rules.max_in_flight, [each.next for each in texts.stream("emails").schedules()])


def work(message: Message) -> None:
    try:
        print(message.fields[b"to"].decode(), message.deliveries, message.age)
        message.extend()
    except LeaseLost:
        return
    except Exception as error:
        message.nack(delay=5, fatal=message.deliveries > 3, error=error)


async def asynchronous_queues() -> None:
    async with kvstream.aio.open("data", decode=True) as store:
        emails = kvstream.aio.AsyncQueue(store, "emails", lease=30, max_in_flight=5)
        await emails.put_many([{"to": "ann"}], delay=1)
        async for message in emails.listen(stop=asyncio.Event()):
            async with message.transaction() as same:
                await same.stream("sent").add({"to": message.fields["to"].upper()})


def run_jobs() -> None:
    jobs = Jobs("data")

    @jobs.task(retries=3)
    def count(text: str) -> int:
        return len(text)

    @jobs.task
    async def fetch(url: str) -> bytes:
        return url.encode()

    @jobs.cron("@hourly", tz="Europe/Berlin")
    async def clean(days: int = 7, *, dry: bool = False) -> None: ...

    later = count.with_options(delay=60, key="user-7", unique=True, on_conflict="replace")
    length: int = later.enqueue("ann").result(timeout=timedelta(minutes=2))
    pages: list[bytes] = [each.result() for each in fetch.enqueue_many([("a",), ("b",)])]
    page: bytes = fetch.enqueue(url="c").result()
    print(length, pages, page, count("ann").bit_length(), clean.enqueue(dry=True).status)


async def enqueue_in_asyncio(jobs: Jobs) -> None:
    @jobs.task
    async def fetch(url: str) -> bytes:
        return url.encode()

    page: bytes = await (await fetch.aenqueue("a"))
    again: bytes = await (await fetch.with_options(ttl=5).aenqueue(url="a"))
    print(page, again, await fetch("a"))


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
        queues(reader, Store.open("texts", decode=True))
    asyncio.run(asynchronous())
    asyncio.run(asynchronous_queues())
    run_jobs()
