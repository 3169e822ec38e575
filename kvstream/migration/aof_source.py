"""Append-only files of Redis or Valkey as sources: a file, or a directory with a manifest.

::

    manifest   := line*
    line       := "file" name "seq" number "type" ("b" | "i" | "h") (key value)* LF | "#" text LF
    file       := rdb? entry*
    entry      := command | annotation
    command    := "*" count CRLF argument*count
    argument   := "$" length CRLF byte*length CRLF
    annotation := "#" text CRLF                       such as #TS:1700000000, the server's time

b is the base, at most one; i are the increments, with ascending numbers; h are files that Redis
will delete. Unknown keys of a manifest are ignored, as Redis does. An incomplete
last entry, as a crash leaves it, is reported and is not an error.

The commands run in a store in a temporary folder, which is then the source. Keys that kvstream
cannot hold are reported and skipped.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from kvstream.engine.engine import Engine
from kvstream.errors import BadPayload, InvalidArgument, ProtocolError, RequestError
from kvstream.layout.keys import qualified
from kvstream.migration.items import Item, Selection
from kvstream.migration.libraries import find_refused
from kvstream.migration.places import MANIFEST_SUFFIX
from kvstream.migration.replay import Replay, Unsupported
from kvstream.migration.store_place import StoreSource
from kvstream.operations import strings
from kvstream.operations.functions import name_of
from kvstream.rdb.file_reader import (
    FileReader,
    FunctionRecord,
    KeyRecord,
    OtherRecord,
    Record,
    StreamRecord,
    StringRecord,
)
from kvstream.rdb.versions import MAGIC_BYTES, Header
from kvstream.resp import twins
from kvstream.resp.requests import BULK_MAX, COUNT_MAX, LINE_MAX, split_words, take_plain
from kvstream.store import Store
from kvstream.types.options import DATABASES_MAX, MEGABYTE

TEMPORARY_PREFIX = "temp-"
MANIFEST_BYTES_MAX = 1 << 20
"""A line is about 60 bytes, and Redis merges its increments at every rewrite."""

_WORDS_LEAST = 6


def files(manifest: Path) -> list[Path]:
    """Return the base, if any, and the increments; raise BadPayload for a damaged manifest."""
    with manifest.open("rb") as file:
        text = file.read(MANIFEST_BYTES_MAX + 1)
    if len(text) > MANIFEST_BYTES_MAX:
        raise BadPayload(f"the manifest has more than {MANIFEST_BYTES_MAX} bytes")
    bases: list[bytes] = []
    increments: list[bytes] = []
    last = at = 0
    for line in text.splitlines(keepends=True):
        if not line.startswith(b"#"):
            name, seq, kind = _entry(line, at)
            if kind == b"b":
                bases.append(name)
            elif kind == b"i":
                if seq <= last:
                    raise BadPayload("the increments' numbers do not rise", at)
                increments.append(name)
                last = seq
        at += len(line)
    if len(bases) > 1:
        raise BadPayload("a manifest with two base files")
    if not bases and not increments:
        raise BadPayload("a manifest without files")
    return [manifest.parent / os.fsdecode(name) for name in bases + increments]


def _entry(line: bytes, at: int) -> tuple[bytes, int, bytes]:
    """Return the name, number and type of a file."""
    try:
        words = split_words(line.rstrip(b"\r\n"))
    except ProtocolError:
        words = []
    pairs = dict(zip(words[::2], words[1::2], strict=False))
    name, seq, kind = pairs.get(b"file", b""), pairs.get(b"seq", b""), pairs.get(b"type", b"")
    if (
        len(words) < _WORDS_LEAST
        or len(words) % 2
        or not line.endswith(b"\n")
        or not seq.isdigit()
        or kind not in (b"b", b"i", b"h")
    ):
        raise BadPayload("no line of a manifest", at)
    if not name or b"/" in name or b"\0" in name or name in (b".", b".."):
        raise BadPayload("a manifest names a file elsewhere", at)
    return name, int(seq), kind


CHUNK_BYTES = 1 << 18
UNIT_BYTES_MAX = 1024 * MEGABYTE
"""Largest transaction: it is held in memory until its EXEC."""

_CRLF = b"\r\n"
_STAR, _DOLLAR, _HASH = b"*$#"
_DIGITS_MAX = 10
_CONTROL_MAX = len(b"SELECT")
_take_plain = take_plain if twins is None else twins.take_plain


class Command(NamedTuple):
    """A command, and the database it ran in."""

    db: int
    argv: list[bytes]


class Unit(NamedTuple):
    """A command, or the commands of a transaction."""

    commands: list[Command]


class _CutOff(Exception):
    """The file ends within an entry."""


class CommandsFile:
    """Iterates once over the units of a file; raises BadPayload, with the offset, for damage.

    ``file`` is positioned at ``start``; the caller closes it.
    """

    def __init__(self, file: BinaryIO, start: int = 0) -> None:
        self._entries = _Entries(file, start)
        self._db = 0
        self._begun: _Place | None = None  # of the MULTI of an unfinished transaction
        self._unit: list[Command] = []
        self._bytes = 0
        self.cut = 0
        """Bytes of an incomplete unit at the end; known after the iteration."""

    @property
    def offset(self) -> int:
        """About how many bytes of the file were read."""
        return self._entries.offset

    def __iter__(self) -> Iterator[Unit]:
        for argvs, start in self._entries:
            for index, argv in enumerate(argvs):
                if len(argv[0]) <= _CONTROL_MAX and argv[0].upper() in _CONTROLS:
                    unit = self._control(argv, _Place(start, argvs, index))
                    if unit is not None:
                        yield unit
                elif self._begun is None:
                    yield Unit([Command(self._db, argv)])
                else:
                    self._keep(argv)
        whole = self._entries.whole if self._begun is None else self._begun.offset
        self.cut = self._entries.offset - whole

    def _keep(self, argv: list[bytes]) -> None:
        self._bytes += sum(map(len, argv))
        if self._bytes > UNIT_BYTES_MAX and self._begun is not None:
            at = self._begun.offset
            raise BadPayload(f"a transaction of more than {UNIT_BYTES_MAX} bytes", at)
        self._unit.append(Command(self._db, argv))

    def _control(self, argv: list[bytes], place: "_Place") -> Unit | None:
        """Handle SELECT, MULTI or EXEC; return the transaction that EXEC ends."""
        word = argv[0].upper()
        if len(argv) != _CONTROLS[word]:
            raise BadPayload(f"{word.decode()} has {len(argv) - 1} arguments", place.offset)
        if word == b"SELECT":
            self._db = _database(argv[1], place)
        elif word == b"MULTI":
            if self._begun is not None:
                raise BadPayload("a MULTI within a MULTI", place.offset)
            self._begun = place
        else:
            if self._begun is None:
                raise BadPayload("an EXEC without a MULTI", place.offset)
            unit = Unit(self._unit)
            self._begun, self._unit, self._bytes = None, [], 0
            return unit
        return None


_CONTROLS = {b"SELECT": 2, b"MULTI": 1, b"EXEC": 1}
"""The commands that are handled here, with their number of words."""


def _database(word: bytes, place: "_Place") -> int:
    if word.isdigit() and len(word) <= _DIGITS_MAX and int(word) < DATABASES_MAX:
        return int(word)
    raise BadPayload("a SELECT of no database", place.offset)


class _Place(NamedTuple):
    """The position of a command, whose offset is computed only when needed."""

    start: int
    argvs: list[list[bytes]]
    position: int

    @property
    def offset(self) -> int:
        return self.start + sum(_size(argv, len(argv)) for argv in self.argvs[: self.position])


def _size(argv: list[bytes], count: int) -> int:
    """Return the bytes of the first words of a command with ``count`` words."""
    heads = sum(len(b"$%d" % len(word)) for word in argv) + len(b"*%d" % count)
    return heads + sum(map(len, argv)) + len(_CRLF) * (2 * len(argv) + 1)


class _Entries:
    """Iterates over batches of commands of a file, each with its offset."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file = file
        self._data = b""
        self._at = 0
        self._before = start  # bytes of the file before the data
        self.offset = start
        """Bytes of the file that were read."""
        self.whole = start
        """The offset after the last whole entry."""

    @property
    def _here(self) -> int:
        return self._before + self._at

    def __iter__(self) -> Iterator[tuple[list[list[bytes]], int]]:
        try:
            while self._has(1):
                start = self._here
                argvs: list[list[bytes]] = []
                self._at, argv, left = _take_plain(self._data, self._at, argvs, [], 0, BULK_MAX)
                self.whole = self._here - (_size(argv, len(argv) + left) if left else 0)
                if argvs:
                    yield argvs, start
                if left or self._has(1):
                    start = self.whole
                    if left or (left := self._begin()):
                        self._finish(argv, left)
                        yield [argv], start
                    self.whole = self._here
        except _CutOff:
            pass

    def _begin(self) -> int:
        """Take the head of a command, or an annotation; return the number of words that follow."""
        kind = self._data[self._at]
        if kind == _STAR:
            return self._number(_STAR, 1, COUNT_MAX)
        if kind != _HASH:
            raise BadPayload(f"byte {kind:#04x} begins no command", self._here)
        self._line()
        return 0

    def _finish(self, argv: list[bytes], left: int) -> None:
        """Take the remaining words of a command."""
        for _ in range(left):
            length = self._number(_DOLLAR, 0, BULK_MAX)
            if not self._has(length + len(_CRLF)):
                raise _CutOff
            argv.append(self._data[self._at : self._at + length])
            self._at += length + len(_CRLF)

    def _number(self, mark: int, least: int, most: int) -> int:
        """Take a line of ``mark`` and a number."""
        at = self._here
        line = self._line()
        digits = line[1:]
        if line[:1] != bytes((mark,)) or not digits.isdigit() or len(digits) > _DIGITS_MAX:
            raise BadPayload(f"{chr(mark)} and a number expected", at)
        number = int(digits)
        if not least <= number <= most:
            raise BadPayload(f"{number} is not between {least} and {most}", at)
        return number

    def _line(self) -> bytes:
        while (end := self._data.find(_CRLF, self._at, self._at + LINE_MAX)) < 0:
            if len(self._data) - self._at >= LINE_MAX:
                raise BadPayload("a line does not end", self._here)
            if not self._has(len(self._data) - self._at + 1):
                raise _CutOff
        line = self._data[self._at : end]
        self._at = end + len(_CRLF)
        return line

    def _has(self, size: int) -> bool:
        """Buffer ``size`` bytes; return False if the file ends before."""
        if size <= len(self._data) - self._at:
            return True
        parts = [self._data[self._at :]]
        have = len(parts[0])
        while have < size and (part := self._file.read(CHUNK_BYTES)):
            parts.append(part)
            have += len(part)
            self.offset += len(part)
        self._before += self._at
        self._data, self._at = b"".join(parts), 0
        return size <= have


