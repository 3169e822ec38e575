"""A process that owns a store with an archive, and writes until it is killed or fenced.

::

    python -m tests.archive.writer DIRECTORY URL LEVEL INTERVAL SEED
    NUMBER TIME LAG   the entry of this number was acknowledged then, by the clock of the system,
                      while the archive was so many seconds behind
    refused ERROR     another owner has taken over
"""

import os
import random
import sys
import time
from pathlib import Path

from kvstream import Store
from kvstream.archive import archiver, merging
from kvstream.errors import ArchiveTaken, UnknownOutcome
from kvstream.types.options import Durability

FIELD, WRITER = "n", "by"
"""The fields of an entry with its number, and with the ID of the process that wrote it."""


def numbers_in(store: Store) -> list[int]:
    """Return the numbers of the entries of a store, in their order."""
    return [int(entry.fields[FIELD.encode()]) for entry in store.stream("orders").range()]


def write(store: Store, number: int, chance: random.Random) -> None:
    """Add an entry, and sometimes do other work."""
    text = "x" * chance.randint(0, 300)
    store.stream("orders").add({FIELD: str(number), WRITER: str(os.getpid()), "text": text})
    noise = store.stream("noise")
    if number % 7 == 0:
        noise.add_many([{"v": "y" * chance.choice((10, 10, 20_000))}] * 5)
        workers = noise.create_group("workers", start="0", exist_ok=True)
        workers.consumer("ann").read(count=3)
    if number % 50 == 0:
        noise.trim(maxlen=20)
        store.engine.flush()


def main(directory: Path, url: str, level: str, interval_s: float, seed: int) -> None:
    archiver.SAMPLE_S, archiver.SNAPSHOT_LOG_BYTES = 0.02, 100_000
    merging.LEVELS, merging.DELAY_S = (4, 16), 0.1
    chance = random.Random(seed)
    with Store.open(
        directory,
        archive=url,
        durability=Durability(level),
        archive_interval_s=interval_s,
        take_over=True,
    ) as store:
        number = max(numbers_in(store), default=-1) + 1
        while True:
            try:
                write(store, number, chance)
            except (ArchiveTaken, UnknownOutcome) as error:
                print("refused", type(error).__name__, flush=True)
                if isinstance(error, ArchiveTaken):
                    return
            else:
                lag_s = store.engine.archiving.archiver.status().behind_s
                print(number, time.monotonic(), lag_s, flush=True)
            number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
