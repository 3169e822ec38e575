"""A process that delays messages until it is killed, and reports acknowledged commands.

The store's own thread fires them meanwhile, and a schedule each second. Each line announces a
command, or reports its result::

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
from kvstream.operations import delayed
from kvstream.operations.queues import schedules
from kvstream.operations.queues.schedules import MOST_MAX, Misfire
from kvstream.operations.unique import Conflict, Unique
from kvstream.types.ids import Ticket

NAME, TICKS, ONLY = (qualified(0, key) for key in (b"jobs", b"ticks", b"only"))
UNIQUE_IDS = [b"a", b"b", b"c"]
DELAY_MS = 400


def say(*content: object) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def work_on_unique(store: Store, chance: random.Random) -> None:
    """Add messages of a few unique IDs to a separate stream, read them and acknowledge them."""
    group = store.stream("only").group("g")
    if chance.random() < 0.3:
        entries = group.consumer("c").read(count=2)
        pending = group.pending_range(count=4)
        group.ack([each.id for each in pending[: len(entries)]])
        return
    chosen = chance.choice(UNIQUE_IDS)
    value, names = encode_fields({"id": chosen})
    at_ms = int(time() * 1000) + chance.randrange(-50, 50)
    rule = chance.choice([Conflict.SKIP, Conflict.REPLACE, Conflict.AFTER])
    store.engine.run(delayed.add, ONLY, value, names, at_ms, 0, Unique(chosen, 0, rule))


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
    if not store.exists("only"):
        store.stream("only").create_group("g", start="0", mkstream=True)
    fields, every = [b"n", b"1"], "@every 1s"
    run(schedules.set_schedule, TICKS, b"tick", every, fields, "", Misfire.ALL, MOST_MAX)
    while True:
        work_on_unique(store, chance)
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
