"""The same random commands on the model and on what it stands for, compared step by step.

``KVSTREAM_EXAMPLES=n`` gives so many runs instead of a few.
"""

import os
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.differential.grammar import STEP_7, STEP_8, Argv, Rule
from tests.differential.machines import AgainstKvstream, AgainstRedis
from tests.semantics.implementations import RedisServer

EXAMPLES = int(os.environ.get("KVSTREAM_EXAMPLES", "20"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
Machine = AgainstRedis | AgainstKvstream


def test_the_model_answers_as_redis_does(redis_server: RedisServer) -> None:
    AgainstRedis.server = redis_server
    run_state_machine_as_test(AgainstRedis, settings=SETTINGS)


def test_kvstream_answers_as_the_model_does() -> None:
    run_state_machine_as_test(AgainstKvstream, settings=SETTINGS)


# --- long runs ----------------------------------------------------------------------------------
#
# Hypothesis draws many commands twice, so that runs shrink well. Long runs are spread evenly
# instead, and are shrunk here.


def play(make: Callable[[], Machine], seed: int, steps: list[Argv]) -> None:
    r = Random(seed)
    machine = make()
    try:
        machine.begin(entries=r.choice([2, 3, 100]), size=r.choice([4096, 60]))
        for argv in steps:
            machine.step(argv)
            machine.everything_is_the_same()
    finally:
        machine.teardown()


def fault(make: Callable[[], Machine], seed: int, steps: list[Argv]) -> str:
    """Return what went wrong in a run; empty: nothing."""
    try:
        play(make, seed, steps)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def shrunk(make: Callable[[], Machine], seed: int, steps: list[Argv]) -> list[Argv]:
    """Return as few of the steps as still go wrong."""
    size = len(steps) // 2
    while size:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            if fault(make, seed, fewer):
                steps = fewer
            else:
                at += size
        size //= 2
    return steps


def assert_same(make: Callable[[], Machine], seed: int, step: Rule) -> None:
    r = Random(seed)
    steps = [step(r) for _ in range(120)]
    if fault(make, seed, steps):
        steps = shrunk(make, seed, steps)
        lines = "\n".join(" ".join(map(repr, argv)) for argv in steps)
        pytest.fail(f"seed {seed}:\n{lines}\n{fault(make, seed, steps)}")


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_long_runs_leave_the_model_and_redis_the_same(redis_server: RedisServer, seed: int) -> None:
    AgainstRedis.server = redis_server
    assert_same(AgainstRedis, seed, STEP_7)


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_long_runs_leave_the_model_and_kvstream_the_same(seed: int) -> None:
    assert_same(AgainstKvstream, seed, STEP_8)
