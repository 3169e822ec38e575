"""RDB files as sources and as targets."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from kvstream.errors import RequestError
from kvstream.migration.items import (
    STREAM,
    STRING,
    Consent,
    Content,
    Done,
    Item,
    ReadStream,
    Selection,
    Source,
)
from kvstream.migration.libraries import find_refused, is_redis, notes_for_redis
from kvstream.migration.spool import CountedGroups
from kvstream.rdb.file_reader import (
    AuxRecord,
    FileReader,
    FunctionRecord,
    KeyRecord,
    ModuleAuxRecord,
    OtherRecord,
    StreamRecord,
    StringRecord,
    verify,
)
from kvstream.rdb.file_writer import FileWriter
from kvstream.rdb.versions import (
    FUNCTIONS_SINCE,
    NEWEST,
    TARGETS,
    VALKEY,
    Dialect,
    Loss,
    Target,
    losses,
    reduce,
)
from kvstream.storage.files import replacing
from kvstream.types.images import StreamState
from kvstream.types.options import DATABASES

_SCRIPT = b"lua"
"""The field with the text of a script, in files of Redis before 7.0."""
_NO_KEYS = Selection(databases=frozenset())


class RdbSource:
    """An RDB file that is read."""

    ranged = False
    may_lose = False
    has_queues = False

    def __init__(self, path: Path) -> None:
        """Verify the file, so that damage is found before anything is copied."""
        self.remarks: list[str] = []
        self._path = path
        self._reader: FileReader | None = None
        self._libraries: list[bytes] | None = None
        """Those of the whole file; None: it was not read yet."""
        with path.open("rb", buffering=0) as file:
            if not verify(file):  # no checksum, or damage: read it all
                file.seek(0)
                for _ in FileReader(file):
                    pass

    def close(self) -> None:
        """Do nothing: the file is open only while it is read."""

    def size(self, selection: Selection) -> int | None:
        return self._path.stat().st_size

    def position(self) -> int | None:
        return 0 if self._reader is None else self._reader.offset

    def items(self, selection: Selection) -> Iterator[Item]:
        with self._path.open("rb", buffering=0) as file:
            self._reader = FileReader(file)
            libraries = []
            for record in self._reader:
                if isinstance(record, KeyRecord):
                    if selection.has(record.db, record.key):
                        yield _item_of(record)
                elif isinstance(record, FunctionRecord):
                    libraries.append(record.text)
                elif isinstance(record, ModuleAuxRecord):
                    self._remark(f"data of the module {record.module} is not migrated")
                elif isinstance(record, AuxRecord) and record.name == _SCRIPT:
                    self._remark("scripts of SCRIPT LOAD are not migrated: clients load them again")
            self._libraries = libraries
            if behind := os.fstat(file.fileno()).st_size - self._reader.offset:
                self._remark(f"{behind} bytes behind the end of the RDB data are ignored")

    def functions(self) -> list[bytes]:
        """Return the libraries of the file, wherever they stand in it."""
        if self._libraries is None:
            for _ in self.items(_NO_KEYS):
                pass
        assert self._libraries is not None
        return self._libraries

    def refused_functions(self, libraries: Sequence[bytes]) -> Mapping[bytes, str]:
        return find_refused(libraries, target=self._server())

    def _server(self) -> Target:
        """Return the server that the file is for, as far as its header tells."""
        with self._path.open("rb", buffering=0) as file:
            header = FileReader(file).header
        if header.dialect is Dialect.REDIS or header.version == FUNCTIONS_SINCE:
            newer = (each for each in TARGETS.values() if each.version >= header.version)
            return next(newer, NEWEST)
        return VALKEY if header.version > FUNCTIONS_SINCE else TARGETS["redis:6.2"]

    def _remark(self, text: str) -> None:
        if text not in self.remarks:  # items may be read twice
            self.remarks.append(text)

    def item(self, db: int, key: bytes) -> Item | None:
        """Raise NotImplementedError: a file is not ranged."""
        raise NotImplementedError("a file has no access by key")


def _item_of(record: KeyRecord) -> Item:
    at_ms = record.expire_at_ms or 0
    if isinstance(record, StreamRecord):
        reading = record.stream
        return Item(record.db, record.key, STREAM, at_ms, stream=lambda: ReadStream(reading))
    if isinstance(record, StringRecord):
        return Item(record.db, record.key, STRING, at_ms, value=record.value)
    assert isinstance(record, OtherRecord)
    return Item(record.db, record.key, record.kind, at_ms, size=record.size)


class PlannedFile:
    """An RDB file that a plan is about."""

    existing: Source | None = None
    takes_keys_once = True
    has_queues = False

    def __init__(self, target: Target) -> None:
        self.may_lose = target.kind < NEWEST.kind
        self.remarks: list[str] = []
        self._remark_of_databases: list[str] = []
        self._notes_of_libraries: list[str] = []
        self._target = target
        self._databases = DATABASES
        """Databases that the server needs to load the file."""

    def find_exclusion(self, item: Item) -> Loss | None:
        """Return why no server would load the file; one may need a setting to load it."""
        if item.is_repeated:
            text = (
                f"{item.key!r} comes twice in database {item.db}, and no server loads such a file: "
                "the first one is kept"
            )
            return Loss("repeated-keys", 1, text, "a repeated name")
        if item.db >= self._databases:
            self._databases = item.db + 1
            setting = f"`databases {self._databases}`"
            self._remark_of_databases = [
                f"a server loads this file only with the setting {setting} or more"
            ]
            self._remark()
        return None

    def _remark(self) -> None:
        self.remarks = self._remark_of_databases + self._notes_of_libraries

    def losses(self, state: StreamState) -> list[Loss]:
        return losses(state, self._target)

    def refused_functions(self, libraries: Sequence[bytes]) -> Mapping[bytes, str]:
        refused = find_refused(libraries, target=self._target)
        if is_redis(self._target):
            self._notes_of_libraries = notes_for_redis(libraries, refused)
            self._remark()
        return refused

    def close(self) -> None:
        """Do nothing: no file is open."""


class RdbTarget(PlannedFile):
    """An RDB file that is written under a temporary name and then renamed."""

    def __init__(self, path: Path, target: Target, replace: bool = False) -> None:
        """Raise RequestError if the file exists and ``replace`` is False."""
        if not replace and os.path.lexists(path):
            raise RequestError(f"{path} is there already: --replace overwrites it")
        super().__init__(target)
        self._closing = ExitStack()
        file = self._closing.enter_context(replacing(path))
        self._writer = FileWriter(file, target, ctime_s=int(time.time()))
        self._finished = False

    def close(self) -> None:
        """Remove the file unless it is finished."""
        if not self._finished:
            abandoned = _Abandoned()
            self._closing.__exit__(_Abandoned, abandoned, None)

    def finish(self) -> None:
        self._writer.finish()
        self._closing.close()
        self._finished = True

    def reduce(self, state: StreamState) -> None:
        reduce(state, self._target)

    def put_stream(
        self, item: Item, content: Content, *, label: bytes, replace: bool, consent: Consent
    ) -> Done:
        def state() -> StreamState:
            result = counted.state()
            consent([*content.notes, *self.losses(result)])
            self.reduce(result)
            return result

        with CountedGroups(content) as counted:
            entries = self._writer.stream(
                item.db, item.key, counted.nodes(), state, item.expire_at_ms
            )
        return Done(entries, list(content.corrections))

    def put_string(self, item: Item, value: bytes, *, replace: bool) -> None:
        self._writer.string(item.db, item.key, value, item.expire_at_ms)

    def put_function(self, text: bytes, *, replace: bool) -> None:
        self._writer.function(text)


class _Abandoned(Exception):
    """Makes the writer discard an unfinished file."""
