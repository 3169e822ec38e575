"""The command ``import``: its options, its reports of bad lines, and its summary."""

import codecs
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from kvstream.cli.file_formats import BYTES, CsvRows, JsonRows, Rows, Source, identity_of
from kvstream.cli.importing.batches import TIME_FORMATS, BadRow, Import, RowIDs, time_parser
from kvstream.cli.output import Output, progress_bar, summary_options
from kvstream.cli.parameters import Name, Type, example, stream_argument
from kvstream.cli.session import RETRY_PAUSE_S, DirectorySession, Session, stream_or_free
from kvstream.cli.tables import plural, printable
from kvstream.errors import ClientMissing, RequestError, StoreError, UnknownOutcome, install_command
from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    from kvstream.store import Store

REPORTED_MAX = 20
"""Bad lines that are reported one by one; the rest are counted."""

REPORT_S = 1.0
"""After this time an import says that it waits for another process."""

STDIN = "<stdin>"
TABLES = ("parquet", "arrow")
_CSV_SUFFIXES = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_TABLE_SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_FOREIGN_SUFFIXES = {".xlsx", ".xls", ".ods", ".gz", ".zst", ".zip"}
"""Endings that promise what would not be in the file: JSON lines are the default."""

format_option = click.option(
    "--format",
    "kind",
    type=click.Choice(("jsonl", "csv", *TABLES)),
    help="By default from the name of the file, or jsonl.",
)
delimiter_option = click.option(
    "--delimiter", metavar="CHAR", help="Separates the cells of CSV. By default a comma."
)
meta_prefix_option = click.option(
    "--meta-prefix",
    default="",
    show_default=False,
    metavar="PREFIX",
    help="Begins the columns id and timestamp of parquet and arrow, if entries have such fields.",
)
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Do not show progress.")


class Encoding(Type):
    """The name of an encoding of text that Python knows, or ``bytes``."""

    name = "encoding"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == BYTES:
            return BYTES
        try:
            "".encode(value or "utf-8")
            known = codecs.lookup(value or "utf-8").incrementaldecoder is not None
        except (LookupError, ValueError, TypeError):
            known = False
        if not known:
            self.fail(f"{value!r} is no encoding of text, such as utf-16 or cp1252.", param, ctx)
        return str(value)


def format_of(name: str, options: dict[str, Any]) -> tuple[str, str]:
    """Return the format of a file, and the delimiter of its cells.

    Raises UsageError for options that do not belong to the format.
    """
    suffix = Path(name).suffix.lower()
    implied = _CSV_SUFFIXES.get(suffix)
    if suffix in _FOREIGN_SUFFIXES and options["kind"] is None:
        raise click.UsageError(
            f"{suffix} files are neither read nor written: use .csv, .jsonl, .parquet or .arrow; "
            "to compress, use a pipe: kvstream export orders | gzip > orders.jsonl.gz"
        )
    default = "jsonl" if implied is None else "csv"
    kind: str = options["kind"] or _TABLE_SUFFIXES.get(suffix, default)
    delimiter = options["delimiter"]
    if kind not in TABLES and options["meta_prefix"]:
        raise click.UsageError("--meta-prefix is for parquet and arrow")
    for other in ("resume", "delimiter", "keep_empty"):
        if kind in TABLES and options.get(other):
            named = other.replace("_", "-")
            raise click.UsageError(f"--{named} is for jsonl and csv, not for {kind}")
    if kind != "csv" and options["guard_formulas"]:
        raise click.UsageError(f"--guard-formulas is for csv, not for {kind}")
    if delimiter is not None and len(delimiter) != 1:
        raise click.BadParameter("must be one character", param_hint="--delimiter")
    return kind, delimiter or implied or ","


