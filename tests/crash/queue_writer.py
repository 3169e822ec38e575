"""A process that works on a queue until it is killed, and reports acknowledged commands.

One stream, one group of three consumers: it adds (sometimes with a trim), reads, acknowledges,
claims, gives back and deletes. Each line announces a command, or reports its result.

::

    python -m tests.crash.queue_writer DIRECTORY LEVEL SEED
    try COMMAND
    did COMMAND IDS SEQUENCE DURABLE

in JSON: ["did", "add", ["5-0"], 120, 80]. The last two numbers are the last write so far, and the
last one that is on disk.
"""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

from kvstream import Durability, Group, Stream
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.opening import open_with

CONSUMERS = ("ann", "bob", "cid")
KEPT = 400
"""The number of entries that a trimming add keeps."""

Ids = list[str]


class Worker:
    """The commands that it chooses from; each returns the IDs that it used."""

    def __init__(self, stream: Stream, group: Group, chance: random.Random) -> None:
        self._stream = stream
        self._group = group
        self._chance = chance

    def add(self) -> Ids:
        fields: dict[str, int | str] = {
            "n": self._chance.randrange(1 << 30),
            "padding": "x" * self._chance.randrange(200),
        }
        return [str(self._stream.add(fields))]

    def add_trimming(self) -> Ids:
        return [str(self._stream.add({"n": "trim"}, maxlen=KEPT))]

    def add_many(self) -> Ids:
        count = self._chance.randrange(1, 40)
        return [str(eid) for eid in self._stream.add_many([{"n": str(n)} for n in range(count)])]

    def read(self) -> Ids:
        consumer = self._group.consumer(self._chance.choice(CONSUMERS))
        return [str(entry.id) for entry in consumer.read(count=self._chance.randrange(1, 30))]

    def ack(self) -> Ids:
        pending = self._group.pending_range(count=60)
        chosen = [each.id for each in pending if self._chance.random() < 0.7]
        self._group.ack(chosen)
        return [str(eid) for eid in chosen]

    def claim(self) -> Ids:
        claimed = self._group.autoclaim(self._chance.choice(CONSUMERS), count=10)
        return [str(eid) for eid in claimed.deleted]

    def nack(self) -> Ids:
        chosen = [each.id for each in self._group.pending_range(count=3)]
        self._group.nack(chosen)
        return [str(eid) for eid in chosen]

    def delete(self) -> Ids:
        chosen = [entry.id for entry in self._stream.revrange(count=self._chance.randrange(1, 4))]
        self._stream.delete(chosen)
        return [str(eid) for eid in chosen]

    def choose(self) -> Callable[[], Ids]:
        weights = {
            self.add: 30,
            self.add_trimming: 4,
            self.add_many: 4,
            self.read: 25,
            self.ack: 20,
            self.claim: 5,
            self.nack: 2,
            self.delete: 4,
        }
        return self._chance.choices(list(weights), list(weights.values()))[0]


def say(word: str, *content: object) -> None:
    sys.stdout.write(json.dumps([word, *content]) + "\n")
    sys.stdout.flush()


def main(directory: str, level: str, seed: int, thresholds: Thresholds = DEFAULT) -> None:
    store = open_with(
        Path(directory),
        thresholds,
        durability=Durability(level),
        write_buffer_bytes=128 << 10,
        tree_write_buffer_bytes=64 << 10,
        free_space_reserve=0,
    )
    stream = store.stream("jobs")
    if "jobs" not in store:
        stream.create_group("workers", start="0")
    worker = Worker(stream, stream.group("workers"), random.Random(seed))
    while True:
        command = worker.choose()
        say("try", command.__name__)
        ids, engine = command(), store.engine
        say("did", command.__name__, ids, engine.seen_sequence, engine.committer.durable_sequence)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
