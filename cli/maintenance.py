"""Commands on the whole store: ``ping``, ``stats``, ``check``, ``recover``, ``compact``, ``bench``.

``bench`` measures a store on this machine, or a server as seen from it. To compare kvstream with
Redis, run ``make bench``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.exit_codes import ExitCode
from kvstream.cli.output import Output, output_only_options, output_options, polled_progress
from kvstream.cli.parameters import PathOnly, example
from kvstream.cli.session import DirectorySession, Scratch, ServerSession, Session, wait_for_store
from kvstream.cli.tables import Column, count_column, number, plural, size
from kvstream.types.clock import perf_counter
from kvstream.types.options import StoreOptions
from kvstream.version import VERSION

if TYPE_CHECKING:
    from kvstream.storage.database import RecoveryReport
    from kvstream.store import Store
    from kvstream.stream import Stream

_FAULTS = (
    Column("place", "place", wraps=True),
    Column("fault", "message", wraps=True),
    Column("repaired", "repaired"),
)


progress_option = click.option(
    "--progress/--no-progress",
    default=None,
    help="Show how far the work is, on stderr. By default on a terminal.",
)


@click.command(epilog=example("kvstream check", "kvstream check --repair"))
@click.option("--repair", is_flag=True, help="Correct wrong counters.")
@progress_option
@output_options
def check(session: Session, out: Output, /, repair: bool, progress: bool | None) -> None:
    """Verify every row and counter, in all databases.

    The exit code is 4 if a fault was found and not repaired. Without --repair nothing is changed.
    """
    _ = session.path  # a server has none, and says so
    with session.writing() if repair else session.reading() as store:
        from kvstream.operations.checks import check
        from kvstream.operations.checks.survey import CheckProgress

        done = CheckProgress()
        with polled_progress("check", _row_count(store), progress, lambda: done.rows):
            faults = store.engine.run(check, repair, done)
    out.table(_FAULTS, map(asdict, faults))
    unrepaired = sum(not fault.repaired for fault in faults)
    if not out.for_programs:
        click.echo(
            f"{plural(len(faults), 'fault')}, {len(faults) - unrepaired} repaired"
            if faults
            else "sound"
        )
    if unrepaired:
        raise click.exceptions.Exit(int(ExitCode.DAMAGED))


def _row_count(store: Store) -> int:
    """Return RocksDB's estimate of the rows that a check counts."""
    from kvstream.storage.batch import Family

    name, families = "rocksdb.estimate-num-keys", (Family.MESSAGES, Family.TREES)
    return sum(store.engine.database.property_int(name, family) for family in families)


@click.command(epilog=example("kvstream checkpoint backup-monday"))
@click.argument("target", type=PathOnly(), metavar="[NEW_DIRECTORY]", required=False)
@output_options
def checkpoint(session: Session, out: Output, /, target: Path | None) -> None:
    """Write a consistent copy of the store to a new directory.

    The copy is a store that can be opened. On the same file system it takes almost no time and
    space, since the two stores share their tables. For a server (--url), leave NEW_DIRECTORY out:
    the server saves to its own directory, as by BGSAVE.
    """
    if isinstance(session, ServerSession):
        if target is not None:
            raise click.UsageError("a server has its own directory: leave NEW_DIRECTORY out")
        text, path = "saved by the server in", session.save()
    else:
        if target is None:
            raise click.UsageError("name the NEW_DIRECTORY of the checkpoint")
        with session.writing() as store:
            store.checkpoint(target)
        text, path = "checkpoint in", str(target)
    out.result(f"{text} {path}", path=path)


@click.command(epilog=example("kvstream compact"))
@progress_option
@output_options
def compact(session: Session, out: Output, /, progress: bool | None) -> None:
    """Free the disk space of deleted entries.

    This takes minutes for many gigabytes. A server (--url) runs BGREWRITEAOF.
    """
    with session.writing() as store:
        before = session.size_on_disk(store)
        with _compacting(session, before, progress):
            store.compact()
        after = session.size_on_disk(store)
    out.result(f"{size(before)} before, {size(after)} now", before_bytes=before, after_bytes=after)


