"""Streams of very many groups that are gone: they keep their rows for a while, under another name.

Each group has trees of its own, so that they are deleted some at a time (meta/leftovers.py). The
name is free at once, for whatever takes it. The same becomes of streams that one commit deletes
together, once they have had very many groups.
"""

from kvstream.layout.keys import U64, database_of, key_of, qualified, scan_row, stream_row
from kvstream.meta.doomed import encode_doomed
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family

GROUPS_TOGETHER = 100
"""Groups that are deleted at once: a stream with more of them leaves some at a time."""
GROUPS_OF_COMMIT = 300
"""Groups that one commit deletes of all streams together, 30 us each."""
_GRAVE = b"kvstream:gone:"
"""Before the generation it makes the key; where a client has such a key all groups go at once."""


def bury(txn: Txn, stream: StreamMeta) -> bool:
    """Have a stream gone with this commit, and its rows later; False where it has few groups."""
    dropped = txn.groups_dropped + stream.groups_count
    if stream.groups_count <= GROUPS_TOGETHER and dropped <= GROUPS_OF_COMMIT:
        txn.groups_dropped = dropped
        return False
    catalog, generation = txn.catalog, stream.generation
    db = database_of(stream.name)
    grave = qualified(db, _GRAVE + U64.pack(generation))
    txn.frees = True
    txn.finish()  # nothing of its groups may be left to be written by a later commit
    if txn.batch.get(Family.METADATA, stream_row(grave)) is not None:
        return False
    catalog.hot.forget(stream.prefix)
    catalog.unlist(txn, stream)
    stream.name, stream.row, stream.expire_at = grave, stream_row(grave), 0
    catalog.index.note(stream)  # whoever is about to make a key of that name
    txn.reshaped(stream)
    txn.finish()
    txn.batch.put(Family.METADATA, scan_row(db, generation), key_of(grave))
    if not catalog.is_gone(txn, stream):  # else somebody is to sweep it already
        catalog.doomed.add(txn, dict([encode_doomed(db, [generation])]), {generation})
    return True
