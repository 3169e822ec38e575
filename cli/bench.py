"""``bench``: measure a store on this machine, or a server as seen from it.

To compare kvstream with Redis, run ``make bench``.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import PathOnly, example
from kvstream.cli.session import Scratch, Session
from kvstream.cli.tables import Column, count_column, number

if TYPE_CHECKING:
    from kvstream.stream import Stream

BATCH, PAGE, READ = 1000, 1000, 100
FIELDS = {"sku": "a1-4711-blue", "quantity": "2", "price": "19.90", "note": "x" * 64}
"""Four fields of about 100 bytes in all."""
GROUP, CONSUMER = b"bench", b"worker"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The time that some entries took."""

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
@click.option(
    "--entries",
    type=click.IntRange(BATCH),
    default=50_000,
    metavar="N",
    help="Entries per measurement.",
)
@click.option(
    "--directory",
    type=PathOnly(file_okay=False, exists=True),
    help="Make the temporary store here. By default beside --store.",
)
@output_options
@click.pass_obj
def bench(session: Session, out: Output, /, entries: int, directory: Path | None) -> None:
    """Measure the speed of adds, ranges and reads.

    The benchmark runs on a temporary store, not on yours. With --url it makes two streams on the
    server, kvstream:bench:..., and deletes them: it measures client, network and server together.
    """
    with session.scratch(directory) as scratch:
        out.table(_COLUMNS, map(_row, measurements(scratch, entries)))
    if not out.json:
        click.echo(scratch.description)


def _row(work: Measurement) -> dict[str, Any]:
    return {
        "work": work.title,
        "entries": work.entries,
        "seconds": round(work.seconds, 6),
        "rate": round(work.rate, 1),
    }


def measurements(scratch: Scratch, entries: int) -> Iterator[Measurement]:
    """Run and yield the measurements, one after the other."""
    one, many = (scratch.store.stream(key) for key in scratch.keys)
    one_by_one = max(BATCH, entries // 20) if scratch.slow else entries
    for title, stream, count, work in (
        ("add, one by one", one, one_by_one, _add),
        (f"add_many of {BATCH}", many, entries, _add_many),
        (f"range, pages of {PAGE}", many, entries, _range),
        (f"consumer reads {READ}, acks {READ}", many, entries, _read_and_ack),
        ("consumer reads 1, acks 1", one, one_by_one // 5, _read_one),
    ):
        start = time.perf_counter()
        work(stream, count)
        yield Measurement(title, count, time.perf_counter() - start)


def _add(stream: "Stream", count: int) -> None:
    for _ in range(count):
        stream.add(FIELDS, nomkstream=False)


def _add_many(stream: "Stream", count: int) -> None:
    for start in range(0, count, BATCH):
        stream.add_many([FIELDS] * min(BATCH, count - start))


def _range(stream: "Stream", count: int) -> None:
    assert sum(1 for _ in stream.scan()) == count


def _read_and_ack(stream: "Stream", count: int) -> None:
    group = stream.create_group(GROUP, "0")
    consumer = group.consumer(CONSUMER)
    done = 0
    while entries := consumer.read(READ):
        done += group.ack([entry.id for entry in entries])
    assert done == count


def _read_one(stream: "Stream", count: int) -> None:
    group = stream.create_group(GROUP, "0")
    consumer = group.consumer(CONSUMER)
    for _ in range(count):
        group.ack([entry.id for entry in consumer.read(1)])
