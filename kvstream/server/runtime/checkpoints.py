"""SAVE, BGSAVE and BGREWRITEAOF: checkpoints and compactions in threads, one of each at a time.

Without a directory for checkpoints a save only makes all writes durable. Clients wait for the end
of a job as for a key, by a name that no key can have.
"""

import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from kvstream.commands.command import Attempt, Blocked
from kvstream.commands.replies import OK, Reply
from kvstream.engine.engine import Engine
from kvstream.errors import RequestError
from kvstream.logs import NOTICE
from kvstream.meta.txn import Txn
from kvstream.types.clock import monotonic

RETRY_S = 5
"""Seconds after a failed save before the next automatic one."""
FSYNC = "fsync"
_PREFIX = "checkpoint-"
_NAME = re.compile(_PREFIX + "[0-9]{20}")
_STAGE = re.compile(rf"\.{_PREFIX}[0-9]{{20}}-.*")
"""A checkpoint that is being made, or whose process was killed."""

_log = logging.getLogger(__name__)


class Job:
    """A job in a thread of its own, and its result."""

    def __init__(self, engine: Engine, name: str, work: Callable[[], None], owner: object) -> None:
        self.owner = owner
        self.error: Exception | None = None
        self.done = False
        self.begun = monotonic()
        self.seconds = 0.0
        self._engine = engine
        self._name = name
        self._token = name[:1].encode()  # names of keys have at least two bytes, for the database
        self._work = work
        self.thread = threading.Thread(target=self._run, name=f"kvstream-{name}", daemon=True)

    def _run(self) -> None:
        _log.info("the %s begins", self._name)
        try:
            self._work()
        except Exception as error:
            self.error = error
            _log.warning("the %s has failed: %s", self._name, error)
        finally:
            self.seconds = monotonic() - self.begun
            if self.error is None:
                level = logging.INFO if self._name == FSYNC else NOTICE
                _log.log(level, "the %s took %.3f s", self._name, self.seconds)
            self.done = True
            self._engine.serve([self._token])

    @property
    def is_alive(self) -> bool:
        """Return whether it runs, or still has to wake its waiters."""
        return self.thread.is_alive()

    def wait(
        self, reply: Reply = OK, timeout_ms: int | None = None, expired: Reply = None
    ) -> Blocked:
        """Return the answer that blocks a client until the job or the timeout ends."""

        def attempt(txn: Txn) -> Any:
            if not self.done:
                return None
            if isinstance(self.error, RequestError):
                raise self.error
            if self.error is not None:
                raise JobFailed(str(self.error) or type(self.error).__name__)
            return reply

        return Blocked([self._token], cast(Attempt, attempt), timeout_ms, expired=expired)


class JobFailed(RequestError):
    """A save or a compaction has failed; the text gives the reason."""


class Checkpoints:
    """The jobs of one server, and the time of the last save."""

    def __init__(self, engine: Engine, directory: Path | None, kept: int) -> None:
        self._engine = engine
        self.directory = directory
        self._kept = max(kept, 1)
        self.last_save = int(time.time())
        self.last_failed = False
        self.saves = 0
        self.last_seconds = -1
        self.saved_changes = 0
        """The number of changes that the last save includes."""
        self.save: Job | None = None
        self.compaction: Job | None = None

    @property
    def is_saving(self) -> bool:
        return self.save is not None and not self.save.done

    @property
    def is_compacting(self) -> bool:
        return self.compaction is not None and not self.compaction.done

    @property
    def is_busy(self) -> bool:
        return any(job is not None and job.is_alive for job in (self.save, self.compaction))

    def start_save(self, owner: object, changes: int) -> Job:
        """Start a save of all commits so far; ``owner`` names the requester."""

        def work() -> None:
            try:
                self._save()
            except BaseException:
                self.last_failed = True
                raise
            self.last_failed = False
            self.last_save = int(time.time())
            self.last_seconds = int(monotonic() - job.begun)
            self.saves += 1
            self.saved_changes = changes

        job = self.save = Job(self._engine, "save", work, owner)
        job.thread.start()
        return job

    def save_if_due(self, points: Iterable[tuple[int, int]], changes: int) -> None:
        """Start a save if a save point is reached."""
        since, changed = time.time() - self.last_save, changes - self.saved_changes
        if not any(since >= seconds and changed >= least for seconds, least in points):
            return
        last = self.save
        tried = self.last_failed and last is not None and monotonic() < last.begun + RETRY_S
        if not self.is_saving and not tried:
            self.start_save(self, changes)

    def start_compaction(self, owner: object) -> Job:
        job = self.compaction = Job(self._engine, "compaction", self._engine.compact, owner)
        job.thread.start()
        return job

    def start_sync(self) -> Job:
        """Start to make all commits so far durable."""
        job = Job(self._engine, FSYNC, self._engine.sync, None)
        job.thread.start()
        return job

    def start_reload(self, from_log: bool, changes: int) -> Job:
        """Start to close the store and open it again; ``changes`` is the number of changes so far.

        Unless it reads the log (``from_log``), everything is in tables then, which counts as a
        save.
        """

        def work() -> None:
            self._engine.reopen(from_log)
            if not from_log:
                self.last_save = int(time.time())
                self.saved_changes = changes

        job = Job(self._engine, "memory", work, None)
        job.thread.start()
        return job

    def join(self) -> None:
        """Wait for the running jobs."""
        for job in (self.save, self.compaction):
            if job is not None:
                job.thread.join()

    def _save(self) -> None:
        if self.directory is None:
            self._engine.sync()
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for stage in self.directory.iterdir():
            if _STAGE.fullmatch(stage.name):  # its links keep the space of deleted tables
                shutil.rmtree(stage, ignore_errors=True)
        self._engine.checkpoint(self.directory / f"{_PREFIX}{time.time_ns():020}")
        checkpoints = [path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)]
        for old in sorted(checkpoints)[: -self._kept]:
            shutil.rmtree(old)
