"""A process that writes rows until it is killed, and reports acknowledged batches.

Each batch has a number: it puts one to five messages, records in the metadata which messages exist,
and puts a tree row. Sometimes it deletes the oldest messages as a range. So the rows show whether
each batch is complete, and whether all earlier ones are.

::

    python -m tests.crash.row_writer DIRECTORY LEVEL SEED
    acked BATCH SEQUENCE       the batch has the durability of its level
    durable SEQUENCE           power loss must not lose it
"""

import random
import sys
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import Database
from kvstream.storage.durability import Committer
from kvstream.types.options import Durability, StoreOptions

OPTIONS = StoreOptions(
    write_buffer_bytes=256 << 10,
    tree_write_buffer_bytes=64 << 10,
    wal_bytes_max=1 << 20,
    free_space_reserve=0,
)
"""Small buffers, so that kills hit flushes and compactions."""

STATE = b"state"
TREE_ROWS = 100
"""The number of tree rows kept: one for each of the latest batches."""
LIVE_MAX = 3000
"""Above this number of messages the oldest half is deleted."""


@dataclass(frozen=True)
class State:
    """The metadata row: the number of batches, and the messages first <= number < end."""

    batches: int = 0
    first: int = 0
    end: int = 0

    def encoded(self) -> bytes:
        return b"%d %d %d" % (self.batches, self.first, self.end)

    @classmethod
    def decoded(cls, row: bytes | None) -> "State":
        return cls(*map(int, row.split())) if row else cls()


def key_of(number: int) -> bytes:
    return number.to_bytes(8, "big")


def value_of(number: int) -> bytes:
    return zlib.crc32(key_of(number)).to_bytes(4, "big") * (10 + number % 40)


def options(level: Durability, seed: int = 0) -> StoreOptions:
    """Return the options of one writer: every second one keeps all of its rows in the log."""
    chosen = replace(OPTIONS, durability=level)
    return (
        replace(chosen, write_buffer_bytes=64 << 20, wal_bytes_max=1 << 30) if seed % 2 else chosen
    )


def write_one(database: Database, state: State, chance: random.Random) -> tuple[State, int]:
    """Write the next batch; return the state of the store after it, and its sequence number."""
    batch = Batch(database)
    after = State(state.batches + 1, state.first, state.end + chance.randint(1, 5))
    for number in range(state.end, after.end):
        batch.put(Family.MESSAGES, key_of(number), value_of(number))
    if after.end - after.first > LIVE_MAX:
        after = replace(after, first=after.end - LIVE_MAX // 2)
        batch.delete_range(Family.MESSAGES, key_of(state.first), key_of(after.first))
    batch.put(Family.METADATA, STATE, after.encoded())
    batch.put(Family.TREES, key_of(after.batches), b"%d" % after.end)
    if after.batches > TREE_ROWS:
        batch.delete(Family.TREES, key_of(after.batches - TREE_ROWS))
    return after, database.write(batch)


def main(directory: Path, level: Durability, seed: int) -> None:
    chance = random.Random(seed)
    database = Database.open(directory, options(level, seed))
    committer = Committer(database, level)
    state = State.decoded(database.get(Family.METADATA, STATE))
    said = 0
    while True:
        state, sequence = write_one(database, state, chance)
        committer.wait(sequence)
        lines = f"acked {state.batches} {sequence}\n"
        if committer.durable_sequence > said:
            said = committer.durable_sequence
            lines += f"durable {said}\n"
        sys.stdout.write(lines)
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Durability(sys.argv[2]), int(sys.argv[3]))
