"""``migrate``: many sources into many targets in parallel, with groups and pending entries.

One task migrates and compares all sources of one target, one after another, since a store has one
writer. Each pair's progress is recorded where its task ran, so the job may be run again after any
failure.
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
    """A source and its target, as arguments of ``kvstream migrate``."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class MigrateOptions:
    """The options of all pairs."""

    match: tuple[str, ...] = ()
    allow_loss: tuple[str, ...] = ()
    state: str | None = None
    """The folder for the progress of each pair; None: the default of the user who runs the task."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of one pair."""

    source: str
    """The address without a password."""
    target: str
    keys: int = 0
    entries: int = 0
    """The entries at the target now."""
    differences: int = 0
    """The differences found by the comparison."""
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
    """Migrate the streams of each pair's source to its target, and compare them.

    Pairs of one target run one after another; others run in parallel, as many as Spark has cores.
    Raises DataError in the end if a pair failed or differs; the others are migrated.
    """
    if not pairs:
        raise InvalidArgument("name a source and a target")
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.target, []).append(pair)
    say(f"{len(pairs):,} sources to {len(groups):,} targets")
    options = MigrateOptions(tuple(match), tuple(allow_loss), state)
    work = [(group, options) for group in groups.values()]
    results = spark.sparkContext.parallelize(work, len(work)).flatMap(migrate_group).collect()
    order = [pair for group in groups.values() for pair in group]
    found = dict(zip(order, results, strict=True))
    moved = [found[pair] for pair in pairs]
    for each in moved:
        line = each.error or f"{each.keys:,} keys, {each.entries:,} entries"
        if each.differences:
            line += f", {each.differences:,} differences"
        say(f"{each.source} to {each.target}: {line}")
    done = [each for each in moved if each.is_done]
    entries = sum(each.entries for each in done)
    say(f"{len(done):,} of {len(pairs):,} are migrated and equal; {entries:,} entries")
    if len(done) < len(pairs):
        raise DataError(f"{len(pairs) - len(done):,} of {len(pairs):,} sources are not migrated")
    return moved


def migrate_group(work: tuple[Sequence[Pair], MigrateOptions]) -> Iterator[Moved]:
    """Run in a task: migrate the sources of one target."""
    pairs, options = work
    for pair in pairs:
        yield _migrate_pair(pair, options)


def _migrate_pair(pair: Pair, options: MigrateOptions) -> Moved:
    from kvstream import migration

    shown = _shown(pair.source), _shown(pair.target)
    try:
        source = migration.parse_place(pair.source)
        target = migration.parse_place(pair.target, create=True)
        report = migration.run(
            source,
            target,
            match=options.match,
            allow_loss=options.allow_loss,
            state=options.state,
        )
        verified = migration.verify(source, target, match=options.match)
    except (KVStreamError, OSError) as error:
        return Moved(*shown, error=f"{type(error).__name__}: {error}")
    differing = [each for each in verified.differences if not (each.may_move or _is_extra(each))]
    return Moved(*shown, report.keys, report.entries, len(differing))


def _shown(address: str) -> str:
    """Return an address without user and password."""
    return re.sub(r"//[^@/]*@", "//", address)


def _is_extra(difference: "Difference") -> bool:
    """Tell whether only the target has the key: another source may have brought it."""
    from kvstream.migration.differences import ABSENT

    return difference.what == "key" and difference.source == ABSENT