@contextmanager
def _compacting(session: Session, before: int, wanted: bool | None) -> Iterator[None]:
    """Show how many bytes a compaction has written; it writes as many as it leaves."""
    if isinstance(session, ServerSession):  # which does it in the background
        yield
        return
    known = {path.name for path in session.path.glob("*.sst")}
    most = 0

    def count_written() -> int:
        nonlocal most
        total = 0
        for path in session.path.glob("*.sst"):
            if path.name not in known:
                with suppress(FileNotFoundError):  # merged again
                    total += path.stat().st_size
        most = max(most, total)
        return most

    with polled_progress("compact", before, wanted, count_written, size, " written"):
        yield


@click.command(epilog=example("kvstream recover", "kvstream recover --accept-loss"))
@click.option("--accept-loss", is_flag=True, help="Open the store without the lost writes.")
@output_options
def recover(session: Session, out: Output, /, accept_loss: bool) -> None:
    """Repair a store that does not open because of lost writes.

    The whole store is read. Without --accept-loss nothing is changed: the lost writes are reported,
    and the exit code is 4 if there are any. With --accept-loss they are lost for good; the damaged
    logs are kept beside the store. A store with damaged tables must be restored from a checkpoint.
    """
    from kvstream.storage.database import recover as recover_store  # not for a help text

    path = session.path
    assert isinstance(session, DirectorySession)  # a server has no path
    options = StoreOptions(trust_group=session.trust_group)
    report = wait_for_store(
        path, session.wait_s, lambda: recover_store(path, accept_loss=accept_loss, options=options)
    )
    if out.for_programs:
        out.object(**_values(report))
        return
    click.echo(_report_text(report))


def _values(report: RecoveryReport) -> dict[str, object]:
    return {
        "rows": report.rows,
        "sequence": report.sequence,
        "damage": report.damage,
        "promised": report.promised,
        "lost": len(report.lost),
        "skipped_records": report.skipped_records,
        "kept_logs": None if report.kept_logs is None else str(report.kept_logs),
    }


def _report_text(report: RecoveryReport) -> str:
    rows = f"{plural(report.rows, 'row')} read, all sound"
    if report.damage is None:
        return f"nothing is lost: {rows}"
    lines = [f"recovered: {rows}", f"the store did not open because: {report.damage}"]
    if report.lost:
        lines.append(
            f"lost: writes {report.lost[0]:,} to {report.lost[-1]:,} ({len(report.lost):,})"
        )
    elif report.promised is None:
        lines.append("lost: an unknown number of writes")
    if report.skipped_records:
        lines.append("records inside the log are lost: run kvstream check --repair")
    if report.kept_logs is not None:
        lines.append(f"the damaged logs are kept in {report.kept_logs}")
    return "\n".join(lines)


# --- replicas -------------------------------------------------------------------------------------


@click.group(epilog=example("kvstream replication status"))
def replication() -> None:
    """Show a server's role, and what an old primary alone had.

    docs/replication.md says how servers follow one another.
    """


@replication.command("status", epilog=example("kvstream replication status"))
@output_options
def replication_status(session: Session, out: Output) -> None:
    """Show the role of a server or a store.

    Of a server (--url) it shows what INFO says: its replicas or its primary, and how far they are.
    Of a directory it shows the role that the next server of it will have.
    """
    if isinstance(session, ServerSession):
        with session.reading() as store:
            sections = store.stats()
        figures = next(x for name, x in sections.items() if name.lower() == "replication")
    else:
        from kvstream.engine.following import read_role  # not for a help text
        from kvstream.storage.replacement import kept_folders

        source, _ = read_role(session.path)
        figures = {
            "role": "master" if source is None else "slave",
            "replicaof": None if source is None else f"{source.host}:{source.port}",
            "diverged": [folder.name for folder in kept_folders(session.path)],
        }
    out.record(figures, {})


@replication.command("lost", epilog=example("kvstream replication lost"))
@output_options
def replication_lost(session: Session, out: Output) -> None:
    """Show the entries that an old primary alone had.

    They were added before the store became a replica, and its new primary does not have them. With
    --json they can be piped to `kvstream import STREAM`, one stream at a time, which adds them
    again with new IDs. To forget them, remove the folder from the directory of the store.
    """
    from kvstream.replicas.lost import lost_histories  # not for a help text

    count = 0
    for history in lost_histories(session.path):
        if not out.for_programs:
            shared = "no row" if history.fork is None else f"the rows up to {history.fork}"
            click.echo(f"{history.folder.name}: rows up to {history.lsn}; shared are {shared}")
        for (_, key), entries in groupby(history.entries(), itemgetter(0, 1)):
            count += out.entries((entry for _, _, entry in entries), not count, key)
    if not count and not out.for_programs:
        click.echo("no entry is lost", err=True)


