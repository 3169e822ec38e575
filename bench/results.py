"""The figures of one run, and how medians are made of rounds."""

from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Contest:
    """One row in which both sides did the same work, round by round."""

    key: str
    title: str
    target: float
    """The least ratio to Redis that was promised; 0: none was."""
    count: int
    """Entries of one round."""
    seconds: list[float] = field(default_factory=list)
    peer_seconds: list[float] = field(default_factory=list)
    further_seconds: dict[str, list[float]] = field(default_factory=dict)
    """Of newer servers, by name; nothing was promised beside them."""

    @property
    def ratio(self) -> float:
        """How many times faster than Redis: the median of the rounds' ratios."""
        pairs = zip(self.seconds, self.peer_seconds, strict=True)
        return median(peer / own for own, peer in pairs)

    @property
    def ratio_range(self) -> tuple[float, float]:
        """The lowest and the highest ratio of a round."""
        ratios = [p / o for o, p in zip(self.seconds, self.peer_seconds, strict=True)]
        return min(ratios), max(ratios)

    @property
    def rate(self) -> float:
        """Entries per second of kvstream, the median round."""
        return self.count / median(self.seconds)

    @property
    def peer_rate(self) -> float:
        """Entries per second of Redis, the median round."""
        return self.count / median(self.peer_seconds)

    @property
    def further_rates(self) -> dict[str, float]:
        """Entries per second of the newer servers, the median round."""
        return {name: self.count / median(took) for name, took in self.further_seconds.items()}

    @property
    def met(self) -> bool:
        return self.ratio >= self.target

    def as_json(self) -> dict[str, object]:
        further = {name: round(rate) for name, rate in self.further_rates.items()}
        return {
            "key": self.key,
            "title": self.title,
            "target_ratio": self.target,
            "ratio": round(self.ratio, 2),
            "ratio_range": [round(ratio, 2) for ratio in self.ratio_range],
            "entries_per_round": self.count,
            "per_second": round(self.rate),
            "redis_per_second": round(self.peer_rate),
            **({"further_per_second": further} if further else {}),
            "met": self.met,
        }


@dataclass(frozen=True, slots=True)
class Claim:
    """One row with an absolute bound that kvstream alone is held to."""

    key: str
    title: str
    value: float
    limit: float
    unit: str
    note: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.limit

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
class Scaled:
    """One job of Spark on one core and on two."""

    key: str
    title: str
    count: int
    """Entries of one round."""
    one: list[float]
    two: list[float]
    """Seconds of the rounds."""

    @property
    def rates(self) -> tuple[float, float]:
        """Entries per second with one core, and with two: the median rounds."""
        return self.count / median(self.one), self.count / median(self.two)

    @property
    def times(self) -> float:
        """How many times faster two cores are."""
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
