"""A job queue: tasks with retries and delays, a worker, a failed job that is mended and retried.

    python examples/job_queue.py

This program enqueues jobs and runs them. In production the workers are processes of their own,
``kvstream work job_queue:jobs``, beside any number of programs that enqueue. The data is in the
folder that ``DATA`` names in the environment, else in a temporary one.
"""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvstream import JobFailed, Jobs
from kvstream.jobs import Worker

TEMPORARY = tempfile.TemporaryDirectory()
jobs = Jobs(os.environ.get("DATA", TEMPORARY.name))

addresses = {"ann": "ann@example.com", "bob": "bob@example.com"}
refused = {"bob": 2}  # how often the mail server is busy


@jobs.task(retries=3, backoff=0.1, timeout=10)
def send_mail(to: str) -> str:
    if refused.get(to):
        refused[to] -= 1
        raise ConnectionError("busy, try later")
    return f"sent to {addresses[to]}"


@jobs.task
async def resize(picture: str, width: int = 100) -> str:
    return f"{picture} is {width} wide"


@contextmanager
def worker() -> Iterator[None]:
    """Run a worker in a thread until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=Worker(jobs, concurrency=4).run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def main() -> None:
    print(send_mail.enqueue("ann").result(timeout=60))

    busy = send_mail.enqueue("bob")
    print(busy.result(timeout=60), "in try", len(busy.tries))

    once = resize.with_options(delay=0.2, unique="resize:cat")
    handles = [once.enqueue("cat.png", width=width) for width in (10, 20, 30)]
    print(handles[0].status, len(set(handles)))  # the second and third are the first
    print(handles[0].result(timeout=60))

    lost = send_mail.enqueue("eve")
    try:
        lost.result(timeout=60)
    except JobFailed as error:
        print("failed:", error)
    addresses["eve"] = "eve@example.com"  # mended
    print("retried:", lost.retry(), lost.result(timeout=60))
    print("done:", jobs.count(status="done").total, "failed:", jobs.count(status="failed").total)


if __name__ == "__main__":
    with jobs, worker():
        main()
    TEMPORARY.cleanup()
