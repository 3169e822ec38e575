"""Applies a source's snapshot and commands, from its command stream or an AOF, to an open store.

Commands run through the command table in a transaction of the caller, so the position in the source
is part of the same commit. Keys never expire by our clock: the source sends the deletions. Expiry
is therefore set after a key of a snapshot is loaded, even if it is past: the source may have
extended it since.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvstream.commands.args import Argv, stream_id
from kvstream.commands.command import Session
from kvstream.commands.table import find
from kvstream.engine.engine import Engine
from kvstream.errors import RequestError
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration.copy import CopyOptions
from kvstream.migration.items import Item, Selection, Target
from kvstream.migration.libraries import find_refused, not_loaded
from kvstream.migration.rdb_place import RdbSource
from kvstream.migration.replication.commands import Interpreter, Run
from kvstream.migration.runner import Report, run
from kvstream.migration.store_place import StoreTarget
from kvstream.operations import claim, functions, keyspace
from kvstream.operations.groups import advance_over, group_of_key
from kvstream.rdb.payload import restore_functions
from kvstream.rdb.versions import LOSSES
from kvstream.store import Store

NOTHING_EXPIRES = -1
_ALL_KEYS = 1 << 62
_CLAIM_WORDS = 14
"""Words of the XCLAIM by which Redis replicates deliveries and claims."""
_ID, _TIME, _RETRYCOUNT, _LAST_ID = 5, 7, 9, 13


class Applier(Interpreter):
    """Runs the commands of one source in order, each in the selected database.

    ``counts_reads``: an XCLAIM that replicates a delivery also increments entries-read. The source
    has done so, but servers before 7.2 do not replicate it. Redis does not do so when it loads an
    AOF.
    """

    def __init__(
        self,
        engine: Engine,
        selection: Selection | None = None,
        db: int = 0,
        *,
        counts_reads: bool = True,
    ) -> None:
        super().__init__(selection or Selection(), engine.options.databases, db)
        self._counts_reads = counts_reads
        self._session = Session(engine.options.databases)
        self._same_delivery: Sequence[Argv] = ()
        """The XCLAIMs that are run together with the current one."""

    def apply(self, txn: Txn, argv: Argv) -> None:
        """Run one command in a transaction; raises errors of the store, not of the command."""
        now_ms, expiry_ms = txn.now_ms, txn.expiry_ms
        txn.expiry_ms = NOTHING_EXPIRES
        try:
            translation = self.read(argv)
            for db in self.note_flush(translation) if translation.flushed else ():
                clear(txn, db, self.selection)
            for run in translation.runs:
                self._run(txn, run)
            self.note_done(translation)
        finally:
            txn.now_ms, txn.expiry_ms = now_ms, expiry_ms

    def apply_all(self, txn: Txn, commands: Sequence[Argv]) -> None:
        """Run commands in order; the XCLAIMs of one read of many entries run as one.

        A log of entries that were read 100 at a time is replayed 3.4 times as fast.
        """
        at = 0
        while at < len(commands):
            many = _same_delivery(commands, at)
            self._same_delivery = commands[at + 1 : at + many]
            self.apply(txn, commands[at])
            self.applied += many - 1
            at += many
        self._same_delivery = ()

    def _run(self, txn: Txn, run: Run) -> None:
        self._session.select(run.db)
        try:
            if run.argv[0].upper() == b"FUNCTION":
                self.change_functions(txn, run.argv)
                return
            if len(run.argv) == _CLAIM_WORDS and run.argv[0].upper() == b"XCLAIM":
                self._claim(txn, run.argv)
            else:
                find(run.argv).run(txn, self._session, run.argv)
        except RequestError as error:
            self.note_refusal(run, error)
        else:
            self.note_run(run)

    def change_functions(self, txn: Txn, argv: Argv) -> None:
        """Run a FUNCTION command that the source has run.

        A library that cannot be loaded here is left out, and so is the one that it replaces: the
        source has that no longer. Raises RequestError then.
        """
        change = argv[1].upper()
        if change == b"LOAD":
            _load(txn, [argv[-1]])
        elif change == b"DELETE":
            functions.delete(txn, argv[2])
        elif change == b"FLUSH":
            functions.flush(txn)
        else:
            if flushes(argv):
                functions.flush(txn)
            _load(txn, restore_functions(argv[2]))

    def _claim(self, txn: Txn, argv: Argv) -> None:
        """Repeat a delivery or a claim of the source, with its time."""
        name, at_ms = self._session.prefix + argv[1], int(argv[_TIME])
        ids = [stream_id(each[_ID]) for each in (argv, *self._same_delivery)]
        last_id = ids[-1] if self._same_delivery else stream_id(argv[_LAST_ID])
        stream, group = group_of_key(txn, name, argv[2])
        is_delivery = ids[-1] == last_id and ids[0] > group.last_delivered
        # The source's clock may be ahead of ours.
        txn.now_ms = at_ms if is_delivery else max(txn.now_ms, at_ms)
        if is_delivery and self._counts_reads:
            advance_over(stream, group, [eid.packed for eid in ids])
            txn.member_changed(group)
        claim.claim(
            txn,
            name,
            argv[2],
            argv[3],
            0,
            ids,
            time_ms=at_ms,
            retrycount=int(argv[_RETRYCOUNT]),
            force=True,
            justid=True,
            last_id=last_id,
        )


def _load(txn: Txn, texts: Sequence[bytes]) -> None:
    """Store libraries; raise RequestError if some are left out, as they cannot be loaded here."""
    present = functions.libraries(txn)
    refused = find_refused(texts, present.values())
    for text in texts:
        if text not in refused:
            functions.load(txn, text, replace=True)
        elif (name := functions.name_of(text)) in present:
            functions.delete(txn, name)
    if refused:
        left_out = [not_loaded(functions.name_of(text), why) for text, why in refused.items()]
        raise RequestError("; ".join(left_out))


def flushes(argv: Argv) -> bool:
    """Return whether a FUNCTION RESTORE deletes the other libraries."""
    return argv[1].upper() == b"RESTORE" and argv[3:4] != [] and argv[3].upper() == b"FLUSH"


def _same_delivery(commands: Sequence[Argv], at: int) -> int:
    """Return how many commands from an index on are XCLAIMs of one read, ascending."""
    first = commands[at]
    if not _is_delivery(first):
        return 1
    end, head, tail = at + 1, first[:_ID], first[_ID + 1 : _LAST_ID]
    while end < len(commands):
        other = commands[end]
        if not _is_delivery(other) or other[:_ID] != head or other[_ID + 1 : _LAST_ID] != tail:
            break
        end += 1
    return end - at


def _is_delivery(argv: Argv) -> bool:
    return len(argv) == _CLAIM_WORDS and argv[_ID] == argv[_LAST_ID] and argv[0] == b"XCLAIM"


def clear(txn: Txn, db: int, selection: Selection) -> int:
    """Delete the followed keys of a database, and return their number."""
    if not selection.match:
        return keyspace.flush(txn, db)
    _, keys = keyspace.scan(txn, db, 0, _ALL_KEYS)
    names = [qualified(db, key) for key in keys if selection.has(db, key)]
    return sum(keyspace.delete(txn, name) for name in names)


EVERY_LOSS = frozenset(LOSSES)
"""Allowed where the losses were looked for before, and are again before the cut-over."""


def load_snapshot(target: Store | Target, selection: Selection, snapshot: Path) -> Report:
    """Load the followed keys of an RDB file into a target that has none of them."""
    options = CopyOptions(replace=True, allowed=EVERY_LOSS)
    if isinstance(target, Store):
        return run(_Snapshot(snapshot, target), StoreTarget(target), selection, options)
    return run(RdbSource(snapshot), target, selection, options)


class _Snapshot(RdbSource):
    """An RDB file whose expired keys are loaded as well."""

    def __init__(self, path: Path, store: Store) -> None:
        super().__init__(path)
        self._store = store

    def items(self, selection: Selection) -> Iterator[Item]:
        for item in super().items(selection):
            expire_at_ms, item.expire_at_ms = item.expire_at_ms, 0
            yield item
            if expire_at_ms:
                name = qualified(item.db, item.key)
                self._store.engine.run(set_expiry, name, expire_at_ms)


def set_expiry(txn: Txn, name: bytes, at_ms: int) -> None:
    """Set the expiry of a key in Unix milliseconds; a past time deletes nothing."""
    txn.expiry_ms = NOTHING_EXPIRES
    if at_ms:
        keyspace.expire_at(txn, name, at_ms)
    else:
        keyspace.persist(txn, name)
