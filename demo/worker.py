"""The process that does the work, and that is killed: ``python -m demo.worker DIR NAME...``.

Every NAME is a consumer in a thread of its own. A consumer takes what it left pending in an earlier
life, then new entries, then what others have left. It sums up a batch and, in one transaction,
acknowledges the entries and appends the sums: after any crash both have happened or neither.

It reports each batch as a line of JSON, after the delivery and before the commit, and goes on when
it is answered. So whoever reads the reports can kill it at the worst moment.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Barrier, Lock, Thread

from demo.readings import SOURCES, Source
from demo.sums import Sum, fold
from kvstream import DeletedEntry, Entry, Store

GROUP = "climate"
RESULTS = "results"
BATCH = 50
IDLE_S = 0.3
"""An entry pending for longer is taken from its consumer."""
DOOMED = "carla"
"""The consumer that dies with entries pending, once."""
DOOMED_BATCHES = 3

Batch = Sequence[Entry | DeletedEntry]

_reporting = Lock()


def report(event: str, consumer: str, count: int) -> None:
    """Tell what has happened, and wait until it has been heard."""
    with _reporting:
        print(json.dumps({"event": event, "consumer": consumer, "count": count}), flush=True)
        sys.stdin.readline()


def commit(store: Store, source: Source, batch: Batch) -> None:
    """Count each entry of ``batch`` once, though two consumers may hold it after a claim."""
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
    """Yield batches of one stream until nothing is new or pending, and how each was come by."""
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
    """Work off every stream as the consumer ``name``, the first batches in step with the others."""
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
    """Run the consumers until all is done."""
    # In step, or the doomed one might get no share before all is done.
    step = Barrier(len(names)) if DOOMED in names else None
    with Store.open(folder) as store:
        threads = [Thread(target=consume, args=(store, name, step)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
