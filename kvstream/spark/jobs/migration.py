"""``migrate``: many sources into many targets in parallel, with groups and pending entries.

Several tasks migrate each long stream of a server first (``splitting``). Then one task migrates and
compares all other streams of the sources of one target, one source after another, since a store has
one writer. Each pair's progress is recorded where its task ran, so the job may be run again after
any failure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvstream.errors import DataError, InvalidArgument, KVStreamError
from kvstream.spark.jobs import splitting
from kvstream.spark.jobs.places import Say, place
from kvstream.spark.jobs.splitting import SPLIT_ENTRIES, LongStream
from kvstream.spark.jobs.verification import verify
from kvstream.types.urls import show_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kvstream.migration import Difference


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and its target, as arguments of ``kvstream migrate``."""

    source: str
    """The place that is read."""
    target: str
    """The place that is written."""


@dataclass(frozen=True, slots=True)
class MigrateOptions:
    """The options of all pairs."""

    match: tuple[str, ...] = ()
    allow_loss: tuple[str, ...] = ()
    state: str | None = None
    """The folder for the progress of each pair; None: the default of the user who runs the task."""
    without: frozenset[tuple[int, bytes]] = frozenset()
    """Databases and keys that are migrated already."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of one pair."""

    source: str
    """The address without a password."""
    target: str
    """The address of the target, without a password."""
    keys: int = 0
    """The keys at the target now."""
    entries: int = 0
    """The entries at the target now."""
    differences: int = 0
    """The differences found by the comparison."""
    error: str = ""
    """Why it has failed; empty: it has not."""

    @property
    def is_done(self) -> bool:
        """Whether all was moved, and nothing differs."""
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
    """Migrate the streams of each pair's source to its target, and compare them.

    Several tasks migrate and compare each stream of a server that has at least ``split`` entries;
    0: none. Pairs of one target run one after another; others run in parallel, as many as Spark has
    cores. Raises DataError in the end if a pair failed or differs; the others are migrated.
    """
    if not pairs:
        raise InvalidArgument("name a source and a target")
    options = MigrateOptions(tuple(match), tuple(allow_loss), state)
    say(f"{len(pairs):,} sources to {len({pair.target for pair in pairs}):,} targets")
    long = [_split(spark, pair, options, split, say) for pair in pairs]
    groups: dict[str, list[tuple[Pair, MigrateOptions]]] = {}
    for pair, streams in zip(pairs, long, strict=True):
        without = frozenset((stream.db, stream.key) for stream in streams)
        work = pair, replace(options, without=without)
        groups.setdefault(pair.target, []).append(work)
    tasks = spark.sparkContext.parallelize([*groups.values()], len(groups))
    order = [pair for group in groups.values() for pair, _ in group]
    results = dict(zip(order, tasks.flatMap(migrate_group).collect(), strict=True))
    moved = [
        _with_split(spark, results[pair], streams, say)
        for pair, streams in zip(pairs, long, strict=True)
    ]
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


def _split(
    spark: "SparkSession", pair: Pair, options: MigrateOptions, least: int, say: Say
) -> list[LongStream]:
    """Migrate the long streams of a source and return them; none if that fails for one of them.

    None either if the migration of the pair will be refused for what it loses.
    """
    from kvstream import migration

    allowed = frozenset(options.allow_loss)
    try:
        source = migration.parse_place(pair.source)
        target = migration.parse_place(pair.target, create=True)
        planned = migration.plan(source, target, match=options.match) if least else iter(())
        if any(loss.name not in allowed for each in planned for loss in each.losses):
            return []
        streams = splitting.long_streams(pair.source, pair.target, options.match, allowed, least)
        for stream in streams:
            splitting.migrate_stream(spark, stream, say)
    except (KVStreamError, OSError) as error:
        say(f"{show_place(pair.source)}: no streams are split: {type(error).__name__}: {error}")
        return []
    return streams


def _with_split(
    spark: "SparkSession", moved: Moved, streams: Sequence[LongStream], say: Say
) -> Moved:
    """Compare the split streams of a pair, and add them to its result."""
    if moved.error:
        return moved
    for stream in streams:
        places = (place(each, stream.db) for each in (stream.source, stream.target))
        verified = verify(spark, *places, streams=[stream.key.decode()], say=say)
        differing = verified.ranges - verified.equal + splitting.state_differences(stream)
        moved = replace(
            moved,
            keys=moved.keys + 1,
            entries=moved.entries + verified.target,
            differences=moved.differences + differing,
        )
    return moved


def migrate_group(work: list[tuple[Pair, MigrateOptions]]) -> Iterator[Moved]:
    """Run in a task: migrate the sources of one target."""
    for pair, options in work:
        yield _migrate_pair(pair, options)


def _migrate_pair(pair: Pair, options: MigrateOptions) -> Moved:
    from kvstream import migration

    shown = show_place(pair.source), show_place(pair.target)
    try:
        source = migration.parse_place(pair.source)
        target = migration.parse_place(pair.target, create=True)
        report = migration.run(
            source,
            target,
            match=options.match,
            without=options.without,
            allow_loss=options.allow_loss,
            state=options.state,
        )
        verified = migration.verify(source, target, match=options.match, without=options.without)
    except (KVStreamError, OSError) as error:
        return Moved(*shown, error=f"{type(error).__name__}: {error}")
    differing = [each for each in verified.differences if not (each.may_move or _is_extra(each))]
    return Moved(*shown, report.keys, report.entries, len(differing))


def _is_extra(difference: "Difference") -> bool:
    """Return whether only the target has the key: another source may have brought it."""
    from kvstream.migration.differences import ABSENT

    return difference.what == "key" and difference.source == ABSENT