@dataclass(frozen=True, slots=True)
class Cut:
    """The incomplete end of a file, as a crash of the server leaves it."""

    path: Path
    offset: int
    """The end of the last whole command or transaction."""
    size: int
    """Bytes from there to the end of the file."""


class AppendOnlyFile:
    """Iterates over the records of the base and then the units of commands.

    Raises BadPayload, with offset and file, for damage. A last file that ends within a command or
    a transaction sets ``cut`` after the iteration; call ``scan`` to know it before. Redis decides
    by ``aof-load-truncated`` then.
    """

    def __init__(self, path: Path) -> None:
        """``path`` is a file, a manifest, or the directory of a manifest."""
        self.files = _files(path)
        self.size = sum(file.stat().st_size for file in self.files)
        """Bytes of all files together."""
        self.cut: Cut | None = None
        self._before = 0
        self._now: FileReader | CommandsFile | None = None

    @property
    def offset(self) -> int:
        """About how many bytes were read, to show progress."""
        return self._before + (0 if self._now is None else self._now.offset)

    def __iter__(self) -> Iterator[Record | Unit]:
        """Yield everything from the first file on."""
        self.cut, self._before = None, 0
        for path in self.files:
            with _naming(path):
                yield from self._read(path)
            self._before += path.stat().st_size
            self._now = None

    def scan(self) -> Cut | None:
        """Read everything without keeping it; return the incomplete end."""
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
                raise BadPayload("the file ends within a command, but others follow", cut.offset)
            self.cut = cut


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except BadPayload as error:
        error.reason = f"{path.name}: {error.reason}"
        raise


