"""DUMP and RESTORE: a key as a payload that Redis reads, too.

A payload names its type and version, and a server refuses versions newer than its own. So a payload
has the oldest form that loses nothing of the key, unless a target server is named.

``LongDump`` and ``LongRestore`` do long streams in steps, between which other commands run. DUMP
shows the stream as it is in the first step; RESTORE makes the key in the last one.
"""

from collections.abc import Iterator
from itertools import islice

from kvstream.errors import BadPayload, InvalidArgument, StoreClosed
from kvstream.meta.key_events import RESTORE
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn
from kvstream.meta.unfinished_loads import StagedLoad
from kvstream.meta.wakeups import Wake
from kvstream.operations.images import load, staged_loads
from kvstream.operations.images.load import refuse_existing
from kvstream.operations.images.staged_loads import LongLoad
from kvstream.operations.keyspace import delete, make_room
from kvstream.rdb import payload as payloads
from kvstream.rdb.streams import StreamReading
from kvstream.rdb.versions import TARGETS, Target, format_losses, reduce, target
from kvstream.types.images import StreamState
from kvstream.types.options import DUMP_TARGET_AUTO

_CANDIDATES = [TARGETS[name] for name in ("redis:7.0", "valkey", "redis:8.6", "redis:8.8")]
"""The types of streams since 7.0, each with the first version that writes it."""


def dump(txn: Txn, name: bytes, wanted: str | None = None) -> bytes | None:
    """Return the payload of a key, None if there is none.

    ``wanted`` names the server that the payload is for; what it cannot read is left out. None: as
    the store's settings say. ReplyTooLarge if the payload is larger than a reply may be.
    """
    wanted = wanted or txn.catalog.limits.dump_target
    chosen = None if wanted == DUMP_TARGET_AUTO else target(wanted)
    key = txn.key(name)
    if key is None:
        return None
    if isinstance(key, StringMeta):
        return payloads.dump_string(chosen or _CANDIDATES[0], key.read(txn.batch))
    image = load.image(txn, name)
    if image is None:
        return None
    most = txn.catalog.limits.reply_left
    pieces, size = [], 0
    for piece in _pieces(image, chosen):
        pieces.append(piece)
        size += len(piece)
        if most and size > most:
            raise txn.catalog.limits.too_large()
    return b"".join(pieces)


def pieces_of_now(txn: Txn, name: bytes) -> Iterator[bytes]:
    """Return the pieces of the payload of a stream as it is now, to be taken after ``txn``.

    The transaction must have changed nothing. A piece may be empty.
    """
    wanted = txn.catalog.limits.dump_target
    chosen = None if wanted == DUMP_TARGET_AUTO else target(wanted)
    return _pieces_in_steps(load.image_in_steps(txn, name), chosen)


def _pieces_in_steps(
    steps: Iterator[load.StreamImage | None], chosen: Target | None
) -> Iterator[bytes]:
    for image in steps:
        if image is None:
            yield b""
        else:
            yield from _pieces(image, chosen)


def _pieces(image: load.StreamImage, chosen: Target | None) -> Iterator[bytes]:
    state = image.state()
    chosen = chosen or lossless(state)
    reduce(state, chosen)  # limits of producers that are the server's own count as no loss
    return payloads.dump(chosen, image.nodes(), state, image.node_count)


def reading(payload: bytes) -> StreamReading | None:
    """Return a reader of a payload's stream; None if the payload is of a plain string."""
    value = payloads.restore(payload)
    return None if isinstance(value, bytes) else value


def restate(txn: Txn, name: bytes, payload: bytes) -> None:
    """Replace all of a stream except its entries by what a payload holds.

    BadPayload if the payload is not of a stream, NoSuchKey if there is none; nothing changes then.
    """
    value = payloads.restore(payload)
    if isinstance(value, bytes):
        raise BadPayload("the payload is of a plain string")
    state = value.state()
    txn.existing_stream(name)
    load.restate(txn, name, state)


def lossless(state: StreamState) -> Target:
    """Return the oldest form that holds all of a stream's state."""
    return next((form for form in _CANDIDATES if not format_losses(state, form)), _CANDIDATES[-1])


