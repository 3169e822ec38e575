"""Bulk loads through the server: folders that clients fill with parts, until a commit takes them.

::

    <store>/loads/<id>/ticket                 what makers of parts were told
                       <part>.sst, .pieces    what they have made (kvstream/bulkload/parts.py)

Clients name files, never folders, so nothing outside is reached. A folder outlives the server: its
load may still be committed by the next one. One in which nothing was written for a day is removed.
"""

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kvstream.bulkload import commit as bulk
from kvstream.bulkload.commit import Guard
from kvstream.bulkload.parts import (
    PART_WORDS,
    BulkTicket,
    file_of,
    pack_ticket,
    part_of,
    unpack_ticket,
)
from kvstream.commands.args import Argv
from kvstream.commands.replies import Reply
from kvstream.engine.coerce import mark_of
from kvstream.engine.engine import Engine
from kvstream.engine.server_address import FOLDER, folder_of
from kvstream.errors import InvalidArgument, NoSuchLoad, StoreFull
from kvstream.server.runtime.checkpoints import Job
from kvstream.storage import files
from kvstream.storage.files import DIRECTORY_MODE, FILE_MODE

LEFT_S = 24 * 3600
"""A load for which nothing has come for so long is taken for one that was given up."""
_ID = re.compile(rb"[0-9a-f]{32}")
_TICKET = "ticket"
_HOW = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

Outcome = list[tuple[Reply, Reply]]


class Loads:
    """The loads of one server; for its loop, but for what jobs do."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs: dict[bytes, tuple[Job, Outcome]] = {}

    @property
    def is_busy(self) -> bool:
        """Tell whether a commit is at work."""
        return any(job.is_alive for job, _ in self._jobs.values())

    def join(self) -> None:
        """Wait for what still runs."""
        for job, _ in list(self._jobs.values()):
            job.thread.join()

    def begin(self, ticket: BulkTicket) -> tuple[bytes, bytes]:
        """Make the folder of a load; return the load's name, and its ticket as bytes."""
        self._refuse_full()
        load = uuid.uuid4().hex.encode()
        self._sweep()
        folder = folder_of(self._engine.database.directory) / load.decode()
        folder.mkdir(DIRECTORY_MODE)
        packed = pack_ticket(replace(ticket, load=load.decode()))
        with _written(folder / _TICKET) as file:
            os.write(file, packed)
        return load, packed

    def put(self, load: bytes, name: bytes, offset: int, data: bytes) -> int:
        """Append to a file of a load, which is so long by now; return how long it is then."""
        folder = self._folder(load)
        self._refuse_busy(load)
        self._refuse_full()
        with _written(file_of(name, folder)) as file:
            size = os.fstat(file).st_size
            if size != offset:
                raise InvalidArgument(f"the file has {size} bytes: what comes next belongs there")
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
        return offset + len(data)

    def commit(
        self, owner: object, load: bytes, words: Argv, mark: tuple[bytes, int] | None, guard: Guard
    ) -> tuple[Job, Outcome]:
        """Begin to take in the parts that words tell of, or find what ``owner`` has begun.

        ``guard`` is shown the keys that they are for, in the thread that takes them in.
        """
        found = self._jobs.get(load)
        if found is not None and found[0].owner is owner:  # whose turn had to be run again
            return found
        folder = self._folder(load)
        self._refuse_busy(load)
        ticket = unpack_ticket(files.read(folder / _TICKET))
        parts = [
            part_of(words[at : at + PART_WORDS], folder) for at in range(0, len(words), PART_WORDS)
        ]
        outcome: Outcome = []
        named = mark_of(mark, ticket.db)

        def work() -> None:
            result = bulk.load(self._engine, ticket, parts, named, guard)
            outcome.extend([(b"applied", int(result.applied)), (b"entries", result.entries)])
            shutil.rmtree(folder, ignore_errors=True)

        self._jobs = {name: each for name, each in self._jobs.items() if each[0].is_alive}
        job = Job(self._engine, "load", work, owner)
        self._jobs[load] = job, outcome
        job.thread.start()
        return job, outcome

    def discard(self, load: bytes) -> None:
        """Remove a load that is not to be."""
        folder = self._folder(load)
        self._refuse_busy(load)
        shutil.rmtree(folder, ignore_errors=True)

    # --- inside ---------------------------------------------------------------------------------

    def _folder(self, load: bytes) -> Path:
        folder = self._engine.database.directory / FOLDER / load.decode("ascii", "replace")
        if not _ID.fullmatch(load) or not folder.is_dir():
            raise NoSuchLoad
        return folder

    def _refuse_busy(self, load: bytes) -> None:
        found = self._jobs.get(load)
        if found is not None and not found[0].done:
            raise InvalidArgument("the load is being committed")

    def _refuse_full(self) -> None:
        refusal = self._engine.database.refusal()
        if refusal is not None:
            raise refusal

    def _sweep(self) -> None:
        """Remove loads that were given up."""
        for folder in folder_of(self._engine.database.directory).iterdir():
            with suppress(FileNotFoundError, NotADirectoryError):
                if time.time() - _last_change(folder) > LEFT_S:
                    shutil.rmtree(folder, ignore_errors=True)


def _last_change(folder: Path) -> float:
    """Return when something was last written in a folder, or to a file in it."""
    times = [folder.stat().st_mtime, *(file.stat().st_mtime for file in folder.iterdir())]
    return max(times)


@contextmanager
def _written(path: Path) -> Iterator[int]:
    """Open a file for appending, made where it is not; what fails leaves it as it was."""
    file = os.open(path, _HOW, FILE_MODE)
    before = os.fstat(file).st_size
    try:
        yield file
    except OSError as error:
        os.ftruncate(file, before)
        raise StoreFull(f"the disk does not take it: {error.strerror}") from None
    finally:
        os.close(file)
