"""The conversations of ``test_wire`` with a server that takes two items for many."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.types.thresholds import Thresholds
from tests.differential.long_runs import assert_same
from tests.differential.test_wire import EXAMPLES
from tests.differential.wire_grammar import wire_step
from tests.differential.wire_machine import AgainstRedisOnTheWire
from tests.server.conftest import Served


@pytest.fixture
def ports(tmp_path: Path, redis_process: int) -> Iterator[tuple[int, int]]:
    """The ports of a kvstream that answers in pages, and of redis-server."""
    sizes = Thresholds(
        short_rows=1, look_rows=0, short_bytes=1, long_keys=0, long_rows=0, step_rows=2
    )
    served = Served(tmp_path / "store", thresholds=sizes)
    yield served.port, redis_process
    served.stop()


@pytest.mark.parametrize("seed", range(2000, 2000 + EXAMPLES // 2))
def test_replies_in_pages_are_those_of_redis(
    ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(AgainstRedisOnTheWire, "ports", ports, raising=False)
    assert_same(AgainstRedisOnTheWire, seed, wire_step)
