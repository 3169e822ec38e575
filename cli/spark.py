"""``spark``: run the jobs of ``kvstream.spark.jobs``.

PySpark is imported when a job runs.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

from kvstream.cli.parameters import RangeBound, example, option_group
from kvstream.cli.tables import printable
from kvstream.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("parquet", "json", "csv", "avro", "orc")


@click.group(
    epilog=example(
        "kvstream spark archive lake/orders",
        "kvstream spark report --html report.html",
    )
)
@click.option("--master", metavar="URL", help="The Spark master. By default local, on all cores.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting. Repeatable.")
@click.option("--quiet", "-q", is_flag=True, help="Show only the last line, with the counts.")
@click.pass_context
def spark(ctx: click.Context, /, **options: Any) -> None:
    """Run Apache Spark jobs on whole streams.

    They need `pip install 'kvstream-db[spark]'`. After any failure a job can be run again. A FOLDER
    is a path or any other place that Spark knows, such as s3a:// or hdfs://. To submit a job to a
    cluster, run `spark-submit pyspark_kvstream.py --store DIR spark JOB ...`.
    """
    ctx.obj = options


streams_options = option_group(
    click.option(
        "--stream", "streams", multiple=True, metavar="NAME", help="A stream. Repeatable."
    ),
    click.option("--match", metavar="PATTERN", help="Streams that match a pattern as in KEYS."),
    click.option("--ignore-missing", is_flag=True, help="Treat missing streams as empty."),
)
"""They select streams, by default all."""

range_options = option_group(
    click.option("--start", type=RangeBound(), default="-", help="Start at this ID or time."),
    click.option("--end", type=RangeBound(), default="+", help="End at this ID or time."),
)


@spark.command(epilog=example("kvstream spark archive lake --match 'orders:*'"))
@click.argument("folder")
@streams_options
@click.option("--before", type=RangeBound(), help="Archive only entries before this ID or time.")
@click.option("--trim/--keep", default=True, help="Whether to trim the archived entries.")
@click.pass_context
def archive(ctx: click.Context, /, folder: str, ignore_missing: bool, **options: Any) -> None:
    """Move streams into Parquet files, by stream and day.

    The job archives the entries after the last archived ID, verifies the files by reading them
    back, and then trims the streams. Entries that a group has not acknowledged are archived but not
    trimmed.
    """
    with _session(ctx, "archive") as (spark, say):
        from kvstream.spark.jobs import archive

        archive(spark, _place(ctx, ignore_missing), folder, say=say, **options)


@spark.command(epilog=example("kvstream spark restore lake --stream orders --into orders-2025"))
@click.argument("folder")
@click.option("--stream", "streams", multiple=True, metavar="NAME", help="A stream. Repeatable.")
@range_options
@click.option("--into", metavar="NAME", help="Restore one stream under another name.")
@click.pass_context
def restore(ctx: click.Context, /, folder: str, **options: Any) -> None:
    """Restore entries from an archive, with their IDs.

    Entries that are not after the last ID of their stream are skipped, and counted.
    """
    with _session(ctx, "restore") as (spark, say):
        from kvstream.spark.jobs import restore

        restore(spark, folder, _place(ctx), say=say, **options)


@spark.command("import", epilog=example("kvstream spark import orders.parquet --stream orders"))
@click.argument("files")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="By default from the name.")
@click.option("--stream", metavar="NAME", help="The stream, if there is no column `stream`.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="SQL",
    help="A column, such as `at as id`. Repeatable.",
)
@click.option(
    "--option",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of Spark's reader. Repeatable.",
)
@click.option("--name", help="Import only once under this name.")
@click.pass_context
def import_(
    ctx: click.Context,
    /,
    files: str,
    kind: str | None,
    settings: tuple[str, ...],
    **options: Any,
) -> None:
    """Append the rows of files to streams, atomically.

    The columns are `stream`, `id` or `timestamp`, and `fields`, which is a map. Without `fields`,
    every other column is a field.
    """
    with _session(ctx, "import") as (spark, say):
        from kvstream.spark.jobs import import_files

        import_files(
            spark,
            files,
            _place(ctx),
            kind=kind or _kind(files),
            options=_pairs(settings, "--option"),
            say=say,
            **options,
        )


@spark.command(epilog=example("kvstream spark export orders.parquet --stream orders"))
@click.argument("folder")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="By default from the name.")
@streams_options
@range_options
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME",
    help="A field to write as a column. Repeatable.",
)
@click.option(
    "--option",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of Spark's writer. Repeatable.",
)
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@click.pass_context
def export(
    ctx: click.Context,
    /,
    folder: str,
    kind: str | None,
    ignore_missing: bool,
    settings: tuple[str, ...],
    **options: Any,
) -> None:
    """Write entries to files, in any format that Spark knows."""
    with _session(ctx, "export") as (spark, say):
        from kvstream.spark.jobs import export_files

        export_files(
            spark,
            _place(ctx, ignore_missing),
            folder,
            kind=kind or _kind(folder),
            options=_pairs(settings, "--option"),
            say=say,
            **options,
        )


@spark.command(epilog=example("kvstream spark report --stream orders --html report.html"))
@streams_options
@range_options
@click.option(
    "--html", type=click.File("w", atomic=True), help="Also write an HTML page with plots."
)
@click.pass_context
def report(
    ctx: click.Context, /, ignore_missing: bool, html: IO[str] | None, **options: Any
) -> None:
    """Report throughput, gaps, lag, consumers and redeliveries."""
    with _session(ctx, "report") as (spark, say):
        from kvstream.spark.jobs import page, report

        result = report(spark, _place(ctx, ignore_missing), say=say, **options)
    click.echo(result.text())
    if html is not None:
        html.write(page(result))


@spark.command(epilog=example("kvstream spark verify redis://old-host:6379 --match 'orders*'"))
@click.argument("other")
@streams_options
@range_options
@click.pass_context
def verify(ctx: click.Context, /, other: str, ignore_missing: bool, **options: Any) -> None:
    """Compare entries with those of OTHER, a store or a server.

    Ranges of entries are compared by their digests, which are computed where the data is read. The
    exit code is 4 if anything differs. Separate several stores with commas.
    """
    with _session(ctx, "verify") as (spark, say):
        from kvstream.spark.jobs import place, verify

        found = verify(spark, _place(ctx, ignore_missing), place(other), say=say, **options)
    if not found.is_equal:
        raise DataError(f"{found.ranges - found.equal} ranges of entries differ")


@spark.command(
    epilog=example("kvstream spark migrate --pair redis://old-1 new1 --pair redis://old-2 new2")
)
@click.option(
    "--pair",
    "pairs",
    nargs=2,
    multiple=True,
    metavar="SOURCE TARGET",
    help="A store or server, and its target. Repeatable.",
)
@click.option("--match", multiple=True, metavar="PATTERN", help="Keys that match. Repeatable.")
@click.option(
    "--allow-loss", multiple=True, metavar="NAME", help="As for `migrate run`. Repeatable."
)
@click.option("--state", metavar="DIR", help="The directory for the progress of each pair.")
@click.option(
    "--split",
    type=click.IntRange(min=0),
    default=1_000_000,
    show_default=True,
    metavar="ENTRIES",
    help="Migrate a server's streams of at least that many entries in several tasks; 0: never.",
)
@click.pass_context
def migrate(ctx: click.Context, /, pairs: tuple[tuple[str, str], ...], **options: Any) -> None:
    """Migrate many places in parallel, with groups and pending entries.

    Each pair is migrated and verified in a task of its own, as by `kvstream migrate run` and
    `verify`. Pairs with the same TARGET run one after another. The exit code is 4 if a pair could
    not be migrated.
    """
    with _session(ctx, "migrate") as (spark, say):
        from kvstream.spark.jobs import Pair, migrate

        migrate(spark, [Pair(*pair) for pair in pairs], say=say, **options)


@contextmanager
def _session(
    ctx: click.Context, job: str
) -> Iterator[tuple["SparkSession", Callable[[str], None]]]:
    """Yield a Spark session and a function that reports progress.

    A session that is made here is stopped when the job ends.
    """
    from kvstream.spark.options import translate_errors
    from kvstream.spark.spark_session import is_running, session

    options = ctx.obj
    settings = _pairs(options["conf"], "--conf")
    bar = sys.stderr.isatty() and not options["quiet"]
    config = {"spark.ui.showConsoleProgress": str(bar).lower(), **settings}
    running = is_running()
    spark = session(f"kvstream {job}", master=options["master"], config=config)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if not options["quiet"]:
            click.echo(printable(line), err=True)

    try:
        with translate_errors():
            yield spark, say
    finally:
        if not running:
            spark.stop()
    if options["quiet"] and lines:
        click.echo(printable(lines[-1]), err=True)


def _place(ctx: click.Context, ignore_missing: bool = False) -> dict[str, str]:
    """Return the global options as options of the Spark data source."""
    store, url, db = (ctx.find_root().params.get(name) for name in ("store", "url", "db"))
    if url is None and store is None:
        raise click.UsageError("name the store: --store DIR, or --url URL")
    place = {"path": str(store)} if url is None else {"url": str(url)}
    if db is not None:
        place["db"] = str(db)
    if ignore_missing:
        place["ignoreMissing"] = "true"
    return place


def _kind(files: str) -> str:
    """Return the format that the name of files has, by default parquet."""
    for kind in FORMATS:
        if f".{kind}" in files:
            return kind
    return "parquet"


def _pairs(settings: tuple[str, ...], option: str) -> dict[str, str]:
    pairs = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter("must be NAME=VALUE", param_hint=option)
        pairs[name] = value
    return pairs
