"""kvstream inside a process, beside other queues that need no server.

All keep their entries in files, and their promise is the same within a group of rows: with
``everysec`` what a power cut may take is a moment's work (SQLite: WAL, synchronous NORMAL), with
``always`` nothing (synchronous FULL). A queue that cannot be set so is left out of a group.

kvstream's side is a ``Queue`` with a lease, which reads ahead as ``Queue.listen`` does; each
message is acknowledged by itself. A column has the same one message at a time, and another the
plain group without leases, one entry at a time.
"""

import itertools
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from rocksdict import Options, Rdict

from bench.jobs import done, sides
from bench.results import Comparison, Limit, Limits, Log
from bench.workload import Sizes, entry
from kvstream import Consumer, Durability, Message, Store
from kvstream import Queue as LeasedQueue

PAYLOAD = "x" * 100
ALWAYS_DIVISOR = 10
"""By how much fewer entries there are with an fsync each."""
PAIRS = 4
"""Producers, and as many consumers."""
AHEAD = 100
"""Messages that a consumer reads ahead."""
RATIOS = {"everysec": 2.0, "always": 1.2}
"""The promised ratios to SQLite."""
IDLE_S = 0.0005
"""The pause of a consumer that has found nothing."""
ROW = b"x" * 120
"""A row of the size of an entry's."""
PREPARED = 12_000
"""Entries that wait to be read where processor time is measured."""
BUSY_S = 60.0
"""How long a connection waits for another one's lock."""
TURNS = 5
"""Turns in which the two sides of a comparison are measured."""
EVERYSEC, ALWAYS = "everysec", "always"
_PRAGMAS = {EVERYSEC: "NORMAL", ALWAYS: "FULL"}
_SYNCHRONOUS = {EVERYSEC: 1, ALWAYS: 2}


class Queue(Protocol):
    """An embedded queue."""

    def put(self, payload: str) -> object: ...

    def take(self) -> bool:
        """Take one entry and acknowledge it; return whether there was one."""
        ...


class MessageQueue:
    """A queue with leases, from which each thread reads some messages ahead."""

    def __init__(self, store: Store, ahead: int) -> None:
        self._queue = LeasedQueue(store, "queue", lease=BUSY_S)
        self._ahead = ahead
        self._taken: dict[int, list[Message]] = {}

    def put(self, payload: str) -> object:
        return self._queue.put({"payload": payload})

    def take(self) -> bool:
        taken = self._taken.setdefault(threading.get_ident(), [])
        if not taken:
            taken[:] = reversed(self._queue.get(self._ahead))
            if not taken:
                return False
        taken.pop().ack()  # or raises LeaseLost
        return True


class GroupQueue:
    """A stream with a group; each thread is a consumer."""

    def __init__(self, store: Store) -> None:
        self._stream = store.stream("queue")
        self._group = self._stream.create_group("workers", start="0", mkstream=True)
        self._consumers: dict[int, Consumer] = {}

    def put(self, payload: str) -> object:
        return self._stream.add({"payload": payload})

    def take(self) -> bool:
        number = threading.get_ident()
        consumer = self._consumers.get(number)
        if consumer is None:
            consumer = self._consumers[number] = self._group.consumer(f"worker-{number}")
        entries = consumer.read(count=1)
        return bool(entries) and consumer.ack(entries[0].id) == 1


class SqliteQueue:
    """A table, as one would write it by hand: one connection, and a lock around it."""

    def __init__(self, connection: sqlite3.Connection, durability: str) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {_PRAGMAS[durability]}")
        connection.execute(
            "CREATE TABLE queue (id INTEGER PRIMARY KEY AUTOINCREMENT, payload TEXT, taken REAL)"
        )

    def put(self, payload: str) -> object:
        with self._lock:
            return self._connection.execute("INSERT INTO queue (payload) VALUES (?)", (payload,))

    def take(self) -> bool:
        with self._lock:
            found = self._connection.execute(
                "UPDATE queue SET taken = ? WHERE id ="
                " (SELECT id FROM queue WHERE taken IS NULL ORDER BY id LIMIT 1)"
                " RETURNING id, payload",
                (time.time(),),
            ).fetchall()
        if not found:
            return False
        with self._lock:
            deleted = self._connection.execute("DELETE FROM queue WHERE id = ?", (found[0][0],))
        return deleted.rowcount == 1


