"""What DEBUG DIGEST tells: a checksum of keys that is the same wherever their contents are.

It covers what a client can read back: values, expiry, and of a stream its entries, its IDs, its
groups and what these have pending, but neither times that pass nor how rows lie on disk.
"""

from collections.abc import Iterator
from hashlib import sha1

from kvstream.layout.keys import database_of, key_of
from kvstream.meta.pending import runs_from
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import Key
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace
from kvstream.storage.batch import Family

EMPTY = bytes(sha1().digest_size)
"""The digest of nothing."""


def of_key(txn: Txn, name: bytes) -> bytes:
    """Return the digest of what a key holds, whatever the key; that of nothing where it is missing.

    The time is that of reading the whole value.
    """
    key = txn.key(name)
    return EMPTY if key is None else _of(txn, key)


def of_databases(txn: Txn, databases: int) -> bytes:
    """Return the digest of every key of every database, in whatever order they were made."""
    total = int.from_bytes(EMPTY, "big")
    for db in range(databases):
        for _, key in keyspace.live(txn, db, 0):
            whole = sha1(b"%d:%b" % (database_of(key.name), key_of(key.name)))
            whole.update(_of(txn, key))
            total ^= int.from_bytes(whole.digest(), "big")
    return total.to_bytes(len(EMPTY), "big")


def _of(txn: Txn, key: Key) -> bytes:
    digest = sha1(b"expires %d" % key.expire_at)
    parts = _stream_parts(txn, key) if isinstance(key, StreamMeta) else iter([key.read(txn.batch)])
    for part in parts:
        digest.update(b"%d:%b" % (len(part), part))
    return digest.digest()


def _stream_parts(txn: Txn, stream: StreamMeta) -> Iterator[bytes]:
    prefix = stream.prefix
    if stream.length:
        lower, upper = prefix + stream.first.packed, prefix + stream.last.packed + b"\0"
        for row, value in txn.batch.scan(Family.MESSAGES, lower, upper):
            yield row[len(prefix) :]
            yield value
    for number in (stream.last, stream.max_deleted):
        yield number.packed
    yield b"%d" % stream.entries_added
    for group in txn.catalog.groups(txn, stream):
        yield group.name
        yield group.last_delivered.packed
        yield b"%d" % group.entries_read
        for consumer in txn.catalog.consumers(txn, group):
            yield consumer.name
        for run in runs_from(txn, group, b""):
            for pending in run.ids:
                yield b"%b%b %d" % (pending, run.owner, run.deliveries)
