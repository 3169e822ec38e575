"""The conversations of ``test_wire`` with Redis 8.2 and Valkey 9.1, which have more than 7.0.

``KVSTREAM_EXAMPLES=n`` sets the number of runs.
"""

import os
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.differential.grammar import Argv
from tests.differential.long_runs import assert_same
from tests.differential.wire_grammar import wire_step
from tests.differential.wire_machine import AgainstRedis82, AgainstRedisOnTheWire, AgainstValkey
from tests.serving import ServerProcess

EXAMPLES = int(os.environ.get("KVSTREAM_EXAMPLES", "10"))
SETTINGS = settings(
    max_examples=EXAMPLES // 5,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
MACHINES: dict[str, type[AgainstRedisOnTheWire]] = {
    each.peer: each for each in (AgainstRedis82, AgainstValkey)
}


@pytest.fixture
def machine(served: ServerProcess, newer_peer: tuple[str, int]) -> type[AgainstRedisOnTheWire]:
    """What holds kvstream against one of the servers."""
    peer, port = newer_peer
    made = MACHINES[peer]
    made.ports = served.port, port
    return made


def test_clients_get_the_same_replies(machine: type[AgainstRedisOnTheWire]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_long_conversations_are_the_same(machine: type[AgainstRedisOnTheWire], seed: int) -> None:
    def step(r: Random) -> Argv:
        return wire_step(r, machine.peer)

    assert_same(machine, seed, step)
