"""A process that adds to streams with rules of retention until it is killed.

The store's own thread removes entries by the rules, and commands of this process do so as well.
Each line announces or reports an add, or an acknowledgement of group a or b; a reported add has the
time of its ID::

    python -m tests.crash.retention_writer DIRECTORY SEED
    try length 17
    did length 17 1700000000000
    try b 8 9
    did b 8 9
"""

import random
import sys
from typing import Any

from kvstream import Store
from kvstream.layout.keys import qualified
from kvstream.operations.queues import retention
from tests.crash.order_writer import say

AGE_S, BYTES, LENGTH = 2.0, 30_000, 250
RULES: dict[str, dict[str, Any]] = {
    "age": {"max_age": AGE_S},
    "bytes": {"max_bytes": BYTES},
    "length": {"max_length": LENGTH},
    "acked": {"acked": True},
    "latest": {"latest": "key"},
}
GROUPS = ("a", "b")


def prepare(store: Store) -> None:
    """Set the rules, unless an earlier process has set them."""
    for key, rules in RULES.items():
        stream = store.stream(key)
        if store.exists(key) and stream.retention() is not None:
            continue
        for group in GROUPS if key == "acked" else ("none",):
            stream.create_group(group, "0", mkstream=True, exist_ok=True)
        if key != "acked":
            stream.group("none").destroy()
        stream.set_retention(**rules)


def main(directory: str, seed: int) -> None:
    store = Store.open(
        directory,
        durability="no",
        write_buffer_bytes=256 << 10,
        tree_write_buffer_bytes=64 << 10,
        free_space_reserve=0,
    )
    prepare(store)
    chance, number = random.Random(seed), seed * 1_000_000
    taken: dict[str, dict[int, Any]] = {group: {} for group in GROUPS}
    while True:
        command = chance.choices(["add", *GROUPS, "run"], [20, 4, 4, 1])[0]
        key = chance.choice(list(RULES))
        if command == "run":
            store.engine.run(retention.run, qualified(0, key.encode()))
        elif command == "add":
            number += 1
            say("try", key, [number])
            padding = "x" * chance.randrange(200)
            eid = store.stream(key).add({"n": number, "key": number % 7, "padding": padding})
            say("did", key, [number, eid.ms])
        else:
            group, own = store.stream("acked").group(command), taken[command]
            for entry in group.consumer("c").read(count=10):
                own[int(entry.fields[b"n"])] = entry.id
            some = chance.sample(sorted(own), chance.randrange(len(own) + 1))
            if some:
                say("try", command, some)
                group.ack(*[own.pop(n) for n in some])
                say("did", command, some)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
