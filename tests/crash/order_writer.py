"""A process that works on an ordered queue with dead letters until it is killed.

Each line announces a command with its numbers, or reports its end::

    python -m tests.crash.order_writer DIRECTORY SEED
    try add 17
    did add 17
"""

import random
import sys

from kvstream import Store
from kvstream.errors import RequestError
from kvstream.layout.keys import qualified
from kvstream.operations.queues import policy, redrive
from kvstream.types.records import Outcome

NAME, DEAD = qualified(0, b"jobs"), qualified(0, b"jobs:dead")
KEYS = "aaaabc"


def say(word: str, command: str, numbers: list[int]) -> None:
    sys.stdout.write(f"{word} {command} {' '.join(map(str, numbers))}\n")
    sys.stdout.flush()


def main(directory: str, seed: int) -> None:
    store = Store.open(directory, free_space_reserve=0)
    chance = random.Random(seed)
    group = store.stream("jobs").create_group("workers", start="0", exist_ok=True)
    rules = {"order_by": b"key", "max_deliveries": 5, "lease_ms": 50}
    store.engine.run(policy.set_policy, NAME, b"workers", rules)
    number = seed * 1_000_000
    taken: dict[int, object] = {}
    while True:
        command = chance.choices(["add", "read", "done", "fatal", "redrive"], [6, 5, 5, 2, 1])[0]
        if command == "add":
            numbers = list(range(number, number + chance.randrange(1, 8)))
            number = numbers[-1] + 1
            say("try", "add", numbers)
            entries = [{"n": str(n), "key": chance.choice(KEYS)} for n in numbers]
            store.stream("jobs").add_many(entries)
            say("did", "add", numbers)
        elif command == "read":
            for entry in group.consumer("w").read(count=chance.randrange(1, 6)):
                taken[int(entry.fields[b"n"])] = entry.id
        elif command == "redrive":
            try:
                store.engine.run(lambda txn: redrive.start(txn, DEAD, rate=(2, 5)))
            except RequestError:  # one is already running
                continue
        elif taken:
            n, eid = taken.popitem()
            say("try", command, [n])
            if command == "done":
                outcomes = group.ack_delete(eid, ref_policy="DELREF")  # type: ignore[arg-type]
                command = "done" if outcomes == [Outcome.DELETED] else "late"
            else:
                group.nack(eid, mode="FATAL")  # type: ignore[arg-type]
            say("did", command, [n])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
