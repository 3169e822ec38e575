"""A process that works on a queue with retries, dead letters and redrives until it is killed.

Each line announces a command with its numbers, or reports its end::

    python -m tests.crash.retry_writer DIRECTORY SEED
    try add 17 18
    did add 17 18
"""

import random
import sys
from contextlib import suppress

from kvstream import LeaseLost, Message, Queue, RequestError, Store
from tests.crash.order_writer import say

LEASE_S = 0.05
DELIVERIES = 4
BACKOFF_S = [0.01, 0.04]


def queue_of(store: Store) -> Queue:
    return Queue(
        store, "jobs", lease=LEASE_S, max_deliveries=DELIVERIES, backoff=BACKOFF_S, keep=False
    )


def settle(message: Message, command: str, chance: random.Random) -> None:
    if command == "done":
        message.ack()
    elif command == "fatal":
        message.nack(fatal=True, error="broken")
    else:
        message.nack(delay=chance.choice([None, 0, 0.02]))


def main(directory: str, seed: int) -> None:
    queue = queue_of(Store.open(directory, free_space_reserve=0))
    chance = random.Random(seed)
    number = seed * 1_000_000
    taken: dict[int, Message] = {}
    kinds, weights = ["add", "get", "done", "failed", "fatal", "redrive"], [6, 8, 4, 4, 1, 1]
    while True:
        command = chance.choices(kinds, weights)[0]
        if command == "add":
            numbers = list(range(number, number + chance.randrange(1, 6)))
            number = numbers[-1] + 1
            say("try", "add", numbers)
            queue.put_many([{"n": n} for n in numbers], delay=chance.choice([None, None, 0.02]))
            say("did", "add", numbers)
        elif command == "get":
            taken |= {int(each.fields[b"n"]): each for each in queue.get(chance.randrange(1, 6))}
        elif command == "redrive":
            with suppress(RequestError):  # one is running, or there is nothing to move
                queue.redrive(rate=(3, 0.01), count=20)
        elif taken:
            n, message = taken.popitem()
            say("try", command, [n])
            try:
                settle(message, command, chance)
            except LeaseLost:
                command = "late"
            say("did", command, [n])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
