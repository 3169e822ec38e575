"""WATCH: telling whether a key is still as it was."""

from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn


def fingerprint(txn: Txn, name: bytes) -> object:
    """Return what is another value once a key has been changed; None: there is no key.

    What a consumer group's readers do changes nothing, as in Redis.
    """
    stream = txn.key(name)
    if isinstance(stream, StringMeta):
        return (stream.generation, stream.value, stream.pieces, stream.expire_at)
    if stream is None:
        return None
    groups = tuple((group.name, group.row) for group in txn.catalog.groups(txn, stream))
    return (
        stream.generation,
        stream.entries_added,
        stream.length,
        stream.last,
        stream.max_deleted,
        stream.expire_at,
        stream.iids_added,
        groups,
    )
