"""The role of a store: a primary, or a replica, which takes the writes of another store alone.

::

    REPLICA := JSON, in the directory of a store whose role was set
      replicaof    [host, port], the server that it follows; null: it was made a primary

A replica hides expired keys and deletes none, and its timers, its retention and its sweeps rest:
its primary does all that, and the rows come from there. ``apply`` is the way in for them.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kvstream.engine.archiving import Archiving
from kvstream.engine.expiry import Expiry
from kvstream.engine.timer_thread import TimerThread
from kvstream.engine.waiters import Waiters
from kvstream.errors import Corruption, ReplicaReadOnly, RequestError, StoreError
from kvstream.layout.history import History
from kvstream.layout.keys import HISTORY_KEY, ID_BYTES, STREAM_TAG
from kvstream.meta.catalog import Catalog
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations.images import staged_loads
from kvstream.storage import files
from kvstream.storage.batch import Batch, Family
from kvstream.storage.changes import read_history
from kvstream.storage.database import Database
from kvstream.storage.durability import Committer
from kvstream.types.options import StoreOptions

FILE_NAME = "REPLICA"


class Source(NamedTuple):
    """The server that a replica follows."""

    host: str
    port: int


def read_role(directory: Path) -> tuple[Source | None, bool]:
    """Return what the store in a directory follows, and whether its role was ever set."""
    try:
        found: dict[str, Any] = json.loads(files.read(directory / FILE_NAME))
        source = found["replicaof"]
        return None if source is None else Source(str(source[0]), int(source[1])), True
    except FileNotFoundError:
        return None, False
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Corruption(f"the file {FILE_NAME} of the store is damaged: {error}") from None


def write_role(directory: Path, source: Source | None) -> None:
    """Set the role of the store in a directory, durably."""
    files.write(directory / FILE_NAME, json.dumps({"replicaof": source}).encode())


class Owner(Protocol):
    """The engine, as far as its role needs it."""

    options: StoreOptions
    database: Database
    catalog: Catalog
    committer: Committer
    expiry: Expiry
    timers: TimerThread
    waiters: Waiters
    archiving: Archiving

    def run(self, operation: Callable[..., Any], *args: Any) -> Any: ...

    def hold(self) -> AbstractContextManager[None]: ...

    def exclusively(self) -> AbstractContextManager[None]: ...

    def serve_signals(self, signals: dict[bytes, Wake]) -> None: ...


class Following:
    """The role of an open store, and the changes of it; the caller is in no call of the engine."""

    def __init__(self, engine: Owner, wanted: Source | None = None) -> None:
        """``wanted``: the server that the store follows, if its role was never set."""
        self._engine = engine
        self.source, self.is_set = read_role(engine.database.own_path)
        if wanted is not None and not self.is_set:
            write_role(engine.database.own_path, wanted)
            self.source, self.is_set = wanted, True
        """The server that the store follows, None if it is no replica; whether that was ever
        set."""
        self._prefixes: dict[bytes, bytes] = {}
        """The prefixes of streams on which readers are blocked, by name."""
        if self.source is not None:
            self._rest(True)

    def _rest(self, rests: bool) -> None:
        """Refuse the writes of others, and pause the threads that change the store, or end both."""
        engine = self._engine
        engine.database.write_guard.follow(ReplicaReadOnly() if rests else None)
        self.work(not rests)

    # --- changes of the role --------------------------------------------------------------------

    def follow(self, source: Source, last: int | None = None) -> bool:
        """Become a replica; what is written so far stays until the primary's data are there.

        Nothing is done, and false returned, if there are rows behind the number ``last``.
        """
        engine = self._engine
        if last is None:
            with suppress(StoreError):  # of one that takes no writes, since another one does
                engine.run(Txn.write_seen)
        with engine.hold():
            if last is not None and engine.database.sequence > last:
                return False
            write_role(engine.database.own_path, source)
            self.source, self.is_set = source, True
            engine.archiving.sleep()
            self._rest(True)
            self._forget()
        return True

    def promote(self) -> None:
        """Become a primary, by the first row of an epoch, durably; the link is closed already.

        The store is a replica as before if an error is raised, as on a full disk.
        """
        engine = self._engine
        if read_history(engine.database) is not None:
            self.begin_epoch()
            engine.committer.sync()
        try:
            with engine.hold():
                engine.database.write_guard.follow(None)
                self._forget()
                staged_loads.recover(engine.run, read_only=False)
            write_role(engine.database.own_path, None)
        except BaseException:
            self._rest(True)
            raise
        self.source, self.is_set = None, True
        self._rest(False)
        engine.archiving.take()

    def begin_history(self) -> History:
        """Return the history of the store; begin one if there is none."""
        with self._engine.hold():
            return read_history(self._engine.database) or self.begin_epoch()

    def begin_epoch(self) -> History:
        """Write the first row of the next epoch, or of the history if there is none."""
        engine = self._engine
        with engine.hold():
            database = engine.database
            known, last = read_history(database), database.sequence
            history = History.begin(last) if known is None else known.begin_epoch(last)
            self._write_history(history)
            database.is_followed = True
        return history

    def open_epoch(self) -> None:
        """Begin the epoch of a primary that is opened, before anything else is written.

        A power cut may have taken rows that its replicas have. What is written in their place, by
        a timer or by hand, must not have their positions.
        """
        engine = self._engine
        if self.source is not None or engine.options.read_only:
            return
        is_followed = engine.database.is_followed
        if read_history(engine.database) is not None:
            self.begin_epoch()
            engine.database.is_followed = is_followed  # if it is served

    def rest(self) -> None:
        """Write what was deferred, and pause the threads that change the store: it will be closed.

        What is written from now on would be in this store alone.
        """
        engine = self._engine
        self.work(False)
        engine.run(Txn.write_seen)

    def work(self, works: bool) -> None:
        """Resume or pause the threads that change the store; they pause while it is a replica."""
        engine = self._engine
        engine.expiry.follows = engine.timers.follows = not works
        if works:
            engine.timers.wake()

    def end_history(self) -> None:
        """Forget the history: nobody follows any more."""
        engine = self._engine
        with engine.hold():
            engine.database.is_followed = bool(engine.options.archive)
            self._write_history(None)

    def _write_history(self, history: History | None) -> None:
        batch = Batch(self._engine.database)
        value = None if history is None else history.encode()
        batch.puts[Family.METADATA][HISTORY_KEY] = value
        self._engine.database.write(batch, frees=True)

    # --- the rows of the primary ----------------------------------------------------------------

    def apply(self, batch: Batch, is_current: Callable[[], bool]) -> bool:
        """Write rows of the primary as one commit, unless they are not ``is_current`` any more.

        Blocked readers of changed streams are served.
        """
        engine = self._engine
        with engine.hold():
            if not is_current():
                return False
            names = list(self._find_names(batch)) if engine.waiters.queues else []
            engine.database.write(batch, frees=True)
            self._forget()
            engine.serve_signals(dict.fromkeys(names, Wake.ADDED))
        if engine.database.pause_s:
            engine.database.rest()
        return True

    def replace(self, prepare: Callable[[], None], is_current: Callable[[], bool]) -> bool:
        """Take the files of the primary that have been received in place of the store's own.

        ``prepare`` decides it durably. Blocked readers go on waiting. Nothing is done, and false
        returned, if they are not ``is_current`` any more.
        """
        engine = self._engine
        engine.committer.sync()  # nobody may wait for a number that the other store has not
        with engine.exclusively():
            if not is_current():
                return False
            prepare()
            self._forget()
            database = engine.database
            database.replace()
            engine.committer.restart()
            history = read_history(database)
            if history is None:
                raise Corruption("the copy of the primary has no history")
            self._write_history(history.at(history.lsn_of(database.sequence)))
        with engine.hold():
            engine.serve_signals(dict.fromkeys(engine.waiters.names(), Wake.REPLACED))
        return True

    def _forget(self) -> None:
        catalog = self._engine.catalog
        catalog.forget()
        catalog.index.break_watches()

    def _find_names(self, batch: Batch) -> Iterator[bytes]:
        """Yield the awaited names whose streams a batch changes."""
        messages, metadata, _ = batch.puts
        prefixes = {key[:-ID_BYTES] for key in messages}
        records = {key[1:] for key in metadata if key[:1] == STREAM_TAG}
        stored_name = self._engine.run(_stored_names, self._engine.waiters.names())
        for name, stored in stored_name.items():
            if stored in records or batch.ranges:
                self._prefixes.pop(name, None)
                yield name
            elif self._prefix(name) in prefixes:
                yield name

    def _prefix(self, name: bytes) -> bytes:
        prefix = self._prefixes.get(name)
        if prefix is None:
            self._prefixes = {} if len(self._prefixes) > _PREFIXES_MAX else self._prefixes
            prefix = self._prefixes[name] = self._engine.run(_prefix_of, name)
        return prefix


_PREFIXES_MAX = 10_000


def _stored_names(txn: Txn, names: list[bytes]) -> dict[bytes, bytes]:
    stored = txn.catalog.databases.stored_name
    return {name: stored(txn, name) for name in names if len(name) > 1}


def _prefix_of(txn: Txn, name: bytes) -> bytes:
    with suppress(RequestError):  # another type
        stream = txn.stream(name)
        if stream is not None:
            return stream.prefix
    return b""
