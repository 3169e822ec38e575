"""An append-only file, or the directory of one, as a source.

What a log holds is known once all its commands have been run: they are, in a store in a temporary
folder, which is then the source. Keys of types that kvstream does not have are named as far as the
log's base tells of them.
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
from kvstream.migration.replication.applying import Applier
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
        self._others: dict[tuple[int, bytes], OtherRecord] = {}
        self.remarks: list[str] = []
        """What was met in the log and not understood, or cut off."""
        try:
            prefix = "kvstream-migrate-aof-"
            folder = tempfile.TemporaryDirectory(prefix=prefix, dir=scratch)
            directory = Path(self._closing.enter_context(folder)) / "store"
            store = Store.open(directory, durability="no", databases=DATABASES)
            self._closing.callback(store.close)
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
        return self._source.item(db, key)

    def items(self, selection: Selection) -> Iterator[Item]:
        yield from self._source.items(selection)
        for (db, key), record in self._others.items():
            if selection.has(db, key):
                yield Item(db, key, record.kind, record.expire_at_ms or 0, size=record.size)

    # --- running the log ------------------------------------------------------------------------

    def _load(self, store: Store, log: AppendOnlyFile) -> None:
        applier = Applier(store.engine)
        units: list[Unit] = []
        for part in log:
            if isinstance(part, Unit):
                units.append(part)
                if len(units) == BATCH:
                    self._run(store.engine, applier, units)
                    units = []
            elif isinstance(part, KeyRecord):
                self._take(store.select(part.db), part)
        self._run(store.engine, applier, units)
        if applier.again:
            db, key = next(iter(applier.again))
            raise RequestError(
                f"the log copies or renames {key!r} of database {db} from a key that it does not "
                "tell: take an RDB file, or the live server"
            )
        self._remark(log, applier)

    def _take(self, store: Store, record: KeyRecord) -> None:
        at_ms = record.expire_at_ms or 0
        if isinstance(record, StreamRecord):
            store.load(record.key, record.stream, expire_at_ms=at_ms)
        elif isinstance(record, StringRecord):
            name = qualified(record.db, record.key)
            store.engine.run(strings.put, name, record.value(), at_ms)
        elif isinstance(record, OtherRecord):
            self._others[record.db, record.key] = record

    def _run(self, engine: Engine, applier: Applier, units: Iterable[Unit]) -> None:
        """Run units of commands in one commit."""

        def work(txn: Any) -> None:
            commands = (command for unit in units for command in unit.commands)
            for db, same in groupby(commands, key=itemgetter(0)):
                applier.db = db
                applier.apply_all(txn, [argv for _, argv in same])

        engine.run(work)

    def _remark(self, log: AppendOnlyFile, applier: Applier) -> None:
        if log.cut is not None:
            self.remarks.append(
                f"{log.cut.path.name}: the last {log.cut.size} bytes are no whole command, as a "
                "crash leaves them: they were passed over"
            )
        for name, count in sorted(applier.skipped.items()):
            self.remarks.append(f"{count} commands {name} are for keys of types that are skipped")
        for refusal, count in sorted(applier.refused.items()):
            self.remarks.append(f"{count} times refused: {refusal}")
