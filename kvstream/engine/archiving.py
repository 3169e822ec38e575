"""The archive of an engine, if its store has one. Only then its modules are imported: 5 ms."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kvstream.errors import ArchiveTaken
from kvstream.storage.changes import read_history
from kvstream.storage.database import Database
from kvstream.storage.durability import Committer
from kvstream.storage.write_guard import WriteGuard
from kvstream.types.options import StoreOptions

if TYPE_CHECKING:
    from kvstream.archive.archiver import Archiver, Status
    from kvstream.archive.restore import Plan

_log = logging.getLogger(__name__)


class Archiving:
    """Follows one store with an archiver, as its options say."""

    def __init__(self, options: StoreOptions, directory: Path) -> None:
        """Take the archive over first, if the options ask for it."""
        self._options = options
        self._archiver: Archiver | None = None
        self._key = ""
        self._make: Callable[[], Archiver] | None = None
        self._guard: WriteGuard | None = None
        self.taken_over: Plan | None = None
        """What was restored; None if nothing was to be taken over."""
        if options.archive:
            from kvstream.archive.keys import find_keys

            self._key = find_keys(options.archive_key, options.archive_key_command)
        if options.take_over:
            from kvstream.archive.restore import take_over

            self.taken_over = take_over(options.archive, directory, key=self._key)

    @property
    def archiver(self) -> "Archiver":
        """The archiver; only for a store that has one."""
        assert self._archiver is not None
        return self._archiver

    def start(
        self,
        database: Database,
        committer: Committer,
        copy_files: Callable[[Path, int], object],
        sleeps: bool = False,
        is_served: bool = False,
    ) -> None:
        """Begin to put commits into the archive, if the store has one; a replica's ``sleeps``.

        If the archive was taken over from a store with replicas that is served, it takes no writes:
        one of them may be the primary, and it is to be told so. Else ArchiveTaken is raised.
        """
        if not self._options.archive:
            return
        from kvstream.archive.archiver import Archiver
        from kvstream.archive.objects import open_objects

        def make() -> Archiver:
            objects = open_objects(self._options.archive, self._key)
            return Archiver(objects, database, self._options, committer, copy_files)

        self._make, self._guard = make, database.write_guard
        if sleeps:
            return
        self._archiver = make()
        try:
            self._archiver.start()
        except ArchiveTaken as error:
            if not is_served or read_history(database) is None:
                raise
            self.sleep()
            _log.error("%s", error)
            database.write_guard.shut(error)

    def sleep(self) -> None:
        """Put nothing more: the store follows another one, whose archive it is."""
        archiver, self._archiver = self._archiver, None
        if archiver is not None:
            archiver.abandon()
        if self._guard is not None:
            self._guard.forgive(ArchiveTaken)

    def take(self) -> None:
        """Become the owner, in place of whoever is it, in a thread: the store was promoted."""
        if self._make is not None:
            self.sleep()
            self._archiver = self._make()
            self._archiver.take()

    def status(self) -> "Status | None":
        """Return how far the archive is; None if there is none, it sleeps, or is being opened."""
        return None if self._archiver is None else self._archiver.status()

    def put(self, sequence: int) -> None:
        """Wait until a commit is in the archive; UnknownOutcome if that takes too long."""
        if self._archiver is not None:  # else it is being opened
            self._archiver.make_durable(sequence)

    def close(self) -> None:
        """Put what is left, and stop."""
        if self._archiver is not None:
            self._archiver.close()
