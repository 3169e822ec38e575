"""Results of the library's methods, decoded to text in a store that has ``decode=True``.

Operations return names and fields as bytes. Store, Stream, Group and Consumer pass every result
through the ``Decoder`` of their store, which returns it unchanged if the store has bytes.
"""

import codecs
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, Literal, cast, overload

from kvstream.errors import InvalidArgument, NotText, quote, show
from kvstream.layout.keys import key_of
from kvstream.layout.rows import Rows
from kvstream.operations.delivery import dead
from kvstream.operations.queues.info import GroupQueue
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.records import (
    ConsumerDetail,
    ConsumerInfo,
    DeadLetter,
    DelayedMessage,
    Entry,
    EntryFields,
    GroupDetail,
    GroupInfo,
    HistoryEntry,
    KeyInfo,
    PendingEntry,
    PendingSummary,
    RepeatedFields,
    S,
    Schedule,
    StreamDetail,
    StreamInfo,
    fields_of,
)

_UTF8 = "utf-8"
_new_entry = partial(tuple.__new__, Entry)


class _Texts(dict[bytes, str]):
    """Decodes entries; names that entries share are decoded once."""

    def __init__(self, errors: str) -> None:
        self._errors = errors

    def __missing__(self, name: bytes) -> str:
        text = self[name] = name.decode(_UTF8, self._errors)
        return text

    def entry(self, entry: Any) -> Any:
        eid, fields, idle_ms, deliveries = entry
        if fields is None:
            return entry
        errors = self._errors
        text: EntryFields[str] = EntryFields()
        if errors == "strict":  # the argument would take half of the time
            for name, value in fields.items():
                text[self[name]] = value.decode()
        else:
            for name, value in fields.items():
                text[self[name]] = value.decode(_UTF8, errors)
        # Repeated names, or two names of which ``errors`` makes one.
        if type(fields) is RepeatedFields or len(text) < len(fields):
            text = RepeatedFields(tuple(part.decode(_UTF8, errors) for part in entry.flat))
        return _new_entry((eid, text, idle_ms, deliveries))


