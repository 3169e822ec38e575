"""Opening a store that was refused, by giving up what is lost: ``kvstream recover``."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from kvstream.storage.database import Database
from kvstream.types.options import StoreOptions


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a recovery found and gave up."""

    directory: Path
    rows: int
    """Rows of the store, every one of them read and checked."""
    sequence: int
    """The last sequence number that the store has now."""
    damage: str | None = None
    """Why the store had been refused; None when it had not."""
    promised: int | None = None
    """The last sequence number acknowledged as durable; None when nobody knows."""
    skipped_records: bool = False
    """Records in the middle were lost: the counters need ``check --repair``."""
    kept_logs: Path | None = None
    """Where the logs, and all other files, lie as they were; at first they take no space."""

    @property
    def lost(self) -> range:
        """The sequence numbers that were acknowledged as durable and are gone."""
        if self.damage is None or self.promised is None:
            return range(0)
        return range(self.sequence + 1, self.promised + 1)


def recover(
    directory: str | os.PathLike[str], options: StoreOptions | None = None, *, accept_loss: bool
) -> RecoveryReport:
    """Open the store, mend what can be mended, read all of it, and close it.

    Without ``accept_loss`` a store that has lost acknowledged writes is refused as by any other
    opening, and left as it was. With it the loss is final; the files are kept as they were, in
    the directory of the store. A damaged table is never given up: Corruption is raised, and a
    checkpoint is the cure.
    """
    chosen = replace(options or StoreOptions(), create=False, accept_loss=accept_loss)
    database = Database.open(Path(directory), chosen)
    try:
        found = RecoveryReport(database.directory, database.verify(), database.sequence)
        loss = database.loss
        if loss is None:
            return found
        return replace(
            found,
            sequence=loss.recovered,
            damage=loss.damage,
            promised=loss.promised,
            skipped_records=loss.skipped_records,
            kept_logs=loss.kept,
        )
    finally:
        database.close()
