"""A program that shares its store with the processes that it makes: ``fork`` or ``spawn``.

The parent adds tasks, its children take them in transactions. With ``killed`` the parent, which
owns the store, ends as by kill -9 when half of the tasks are added; its children go on alone.
"""

import multiprocessing
import os
import signal
import sys
from typing import Any

import kvstream
from kvstream import Conflict, Store, StreamID, UnknownOutcome

TASKS = 60
CHILDREN = 3


def work(store: Store, name: str) -> None:
    group = store.stream("tasks").group("workers")
    worker, done = group.consumer(name), store.stream("done")
    while len(done) < TASKS:
        for entry in worker.read(3, block=0.2):
            finish(store, entry.id, entry.fields[b"n"])


def finish(store: Store, eid: StreamID, n: bytes) -> None:
    """Move one task; look whether it is moved if the outcome is unknown."""
    group = store.stream("tasks").group("workers")
    while True:
        try:
            with store.transaction():
                store.stream("done").add({"n": n})
                group.ack(eid)
            return
        except Conflict:
            continue
        except UnknownOutcome:
            if not group.pending_range(eid, eid):
                return


def produce(store: Store, killed: bool) -> None:
    """Add the tasks; a child adds the second half if the parent is to be killed."""
    numbers = range(TASKS // 2, TASKS) if killed else range(TASKS)
    for n in numbers:
        store.stream("tasks").add({"n": n})


def main(directory: str, method: str, killed: bool) -> None:
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":  # each child would import redis-py, perhaps without bytecode
        context.set_forkserver_preload(["__main__", "kvstream.shared.engine", "redis"])
    with kvstream.open(directory, shared=True, durability="no", wait_s=60) as store:
        store.stream("tasks").create_group("workers", "0")
        names = [f"worker-{n}" for n in range(CHILDREN)]
        children = [context.Process(target=work, args=(store, name)) for name in names]
        for child in children:
            child.start()
        if killed:
            for n in range(TASKS // 2):
                store.stream("tasks").add({"n": n})
            context.Process(target=produce, args=(store, True)).start()
            print(*(child.pid for child in children), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        produce(store, False)
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * CHILDREN


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:] == ["killed"])
