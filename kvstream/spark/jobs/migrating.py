"""``migrate``: a fleet of servers into stores, in parallel, groups and pending entries included.

Long streams of servers come first, each by ranges of IDs (``splitting``). Then a task brings the
rest of the sources of one target, one after another, as ``kvstream migrate run`` does, and
compares them: a store has one writer. How far each pair came is kept where the task ran, so that
the job may be run again after any failure. It knows pairs of places, not how they are carried.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvstream.errors import DataError, InvalidArgument, KVStreamError
from kvstream.spark.jobs import joining
from kvstream.spark.jobs.joining import SPLIT_ENTRIES, Long
from kvstream.spark.jobs.places import Say, place
from kvstream.spark.jobs.verifying import verify

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
    without: frozenset[tuple[int, bytes]] = frozenset()
    """Keys that were brought already, with their databases."""


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
    split: int = SPLIT_ENTRIES,
    say: Say = print,
) -> list[Moved]:
    """Bring the streams of each pair's source to its target, and compare them.

    Streams of servers that have ``split`` entries are brought into stores by several tasks, and
    compared by ranges; 0: none.
    Pairs of one target run one after another, all others side by side, as many as Spark has cores.
    Raises DataError in the end where some pair failed or differs; the others are done.
    """
    if not pairs:
        raise InvalidArgument("name a source and a target")
    manner = Manner(tuple(match), tuple(allow_loss), state)
    groups: dict[str, list[tuple[Pair, Manner]]] = {}
    say(f"{len(pairs):,} sources to {len({pair.target for pair in pairs}):,} targets")
    longs = [_brought(spark, pair, manner, split, say) for pair in pairs]
    for pair, brought in zip(pairs, longs, strict=True):
        without = frozenset((each.db, each.key) for each in brought)
        work = pair, replace(manner, without=without)
        groups.setdefault(pair.target, []).append(work)
    tasks = spark.sparkContext.parallelize([*groups.values()], len(groups))
    order = [pair for group in groups.values() for pair, _ in group]
    found = dict(zip(order, tasks.flatMap(bring).collect(), strict=True))
    moved = [
        _with(spark, found[pair], brought, say) for pair, brought in zip(pairs, longs, strict=True)
    ]
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


def _brought(spark: "SparkSession", pair: Pair, manner: Manner, least: int, say: Say) -> list[Long]:
    """Bring the long streams of a source, and return them; of one that fails the task will tell."""
    try:
        found = joining.long_streams(
            pair.source, pair.target, manner.match, frozenset(manner.allow_loss), least
        )
        for stream in found:
            joining.bring(spark, stream, say)
    except (KVStreamError, OSError) as error:
        say(f"{_shown(pair.source)}: no streams are split: {type(error).__name__}: {error}")
        return []
    return found


def _with(spark: "SparkSession", moved: Moved, brought: Sequence[Long], say: Say) -> Moved:
    """Compare the long streams of a pair, and return what became of it together with them."""
    for stream in brought:
        if moved.error:
            return moved
        places = (place(each, stream.db) for each in (stream.source, stream.target))
        found = verify(spark, *places, streams=[stream.key.decode()], say=say)
        moved = replace(
            moved,
            keys=moved.keys + 1,
            entries=moved.entries + found.target,
            differences=moved.differences
            + (found.ranges - found.equal)
            + joining.differing(stream),
        )
    return moved


def bring(work: list[tuple[Pair, Manner]]) -> Iterator[Moved]:
    """Run in a task: migrate the sources of one target."""
    for pair, manner in work:
        yield _moved(pair, manner)


def _moved(pair: Pair, manner: Manner) -> Moved:
    from kvstream import migration

    shown = _shown(pair.source), _shown(pair.target)
    try:
        here = migration.parse_place(pair.source)
        there = migration.parse_place(pair.target, create=True)
        report = migration.run(
            *(here, there),
            match=manner.match,
            without=manner.without,
            allow_loss=manner.allow_loss,
            state=manner.state,
        )
        found = migration.verify(here, there, match=manner.match, without=manner.without)
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
