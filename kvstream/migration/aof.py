"""An append-only file of Redis or Valkey as it is on disk: a file, or a directory of them.

What is in the base comes first, as records of an RDB file if it is one, then the commands since.
What the commands mean is not known here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvstream.errors import BadPayload, InvalidArgument
from kvstream.migration import manifest
from kvstream.migration.commands_file import CommandsFile, Unit
from kvstream.rdb.file_reader import FileReader, Record
from kvstream.rdb.opcodes import MAGIC_BYTES, Header


@dataclass(frozen=True, slots=True)
class Cut:
    """What a crash of the server has cut off."""

    path: Path
    offset: int
    """Where the last whole command or transaction ends."""
    size: int
    """Bytes from there to the end of the file."""


class AppendOnlyFile:
    """Iterates over the records of the base and the units of commands after them.

    BadPayload, with offset and file, where it is damaged. A last file that ends within a command
    or a transaction is not: ``cut`` tells of that when the iteration is over, and whoever must know
    before calls ``scan``. In Redis ``aof-load-truncated`` decides what to do then.
    """

    def __init__(self, path: Path) -> None:
        """``path`` is a file, a manifest, or the directory that a manifest is in."""
        self.files = _files(path)
        self.size = sum(file.stat().st_size for file in self.files)
        """Bytes of all files together."""
        self.cut: Cut | None = None
        self._before = 0
        self._now: FileReader | CommandsFile | None = None

    @property
    def offset(self) -> int:
        """Bytes that were read, about: for telling how far it is."""
        return self._before + (0 if self._now is None else self._now.offset)

    def __iter__(self) -> Iterator[Record | Unit]:
        """Begin with the first file, and give all there is."""
        self.cut, self._before = None, 0
        for path in self.files:
            with _naming(path):
                yield from self._read(path)
            self._before += path.stat().st_size
            self._now = None

    def scan(self) -> Cut | None:
        """Read everything, and keep nothing; return what is cut off."""
        for _ in self:
            pass
        return self.cut

    def _read(self, path: Path) -> Iterator[Record | Unit]:
        with path.open("rb", buffering=0) as file:
            start = 0
            if Header.decode(file.read(MAGIC_BYTES)) is not None:
                file.seek(0)
                self._now = records = FileReader(file)
                yield from records
                start = records.offset
            file.seek(start)
            self._now = commands = CommandsFile(file, start)
            yield from commands
        if commands.cut:
            cut = Cut(path, commands.offset - commands.cut, commands.cut)
            if path != self.files[-1]:
                raise BadPayload("the file ends within a command, and others follow it", cut.offset)
            self.cut = cut


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except BadPayload as error:
        error.reason = f"{path.name}: {error.reason}"
        raise


def _files(path: Path) -> list[Path]:
    """Return the files in their order; InvalidArgument where there are none."""
    if path.is_dir():
        path = _manifest_in(path)
    if path.suffix == manifest.SUFFIX:
        with _naming(path):
            files = manifest.files(path)
    else:
        files = [path]
    for file in files:
        if not file.is_file():
            raise InvalidArgument(f"no such file: {file}")
    return files


def _manifest_in(directory: Path) -> Path:
    found = [
        path
        for path in sorted(directory.glob(f"*{manifest.SUFFIX}"))
        if not path.name.startswith(manifest.TEMPORARY_PREFIX)
    ]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise InvalidArgument(f"one manifest should be in {directory}: there is {names}")
    return found[0]
