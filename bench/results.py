"""The figures of one run: rates and ratios, as medians of rounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.targets import LEAST, TARGETS, Target
from bench.workload import Sizes

Log = Callable[[str], None]
"""Receives the title of what is measured next."""
Limits = dict[str, tuple[str, Callable[[Path, Sizes], "list[Limit]"]]]
"""Titles, and the functions that measure: some give several limits."""


OWN, PEER = "kvstream", "Redis"
COMPARED = (OWN, LEAST, PEER)
"""The servers whose processor time is shown; all others have their rates shown."""


class Used(NamedTuple):
    """What one round took of a server."""

    seconds: float
    processor: float
    counts: Mapping[str, float] = {}
    """Numbers of the processor's events, if they can be counted."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row: the same work on kvstream and on the other side, round by round."""

    key: str
    title: str
    target: float
    """The ratio to Redis that is promised; 0: none."""
    count: int
    """Entries of one round."""
    seconds: list[float] = field(default_factory=list)
    peer_seconds: list[float] = field(default_factory=list)
    further_seconds: dict[str, list[float]] = field(default_factory=dict)
    """The seconds of newer servers, by name, for comparison only."""
    processor: list[float] = field(default_factory=list)
    """Processor seconds of kvstream's server in each round; empty without a server."""
    peer_processor: list[float] = field(default_factory=list)
    least_processor: list[float] = field(default_factory=list)
    """Of the least server; empty if it does not run the row."""
    counts: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Of each of the processor's events that was counted: the numbers of each server's rounds."""
    beside: list["Comparison"] = field(default_factory=list)
    """The same row beside a neighbour, if it was measured there."""

    def add(self, server: str, used: Used) -> None:
        """Add a round of a server."""
        lists = {
            OWN: (self.seconds, self.processor),
            PEER: (self.peer_seconds, self.peer_processor),
            LEAST: ([], self.least_processor),
        }
        if server not in lists:
            self.further_seconds[server].append(used.seconds)
            return
        seconds, processor = lists[server]
        seconds.append(used.seconds)
        processor.append(used.processor)
        for event, number in used.counts.items():
            self.counts.setdefault(event, {}).setdefault(server, []).append(number)

    def add_beside(self, server: str, used: Used) -> None:
        """Add a round of a server beside a neighbour."""
        if not self.beside:
            self.beside.append(Comparison(self.key, self.title, self.target, self.count))
        self.beside[0].add(server, used)

    def per_entry(self, event: str) -> list[float]:
        """Return the number of an event for one entry in the median round, of each server."""
        found = self.counts.get(event, {})
        return [median(found[server]) / self.count for server in COMPARED if server in found]

    @property
    def _ratios(self) -> list[float]:
        pairs = zip(self.seconds, self.peer_seconds, strict=True)
        return [peer / own for own, peer in pairs]

    @property
    def ratio(self) -> float:
        """The speed relative to Redis: the median of the rounds' ratios."""
        return median(self._ratios)

    @property
    def ratio_range(self) -> tuple[float, float]:
        """The lowest and highest ratio of a round."""
        return min(self._ratios), max(self._ratios)

    @property
    def rate(self) -> float:
        """kvstream's entries per second in the median round."""
        return self.count / median(self.seconds)

    @property
    def peer_rate(self) -> float:
        """Redis's entries per second in the median round."""
        return self.count / median(self.peer_seconds)

    @property
    def further_rates(self) -> dict[str, float]:
        """Entries per second of newer servers in the median round."""
        return {name: self.count / median(took) for name, took in self.further_seconds.items()}

    @property
    def processor_us(self) -> tuple[float, ...]:
        """Processor microseconds of an entry in the median round, of each server measured.

        Of kvstream's, of the least one if it runs the row, and of Redis.
        """
        sides = (self.processor, self.least_processor, self.peer_processor)
        return tuple(1e6 * median(side) / self.count for side in sides if side)

    @property
    def processor_target(self) -> Target | None:
        """The promised processor time, if this row is measured beside the server it refers to."""
        target = TARGETS.get(self.key)
        return target if target is not None and self._reference(target) else None

    def _reference(self, target: Target) -> list[float]:
        return self.least_processor if target.of == LEAST else self.peer_processor

    @property
    def processor_times(self) -> float:
        """The processor time over the other server's: the median of the rounds' ratios."""
        target = TARGETS[self.key]
        pairs = zip(self.processor, self._reference(target), strict=True)
        return median(own / other for own, other in pairs)

    @property
    def worst_times(self) -> float:
        """The processor time over the other server's, quiet or beside a neighbour."""
        return max(row.processor_times for row in (self, *self.beside))

    @property
    def met(self) -> bool:
        return self.ratio >= self.target

    @property
    def share(self) -> float:
        """The ratio relative to its target: below 1 if it is missed."""
        return self.ratio / self.target

    def as_json(self) -> dict[str, object]:
        further = {name: round(rate) for name, rate in self.further_rates.items()}
        sides = (self.processor, self.least_processor, self.peer_processor)
        names = ("processor_us", "least_processor_us", "redis_processor_us")
        processor: dict[str, object] = {
            name: round(1e6 * median(side) / self.count, 2)
            for name, side in zip(names, sides, strict=True)
            if side
        }
        if target := self.processor_target:
            processor["processor_times"] = round(self.processor_times, 2)
            processor["processor_target"] = {"of": target.of, "times": target.times}
        for event in self.counts:
            processor[event] = [round(each, 2) for each in self.per_entry(event)]
        for same in self.beside:
            processor["beside_neighbour"] = same.as_json()
        return {
            "key": self.key,
            "title": self.title,
            "target_ratio": self.target,
            "ratio": round(self.ratio, 2),
            "ratio_range": [round(ratio, 2) for ratio in self.ratio_range],
            "entries_per_round": self.count,
            "per_second": round(self.rate),
            "redis_per_second": round(self.peer_rate),
            **processor,
            **({"further_per_second": further} if further else {}),
            "met": self.met,
        }


@dataclass(frozen=True, slots=True)
class Limit:
    """One row with an absolute limit for kvstream alone."""

    key: str
    title: str
    value: float
    limit: float
    """The highest value that is promised; 0: none."""
    unit: str
    note: str = ""

    @property
    def met(self) -> bool:
        return not self.limit or self.value <= self.limit

    @property
    def share(self) -> float:
        """The limit relative to the value: below 1 if it is missed."""
        return self.limit / self.value if self.value else inf

    def as_json(self) -> dict[str, object]:
        return {
            "key": self.key,
            "title": self.title,
            "value": round(self.value, 3),
            "limit": self.limit,
            "unit": self.unit,
            "note": self.note,
            "met": self.met,
        }


@dataclass(frozen=True, slots=True)
class Scaling:
    """One Spark job on one core and on two."""

    key: str
    title: str
    count: int
    """Entries of one round."""
    one: list[float]
    """Seconds of the rounds on one core."""
    two: list[float]

    @property
    def rates(self) -> tuple[float, float]:
        """Entries per second on one core and on two, in the median rounds."""
        return self.count / median(self.one), self.count / median(self.two)

    @property
    def times(self) -> float:
        """The speed of two cores relative to one."""
        one, two = self.rates
        return two / one

    def as_json(self) -> dict[str, object]:
        one, two = self.rates
        return {
            "key": self.key,
            "title": self.title,
            "entries_per_round": self.count,
            "one_core_per_second": round(one),
            "two_cores_per_second": round(two),
            "times": round(self.times, 2),
        }