class LiteQueueAdapter:
    """litequeue, with a connection of its own in each thread."""

    def __init__(self, path: Path, durability: str) -> None:
        self._path, self._durability = path, durability
        self._of_thread = threading.local()
        _ = self._queue  # creates the file: threads that did so at once would find it locked

    @property
    def _queue(self) -> Any:
        if not hasattr(self._of_thread, "queue"):
            from litequeue import LiteQueue

            queue = LiteQueue(str(self._path / "queue.db"), timeout=BUSY_S)
            queue.conn.execute(f"PRAGMA synchronous = {_PRAGMAS[self._durability]}")
            self._of_thread.queue = queue
        return self._of_thread.queue

    def put(self, payload: str) -> object:
        return self._queue.put(payload)

    def take(self) -> bool:
        message = self._queue.pop()
        if message is None:
            return False
        self._queue.done(message.message_id)
        return True


class DequeAdapter:
    """The Deque of diskcache, which takes an entry away without an acknowledgement."""

    def __init__(self, path: Path, durability: str) -> None:
        from diskcache import Cache, Deque

        cache = Cache(
            str(path), sqlite_synchronous=_SYNCHRONOUS[durability], eviction_policy="none"
        )
        self._deque = Deque.fromcache(cache)

    def put(self, payload: str) -> object:
        return self._deque.append(payload)

    def take(self) -> bool:
        try:
            return bool(self._deque.popleft())
        except IndexError:
            return False


class AckQueueAdapter:
    """The SQLiteAckQueue of persist-queue, whose synchronous is FULL."""

    def __init__(self, path: Path, durability: str) -> None:
        from persistqueue import SQLiteAckQueue

        self._queue = SQLiteAckQueue(str(path), multithreading=True, timeout=BUSY_S)

    def put(self, payload: str) -> object:
        return self._queue.put(payload)

    def take(self) -> bool:
        from persistqueue import Empty

        try:
            item = self._queue.get(block=False, raw=True)
        except Empty:
            return False
        return self._queue.ack(item) is not None


class HueyAdapter:
    """The SQLite storage of huey, which takes an entry away without an acknowledgement."""

    def __init__(self, path: Path, durability: str) -> None:
        from huey.storage import SqliteStorage

        self._storage = SqliteStorage(filename=str(path / "huey.db"), fsync=True, timeout=BUSY_S)

    def put(self, payload: str) -> object:
        return self._storage.enqueue(payload.encode())

    def take(self) -> bool:
        return self._storage.dequeue() is not None


Open = Callable[[Path, str], AbstractContextManager[Queue]]


def _kvstream(kind: Callable[[Store], Queue]) -> Open:
    @contextmanager
    def opened(path: Path, durability: str) -> Iterator[Queue]:
        with Store.open(path, durability=Durability(durability)) as store:
            yield kind(store)

    return opened


_AHEAD = _kvstream(lambda store: MessageQueue(store, AHEAD))
_GROUP = _kvstream(GroupQueue)
_OURS: dict[str, Open] = {
    "kvstream": _AHEAD,
    "kvstream, one ahead": _kvstream(lambda store: MessageQueue(store, 1)),
    "kvstream's group": _GROUP,
}


@contextmanager
def _sqlite(path: Path, durability: str) -> Iterator[Queue]:
    connection = sqlite3.connect(path / "queue.db", isolation_level=None, check_same_thread=False)
    with closing(connection):
        yield SqliteQueue(connection, durability)


def _adapter(kind: Callable[[Path, str], Queue]) -> Open:
    @contextmanager
    def opened(path: Path, durability: str) -> Iterator[Queue]:
        yield kind(path, durability)

    return opened


_PACKAGED: tuple[tuple[str, str, Open, tuple[str, ...]], ...] = (
    ("litequeue", "litequeue", _adapter(LiteQueueAdapter), (EVERYSEC, ALWAYS)),
    ("diskcache", "diskcache, no ack", _adapter(DequeAdapter), (EVERYSEC, ALWAYS)),
    ("persistqueue", "persist-queue", _adapter(AckQueueAdapter), (ALWAYS,)),
    ("huey", "huey, no ack", _adapter(HueyAdapter), (ALWAYS,)),
)
"""The module, the name shown, how to open it, and the durabilities that it can be set to."""


