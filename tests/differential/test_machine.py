"""The same random commands on the model and on another implementation, compared step by step.

``KVSTREAM_EXAMPLES=n`` sets the number of runs.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.differential.grammar import STEP_7, STEP_8
from tests.differential.long_runs import assert_same
from tests.differential.machines import AgainstKvstream, AgainstRedis
from tests.operations.implementations import RedisServer

EXAMPLES = int(os.environ.get("KVSTREAM_EXAMPLES", "10"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_the_model_replies_like_redis(redis_server: RedisServer) -> None:
    AgainstRedis.server = redis_server
    run_state_machine_as_test(AgainstRedis, settings=SETTINGS)


def test_kvstream_replies_like_the_model() -> None:
    run_state_machine_as_test(AgainstKvstream, settings=SETTINGS)


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_long_runs_leave_the_model_and_redis_the_same(redis_server: RedisServer, seed: int) -> None:
    AgainstRedis.server = redis_server
    assert_same(AgainstRedis, seed, STEP_7)


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_long_runs_leave_the_model_and_kvstream_the_same(seed: int) -> None:
    assert_same(AgainstKvstream, seed, STEP_8)
