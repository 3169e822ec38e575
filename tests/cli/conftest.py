"""Fixtures of the command line: the program, with an empty store or one to try things on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import Store
from tests.cli.program import Program
from tests.opening import Stores

FAR_FUTURE_S = 4_000_000_000


@pytest.fixture
def kvstream(tmp_path: Path) -> Iterator[Program]:
    """The program on a store that is not there yet, and must be sound afterwards if it is."""
    directory = tmp_path / "store"
    yield Program(directory)
    if directory.exists():
        with Store.open(directory) as store:
            assert store.check() == []


@pytest.fixture
def orders(kvstream: Program, open_store: Stores) -> Program:
    """The program on a store of orders.

    Stream ``orders``: five entries, a second apart from 1700000000000-0 on; group ``billing`` has
    the first two pending with ``worker-1``, and a consumer ``idle-worker``. Stream ``orders:2025``:
    one entry.
    """
    with open_store(kvstream.directory) as store:
        stream = store.stream("orders")
        for at in range(5):
            stream.add({"sku": f"a{at}", "qty": str(at)}, id=1_700_000_000_000 + at * 1000)
        group = stream.create_group("billing", "0")
        group.consumer("worker-1").read(2)
        group.create_consumer("idle-worker")
        store.stream("orders:2025").add({"sku": "old"}, id=1_600_000_000_000)
        store.expire_at("orders", FAR_FUTURE_S)
    return kvstream