@click.command(
    "import",
    epilog=example(
        "kvstream import orders orders.jsonl",
        "kvstream import temps temps.csv --time-column day --time-format %Y/%m/%d",
        "zcat orders.jsonl.gz | kvstream import orders --source orders-2025",
        "kvstream import temps temps.parquet --time-column measured_at",
    ),
)
@stream_argument
@click.argument("file", type=click.File("rb"), default="-", metavar="[FILE]")
@format_option
@delimiter_option
@meta_prefix_option
@click.option(
    "--encoding",
    type=Encoding(),
    default="",
    show_default=False,
    metavar="NAME",
    help="The encoding of jsonl or csv, such as utf-16 or cp1252; bytes: any, kept as it is. By "
    "default utf-8, or what a byte order mark says.",
)
@click.option("--id-column", type=Name(), metavar="FIELD", help="The field with the ID.")
@click.option("--time-column", type=Name(), metavar="FIELD", help="The field with the time.")
@click.option(
    "--time-format",
    default="iso",
    metavar="FORMAT",
    help=f"{', '.join(TIME_FORMATS)}, or a pattern as in strptime. Times are UTC.",
)
@click.option("--new-ids", is_flag=True, help="Ignore IDs of rows, and assign new ones.")
@click.option("--keep-empty", is_flag=True, help="Import empty cells of CSV as empty values.")
@click.option(
    "--guard-formulas",
    is_flag=True,
    help="Remove the ' that the same option of export has put before cells of CSV.",
)
@click.option(
    "--on-error",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    help="What to do at a bad line.",
)
@click.option(
    "--source", type=Name(), metavar="NAME", help="Identifies the input, so that it can be resumed."
)
@click.option(
    "--again", is_flag=True, help="Start at the first line, even if an import can be resumed."
)
@quiet_option
@summary_options
def import_(
    session: Session, out: Output, /, stream: bytes, file: BinaryIO, again: bool, **options: Any
) -> None:
    """Append the rows of a FILE or stdin to a stream.

    JSON Lines are {"id": ID, "fields": {...}}, where the ID is optional, or flat objects. In CSV
    the header names the fields, and an empty cell means that the entry lacks the field. A row keeps
    its ID. A row whose ID and fields are in the stream already is skipped.

    Text is stored as UTF-8. A file with the byte order mark of UTF-16 or UTF-32 is decoded; for
    another encoding give --encoding. A line that is not UTF-8, or has a NUL byte, is a bad line.
    --encoding bytes keeps the cells of CSV byte by byte, whatever they are.

    In parquet and arrow (also known as Feather), each column is a field, and null means that the
    entry lacks it. Numbers, times and truth values become text. A column `id` of text has the IDs,
    as in an export; then the column `timestamp` is not imported. These formats need a FILE, and
    pyarrow.

    Progress is committed with the rows: if an import is killed, the same command resumes it. A file
    is identified by its path or by --source, a pipe only by --source. If a file has grown, the new
    rows are imported.

    A bad line stops the import; the rows before it stay. With --on-error skip, bad lines are
    reported and skipped.
    """
    row_ids = _row_ids(options)
    source, rows = _source_and_rows(file, options)
    reports = _Reports(source.label)
    on_bad_row = reports if options["on_error"] == "skip" else None
    with _open_store(session, source) as store:
        stream_or_free(store, stream)
        run = Import(store, stream, source, rows, row_ids, on_bad_row)
        if not again:
            run.resume()
        if run.resumed is not None:
            _print(f"resuming at line {run.resumed.line + 1:,} of {source.label}")
        try:
            with progress_bar(f"import {source.label}", source.size, options["quiet"]) as advance:
                run.run(advance)
        except BadRow as bad:
            raise RequestError(f"{source.label}: {bad}; {_summary(run)}") from None
        except KeyboardInterrupt:
            _print(f"{source.label}: interrupted; {_explain_rest(run, source)}")
            raise
        except StoreError as error:  # such as a full disk, or a server that ends
            run.in_doubt = isinstance(error, UnknownOutcome)
            _print(f"{source.label}: stopped; {_explain_rest(run, source)}")
            raise
    reports.close()
    totals = run.totals
    out.result(
        _summary(run),
        added=totals.added,
        present=totals.present,
        skipped=totals.skipped,
        resumed_after_line=run.resumed.line if run.resumed else 0,
    )


@contextmanager
def _open_store(session: Session, source: Source) -> Iterator["Store"]:
    """Open the store when the source has data.

    The program that writes to a pipe may read the same store, as in ``range --json | import``. So
    as long as another process has the store open, the pipe is read into a temporary file.
    """
    with ExitStack() as stack:
        if isinstance(session, DirectorySession) and source.wait_for_data():
            file = stack.enter_context(TemporaryFile())
            _spool_while_locked(session, source, file)
        yield stack.enter_context(session.writing(create=True))


