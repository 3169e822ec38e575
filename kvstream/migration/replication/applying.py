"""Commands that a source sends to its replicas, or has written into its AOF, run on an open store.

What runs is the command table, inside a transaction that the caller has open: so whatever else must
be true at the same moment, such as how far the source has been followed, goes into the same commit.
Nothing expires by itself here: the source tells what has expired.

A snapshot of a source into the target that follows it: the route of every RDB file.

Expiry is set behind each key, as the source would set it: a key whose time has come by our clock
may be one that the source, whose clock is the one that counts, has given more time since.
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
from kvstream.migration.copy import Manner
from kvstream.migration.items import OWN_PREFIXES, Item, Selection, Target
from kvstream.migration.rdb_place import RdbSource
from kvstream.migration.replication.commands import Interpreter, Run
from kvstream.migration.runner import run
from kvstream.migration.store_place import StoreTarget
from kvstream.operations import claim, keyspace
from kvstream.operations.groups import advance_over, group_of_key
from kvstream.store import Store

NOTHING_EXPIRES = -1
_ALL_KEYS = 1 << 62
_CLAIM_WORDS = 14
"""Words of the XCLAIM that stands for a delivery, a claim, or a cleared entry."""
_ID, _TIME, _RETRYCOUNT, _LAST_ID = 5, 7, 9, 13


class Applier(Interpreter):
    """Runs the commands of one source in order, each in the database that SELECT has named.

    ``counts_reads``: an XCLAIM that stands for a delivery also counts the entry as read. Servers
    before 7.2 do not tell their replicas so, and the live source has counted it. Redis itself,
    loading such a log, does not: its XCLAIM leaves entries-read as it is.
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
        self._alike: Sequence[Argv] = ()
        """What is run together with the command at hand."""

    def apply(self, txn: Txn, argv: Argv) -> None:
        """Run one command in a transaction; what the store itself cannot do is raised."""
        now_ms, expiry_ms = txn.now_ms, txn.expiry_ms
        txn.expiry_ms = NOTHING_EXPIRES
        try:
            told = self.read(argv)
            for db in self.flushed(told) if told.flushed else ():
                clear(txn, db, self.selection)
            for run in told.runs:
                self._run(txn, run)
            self.note_done(told)
        finally:
            txn.now_ms, txn.expiry_ms = now_ms, expiry_ms

    def apply_all(self, txn: Txn, commands: Sequence[Argv]) -> None:
        """Run commands in order: those that stand for one read of many entries as one."""
        at = 0
        while at < len(commands):
            many = _same_delivery(commands, at)
            self._alike = commands[at + 1 : at + many]
            self.apply(txn, commands[at])
            self.applied += many - 1
            at += many
        self._alike = ()

    def apply_in(self, txn: Txn, db: int, argv: Argv) -> None:
        """Run a command of a database, whatever was selected before."""
        self.db = db
        self.apply(txn, argv)

    def _run(self, txn: Txn, run: Run) -> None:
        self._session.select(run.db)
        try:
            if len(run.argv) == _CLAIM_WORDS and run.argv[0].upper() == b"XCLAIM":
                self._claim(txn, run.argv)
            else:
                find(run.argv).run(txn, self._session, run.argv)
        except RequestError as error:
            self.note_refusal(run, error)
        else:
            self.note_run(run)

    def _claim(self, txn: Txn, argv: Argv) -> None:
        """Do what a delivery or claim has done at the source, at the moment when it did."""
        name, at_ms = self._session.prefix + argv[1], int(argv[_TIME])
        ids = [stream_id(each[_ID]) for each in (argv, *self._alike)]
        last_id = ids[-1] if self._alike else stream_id(argv[_LAST_ID])
        stream, group = group_of_key(txn, name, argv[2])
        is_delivery = ids[-1] == last_id and ids[0] > group.last_delivered
        # A source whose clock is ahead has delivered in our future; that stays true.
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


def _same_delivery(commands: Sequence[Argv], at: int) -> int:
    """Return how many commands from a place on are deliveries by one read, ascending."""
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
    """Delete the keys of a database that are followed, and return how many there were."""
    if not selection.match:
        return keyspace.flush(txn, db)
    _, keys = keyspace.scan(txn, db, 0, _ALL_KEYS)
    names = [
        qualified(db, key)
        for key in keys
        if selection.has(db, key) and not key.startswith(OWN_PREFIXES)
    ]
    return sum(keyspace.delete(txn, name) for name in names)


class SnapshotLoader:
    """Loads the followed keys of RDB files into a target that has none of them."""

    def __init__(self, target: Store | Target, selection: Selection) -> None:
        self._target = target
        self._selection = selection

    def __call__(self, snapshot: Path) -> int:
        """Load a file; return the database that the stream behind it begins in."""
        target = self._target
        if isinstance(target, Store):
            source: RdbSource = _Snapshot(snapshot, target)
            run(source, StoreTarget(target), self._selection, Manner())
        else:
            run(RdbSource(snapshot), target, self._selection, Manner(replace=True))
        return 0  # behind a snapshot a source says SELECT before its first command


class _Snapshot(RdbSource):
    """An RDB file whose keys do not expire before they are there."""

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
    """Let a key expire at a Unix time in milliseconds; one that is past deletes nothing."""
    txn.expiry_ms = NOTHING_EXPIRES
    if at_ms:
        keyspace.expire_at(txn, name, at_ms)
    else:
        keyspace.persist(txn, name)
