"""A process of a shared store under load: it adds, reads as a consumer, and acknowledges.

It prints what it was promised, a line each, flushed before the next call. ``+ N`` says that adding
entry N began, ``= N ID`` that it was acknowledged, ``< N`` that the consumer got it, ``- N`` that
its acknowledgement came back. A process that is killed leaves a torn line at most.
"""

import sys
import threading
from pathlib import Path

import kvstream
from kvstream import Store, UnknownOutcome

WAIT_S = 60.0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def add(store: Store, worker: int, stop: threading.Event) -> None:
    stream = store.stream("jobs")
    n = 0
    while not stop.is_set():
        n += 1
        say(f"+ {worker}:{n}")
        eid = stream.add({"n": f"{worker}:{n}"})
        say(f"= {worker}:{n} {eid}")


def consume(store: Store, worker: int, stop: threading.Event) -> None:
    group = store.stream("jobs").group("g")
    consumer = group.consumer(f"worker-{worker}")
    while not stop.is_set():
        for entry in consumer.read(5, block=0.2):
            name = entry.fields[b"n"].decode()
            say(f"< {name}")
            group.ack(entry)
            say(f"- {name}")


def main(directory: str, worker: int) -> None:
    stop = threading.Event()
    with kvstream.open(Path(directory), shared=True, durability="no", wait_s=WAIT_S) as store:
        while True:
            try:
                store.stream("jobs").create_group("g", "0", exist_ok=True)
                break
            except UnknownOutcome:
                pass
        threads = [
            threading.Thread(target=target, args=(store, worker, stop)) for target in (add, consume)
        ]
        for thread in threads:
            thread.start()
        sys.stdin.read()  # until the test closes it
        stop.set()
        for thread in threads:
            thread.join()
        say("done")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
