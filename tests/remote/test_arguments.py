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


def outcome(store: Store, call: Call, value: Any) -> Any:
    """Return what a call does: its result and the state, or its error."""
    store.delete(*store.keys())
    stream = store.stream("s")
    for ms in range(1, 6):
        stream.add({"n": ms}, id=f"{ms}-0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = shown(call(stream, value))
        except KVStreamError as error:
            result = type(error).__name__, str(error)
    state: list[Any] = [sorted(store.keys())]
    if stream.retention() is not None:  # which deletes in the background
        return result, stream.retention()
    with suppress(KVStreamError):
        entries = stream.range("-", "+")
        groups = [(group.name, group.pending, group.last_delivered_id) for group in stream.groups()]
        rows = [
            (row.id, row.consumer, row.deliveries)
            for row in (stream.group("g").pending_range("-", "+", 9) if groups else [])
        ]
        state += [len(entries), shown(entries[:5]), groups, rows]
        state.append([stream.group(group[0]).policy() for group in groups])
        state += [store.ttl("s") is None, stream.info().entries_added]
    return result, state


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Store, Any]]]:
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
                "aio server": by_tasks(url),
            }
    finally:
        loop.close()
        server.stop()


@pytest.mark.parametrize("name", CALLS)
def test_a_number_has_the_same_effect_everywhere(
    stores: dict[str, tuple[Store, Any]], name: str
) -> None:
    for value in VALUES:
        found = {}
        for place, (store, run) in stores.items():
            found[place] = run(lambda: outcome(store, CALLS[name], value))  # noqa: B023
        for place, each in found.items():
            assert each == found["directory"], f"{place} with {value!r:.60}"
