"""The templates, and the filters by which they show times, numbers and names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kvstream.console.applications import tries_of
from kvstream.console.values import pretty_json, text
from kvstream.types.formatting import duration, number, plural, size, time_of, unix_ms
from kvstream.types.ids import StreamID
from kvstream.version import VERSION

FOLDER = Path(__file__).parent
_DATA = 50_000
"""Characters of a result."""
_DASH = Markup('<span class="none">-</span>')


def templates() -> Environment:
    """Return the templates; every value in them is escaped unless it is Markup."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        version=VERSION,
        pretty_json=pretty_json,
        arguments=_arguments,
        show=_plain,
        tries_of=tries_of,
    )
    made.filters.update(
        ago=_ago,
        count=_count,
        lasted=_lasted,
        plural=plural,
        rough=_rough,
        size=size,
        text=text,
        utc=time_of,
    )
    return made


def _plain(value: Any) -> str:
    """Return plain data, such as a result, as JSON."""
    try:
        return json.dumps(value, default=repr, ensure_ascii=False)[:_DATA]
    except (ValueError, RecursionError):
        return repr(value)[:_DATA]


def _arguments(job: Any, view: Any) -> str:
    """Return the arguments of a job as a call has them, and as the user may see them."""
    kwargs = {name: view.data({name: value}) for name, value in (job.kwargs or {}).items()}
    named = [
        f"{name}={_plain(seen[name] if isinstance(seen, dict) else seen)}"
        for name, seen in kwargs.items()
    ]
    return ", ".join([*(_plain(view.data(each)) for each in job.args or ()), *named])[:_DATA]


def _count(value: int | None) -> str | Markup:
    """Return a number; a dash for one that is unknown, and a pale zero."""
    if value is None:
        return _DASH
    return Markup('<span class="zero">0</span>') if value == 0 else number(value)


def _lasted(ms: float | None) -> str | Markup:
    return _DASH if ms is None else duration(round(ms))


def _ago(moment: Any, now_ms: int) -> Markup:
    """Return a moment as a time from now, such as "3 min ago", with its UTC time as the title."""
    utc = time_of(moment)
    if not utc:
        return _DASH
    ms = moment.ms if isinstance(moment, StreamID) else moment
    ms = ms if isinstance(ms, int) else unix_ms(ms)
    past = now_ms - ms
    if past >= 0:
        words = "now" if past < 1000 else f"{_rough(past)} ago"
    else:
        words = f"in {_rough(-past)}"
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        utc.replace(" ", "T"), utc.removesuffix("Z"), words
    )


def _rough(ms: int) -> str:
    """Return a duration in its greatest unit."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        if ms >= length:
            return f"{ms // length} {unit}"
    return f"{ms // 1000} s"