def _files(path: Path) -> list[Path]:
    """Return the files in order; raise InvalidArgument if one is missing."""
    if path.is_dir():
        path = _manifest_in(path)
    if path.suffix == MANIFEST_SUFFIX:
        with _naming(path):
            found = files(path)
    else:
        found = [path]
    for file in found:
        if not file.is_file():
            raise InvalidArgument(f"no such file: {file}")
    return found


def _manifest_in(directory: Path) -> Path:
    manifests = [
        path
        for path in sorted(directory.glob(f"*{MANIFEST_SUFFIX}"))
        if not path.name.startswith(TEMPORARY_PREFIX)
    ]
    if len(manifests) != 1:
        names = ", ".join(path.name for path in manifests) or "none"
        raise InvalidArgument(f"{directory} must contain one manifest, but has {names}")
    return manifests[0]


DATABASES = 256
"""Databases of the temporary store; a log with more is refused."""
BATCH = 256
"""Units of one commit: in a larger one reads would slow down."""


class AofSource:
    """An append-only file that was run in a temporary store; ranged, as the store is."""

    ranged = True
    may_lose = False
    has_queues = False

    def __init__(self, path: Path, scratch: Path | None = None) -> None:
        """``scratch`` is the parent folder of the temporary store; None: the system's."""
        self._closing = ExitStack()
        self.remarks: list[str] = []
        """Messages about commands that were not understood, and an incomplete end."""
        try:
            prefix = "kvstream-migrate-aof-"
            folder = tempfile.TemporaryDirectory(prefix=prefix, dir=scratch)
            directory = Path(self._closing.enter_context(folder)) / "store"
            store = Store.open(directory, durability="no", databases=DATABASES)
            self._closing.callback(store.close)
            self._replay = Replay(store.engine)
            self._load(store, AppendOnlyFile(path))
            self._source = StoreSource(store, has_queues=False)
        except BaseException:
            self._closing.close()
            raise

    def close(self) -> None:
        self._closing.close()

    def size(self, selection: Selection) -> int | None:
        return self._source.size(selection)

    def position(self) -> int | None:
        return None

    def item(self, db: int, key: bytes) -> Item | None:
        held = self._replay.unsupported.get((db, key))
        return self._source.item(db, key) if held is None else _skipped_item(db, key, held)

    def functions(self) -> list[bytes]:
        return [*self._replay.libraries.values()]

    def refused_functions(self, libraries: Sequence[bytes]) -> Mapping[bytes, str]:
        return find_refused(libraries)

    def items(self, selection: Selection) -> Iterator[Item]:
        """Yield the selected keys; raise RequestError before the first if one is uncertain."""
        unsupported = self._replay.unsupported
        for (db, key), held in unsupported.items():
            if held.why and selection.has(db, key):
                raise RequestError(
                    f"the log does not tell what key {key!r} of database {db} holds: {held.why}; "
                    "leave it out with --match, or take an RDB file or the live server"
                )
        for item in self._source.items(selection):
            if (item.db, item.key) not in unsupported:
                yield item
        for (db, key), held in unsupported.items():
            if selection.has(db, key):
                yield _skipped_item(db, key, held)

    # --- running the log ------------------------------------------------------------------------

    def _load(self, store: Store, log: AppendOnlyFile) -> None:
        units: list[Unit] = []
        for part in log:
            if isinstance(part, Unit):
                units.append(part)
                if len(units) == BATCH:
                    self._run(store.engine, units)
                    units = []
            elif isinstance(part, KeyRecord):
                self._take(store.select(part.db), part)
            elif isinstance(part, FunctionRecord):
                self._replay.libraries[name_of(part.text)] = part.text
        self._run(store.engine, units)
        store.engine.run(self._replay.finish)
        self._remark(log)

    def _take(self, store: Store, record: KeyRecord) -> None:
        at_ms = record.expire_at_ms or 0
        if isinstance(record, StreamRecord):
            store.load(record.key, record.stream, expire_at_ms=at_ms)
        elif isinstance(record, StringRecord):
            name = qualified(record.db, record.key)
            store.engine.run(strings.put, name, record.value(), at_ms)
        elif isinstance(record, OtherRecord):
            self._replay.unsupported[record.db, record.key] = Unsupported(
                record.kind, at_ms, record.size
            )

    def _run(self, engine: Engine, units: Iterable[Unit]) -> None:
        """Run units of commands in one commit."""

        def work(txn: Any) -> None:
            commands = (command for unit in units for command in unit.commands)
            for db, same in groupby(commands, key=itemgetter(0)):
                self._replay.db = db
                self._replay.apply_all(txn, [argv for _, argv in same])

        engine.run(work)

    def _remark(self, log: AppendOnlyFile) -> None:
        if log.cut is not None:
            self.remarks.append(
                f"{log.cut.path.name}: the last {log.cut.size} bytes are an incomplete command, as "
                "a crash leaves them: they were ignored"
            )
        for name, count in sorted(self._replay.skipped.items()):
            self.remarks.append(f"{count} commands {name}, which kvstream does not have")
        for refusal, count in sorted(self._replay.refused.items()):
            self.remarks.append(f"{count} times refused: {refusal}")


def _skipped_item(db: int, key: bytes, held: Unsupported) -> Item:
    return Item(db, key, held.kind, held.expire_at_ms, size=held.size)
