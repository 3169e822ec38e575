"""A worker of a pipeline of two queues, which is killed at a random moment.

A message of queue "first" becomes one of queue "second", and that an entry of stream "done". Each
step is a transaction of its message, which also counts the step in a stream of its own. Now and
then a step fails, is given back, or takes longer than its lease.

::

    python -m tests.queues.pipeline PLACE shared|alone SEED
"""

import random
import sys
import time
from typing import Any

import kvstream
from kvstream import Conflict, LeaseLost, Message, Queue, Store, StoreError, UnknownOutcome

LEASE_S = 0.3


def step(store: Store, message: Message, target: Queue | None, chance: random.Random) -> None:
    luck = chance.random()
    if luck < 0.05:
        message.nack()
        return
    if luck < 0.1:
        time.sleep(1.2 * LEASE_S)
    with message.transaction():
        n = message.fields[b"n"]
        store.stream("steps").add({"queue": message.key, "n": n})
        if target is not None:
            target.put({"n": n})
        else:
            store.stream("done").add({"n": n})
        if chance.random() < 0.05:
            raise ZeroDivisionError


def main(place: str, kind: str, seed: str) -> None:
    chance = random.Random(seed)
    options: dict[str, Any] = {"shared": True, "durability": "no"} if kind == "shared" else {}
    with kvstream.open(place, **options) as store:
        first, second = Queue(store, "first", lease=LEASE_S), Queue(store, "second", lease=LEASE_S)
        print("working", flush=True)
        while True:
            for queue, target in ((first, second), (second, None)):
                try:
                    for message in queue.get(3, block=0.02):
                        step(store, message, target, chance)
                except (Conflict, LeaseLost, StoreError, UnknownOutcome, ZeroDivisionError):
                    pass  # it comes again


if __name__ == "__main__":
    main(*sys.argv[1:])
