"""The worker process, which is killed: ``python -m demo.worker DIR NAME...``.

Each NAME is a consumer in a thread of its own. A consumer reads the entries that it had pending
before a crash, then new entries, then those that others left pending. In one transaction it
acknowledges a batch and appends the batch's sums, so after a crash both have happened or neither.

It reports each batch as a line of JSON between delivery and commit, and waits for an answer. So the
reader of the reports can kill it at the worst moment.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Barrier, Lock, Thread

from demo.readings import SOURCES, Source, Sum, fold
from kvstream import DeletedEntry, Entry, Store

GROUP = "climate"
RESULTS = "results"
BATCH = 50
IDLE_S = 0.3
"""An entry pending for longer is claimed from its consumer."""
DOOMED = "carla"
"""The consumer that dies with entries pending, once."""
DOOMED_BATCHES = 3

Batch = Sequence[Entry | DeletedEntry]

_reporting = Lock()


def report(event: str, consumer: str, count: int) -> None:
    """Report an event, and wait for the answer."""
    with _reporting:
        print(json.dumps({"event": event, "consumer": consumer, "count": count}), flush=True)
        sys.stdin.readline()


def commit(store: Store, source: Source, batch: Batch) -> None:
    """Count each entry of a batch once, though two consumers may have it after a claim."""
    with store.transaction() as tx:
        group = tx.stream(source.stream).group(GROUP)
        mine = [entry for entry in batch if isinstance(entry, Entry) and group.ack(entry.id)]
        sums = fold(
            ((source.stream, source.period(entry.id.ms)), Sum.of(value.decode()))
            for entry in mine
            for value in [entry.fields[source.column.encode()]]
        )
        for (stream, period), part in sums.items():
            tx.stream(RESULTS).add({"stream": stream, "period": period, **part.as_fields()})


def deliveries(store: Store, source: Source, name: str) -> Iterator[tuple[str, Batch]]:
    """Yield the batches of one stream with their origin, until nothing is new or pending."""
    group = store.stream(source.stream).group(GROUP)
    consumer = group.consumer(name)
    batch: Batch
    while batch := consumer.history(count=BATCH):
        yield "resumed", batch
    while batch := consumer.read(count=BATCH):
        yield "new", batch
    while group.pending().count:
        batch = consumer.autoclaim(IDLE_S, count=BATCH).entries
        if batch:
            yield "claimed", batch
        else:
            time.sleep(IDLE_S / 10)


def consume(store: Store, name: str, step: Barrier | None) -> None:
    """Process every stream as one consumer; the first batches in step with the others."""
    taken = 0
    for source in SOURCES:
        for how, batch in deliveries(store, source, name):
            taken += 1
            if step is not None and taken <= DOOMED_BATCHES:
                step.wait()
            if name == DOOMED and taken == DOOMED_BATCHES:
                report("died", name, len(batch))
                return
            report(how, name, len(batch))
            commit(store, source, batch)


def main(folder: Path, names: Sequence[str]) -> None:
    """Run the consumers until all entries are processed."""
    # In step, so that the consumer that dies gets entries before all are processed.
    step = Barrier(len(names)) if DOOMED in names else None
    with Store.open(folder) as store:
        threads = [Thread(target=consume, args=(store, name, step)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
