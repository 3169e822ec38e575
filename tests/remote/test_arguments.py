"""Numbers and durations mean the same, or are refused by the same error, in every place."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import kvstream
import kvstream.aio
from kvstream import KVStreamError, Queue, Store, Stream
from kvstream.types.ids import StreamID, Ticket
from tests.library.test_arguments import OPTIONAL, REQUIRED, SPANS, group_of, store_of
from tests.remote.loops import Loop
from tests.serving import ServerProcess

Call = Callable[[Stream, Any], object]
Stores = dict[str, tuple[Store, Any]]
STORES = {
    "aio server": "server",
    **dict.fromkeys(("shared owner", "shared client", "aio shared client"), "shared"),
}
"""Places of one store."""
ALIKE = ("aio directory", "aio server")
"""Places of tasks whose calls differ from those of threads in how they wait alone."""
WAITING = ("and wait", "listen", "queue")
"""Parts of the names of calls that may wait."""
LOOKERS = {
    "aio server": "server",
    **dict.fromkeys(("shared client", "aio shared client"), "shared owner"),
}
"""Where the state of a place is made and read, if not there: the same store, at less cost."""


def queue_of(stream: Stream, **options: Any) -> Queue:
    return Queue(store_of(stream), "q", consumer="c", keep=True, **options)


def message_of(stream: Stream) -> Any:
    queue = queue_of(stream, lease=100)
    queue.put({"f": "v"})
    return queue.get()[0]


def restored(stream: Stream, at_ms: Any) -> object:
    store = store_of(stream)
    return store.restore("r", store.dump("s") or b"", expire_at_ms=at_ms)


MORE: dict[str, Call] = {
    "trim maxlen": lambda s, n: s.trim(maxlen=n),
    "trim minid": lambda s, n: s.trim(minid=n),
    "trim nearly": lambda s, n: s.trim(maxlen=2, approximate=True, limit=n),
    "add delay": lambda s, n: s.add({"f": "v"}, delay=n),
    "add at": lambda s, n: s.add({"f": "v"}, at=n),
    "add ttl": lambda s, n: s.add({"f": "v"}, ttl=n),
    "add window": lambda s, n: s.add({"f": "v"}, unique="u", window=n),
    "add_many delay": lambda s, n: s.add_many([{"f": "v"}], delay=n),
    "add_many ttl": lambda s, n: s.add_many([{"f": "v"}], ttl=n),
    "add id": lambda s, n: s.add({"f": "v"}, id=n),
    "add maxlen nearly": lambda s, n: s.add({"f": "v"}, maxlen=n, approximate=True),
    "delayed": lambda s, n: s.delayed(count=n),
    "schedule most": lambda s, n: s.schedule("n", "@daily", {"f": 1}, misfire="all", most=n),
    "retention age": lambda s, n: s.set_retention(max_age=n),
    "retention length": lambda s, n: s.set_retention(max_length=n),
    "retention bytes": lambda s, n: s.set_retention(max_bytes=n),
    "count_after": lambda s, n: s.count_after(n),
    "get": lambda s, n: s.get(n),
    "delete": lambda s, n: s.delete(n),
    "range from": lambda s, n: s.range(n, "+"),
    "range to": lambda s, n: s.range("-", n),
    "ack": lambda s, n: group_of(s).ack(n),
    "nack FAIL": lambda s, n: group_of(s).nack("1-0", retrycount=n, force=True),
    "nack SILENT": lambda s, n: group_of(s).nack("1-0", mode="SILENT", retrycount=n, force=True),
    "claim force": lambda s, n: group_of(s).claim("d", "1-0", retrycount=n, force=True),
    "claim justid": lambda s, n: group_of(s).claim(
        "d", "1-0", retrycount=n, force=True, justid=True
    ),
    "claim of none": lambda s, n: group_of(s).claim("d", retrycount=n),
    "claim time": lambda s, n: group_of(s).claim("d", "1-0", time=n, force=True),
    "claim idle": lambda s, n: group_of(s).claim("d", "1-0", idle=n, force=True),
    "claim last_id": lambda s, n: group_of(s).claim("d", "1-0", last_id=n, force=True),
    "seek": lambda s, n: group_of(s).seek(n),
    "group set_id to": lambda s, n: group_of(s).set_id(n),
    "policy lease": lambda s, n: group_of(s).set_policy(lease=n),
    "policy deliveries": lambda s, n: group_of(s).set_policy(max_deliveries=n),
    "policy backoff": lambda s, n: group_of(s).set_policy(backoff=[1, n]),
    "policy in flight": lambda s, n: group_of(s).set_policy(max_in_flight=n),
    "policy rate": lambda s, n: group_of(s).set_policy(rate=(n, 60)),
    "policy rate seconds": lambda s, n: group_of(s).set_policy(rate=(1, n)),
    "policy per key": lambda s, n: group_of(s).set_policy(order_by="k", max_per_key=n),
    "policy idle": lambda s, n: group_of(s).set_policy(reap=n),
    "queue get": lambda s, n: queue_of(s).get(n),
    "queue lease": lambda s, n: queue_of(s, lease=n).get(),
    "queue nack": lambda s, n: queue_of(s).nack(message_of(s), delay=n),
    "message nack": lambda s, n: message_of(s).nack(n),
    "queue dead": lambda s, n: queue_of(s).dead(count=n),
    "redrive count": lambda s, n: queue_of(s).redrive(count=n),
    "redrive rate": lambda s, n: queue_of(s).redrive(rate=(n, 1)),
    "expire": lambda s, n: store_of(s).expire("s", n),
    "expire_at": lambda s, n: store_of(s).expire_at("s", n),
    "restore": lambda s, n: restored(s, n),
}
"""Calls beside those of tests/library."""
CALLS = {
    **{f"optional {name}": call for name, call in OPTIONAL.items()},
    **{f"required {name}": call for name, call in REQUIRED.items()},
    **SPANS,
    **MORE,
}
VALUES: tuple[Any, ...] = (
    *(None, True, 0, 1, 2, -1, -2, -(1 << 63), -(1 << 63) - 1, -(10**400)),
    *((1 << 53), (1 << 63) - 1, 1 << 63, 1 << 64, 10**400),
    *(0.0001, 0.5, 2.0, -0.5, 1e300, float("inf"), float("nan"), Decimal("0.5"), "5", []),
)


WORDS: dict[str, Call] = {
    "fields": lambda s, w: s.add(w),
    "field name": lambda s, w: s.add([(w, "v")]),
    "field value": lambda s, w: s.add({"f": w}),
    "fields of add_many": lambda s, w: s.add_many([{"f": "v"}, w]),
    "ids of add_many": lambda s, w: s.add_many([{"f": "v"}], ids=[w]),
    "id": lambda s, w: s.add({"f": "v"}, id=w),
    "id with idmp": lambda s, w: s.add({"f": "v"}, id=w, idmp=("p", "i")),
    "minid": lambda s, w: s.trim(minid=w),
    "ref_policy of add": lambda s, w: s.add({"f": "v"}, maxlen=2, ref_policy=w),
    "ref_policy of delete_entries": lambda s, w: s.delete_entries("1-0", ref_policy=w),
    "ref_policy of ack_delete": lambda s, w: group_of(s).ack_delete("1-0", ref_policy=w),
    "idmp": lambda s, w: s.add({"f": "v"}, idmp=w),
    "idmp producer": lambda s, w: s.add({"f": "v"}, idmp=(w, "i")),
    "idmp id": lambda s, w: s.add({"f": "v"}, idmp=("p", w)),
    "idmpauto": lambda s, w: s.add({"f": "v"}, idmpauto=w),
    "unique": lambda s, w: s.add({"f": "v"}, unique=w),
    "on_conflict": lambda s, w: s.add({"f": "v"}, unique="u", on_conflict=w),
    "start": lambda s, w: s.range(w, "+"),
    "end": lambda s, w: s.range("-", w),
    "start of revrange": lambda s, w: s.revrange(w, "-"),
    "count": lambda s, w: s.count(w, "+"),
    "count_after": lambda s, w: s.count_after(w),
    "get": lambda s, w: s.get(w),
    "delete": lambda s, w: s.delete(w),
    "delete of some": lambda s, w: s.delete("1-0", w),
    "read": lambda s, w: s.read(w),
    "set_id": lambda s, w: s.set_id(w),
    "set_id max_deleted": lambda s, w: s.set_id("9-0", max_deleted_id=w),
    "cancel": lambda s, w: s.cancel(w),
    "move": lambda s, w: s.move(w, delay=1),
    "delayed from": lambda s, w: s.delayed(w),
    "schedule": lambda s, w: s.schedule(w, "@daily", {"f": "v"}),
    "schedule cron": lambda s, w: s.schedule("n", w, {"f": "v"}),
    "schedule fields": lambda s, w: s.schedule("n", "@daily", w),
    "schedule zone": lambda s, w: s.schedule("n", "@daily", {"f": "v"}, tz=w),
    "schedule misfire": lambda s, w: s.schedule("n", "@daily", {"f": "v"}, misfire=w),
    "run_schedule": lambda s, w: s.run_schedule(w),
    "delete_schedule": lambda s, w: s.delete_schedule(w),
    "retention latest": lambda s, w: s.set_retention(latest=w),
    "create_group": lambda s, w: s.create_group(w),
    "group start": lambda s, w: s.create_group("h", w),
    "group set_id": lambda s, w: group_of(s).set_id(w),
    "another group": lambda s, w: s.group(w).info(),
    "create_consumer": lambda s, w: group_of(s).create_consumer(w),
    "delete_consumer": lambda s, w: group_of(s).delete_consumer(w),
    "remove_consumer": lambda s, w: group_of(s).remove_consumer(w),
    "consumer": lambda s, w: group_of(s).consumer(w).read(),
    "history": lambda s, w: group_of(s).consumer("c").history(w),
    "ack": lambda s, w: group_of(s).ack(w),
    "nack": lambda s, w: group_of(s).nack(w),
    "nack mode": lambda s, w: group_of(s).nack("1-0", mode=w),
    "claim for": lambda s, w: group_of(s).claim(w, "1-0", force=True),
    "claim": lambda s, w: group_of(s).claim("d", w, force=True),
    "claim last_id": lambda s, w: group_of(s).claim("d", "1-0", last_id=w),
    "autoclaim for": lambda s, w: group_of(s).autoclaim(w),
    "autoclaim from": lambda s, w: group_of(s).autoclaim("d", 0, w),
    "pending of": lambda s, w: group_of(s).pending_range(consumer=w),
    "pending from": lambda s, w: group_of(s).pending_range(w),
    "seek": lambda s, w: group_of(s).seek(w),
    "policy dead_letter": lambda s, w: group_of(s).set_policy(dead_letter=w),
    "policy order_by": lambda s, w: group_of(s).set_policy(order_by=w),
    "policy backoff": lambda s, w: group_of(s).set_policy(backoff=w),
    "policy rate": lambda s, w: group_of(s).set_policy(rate=w),
    "key": lambda s, w: store_of(s).stream(w).add({"f": "v"}),
    "exists": lambda s, w: store_of(s).exists(w),
    "type": lambda s, w: store_of(s).type(w),
    "store delete": lambda s, w: store_of(s).delete(w),
    "rename": lambda s, w: store_of(s).rename(w, "t"),
    "rename to": lambda s, w: store_of(s).rename("s", w),
    "copy": lambda s, w: store_of(s).copy(w, "t"),
    "copy to": lambda s, w: store_of(s).copy("s", w),
    "restore": lambda s, w: store_of(s).restore("r", w),
    "dump": lambda s, w: store_of(s).dump(w),
    "keys": lambda s, w: store_of(s).keys(w),
    "store read": lambda s, w: store_of(s).read({"s": w}),
    "store read_group": lambda s, w: (
        group_of(s) and store_of(s).read_group("g", "c", {"s": w}) and None
    ),
    "queue": lambda s, w: Queue(store_of(s), w, consumer="c", keep=True).put({"f": "v"}),
    "queue group": lambda s, w: queue_of(s, group=w).put({"f": "v"}),
    "queue put": lambda s, w: queue_of(s).put(w),
    "queue priority": lambda s, w: queue_of(s, priorities=("high", "low")).put(
        {"f": 1}, priority=w
    ),
    "queue error": lambda s, w: message_of(s).nack(error=w),
    "queue cancel": lambda s, w: queue_of(s).cancel(w),
    "redrive of": lambda s, w: queue_of(s).redrive(w),
    "redrive to": lambda s, w: queue_of(s).redrive(to=w),
    "redrive where": lambda s, w: queue_of(s).redrive(where=w),
}
"""Calls with an argument that is no number."""
VALUES_OF_WORDS: tuple[Any, ...] = (
    *(
        None,
        "",
        b"",
        "x",
        b"\xff",
        "\ud800",
        "x" * 70_000,
        "a b\r\n",
        "*",
        ">",
        "$",
        "-",
        "+",
        "@1-0",
    ),
    *(
        "0",
        "1-0",
        "3-0",
        "9-0",
        "9-*",
        "1-1-1",
        "-1",
        "(1-0",
        "18446744073709551615-18446744073709551615",
    ),
    *("18446744073709551616-0", "KEEPREF", "delref", "FAIL", "s", "1-0\n", "٣-0"),
    *(0, 5, -1, 1.5, object, (), [], {}, ("f", "v"), {"f": "v"}, {"f": None}, [("f", "v"), ("f",)]),
    *(StreamID(1, 0), (1, 0), (-1, 0), ("p", ""), bytearray(b"f"), memoryview(b"f"), {"": ""}),
)


def shown(value: Any) -> Any:
    """Return a result without what differs between places by itself: IDs made by a clock."""
    if isinstance(value, Ticket):
        return "a ticket"
    if isinstance(value, StreamID) and value.ms > 1 << 40 and value.ms < 1 << 42:
        return "an ID of now"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        named = zip(value._fields, value, strict=True)
        return {name: shown(each) for name, each in named if name not in ("idle_ms", "memory")}
    if isinstance(value, list | tuple):
        return [shown(each) for each in value]
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    if isinstance(value, Store):
        return value.db
    if isinstance(value, int | str | bytes | None | kvstream.Entry):
        return value
    return type(value).__name__


FILLED = {f"{ms}-0": {"n": ms} for ms in range(1, 6)}
"""The entries that each call finds."""


def fill(store: Store) -> Any:
    """Make the stream that each call finds; return its state."""
    store.delete(*store.keys())
    store.stream("s").add_many(FILLED.values(), ids=list(FILLED))
    group_of(store.stream("s"))
    return state_of(store)


def result_of(store: Store, call: Call, value: Any) -> Any:
    """Return the result of a call, or its error."""
    stream = store.stream("s")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return shown(call(stream, value))
        except KVStreamError as error:
            return Refusal((type(error).__name__, str(error)))


class Refusal(tuple[str, str]):
    """The class and the text of an error."""


def state_of(store: Store) -> Any:
    stream = store.stream("s")
    state: list[Any] = [sorted(store.keys())]
    if stream.retention() is not None:  # which deletes in the background
        return stream.retention()
    with suppress(KVStreamError):
        detail = stream.info_full(9)
        groups = [
            (
                *(group.name, group.pel_count, group.last_delivered_id),
                [(row.id, row.consumer, row.deliveries) for row in group.pending],
                stream.group(group.name).policy(),
            )
            for group in detail.groups
        ]
        state += [detail.info.length, detail.info.entries_added, shown(detail.entries), groups]
        state.append(store.ttl("s") is None)
    return state


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """Stores in every place, each with the function that makes its calls."""
    folder: Path = tmp_path_factory.mktemp("stores")
    server = ServerProcess(folder / "served", "--durability", "no")
    url = f"redis://127.0.0.1:{server.port}"
    loop = Loop()
    try:
        with ExitStack() as ends:

            def plain(store: Any) -> tuple[Store, Any]:
                return ends.enter_context(store), lambda call: call()

            def by_tasks(where: Any, **options: Any) -> tuple[Store, Any]:
                async def opened() -> Any:
                    return await kvstream.aio.open(where, **options)

                store = loop.run(opened())
                ends.callback(lambda: loop.run(store.close()))
                return store._sync, lambda call: loop.run(store._engine.task_call(call))

            shared: Any = {"shared": True, "durability": "no"}
            yield {
                "directory": plain(Store.open(folder / "store", durability="no")),
                "server": plain(kvstream.open(url)),
                "shared owner": plain(kvstream.open(folder / "shared", **shared)),
                "shared client": plain(kvstream.open(folder / "shared", **shared)),
                "aio directory": by_tasks(folder / "of tasks", durability="no"),
                "aio server": by_tasks(url),
                "aio shared client": by_tasks(folder / "shared", **shared),
            }
    finally:
        loop.close()
        server.stop()


@pytest.mark.parametrize("name", CALLS)
def test_a_number_has_the_same_effect_everywhere(stores: Stores, name: str) -> None:
    waits = any(part in name for part in WAITING)
    compare(stores if waits else without_alike(stores), CALLS[name], VALUES)


@pytest.mark.parametrize("name", WORDS)
def test_a_word_has_the_same_effect_everywhere(stores: Stores, name: str) -> None:
    compare(without_alike(stores), WORDS[name], VALUES_OF_WORDS)


def without_alike(stores: Stores) -> Stores:
    """Return one place of tasks: they make words of arguments by the code of threads."""
    return {place: each for place, each in stores.items() if place not in ALIKE}


def looker_of(stores: Stores, place: str) -> tuple[Store, Any]:
    """Return the store that makes and reads the state of a place, and how it is called."""
    if place == "aio directory":
        return stores[place][0], lambda call: call()  # as AsyncStore.blocking
    return stores[LOOKERS.get(place, place)]


def compare(stores: Stores, call: Call, values: tuple[Any, ...]) -> None:
    """Make a call with each value in each place.

    What a refused call left as it was, stays. A call that the directory refuses without an effect,
    and another place by the same error, leaves the state of that place to be read later: with the
    next call that is not refused, or at the end.
    """
    filled: Any = None
    clean, unread = set[str](), dict[str, Any]()
    for value in values:
        expected: Any = None
        for place, (store, run) in stores.items():
            where = STORES.get(place, place)
            looker, look = looker_of(stores, place)
            if where not in clean:
                state = look(lambda: fill(looker))  # noqa: B023
                filled = filled or state
                assert state == filled
                clean.add(where)
            result = run(lambda: result_of(store, call, value))  # noqa: B023
            refused = isinstance(result, Refusal)
            if refused and expected == (result, filled):
                unread[where] = look, looker
                continue
            found = result, look(lambda: state_of(looker))  # noqa: B023
            expected = expected or found  # of the directory, which is the first
            assert found == expected, f"{place} with {value!r:.60}"
            if not refused or found[1] != filled:
                clean.discard(where)
            unread.pop(where, None)
    for where, (look, looker) in unread.items():
        assert look(lambda: state_of(looker)) == filled, where  # noqa: B023
