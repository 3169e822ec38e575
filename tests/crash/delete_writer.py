"""A process that creates and deletes very many keys until it is killed, and reports each step.

It also creates a stream of very many groups, which it deletes separately.

::

    python -m tests.crash.delete_writer DIRECTORY
    made NUMBER
    try NUMBER          before they are deleted
    did NUMBER
"""

import sys
from itertools import count

from kvstream import Store
from kvstream.operations.keyspace import plan_delete
from kvstream.operations.plans import Stepped
from kvstream.types.thresholds import DEFAULT

KEYS = DEFAULT.long_keys + 50
RICH = b"rich"


def names(number: int) -> list[bytes]:
    return [b"%d:%d" % (number, at) for at in range(KEYS)]


def main(directory: str) -> None:
    with Store.open(directory, durability="no") as store:
        for number in count():
            with store.transaction():
                for name in names(number):
                    store.stream(name).add({"f": "v"})
                for at in range(DEFAULT.groups_together + 50):
                    store.stream(RICH).create_group(b"%d" % at)
            print("made", number, flush=True)
            store.delete(RICH)
            if number % 3 == 1:
                continue
            print("try", number, flush=True)
            work = Stepped(plan_delete(0, names(number)))
            while store.engine.run(work.step) is None:
                pass
            print("did", number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
