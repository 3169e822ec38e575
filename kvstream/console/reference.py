"""Print docs/console-api.md from the forms: ``python -m kvstream.console.reference``.

A test compares the file with this output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from kvstream.console.access import Role
from kvstream.console.api.fields import Field, Form, Record
from kvstream.console.api.forms import FORMS
from kvstream.console.api.routes import path_of
from kvstream.console.routes import PAGES

INTRODUCTION = """\
# The JSON of the console

<!-- Written by `python -m kvstream.console.reference > docs/console-api.md`; do not edit. -->

Each page of [the web console](console.md) is there as JSON, under `/api/v1`, for GET alone: an
action needs the form of a page, or the command that the page names. Login, roles, hidden values and
the bounds of a page are those of HTML, since one function makes both. So a program asks with the
cookie of a login, with name and password under `--auth acl` (`curl -u`), or with what the `auth`
of your application takes:

```bash
curl -c jar 'http://127.0.0.1:9122/login?token=...'
curl -b jar 'http://127.0.0.1:9122/api/v1/jobs?status=failed'
```

A reply has all fields of its page, always. Those marked "null" may be null. In addition each has
`links`, an object with `self`. Links are paths on this host. Lists are parts: `next` (or `older`)
is the link to the next part, and null at the end. A cursor in a link is not for reading.

| type | is |
| --- | --- |
| integer, number, boolean, text | as in JSON; a long text is cut |
| name | bytes: a text, or `{"base64": "..."}` if they are no UTF-8 or have control characters |
| ID | a text `ms-seq`; of a delayed message `@ms-number` |
| time | a text `2026-01-31T12:00:00.123Z`, UTC |
| value | `{"name": name, "value": name, "size": bytes}`; in lists the value is cut to 200 bytes |
| data | any JSON; if it is too long `{"cut": text, "size": integer}` |
| link | a path with its query |
| object of figures | names with texts or numbers, as the server says them |

Times whose name ends in `_ms` are milliseconds. An error is `{"error": {"status", "title",
"text"}}` with the status of HTTP: 401 not logged in, 403 not allowed, 404 not there, 400 a wrong
query, 503 the store does not answer. In 0.x versions fields may be added; none is taken away or
changed without an entry in the changelog.

## Pages"""


def reference() -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION
    records: dict[Record, str] = {}
    for path, form in FORMS.items():
        yield from ["", f"### `{_shown(path)}`", ""]
        yield from _about(path, form)
        yield from _table(form.fields)
        for each in _records(form.fields):
            records.setdefault(each, each.title)
    yield from ["", "## Objects"]
    for record in sorted(records, key=lambda each: each.title):
        yield from ["", f"### {record.title}", ""]
        yield from _table(record.fields)


def _shown(path: str) -> str:
    return re.sub(r"{(\w+)[^}]*}", lambda part: part[1].upper(), path_of(path))


def _about(path: str, form: Form) -> Iterator[str]:
    endpoint: Any = next(each.endpoint for each in PAGES if each.path == path)
    role = endpoint.role
    more = "" if role is Role.VIEWER else f" It needs the role {role.name.lower()}."
    asked = f" In the query: {', '.join(f'`{each}`' for each in form.query)}." if form.query else ""
    yield form.about + more + asked
    yield ""


def _table(fields: Iterable[Field]) -> Iterator[str]:
    yield "| field | type | is |"
    yield "| --- | --- | --- |"
    for each in fields:
        null = ", null" if each.is_optional else ""
        yield f"| `{each.name}` | {each.kind.title}{null} | {each.about} |"


def _records(fields: Iterable[Field]) -> Iterator[Record]:
    """Yield the objects in fields, and those within them."""
    for each in fields:
        if each.kind.record is not None:
            yield each.kind.record
            yield from _records(each.kind.record.fields)


if __name__ == "__main__":
    print("\n".join(reference()))