# --- looking --------------------------------------------------------------------------------------


@click.command(epilog=example("kvstream ping"))
@output_options
def ping(session: Session, out: Output) -> None:
    """Check that the store or server answers.

    Shows the time of a round trip to the server, or of opening the store.
    """
    seconds = session.ping()
    out.result(f"PONG after {seconds * 1000:.1f} ms", ms=round(seconds * 1000, 3))


_BYTES = "_bytes"
_STATS_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "size_on_disk": size,
    "block_cache_bytes": size,
    "sequence": number,
}


def _figure(name: str, value: Any) -> str:
    if name.endswith(_BYTES):
        return size(value)
    return number(value) if isinstance(value, int) else " ".join(map(str, value))


@click.command(epilog=example("kvstream stats", "kvstream stats --json"))
@output_options
def stats(session: Session, out: Output) -> None:
    """Show the size of the store and its internal counters.

    Numbers of keys are estimates by RocksDB. Names may change in any version. For a server (--url)
    the output is that of INFO.
    """
    with session.reading() as store:
        figures = {"streams": store.size(), **store.stats()}
    figures.pop("failure", None)  # a store opened read-only reports itself as failed
    if out.for_programs:
        out.object(**figures)
        return
    families: dict[str, dict[str, Any]] = figures.pop("families", {})
    sections = {name: value for name, value in figures.items() if isinstance(value, dict)}
    out.record({name: figures[name] for name in figures if name not in sections}, _STATS_FORMATS)
    for name, section in sections.items():
        out.heading(name)
        out.record(section, {})
    if families:
        _show_families(out, families)


def _show_families(out: Output, families: dict[str, dict[str, Any]]) -> None:
    out.heading("column families")
    names = list(next(iter(families.values())))
    columns = [
        Column("", "name"),
        *(Column(family, family, str, right=True) for family in families),
    ]
    out.table(
        columns,
        (
            {"name": name.removesuffix(_BYTES).replace("_", " ")}
            | {family: _figure(name, values[name]) for family, values in families.items()}
            for name in names
        ),
    )


@click.command(epilog=example("kvstream version --json"))
@output_only_options
def version(out: Output) -> None:
    """Show the versions of kvstream and its dependencies."""
    from kvstream.layout import compiled_state
    from kvstream.storage.directory import LAYOUT_VERSION  # with RocksDB: not for a help text

    try:
        engine = version_of("rocksdict")
    except PackageNotFoundError:  # installed without its metadata
        engine = "unknown"
    out.record(
        {
            "kvstream": VERSION,
            "layout": LAYOUT_VERSION,
            "rocksdict": engine,
            "python": platform.python_version(),
            "compiled": compiled_state(),
        },
        {},
    )


# --- bench ----------------------------------------------------------------------------------------

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


_MEASUREMENTS = (
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
def bench(session: Session, out: Output, /, entries: int, directory: Path | None) -> None:
    """Measure the speed of adds, ranges and reads.

    The benchmark runs on a temporary store, not on yours. With --url it makes two streams on the
    server, kvstream:bench:..., and deletes them: it measures client, network and server together.
    """
    with session.scratch(directory) as scratch:
        out.table(_MEASUREMENTS, map(_measure, measurements(scratch, entries)))
    if not out.for_programs:
        click.echo(scratch.description)


def _measure(work: Measurement) -> dict[str, Any]:
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
        start = perf_counter()
        work(stream, count)
        yield Measurement(title, count, perf_counter() - start)


def _add(stream: Stream, count: int) -> None:
    for _ in range(count):
        stream.add(FIELDS, nomkstream=False)


def _add_many(stream: Stream, count: int) -> None:
    for start in range(0, count, BATCH):
        stream.add_many([FIELDS] * min(BATCH, count - start))


def _range(stream: Stream, count: int) -> None:
    assert sum(1 for _ in stream.scan()) == count


def _read_and_ack(stream: Stream, count: int) -> None:
    group = stream.create_group(GROUP, "0")
    consumer = group.consumer(CONSUMER)
    done = 0
    while entries := consumer.read(READ):
        done += group.ack([entry.id for entry in entries])
    assert done == count


def _read_one(stream: Stream, count: int) -> None:
    group = stream.create_group(GROUP, "0")
    consumer = group.consumer(CONSUMER)
    for _ in range(count):
        group.ack([entry.id for entry in consumer.read(1)])
