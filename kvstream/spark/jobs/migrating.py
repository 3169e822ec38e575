"""``migrate``: a fleet of servers into stores, in parallel, groups and pending entries included.

A task brings the sources of one target, one after another, as ``kvstream migrate run`` does, and
compares them: a store has one writer. How far each pair came is kept where the task ran, so that
the job may be run again after any failure. It knows pairs of places, not how they are carried.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstream.errors import DataError, InvalidArgument, KVStreamError
from kvstream.spark.jobs.places import Say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kvstream.migration import Difference


@dataclass(frozen=True, slots=True)
class Pair:
    """A place, and where its streams are to go: as ``kvstream migrate`` names them."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Manner:
    """What holds for all pairs."""

    match: tuple[str, ...] = ()
    allow_loss: tuple[str, ...] = ()
    state: str | None = None
    """The folder in which is kept how far each pair came; None: that of whoever runs the task."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of one pair."""

    source: str
    """As messages show it, without a password."""
    target: str
    keys: int = 0
    entries: int = 0
    """Those that are at the target now."""
    differences: int = 0
    """What a comparison has found."""
    error: str = ""

    @property
    def is_done(self) -> bool:
        return not self.error and not self.differences


def migrate(
    spark: "SparkSession",
    pairs: Sequence[Pair],
    *,
    match: Sequence[str] = (),
    allow_loss: Sequence[str] = (),
    state: str | None = None,
    say: Say = print,
) -> list[Moved]:
    """Bring the streams of each pair's source to its target, and compare them.

    Pairs of one target run one after another, all others side by side, as many as Spark has cores.
    Raises DataError in the end where some pair failed or differs; the others are done.
    """
    if not pairs:
        raise InvalidArgument("name a source and a target")
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.target, []).append(pair)
    manner = Manner(tuple(match), tuple(allow_loss), state)
    say(f"{len(pairs):,} sources to {len(groups):,} targets")
    work = [(group, manner) for group in groups.values()]
    moved: list[Moved] = spark.sparkContext.parallelize(work, len(work)).flatMap(bring).collect()
    for each in moved:
        told = each.error or f"{each.keys:,} keys, {each.entries:,} entries"
        if each.differences:
            told += f", {each.differences:,} differences"
        say(f"{each.source} to {each.target}: {told}")
    done = [each for each in moved if each.is_done]
    entries = sum(each.entries for each in done)
    say(f"{len(done):,} of {len(pairs):,} are there and equal; {entries:,} entries")
    if len(done) < len(pairs):
        raise DataError(f"{len(pairs) - len(done):,} of {len(pairs):,} sources are not migrated")
    return moved


def bring(work: tuple[list[Pair], Manner]) -> Iterator[Moved]:
    """Run in a task: migrate the sources of one target."""
    pairs, manner = work
    for pair in pairs:
        yield _moved(pair, manner)


def _moved(pair: Pair, manner: Manner) -> Moved:
    from kvstream import migration

    shown = _shown(pair.source), _shown(pair.target)
    try:
        here = migration.parse_place(pair.source)
        there = migration.parse_place(pair.target, create=True)
        report = migration.run(
            here, there, match=manner.match, allow_loss=manner.allow_loss, state=manner.state
        )
        found = migration.verify(here, there, match=manner.match)
    except (KVStreamError, OSError) as error:
        return Moved(*shown, error=f"{type(error).__name__}: {error}")
    differing = [each for each in found.differences if not (each.may_move or _is_extra(each))]
    return Moved(*shown, report.keys, report.entries, len(differing))


def _shown(address: str) -> str:
    """Return an address without the user and the password in it."""
    return re.sub(r"//[^@/]*@", "//", address)


def _is_extra(difference: "Difference") -> bool:
    """Tell whether the target has a whole key that this source has not: others bring theirs."""
    from kvstream.migration.differences import ABSENT

    return difference.what == "key" and difference.source == ABSENT
