"""An RDB file as a source, read from its beginning to its end, and as a target."""

import os
import time
from collections.abc import Iterator
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
from kvstream.migration.server_source import CountedGroups
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
from kvstream.rdb.versions import NEWEST, Loss, Target, losses, reduce
from kvstream.storage.files import replacing
from kvstream.types.images import NodeImage, StreamState

_FUNCTIONS = "functions are in the file, which kvstream does not have"


class RdbSource:
    """A file, read from its first key to its last each time that its items are asked for."""

    ranged = False
    may_lose = False

    def __init__(self, path: Path) -> None:
        """Hold the file against its checksum: what is damaged is noticed before it is used."""
        self.remarks: list[str] = []
        self._path = path
        self._reader: FileReader | None = None
        with path.open("rb", buffering=0) as file:
            if not verify(file):  # walk through it, so that it breaks off now
                file.seek(0)
                for _ in FileReader(file):
                    pass

    def close(self) -> None:
        """Nothing is open between two readings."""

    def size(self, selection: Selection) -> int | None:
        return self._path.stat().st_size

    def position(self) -> int | None:
        return 0 if self._reader is None else self._reader.offset

    def items(self, selection: Selection) -> Iterator[Item]:
        with self._path.open("rb", buffering=0) as file:
            self._reader = FileReader(file)
            for record in self._reader:
                if isinstance(record, KeyRecord):
                    if selection.has(record.db, record.key):
                        yield _item_of(record)
                elif isinstance(record, FunctionRecord):
                    self._remark(_FUNCTIONS)
            if behind := os.fstat(file.fileno()).st_size - self._reader.offset:
                self._remark(f"{behind} bytes behind the end of the file are not read")

    def _remark(self, text: str) -> None:
        if text not in self.remarks:  # the items may be asked for twice
            self.remarks.append(text)

    def item(self, db: int, key: bytes) -> Item | None:
        """Nobody can ask for one key of a file."""
        raise NotImplementedError("a file is read from its beginning to its end")


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
    """A file that is written beside, and has its name once it is whole."""

    existing: Source | None = None

    def __init__(self, path: Path, target: Target, replace: bool = False) -> None:
        """RequestError where there is such a file, and it may not be replaced."""
        if not replace and os.path.lexists(path):
            raise RequestError(f"{path} is there already: --replace writes it anew")
        self._target = target
        self.may_lose = target.kind < NEWEST.kind
        self._closing = ExitStack()
        file = self._closing.enter_context(replacing(path))
        self._writer = FileWriter(file, target, ctime_s=int(time.time()))
        self._written: set[tuple[int, bytes]] = set()
        self._finished = False

    def close(self) -> None:
        """Remove what was written, unless it was finished."""
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
        entries = 0

        def nodes() -> Iterator[NodeImage]:
            nonlocal entries
            for node in counted.nodes():
                entries += len(node.ids)
                yield node

        def state() -> StreamState:
            told = counted.state()
            consent([*content.notes, *self.losses(told)])
            reduce(told, self._target)
            return told

        with CountedGroups(content) as counted:
            self._writer.stream(item.db, item.key, nodes(), state, item.expire_at_ms)
        return Done(entries, list(content.corrections))

    def _begin(self, item: Item) -> None:
        """Note a key; a damaged file has one twice, and no server loads such a file."""
        name = item.db, item.key
        if name in self._written:
            raise RequestError(
                f"key {item.key!r} comes twice in database {item.db}: no server would load such a "
                "file"
            )
        self._written.add(name)

    def put_string(self, item: Item, value: bytes, *, replace: bool) -> None:
        self._begin(item)
        self._writer.string(item.db, item.key, value, item.expire_at_ms)


class PlannedFile:
    """What a file for a server of some version would not hold."""

    existing: Source | None = None

    def __init__(self, target: Target) -> None:
        self._target = target

    def losses(self, state: StreamState) -> list[Loss]:
        return losses(state, self._target)

    def close(self) -> None:
        """Nothing was opened."""


class _Abandoned(Exception):
    """What the file that is being written is told when it is not finished."""
