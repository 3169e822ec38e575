"""An application whose jobs run in worker processes; see its tests."""

import asyncio
import os
import time

from kvstream import Jobs, current_job

jobs = Jobs(os.environ["KVSTREAM_TEST_PLACE"], shared=os.environ.get("KVSTREAM_TEST_SHARED") == "1")
FILE = os.environ.get("KVSTREAM_TEST_FILE", "")
LEASE_S = float(os.environ.get("KVSTREAM_TEST_LEASE", "1"))
"""The lease of all jobs: the shortest timeout."""


def said(text: str) -> None:
    """Append a line to the file that the test reads; one write is atomic."""
    with open(FILE, "a") as file:
        file.write(f"{text}\n")


@jobs.task
def pid() -> int:
    time.sleep(0.05)
    return os.getpid()


@jobs.task(retries=10_000, backoff=0, timeout=LEASE_S)
def at_least_once(number: int) -> int:
    """Make an effect outside the store."""
    said(str(number))
    time.sleep(number % 5 / 500)
    return number


@jobs.task(retries=10_000, backoff=0, timeout=LEASE_S)
async def at_least_once_async(number: int) -> int:
    said(str(number))
    await asyncio.sleep(number % 5 / 500)
    return number


@jobs.task(retries=10_000, backoff=0, timeout=LEASE_S)
def exactly_once(number: int) -> int:
    """Make an effect inside the store."""
    time.sleep(number % 5 / 500)
    with current_job().transaction() as store:
        store.stream("effects").add({"number": number})
        current_job().result = number
    return number


@jobs.task
def nap(seconds: float) -> str:
    said("begun")
    time.sleep(seconds)
    said("ended")
    return "rested"


@jobs.task
def die() -> None:
    said("died")
    os._exit(9)


_hoarded: list[bytes] = []


@jobs.task
def hoard(size: int) -> int:
    """Keep memory for as long as the process lives."""
    _hoarded.append(b"x" * size)
    return os.getpid()
