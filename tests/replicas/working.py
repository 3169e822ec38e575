"""The application of test_work.py: jobs and workflows whose effects are entries."""

import os
import time
from pathlib import Path

from kvstream import Jobs
from kvstream.jobs import current_job, step

EFFECTS, STEPS = "effects", "steps"
jobs = Jobs(os.environ["KVSTREAM_TEST_PLACE"], durability=os.environ["KVSTREAM_TEST_LEVEL"] or None)
_starts = Path(os.environ["KVSTREAM_TEST_FILE"])


def _say(what: str) -> None:
    with _starts.open("a") as file:
        file.write(f"{what}\n")


TRIES, PAUSE_S = 100, 0.1
"""A busy machine may be late more than once."""


@jobs.task(timeout=8, retries=TRIES, backoff=PAUSE_S)
def effect(number: int) -> int:
    """Add an entry in the commit that ends the job; the timeout makes its lease short, too."""
    _say(f"effect {number}")
    time.sleep(0.05)  # so that kills strike it
    with current_job().transaction() as store:
        store.stream(EFFECTS).add({"n": number})
        current_job().result = number
    return number


def write(number: int, at: int) -> int:
    """Add an entry in the commit that ends the step."""
    _say(f"step {number} {at}")
    time.sleep(0.02)
    with current_job().transaction() as store:
        store.stream(STEPS).add({"n": f"{number} {at}"})
        current_job().result = at
    return at


@jobs.workflow
def several(number: int) -> list[int]:
    """Run three steps, each with an effect."""
    return [step.with_options(retries=TRIES, backoff=PAUSE_S)(write, number, at) for at in range(3)]
