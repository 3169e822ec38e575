"""A live server as a target: streams by RESTORE, or by commands.

If a payload exceeds the server's bulk limit, RESTORE carries the state and XADD the entries: no
stream is too long. If RESTORE is refused, commands carry everything, in the way in which Redis
writes a stream into its append-only file. A stream that takes several commands is built under a
staging key, which an interrupted run leaves for the next, and is then renamed.

XCLAIM cannot make a pending entry whose message is deleted. So a placeholder is added in its place,
claimed and deleted, and XSETID corrects the counters. No command sets the seen and active times of
a consumer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as with_fields
from itertools import chain, groupby

import xxhash

from kvstream.errors import RequestError
from kvstream.layout.values import decode_fields
from kvstream.migration.items import (
    STAGED_PREFIX,
    STRING,
    Consent,
    Content,
    Done,
    Item,
    keep_value,
    too_long,
)
from kvstream.migration.libraries import notes_for_redis
from kvstream.migration.server import BULK_BYTES_MAX, Server, Version, is_refused
from kvstream.migration.server_source import ServerSource, id_text
from kvstream.migration.spool import ChunkFile, Spool, count_read
from kvstream.rdb.payload import dump
from kvstream.rdb.versions import (
    LOSSES,
    NEWEST,
    TARGETS,
    Loss,
    format_losses,
    queue_losses,
    reduce,
)
from kvstream.remote.connection import Connection, Word, Words, raise_first_error
from kvstream.remote.replies import members
from kvstream.remote.server_errors import translate_errors
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.images import (
    GroupImage,
    IdempotencyImage,
    NodeImage,
    PackedID,
    QueueRow,
    StreamState,
)
from kvstream.types.records import flat_of

HAS_COUNTERS: Version = (7, 0)
HAS_IDEMPOTENCY: Version = (8, 6)
HAS_NACK: Version = (8, 8)
HAS_CREATECONSUMER: Version = (6, 2)
"""The first versions of Redis with these features."""

OLD = TARGETS["redis:5.0"]
CLAIMED_MAX = 500
"""IDs of one XCLAIM or XDEL."""
PLACEHOLDER = (b"kvstream", b"placeholder")


def losses_by_commands(state: StreamState, version: Version) -> Iterator[Loss]:
    """Yield what commands cannot carry to a server of a version."""
    consumers = sum(len(group.consumers) for group in state.groups)
    if consumers:
        text = "the seen and active times of consumers: no command sets them"
        yield Loss("active-time", consumers, text)
    nacked = sum(len(group.nacked) for group in state.groups)
    if nacked and version < HAS_NACK:
        yield Loss("nacked", nacked, "entries released by XNACK: they become pending again")
    image = state.idempotency
    if image is not None and (image.iids_added or image.iids_duplicates or image.producers):
        if version < HAS_NACK and image.producers:
            yield Loss("idempotency", len(image.producers), "the idempotent IDs of producers")
        else:
            yield Loss("idempotency", 1, "the counts of idempotent IDs added and refused")
    if version < HAS_IDEMPOTENCY:
        yield from (loss for loss in format_losses(state, OLD) if loss.name == "idempotency-limits")
    idle = sum(len(_idle(group)) for group in state.groups)
    if idle and version < HAS_CREATECONSUMER:
        yield Loss("consumers", idle, LOSSES["consumers"])
    if version < HAS_COUNTERS:
        yield Loss("entries-added", 1, "entries added, greatest deleted ID and entries read")


def _idle(group: GroupImage) -> set[bytes]:
    """Return the consumers with nothing pending."""
    busy = {owner for _, owner, _, _ in group.pending.spans(CLAIMED_MAX)}
    return {consumer.name for consumer in group.consumers} - busy


def adds(key: bytes, nodes: Iterable[NodeImage], after: PackedID) -> Iterator[Words]:
    """Yield the XADDs of all entries after an ID."""
    for node in nodes:
        if node.ids[-1] <= after:
            continue
        for eid, value in zip(node.ids, node.values, strict=True):
            if eid > after:
                yield add_words(key, eid, value)


def add_words(key: bytes, eid: PackedID, value: bytes) -> Words:
    flat = flat_of(decode_fields(value))
    return ("XADD", key, id_text(eid), *flat)


def with_placeholders(
    key: bytes, nodes: Iterable[NodeImage], gone: list[PackedID], after: PackedID
) -> Iterator[Words]:
    """Yield the XADDs of all entries, with placeholders for deleted messages."""
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


def deleted_pending(state: StreamState, ids: Iterable[PackedID]) -> list[PackedID]:
    """Return the pending IDs of all groups whose message is deleted."""
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
    """Yield the commands that make a group, its consumers and its pending entries."""
    read: Words = ()
    if version >= HAS_COUNTERS and group.entries_read is not None:
        read = ("ENTRIESREAD", group.entries_read)
    yield ("XGROUP", "CREATE", key, group.name, str(group.last_delivered), "MKSTREAM", *read)
    if version >= HAS_CREATECONSUMER:
        for consumer in group.consumers:
            yield ("XGROUP", "CREATECONSUMER", key, group.name, consumer.name)
    spare = group.consumers[0].name if group.consumers else b"kvstream"
    for ids, owner, time_ms, deliveries in group.pending.spans(CLAIMED_MAX):
        options: tuple[Word, ...] = ("TIME", time_ms, "RETRYCOUNT", deliveries, "FORCE", "JUSTID")
        yield ("XCLAIM", key, group.name, owner or spare, 0, *map(id_text, ids), *options)
    if version >= HAS_NACK:
        yield from _nacks(key, group)


def _nacks(key: bytes, group: GroupImage) -> Iterator[Words]:
    """Yield the XNACKs of a group, in the order of redelivery."""
    counts = {each.id: each.deliveries for each in group.pending if each.owner is None}
    for deliveries, ids in groupby(group.nacked, key=counts.__getitem__):
        for some in _parts([id_text(eid) for eid in ids]):
            count = ("RETRYCOUNT", deliveries)
            yield ("XNACK", key, group.name, "FAIL", "IDS", len(some), *some, *count)


def idempotency_commands(key: bytes, image: IdempotencyImage, version: Version) -> Iterator[Words]:
    """Yield the commands that set the limits of idempotent IDs, and the IDs."""
    if version < HAS_IDEMPOTENCY:
        return
    limits = ("IDMP-DURATION", image.duration_s, "IDMP-MAXSIZE", image.maxsize)
    yield ("XCFGSET", key, *limits)
    if version >= HAS_NACK:
        for producer in image.producers:
            for iid, eid in producer.iids:
                yield ("XIDMPRECORD", key, producer.pid, iid, str(eid))


def deletions(key: bytes, gone: list[PackedID]) -> Iterator[Words]:
    """Yield the XDELs of the placeholders."""
    for some in _parts([id_text(eid) for eid in gone]):
        yield ("XDEL", key, *some)


def counters(key: bytes, state: StreamState, entries: int, version: Version) -> Words:
    """Return the XSETID that sets the last ID and, if the server has them, the counters."""
    words: Words = ("XSETID", key, str(state.last))
    if version < HAS_COUNTERS:
        return words
    added = entries if state.entries_added is None else max(state.entries_added, entries)
    deleted = state.max_deleted or StreamID(0, 0)
    return (*words, "ENTRIESADDED", added, "MAXDELETEDID", str(deleted))


def import_commands(key: bytes, queue: Sequence[QueueRow]) -> Iterator[Words]:
    """Yield the commands that add what a stream has as a queue."""
    words: list[bytes] = []
    size = 0
    for row in queue:
        words += row
        size += len(row[0]) + len(row[1])
        if size >= BATCH_BYTES:
            yield ("KVSTREAM.QUEUE", "IMPORT", key, *words)
            words, size = [], 0
    if words:
        yield ("KVSTREAM.QUEUE", "IMPORT", key, *words)


def _parts(ids: list[bytes]) -> Iterator[list[bytes]]:
    for at in range(0, len(ids), CLAIMED_MAX):
        yield ids[at : at + CLAIMED_MAX]


BATCH_COMMANDS = 1000
BATCH_BYTES = 1 << 20
"""Commands of one pipeline, and about how many bytes they take."""
RESTORE_BYTES_MAX = 512 << 20
"""Payload size above which XADDs carry the entries: RESTORE blocks the server."""
_NOT_A_PAYLOAD = b"kvstream"


class ServerTarget:
    """A server that is written."""

    takes_keys_once = False

    def __init__(self, server: Server) -> None:
        if server.is_cluster:
            raise RequestError("a node of a cluster cannot be a target: it takes only some keys")
        self.remarks: list[str] = []
        self._server = server
        self._target = server.about.target
        self.restores = self._has_restore()
        """Whether this user may run RESTORE."""
        self.may_lose = not self.restores or self._target.kind < NEWEST.kind
        self.has_queues = server.has_queues
        self.existing = ServerSource(server)

    def close(self) -> None:
        self._server.close()

    def finish(self) -> None:
        """Do nothing: each key is visible once it is put."""

    def find_exclusion(self, item: Item) -> Loss | None:
        if not self._server.has_database(item.db):
            text = "the target has no such database; --db selects some of the source"
            return Loss("databases", 1, text, f"database {item.db}")
        if self._server.about.name == "kvstream" and (loss := too_long(item)) is not None:
            return loss
        return self._too_large(item) if self._server.bulk_bytes_max < BULK_BYTES_MAX else None

    def _too_large(self, item: Item) -> Loss | None:
        """Return which part of a key is above a limit that the server has instead of the default.

        A stream whose payload is not larger than the limit has no such part. A stream of a file,
        which can be read only once, is not looked at.
        """
        most = self._server.bulk_bytes_max
        if item.kind == STRING and item.value is not None:
            keep_value(item)
            size = len(item.value() or b"")
            what, limit = f"a string of {size} bytes", "proto-max-bulk-len"
        elif item.rereadable and item.outline is not None and item.outline().bytes() > most:
            size, most, limit = self._largest(item)
            what = f"an entry of {size} bytes"
        else:
            return None
        if size <= most:
            return None
        return Loss("too-large", 1, f"the target's {limit} is {most}", what)

    def _largest(self, item: Item) -> tuple[int, int, str]:
        """Return the size of a stream's largest entry or part of one, and the limit of it."""
        reply = self._server.connection(0).ask("CONFIG", "GET", "stream-entry-max-bytes")
        entry_max = int(reply[1]) if reply else None
        entry = part = 0
        content = item.content()
        for node in content.nodes():
            for value in node.values:
                sizes = [len(word) for word in flat_of(decode_fields(value))]
                entry, part = max(entry, sum(sizes)), max(part, *sizes)
        content.state()
        if entry_max is not None and entry > entry_max:
            return entry, entry_max, "stream-entry-max-bytes"
        return part, self._server.bulk_bytes_max, "proto-max-bulk-len"

    def refused_functions(self, libraries: Sequence[bytes]) -> Mapping[bytes, str]:
        refused = self.existing.refused_functions(libraries)
        if self._server.about.name == "Redis":
            notes = notes_for_redis(libraries, refused)
            self.remarks += [note for note in notes if note not in self.remarks]
        return refused

    def losses(self, state: StreamState) -> list[Loss]:
        of_queue = [] if self.has_queues else queue_losses(state)
        if self.restores:
            return [*format_losses(state, self._target), *of_queue]
        return [*losses_by_commands(state, self._server.about.version), *of_queue]

    def reduce(self, state: StreamState) -> None:
        """Remove what the server's format cannot hold, if it takes payloads at all."""
        if self.restores:
            reduce(state, self._target)

    def put_string(self, item: Item, value: bytes, *, replace: bool) -> None:
        connection = self._server.connection(item.db)
        staged = self._staging_key(item, b"string")
        _publish(connection, item, staged, replace, [("SET", staged, value)])

    def put_function(self, text: bytes, *, replace: bool) -> None:
        words: Words = ("FUNCTION", "LOAD", *(("REPLACE",) if replace else ()), text)
        self._server.connection(0).do(*words)

    def put_stream(
        self, item: Item, content: Content, *, label: bytes, replace: bool, consent: Consent
    ) -> Done:
        with Spool(content) as spool:
            consent([*content.notes, *self.losses(spool.state)])
            corrections = list(content.corrections)
            if not content.tells_counters:
                count_read(spool.state, (node.ids for node in spool.nodes()))
            staged, resumed = self._staging_key(item, label), 0
            queue = (spool.state.queue or []) if self.has_queues else []
            self.reduce(spool.state)
            if self.restores and self._restore_key(item, spool, replace, staged if queue else b""):
                if not queue:
                    return Done(spool.entries, corrections)
            else:
                resumed = _Building(self._server, item, spool, staged, self.restores).build()
            self._publish_stream(item, staged, replace, queue)
            return Done(spool.entries, corrections, resumed)

    # --- RESTORE --------------------------------------------------------------------------------

    def _has_restore(self) -> bool:
        """Send a damaged payload: only a server that has RESTORE complains of the payload."""
        try:
            connection = self._server.connection(self._server.place.database or 0)
            connection.do("RESTORE", STAGED_PREFIX + b"probe", 0, _NOT_A_PAYLOAD)
        except RequestError as error:
            return not is_refused(error)
        return True

    def _restore_key(self, item: Item, spool: Spool, replace: bool, staged: bytes) -> bool:
        """Send a stream as one payload, to ``staged`` if given; return False if it is too large."""
        most = min(self._server.bulk_bytes_max, RESTORE_BYTES_MAX)
        payload = dump(self._target, spool.nodes(), spool.state, spool.node_count)
        with ChunkFile(payload, most) as file:
            if file.size > most:
                return False
            key = staged or item.key
            _restore(self._server, item, key, file, replace or bool(staged), lasting=bool(staged))
        return True

    # --- commands -------------------------------------------------------------------------------

    def _staging_key(self, item: Item, label: bytes) -> bytes:
        name = xxhash.xxh3_128(b"%d %b %b" % (len(label), label, item.key)).hexdigest()
        return STAGED_PREFIX + name.encode()

    def _publish_stream(
        self, item: Item, staged: bytes, replace: bool, queue: Sequence[QueueRow]
    ) -> None:
        """Rename a complete stream to its key and set its expiry, in one transaction.

        So its timers begin under its own name, unless it has more rows than one command takes.
        """
        connection = self._server.connection(item.db)
        *imports, last = [*import_commands(staged, queue), ("DEL", _note_of(staged))]
        connection.do_many(imports[:-1])
        _publish(connection, item, staged, replace, [*imports[-1:], last])


