"""Decoding of RESP2 replies into the library's records."""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from kvstream.errors import KVStreamError, ServerTooOld
from kvstream.meta.pel import COUNT_MAX
from kvstream.meta.policy import GroupPolicy, Retention
from kvstream.operations.queues import info as queue_info
from kvstream.operations.queues import redrive, schedules
from kvstream.rdb.versions import NACKED_CONSUMER
from kvstream.types.ids import StreamID, new_id
from kvstream.types.records import (
    BareEntry,
    Claimed,
    ClaimedIDs,
    ConsumerDetail,
    ConsumerInfo,
    DeletedEntry,
    Entry,
    EntryFields,
    Fields,
    GroupDetail,
    GroupInfo,
    HistoryEntry,
    PendingDetail,
    PendingEntry,
    PendingSummary,
    RepeatedFields,
    StreamInfo,
)

NEVER_MS = -1
NOBODY = NACKED_CONSUMER
"""The consumer of entries that were given back, on a server without XNACK."""

new_entry = partial(tuple.__new__, Entry)
"""Return an Entry without running Python code."""
_NUMBER = re.compile("0|-?[1-9][0-9]*", re.ASCII)

Members = Mapping[str, Any]


def members(flat: list[Any]) -> Members:
    """Return a flat list of names and values as a mapping."""
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def unix_ms(time: list[bytes]) -> int:
    """Return the milliseconds of a reply to TIME."""
    seconds, microseconds = map(int, time)
    return seconds * 1000 + microseconds // 1000


def _require(values: Members, name: str) -> Any:
    try:
        return values[name]
    except KeyError:
        raise ServerTooOld(f"the server does not tell {name}: it is older than Redis 7.0") from None


def id_of(raw: bytes) -> StreamID:
    """Return an ID as servers write it; ``StreamID.parse`` takes three times as long."""
    ms, _, seq = raw.partition(b"-")
    return new_id((int(ms), int(seq)))


def id_or_none(raw: bytes | None) -> StreamID | None:
    return None if raw is None else id_of(raw)


def entry_of(raw: list[Any]) -> Entry:
    """Return an entry; one of a read with CLAIM has its idle time and deliveries, too."""
    flat = raw[1]
    parts = iter(flat)
    fields: Fields = EntryFields(zip(parts, parts, strict=False))
    if 2 * len(fields) != len(flat):
        fields = RepeatedFields(tuple(flat))
    if len(raw) == 2:
        return new_entry((id_of(raw[0]), fields, None, None))
    return Entry(id_of(raw[0]), fields, *raw[2:])


def history_entry_of(raw: list[Any]) -> HistoryEntry:
    """Return a pending entry, which may be deleted."""
    return entry_of(raw) if raw[1] is not None else DeletedEntry(StreamID.parse(raw[0]))


def entries_of(raw: Iterable[list[Any] | None] | None) -> list[Entry]:
    """Return entries; an empty list for nil."""
    return [entry_of(each) for each in raw or () if each is not None]


def claimed_of(raw: list[Any] | None, justid: bool) -> list[Entry] | list[BareEntry]:
    """Return the entries of XCLAIM; with ``justid`` they have no fields."""
    if justid:
        return [BareEntry(StreamID.parse(eid)) for eid in raw or ()]
    return entries_of(raw)


def autoclaimed_of(raw: list[Any], justid: bool) -> Claimed | ClaimedIDs:
    kind: Any = ClaimedIDs if justid else Claimed
    cursor, entries, deleted = raw
    claimed: Claimed | ClaimedIDs = kind(
        StreamID.parse(cursor), claimed_of(entries, justid), [StreamID.parse(e) for e in deleted]
    )
    return claimed


def streams_of(raw: list[Any] | None) -> dict[bytes, list[HistoryEntry]]:
    """Return the reply of XREAD and XREADGROUP."""
    return {
        name: [history_entry_of(each) for each in entries if each is not None]
        for name, entries in raw or ()
    }


def stream_info_of(raw: list[Any]) -> StreamInfo:
    """Return XINFO STREAM; idempotency counters are 0 if the server lacks them."""
    values = members(raw)
    first, last = values.get("first-entry"), values.get("last-entry")
    return StreamInfo(
        length=values["length"],
        radix_tree_keys=values["radix-tree-keys"],
        radix_tree_nodes=values["radix-tree-nodes"],
        last_generated_id=StreamID.parse(values["last-generated-id"]),
        max_deleted_entry_id=StreamID.parse(_require(values, "max-deleted-entry-id")),
        entries_added=_require(values, "entries-added"),
        recorded_first_entry_id=StreamID.parse(_require(values, "recorded-first-entry-id")),
        idmp_duration=values.get("idmp-duration", 0),
        idmp_maxsize=values.get("idmp-maxsize", 0),
        pids_tracked=values.get("pids-tracked", 0),
        iids_tracked=values.get("iids-tracked", 0),
        iids_added=values.get("iids-added", 0),
        iids_duplicates=values.get("iids-duplicates", 0),
        groups=values["groups"],
        first_entry=None if first is None else entry_of(first),
        last_entry=None if last is None else entry_of(last),
    )


def group_info_of(raw: list[Any]) -> GroupInfo:
    values = members(raw)
    return GroupInfo(
        name=values["name"],
        consumers=values["consumers"],
        pending=values["pending"],
        last_delivered_id=StreamID.parse(values["last-delivered-id"]),
        entries_read=_require(values, "entries-read"),
        lag=_require(values, "lag"),
    )


def group_infos_of(raw: list[list[Any]]) -> list[GroupInfo]:
    return sorted(map(group_info_of, raw), key=lambda each: each.name)