def rivals(durability: str) -> dict[str, Open]:
    """Return kvstream, SQLite by hand, and the installed queues that can keep the promise."""
    packaged = {
        name: opened
        for module, name, opened, promised in _PACKAGED
        if durability in promised and find_spec(module) is not None
    }
    return {**_OURS, "SQLite": _sqlite, **packaged}


def put_all(queue: Queue, count: int) -> float:
    """Put entries one by one; return the seconds."""
    begun = time.perf_counter()
    for _ in range(count):
        queue.put(PAYLOAD)
    return time.perf_counter() - begun


def take_all(queue: Queue, count: int) -> float:
    """Fill the queue; then take and acknowledge entries one by one; return the seconds of that."""
    put_all(queue, count)
    begun = time.perf_counter()
    taken = sum(queue.take() for _ in range(count))
    seconds = time.perf_counter() - begun
    if taken != count or queue.take():
        raise RuntimeError(f"{taken} of {count} entries were taken")
    return seconds


def work_in_threads(queue: Queue, count: int) -> float:
    """Put and take entries with two producers and two consumers; return the seconds."""
    taken: list[int] = []  # one item each: append is atomic
    share = count // PAIRS

    failed = threading.Event()

    def produce() -> None:
        for _ in range(share):
            queue.put(PAYLOAD)

    def consume() -> None:
        while len(taken) < share * PAIRS and not failed.is_set():
            if queue.take():
                taken.append(1)
            else:
                time.sleep(IDLE_S)

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            failed.set()  # or the consumers would wait for ever
            raise

    threads = [
        threading.Thread(target=run, args=[work])
        for work in (produce, consume)
        for _ in range(PAIRS)
    ]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    if len(taken) != share * PAIRS or queue.take():
        raise RuntimeError(f"{len(taken)} of {share * PAIRS} entries were taken")
    return seconds


WORKS: tuple[tuple[str, str, Callable[[Queue, int], float]], ...] = (
    ("put", "put, one by one", put_all),
    ("take", "get and ack, one by one", take_all),
    ("threads", f"{PAIRS} producers and {PAIRS} consumers in threads", work_in_threads),
)


def run_rivals(sizes: Sizes, folder: Path, log: Log) -> Iterator[Comparison]:
    """Run each work on each queue by turns, every time in a new folder."""
    for durability, pragma in _PRAGMAS.items():
        count = sizes.queued // (1 if durability == EVERYSEC else ALWAYS_DIVISOR)
        for key, what, work in WORKS:
            title = f"`{durability}`, SQLite {pragma}: {what}"
            log(title)
            name = f"rival-{durability}-{key}"
            result = Comparison(name, title, RATIOS[durability], count)
            seconds: dict[str, list[float]] = result.further_seconds
            for number in range(sizes.command_rounds):
                for name, opened in rivals(durability).items():
                    path = folder / f"rivals-{durability}-{key}-{number}-{name}"
                    path.mkdir()
                    with opened(path, durability) as queue:
                        seconds.setdefault(name, []).append(work(queue, count))
            result.seconds.extend(seconds.pop("kvstream"))
            result.peer_seconds.extend(seconds.pop("SQLite"))
            yield result


def _add_seconds(store: Store, names: Sequence[str]) -> float:
    begun = time.perf_counter()
    for name in names:
        store.stream(name).add({"payload": PAYLOAD})
    return time.perf_counter() - begun