class Decoder(Generic[S]):
    """Decodes the results of one store. A ``key`` is the qualified name of a stream.

    Its methods raise NotText for bytes that are not UTF-8, unless ``errors`` says otherwise.
    """

    __slots__ = ("errors",)

    def __init__(self, errors: str | None) -> None:
        """``errors`` is that of ``bytes.decode``; None leaves bytes as they are."""
        self.errors = errors

    def name(self, raw: bytes, what: str = "the name") -> S:
        """Return the name of a stream, group or consumer."""
        return self._text(raw, what) if self.errors is not None else cast(S, raw)

    def _text(self, raw: bytes, what: str) -> S:
        try:
            return cast(S, raw.decode(_UTF8, cast(str, self.errors)))
        except UnicodeDecodeError:
            raise NotText(f"{what} is not UTF-8: {show(raw)}") from None

    # --- entries --------------------------------------------------------------------------------

    def entries(self, key: bytes, undecoded: Iterable[Entry]) -> list[Entry[S]]:
        """Return entries of a stream."""
        if type(undecoded) is list:
            entries: Any = undecoded
        else:
            entries = undecoded.entries() if type(undecoded) is Rows else list(undecoded)
        if self.errors is not None:
            texts = _Texts(self.errors)
            try:
                entries = [texts.entry(entry) for entry in entries]
            except UnicodeDecodeError:
                raise self._text_error(key, entries) from None
        return entries  # type: ignore[no-any-return]  # a cast takes a microsecond

    def history(self, key: bytes, undecoded: Iterable[HistoryEntry]) -> list[HistoryEntry[S]]:
        """Return pending entries of a stream, some of them deleted."""
        return cast(list[HistoryEntry[S]], self.entries(key, cast(Iterable[Entry], undecoded)))

    def _fields(self, key: bytes, fields: Any, what: str) -> Any:
        """Return the fields of something that has no ID yet, which ``what`` names."""
        if self.errors is None:
            return fields
        entry = Entry(MIN_ID, fields)
        try:
            return _Texts(self.errors).entry(entry).fields
        except UnicodeDecodeError:
            raise self._text_error(key, [entry], what) from None

    def _text_error(self, key: bytes, entries: Iterable[Entry], what: str = "") -> NotText:
        """Return the error of the first field that is not text."""
        for entry in entries:
            for name, value in entry.pairs:
                if not self._is_text(name):
                    which = f"the field name {show(name)} is not UTF-8"
                elif not self._is_text(value):
                    which = f"the value of field {quote(name)} is not UTF-8: {show(value)}"
                else:
                    continue
                what = what or f"entry {entry.id}"
                return NotText(
                    f"{what} of stream {quote(key_of(key))}: {which}; open the store "
                    'with errors="replace" or without decode'
                )
        raise AssertionError("every field is text")

    def _is_text(self, raw: bytes) -> bool:
        try:
            raw.decode(_UTF8, cast(str, self.errors))
        except UnicodeDecodeError:
            return False
        return True

    def optional(self, key: bytes, entry: Entry | None) -> Entry[S] | None:
        return None if entry is None else self.entries(key, [entry])[0]

    def delayed_message(self, key: bytes, message: Any) -> DelayedMessage[S]:
        """Return a message of ``operations.delayed`` that is not due yet."""
        what = f"message {message.ticket}"
        return DelayedMessage(message.ticket, self._fields(key, message.fields, what))

    def schedule(self, key: bytes, schedule: Any) -> Schedule[S]:
        """Return a schedule of ``operations.schedules``."""
        what = f"schedule {quote(schedule.name)}"
        return Schedule(
            name=self.name(schedule.name),
            cron=schedule.cron,
            tz=schedule.zone or "UTC",
            misfire=schedule.misfire.lower(),
            most=schedule.most,
            next=_moment(schedule.next_ms),
            last=_moment(schedule.last_ms),
            error=schedule.error,
            fields=self._fields(key, fields_of(schedule.flat), what),
        )

    # --- records --------------------------------------------------------------------------------

    def pending_entries(self, entries: list[PendingEntry]) -> list[PendingEntry[S]]:
        if self.errors is None:
            return cast(list[PendingEntry[S]], entries)
        return [
            PendingEntry(eid, self.name(owner), idle_ms, deliveries)
            for eid, owner, idle_ms, deliveries in entries
        ]

    def pending_summary(self, summary: PendingSummary[Any]) -> PendingSummary[S]:
        return replace(summary, consumers={self.name(k): n for k, n in summary.consumers.items()})

    def group_info(self, info: GroupInfo[Any]) -> GroupInfo[S]:
        return replace(info, name=self.name(info.name))

    def consumer_info(self, info: ConsumerInfo[Any]) -> ConsumerInfo[S]:
        return replace(info, name=self.name(info.name))

    def key_info(self, info: KeyInfo) -> KeyInfo[S]:
        return KeyInfo(self.name(info.key, "the key"), *info[1:])

    def stream_info(self, key: bytes, info: StreamInfo[Any]) -> StreamInfo[S]:
        first, last = info.first_entry, info.last_entry
        return replace(
            info, first_entry=self.optional(key, first), last_entry=self.optional(key, last)
        )

    def stream_detail(self, key: bytes, detail: StreamDetail) -> StreamDetail[S]:
        return StreamDetail(
            self.stream_info(key, detail.info),
            self.entries(key, detail.entries),
            [self._group_detail(group) for group in detail.groups],
        )

    def _group_detail(self, detail: GroupDetail[Any]) -> GroupDetail[S]:
        return replace(
            detail,
            name=self.name(detail.name),
            pending=self._pending_details(detail.pending),
            consumers=[self._consumer_detail(consumer) for consumer in detail.consumers],
        )

    def _consumer_detail(self, detail: ConsumerDetail[Any]) -> ConsumerDetail[S]:
        pending = self._pending_details(detail.pending)
        return replace(detail, name=self.name(detail.name), pending=pending)

    def _pending_details(self, details: list[Any]) -> list[Any]:
        return [entry._replace(consumer=self.name(entry.consumer)) for entry in details]


