"""One key from its source to its target: what is equal stays, what differs is reported.

It knows no place, no file of progress and no order of keys.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvstream.errors import InvalidArgument, KVStreamError, RequestError
from kvstream.migration.differences import Told, Window
from kvstream.migration.differences import entries as entry_differences
from kvstream.migration.items import CARRIED, STREAM, Counted, Done, Item, Target, Watch
from kvstream.migration.verification import GONE, differing, examine, outside_entries, pages_in
from kvstream.rdb.versions import LOSSES, Loss
from kvstream.types.ids import StreamID

_KEYS_SHOWN = 3
TOLD_MAX = 10
"""Differences of one key that are reported."""


class Outcome(StrEnum):
    """What became of a key."""

    COPIED = "copied"
    REPLACED = "replaced"
    SAME = "same"
    """It was there already, equal in all."""
    DIFFERENT = "different"
    """It was there already, differs, and has been left as it was."""
    SKIPPED = "skipped"
    """It is of a kind that is not carried."""
    EXPIRED = "expired"
    """Its time has come."""
    GONE = "gone"
    """It went away while it was about to be read."""


class LossRefused(RequestError):
    """Something would be lost that nobody has allowed to be."""

    def __init__(self, refused: Mapping[bytes, list[Loss]]) -> None:
        self.keys = list(refused)
        """Those that would lose something, or as many of them as were looked at."""
        self.losses = [loss for losses in refused.values() for loss in losses]
        texts = {loss.name: loss.text for loss in self.losses}
        lost = "; ".join(f"{name}: {text}" for name, text in texts.items())
        shown = ", ".join(repr(key) for key in self.keys[:_KEYS_SHOWN])
        more = ", ..." if len(self.keys) > _KEYS_SHOWN else ""
        super().__init__(
            f"of {shown}{more} would be lost {lost} (--allow-loss {','.join(texts)} allows it, "
            "plan shows each key)"
        )


@dataclass(slots=True)
class Carried:
    """A key that has been dealt with."""

    db: int
    key: bytes
    kind: str
    outcome: Outcome
    entries: int = 0
    bytes: int = 0
    resumed: int = 0
    """Entries that an interrupted run had brought there."""
    losses: list[Loss] = field(default_factory=list)
    corrections: list[str] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    """What differs."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How keys are carried."""

    replace: bool = False
    """Put keys in the place of those that are there and differ."""
    allowed: frozenset[str] = frozenset()
    """Names of losses."""
    identity: bytes = b""
    """Of the migration: what it has left unfinished is known by it."""
    watch: Watch = lambda entries, bytes: None


def allowed_of(names: Iterable[str]) -> frozenset[str]:
    """Return names of losses; InvalidArgument for one that no loss has."""
    allowed = frozenset(names)
    if unknown := allowed - LOSSES.keys():
        raise InvalidArgument(
            f"no loss is called {', '.join(map(repr, sorted(unknown)))}: they are "
            f"{', '.join(LOSSES)}"
        )
    return allowed


def carry(item: Item, target: Target, manner: Manner) -> Carried:
    """Bring one key to a target; raises LossRefused before any of it can be seen there."""
    carried = Carried(item.db, item.key, item.kind, Outcome.COPIED)
    if item.kind not in CARRIED:
        carried.outcome = Outcome.SKIPPED
        return carried
    if item.is_over:
        carried.outcome = Outcome.EXPIRED
        return carried
    existing = None if target.existing is None else target.existing.item(item.db, item.key)
    if existing is not None:
        if item.value is not None:
            _keep_value(item)
        if item.again or not manner.replace:
            _compare(item, existing, carried, manner)
            if carried.outcome is not Outcome.DIFFERENT or not manner.replace:
                return carried
        carried.outcome, carried.told = Outcome.REPLACED, []
    try:
        (_put_stream if item.kind == STREAM else _put_string)(item, target, manner, carried)
    except KVStreamError as error:
        error.add_note(f"database {item.db}, key {item.key!r}")
        raise
    return carried


def _put_stream(item: Item, target: Target, manner: Manner, carried: Carried) -> None:
    content = Counted(item.content(), manner.watch)

    def consent(losses: list[Loss]) -> None:
        carried.losses = losses
        refused = [loss for loss in losses if loss.name not in manner.allowed]
        if refused:
            raise LossRefused({item.key: refused})

    replace = carried.outcome is Outcome.REPLACED
    label = b"%d %b %b" % (item.db, manner.identity, item.key)
    done: Done = target.put_stream(item, content, label=label, replace=replace, consent=consent)
    carried.entries, carried.bytes = content.entries, content.bytes
    carried.corrections, carried.resumed = done.corrections, done.resumed
    if content.inexact_ms:
        carried.corrections = [
            *carried.corrections,
            "times of delivery were counted back from the server's clock: they may be off by "
            f"{content.inexact_ms} ms",
        ]


def _put_string(item: Item, target: Target, manner: Manner, carried: Carried) -> None:
    value = None if item.value is None else item.value()
    if value is None:
        carried.outcome = Outcome.GONE
        return
    target.put_string(item, value, replace=carried.outcome is Outcome.REPLACED)
    carried.bytes = len(value)
    manner.watch(0, len(value))


def _keep_value(item: Item) -> None:
    """Read a string, once: it is compared, and put where it differs."""
    value = None if item.value is None else item.value()
    item.value, item.again = lambda: value, True


def _compare(item: Item, existing: Item, carried: Carried, manner: Manner) -> None:
    """Compare a key with the one that is there, and note what differs."""
    mine, theirs = examine(item, manner.watch), examine(existing)
    carried.entries = mine.entries
    carried.corrections = mine.corrections
    if mine.kind == GONE:
        carried.outcome = Outcome.GONE
        return
    told = [each for each in outside_entries(mine, theirs, 0) if not each.may_move]
    windows = differing(mine, theirs) if mine.kind == theirs.kind else []
    if windows and item.between is not None:
        told += entry_differences(pages_in(item, windows), pages_in(existing, windows))
    else:
        told += map(_window_told, windows)
    carried.told = told[:TOLD_MAX]
    carried.outcome = Outcome.DIFFERENT if told else Outcome.SAME


def _window_told(window: Window) -> Told:
    first, last = map(StreamID.unpack, window)
    return Told(f"entries {first} to {last}", "differ", "differ")
