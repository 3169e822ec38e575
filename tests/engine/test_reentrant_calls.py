"""A call within a call of the same thread is refused, at every point of the outer call.

Signal handlers, finalizers and log handlers may run at any point. Here a trace function makes the
inner call at each n-th instruction of kvstream's code.
"""

import contextlib
import logging
import os
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import kvstream
from kvstream import Durability, InvalidArgument, Queue, ReentrantCall, Store, StoreClosed
from kvstream.logs import DeferredLogger
from kvstream.remote.engine import RemoteEngine
from tests.engine.waiting import Call

STEP = 23 if "KVSTREAM_EXAMPLES" in os.environ else 47
"""The inner call is made at each instruction of this number, and its multiples, in turn."""

Act = Callable[[Store], object]


class _Inner:
    """Makes a call at an instruction of kvstream's code, counted from 1."""

    def __init__(self, at: int, call: Callable[[], object]) -> None:
        self.left = at
        self._call = call
        self.refused = self.done = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if "kvstream" not in frame.f_code.co_filename or self.left <= 0:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.left -= 1
            if not self.left:
                try:
                    self._call()
                    self.done = True
                except (ReentrantCall, InvalidArgument):
                    self.refused = True
        return self


def called_within(at: int, outer: Callable[[], object], inner: Callable[[], object]) -> _Inner:
    """Make a call with another one inside, at its instruction of a number."""
    made, before = _Inner(at, inner), sys.gettrace()
    sys.settrace(made)
    try:
        outer()
    finally:
        sys.settrace(before)
    return made


def _transaction(store: Store) -> None:
    with store.transaction():
        store.stream("s").add({"outer": 1})
        store.stream("other").add({"outer": 1})


def _read_and_ack(store: Store) -> None:
    group = store.stream("s").group("g")
    group.ack(group.consumer("c").read(count=2))


def _put_and_get(store: Store) -> None:
    queue = Queue(store, "jobs")
    queue.put({"outer": 1})
    for message in queue.get(1):
        message.ack()


def _claim(store: Store) -> None:
    store.stream("s").group("g").consumer("d").autoclaim(0, count=3)


OUTER: dict[str, Act] = {
    "add": lambda store: store.stream("s").add({"outer": 1}),
    "add_many": lambda store: store.stream("s").add_many([{"outer": n} for n in range(3)]),
    "trim": lambda store: store.stream("s").trim(maxlen=50),
    "delete": lambda store: store.stream("s").delete(store.stream("s").add({"outer": 1})),
    "transaction": _transaction,
    "read_and_ack": _read_and_ack,
    "claim": _claim,
    "queue": _put_and_get,
    "blocked_read": lambda store: store.stream("s").read(after="$", block=0.001),
    "rename": lambda store: store.rename("other", "another") and store.rename("another", "other"),
    "check": lambda store: store.check(),
}

INNER: dict[str, Act] = {
    "add": lambda store: store.stream("s").add({"inner": 1}),
    "transaction": _transaction,
    "read_and_ack": _read_and_ack,
}


