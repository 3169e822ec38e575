"""What an old primary alone had: the entries in the logs that were kept when it became a replica.

The folders ``diverged-N`` of a store are read (storage/replacement.py). An entry counts as lost if
the logs behind the point where the histories part have its row, and do not delete it again.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstream.errors import Corruption
from kvstream.layout.keys import ID_BYTES, database_of, generation_in, key_in
from kvstream.layout.values import decode_fields
from kvstream.storage import files
from kvstream.storage.batch import Family
from kvstream.storage.changes import ChangeReader
from kvstream.storage.log import PUT
from kvstream.storage.manifest import read_families
from kvstream.storage.replacement import NOTE, kept_folders
from kvstream.types.ids import StreamID
from kvstream.types.records import Entry


@dataclass(frozen=True, slots=True)
class LostHistory:
    """One folder of kept logs."""

    folder: Path
    epoch: int
    lsn: int
    """The last row that the store had."""
    fork: int | None
    """The last row that it had in common with its new primary; None: unknown."""
    sequence: int | None
    """The number that this row has in the logs; None: unknown, so all of the logs count."""

    def entries(self) -> Iterator[tuple[int, bytes, Entry[bytes]]]:
        """Yield the database, the key and each lost entry, by streams."""
        found: dict[bytes, bytes | None] = {}
        families = read_families(self.folder)
        reader = ChangeReader(self.folder)
        try:
            while records := reader.read():
                for record in records:
                    if self.sequence is not None and record.last <= self.sequence:
                        continue
                    for number, kind, key, value in record.rows():
                        if families.get(number) is Family.MESSAGES:
                            found[key] = value if kind == PUT else None
        finally:
            reader.close()
        for key, value in sorted(found.items()):
            prefix, id_ = key[:-ID_BYTES], key[-ID_BYTES:]
            if value is None or len(key) < ID_BYTES + 2:
                continue
            db = database_of(prefix)
            if generation_in(prefix, db) is not None:  # else it is a piece of a string
                yield db, key_in(prefix), Entry(StreamID.unpack(id_), decode_fields(value))


def lost_histories(directory: Path) -> list[LostHistory]:
    """Return what is kept in the directory of a store, the oldest first."""
    return [_read(folder) for folder in kept_folders(directory)]


def _read(folder: Path) -> LostHistory:
    try:
        note: dict[str, Any] = json.loads(files.read(folder / NOTE))["note"]
        return LostHistory(folder, note["epoch"], note["lsn"], note["fork"], note["sequence"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Corruption(f"{folder.name}/{NOTE} is damaged: {error}") from None