class _Building:
    """Builds a stream under its staging key, command by command."""

    def __init__(
        self, server: Server, item: Item, spool: Spool, staged: bytes, restores: bool
    ) -> None:
        self._server = server
        self._connection: Connection = server.connection(item.db)
        self._version = server.about.version
        self._item = item
        self._spool = spool
        self._staging_key = staged
        self._restores = restores

    def build(self) -> int:
        """Build the stream; return how many entries an earlier run had added."""
        state, spool = self._spool.state, self._spool
        gone = [] if self._restores else deleted_pending(state, spool.ids())
        after, resumed = self._read_progress(gone)
        if after is None:
            self._begin()
        after = after or MIN_ID.packed
        if self._restores:
            self._send(adds(self._staging_key, spool.nodes(), after))
        else:
            self._send(with_placeholders(self._staging_key, spool.nodes(), gone, after))
            self._send(self._groups(gone))
        self._send([counters(self._staging_key, state, spool.entries, self._version)])
        return resumed

    def _begin(self) -> None:
        """Delete an earlier attempt and write the note that identifies this one."""
        connection, note = self._connection, _note_of(self._staging_key)
        connection.do("DEL", note)
        connection.do("DEL", self._staging_key)
        if self._restores:
            bare = with_fields(
                self._spool.state,
                length=0,
                last=MIN_ID,
                first=MIN_ID,
                max_deleted=MIN_ID,
                entries_added=0,
            )
            most = self._server.bulk_bytes_max
            with ChunkFile(dump(self._server.about.target, iter(()), bare, 0), most) as file:
                if file.size > most:
                    raise RequestError(
                        f"the pending entries of {self._item.key!r} alone are more than the "
                        f"server takes at once ({most:,} bytes, proto-max-bulk-len)"
                    )
                _restore(self._server, self._item, self._staging_key, file, True, lasting=True)
        connection.do("SET", note, self._fingerprint())

    def _fingerprint(self) -> bytes:
        """Return a digest of the state; it differs if the source has changed since."""
        target = self._server.about.target
        digest = xxhash.xxh3_128()
        for chunk in dump(target, iter(()), with_fields(self._spool.state, length=0), 0):
            digest.update(chunk)
        return f"{digest.hexdigest()} {self._spool.entries}".encode()

    def _read_progress(self, gone: list[PackedID]) -> tuple[PackedID | None, int]:
        """Return the last entry that an earlier run has added, and the number of its entries."""
        connection, staged = self._connection, self._staging_key
        noted = connection.ask("GET", _note_of(staged))
        if noted is None or noted != self._fingerprint():
            return None, 0
        if not connection.ask("EXISTS", staged):
            return (None, 0) if self._restores else (MIN_ID.packed, 0)
        info = members(connection.ask("XINFO", "STREAM", staged))
        last = StreamID.parse(info["last-generated-id"]).packed
        expected = sum(eid <= last for eid in chain(gone, self._spool.ids()))
        return (last, info["length"]) if expected == info["length"] else (None, 0)

    def _groups(self, gone: list[PackedID]) -> Iterator[Words]:
        """Yield the commands of all groups, and delete the placeholders.

        Groups that an earlier run has made are destroyed first.
        """
        state, staged = self._spool.state, self._staging_key
        if not self._spool.entries and not gone:  # creates an empty stream
            yield ("XADD", staged, "MAXLEN", 0, "0-1", *PLACEHOLDER)
        else:
            for info in map(members, self._connection.ask("XINFO", "GROUPS", staged)):
                yield ("XGROUP", "DESTROY", staged, info["name"])
        for group in state.groups:
            yield from group_commands(staged, group, self._version)
        if state.idempotency is not None:
            yield from idempotency_commands(staged, state.idempotency, self._version)
        yield from deletions(staged, gone)

    def _send(self, commands: Iterable[Words]) -> None:
        """Send commands in batches; raise the first error."""
        batch: list[Words] = []
        size = 0
        for words in commands:
            batch.append(words)
            size += sum(len(word) if isinstance(word, bytes | str) else 8 for word in words)
            if len(batch) == BATCH_COMMANDS or size >= BATCH_BYTES:
                self._connection.do_many(batch)
                batch, size = [], 0
        if batch:
            self._connection.do_many(batch)


