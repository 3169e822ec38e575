"""What a primary sends to one replica, frame by frame: the log from a position on, or a copy.

``prepare`` finds out which of both, reads files for that, and may run in any thread. The frames are
asked for one at a time, when the socket has room: the bytes of a file are named, not read.
"""

import os
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from kvstream.engine.engine import Engine
from kvstream.errors import ProtocolError
from kvstream.layout.history import History, Place
from kvstream.replicas import protocol
from kvstream.replicas.copying import CopySource, Sums
from kvstream.replicas.protocol import Continue
from kvstream.replicas.sending import Commit, LogTail, find_commit, locate
from kvstream.storage.changes import log_numbers
from kvstream.storage.manifest import read_families

FRAME_BYTES = 1 << 20
"""Bytes of a file in one frame: the replica commits behind each."""


class Outgoing(NamedTuple):
    """A frame to be sent: its head, and the bytes of a file behind it."""

    head: bytes
    descriptor: int = -1
    offset: int = 0
    size: int = 0


class Feed(Protocol):
    """What one replica gets."""

    is_copy: bool

    def next(self, most: int, looks: bool) -> Outgoing | None:
        """Return the next frame, with at most ``most`` bytes; None if there is none now.

        It looks for files that were begun since only if it ``looks``. OSError if one is gone.
        """
        ...

    def close(self) -> None:
        """Close the files."""
        ...


class LogFeed:
    """The log from a position on."""

    is_copy = False

    def __init__(self, tail: LogTail) -> None:
        self._tail = tail

    def next(self, most: int, looks: bool) -> Outgoing | None:
        part = self._tail.part(min(most, FRAME_BYTES), looks)
        if part is None:
            return None
        self._tail.sent(part.size)
        head = protocol.encode_head(protocol.LOG, part.log, part.offset, part.size)
        return Outgoing(head, part.descriptor, part.offset, part.size)

    def close(self) -> None:
        self._tail.close()


class CopyFeed:
    """The files of a checkpoint: their names first, and then those that are asked for."""

    is_copy = True

    def __init__(self, source: CopySource) -> None:
        self._source = source
        self._needed: list[int] | None = None
        self._frames = self._generate()

    def need(self, indexes: list[int]) -> None:
        """Take the replica's answer to the names; ProtocolError if it is none."""
        known = range(len(self._source.files))
        if self._needed is not None or any(index not in known for index in indexes):
            raise ProtocolError("no such files are in the copy")
        self._needed = indexes

    def next(self, most: int, looks: bool) -> Outgoing | None:
        return next(self._frames, None)

    def close(self) -> None:
        self._frames.close()
        self._source.close()

    def _generate(self) -> Generator[Outgoing | None, None, None]:
        """Yield the frames; None while there is none to be sent."""
        yield Outgoing(protocol.encode_files(self._source.files))
        while self._needed is None:
            yield None
        for index in self._needed:
            yield from self._generate_file(index, self._source.files[index].size)
        yield Outgoing(protocol.encode_head(protocol.DONE, 0, 0, 0))

    def _generate_file(self, index: int, size: int) -> Generator[Outgoing, None, None]:
        descriptor, offset = self._source.open(index), 0
        try:
            while True:
                part = min(size - offset, FRAME_BYTES)
                head = protocol.encode_head(protocol.FILE, index, offset, part)
                yield Outgoing(head, descriptor, offset, part)
                offset += part
                if offset >= size:
                    return
        finally:
            os.close(descriptor)


def _find_position(path: Path, history: History, lsn: int, last: int) -> Commit | None:
    """Return where the log goes on behind a row, or some rows before it.

    From before it was promoted the store has joined commits: one that begins before the row, and
    ends behind it, is sent once more as a whole.
    """
    if lsn < history.base:
        return find_commit(path, lsn)
    sequence = history.sequence_of(lsn)
    found = locate(path, sequence, last)
    return None if found is None else Commit(*found, sequence, lsn)


class Beginning(NamedTuple):
    """The reply to a replica, what it gets then, and the first log that it needs."""

    line: bytes
    feed: LogFeed | CopyFeed
    log: int


def prepare(engine: Engine, place: Place, sums: Sums) -> Beginning:
    """Return what a replica at a position gets; the store has a history from then on.

    Any thread that is in no call of the engine may run it. ``sums`` has the sums of files that
    were copied before.
    """
    history = engine.following.begin_history()
    database = engine.database
    path, last = database.own_path, database.sequence
    fork = history.fork(place, history.lsn_of(last))
    if fork is not None and fork == place.lsn:
        found = _find_position(path, history, fork, last)
        if found is not None:
            names = {number: each.name.lower() for number, each in read_families(path).items()}
            begin = Continue(place._replace(lsn=found.lsn), found.sequence, names)
            with suppress(FileNotFoundError):  # it was trimmed meanwhile
                feed = LogFeed(LogTail(path, found.log, found.offset))
                return Beginning(protocol.encode_continue(begin), feed, found.log)
    newest = log_numbers(path)[-1]
    return Beginning(protocol.encode_copy(fork), CopyFeed(CopySource(engine, sums)), newest)
