"""Long runs of machines, spread evenly, and shrunk here where one goes wrong.

Hypothesis draws many commands twice, so that runs shrink well; that costs it breadth.
"""

from collections.abc import Callable
from random import Random
from typing import Protocol

import pytest

from tests.differential.grammar import Argv, Rule

STEPS = 120


class Machine(Protocol):
    """What compares two implementations step by step."""

    def begin(self, entries: int, size: int) -> None: ...

    def step(self, argv: Argv) -> None: ...

    def everything_is_the_same(self) -> None: ...

    def teardown(self) -> None: ...


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
    """Play a run of that seed; where it goes wrong, fail with as few steps as do."""
    r = Random(seed)
    steps = [step(r) for _ in range(STEPS)]
    if first := fault(make, seed, steps):
        steps = shrunk(make, seed, steps)
        lines = "\n".join(" ".join(map(repr, argv)) for argv in steps)
        pytest.fail(f"seed {seed}: {first}\n{lines}\n{fault(make, seed, steps)}")
