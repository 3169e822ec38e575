"""A stream as commands, as Redis writes it into its own log, and what that log leaves out.

Pending entries whose message is gone cannot be made by XCLAIM: for the time being a placeholder
stands where the message was, to be claimed and then deleted; XSETID sets right what that counts. No
command sets when a consumer was seen or active.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from kvstream.ids import MIN_ID, StreamID
from kvstream.images import GroupImage, IdempotencyImage, NodeImage, PackedID, StreamState
from kvstream.layout.values import decode_fields
from kvstream.migration.pending import id_text
from kvstream.migration.server import Version
from kvstream.rdb.targets import Loss
from kvstream.records import Entry
from kvstream.remote.connection import Word, Words

COUNTERS_KNOWN: Version = (7, 0)
IDEMPOTENCY_KNOWN: Version = (8, 6)
NACK_KNOWN: Version = (8, 8)
CONSUMERS_MADE: Version = (6, 2)

CLAIMED_MAX = 500
"""IDs of one XCLAIM or XDEL."""
PLACEHOLDER = (b"kvstream", b"placeholder")


def losses(state: StreamState, version: Version) -> Iterator[Loss]:
    """Yield what commands do not carry to a server of a version."""
    consumers = sum(len(group.consumers) for group in state.groups)
    if consumers:
        text = "when consumers were seen and active: no command sets it"
        yield Loss("active-time", consumers, text)
    nacked = sum(len(group.nacked) for group in state.groups)
    if nacked and version < NACK_KNOWN:
        yield Loss("nacked", nacked, "entries given back: they become pending with a consumer")
    told = state.idempotency
    if told is not None and (told.iids_added or told.iids_duplicates or told.producers):
        if version < IDEMPOTENCY_KNOWN:
            yield Loss("idempotency", len(told.producers), "what is remembered of producers")
        else:
            yield Loss("idempotency", 1, "the counts of idempotent IDs added and refused")
    if version < COUNTERS_KNOWN:
        yield Loss("entries-added", 1, "entries added, greatest deleted ID and entries read")


def adds(key: bytes, nodes: Iterable[NodeImage], after: PackedID) -> Iterator[Words]:
    """Yield the XADDs of all entries behind an ID."""
    for node in nodes:
        if node.ids[-1] <= after:
            continue
        for eid, value in zip(node.ids, node.values, strict=True):
            if eid > after:
                yield add_words(key, eid, value)


def add_words(key: bytes, eid: PackedID, value: bytes) -> Words:
    flat = Entry(MIN_ID, decode_fields(value)).flat
    return ("XADD", key, id_text(eid), *flat)


def with_placeholders(
    key: bytes, nodes: Iterable[NodeImage], gone: list[PackedID], after: PackedID
) -> Iterator[Words]:
    """Yield the XADDs of all entries, with a placeholder where a message has gone."""
    waiting = iter([eid for eid in gone if eid > after])
    following = next(waiting, None)
    for node in nodes:
        for eid, value in zip(node.ids, node.values, strict=True):
            while following is not None and following < eid:
                yield ("XADD", key, id_text(following), *PLACEHOLDER)
                following = next(waiting, None)
            if eid > after:
                yield add_words(key, eid, value)
    while following is not None:
        yield ("XADD", key, id_text(following), *PLACEHOLDER)
        following = next(waiting, None)


def gone_of(state: StreamState, ids: Iterable[PackedID]) -> list[PackedID]:
    """Return the pending IDs, of all groups, whose message is not in the stream."""
    pending = sorted({each.id for group in state.groups for each in group.pending})
    gone: list[PackedID] = []
    living = iter(ids)
    following = next(living, None)
    for eid in pending:
        while following is not None and following < eid:
            following = next(living, None)
        if following != eid:
            gone.append(eid)
    return gone


def group_commands(key: bytes, group: GroupImage, version: Version) -> Iterator[Words]:
    """Yield what makes a group, its consumers and its pending entries."""
    read: Words = ()
    if version >= COUNTERS_KNOWN and group.entries_read is not None:
        read = ("ENTRIESREAD", group.entries_read)
    yield ("XGROUP", "CREATE", key, group.name, str(group.last_delivered), "MKSTREAM", *read)
    if version >= CONSUMERS_MADE:
        for consumer in group.consumers:
            yield ("XGROUP", "CREATECONSUMER", key, group.name, consumer.name)
    spare = group.consumers[0].name if group.consumers else b"kvstream"
    alike = groupby(group.pending, key=lambda each: (each.owner, each.time_ms, each.deliveries))
    for (owner, time_ms, deliveries), entries in alike:
        ids = [id_text(each.id) for each in entries]
        how: tuple[Word, ...] = ("TIME", time_ms, "RETRYCOUNT", deliveries, "FORCE", "JUSTID")
        for some in _parts(ids):
            yield ("XCLAIM", key, group.name, owner or spare, 0, *some, *how)
    if version >= NACK_KNOWN:
        yield from _nacks(key, group)


def _nacks(key: bytes, group: GroupImage) -> Iterator[Words]:
    """Yield what gives entries back, in the order in which they were."""
    counts = {each.id: each.deliveries for each in group.pending if each.owner is None}
    for deliveries, ids in groupby(group.nacked, key=counts.__getitem__):
        for some in _parts([id_text(eid) for eid in ids]):
            count = ("RETRYCOUNT", deliveries)
            yield ("XNACK", key, group.name, "FAIL", "IDS", len(some), *some, *count)


def idempotency_commands(key: bytes, told: IdempotencyImage, version: Version) -> Iterator[Words]:
    """Yield what sets the limits of idempotent IDs, and what remembers them."""
    if version < IDEMPOTENCY_KNOWN:
        return
    limits = ("IDMP-DURATION", told.duration_s, "IDMP-MAXSIZE", told.maxsize)
    yield ("XCFGSET", key, *limits)
    if version >= NACK_KNOWN:
        for producer in told.producers:
            for iid, eid in producer.iids:
                yield ("XIDMPRECORD", key, producer.pid, iid, str(eid))


def deletions(key: bytes, gone: list[PackedID]) -> Iterator[Words]:
    """Yield what takes the placeholders away."""
    for some in _parts([id_text(eid) for eid in gone]):
        yield ("XDEL", key, *some)


def counters(key: bytes, state: StreamState, entries: int, version: Version) -> Words:
    """Return the command that sets the last ID and, where the server has them, the counters."""
    words: Words = ("XSETID", key, str(state.last))
    if version < COUNTERS_KNOWN:
        return words
    added = entries if state.entries_added is None else max(state.entries_added, entries)
    deleted = state.max_deleted or StreamID(0, 0)
    return (*words, "ENTRIESADDED", added, "MAXDELETEDID", str(deleted))


def _parts(ids: list[bytes]) -> Iterator[list[bytes]]:
    for at in range(0, len(ids), CLAIMED_MAX):
        yield ids[at : at + CLAIMED_MAX]
