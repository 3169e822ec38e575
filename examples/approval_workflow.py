"""A workflow that waits for a person: it holds no thread meanwhile, and survives restarts.

    python examples/approval_workflow.py

The worker is stopped while the workflow waits, and another one, after the person has answered,
goes on. Finished steps are not done again: the money is reserved once. The data is in the folder
that ``DATA`` names in the environment, else in a temporary one.
"""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import sleep

from kvstream import Jobs
from kvstream.jobs import Worker, on_failure, publish, step, wait_for

TEMPORARY = tempfile.TemporaryDirectory()
jobs = Jobs(os.environ.get("DATA", TEMPORARY.name))
done: list[str] = []


def reserve(amount: int) -> str:
    done.append(f"reserve {amount}")
    return f"reservation of {amount}"


def release(reservation: str) -> None:
    done.append(f"release the {reservation}")


def pay(reservation: str) -> str:
    done.append(f"pay the {reservation}")
    return "paid"


@jobs.workflow
def expense(who: str, amount: int) -> str:
    reservation = step(reserve, amount)
    on_failure(release, reservation)  # runs if anything below fails for good
    publish("asked", f"may {who} spend {amount}?")
    try:
        answer = wait_for("decision", timeout=timedelta(days=3))
    except TimeoutError:
        answer = "no"
    if answer != "yes":
        step(release, reservation)
        return "refused"
    return str(step(pay, reservation))


@contextmanager
def worker() -> Iterator[None]:
    """Run a worker in a thread until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=Worker(jobs).run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def until(condition: Callable[[], object]) -> None:
    while not condition():
        sleep(0.01)


def main() -> None:
    laptop = expense.with_options(id="expense:1").enqueue("ann", 900)
    yacht = expense.with_options(id="expense:2").enqueue("bob", 900_000)
    with worker():
        until(lambda: laptop.waits_for and yacht.waits_for)
    print(laptop.status, "for", laptop.waits_for)
    print(laptop.published()["asked"])

    # In the view that the buttons call, in any process:
    expense.handle("expense:1").send("decision", "yes")
    expense.handle("expense:2").send("decision", "no")

    with worker():
        print(laptop.result(timeout=60), "and", yacht.result(timeout=60))
    print([each.name for each in laptop.steps()])
    print(sorted(done))


if __name__ == "__main__":
    with jobs:
        main()
    TEMPORARY.cleanup()
