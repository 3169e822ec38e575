"""Each class for asyncio has every method of the library's class, with the same arguments."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

import kvstream
from kvstream import aio
from kvstream.engine.queue_arguments import QueueOptions

TWINS = [
    (kvstream.Store, aio.AsyncStore),
    (kvstream.Stream, aio.AsyncStream),
    (kvstream.Group, aio.AsyncGroup),
    (kvstream.Consumer, aio.AsyncConsumer),
    (kvstream.Queue, aio.AsyncQueue),
    (kvstream.Message, aio.AsyncMessage),
]
BLOCKING = {"engine", "image", "loader", "open"}
"""What only ``AsyncStore.blocking`` has: it reads or writes piece by piece, or opens."""
ADDED = {"blocking", "db", "length", "store"}
OF_TWINS = {"ack", "extend", "get", "listen", "nack"}
"""Methods of a queue whose arguments or results are messages: their types differ."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("sync", "twin"), TWINS)
def test_the_names_are_the_same(sync: type, twin: type) -> None:
    assert public(twin) - ADDED == public(sync) - BLOCKING


@pytest.mark.parametrize(("sync", "twin"), TWINS)
def test_the_arguments_are_the_same(sync: type, twin: type) -> None:
    for name in public(twin) - ADDED:
        mine, theirs = inspect.getattr_static(twin, name), inspect.getattr_static(sync, name)
        if not callable(theirs):
            assert not callable(mine), name
            continue
        ours, wanted = inspect.signature(getattr(twin, name)), inspect.signature(theirs)
        arguments = [list(each.parameters.values()) for each in (ours, wanted)]
        if sync is kvstream.Queue and name in OF_TWINS:
            arguments = [[each.replace(annotation="") for each in some] for some in arguments]
        assert arguments[0] == arguments[1], name
        assert mine.__doc__ or not theirs.__doc__, name


HANDLES = {"select", "stream", "group", "consumer", "transaction", "streams", "groups"}


@pytest.mark.parametrize(("sync", "twin"), TWINS)
def test_methods_are_awaited_or_iterated(sync: type, twin: type) -> None:
    handles = HANDLES if sync is kvstream.Queue else HANDLES - {"streams", "groups"}
    for name in public(twin) - handles:
        mine = inspect.getattr_static(twin, name)
        if not callable(mine):
            continue
        returned = inspect.signature(getattr(sync, name, mine)).return_annotation
        if "Iterator" in str(returned):
            assert inspect.isasyncgenfunction(mine), name
        else:
            assert inspect.iscoroutinefunction(mine), name


def test_the_module_is_imported_on_first_use(tmp_path: Any) -> None:
    async def run() -> AsyncIterator[object]:
        store = await kvstream.aio.open(tmp_path / "s")
        async with store:
            assert repr(store) == f"<AsyncStore {str(tmp_path / 's')!r}, db 0>"
            yield await store.size()

    async def main() -> list[object]:
        return [each async for each in run()]

    assert asyncio.run(main()) == [0]
    with pytest.raises(AttributeError):
        kvstream.nothing  # noqa: B018


def test_an_asyncio_queue_has_the_options_of_a_queue() -> None:
    options = inspect.signature(kvstream.Queue).parameters.keys() - {"store", "name"}
    assert options == QueueOptions.__annotations__.keys()