@pytest.fixture(params=[Durability.ALWAYS, Durability.EVERYSEC])
def filled(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    with Store.open(tmp_path / "store", durability=request.param) as store:
        stream = store.stream("s")
        stream.add_many([{"n": n} for n in range(60)])
        stream.create_group("g", start="0")
        store.stream("other").add({"n": 0})
        yield store


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("outer", OUTER)
def test_a_call_within_a_call_is_refused_or_whole(filled: Store, outer: str, inner: str) -> None:
    refused = done = 0
    step = STEP * (20 if outer == "check" else 3 if outer == "queue" else 1)
    for at in count(1, step):
        added = filled.stream("s").info().entries_added
        made = called_within(at, lambda: OUTER[outer](filled), lambda: INNER[inner](filled))
        refused += made.refused
        done += made.done
        if inner == "add" and made.done and outer in ("add", "add_many", "transaction"):
            own = 3 if outer == "add_many" else 1
            assert filled.stream("s").info().entries_added == added + own + 1
        if made.left > 0:
            break
    assert done
    assert refused
    ids = [entry.id for entry in filled.stream("s").range()]
    assert len(ids) == len(set(ids))
    assert filled.check() == []


@pytest.mark.parametrize("slow", ["checkpoint", "compact", "sync", "close"])
def test_a_long_call_is_not_entered_twice(tmp_path: Path, slow: str) -> None:
    numbers, step = count(), 1501 if slow == "checkpoint" else 41

    def call(store: Store) -> None:
        engine = store.engine
        if slow == "checkpoint":
            engine.checkpoint(tmp_path / f"copy{next(numbers)}")
        else:
            getattr(engine, slow)()

    for at in count(1, step):
        with Store.open(tmp_path / "store", durability="always") as store:
            store.stream("s").add({"f": "v"})
            try:
                made = called_within(at, lambda: call(store), lambda: call(store))
            except StoreClosed:  # the inner close came first
                assert slow == "close"
        if made.left > 0:
            break
    assert at > step
    with Store.open(tmp_path / "store") as store:
        assert store.check() == []


def test_a_checkpoint_within_the_ingestion_of_tables_is_refused(
    store: Store, tmp_path: Path
) -> None:
    """As a signal handler makes one in the middle of a bulk load."""
    with store.engine.database._ingesting, pytest.raises(ReentrantCall):
        store.checkpoint(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    store.checkpoint(tmp_path / "copy")


def test_a_call_within_the_first_call_of_a_database_of_a_server_does_not_wait(
    tmp_path: Path,
) -> None:
    with kvstream.open(tmp_path / "store", shared=True) as store:
        server = RemoteEngine.open(store._engine.url)
        with server._lock:
            assert server.connection(5).db == 5
        server.close()


@pytest.mark.parametrize("inner", ["client", "store"])
def test_a_call_within_a_call_of_redis_py_is_refused_or_whole(tmp_path: Path, inner: str) -> None:
    with Store.open(tmp_path / "store", durability="always") as store:
        client = kvstream.connect(store)
        client.xadd("s", {"f": "v"})

        def again() -> None:
            if inner == "client":
                client.xadd("s", {"inner": 1})
            else:
                store.stream("s").add({"inner": 1})

        done = refused = 0
        for at in count(1, 31):
            before = client.xlen("s")
            made = called_within(at, lambda: client.xadd("s", {"outer": 1}), again)
            assert client.xlen("s") == before + 1 + made.done
            done += made.done
            refused += made.refused
            if made.left > 0:
                break
        assert done
        assert refused
        client.close()
        assert store.check() == []


def test_a_call_within_a_call_of_a_shared_owner_is_refused_or_whole(tmp_path: Path) -> None:
    with kvstream.open(tmp_path / "store", shared=True) as store:
        stream = store.stream("s")
        stream.add({"f": "v"})
        for at in count(1, 7):
            before = len(stream)
            made = called_within(
                at, lambda: stream.add({"outer": 1}), lambda: stream.add({"inner": 1})
            )
            assert len(stream) == before + 1 + made.done
            if made.left > 0:
                break
    with Store.open(tmp_path / "store") as opened:
        assert opened.check() == []


def test_a_client_within_the_opening_of_another_leaves_no_store_open(tmp_path: Path) -> None:
    refused = 0

    def use() -> None:
        client = kvstream.connect(tmp_path / "store")
        try:
            client.xadd("s", {"f": "v"})
        finally:
            client.close()

    for at in count(1, 701):
        made = called_within(at, use, use)
        refused += made.refused
        Store.open(tmp_path / "store").close()  # not locked
        if made.left > 0:
            break
    assert refused
    with Store.open(tmp_path / "store") as store:
        assert store.check() == []


def test_an_opening_within_the_opening_of_a_shared_store_is_refused(tmp_path: Path) -> None:
    refused = 0

    def use() -> None:
        with kvstream.open(tmp_path / "store", shared=True) as store:
            store.stream("s").add({"f": "v"})

    for at in count(1, 701):
        made = called_within(at, use, use)
        refused += made.refused
        if made.left > 0:
            break
    assert refused
    with Store.open(tmp_path / "store") as store:
        assert store.check() == []


def test_an_opening_at_the_end_of_a_call_of_a_shared_store_is_refused(tmp_path: Path) -> None:
    """The outer call has done its work, and has the lock yet: the owner would wait for it."""
    with kvstream.open(tmp_path / "store", shared=True) as store:
        with store._engine.own_engine.hold(), pytest.raises(ReentrantCall):
            kvstream.open(tmp_path / "store", shared=True)
        store.stream("s").add({"f": "v"})


def test_a_close_at_the_end_of_another_call_is_refused(store: Store) -> None:
    """It would wait for the thread of expiry, which may wait for the lock."""
    with store.engine.hold(), pytest.raises(ReentrantCall):
        store.close()
    store.stream("s").add({"f": "v"})


def test_a_call_within_a_transaction_on_a_shared_store_is_refused_or_part_of_it(
    tmp_path: Path,
) -> None:
    """Its reads and writes go to the server over one connection."""
    done = refused = 0
    with kvstream.open(tmp_path / "store", shared=True) as store:
        stream = store.stream("s")
        stream.add({"f": "v"})

        def outer() -> None:
            with store.transaction():
                stream.range(count=1)
                stream.add({"outer": 1})

        for at in count(1, 41):
            before = len(stream)
            made = called_within(at, outer, lambda: stream.range(count=1))
            done += made.done
            refused += made.refused
            assert len(stream) == before + 1
            if made.left > 0:
                break
    assert done
    assert refused


@pytest.mark.parametrize("durability", [Durability.ALWAYS, Durability.EVERYSEC])
def test_signal_handlers_that_add_lose_no_entry(tmp_path: Path, durability: Durability) -> None:
    ids = []
    with Store.open(tmp_path / "store", durability=durability) as store:
        stream = store.stream("s")

        def add(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(ReentrantCall):
                ids.append(stream.add({"signal": number}))

        before = signal.signal(signal.SIGALRM, add)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
            ids += [stream.add({"n": n}) for n in range(2000)]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert len(set(ids)) == len(ids) == len(stream)
        assert store.check() == []


def test_a_finalizer_that_adds_in_the_middle_of_an_add_is_refused(store: Store) -> None:
    """As the garbage collector runs one; here an operation drops the last reference."""
    stream = store.stream("s")
    errors: list[BaseException] = []

    class Dropped:
        pass

    def add(reference: object) -> None:
        try:
            stream.add({"finalizer": 1})
        except ReentrantCall as error:
            errors.append(error)

    kept = [Dropped()]
    reference = weakref.ref(kept[0], add)
    store.engine.run(lambda txn: kept.clear())
    assert reference() is None
    assert len(errors) == 1
    assert "nothing was done" in str(errors[0])
    assert not store.exists("s")


def test_a_handler_between_the_calls_of_a_transaction_is_part_of_it(store: Store) -> None:
    with store.transaction():
        store.stream("s").add({"n": 1})
        store.stream("s").add({"handler": 1})
    assert len(store.stream("s")) == 2


def test_deferred_records_are_made_by_the_factory_of_the_program(store: Store) -> None:
    lines: list[str] = []

    class ToList(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.trace} {record.getMessage()}")  # type: ignore[attr-defined]
            log.error("within")  # emitted after this one, not within it

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made = before(*args, **kwargs)
        made.trace = "t1"
        return made

    log, logger = DeferredLogger("kvstream.test"), logging.getLogger("kvstream.test")
    before, handler = logging.getLogRecordFactory(), ToList()
    logging.setLogRecordFactory(record)
    logger.addHandler(handler)
    try:
        log.warning("first %d", 1)
        store.stream("s").add({"f": "v"})
    finally:
        logging.setLogRecordFactory(before)
        logger.removeHandler(handler)
    assert lines[0] == "t1 first 1"


def test_a_log_handler_may_write_to_a_stream_while_others_log(store: Store) -> None:
    """A handler holds its own lock: a record emitted under the store's lock would wait for ever."""
    log = store.stream("log")

    class ToStream(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.add({"message": record.getMessage()})

    handler, logger = ToStream(), logging.getLogger("kvstream")
    other = logging.getLogger("tests.application")
    before = logger.level, other.level
    for each in (logger, other):
        each.addHandler(handler)
        each.setLevel(logging.INFO)
    try:
        queue = Queue(store, "jobs", consumer="w", max_deliveries=1)

        def work() -> None:
            for n in range(30):
                queue.put({"n": n})
                for message in queue.get(1):
                    message.nack(error="bad")  # a dead letter, which is logged

        def application() -> None:
            for n in range(300):
                other.info("request %d", n)

        for call in [Call(work), Call(application)]:
            call.result()
    finally:
        for each, level in zip((logger, other), before, strict=True):
            each.removeHandler(handler)
            each.setLevel(level)
    messages = [entry.fields[b"message"] for entry in log.range()]
    assert sum(message.startswith(b"request") for message in messages) == 300
    assert any(b"is a dead letter" in message for message in messages)
