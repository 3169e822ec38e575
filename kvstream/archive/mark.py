"""Who owns an archive: what the directory of a store notes about it, and a name for people.

::

    ARCHIVE := JSON, in the directory of the store
      archive   the name of the archive
      epoch     the opening of this store that put the last piece; the next opening has another
      next      that next opening, noted before its fence is put
"""

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstream.errors import Corruption
from kvstream.storage import files

FILE_NAME = "ARCHIVE"


def owner_at(directory: Path) -> str:
    """Return who owns an archive from now on, for people: this host, process and directory."""
    return f"{socket.gethostname()}, process {os.getpid()}, {directory}"


@dataclass(frozen=True, slots=True)
class Mark:
    """The archive that a store continues, and its own openings."""

    archive: str
    epoch: str
    next: str = ""

    @property
    def epochs(self) -> tuple[str, ...]:
        """The openings that were this store's."""
        return self.epoch, self.next

    @classmethod
    def read(cls, directory: Path) -> "Mark | None":
        """Return the mark of a directory; None if there is none; Corruption if it is damaged."""
        try:
            found: dict[str, Any] = json.loads(files.read(directory / FILE_NAME))
            return cls(found["archive"], found["epoch"], found["next"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise Corruption(f"the file {FILE_NAME} of the store is damaged: {error}") from None

    def write(self, directory: Path) -> None:
        """Replace the mark of a directory, durably."""
        names = {"archive": self.archive, "epoch": self.epoch, "next": self.next}
        files.write(directory / FILE_NAME, json.dumps(names).encode())
