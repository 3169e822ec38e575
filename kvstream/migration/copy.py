"""Copying of one key from a source to a target; an existing key is compared first."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvstream.errors import InvalidArgument, KVStreamError, RequestError, quote
from kvstream.migration import differences
from kvstream.migration.differences import Mismatch, Window
from kvstream.migration.items import (
    STREAM,
    STRING,
    SUPPORTED,
    Done,
    Item,
    PlannedTarget,
    Target,
    Watch,
    keep_value,
    watch_nothing,
)
from kvstream.migration.verification import GONE, differing, examine, outside_entries, pages_in
from kvstream.rdb.versions import LOSSES, Loss
from kvstream.types.ids import StreamID

_KEYS_SHOWN = 3
SHOWN_MAX = 10
"""Most differences of one key that are reported."""


class Outcome(StrEnum):
    """What became of a key."""

    COPIED = "copied"
    REPLACED = "replaced"
    SAME = "same"
    """The target had an equal key."""
    DIFFERENT = "different"
    """The target had a different key, which was left."""
    SKIPPED = "skipped"
    """The target cannot hold it."""
    EXPIRED = "expired"
    """It had expired."""
    GONE = "gone"
    """It was deleted before it was read."""


class LossCount:
    """Losses of many keys and libraries, counted, to be told in a few lines."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        """The first keys and libraries that lose something, REFUSED_MAX at most."""
        self.losses: list[Loss] = []
        """Their losses."""
        self._counts: dict[tuple[str, str], Counter[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, key: bytes, losses: Iterable[Loss]) -> None:
        """Count the losses of a key."""
        for loss in (found := list(losses)):
            counts = self._counts.setdefault((loss.name, loss.text), Counter())
            counts[loss.what] += 1
        if found and len(self.keys) < REFUSED_MAX:
            self.keys.append(key)
            self.losses += found

    def lines(self) -> list[tuple[str, str]]:
        """Return the name of each loss, with what is lost and why."""
        return [
            (name, f"{list_counts(counts)}: {text}" if any(counts) else text)
            for (name, text), counts in self._counts.items()
        ]


def list_counts(counts: Mapping[str, int]) -> str:
    """Return numbers of keys, such as ``hash (3 keys), list (1 key)``."""
    return ", ".join(f"{what} ({n} key{'s'[: n != 1]})" for what, n in sorted(counts.items()))


REFUSED_MAX = 1000
"""Most keys that LossRefused names."""


class LossRefused(RequestError):
    """A part of a stream, a key or a library would be lost, and that loss is not allowed."""

    def __init__(self, refused: LossCount) -> None:
        self.keys = refused.keys
        """The keys found so far that would lose something."""
        self.losses = refused.losses
        lines = refused.lines()
        lost = "; ".join(f"{name}: {text}" for name, text in lines)
        names = ",".join(dict.fromkeys(name for name, _ in lines))
        some = ", ".join(quote(key) for key in self.keys[:_KEYS_SHOWN])
        more = ", ..." if len(self.keys) > _KEYS_SHOWN else ""
        super().__init__(
            f"data of {some}{more} would be lost: {lost} (--allow-loss {names} allows it, "
            "plan shows each key)"
        )


@dataclass(slots=True)
class Carried:
    """The result of one key."""

    db: int
    """The number of its database."""
    key: bytes
    """Its name."""
    kind: str
    """The type, as TYPE names it."""
    outcome: Outcome
    """What became of it."""
    entries: int = 0
    """The number of entries of a stream."""
    bytes: int = 0
    """Bytes of the value."""
    resumed: int = 0
    """Entries that an interrupted run had copied."""
    losses: list[Loss] = field(default_factory=list)
    """What of it the target does not have."""
    corrections: list[str] = field(default_factory=list)
    """Wrong counters of the source, and what they became."""
    reported: list[Mismatch] = field(default_factory=list)
    """The differences to an existing key."""


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """How keys are copied."""

    replace: bool = False
    """Replace existing keys that differ."""
    allowed: frozenset[str] = frozenset()
    """Names of losses that are allowed."""
    identity: bytes = b""
    """Identifies the migration: a run resumes what an earlier one with it has left."""
    watch: Watch = watch_nothing

    def select_refused(self, losses: Iterable[Loss]) -> list[Loss]:
        """Return the losses that are not allowed."""
        return [loss for loss in losses if loss.name not in self.allowed]

    def consent(self, key: bytes, losses: Iterable[Loss]) -> None:
        """Raise LossRefused for losses of a key that are not allowed."""
        count = LossCount()
        count.add(key, self.select_refused(losses))
        if count:
            raise LossRefused(count)


_OTHER = "kvstream has streams and plain strings only"
_COMPUTED = "only the server can compute such strings of its log: take an RDB file or the server"


def find_exclusion(item: Item, target: PlannedTarget | None) -> Loss | None:
    """Return why a key as a whole cannot be migrated; None if it can."""
    if item.kind not in SUPPORTED:
        is_computed = item.kind.startswith(f"{STRING} ")
        text = _COMPUTED if is_computed else _OTHER
        return Loss("other-types", 1, text, item.kind or "unknown")
    return None if target is None else target.find_exclusion(item)


def parse_losses(names: Iterable[str]) -> frozenset[str]:
    """Return names of losses as a set; raise InvalidArgument for an unknown one."""
    allowed = frozenset(names)
    if unknown := allowed - LOSSES.keys():
        raise InvalidArgument(
            f"unknown loss {', '.join(map(repr, sorted(unknown)))}: use {', '.join(LOSSES)}"
        )
    return allowed


def copy_key(item: Item, target: Target, options: CopyOptions) -> Carried:
    """Copy one key to a target; raises LossRefused before the key is visible there."""
    carried = Carried(item.db, item.key, item.kind, Outcome.COPIED)
    if item.is_expired:
        carried.outcome = Outcome.EXPIRED
        return carried
    if (loss := find_exclusion(item, target)) is not None:
        options.consent(item.key, [loss])
        carried.outcome, carried.losses = Outcome.SKIPPED, [loss]
        return carried
    existing = None if target.existing is None else target.existing.item(item.db, item.key)
    if existing is not None:
        if item.value is not None:
            keep_value(item)
        if item.rereadable or not options.replace:
            _compare(item, existing, target, carried, options)
            if carried.outcome is not Outcome.DIFFERENT or not options.replace:
                return carried
        carried.outcome, carried.reported, carried.losses = Outcome.REPLACED, [], []
    try:
        (_put_stream if item.kind == STREAM else _put_string)(item, target, options, carried)
    except KVStreamError as error:
        error.add_note(f"database {item.db}, key {item.key!r}")
        raise
    return carried


def _put_stream(item: Item, target: Target, options: CopyOptions, carried: Carried) -> None:
    content = item.content(options.watch)

    def consent(losses: list[Loss]) -> None:
        carried.losses = losses
        options.consent(item.key, losses)

    replace = carried.outcome is Outcome.REPLACED
    label = b"%d %b %b" % (item.db, options.identity, item.key)
    done: Done = target.put_stream(item, content, label=label, replace=replace, consent=consent)
    carried.entries, carried.bytes = content.entries, content.bytes
    carried.corrections, carried.resumed = done.corrections, done.resumed
    if content.inexact_ms:
        carried.corrections = [
            *carried.corrections,
            "delivery times are computed from the server's clock: they may be off by "
            f"{content.inexact_ms} ms",
        ]


def _put_string(item: Item, target: Target, options: CopyOptions, carried: Carried) -> None:
    value = None if item.value is None else item.value()
    if value is None:
        carried.outcome = Outcome.GONE
        return
    target.put_string(item, value, replace=carried.outcome is Outcome.REPLACED)
    carried.bytes = len(value)
    options.watch(0, len(value))


def _compare(
    item: Item, existing: Item, target: Target, carried: Carried, options: CopyOptions
) -> None:
    """Compare a key with the existing one, and record the differences.

    What the target cannot hold is a loss, and no difference.
    """
    mine, theirs = examine(item, options.watch), examine(existing)
    if mine.state is not None:
        carried.losses = target.losses(mine.state)
        target.reduce(mine.state)
    carried.entries = mine.entries
    carried.corrections = mine.corrections
    if mine.kind == GONE:
        carried.outcome = Outcome.GONE
        return
    outside = [each for each in outside_entries(mine, theirs, 0) if not each.may_move]
    windows = differing(mine, theirs) if mine.kind == theirs.kind else []
    if windows and item.read_range is not None:
        outside += differences.entries(pages_in(item, windows), pages_in(existing, windows))
    else:
        outside += map(_window_mismatch, windows)
    carried.reported = outside[:SHOWN_MAX]
    carried.outcome = Outcome.DIFFERENT if outside else Outcome.SAME
    if outside:
        carried.losses = []


def _window_mismatch(window: Window) -> Mismatch:
    first, last = map(StreamID.unpack, window)
    return Mismatch(f"entries {first} to {last}", "differ", "differ")
