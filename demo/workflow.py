"""A workflow: its worker is killed in the middle of a step, and another one goes on.

``python -m demo.workflow DIR`` is the worker. The first one kills itself with -9 while it packs the
parcel. The second runs the function from its top: the payment is not made again, the parcel is
packed once more, and the workflow ends. It takes about three seconds, most of them the lease of the
dead worker.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from demo.job import ROOT, DemoFailed
from kvstream import Jobs, current_job
from kvstream.jobs import Worker, WorkflowHandle, pause, step

ID = "order:7"
PAUSE_S = 0.2
LEASE_S = 2.0

Say = Callable[[str], None]


def pay(order: str) -> str:
    """Pay in the same commit that ends the step: exactly once."""
    job = current_job()
    with job.transaction() as store:
        store.stream("payments").add({"order": order})
        job.result = f"payment of {order}"
    return order


def jobs_at(folder: Path) -> Jobs:
    """Return the application on a folder."""
    jobs = Jobs(folder, shared=False)

    def pack() -> str:
        """Pack a parcel; the first one who does so dies."""
        deaths = jobs.store.stream("deaths")
        if len(deaths) == 0:
            deaths.add({"pid": os.getpid()})
            os.kill(os.getpid(), signal.SIGKILL)
        return "parcel 1"

    @jobs.task(timeout=LEASE_S, retries=10, backoff=0)
    def mail(to: str) -> str:
        return f"mail to {to}"

    @jobs.workflow
    def order() -> str:
        payment = step(pay, ID)
        pause(PAUSE_S)
        parcel = step(pack)
        return f"{payment}, {parcel}, {mail.run('ann')}"

    return jobs


def main(folder: Path) -> None:
    """Work until the workflow has ended."""
    stop = threading.Event()
    with jobs_at(folder) as jobs:
        worker = threading.Thread(target=Worker(jobs).run, args=(stop,))
        worker.start()
        try:
            jobs.handle(ID).result(60)
        finally:
            stop.set()
            worker.join()


def _work(folder: Path) -> int:
    command = [sys.executable, "-m", "demo.workflow", str(folder)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def run(folder: Path, say: Say) -> None:
    """Run it in eight lines of output; raise DemoFailed unless it was paid exactly once."""
    folder = folder.resolve()
    with jobs_at(folder) as jobs:
        jobs.tasks["order"].enqueue(id=ID)
    died = _work(folder)
    say(f"worker 1  pays, waits, and is [red]killed with {died}[/] while it packs")
    ended = _work(folder)
    say("worker 2  runs the function from its top, and finds what was done:")
    with jobs_at(folder) as jobs:
        handle = WorkflowHandle[str](jobs, ID)
        for each in handle.steps():
            say(f"          {each.kind:6} {each.name:6} {each.result or ''}".rstrip())
        say(f"ended     {handle.status}: {handle.result()}")
        payments = len(jobs.store.stream("payments"))
    say(f"payments  {payments}")
    if (died, ended, payments) != (-signal.SIGKILL, 0, 1):
        raise DemoFailed(f"the workers ended with {died} and {ended}, with {payments} payments")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
