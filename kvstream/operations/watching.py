"""WATCH: telling whether keys are still as they were."""

from collections.abc import Iterator

from kvstream.meta.index import KeyWatch
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn


class Watched:
    """Keys under WATCH: what they were, and what has been done to them since."""

    __slots__ = ("_only", "_prints", "_unchanged", "_watch")

    def __init__(self) -> None:
        self._prints: dict[bytes, object] = {}
        self._only: set[bytes] = set()
        self._watch: KeyWatch | None = None
        self._unchanged = False

    def __len__(self) -> int:
        return len(self._prints)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._prints)

    def add(self, txn: Txn, name: bytes) -> None:
        """Watch one more key; a name that is watched already is watched from where it was."""
        if name in self._prints:
            return
        if self._watch is None:
            self._watch = txn.catalog.index.watch(self._only)
        self._prints[name] = _fingerprint(txn, name)  # which deletes what has expired, unwatched
        self._only.add(txn.catalog.databases.stored_name(txn, name))

    def is_changed(self, txn: Txn) -> bool:
        """Tell whether any of the keys was changed, also where it has become what it was again.

        Who asks again, behind a turn that was undone, has done itself what was told of since.
        """
        if self._watch is None:
            return False
        told = bool(self._watch.changed) and not self._unchanged
        found = (_fingerprint(txn, name) != before for name, before in self._prints.items())
        self._unchanged = not (told or any(found))
        return not self._unchanged


def _fingerprint(txn: Txn, name: bytes) -> object:
    """Return what is another value once a key has been changed; None: there is no key.

    What is done with a stream's groups changes nothing, as in Redis.
    """
    stream = txn.key(name)
    if isinstance(stream, StringMeta):
        return (stream.generation, stream.value, stream.pieces, stream.expire_at)
    if stream is None:
        return None
    return (
        stream.generation,
        stream.entries_added,
        stream.length,
        stream.last,
        stream.max_deleted,
        stream.expire_at,
        stream.iids_added,
    )