def many_streams(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare adding to random streams of many with adding to one."""
    names = [f"stream-{number}" for number in range(sizes.embedded_streams)]
    with Store.open(folder / "many-streams") as store:
        _add_seconds(store, names)
        sides: tuple[list[float], list[float]] = ([], [])
        share = sizes.queued // TURNS
        for turn in range(TURNS):
            chosen = random.Random(turn).choices(names, k=share)
            for side, keys in zip(sides, (chosen, names[:1] * share), strict=True):
                side.append(_add_seconds(store, keys))
    many, one = map(median, sides)
    title = f"add to a random of {sizes.embedded_streams:,} streams, beside one stream"
    many_us, one_us = (1e6 * seconds / share for seconds in (many, one))
    note = f"{many_us:.1f} us against {one_us:.1f} us"
    return [Limit("embedded-streams", title, many / one, 0, "x", note)]


def threads_beside_one(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare two producers and two consumers in threads with one thread that does their work."""
    with _GROUP(folder / "one-thread", EVERYSEC) as queue:
        begun = time.perf_counter()
        for _ in range(sizes.queued):
            queue.put(PAYLOAD)
            queue.take()
        one = time.perf_counter() - begun
    with _GROUP(folder / "threads", EVERYSEC) as queue:
        several = work_in_threads(queue, sizes.queued)
    title = f"{PAIRS} producers and {PAIRS} consumers in threads, beside one thread"
    several_us, one_us = (1e6 * seconds / sizes.queued for seconds in (several, one))
    note = f"{several_us:.1f} us an entry against {one_us:.1f} us"
    return [Limit("embedded-threads", title, several / one, 0, "x", note)]


Timed = Callable[[int], object]
"""Does a number of operations."""


def _repeated(operation: Callable[[], object]) -> Timed:
    def run(count: int) -> None:
        for _ in range(count):
            operation()

    return run


@contextmanager
def _puts(path: Path) -> Iterator[Timed]:
    """Put rows as large as an entry's, without kvstream: what RocksDB's binding takes."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    rows, numbers = Rdict(str(path), options), itertools.count()
    with closing(rows):
        yield _repeated(lambda: rows.put(b"%032d" % next(numbers), ROW))


@contextmanager
def _adds(path: Path) -> Iterator[Timed]:
    fields = entry(0)
    with Store.open(path) as store:
        stream = store.stream("orders")
        yield _repeated(lambda: stream.add(fields))


@contextmanager
def _reads(path: Path) -> Iterator[Timed]:
    with Store.open(path) as store:
        stream = store.stream("orders")
        stream.add_many([entry(number) for number in range(PREPARED)])
        group = stream.create_group("workers", start="0")
        consumer = group.consumer("worker")
        yield _repeated(lambda: group.ack(consumer.read(count=1)[0].id))


@contextmanager
def _gets(path: Path) -> Iterator[Timed]:
    with Store.open(path) as store:
        queue = LeasedQueue(store, "queue", lease=BUSY_S)
        for number in range(PREPARED):
            queue.put(entry(number))
        yield _repeated(lambda: queue.get(1)[0].ack())


@contextmanager
def _worked(path: Path) -> Iterator[Timed]:
    with sides()["kvstream"](path) as side:

        def run(count: int) -> None:
            done.clear()
            for number in range(count):
                side.enqueue(number)
            side.run(count)

        yield run


_PROCESSOR: dict[str, tuple[str, float, Callable[[Path], AbstractContextManager[Timed]]]] = {
    "add": ("add", 3.5, _adds),
    "read-ack": ("a consumer reads 1 and acknowledges it", 14.3, _reads),
    "queue": ("Queue.get of 1 and ack", 20.7, _gets),
    "job": ("a job from enqueue to done", 60, _worked),
}
"""What is measured, and the highest promised multiple of the processor time of RocksDB's put.

On 2026-11-29 the multiples were 6, 31, 41 and 120.
"""


def processor_beside_put(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare the processor time of embedded operations with that of RocksDB's put alone."""
    share = min(sizes.queued, PREPARED) // (TURNS + 1)
    used: dict[str, list[float]] = {}
    with ExitStack() as stack:
        works = {"put": stack.enter_context(_puts(folder / "processor-put"))}
        for key, (_, _, opened) in _PROCESSOR.items():
            works[key] = stack.enter_context(opened(folder / f"processor-{key}"))
        for work in works.values():
            work(share)  # warms up
        for _ in range(TURNS):
            for key, work in works.items():
                begun = time.process_time()
                work(share)
                used.setdefault(key, []).append(1e6 * (time.process_time() - begun) / share)
    limits = []
    for key, (title, limit, _) in _PROCESSOR.items():
        times = median(own / put for own, put in zip(used[key], used["put"], strict=True))
        note = f"{median(used[key]):.1f} us against {median(used['put']):.1f} us"
        title = f"{title}: processor time, beside RocksDB's put"
        limits.append(Limit(f"embedded-{key}", title, times, limit, "x", note))
    return limits


EMBEDDED_LIMITS: Limits = {
    "embedded-processor": ("processor time of embedded operations", processor_beside_put),
    "embedded-streams": ("add to many streams", many_streams),
    "embedded-threads": ("threads of one process", threads_beside_one),
}
