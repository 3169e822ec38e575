"""DUMP and RESTORE: a key as a payload that Redis reads, too.

A payload names its type and version, and a server refuses versions newer than its own. So a payload
has the oldest form that loses nothing of the key, unless a target server is named.

``plan_dump`` and ``plan_restore`` do long streams in steps (``operations/plans.py``). DUMP shows a
stream as it is in the first step; RESTORE makes the key in the last one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from kvstream.errors import BadPayload, InvalidArgument, StoreClosed
from kvstream.meta.events.keys import RESTORE
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations.images import load as loading
from kvstream.operations.images import staged_loads
from kvstream.operations.images.load import StreamImage, refuse_existing
from kvstream.operations.keyspace import delete, make_room
from kvstream.operations.plans import ALWAYS_HOLDS, Plan, Planning
from kvstream.rdb import payload as payloads
from kvstream.rdb.versions import TARGETS, Target, format_losses, reduce, target
from kvstream.types.images import StreamState
from kvstream.types.options import DUMP_TARGET_AUTO

_CANDIDATES = [TARGETS[name] for name in ("redis:7.0", "valkey", "redis:8.6", "redis:8.8")]
"""The types of streams since 7.0, each with the first version that writes it."""


def dump(txn: Txn, name: bytes, wanted: str | None = None) -> bytes | None:
    """Return the payload of a key, None if there is none.

    ``wanted`` names the server that the payload is for; what it cannot read is left out. None: the
    target of the store's settings. Raise ReplyTooLarge if the payload is too long for a reply.
    """
    wanted = wanted or txn.catalog.limits.dump_target
    chosen = None if wanted == DUMP_TARGET_AUTO else target(wanted)
    key = txn.key(name)
    if key is None:
        return None
    if isinstance(key, StringMeta):
        return payloads.dump_string(chosen or _CANDIDATES[0], key.read(txn.batch))
    image = loading.image(txn, name)
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
    """Return an iterator of the payload of a stream as it is now, for use after ``txn``.

    The transaction must have changed nothing. A piece may be empty.
    """
    wanted = txn.catalog.limits.dump_target
    chosen = None if wanted == DUMP_TARGET_AUTO else target(wanted)
    return _pieces_in_steps(loading.image_in_steps(txn, name), chosen)


def _pieces_in_steps(steps: Iterator[StreamImage | None], chosen: Target | None) -> Iterator[bytes]:
    for image in steps:
        if image is None:
            yield b""
        else:
            yield from _pieces(image, chosen)


def _pieces(image: StreamImage, chosen: Target | None) -> Iterator[bytes]:
    state = image.state()
    chosen = chosen or lossless(state)
    reduce(state, chosen)  # limits of producers that are the server's own count as no loss
    return payloads.dump(chosen, image.nodes(), state, image.node_count)


def restate(txn: Txn, name: bytes, payload: bytes) -> None:
    """Replace the groups, counters and producers of a stream by those of a payload.

    Raise BadPayload if the payload is not of a stream, NoSuchKey if there is none, and change
    nothing then.
    """
    value = payloads.restore(payload)
    if isinstance(value, bytes):
        raise BadPayload("the payload is of a plain string")
    state = value.state()
    txn.existing_stream(name)
    loading.restate(txn, name, state)


def lossless(state: StreamState) -> Target:
    """Return the oldest form that holds all of a stream's state."""
    return next((form for form in _CANDIDATES if not format_losses(state, form)), _CANDIDATES[-1])


def restore(
    txn: Txn, name: bytes, payload: bytes, replace: bool = False, expire_at: int = 0
) -> list[str]:
    """Create a key from a payload; return the corrections of the payload's faults.

    ``expire_at`` is a Unix time in milliseconds, 0 for never; if it has passed the key is deleted.
    Raise BadPayload if the payload cannot be read, KeyExists if the name is taken and ``replace``
    is false, and change nothing then.
    """
    refuse_existing(txn, name, replace)
    value = payloads.restore(payload)
    gone = 0 < expire_at <= txn.now_ms
    if not isinstance(value, bytes):
        if gone:
            value.state()
        else:
            with _bad_payloads():
                loaded = loading.load(txn, name, value, replace, expire_at)
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


def check_target(name: str) -> str:
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


def plan_dump(name: bytes) -> Plan[tuple[int, list[bytes]]]:
    """Plan the payload of a long stream as it is in the first step.

    The result is its length and its pieces; there are none if the key is gone. If the store is
    reopened between two steps, the payload is made again in one step.
    """

    def plan(txn: Txn) -> Planning[tuple[int, list[bytes]]]:
        if not is_long(txn, name):
            return _dump_whole(txn, name)
        pieces = pieces_of_now(txn, name)
        made, size = list[bytes](), 0
        while True:
            try:
                some = list(islice(pieces, txn.thresholds.step_nodes))
            except StoreClosed:
                return _dump_whole(txn, name)
            if not some:
                return size, made
            made += some
            size += sum(map(len, some))
            most = txn.catalog.limits.reply_left
            if most and size > most:
                raise txn.catalog.limits.too_large()
            txn = yield ALWAYS_HOLDS

    return plan


def _dump_whole(txn: Txn, name: bytes) -> tuple[int, list[bytes]]:
    whole = dump(txn, name)
    return (0, []) if whole is None else (len(whole), [whole])


def plan_restore(name: bytes, payload: bytes, replace: bool, expire_at: int) -> Plan[bool]:
    """Plan the key of a long payload: load its nodes where nobody sees them, then make the key."""

    def plan(txn: Txn) -> Planning[bool]:
        refuse_existing(txn, name, replace)
        source = payloads.restore(payload)
        if isinstance(source, bytes) or 0 < expire_at <= txn.now_ms:
            restore(txn, name, payload, replace, expire_at)
            return True
        load = staged_loads.begin(txn, name, replace=True)
        progress = staged_loads.progress_of(load, name)
        scratch, taken = loading.scratch_of(txn), 0
        with _bad_payloads():
            for node in source.nodes():
                loading.take_node(scratch, load.stream, node)
                taken += node.count
                if taken >= txn.thresholds.step_rows:
                    loading.merge(txn, scratch.batch)
                    txn = yield progress
                    refuse_existing(txn, name, replace)
                    scratch, taken = loading.scratch_of(txn), 0
            loading.seal(scratch, load.stream, source.state(), txn.allocate)
        staged_loads.publish(txn, name, load, scratch.batch, replace, expire_at)
        return True

    return plan


@contextmanager
def _bad_payloads() -> Iterator[None]:
    """Replace InvalidArgument by BadPayload: a readable payload may hold no valid stream."""
    try:
        yield
    except InvalidArgument as error:
        raise BadPayload(str(error)) from None
