"""RDB files as sources and as targets."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import takewhile
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
from kvstream.migration.spool import CountedGroups
from kvstream.rdb.file_reader import (
    FileReader,
    FunctionRecord,
    KeyRecord,
    OtherRecord,
    StreamRecord,
    StringRecord,
    verify,
)
from kvstream.rdb.file_writer import FileWriter
from kvstream.rdb.versions import FUNCTIONS_SINCE, NEWEST, Loss, Target, losses, reduce
from kvstream.storage.files import replacing
from kvstream.types.images import StreamState

_LATE_FUNCTIONS = "the file has functions behind its first key: they are ignored"


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
            has_keys = False
            for record in self._reader:
                if isinstance(record, KeyRecord):
                    has_keys = True
                    if selection.has(record.db, record.key):
                        yield _item_of(record)
                elif isinstance(record, FunctionRecord) and has_keys:
                    self._remark(_LATE_FUNCTIONS)
            if behind := os.fstat(file.fileno()).st_size - self._reader.offset:
                self._remark(f"{behind} bytes behind the end of the RDB data are ignored")

    def functions(self) -> list[bytes]:
        """Return the libraries before the first key, where servers write all of them."""
        with self._path.open("rb", buffering=0) as file:
            before_keys = takewhile(
                lambda record: not isinstance(record, KeyRecord), FileReader(file)
            )
            return [record.text for record in before_keys if isinstance(record, FunctionRecord)]

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


class RdbTarget:
    """An RDB file that is written under a temporary name and then renamed."""

    existing: Source | None = None
    has_queues = False

    def __init__(self, path: Path, target: Target, replace: bool = False) -> None:
        """Raise RequestError if the file exists and ``replace`` is False."""
        if not replace and os.path.lexists(path):
            raise RequestError(f"{path} is there already: --replace overwrites it")
        self._target = target
        self.may_lose = target.kind < NEWEST.kind
        self._closing = ExitStack()
        file = self._closing.enter_context(replacing(path))
        self._writer = FileWriter(file, target, ctime_s=int(time.time()))
        self._written: set[tuple[int, bytes]] = set()
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

    def losses(self, state: StreamState) -> list[Loss]:
        return losses(state, self._target)

    def put_stream(
        self, item: Item, content: Content, *, label: bytes, replace: bool, consent: Consent
    ) -> Done:
        self._begin(item)

        def state() -> StreamState:
            result = counted.state()
            consent([*content.notes, *self.losses(result)])
            reduce(result, self._target)
            return result

        with CountedGroups(content) as counted:
            entries = self._writer.stream(
                item.db, item.key, counted.nodes(), state, item.expire_at_ms
            )
        return Done(entries, list(content.corrections))

    def _begin(self, item: Item) -> None:
        """Check that a key comes once: no server loads a file that has it twice."""
        name = item.db, item.key
        if name in self._written:
            raise RequestError(
                f"key {item.key!r} comes twice in database {item.db}: no server loads such a file"
            )
        self._written.add(name)

    def put_string(self, item: Item, value: bytes, *, replace: bool) -> None:
        self._begin(item)
        self._writer.string(item.db, item.key, value, item.expire_at_ms)

    def put_function(self, text: bytes, *, replace: bool) -> None:
        if self._target.version < FUNCTIONS_SINCE:
            raise RequestError(f"{self._target.name} has no functions")
        self._writer.function(text)


class PlannedFile:
    """An RDB file that a plan is about."""

    existing: Source | None = None

    def __init__(self, target: Target) -> None:
        self._target = target

    def losses(self, state: StreamState) -> list[Loss]:
        return losses(state, self._target)

    def close(self) -> None:
        """Do nothing: no file is open."""


class _Abandoned(Exception):
    """Makes the writer discard an unfinished file."""