def _spool_while_locked(session: DirectorySession, source: Source, file: BinaryIO) -> None:
    """Read a pipe into a file until the store is free, the pipe ends, or it is idle for --wait."""
    start = last = monotonic()
    reported = False
    while holder := session.holder():
        if source.spool(file, RETRY_PAUSE_S):
            last = monotonic()
        elif source.ended or monotonic() - last >= session.wait_s:
            break
        if not reported and monotonic() - start >= REPORT_S:
            _print(f"waiting: the store is held by {holder}; reading {source.label} meanwhile")
            reported = True
    source.continue_with(file)


def _explain_rest(run: Import, source: Source) -> str:
    """Return what an interrupted import leaves, and how to go on."""
    kept = f"{'at least ' if run.in_doubt else ''}{_summary(run)} and kept"
    if source.identity is None:
        return f"{kept}; an import from a pipe is resumed only with --source"
    if run.in_doubt:
        return f"{kept}; the same command resumes after the last line that was added"
    return f"{kept}; the same command resumes at line {run.line + 1:,}"


def _row_ids(options: dict[str, Any]) -> RowIDs:
    if options["id_column"] is not None and options["time_column"] is not None:
        raise click.UsageError("give either --id-column or --time-column")
    if options["time_format"] not in TIME_FORMATS and "%" not in options["time_format"]:
        known = ", ".join(TIME_FORMATS)
        raise click.BadParameter(
            f"must be {known}, or a pattern with %", param_hint="--time-format"
        )
    return RowIDs(
        options["id_column"],
        options["time_column"],
        time_parser(options["time_format"]),
        options["new_ids"],
    )


def _label_and_identity(file: BinaryIO, name: bytes | None) -> tuple[str, bytes | None]:
    """Return the name of a file in messages, and its identity for a later run."""
    given = getattr(file, "name", STDIN)
    path = Path(given) if isinstance(given, str) and given != STDIN else None
    label = "stdin" if path is None else printable(path.name)
    return label, identity_of(path, name)


def _source_and_rows(file: BinaryIO, options: dict[str, Any]) -> tuple[Source, Rows]:
    label, identity = _label_and_identity(file, options["source"])
    kind, delimiter = format_of(label, options)
    encoding = options["encoding"]
    if kind in TABLES:
        if encoding:
            raise click.UsageError(f"--encoding is for jsonl and csv, not for {kind}")
        if not file.seekable():
            raise click.UsageError(f"{kind} needs a FILE: it is not read from a pipe")
        file = _table_lines(file, kind, label, options["meta_prefix"])
    as_bytes = encoding == BYTES
    if as_bytes and kind != "csv":
        raise click.UsageError(f"--encoding {BYTES} is for csv, not for {kind}")
    source = Source(file, label, identity, encoding)
    if kind == "csv":
        how = {"as_bytes": as_bytes, "guarded": options["guard_formulas"]}
        return source, CsvRows(source, delimiter, options["keep_empty"], **how)
    return source, JsonRows(source)


def _table_lines(file: BinaryIO, kind: str, label: str, prefix: str) -> BinaryIO:
    try:
        from kvstream.cli.importing.tables import table_lines
    except ModuleNotFoundError:
        raise ClientMissing(f"{kind} needs pyarrow: {install_command('arrow')}") from None
    return table_lines(file, kind, label, prefix)


class _Reports:
    """Reports bad lines on stderr."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._count = 0

    def __call__(self, bad: BadRow) -> None:
        self._count += 1
        if self._count <= REPORTED_MAX:
            _print(f"{self._label}: {bad}")

    def close(self) -> None:
        """Report the number of bad lines that were not shown."""
        if self._count > REPORTED_MAX:
            _print(f"{self._label}: {plural(self._count - REPORTED_MAX, 'more bad line')}")


def _summary(run: Import) -> str:
    totals = run.totals
    parts = [f"{plural(totals.added, 'entry')} added"]
    if totals.present:
        parts.append(f"{totals.present:,} already there")
    if totals.skipped:
        parts.append(f"{plural(totals.skipped, 'bad line')} skipped")
    return ", ".join(parts)


def _print(text: str) -> None:
    click.echo(printable(text), err=True)
