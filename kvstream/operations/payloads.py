"""DUMP and RESTORE: a key as the payload in which Redis, too, hands keys on.

A payload says of which type and version it is, and older servers take none that is newer than they
are. Unless a server is named for which it is meant, each is of the oldest form that loses nothing
of what it holds: so what uses nothing new can be taken back to where it came from.
"""

from collections.abc import Iterator

from kvstream.errors import BadPayload, InvalidArgument, NoSuchKey
from kvstream.images import StreamState
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn
from kvstream.operations import images, loading
from kvstream.operations.keyspace import delete, make_room
from kvstream.operations.loading import refuse_existing
from kvstream.options import DUMP_TARGET_AUTO
from kvstream.rdb import payload as payloads
from kvstream.rdb.streams import StreamReading
from kvstream.rdb.targets import TARGETS, Target, losses, reduce, target

_CANDIDATES = [TARGETS[name] for name in ("redis:7.0", "valkey", "redis:8.6", "redis:8.8")]
"""The types of streams from 7.0 on, each with the lowest version under which servers write it."""


def dump(txn: Txn, name: bytes, wanted: str | None = None) -> bytes | None:
    """Return the payload of a key, None where there is none.

    ``wanted`` names the server that it is for, what that cannot hold is left out; None: as the
    store's settings say. The payload is in memory as a whole: ReplyTooLarge where it is more than a
    reply may be.
    """
    wanted = wanted or txn.catalog.limits.dump_target
    chosen = None if wanted == DUMP_TARGET_AUTO else target(wanted)
    key = txn.key(name)
    if key is None:
        return None
    if isinstance(key, StringMeta):
        return payloads.dump_string(chosen or _CANDIDATES[0], key.read(txn.batch))
    image = images.image(txn, name)
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
    """Return the payload of a stream as it is now, piece by piece, to be taken after ``txn``.

    The transaction must have changed nothing. A piece may be empty.
    """
    wanted = txn.catalog.limits.dump_target
    chosen = None if wanted == DUMP_TARGET_AUTO else target(wanted)
    return _pieces_in_steps(images.image_in_steps(txn, name), chosen)


def _pieces_in_steps(
    steps: Iterator[images.StreamImage | None], chosen: Target | None
) -> Iterator[bytes]:
    for image in steps:
        if image is None:
            yield b""
        else:
            yield from _pieces(image, chosen)


def _pieces(image: images.StreamImage, chosen: Target | None) -> Iterator[bytes]:
    state = image.state()
    chosen = chosen or lossless(state)
    reduce(state, chosen)  # limits of producers that are the server's own anyway count as no loss
    return payloads.dump(chosen, image.nodes(), state, image.node_count)


def reading(payload: bytes) -> StreamReading | None:
    """Return the stream of a payload, to be read; None where it is of a plain string."""
    found = payloads.restore(payload)
    return None if isinstance(found, bytes) else found


def restate(txn: Txn, name: bytes, payload: bytes) -> None:
    """Give a stream what a payload tells besides entries, in place of its own; entries stay.

    BadPayload for what is no stream's, NoSuchKey where there is none: nothing is changed then.
    """
    found = payloads.restore(payload)
    if isinstance(found, bytes):
        raise BadPayload("the payload is of a plain string")
    state = found.state()
    if txn.stream(name) is None:
        raise NoSuchKey
    loading.restate(txn, name, state)


def lossless(state: StreamState) -> Target:
    """Return the oldest form that holds all of a stream's state."""
    return next((each for each in _CANDIDATES if not losses(state, each)), _CANDIDATES[-1])


def restore(
    txn: Txn, name: bytes, payload: bytes, replace: bool = False, expire_at: int = 0
) -> list[str]:
    """Make a key of a payload, and return what of it was wrong and has been set right.

    ``expire_at`` is a Unix time in milliseconds, 0: never; where it has passed there is no such
    key afterwards. BadPayload for what is none, KeyExists where the name is taken and what has it
    is not to be replaced; nothing is changed then.
    """
    refuse_existing(txn, name, replace)
    found = payloads.restore(payload)
    gone = 0 < expire_at <= txn.now_ms
    if not isinstance(found, bytes):
        if gone:
            found.state()
        else:
            loaded = _loaded(txn, name, found, replace, expire_at)
            return found.corrections + loaded.corrections
    elif not gone:
        make_room(txn, name)
        txn.catalog.create_string(txn, name, found, expire_at)
        txn.signal(name)
    if gone:
        delete(txn, name)
        txn.catalog.expired += 1
    return []


def _loaded(
    txn: Txn, name: bytes, found: StreamReading, replace: bool, expire_at: int
) -> loading.Loaded:
    try:
        return loading.load(txn, name, found, replace, expire_at)
    except InvalidArgument as error:  # a payload may be sound, and yet be no stream
        raise BadPayload(str(error)) from None


def checked_target(name: str) -> str:
    """Return the name of a target, or of the choice by itself; InvalidArgument names all."""
    if name != DUMP_TARGET_AUTO:
        target(name)
    return name