def _note_of(staged: bytes) -> bytes:
    return staged + b":note"


def _publish(
    connection: Connection, item: Item, staged: bytes, replace: bool, before: Sequence[Words]
) -> None:
    """Run commands, set the expiry, and rename a staged key, in one transaction.

    Raises RequestError if the key exists and ``replace`` is False.
    """
    expiry: list[Words] = [("PEXPIREAT", staged, item.expire_at_ms)] if item.expire_at_ms else []
    rename = ("RENAME" if replace else "RENAMENX", staged, item.key)
    if raise_first_error(connection.try_all([*before, *expiry, rename]))[-1] == 0:
        connection.do("DEL", staged)
        raise RequestError(f"{item.key!r} was created meanwhile: run again to compare it")


def _restore(
    server: Server, item: Item, key: bytes, file: ChunkFile, replace: bool, lasting: bool = False
) -> None:
    """Send RESTORE with a payload from a file, chunk by chunk; ``lasting``: without expiry."""
    ttl = 0 if lasting else item.expire_at_ms
    words: list[bytes] = [b"RESTORE", key, b"%d" % ttl]
    options = [b"REPLACE"] if replace else []
    if ttl:
        options.append(b"ABSTTL")
    count = len(words) + 1 + len(options)
    with translate_errors(writing=True):
        connection = server.socket_connection(item.db)
        try:
            connection.send_packed_command(_frame(count, words, file, options))
            connection.read_response()
        except BaseException:
            connection.disconnect()  # a request may have been left unfinished on it
            raise


def _frame(
    count: int, words: list[bytes], file: ChunkFile, options: list[bytes]
) -> Iterator[bytes]:
    yield b"*%d\r\n" % count + b"".join(map(_bulk, words)) + b"$%d\r\n" % file.size
    yield from file.chunks()
    yield b"\r\n" + b"".join(map(_bulk, options))


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)
