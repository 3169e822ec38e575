"""Downloads: entries of a stream, and jobs, as JSON lines or CSV.

::

    JSON lines   {"id": "ms-seq", "fields": {"name": bytes, ...}}       as of ``kvstream export``
                 {"id": "ms-seq", "fields": [[bytes, bytes], ...]}      if a name repeats
    bytes     := "text" | {"base64": "..."}                             if it is not UTF-8
    CSV          a line of names, then a line an entry; what a spreadsheet would take for a formula
                 has an apostrophe in front

Values are those that the user may see. A download leaves an entry in the audit, so it is a form and
no link, and users who may write nothing have none.
"""

from __future__ import annotations

import csv
import io
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from kvstream.console.access import Role, requires
from kvstream.console.actions.plan import audit
from kvstream.console.applications import stored_of
from kvstream.console.finding import conditions_of, find
from kvstream.console.reading import read_slice
from kvstream.errors import InvalidArgument
from kvstream.types.formatting import time_of

if TYPE_CHECKING:
    from kvstream.console.view import View
    from kvstream.types.records import Entry

ENTRIES, JOBS = 1000, 1000
"""Entries and jobs of one file."""
COLUMNS = 200
"""Names of fields that a file of CSV has; entries with others are exported as JSON lines."""
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""What a spreadsheet takes for a formula, with the wide signs of East Asian keyboards."""
_UNSAFE = re.compile(r"[^\w.-]", re.ASCII)


@requires(Role.OPERATOR)
def export_entries(view: View) -> Response:
    name, where, form = view.part("stream"), view.asked("where").strip(), view.asked("format")
    stream, at = view.store.stream(name), view.asked("at").strip()
    stream.info()  # NoSuchKey for a stream that is gone
    if where:
        entries = find(view, stream, at, conditions_of(where), ENTRIES).entries
    else:
        entries, _ = read_slice(stream, at, ENTRIES, view.asked("dir") == "newer")
    rows = [[(key, view.value(key, value)) for key, value in each.pairs] for each in entries]
    content = _csv_of(entries, rows) if form == "csv" else _json_of(entries, rows)
    audit(view, "export", name, len(entries), {"format": form, "where": where, "at": at})
    return _file(content, name.decode("utf-8", "replace"), "csv" if form == "csv" else "jsonl")


@requires(Role.OPERATOR)
def export_jobs(view: View) -> Response:
    """The jobs of a filter, as the list of jobs has them."""
    stored = stored_of(view)
    asked = {each: view.asked(each) or None for each in ("after", "status", "task", "tag", "since")}
    page = stored.find(count=JOBS, **asked, failed_with=view.asked("text") or None)
    names = ["id", "status", "task", "queue", "attempt", "seconds", "at", "error", "arguments"]
    lines = [
        [
            *(each.id, each.status, each.task, each.queue or "", each.attempt, each.seconds),
            *(time_of(each.due or each.at), each.error or ""),
            json.dumps(
                {"args": view.data(each.args or ()), "kwargs": view.data(each.kwargs or {})},
                default=repr,
                ensure_ascii=False,
            ),
        ]
        for each in page.jobs
    ]
    audit(view, "export-jobs", view.raw(stored.name), len(lines), asked)
    return _file(_csv([names, *lines]), f"{stored.name}-jobs", "csv")


def _file(content: str, name: str, ending: str) -> Response:
    """Return a file to be kept, which no browser shows as a page."""
    file = f"{_UNSAFE.sub('_', name)[:80]}.{ending}"
    return Response(
        content.encode("utf-8", "backslashreplace"),
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{file}"'},
    )


def _json_of(entries: Sequence[Entry], rows: Sequence[list[tuple[bytes, bytes]]]) -> str:
    lines = []
    for entry, pairs in zip(entries, rows, strict=True):
        named = [(_text_or_base64(name), _text_or_base64(value)) for name, value in pairs]
        is_object = all(isinstance(name, str) for name, _ in named) and (
            len({name for name, _ in pairs}) == len(pairs)
        )
        fields: Any = dict(named) if is_object else [list(pair) for pair in named]
        made = json.dumps({"id": str(entry.id), "fields": fields}, ensure_ascii=False)
        lines.append(made + "\n")
    return "".join(lines)


def _text_or_base64(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode("ascii")}


def _csv_of(entries: Sequence[Entry], rows: Sequence[list[tuple[bytes, bytes]]]) -> str:
    names = list(dict.fromkeys(name for pairs in rows for name, _ in pairs))
    if len(names) > COLUMNS or any(len(dict(pairs)) != len(pairs) for pairs in rows):
        raise InvalidArgument(
            f"these entries have more than {COLUMNS} names of fields, or one twice: choose JSON "
            "lines instead of CSV"
        )
    lines: list[list[Any]] = [["id", *map(_text, names)]]
    for entry, pairs in zip(entries, rows, strict=True):
        values = dict(pairs)
        lines.append([str(entry.id), *(_text(values.get(name, b"")) for name in names)])
    return _csv(lines)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _csv(lines: Iterable[Sequence[Any]]) -> str:
    made = io.StringIO()
    # Else a semicolon or a tab within a value would begin another cell in some countries.
    writer = csv.writer(made, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    for line in lines:
        writer.writerow([f"'{each}" if str(each).startswith(_FORMULA) else each for each in line])
    return made.getvalue()
