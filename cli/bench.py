"""``bench``: how fast is a store here, by itself. `make bench` compares with Redis."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvstream.cli.examples import example
from kvstream.cli.output import Column, Output, count_column, output_options
from kvstream.cli.session import Session
from kvstream.cli.text import number
from kvstream.options import Durability
from kvstream.store import Store

BATCH, PAGE, READ = 1000, 1000, 100
FIELDS = {"sku": "a1-4711-blue", "quantity": "2", "price": "19.90", "note": "x" * 64}
"""Four fields of about 100 bytes in all."""
GROUP, CONSUMER = "bench", "worker"


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work and its rate."""

    title: str
    entries: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.entries / self.seconds


_COLUMNS = (
    Column("work", "work"),
    count_column("entries"),
    Column("seconds", "seconds", lambda seconds: f"{seconds:.3f}", right=True),
    Column("per second", "rate", lambda rate: number(round(rate)), right=True),
)


@click.command(epilog=example("kvstream bench --entries 5000"))
@click.option("--entries", type=click.IntRange(BATCH), default=50_000, help="Of each work.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Where to make the store of the benchmark; it is removed. By default beside --store.",
)
@output_options
@click.pass_obj
def bench(session: Session, out: Output, /, entries: int, directory: Path | None) -> None:
    """Measure adds, ranges and a consumer's reads here.

    It makes a store of its own, and touches none of yours.
    """
    place = directory or _beside(session)
    with (
        tempfile.TemporaryDirectory(prefix="kvstream-bench-", dir=place) as folder,
        Store.open(Path(folder) / "store", durability=session.durability) as store,
    ):
        out.table(_COLUMNS, map(_row, measured(store, entries)))
    if not out.json:
        click.echo(f"durability {session.durability}, in {place or tempfile.gettempdir()}")


def _beside(session: Session) -> Path | None:
    """Return the folder on whose disk the user's store is, where one was named."""
    if session.directory is None or not session.directory.absolute().parent.is_dir():
        return None
    return session.directory.absolute().parent


def _row(work: Work) -> dict[str, Any]:
    return {
        "work": work.title,
        "entries": work.entries,
        "seconds": round(work.seconds, 6),
        "rate": round(work.rate, 1),
    }


def measured(store: Store, entries: int) -> Iterator[Work]:
    """Yield each kind of work, done and measured one after the other."""
    always = store.engine.options.durability is Durability.ALWAYS
    one_by_one = max(BATCH, entries // 20) if always else entries
    for title, count, work in (
        ("add, one by one", one_by_one, _add),
        (f"add_many of {BATCH}", entries, _add_many),
        (f"range, pages of {PAGE}", entries, _range),
        (f"consumer reads {READ}, acks {READ}", entries, _read_and_ack),
        ("consumer reads 1, acks 1", one_by_one // 5, _read_one),
    ):
        start = time.perf_counter()
        work(store, count)
        yield Work(title, count, time.perf_counter() - start)


def _add(store: Store, count: int) -> None:
    stream = store.stream("one")
    for _ in range(count):
        stream.add(FIELDS)


def _add_many(store: Store, count: int) -> None:
    stream = store.stream("many")
    for start in range(0, count, BATCH):
        stream.add_many([FIELDS] * min(BATCH, count - start))


def _range(store: Store, count: int) -> None:
    assert sum(1 for _ in store.stream("many").scan(page=PAGE)) == count


def _read_and_ack(store: Store, count: int) -> None:
    group = store.stream("many").create_group(GROUP, "0")
    consumer = group.consumer(CONSUMER)
    done = 0
    while entries := consumer.read(READ):
        done += group.ack(entries)
    assert done == count


def _read_one(store: Store, count: int) -> None:
    group = store.stream("one").create_group(GROUP, "0")
    consumer = group.consumer(CONSUMER)
    for _ in range(count):
        group.ack(consumer.read(1))
