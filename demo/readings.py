"""The measurements of the demo, from CSV files of the package vega-datasets, and their sums.

They are the hourly temperatures of San Francisco and Seattle in one year, and Seattle's daily
weather in four years. Sums are per period (a month, a year or an hour), in exact decimals.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NamedTuple

Row = dict[str, str]


class Reading(NamedTuple):
    """One row of a file: its time and its columns."""

    ms: int
    """Unix time in milliseconds; the files' local times are read as UTC."""
    columns: Row


@dataclass(frozen=True, slots=True)
class Source:
    """One file, and its stream."""

    stream: str
    file: str
    time_format: str
    period_format: str
    """The period of a sum: a month or a year, in the format of ``strftime``."""
    column: str
    """The column whose values are summed."""
    title: str

    def readings(self, folder: Path, rows_max: int | None = None) -> Iterator[Reading]:
        """Yield the rows of the file, at most ``rows_max``, in the order of time."""
        with (folder / self.file).open(newline="", encoding="utf-8") as lines:
            for row in islice(csv.DictReader(lines), rows_max):
                moment = datetime.strptime(row["date"], self.time_format).replace(tzinfo=UTC)
                yield Reading(int(moment.timestamp()) * 1000, row)

    def period(self, ms: int) -> str:
        """Return the period of a time."""
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
    """Return the folder of the CSV files. The package is not imported: that would need pandas."""
    spec = find_spec("vega_datasets")
    if spec is None or not spec.submodule_search_locations:
        raise DataMissing(
            "vega-datasets is missing. Run `make demo`, or: "
            "pip install --no-deps -r demo/requirements.txt"
        )
    return Path(spec.submodule_search_locations[0]) / "_data"


Key = tuple[str, str]
"""Stream and period."""


@dataclass(frozen=True, slots=True)
class Sum:
    """The count, sum, minimum and maximum of the measurements of a period."""

    count: int
    total: Decimal
    low: Decimal
    high: Decimal

    @classmethod
    def of(cls, text: str) -> "Sum":
        """Return the sum of one measurement."""
        value = Decimal(text)
        return cls(1, value, value, value)

    @classmethod
    def from_fields(cls, fields: Mapping[bytes, bytes]) -> "Sum":
        """Return the sum stored by ``as_fields``."""
        total, low, high = (Decimal(fields[name].decode()) for name in (b"total", b"low", b"high"))
        return cls(int(fields[b"count"]), total, low, high)

    def as_fields(self) -> dict[str, str]:
        """Return the sum as the fields of an entry."""
        return {
            "count": str(self.count),
            "total": str(self.total),
            "low": str(self.low),
            "high": str(self.high),
        }

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(
            self.count + other.count,
            self.total + other.total,
            min(self.low, other.low),
            max(self.high, other.high),
        )


def fold(parts: Iterable[tuple[Key, Sum]]) -> dict[Key, Sum]:
    """Add the sums of each key."""
    sums: dict[Key, Sum] = {}
    for key, part in parts:
        sums[key] = sums[key] + part if key in sums else part
    return sums
