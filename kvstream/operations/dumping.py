"""DUMP and RESTORE of long streams, in steps between which others go on.

DUMP tells of the moment of its first step. RESTORE happens in its last one: until then entries and
nodes go to where nobody sees them.
"""

from itertools import islice

from kvstream.errors import BadPayload, InvalidArgument, StoreClosed
from kvstream.meta import staged
from kvstream.meta.records import StreamMeta
from kvstream.meta.staged import StagedLoad
from kvstream.meta.txn import Txn
from kvstream.operations import loading, payloads, staging
from kvstream.operations.still import MANY_GROUPS
from kvstream.operations.witness import LONG_ROWS, STEP_ROWS, TRIES
from kvstream.rdb.streams import StreamReading
from kvstream.storage.batch import Family

STEP_NODES = 16
"""Nodes that one step of DUMP writes: a millisecond of work."""
LONG_BYTES = 64 << 10
"""A payload of more bytes is taken in steps: it has some thousand entries."""


def is_long(txn: Txn, name: bytes) -> bool:
    """Tell whether a key is a stream of very many entries, or groups."""
    key = txn.key(name)
    if not isinstance(key, StreamMeta):
        return False
    return key.length > LONG_ROWS or key.groups_count >= MANY_GROUPS


class LongDump:
    """The payload of a stream that there is, as it is when this is made: nothing is changed yet."""

    def __init__(self, txn: Txn, name: bytes) -> None:
        self._name = name
        self._pieces = payloads.pieces_of_now(txn, name)
        self._made: list[bytes] = []
        self._size = 0

    def step(self, txn: Txn) -> tuple[int, list[bytes]] | None:
        """Go on; return how long the payload is, and its pieces, once it is whole, None before.

        No pieces: the store was opened anew meanwhile, and the key is there no more.
        """
        most = txn.catalog.limits.reply_left
        try:
            some = list(islice(self._pieces, STEP_NODES))
        except StoreClosed:
            whole = payloads.dump(txn, self._name)
            return (0, []) if whole is None else (len(whole), [whole])
        self._made += some
        self._size += sum(map(len, some))
        if most and self._size > most:
            raise txn.catalog.limits.too_large()
        return None if some else (self._size, self._made)


class LongRestore:
    """RESTORE of a payload."""

    def __init__(self, name: bytes, payload: bytes, replace: bool, expire_at: int) -> None:
        self._name, self._payload = name, payload
        self._replace, self._expire_at = replace, expire_at
        self._load: StagedLoad | None = None
        self._found: StreamReading | None = None
        self._tries = 0

    def step(self, txn: Txn) -> bool:
        """Go on; tell whether the key has been made."""
        loading.refuse_existing(txn, self._name, self._replace)
        if self._load is None or not self._holds(txn, self._load):
            self.undo(txn)
            self._tries += 1
            if self._tries > TRIES or not self._begin(txn):
                arguments = self._payload, self._replace, self._expire_at
                payloads.restore(txn, self._name, *arguments)
                return True
        assert self._load is not None
        assert self._found is not None
        try:
            return self._take(txn, self._load, self._found)
        except InvalidArgument as error:  # a payload may be sound, and yet be no stream
            raise BadPayload(str(error)) from None

    def undo(self, txn: Txn) -> None:
        """Delete what was taken so far."""
        if self._load is not None and _is_there(txn, self._load):
            staged.discard(txn, self._load)
        self._load = self._found = None

    def _begin(self, txn: Txn) -> bool:
        """Begin to read; tell whether it is worth it."""
        found = payloads.reading(self._payload)
        if found is None or 0 < self._expire_at <= txn.now_ms:
            return False
        self._found, self._load = found, staging.begin(txn, self._name, replace=True)
        return True

    def _holds(self, txn: Txn, load: StagedLoad) -> bool:
        """Tell whether the database is the one that it was, and nobody has flushed it."""
        stored = txn.catalog.databases.stored_name(txn, self._name)
        return load.stream.name == stored and _is_there(txn, load)

    def _take(self, txn: Txn, load: StagedLoad, found: StreamReading) -> bool:
        scratch, taken = loading.scratch_of(txn), 0
        for node in found.nodes():
            loading.take_node(scratch, load.stream, node)
            taken += node.count
            if taken >= STEP_ROWS:
                loading.merge(txn, scratch.batch)
                return False
        state = found.state()
        loading.seal(scratch, load.stream, state, txn.allocate)
        staging.publish(txn, self._name, load, scratch.batch, self._replace, self._expire_at)
        return True


def _is_there(txn: Txn, load: StagedLoad) -> bool:
    return txn.batch.get(Family.METADATA, load.row) is not None
