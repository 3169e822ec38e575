"""``export``: entries as JSON Lines or CSV, into a file that can be gone on with."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import click

from kvstream.cli.contracts import AnyStream, Session
from kvstream.cli.entries import count_option
from kvstream.cli.examples import example
from kvstream.cli.export_files import Ending, opened_export
from kvstream.cli.importing import delimiter_option, format_of, format_option, quiet_option
from kvstream.cli.output import pages
from kvstream.cli.parameters import ID, PathOnly, RangeBound, stream_argument
from kvstream.cli.progress import Meter, meter
from kvstream.cli.rows import CsvWriter, JsonWriter, Writer, column_names
from kvstream.cli.session import existing_stream
from kvstream.cli.text import plural
from kvstream.ids import range_end, range_start
from kvstream.records import Entry

PAGE = 1000
"""Entries that are written together."""


@click.command(
    epilog=example(
        "kvstream export orders backup.jsonl",
        "kvstream export orders backup.jsonl --resume",
        "kvstream export orders --format csv --start now-1d | gzip > orders.csv.gz",
    )
)
@stream_argument
@click.argument(
    "file",
    type=PathOnly(dir_okay=False, allow_dash=True),
    default="-",
    metavar="[FILE]",
)
@format_option
@delimiter_option
@click.option("--fields", metavar="A,B,...", help="The columns of CSV. By default all fields.")
@click.option("--start", type=RangeBound(), default="-", help="From this ID or time on.")
@click.option("--end", type=RangeBound(), default="+", help="Up to this ID or time.")
@click.option("--after", type=ID(), help="Only what lies after this ID.")
@count_option
@click.option("--resume", is_flag=True, help="Go on with a FILE that was exported in part.")
@click.option("--overwrite", is_flag=True, help="Replace a FILE that exists.")
@quiet_option
@click.pass_obj
def export(session: Session, /, stream: bytes, file: Path, **options: Any) -> None:
    """Write the entries of a stream to a FILE or stdout.

    `import` reads them back exactly. In CSV the column kvstream:fields holds, as JSON, the fields
    of those entries that cells cannot hold exactly: binary values, repeated fields, fields in
    another order than the header's, empty values. --resume drops a last line that was cut off, and
    goes on after the last whole one.
    """
    kind, delimiter = format_of(file.name, options["kind"], options["delimiter"])
    may = {"resume": options["resume"], "overwrite": options["overwrite"]}
    with session.reading() as store:
        found = existing_stream(store, stream)
        with opened_export(file, kind, delimiter, **may) as (target, ending):
            entries = _Selection(found, options, ending)
            writer = _writer(kind, delimiter, ending, options["fields"], entries)
            with meter(f"export {file.name}", entries.total, options["quiet"]) as watch:
                written = _write(entries, writer, target, ending, watch)
    click.echo(f"{plural(written, 'entry', 'entries')} written", err=True)


def _write(
    entries: "_Selection", writer: Writer, target: BinaryIO, ending: Ending, watch: Meter
) -> int:
    """Write what is selected, page by page, and return how many entries it was."""
    written = 0
    if not ending.size:
        target.write(writer.header)
    for page in pages(entries, PAGE):
        target.write(writer.page(page))
        written += len(page)
        watch(written, written)
    return written


def _writer(
    kind: str, delimiter: str, ending: Ending, fields: str | None, entries: "_Selection"
) -> Writer:
    if kind == "jsonl":
        return JsonWriter()
    if ending.names is not None:
        return CsvWriter(ending.names, delimiter)
    names = column_names(iter(entries)) if fields is None else fields.split(",")
    return CsvWriter(names, delimiter)


class _Selection:
    """The entries that are to be exported."""

    def __init__(self, stream: AnyStream, options: dict[str, Any], ending: Ending) -> None:
        self._stream = stream
        self._start = range_start(options["start"])
        self._end = range_end(options["end"])
        self._count: int | None = options["count"]
        for before in (options["after"], ending.last_id):
            if before is not None:
                self._start = max(self._start, before.next())
        whole = options["start"] == "-" and options["end"] == "+" and options["after"] is None
        self.total = len(stream) if whole and ending.last_id is None else None
        """How many there are, where that is known beforehand."""

    def __iter__(self) -> Iterator[Entry]:
        entries = self._stream.scan(self._start, self._end)
        return islice(entries, self._count)
