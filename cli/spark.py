"""``spark``: jobs of Apache Spark on the streams of the store, or of many.

It turns command lines into calls of ``kvstream.spark.jobs``; PySpark is loaded when a job runs.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.parameters import RangeBound, example
from kvstream.cli.tables import printable
from kvstream.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("parquet", "json", "csv", "avro", "orc")
SHUFFLES = "spark.sql.shuffle.partitions"
TASKS_A_CORE = 4
Command = Callable[..., Any]


@click.group(
    epilog=example(
        "kvstream spark archive lake/orders",
        "kvstream spark report --html report.html",
    )
)
@click.option("--master", metavar="URL", help="Where Spark runs. By default here, on all cores.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; repeatable.")
@click.option("--quiet", "-q", is_flag=True, help="Only the last line of counts.")
@click.pass_context
def spark(ctx: click.Context, /, **options: Any) -> None:
    """Run jobs of Apache Spark on whole streams.

    Needs `pip install 'kvstream[spark]'`. A job may be run again after any failure, and ends with
    counts that add up. Folders are whatever Spark reads: a path, s3a://, hdfs://. To submit to a
    cluster: `spark-submit pyspark_kvstream.py --store DIR spark JOB ...`.
    """
    ctx.obj = options


def streams_options(command: Command) -> Command:
    """Have a command take streams, by default all."""
    for option in (
        click.option("--ignore-missing", is_flag=True, help="What is not there counts as empty."),
        click.option("--match", metavar="PATTERN", help="Streams that a pattern of KEYS fits."),
        click.option("--stream", "streams", multiple=True, metavar="NAME", help="One; repeatable."),
    ):
        command = option(command)
    return command


def range_options(command: Command) -> Command:
    """Have a command take a range of IDs or times."""
    for option in (
        click.option("--end", type=RangeBound(), default="+", help="Up to this ID or time."),
        click.option("--start", type=RangeBound(), default="-", help="From this ID or time on."),
    ):
        command = option(command)
    return command


@spark.command(epilog=example("kvstream spark archive lake --match 'orders:*'"))
@click.argument("folder")
@streams_options
@click.option("--before", type=RangeBound(), help="Leave what comes from this ID or time on.")
@click.option("--trim/--keep", default=True, help="Trim what is archived and no group needs.")
@click.pass_context
def archive(ctx: click.Context, /, folder: str, **options: Any) -> None:
    """Move streams into Parquet files, by stream and day.

    Takes what is above the last archived ID, reads the files back, and then trims the streams. An
    entry that some group has not acknowledged is archived too, but stays.
    """
    with _session(ctx, "archive") as (spark, say):
        from kvstream.spark.jobs import archive

        archive(
            spark,
            _place(ctx),
            folder,
            streams=options["streams"],
            pattern=options["match"],
            trim=options["trim"],
            before=options["before"],
            say=say,
        )


@spark.command(epilog=example("kvstream spark restore lake --stream orders --into orders-2025"))
@click.argument("folder")
@click.option("--stream", "streams", multiple=True, metavar="NAME", help="One; repeatable.")
@range_options
@click.option("--into", metavar="NAME", help="Another stream, for the entries of one.")
@click.pass_context
def restore(ctx: click.Context, /, folder: str, **options: Any) -> None:
    """Bring entries of an archive back, under their IDs.

    What is not above the last ID of its stream is left out, and counted.
    """
    with _session(ctx, "restore") as (spark, say):
        from kvstream.spark.jobs import restore

        restore(spark, folder, _place(ctx), say=say, **options)


@spark.command("import", epilog=example("kvstream spark import orders.parquet --stream orders"))
@click.argument("files")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="By default what the name says.")
@click.option("--stream", metavar="NAME", help="The stream, where no column `stream` names it.")
@click.option("--column", "columns", multiple=True, metavar="SQL", help="`at as id`; repeatable.")
@click.option("--option", "given", multiple=True, metavar="NAME=VALUE", help="Of Spark's reader.")
@click.option("--name", help="What the import is known by: it happens once under it.")
@click.pass_context
def import_(ctx: click.Context, /, files: str, **options: Any) -> None:
    """Append the rows of files to streams, all at once.

    Columns are `stream`, `id` (or `timestamp`), and `fields`, a map; or each other column is a
    field.
    """
    kind = options["kind"] or _kind(files)
    with _session(ctx, "import") as (spark, say):
        from kvstream.spark.jobs import import_files

        import_files(
            spark,
            files,
            _place(ctx),
            kind=kind,
            stream=options["stream"],
            columns=options["columns"],
            options=_pairs(options["given"], "--option"),
            name=options["name"],
            say=say,
        )


@spark.command(epilog=example("kvstream spark export orders.parquet --stream orders"))
@click.argument("folder")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="By default what the name says.")
@streams_options
@range_options
@click.option("--field", "fields", multiple=True, metavar="NAME", help="A column; repeatable.")
@click.option("--option", "given", multiple=True, metavar="NAME=VALUE", help="Of Spark's writer.")
@click.option("--overwrite", is_flag=True, help="Replace files that are there.")
@click.pass_context
def export(ctx: click.Context, /, folder: str, **options: Any) -> None:
    """Write entries to files of any format that Spark knows."""
    kind = options["kind"] or _kind(folder)
    with _session(ctx, "export") as (spark, say):
        from kvstream.spark.jobs import export_files

        export_files(
            spark,
            _place(ctx),
            folder,
            kind=kind,
            streams=options["streams"],
            pattern=options["match"],
            start=options["start"],
            end=options["end"],
            fields=options["fields"],
            overwrite=options["overwrite"],
            options=_pairs(options["given"], "--option"),
            say=say,
        )


@spark.command(epilog=example("kvstream spark report --stream orders --html report.html"))
@streams_options
@range_options
@click.option("--html", type=click.File("w", atomic=True), help="Write a page with plots, too.")
@click.pass_context
def report(ctx: click.Context, /, **options: Any) -> None:
    """Tell what goes on: throughput, gaps, lag, consumers, redeliveries."""
    with _session(ctx, "report") as (spark, say):
        from kvstream.spark.jobs import page, report

        made = report(
            spark,
            _place(ctx),
            streams=options["streams"],
            pattern=options["match"],
            start=options["start"],
            end=options["end"],
            say=say,
        )
    click.echo(made.text())
    if options["html"] is not None:
        options["html"].write(page(made))


@spark.command(epilog=example("kvstream spark verify redis://old-host:6379 --match 'orders*'"))
@click.argument("other")
@streams_options
@range_options
@click.pass_context
def verify(ctx: click.Context, /, other: str, **options: Any) -> None:
    """Compare entries with those of OTHER, a store or a server.

    By digests of ranges, made where the data is read. Ends with exit code 4 where something
    differs. Several stores on one side are separated by commas.
    """
    with _session(ctx, "verify") as (spark, say):
        from kvstream.spark.jobs import place, verify

        found = verify(
            spark,
            _place(ctx),
            place(other),
            streams=options["streams"],
            pattern=options["match"],
            start=options["start"],
            end=options["end"],
            say=say,
        )
    if not found.is_equal:
        raise DataError(f"{found.ranges - found.equal} ranges of entries differ")


@spark.command(
    epilog=example("kvstream spark migrate --pair redis://old-1 data1 --pair redis://old-2 data2")
)
@click.option(
    "--pair", "pairs", nargs=2, multiple=True, metavar="SOURCE TARGET", help="Places; repeatable."
)
@click.option("--match", multiple=True, metavar="PATTERN", help="Keys; repeatable.")
@click.option("--allow-loss", multiple=True, metavar="NAME", help="As of `migrate run`.")
@click.option("--state", metavar="DIR", help="Where is kept how far each pair came.")
@click.pass_context
def migrate(ctx: click.Context, /, pairs: tuple[tuple[str, str], ...], **options: Any) -> None:
    """Migrate many places at once, groups and pending entries included.

    Each pair as `kvstream migrate run` and `verify` do it, in a task of its own; pairs of one
    TARGET run one after another. Ends with exit code 4 where some are not migrated.
    """
    with _session(ctx, "migrate") as (spark, say):
        from kvstream.spark.jobs import Pair, migrate

        migrate(spark, [Pair(*pair) for pair in pairs], say=say, **options)


@contextmanager
def _session(
    ctx: click.Context, job: str
) -> Iterator[tuple["SparkSession", Callable[[str], None]]]:
    """Give a session of Spark and a place to tell progress; one made here ends with the job."""
    from kvstream.spark.options import translated_errors
    from kvstream.spark.spark_session import is_running, session

    options = ctx.obj
    given = _pairs(options["conf"], "--conf")
    bar = sys.stderr.isatty() and not options["quiet"]
    config = {"spark.ui.showConsoleProgress": str(bar).lower(), **given}
    running = is_running()
    spark = session(f"kvstream {job}", master=options["master"], config=config)
    if not running and SHUFFLES not in given:
        _suit_to_machine(spark)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if not options["quiet"]:
            click.echo(printable(line), err=True)

    try:
        with translated_errors():
            yield spark, say
    finally:
        if not running:
            spark.stop()
    if options["quiet"] and lines:
        click.echo(printable(lines[-1]), err=True)


def _suit_to_machine(spark: "SparkSession") -> None:
    """Have no more tasks behind a shuffle than this machine alone has use for: Spark's 200 cost."""
    context = spark.sparkContext
    if (context.master or "").startswith("local["):
        spark.conf.set(SHUFFLES, str(TASKS_A_CORE * context.defaultParallelism))


def _place(ctx: click.Context) -> dict[str, str]:
    """Return the place that the options before the command name, as options of the format."""
    root = ctx.find_root()
    given = {name: root.params.get(name) for name in ("store", "url", "db")}
    if given["url"] is None and given["store"] is None:
        raise click.UsageError("name the store: --store DIR before the command, or --url URL")
    kind = "path" if given["url"] is None else "url"
    found = {kind: str(given["store"] if given["url"] is None else given["url"])}
    if given["db"] is not None:
        found["db"] = str(given["db"])
    if ctx.params.get("ignore_missing"):
        found["ignoreMissing"] = "true"
    return found


def _kind(files: str) -> str:
    """Return the format that a name's end tells."""
    for kind in FORMATS:
        if f".{kind}" in files:
            return kind
    return "parquet"


def _pairs(given: tuple[str, ...], option: str) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter("is NAME=VALUE", param_hint=option)
        pairs[name] = value
    return pairs
