"""Copying of one key from a source to a target; an existing key is compared first."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvstream.errors import InvalidArgument, KVStreamError, RequestError, shown
from kvstream.migration import differences
from kvstream.migration.differences import Mismatch, Window
from kvstream.migration.items import STREAM, SUPPORTED, Counted, Done, Item, Source, Target, Watch
from kvstream.migration.verification import GONE, differing, examine, outside_entries, pages_in
from kvstream.operations import functions
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
    """Its type is not supported."""
    EXPIRED = "expired"
    """It had expired."""
    GONE = "gone"
    """It was deleted before it was read."""


class LossRefused(RequestError):
    """A part of a stream would be lost, and that loss is not allowed."""

    def __init__(self, refused: Mapping[bytes, list[Loss]]) -> None:
        self.keys = list(refused)
        """The keys found so far that would lose something."""
        self.losses = [loss for losses in refused.values() for loss in losses]
        texts = {loss.name: loss.text for loss in self.losses}
        lost = "; ".join(f"{name}: {text}" for name, text in texts.items())
        some = ", ".join(repr(key) for key in self.keys[:_KEYS_SHOWN])
        more = ", ..." if len(self.keys) > _KEYS_SHOWN else ""
        super().__init__(
            f"of {some}{more} would be lost {lost} (--allow-loss {','.join(texts)} allows it, "
            "plan shows each key)"
        )


@dataclass(slots=True)
class Carried:
    """The result of one key."""

    db: int
    key: bytes
    kind: str
    outcome: Outcome
    entries: int = 0
    bytes: int = 0
    resumed: int = 0
    """Entries that an interrupted run had copied."""
    losses: list[Loss] = field(default_factory=list)
    corrections: list[str] = field(default_factory=list)
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
    watch: Watch = lambda entries, bytes: None

    def refused(self, losses: Iterable[Loss]) -> list[Loss]:
        """Return the losses that are not allowed."""
        return [loss for loss in losses if loss.name not in self.allowed]


def allowed_of(names: Iterable[str]) -> frozenset[str]:
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
    if item.kind not in SUPPORTED:
        carried.outcome = Outcome.SKIPPED
        return carried
    if item.is_expired:
        carried.outcome = Outcome.EXPIRED
        return carried
    existing = None if target.existing is None else target.existing.item(item.db, item.key)
    if existing is not None:
        if item.value is not None:
            _keep_value(item)
        if item.rereadable or not options.replace:
            _compare(item, existing, carried, options)
            if carried.outcome is not Outcome.DIFFERENT or not options.replace:
                return carried
        carried.outcome, carried.reported = Outcome.REPLACED, []
    try:
        (_put_stream if item.kind == STREAM else _put_string)(item, target, options, carried)
    except KVStreamError as error:
        error.add_note(f"database {item.db}, key {item.key!r}")
        raise
    return carried


@dataclass(slots=True)
class CarriedFunctions:
    """The libraries of functions of a source, and what was done with them."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    reported: list[str] = field(default_factory=list)
    """Why some are not at the target."""


def copy_functions(source: Source, target: Target, replace: bool) -> CarriedFunctions:
    """Copy the libraries of functions; one that a target does not take is reported."""
    carried = CarriedFunctions()
    texts = source.functions()
    present = [] if target.existing is None or not texts else target.existing.functions()
    existing = functions.by_name(present)
    for text in texts:
        try:
            name = functions.parse(text).name
            there = existing.get(name)
            if there == text:
                outcome = Outcome.SAME
            elif there is not None and not replace:
                outcome = Outcome.DIFFERENT
                carried.reported.append(f"function library {shown(name)} differs at the target")
            else:
                target.put_function(text, replace=replace)
                outcome = Outcome.COPIED if there is None else Outcome.REPLACED
        except RequestError as error:
            outcome = Outcome.SKIPPED
            carried.reported.append(f"a function library was not copied: {error}")
        carried.outcomes[outcome] += 1
    return carried


def _put_stream(item: Item, target: Target, options: CopyOptions, carried: Carried) -> None:
    content = Counted(item.content(), options.watch)

    def consent(losses: list[Loss]) -> None:
        carried.losses = losses
        if refused := options.refused(losses):
            raise LossRefused({item.key: refused})

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


def _keep_value(item: Item) -> None:
    """Read a string once, so that it can be compared and then copied."""
    value = None if item.value is None else item.value()
    item.value, item.rereadable = lambda: value, True


def _compare(item: Item, existing: Item, carried: Carried, options: CopyOptions) -> None:
    """Compare a key with the existing one, and record the differences."""
    mine, theirs = examine(item, options.watch), examine(existing)
    carried.entries = mine.entries
    carried.corrections = mine.corrections
    if mine.kind == GONE:
        carried.outcome = Outcome.GONE
        return
    outside = [each for each in outside_entries(mine, theirs, 0) if not each.may_move]
    windows = differing(mine, theirs) if mine.kind == theirs.kind else []
    if windows and item.between is not None:
        outside += differences.entries(pages_in(item, windows), pages_in(existing, windows))
    else:
        outside += map(_window_mismatch, windows)
    carried.reported = outside[:SHOWN_MAX]
    carried.outcome = Outcome.DIFFERENT if outside else Outcome.SAME


def _window_mismatch(window: Window) -> Mismatch:
    first, last = map(StreamID.unpack, window)
    return Mismatch(f"entries {first} to {last}", "differ", "differ")
