"""An append-only file, or the directory of one, as a source.

What a log holds is known once all its commands have been run: they are, in a store in a temporary
folder, which is then the source. Keys whose values only Redis can tell are named and skipped.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from kvstream.engine import Engine
from kvstream.errors import RequestError
from kvstream.layout.keys import qualified
from kvstream.migration.aof import AppendOnlyFile
from kvstream.migration.commands_file import Unit
from kvstream.migration.items import Item, Selection
from kvstream.migration.replay import Replay, Unheld
from kvstream.migration.store_place import StoreSource
from kvstream.operations import strings
from kvstream.rdb.file_reader import KeyRecord, OtherRecord, StreamRecord, StringRecord
from kvstream.store import Store

DATABASES = 256
"""Databases of the temporary store: a log of more is refused."""
BATCH = 256
"""Units of commands in one commit: reads look through all that it has changed so far."""


class AofSource:
    """A log that has been run; ranged, as the store is that it was run in."""

    ranged = True
    may_lose = False

    def __init__(self, path: Path, scratch: Path | None = None) -> None:
        """``scratch``: where the temporary store is made; None: where temporary files are."""
        self._closing = ExitStack()
        self.remarks: list[str] = []
        """What was met in the log and not understood, or cut off."""
        try:
            prefix = "kvstream-migrate-aof-"
            folder = tempfile.TemporaryDirectory(prefix=prefix, dir=scratch)
            directory = Path(self._closing.enter_context(folder)) / "store"
            store = Store.open(directory, durability="no", databases=DATABASES)
            self._closing.callback(store.close)
            self._replay = Replay(store.engine)
            self._load(store, AppendOnlyFile(path))
            self._source = StoreSource(store)
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
        held = self._replay.unheld.get((db, key))
        return self._source.item(db, key) if held is None else _skipped(db, key, held)

    def items(self, selection: Selection) -> Iterator[Item]:
        """Yield the keys selected; RequestError, before the first, where one cannot be told."""
        unheld = self._replay.unheld
        for (db, key), held in unheld.items():
            if held.why and selection.has(db, key):
                raise RequestError(
                    f"the log does not tell what key {key!r} of database {db} holds: {held.why}; "
                    "leave it out with --match, or take an RDB file or the live server"
                )
        for item in self._source.items(selection):
            if (item.db, item.key) not in unheld:
                yield item
        for (db, key), held in unheld.items():
            if selection.has(db, key):
                yield _skipped(db, key, held)

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
            self._replay.unheld[record.db, record.key] = Unheld(record.kind, at_ms, record.size)

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
                f"{log.cut.path.name}: the last {log.cut.size} bytes are no whole command, as a "
                "crash leaves them: they were passed over"
            )
        for name, count in sorted(self._replay.skipped.items()):
            self.remarks.append(f"{count} commands {name}, which kvstream does not have")
        for refusal, count in sorted(self._replay.refused.items()):
            self.remarks.append(f"{count} times refused: {refusal}")


def _skipped(db: int, key: bytes, held: Unheld) -> Item:
    return Item(db, key, held.kind, held.expire_at_ms, size=held.size)