def consumer_infos_of(raw: list[list[Any]]) -> list[ConsumerInfo]:
    return sorted(map(consumer_info_of, raw), key=lambda each: each.name)


def expiry_of(ms: int) -> int | None:
    """Return the expiry of PEXPIRETIME: 0 for none, None without the key."""
    return {-1: 0, -2: None}.get(ms, ms)


def consumer_info_of(raw: list[Any]) -> ConsumerInfo:
    values = members(raw)
    return ConsumerInfo(values["name"], values["pending"], values["idle"], values.get("inactive"))


def pending_of(raw: list[Any]) -> PendingSummary:
    count, least, greatest, consumers = raw
    owners = {name: int(number) for name, number in consumers or () if name != NOBODY}
    return PendingSummary(count, id_or_none(least), id_or_none(greatest), owners)


def pending_entries_of(raw: list[Any]) -> list[PendingEntry]:
    return [pending_entry_of(row) for row in raw]


def pending_entry_of(row: list[Any]) -> PendingEntry:
    """Return one row of XPENDING; one without a consumer was given back."""
    eid, consumer, idle, deliveries = row
    if deliveries < 0:  # in Redis before 8.8 a count overflows
        deliveries = COUNT_MAX
    if consumer == NOBODY or idle < 0:
        return PendingEntry(StreamID.parse(eid), b"", None, deliveries)
    return PendingEntry(StreamID.parse(eid), consumer, idle, deliveries)


def group_detail_of(raw: list[Any]) -> GroupDetail:
    """Return one group of XINFO STREAM FULL; nacked-count is 0 if the server lacks XNACK."""
    values = members(raw)
    return GroupDetail(
        name=values["name"],
        last_delivered_id=StreamID.parse(values["last-delivered-id"]),
        entries_read=_require(values, "entries-read"),
        lag=_require(values, "lag"),
        pel_count=values["pel-count"],
        nacked_count=values.get("nacked-count", 0),
        pending=[
            PendingDetail(StreamID.parse(eid), consumer, at_ms, deliveries)
            for eid, consumer, at_ms, deliveries in values["pending"]
        ],
        consumers=[_consumer_detail_of(each) for each in values["consumers"]],
    )


def _consumer_detail_of(raw: list[Any]) -> ConsumerDetail:
    values = members(raw)
    name = values["name"]
    return ConsumerDetail(
        name=name,
        seen_time_ms=values["seen-time"],
        active_time_ms=values.get("active-time", NEVER_MS),
        pel_count=values["pel-count"],
        pending=[
            PendingDetail(StreamID.parse(eid), name, at_ms, deliveries)
            for eid, at_ms, deliveries in values["pending"]
        ],
    )


def policy_of(raw: list[Any]) -> GroupPolicy | None:
    """Return the rules of KVSTREAM.POLICY; None if there are none."""
    values: dict[str, Any] = {**members(raw)}
    if not values:
        return None
    values |= {rule: bool(values[rule]) for rule in ("fair", "paused") if rule in values}
    values["backoff_ms"] = tuple(values["backoff_ms"])
    return GroupPolicy(**values)


def redrive_of(raw: list[Any] | None) -> redrive.Job | None:
    """Return the reply of KVSTREAM.REDRIVE."""
    if not raw:
        return None
    values = members(raw)
    return redrive.Job(
        state=values["state"].decode(),
        moved=values["moved"],
        skipped=values["skipped"],
        error=values["error"],
        streams=dict(zip(*[iter(values["streams"])] * 2, strict=True)),
    )


def retention_of(raw: list[Any]) -> Retention | None:
    """Return the rules of KVSTREAM.RETENTION; None if there are none."""
    values: dict[str, Any] = {**members(raw)}
    if not values:
        return None
    return Retention(**values | {name: bool(values[name]) for name in ("acked", "force")})


def schedules_of(raw: list[list[Any]]) -> list[schedules.Schedule]:
    """Return the reply of KVSTREAM.SCHEDULE LIST."""
    return [
        schedules.Schedule(
            name=values["name"],
            cron=values["cron"].decode(),
            zone=values["zone"].decode(),
            flat=tuple(values["fields"]),
            misfire=schedules.Misfire(values["misfire"].decode()),
            most=values["most"],
            next_ms=values["next"],
            last_ms=values["last"],
            error=values["error"].decode(),
        )
        for values in map(members, raw)
    ]


def queue_info_of(raw: list[Any]) -> queue_info.QueueInfo:
    """Return the reply of KVSTREAM.INFO."""
    values = members(raw)
    groups: list[queue_info.GroupQueue] = []
    for each in values["groups"]:
        figures: dict[str, Any] = {**members(each)}
        figures["policy"] = policy_of(figures["policy"])
        groups.append(queue_info.GroupQueue(**figures))
    rules = retention_of(values["retention"])
    counts = (values["length"], values["delayed"], values["schedules"])
    return queue_info.QueueInfo(*counts, groups, rules, values.get("entries_added"))


def sections_of(text: bytes) -> dict[str, dict[str, Any]]:
    """Return the sections of INFO by name, with their fields; decimal values become integers."""
    sections: dict[str, dict[str, Any]] = {}
    fields: dict[str, Any] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        name, colon, value = line.partition(":")
        if line.startswith("# "):
            fields = sections.setdefault(line.removeprefix("# ").lower(), {})
        elif colon:
            fields[name] = int(value) if _NUMBER.fullmatch(value) else value
    return {name: fields for name, fields in sections.items() if fields}


def is_key_refusal(error: KVStreamError) -> bool:
    """Return whether a server refuses a key to its user (NOPERM), and not the command."""
    return "permissions to access" in str(error)  # Redis, Valkey and kvstream
