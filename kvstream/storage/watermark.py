"""The watermark: the last sequence number known to be durable, kept beside the log.

RocksDB recovers its log up to the first damaged record and cannot tell a torn tail, which was
never acknowledged, from a lost acknowledged write. After every fsync of the log the sequence number
that it covered is written here, without an fsync of its own: the mark is never ahead of the log, so
it raises no false alarm, and a store that recovers less than it says has lost acknowledged writes.

::

    file := slot padding slot padding        each slot alone in its page of 4096 bytes
    slot := magic version counter sequence crc
      magic     4 bytes  "KVSW"
      version   u32      1, the version of this format
      counter   u64      rises with every write; the greater one of two valid slots is the newer
      sequence  u64      RocksDB's sequence number
      crc       u32      CRC-32 of all before it
    integers are big-endian

The slots are written in turn, so that a torn write leaves the other one. Slots that were written
before there was a version had the counter in its place, whose upper half reads as version 0. Every
later version keeps the places of magic, version and checksum, and a slot's size: so a slot of a
later version can be distinguished from a torn one. This module knows files, not RocksDB.
"""

import errno
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kvstream.errors import UnknownLayout
from kvstream.storage import files

FILE_NAME = "WATERMARK"
VERSION = 1
_MAGIC = b"KVSW"
_HEAD = struct.Struct(">4sI")
_BODIES = {0: struct.Struct(">4sIIQ"), VERSION: struct.Struct(">4sIQQ")}
"""What comes before the checksum, by version."""
_SUM = struct.Struct(">I")
_SLOT_SIZE = _BODIES[VERSION].size + _SUM.size
_PAGE = 4096
_SLOTS = 2


@dataclass(frozen=True, slots=True)
class Mark:
    """The contents of a valid slot."""

    counter: int
    sequence: int


class Watermark:
    """The open watermark file of a store that is being written to."""

    def __init__(self, descriptor: int, mark: Mark, path: Path) -> None:
        self._descriptor = descriptor
        self.mark = mark
        self._path = path

    @staticmethod
    def read(directory: Path) -> Mark | None:
        """Return the newest valid mark; None if no slot is valid.

        Raises FileNotFoundError when there is no file at all, UnknownLayout when a later version
        has written it.
        """
        content = files.read(directory / FILE_NAME)
        marks = [_decode(content[slot * _PAGE :][:_SLOT_SIZE]) for slot in range(_SLOTS)]
        valid = [mark for mark in marks if mark is not None]
        return max(valid, key=lambda mark: mark.counter, default=None)

    @staticmethod
    def create(directory: Path, sequence: int) -> None:
        """Write a watermark file durably, in place of one that may be there."""
        slots = [_encode(Mark(counter, sequence)) for counter in range(_SLOTS)]
        content = b"".join(slot.ljust(_PAGE, b"\0") for slot in slots)
        files.write(directory / FILE_NAME, content)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open the file for recording.

        It is written to in place. Where it has other names, such as in a copy of the store by hard
        links, a copy takes its place first: theirs stays as it is.
        """
        path = directory / FILE_NAME
        mark = cls.read(directory) or Mark(0, 0)
        if os.stat(path).st_nlink > 1:
            files.write(path, files.read(path))
        return cls(files.open_regular(path, os.O_RDWR), mark, path)

    def is_replaced(self) -> bool:
        """Return whether another file has taken the place of the open one."""
        try:
            return self._descriptor >= 0 and not files.is_at(self._descriptor, self._path)
        except OSError:  # a missing watermark alone is damage, which the next opening reports
            return False

    def record(self, sequence: int) -> None:
        """Note that the log is durable up to ``sequence``, by one small write without fsync.

        A full disk is no error: the mark stays behind, which is safe.
        """
        mark = Mark(self.mark.counter + 1, sequence)
        slot = mark.counter % _SLOTS
        try:
            os.pwrite(self._descriptor, _encode(mark), slot * _PAGE)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        else:
            self.mark = mark

    def close(self) -> None:
        """Close the file; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _encode(mark: Mark) -> bytes:
    body = _BODIES[VERSION].pack(_MAGIC, VERSION, mark.counter, mark.sequence)
    return body + _SUM.pack(zlib.crc32(body))


def _decode(slot: bytes) -> Mark | None:
    """Return the mark in a slot; None if it is torn."""
    if len(slot) != _SLOT_SIZE:
        return None
    magic, version = _HEAD.unpack_from(slot)
    layout = _BODIES.get(version, _BODIES[VERSION])
    (checksum,) = _SUM.unpack_from(slot, layout.size)
    if magic != _MAGIC or checksum != zlib.crc32(slot[: layout.size]):
        return None
    if version not in _BODIES:
        raise UnknownLayout(
            f"{FILE_NAME} has version {version}; this version of kvstream knows {VERSION}: "
            "use the version of kvstream that wrote it"
        )
    _, _, counter, sequence = layout.unpack_from(slot)
    return Mark(counter, sequence)
