"""Bulk loads through the server: clients send files of rows, and a commit makes parts of them.

::

    <store>/loads/<id>/ticket         the ticket of the load
                       <name>.rows    what clients have sent (kvstream/bulkload/parts.py)
                       parts/         the parts, during a commit

Clients name files, never folders, so they reach nothing outside. A folder outlives the server: the
next one may commit its load. A folder in which nothing was written for a day is removed.
"""

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvstream.bulkload import commit as bulk
from kvstream.bulkload.parts import (
    BulkTicket,
    Guard,
    RowsFile,
    pack_ticket,
    part_of_rows,
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
"""A load that receives nothing for so long is removed."""
PART_WORDS = 3
"""The words of COMMIT that name one file: name, digest, GIVEN or ALLOTTED."""
_ID = re.compile(rb"[0-9a-f]{32}")
_NAME = re.compile(rb"[0-9A-Za-z_-]{1,128}")
_DIGEST = re.compile(rb"[0-9a-f]{32}")
_KINDS = {b"GIVEN": True, b"ALLOTTED": False}
_TICKET, _PARTS = "ticket", "parts"
_HOW = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

Outcome = list[tuple[Reply, Reply]]


class Uploads:
    """The loads of one server; its event loop calls this, jobs run in threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs: dict[bytes, tuple[Job, Outcome]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a commit is running."""
        return any(job.is_alive for job, _ in self._jobs.values())

    def join(self) -> None:
        """Wait for the running commits."""
        for job, _ in list(self._jobs.values()):
            job.thread.join()

    def begin(self, ticket: BulkTicket) -> tuple[bytes, bytes]:
        """Create the folder of a load; return the load's name and its ticket as bytes."""
        self._refuse_full()
        load = uuid.uuid4().hex.encode()
        self._sweep()
        folder = folder_of(self._engine.database.own_path) / load.decode()
        folder.mkdir(DIRECTORY_MODE)
        packed = pack_ticket(ticket)
        with _open_to_append(folder / _TICKET) as file:
            os.write(file, packed)
        return load, packed

    def put(self, load: bytes, name: bytes, offset: int, data: bytes) -> int:
        """Append to a file of a load whose length is ``offset``; return the new length."""
        folder = self._folder(load)
        self._refuse_busy(load)
        self._refuse_full()
        with _open_to_append(_file_of(name, folder)) as file:
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
        """Start the commit of the files that ``words`` name, or return that of ``owner``.

        ``guard`` checks their keys, in the thread of the commit.
        """
        found = self._jobs.get(load)
        if found is not None and found[0].owner is owner:  # whose turn had to be run again
            return found
        folder = self._folder(load)
        self._refuse_busy(load)
        ticket = unpack_ticket(files.read(folder / _TICKET))
        rows = [
            _rows_of(words[at : at + PART_WORDS], folder) for at in range(0, len(words), PART_WORDS)
        ]
        outcome: Outcome = []
        named = mark_of(mark, ticket.db)

        def work() -> None:
            made = folder / _PARTS
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(DIRECTORY_MODE)
            try:
                parts = [part_of_rows(each, ticket, made, guard) for each in rows]
                result = bulk.load(self._engine, ticket, parts, named)
            finally:
                shutil.rmtree(made, ignore_errors=True)
            outcome.extend([(b"applied", int(result.applied)), (b"entries", result.entries)])
            shutil.rmtree(folder, ignore_errors=True)

        self._jobs = {name: each for name, each in self._jobs.items() if each[0].is_alive}
        job = Job(self._engine, "load", work, owner)
        self._jobs[load] = job, outcome
        job.thread.start()
        return job, outcome

    def discard(self, load: bytes) -> None:
        """Remove a load."""
        folder = self._folder(load)
        self._refuse_busy(load)
        shutil.rmtree(folder, ignore_errors=True)

    # --- inside ---------------------------------------------------------------------------------

    def _folder(self, load: bytes) -> Path:
        folder = self._engine.database.own_path / FOLDER / load.decode("ascii", "replace")
        if not _ID.fullmatch(load) or not folder.is_dir():
            raise NoSuchLoad
        return folder

    def _refuse_busy(self, load: bytes) -> None:
        job = self._jobs.get(load)
        if job is not None and not job[0].done:
            raise InvalidArgument("the load is being committed")

    def _refuse_full(self) -> None:
        refusal = self._engine.database.refusal()
        if refusal is not None:
            raise refusal

    def _sweep(self) -> None:
        """Remove the loads that were given up."""
        for folder in folder_of(self._engine.database.own_path).iterdir():
            with suppress(FileNotFoundError, NotADirectoryError):
                if time.time() - _last_change(folder) > LEFT_S:
                    shutil.rmtree(folder, ignore_errors=True)


def _file_of(name: bytes, folder: Path) -> Path:
    if not _NAME.fullmatch(name):
        raise InvalidArgument("a file's name is up to 128 letters, digits, - and _")
    return folder / f"{name.decode()}.rows"


def _rows_of(words: Argv, folder: Path) -> RowsFile:
    name, digest, kind = words
    has_ids = _KINDS.get(kind.upper())
    if has_ids is None or not _DIGEST.fullmatch(digest):
        raise InvalidArgument("a part is: name, digest, GIVEN or ALLOTTED")
    return RowsFile(str(_file_of(name, folder)), digest.decode(), has_ids)


def _last_change(folder: Path) -> float:
    """Return the time of the last change in a folder, or of a file in it."""
    times = [folder.stat().st_mtime, *(file.stat().st_mtime for file in folder.iterdir())]
    return max(times)


@contextmanager
def _open_to_append(path: Path) -> Iterator[int]:
    """Open or create a file for appending; a failed write leaves it as it was."""
    file = os.open(path, _HOW, FILE_MODE)
    before = os.fstat(file).st_size
    try:
        yield file
    except OSError as error:
        os.ftruncate(file, before)
        raise StoreFull(f"the disk does not take it: {error.strerror}") from None
    finally:
        os.close(file)