def restore(
    txn: Txn, name: bytes, payload: bytes, replace: bool = False, expire_at: int = 0
) -> list[str]:
    """Make a key of a payload; return what was wrong in it and was corrected.

    ``expire_at`` is a Unix time in milliseconds, 0 for never; if it has passed the key is deleted.
    BadPayload if the payload cannot be read, KeyExists if the name is taken and ``replace`` is
    false; nothing changes then.
    """
    refuse_existing(txn, name, replace)
    value = payloads.restore(payload)
    gone = 0 < expire_at <= txn.now_ms
    if not isinstance(value, bytes):
        if gone:
            value.state()
        else:
            loaded = _loaded(txn, name, value, replace, expire_at)
            return value.corrections + loaded.corrections
    elif not gone:
        replaced = make_room(txn, name)
        txn.catalog.create_string(txn, name, value, expire_at)
        txn.notify(RESTORE, name)
        txn.notify_overwritten(name, replaced, StringMeta)
        txn.signal(name, Wake.REPLACED)
    if gone:
        delete(txn, name)
        txn.catalog.expired += 1
    return []


def _loaded(
    txn: Txn, name: bytes, source: StreamReading, replace: bool, expire_at: int
) -> load.Loaded:
    try:
        return load.load(txn, name, source, replace, expire_at)
    except InvalidArgument as error:  # a payload may be sound, and yet be no stream
        raise BadPayload(str(error)) from None


def checked_target(name: str) -> str:
    """Return the name of a dump target, or "auto"; InvalidArgument lists them all."""
    if name != DUMP_TARGET_AUTO:
        target(name)
    return name


def is_long(txn: Txn, name: bytes) -> bool:
    """Return whether a key is a stream of very many entries or groups."""
    key = txn.key(name)
    if not isinstance(key, StreamMeta):
        return False
    return key.length > txn.thresholds.long_rows or key.groups_count >= txn.thresholds.long_groups


class LongDump:
    """DUMP of a long stream as it is now, in steps; the transaction must have changed nothing."""

    def __init__(self, txn: Txn, name: bytes) -> None:
        self._name = name
        self._pieces = pieces_of_now(txn, name)
        self._made: list[bytes] = []
        self._size = 0

    def step(self, txn: Txn) -> tuple[int, list[bytes]] | None:
        """Make more of the payload; return its length and pieces in the last step, None before.

        There are no pieces if the store was reopened meanwhile and the key is gone.
        """
        most = txn.catalog.limits.reply_left
        try:
            pieces = list(islice(self._pieces, txn.thresholds.step_nodes))
        except StoreClosed:
            whole = dump(txn, self._name)
            return (0, []) if whole is None else (len(whole), [whole])
        self._made += pieces
        self._size += sum(map(len, pieces))
        if most and self._size > most:
            raise txn.catalog.limits.too_large()
        return None if pieces else (self._size, self._made)


class LongRestore(LongLoad):
    """RESTORE of a long stream, in steps. It happens in its last step; no key changes before."""

    def __init__(self, name: bytes, payload: bytes, replace: bool, expire_at: int) -> None:
        super().__init__(name)
        self._payload, self._replace, self._expire_at = payload, replace, expire_at
        self._found: StreamReading | None = None

    def step(self, txn: Txn) -> bool:
        """Take more nodes; return whether the key has been made."""
        refuse_existing(txn, self._target, self._replace)
        if self._load is None or not self._is_kept(txn, self._load):
            self.undo(txn)
            self._tries += 1
            if self._tries > txn.thresholds.tries or not self._begin(txn):
                restore(txn, self._target, self._payload, self._replace, self._expire_at)
                return True
        assert self._load is not None
        assert self._found is not None
        try:
            return self._take(txn, self._load, self._found)
        except InvalidArgument as error:  # a payload may be sound, and yet be no stream
            raise BadPayload(str(error)) from None

    def _begin(self, txn: Txn) -> bool:
        """Start to read; return False if the payload is to be restored in one turn."""
        source = reading(self._payload)
        if source is None or 0 < self._expire_at <= txn.now_ms:
            return False
        self._found = source
        self._load = staged_loads.begin(txn, self._target, replace=True)
        return True

    def _take(self, txn: Txn, under_way: StagedLoad, source: StreamReading) -> bool:
        scratch, taken = load.scratch_of(txn), 0
        for node in source.nodes():
            load.take_node(scratch, under_way.stream, node)
            taken += node.count
            if taken >= txn.thresholds.step_rows:
                load.merge(txn, scratch.batch)
                return False
        load.seal(scratch, under_way.stream, source.state(), txn.allocate)
        staged_loads.publish(
            txn, self._target, under_way, scratch.batch, self._replace, self._expire_at
        )
        return True