def dead_letter_of(entry: Entry[S]) -> DeadLetter[S] | None:
    """Return an entry of a stream of dead letters as a record; None if it is not one.

    Any program may add entries there.
    """
    flat = entry.flat
    raw = [part.encode("utf-8", "replace") if isinstance(part, str) else part for part in flat]
    block = dead.origin(raw)
    if not block:
        return None
    own = flat[: len(flat) - 2 * len(block)]
    origin, _, group, consumer, _, _, _, error, traceback = flat[len(own) + 1 :: 2]
    try:
        return DeadLetter(
            id=entry.id,
            fields=fields_of(own),
            origin=origin,
            origin_id=StreamID.parse(block[b"dead:id"]),
            group=group,
            consumer=consumer,
            deliveries=int(block[b"dead:deliveries"]),
            reason=block[b"dead:reason"].decode("ascii", "replace"),
            at=datetime.fromtimestamp(int(block[b"dead:at"]) / 1000, UTC),
            error=error,
            traceback=traceback,
        )
    except (ValueError, OverflowError, OSError):  # an InvalidID is a ValueError
        return None


def _moment(unix_ms: int) -> datetime | None:
    return datetime.fromtimestamp(unix_ms / 1000, UTC) if unix_ms else None


BYTES: Decoder[bytes] = Decoder(None)
"""Leaves everything as it is."""


@overload
def decoder_of(decode: Literal[False], errors: str) -> Decoder[bytes]: ...
@overload
def decoder_of(decode: Literal[True], errors: str) -> Decoder[str]: ...
@overload
def decoder_of(decode: bool, errors: str) -> Decoder[Any]: ...
def decoder_of(decode: bool, errors: str) -> Decoder[Any]:
    """Return the decoder of a store opened with these arguments."""
    if not isinstance(decode, bool):
        raise InvalidArgument(f"decode is True or False, not {show(decode)}")
    try:
        codecs.lookup_error(errors)
    except (LookupError, TypeError):
        raise InvalidArgument(
            f"errors is that of bytes.decode, such as 'strict' or 'replace', not {show(errors)}"
        ) from None
    if not decode and errors != "strict":
        raise InvalidArgument(f"errors={errors!r} needs decode=True: without it fields are bytes")
    return Decoder(errors) if decode else BYTES


# --- dead letters of several queues -------------------------------------------------------------


class LetterCounts:
    """Counts the dead letters of each queue: queues may share a stream of them.

    Each stream is read once, at the first question.
    """

    def __init__(self, scan: Callable[[bytes], Iterable[Entry[bytes]]]) -> None:
        """``scan`` yields the entries of a stream."""
        self._scan = scan
        self._by_key: dict[bytes, Counter[tuple[bytes, bytes]]] = {}

    def of(self, key: bytes, group: GroupQueue, others: Sequence[GroupQueue]) -> int:
        """Return how many letters come from a group of the stream ``key``, which has ``others``.

        A stream of letters that no other group can have is not read: all in it count.
        """
        policy = group.policy
        if policy is None or not group.dead or not (policy.dead_letter or len(others) > 1):
            return group.dead
        dead_key = policy.dead_key(key)
        counts = self._by_key.get(dead_key)
        if counts is None:
            letters = map(dead_letter_of, self._scan(dead_key))
            counts = Counter((each.origin, each.group) for each in letters if each is not None)
            self._by_key[dead_key] = counts
        return counts[key, group.name]
