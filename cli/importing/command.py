"""``import``: entries from JSON Lines and CSV, to be gone on with after a kill."""

from pathlib import Path
from typing import Any, BinaryIO

import click

from kvstream.cli.contracts import Session
from kvstream.cli.importing.commits import Bad, Import
from kvstream.cli.importing.ids import TIME_FORMATS, Placing, time_parser
from kvstream.cli.output import Output, meter, output_options
from kvstream.cli.parameters import Name, example, stream_argument
from kvstream.cli.rows import CsvRows, JsonRows, Rows, Source, identity_of
from kvstream.cli.session import stream_or_free
from kvstream.cli.tables import plural, printable
from kvstream.errors import RequestError

REPORTED_MAX = 20
"""Bad lines that are reported one by one; the rest is counted."""

STDIN = "<stdin>"
FORMATS = ("jsonl", "csv")
_CSV_SUFFIXES = {".csv": ",", ".tsv": "\t", ".tab": "\t"}

format_option = click.option(
    "--format", "kind", type=click.Choice(FORMATS), help="By default what the name says, or jsonl."
)
delimiter_option = click.option(
    "--delimiter", metavar="CHAR", help="Between the cells of CSV, by default a comma."
)
quiet_option = click.option("--quiet", "-q", is_flag=True, help="No progress bar.")


def format_of(name: str, kind: str | None, delimiter: str | None) -> tuple[str, str]:
    """Return the format of a file and the delimiter of its cells."""
    implied = _CSV_SUFFIXES.get(Path(name).suffix.lower())
    if kind is None:
        kind = "jsonl" if implied is None else "csv"
    if delimiter is not None and len(delimiter) != 1:
        raise click.BadParameter("must be one character", param_hint="--delimiter")
    return kind, delimiter or implied or ","


@click.command(
    "import",
    epilog=example(
        "kvstream import orders orders.jsonl",
        "kvstream import weather stations.csv --time-column time --time-format '%Y/%m/%d %H:%M'",
        "zcat orders.jsonl.gz | kvstream import orders --source orders-2025",
    ),
)
@stream_argument
@click.argument("file", type=click.File("rb"), default="-", metavar="[FILE]")
@format_option
@delimiter_option
@click.option("--id-column", type=Name(), metavar="FIELD", help="The field that is the ID.")
@click.option("--time-column", type=Name(), metavar="FIELD", help="The field that is the time.")
@click.option(
    "--time-format",
    default="iso",
    metavar="FORMAT",
    help=f"{', '.join(TIME_FORMATS)} or a pattern of strptime; UTC.",
)
@click.option("--new-ids", is_flag=True, help="Give every row a new ID.")
@click.option("--keep-empty", is_flag=True, help="Take empty cells of CSV as empty values.")
@click.option(
    "--on-error",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    help="What a bad line does.",
)
@click.option("--source", type=Name(), metavar="NAME", help="What the input is known by.")
@click.option("--again", is_flag=True, help="From the first line, whatever was imported before.")
@quiet_option
@output_options
@click.pass_obj
def import_(
    session: Session, out: Output, /, stream: bytes, file: BinaryIO, again: bool, **options: Any
) -> None:
    """Append the rows of a FILE or of stdin to a stream.

    JSON Lines: {"id": ID, "fields": {...}} with the ID optional, or flat objects. CSV: the header
    names the fields; an empty cell is a field that the entry lacks. IDs that are given are kept. A
    row whose ID and fields are there already is passed over.

    After a kill the same command goes on where the import was: how far it is, is committed with the
    rows. A file is known by its path, or by --source; a pipe by --source alone. A file that has
    grown is imported from where it ended.

    A bad line stops the import; the good ones before it stay. With --on-error skip it is reported,
    and the import goes on.
    """
    placing = _placing(options)
    source = Source(file, *_known_as(file, options["source"]))
    reports = _Reports(source.label)
    complain = reports if options["on_error"] == "skip" else None
    with session.writing(create=True) as store:
        stream_or_free(store, stream)
        run = Import(store, stream, source, _rows(source, options), placing, complain)
        if not again:
            run.resume()
        if run.resumed is not None:
            _tell(f"going on at line {run.resumed.line + 1:,} of {source.label}")
        try:
            with meter(f"import {source.label}", source.size, options["quiet"]) as watch:
                run.run(watch)
        except Bad as bad:
            raise RequestError(f"{source.label}: {bad}; {_so_far(run)}") from None
    reports.close()
    totals = run.totals
    out.result(
        _so_far(run),
        added=totals.added,
        present=totals.present,
        skipped=totals.skipped,
        resumed_after_line=run.resumed.line if run.resumed else 0,
    )


def _placing(options: dict[str, Any]) -> Placing:
    if options["id_column"] is not None and options["time_column"] is not None:
        raise click.UsageError("give either --id-column or --time-column")
    if options["time_format"] not in TIME_FORMATS and "%" not in options["time_format"]:
        known = ", ".join(TIME_FORMATS)
        raise click.BadParameter(f"{known}, or a pattern with %", param_hint="--time-format")
    return Placing(
        options["id_column"],
        options["time_column"],
        time_parser(options["time_format"]),
        options["new_ids"],
    )


def _known_as(file: BinaryIO, name: bytes | None) -> tuple[str, bytes | None]:
    """Return what messages call a file, and what a later run knows it by."""
    called = getattr(file, "name", STDIN)
    path = Path(called) if isinstance(called, str) and called != STDIN else None
    label = "stdin" if path is None else printable(path.name)
    return label, identity_of(path, name)


def _rows(source: Source, options: dict[str, Any]) -> Rows:
    kind, delimiter = format_of(source.label, options["kind"], options["delimiter"])
    if kind == "csv":
        return CsvRows(source, delimiter, options["keep_empty"])
    return JsonRows(source)


class _Reports:
    """Tells of bad lines on stderr, of the first ones one by one."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._count = 0

    def __call__(self, bad: Bad) -> None:
        self._count += 1
        if self._count <= REPORTED_MAX:
            _tell(f"{self._label}: {bad}")

    def close(self) -> None:
        """Count the bad lines that were not reported."""
        if self._count > REPORTED_MAX:
            _tell(f"{self._label}: {plural(self._count - REPORTED_MAX, 'more bad line')}")


def _so_far(run: Import) -> str:
    totals = run.totals
    parts = [f"{plural(totals.added, 'entry', 'entries')} added"]
    if totals.present:
        parts.append(f"{totals.present:,} there already")
    if totals.skipped:
        parts.append(f"{plural(totals.skipped, 'bad line')} skipped")
    return ", ".join(parts)


def _tell(text: str) -> None:
    click.echo(printable(text), err=True)
