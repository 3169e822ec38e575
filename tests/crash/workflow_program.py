"""An application whose workflows run in processes that are killed; see its test."""

import os
import time
from typing import Any

from kvstream import Jobs, current_job
from kvstream.jobs import gather, pause, step, wait_for

jobs = Jobs(os.environ["KVSTREAM_TEST_PLACE"], shared=os.environ.get("KVSTREAM_TEST_SHARED") == "1")
FILE = os.environ.get("KVSTREAM_TEST_FILE", "")


def said(text: str) -> str:
    """Append a line to the file that the test reads; one write is atomic."""
    with open(FILE, "a") as file:
        file.write(f"{text}\n")
    time.sleep(0.005)
    return text


async def said_async(text: str) -> str:
    return said(text)


def book(text: str) -> str:
    with current_job().transaction() as store:
        store.stream("booked").add({"text": text})
        current_job().result = text
    return text


@jobs.task(retries=10_000, backoff=0, timeout=3)
def child(text: str) -> str:
    return said(text)


@jobs.workflow
def order(n: int) -> list[Any]:
    found: list[Any] = [step(said, f"{n} begins"), step(book, f"{n} first")]
    pause(0.05)
    found += gather([child.start(f"{n} child {k}") for k in range(2)])
    found.append(wait_for("go"))
    found += [step(book, f"{n} last"), child.run(f"{n} ends")]
    return found


@jobs.workflow
async def order_async(n: int) -> list[Any]:
    found: list[Any] = [await step(said_async, f"{n} begins"), await child.run(f"{n} child")]
    await pause(0.05)
    found += [await wait_for("go"), await step(said_async, f"{n} ends")]
    return found
