"""The same conversations with kvstream and with redis-server, over sockets, byte for byte.

``KVSTREAM_EXAMPLES=n`` gives so many runs instead of a few.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.differential.long_runs import assert_same
from tests.differential.wire_grammar import wire_step
from tests.differential.wire_machine import AgainstRedisByBytes, AgainstRedisOnTheWire

EXAMPLES = int(os.environ.get("KVSTREAM_EXAMPLES", "10"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def _ports(ports: tuple[int, int]) -> None:
    AgainstRedisOnTheWire.ports = ports


def test_clients_get_the_replies_of_redis() -> None:
    run_state_machine_as_test(AgainstRedisOnTheWire, settings=SETTINGS)


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_long_conversations_of_several_clients_are_the_same(seed: int) -> None:
    assert_same(AgainstRedisOnTheWire, seed, wire_step)


@pytest.mark.parametrize("seed", range(1000, 1000 + EXAMPLES // 5))
def test_requests_may_arrive_byte_by_byte(seed: int) -> None:
    assert_same(AgainstRedisByBytes, seed, wire_step)
