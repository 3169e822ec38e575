"""The measurements of the demo, straight from the CSV files of the package vega-datasets.

Real ones: the temperature at San Francisco and at Seattle for every hour of a year, and Seattle's
weather for every day of four. Owns the files' formats and knows nothing of kvstream.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NamedTuple

Row = dict[str, str]


class Reading(NamedTuple):
    """One row of a file: when it was measured, and its columns."""

    ms: int
    """Unix time in milliseconds; the files' local times are taken as they stand."""
    columns: Row


@dataclass(frozen=True, slots=True)
class Source:
    """One file and the stream it goes into."""

    stream: str
    file: str
    time_format: str
    period_format: str
    """What is summed up together: a month or a year, as ``strftime`` writes it."""
    column: str
    """The column that is summed up."""
    title: str

    def readings(self, folder: Path, rows_max: int | None = None) -> Iterator[Reading]:
        """Yield the file's rows, or the first of them, in its order, which is that of time."""
        with (folder / self.file).open(newline="", encoding="utf-8") as lines:
            for row in islice(csv.DictReader(lines), rows_max):
                moment = datetime.strptime(row["date"], self.time_format).replace(tzinfo=UTC)
                yield Reading(int(moment.timestamp()) * 1000, row)

    def period(self, ms: int) -> str:
        """Return the period that a moment belongs to."""
        return datetime.fromtimestamp(ms / 1000, UTC).strftime(self.period_format)


SOURCES = (
    Source(
        "temperature:san-francisco",
        "sf-temps.csv",
        "%Y/%m/%d %H:%M:%S",
        "%Y-%m",
        "temp",
        "San Francisco, F",
    ),
    Source(
        "temperature:seattle", "seattle-temps.csv", "%Y/%m/%d %H:%M", "%Y-%m", "temp", "Seattle, F"
    ),
    Source(
        "weather:seattle",
        "seattle-weather.csv",
        "%Y/%m/%d",
        "%Y",
        "precipitation",
        "Seattle, rain in mm",
    ),
)


class DataMissing(Exception):
    """The data set is not installed."""


def data_folder() -> Path:
    """Return where the CSV files lie. The package is found, not imported: that needs pandas."""
    spec = find_spec("vega_datasets")
    if spec is None or not spec.submodule_search_locations:
        raise DataMissing(
            "vega-datasets is missing. Run `make demo`, or: "
            "pip install --no-deps -r demo/requirements.txt"
        )
    return Path(spec.submodule_search_locations[0]) / "_data"
