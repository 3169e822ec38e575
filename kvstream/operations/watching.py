"""WATCH: telling whether a key is still as it was."""

from kvstream.errors import WrongType
from kvstream.layout.keys import stream_row
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family


def fingerprint(txn: Txn, name: bytes) -> object:
    """Return what is another value once a key has been changed; None: there is no key.

    What a consumer group's readers do changes nothing, as in Redis.
    """
    try:
        stream = txn.stream(name)
    except WrongType:
        return txn.batch.get(Family.METADATA, stream_row(name))
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
