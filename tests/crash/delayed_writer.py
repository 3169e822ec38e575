"""A process that delays messages until it is killed, and says what was acknowledged.

The store's own thread fires them meanwhile, and a schedule each second. Each line tells a command
that is about to run, or what it came to::

    python -m tests.crash.delayed_writer DIRECTORY LEVEL SEED
    try COMMAND N
    did COMMAND N TICKET

in JSON: ["did", "add", 17, "@1700000000000-5"]. N is the message's field ``n``.
"""

import json
import random
import sys
from time import time

from kvstream import Durability, Store
from kvstream.layout.keys import qualified
from kvstream.layout.values import encode_fields
from kvstream.operations import delayed, schedules
from kvstream.operations.schedules import MOST_MAX, Misfire
from kvstream.types.ids import Ticket

NAME, TICKS = qualified(0, b"jobs"), qualified(0, b"ticks")
DELAY_MS = 400


def say(*content: object) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def main(directory: str, level: str, seed: int) -> None:
    store = Store.open(
        directory,
        durability=Durability(level),
        write_buffer_bytes=256 << 10,
        tree_write_buffer_bytes=64 << 10,
        free_space_reserve=0,
    )
    run, chance, number = store.engine.run, random.Random(seed), seed * 1_000_000
    tickets: dict[int, Ticket] = {}
    fields, every = [b"n", b"1"], "@every 1s"
    run(schedules.set_schedule, TICKS, b"tick", every, fields, "", Misfire.ALL, MOST_MAX)
    while True:
        command = chance.choices(["add", "cancel", "move"], [20, 2, 2])[0]
        at_ms = int(time() * 1000) + chance.randrange(DELAY_MS)
        if command == "add" or not tickets:
            number += 1
            say("try", "add", number)
            value, names = encode_fields({"n": str(number), "padding": "x" * chance.randrange(99)})
            added = run(delayed.add, NAME, value, names, at_ms)
            if type(added) is Ticket:
                tickets[number] = added
            say("did", "add", number, str(added))
            continue
        chosen = chance.choice(list(tickets)[-50:])
        ticket = tickets.pop(chosen)
        say("try", command, chosen)
        if command == "cancel":
            say("did", command, chosen, run(delayed.cancel, NAME, [ticket]))
        else:
            moved = run(delayed.move, NAME, ticket, at_ms)
            if moved is not None:
                tickets[chosen] = moved
            say("did", command, chosen, str(moved))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
