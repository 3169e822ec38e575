"""Sums of measurements by period: made from entries, stored as entries, and folded together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

Key = tuple[str, str]
"""Stream and period."""


@dataclass(frozen=True, slots=True)
class Sum:
    """How many measurements of a period, their sum, and the extremes. Decimals add up exactly."""

    count: int
    total: Decimal
    low: Decimal
    high: Decimal

    @classmethod
    def of(cls, text: str) -> "Sum":
        """Return the sum of the one measurement ``text``."""
        value = Decimal(text)
        return cls(1, value, value, value)

    @classmethod
    def from_fields(cls, fields: Mapping[bytes, bytes]) -> "Sum":
        """Return the sum that ``as_fields`` has stored."""
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
    """Add up the parts of each key."""
    sums: dict[Key, Sum] = {}
    for key, part in parts:
        sums[key] = sums[key] + part if key in sums else part
    return sums
