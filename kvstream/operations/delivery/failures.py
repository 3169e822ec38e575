"""The last error of entries that were given back, for their dead letters.

An entry that failed may become a dead letter later without an error: its time to live ends, or its
last consumer dies. So KVSTREAM.NACK keeps the error of an entry that is delivered again, in a row
of the queue tree. A timer checks whether the entry is still pending, and deletes the row if it is
not, so that acknowledgements need not look for rows::

    row "E" length(u32) group id  -> msgpack array: check_ms, error, traceback
    timer kind 9, rest = length(u32) group id, at check_ms
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import msgpack

from kvstream.errors import Corruption, stored_text
from kvstream.layout.keys import ID_BYTES
from kvstream.meta import pel, timers
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.timers import Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.types.images import PackedID

ROW_TAG = b"E"
CHECK_MS = 600_000
"""How often a timer checks whether an entry is still pending."""
_LENGTH = Struct(">I")
_TYPES = [int, bytes, bytes]
_pack = msgpack.Packer(use_bin_type=True).pack


class Failure(NamedTuple):
    """The error with which a consumer gave an entry back."""

    check_ms: int
    error: bytes
    traceback: bytes


def shorten(error: bytes, traceback: bytes) -> tuple[bytes, bytes]:
    """Return the parts of an error and of a traceback that are kept."""
    return stored_text(error), stored_text(traceback, keep_end=True)


def rest_of(group: bytes, eid: PackedID) -> bytes:
    """Return the end of two keys: of a row, after its tag, and of a timer, after its kind."""
    return _LENGTH.pack(len(group)) + group + eid


def parse(rest: bytes) -> tuple[bytes, PackedID]:
    """Return the group and the entry of ``rest_of``; raise Corruption if it is damaged."""
    try:
        (length,) = _LENGTH.unpack_from(rest)
    except StructError:
        raise Corruption("the key of a failure is damaged: it is too short") from None
    end = _LENGTH.size + length
    if len(rest) != end + ID_BYTES:
        raise Corruption("the key of a failure is damaged: its length is wrong")
    return rest[_LENGTH.size : end], rest[end:]


def decode(value: bytes) -> Failure:
    """Return the failure of a row; raise Corruption if it is damaged."""
    try:
        parts = msgpack.unpackb(value)
        if [*map(type, parts)] != _TYPES:
            raise ValueError("parts of a wrong type")
        return Failure(*parts)
    except Exception as error:  # msgpack raises errors of many classes
        raise Corruption(f"a failure is damaged: {error!r}") from error


def keep(
    txn: Txn,
    stream: StreamMeta,
    group: GroupMeta,
    ids: Sequence[PackedID],
    error: bytes,
    traceback: bytes,
) -> None:
    """Keep the error of pending entries in place of an earlier one."""
    check_ms = txn.now_ms + CHECK_MS
    value = Failure(check_ms, *shorten(error, traceback))
    for eid in ids:
        _put(txn, stream, rest_of(group.name, eid), value)


def _put(txn: Txn, stream: StreamMeta, rest: bytes, failure: Failure) -> None:
    timers.put_row(txn, stream, ROW_TAG + rest, bytes(_pack(list(failure))))
    timers.put(txn, stream, failure.check_ms, Kind.FAILURE, rest)


def last(txn: Txn, stream: StreamMeta, group: GroupMeta, eid: PackedID) -> Failure | None:
    """Return the last error of an entry, if one is kept."""
    value = timers.get_row(txn, stream, ROW_TAG + rest_of(group.name, eid))
    return None if value is None else decode(value)


def fire(txn: Txn, name: bytes, stream: StreamMeta, due: list[Timer]) -> None:
    """Delete the errors of entries that are no longer pending; check the others again later."""
    for timer in due:
        value = timers.get_row(txn, stream, ROW_TAG + timer.rest)
        failure = None if value is None else decode(value)
        if failure is None or failure.check_ms != timer.at_ms:  # it has failed again since
            continue
        group_name, eid = parse(timer.rest)
        group = txn.catalog.group(txn, stream, group_name)
        run = None if group is None else pel.run_at(txn, group, eid)
        if run is not None and run.has(eid):
            _put(txn, stream, timer.rest, failure._replace(check_ms=txn.now_ms + CHECK_MS))
        else:
            timers.delete_row(txn, stream, ROW_TAG + timer.rest)
