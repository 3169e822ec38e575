"""The conversations of ``test_wire`` with a server that takes two items for many."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.operations import thresholds
from tests.differential.long_runs import assert_same
from tests.differential.test_wire import EXAMPLES
from tests.differential.wire_grammar import wire_step
from tests.differential.wire_machine import AgainstRedisOnTheWire
from tests.server.conftest import Served


@pytest.fixture
def ports(
    tmp_path: Path, redis_process: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[int, int]]:
    """The ports of a kvstream that answers in pages, and of redis-server."""
    monkeypatch.setattr(thresholds, "SHORT_ROWS", 1)
    monkeypatch.setattr(thresholds, "LOOK_ROWS", 0)
    monkeypatch.setattr(thresholds, "SHORT_BYTES", 1)
    monkeypatch.setattr(thresholds, "LONG_KEYS", 0)
    monkeypatch.setattr(thresholds, "LONG_ROWS", 0)
    monkeypatch.setattr(thresholds, "STEP_ROWS", 2)
    served = Served(tmp_path / "store")
    yield served.port, redis_process
    served.stop()


@pytest.mark.parametrize("seed", range(2000, 2000 + EXAMPLES // 2))
def test_replies_in_pages_are_those_of_redis(
    ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(AgainstRedisOnTheWire, "ports", ports, raising=False)
    assert_same(AgainstRedisOnTheWire, seed, wire_step)
