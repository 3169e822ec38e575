"""A queue of tasks that comes back after a crash: streams, one group of readers, and leases.

Each priority has a stream; a read takes tasks of the highest priority first. What a process has
read is pending with its consumer until it is acknowledged, which deletes it. While the process
lives, a thread (in asyncio a task) renews its tasks; those of a dead one go to the next reader once
``lease`` seconds have passed since the last renewal. Each delivery has a token: a process that
stood still for so long cannot acknowledge or give back what another one is working on.
"""

import logging
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from kvstream.adapters.places import retry_conflicts
from kvstream.engine.coerce import Name, milliseconds
from kvstream.errors import InvalidArgument, KVStreamError, LeaseLost, NoGroup, show
from kvstream.group import Group
from kvstream.operations import watch
from kvstream.operations.queues import leases
from kvstream.store import Store
from kvstream.stream import Stream
from kvstream.types.ids import MIN_ID, IDLike, StreamID, Ticket
from kvstream.types.records import DeletedEntry, Entry, LeaseOutcome

T = TypeVar("T")

GROUP = "workers"
BODY = b"task"
LEASE_S = 30.0
_PURGE_PAGE = 1000
_log = logging.getLogger(__name__)


class Ref(NamedTuple):
    """One delivery of a task: the key of its stream, its ID, and how often it was delivered."""

    key: bytes
    id: StreamID
    deliveries: int


class Task(NamedTuple):
    """A task that was read."""

    queue: str
    body: bytes
    ref: Ref

    @property
    def deliveries(self) -> int:
        """How often it was delivered before."""
        return self.ref.deliveries - 1


class _Queue:
    """What a reader knows of a queue: the keys of its priorities."""

    def __init__(self) -> None:
        self.levels: dict[float, bytes] = {}
        self.seen = MIN_ID
        """The last entry of the list of priorities that was read."""


class Tasks:
    """Queues of bytes, by name, and a reader of them. Methods may be called from any thread."""

    reap_s = 3600.0
    """A consumer that has read nothing for so long and has nothing pending is deleted."""

    def __init__(self, store: Callable[[], Store], lease: float = LEASE_S) -> None:
        """``store`` returns the open store; it is called in each process."""
        if milliseconds(lease, "lease") < 1:
            raise InvalidArgument(f"lease must be above 0, not {show(lease)}")
        self._open, self.lease = store, lease
        self._begin()

    def _begin(self) -> None:
        """Begin as a new reader: in this process, or in a child that was forked from it."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self.consumer = f"{socket.gethostname()}-{self._pid}-{uuid4().hex[:8]}"
        self._queues: dict[str, _Queue] = defaultdict(_Queue)
        self._held: set[Ref] = set()
        """The tasks in work."""
        self._end: Callable[[], None] | None = None

    # --- priorities -----------------------------------------------------------------------------

    def _levels(self, name: str) -> dict[float, bytes]:
        """Return the keys of the streams of a queue, by priority; make the first one."""
        if os.getpid() != self._pid:
            self._begin()
        with self._lock:
            queue = self._queues[name]
            if not queue.levels:
                self._add_level(queue, 0, name.encode())
            for entry in self._list_of(name).range(f"({queue.seen}"):
                queue.seen = entry.id
                try:
                    level = float(entry.fields[b"priority"])
                except (KeyError, ValueError):
                    _log.warning("the entry %s of %s:priorities is no priority", entry.id, name)
                    continue
                self._add_level(queue, level, f"{name}:priority:{level!r}".encode())
            return dict(queue.levels)

    def _list_of(self, name: str) -> Stream:
        """Return the stream that lists the priorities of a queue, other than 0."""
        return self._open().stream(f"{name}:priorities")

    def _add_level(self, queue: _Queue, level: float, key: bytes) -> None:
        if level not in queue.levels:
            retry_conflicts(
                lambda: self._open().stream(key).create_group(GROUP, "0", exist_ok=True)
            )
            queue.levels[level] = key

    def _streams(self, name: str) -> list[Stream]:
        """Return the streams of a queue, the highest priority first."""
        levels = self._levels(name)
        return [self._open().stream(levels[level]) for level in sorted(levels, reverse=True)]

    def stream(self, name: str, level: float = 0) -> Stream:
        """Return the stream of a priority, which all readers read from now on."""
        levels = self._queues[name].levels
        if level not in levels:
            levels = self._levels(name)
        if level not in levels:
            self._list_of(name).add({"priority": repr(float(level))})
            levels = self._levels(name)
        return self._open().stream(levels[level])

    # --- tasks ----------------------------------------------------------------------------------

    def put(
        self, name: str, body: bytes, priority: float = 0, delay: float | None = None
    ) -> StreamID | Ticket:
        """Add a task; with ``delay`` it is read after so many seconds at the earliest."""
        stream = self.stream(name, priority)
        return stream.add({BODY: body}) if delay is None else stream.add({BODY: body}, delay=delay)

    def get(self, *names: str, count: int = 1, block: float | None = None) -> list[Task]:
        """Return tasks that no other reader has, highest priority first; wait ``block`` seconds.

        Tasks whose reader has died come before new ones of their priority.
        """
        return self._retry(names, lambda: self._get(names, count, block))

    def _retry(self, names: Sequence[str], call: Callable[[], T]) -> T:
        """Make a call; if a queue was deleted, make it once more, which creates the queue."""
        with suppress(NoGroup):
            return call()
        with self._lock:
            for name in names:
                self._queues.pop(name, None)
        return call()

    def _get(self, names: tuple[str, ...], count: int, block: float | None) -> list[Task]:
        streams = [
            (-level, key, name) for name in names for level, key in self._levels(name).items()
        ]
        streams.sort(key=lambda stream: stream[0])
        queue_of = {key: name for _, key, name in streams}
        wanted: dict[Name, IDLike] = dict.fromkeys(queue_of, ">")
        reply = self._open().read_group(
            *(GROUP, self.consumer, wanted, count, block),
            claim_min_idle=self.lease,
            max_count=count,
        )
        tasks = [
            _task(queue_of[key], key, entry)
            for key in reply
            for entry in reply[key]
            if not isinstance(entry, DeletedEntry)
        ]
        if tasks:
            self._hold(tasks)
        return tasks

    def ack(self, *refs: Ref) -> None:
        """Delete tasks that are done. One whose deletion fails comes back after its lease.

        One that another reader has by now stays that reader's; a warning says so.
        """
        self._settle(leases.ack_delete, refs)

    def nack(self, *refs: Ref) -> None:
        """Give tasks back: the next read of any process gets them first."""
        self._settle(leases.nack, refs)

    def _settle(self, operation: Callable[..., list[int]], refs: Sequence[Ref]) -> None:
        self.release(*refs)
        for key, tokens in _by_key(refs):
            with suppress(NoGroup):  # the queue was deleted
                outcomes = retry_conflicts(partial(self._run, operation, key, tokens))
                if lost := outcomes.count(LeaseOutcome.LOST):
                    _log.warning("%d tasks of %s are another reader's by now", lost, key.decode())

    def bury(self, ref: Ref, body: bytes, dead: str, **limits: Any) -> None:
        """Move a task to the stream ``dead``, in one commit; ``limits`` are those of ``add``.

        One that another reader has by now stays that reader's; a warning says so.
        """
        self.release(ref)
        store = self._open()
        try:
            with store.transaction():
                self.guard(ref)
                store.stream(dead).add({BODY: body}, **limits)
                store.stream(ref.key).group(GROUP).ack_delete(ref.id)
        except LeaseLost:
            _log.warning("the task %s is another reader's by now", ref.id)

    def guard(self, ref: Ref) -> None:
        """Raise LeaseLost if another reader has a task, in a transaction also by its end."""
        self._run(watch.guard, ref.key, ref.id, ref.deliveries)

    def _run(self, operation: Callable[..., T], key: bytes, *args: Any) -> T:
        """Run an operation on the deliveries of one stream to this reader."""
        return self._open().run(operation, key, GROUP.encode(), self.consumer.encode(), *args)

    def release(self, *refs: Ref) -> None:
        """Renew tasks no more: another reader gets them when their lease is over."""
        with self._lock:
            self._held.difference_update(refs)

    def _group(self, key: bytes) -> Group:
        return self._open().stream(key).group(GROUP)

    # --- leases ---------------------------------------------------------------------------------

    def _hold(self, tasks: list[Task]) -> None:
        with self._lock:
            self._held.update(task.ref for task in tasks)
            if self._end is not None:
                return
            self._end = self._open().every(self.lease / 3, self._renew)
        self._reap(tasks[0].queue)

    def _renew(self) -> None:
        """Renew the leases of the tasks in work."""
        with self._lock:
            work = _by_key(self._held)
        for key, tokens in work:
            with suppress(KVStreamError):  # the next call of the program gets the error too
                self._extend(key, tokens)

    def _extend(self, key: bytes, tokens: list[leases.Token]) -> list[StreamID]:
        """Renew leases, and return the IDs of those that are not lost."""
        outcomes = zip(tokens, self._run(leases.extend, key, tokens), strict=True)
        renewed = {token for token, outcome in outcomes if outcome == LeaseOutcome.DONE}
        self.release(*(Ref(key, *token) for token in tokens if token not in renewed))
        return [token[0] for token in tokens if token in renewed]

    def _reap(self, name: str) -> None:
        """Delete the consumers of processes that ended long ago and have nothing pending."""
        for stream in self._streams(name):
            group = stream.group(GROUP)
            for info in group.consumers():
                if not info.pending and info.idle > self.reap_s * 1000:
                    group.delete_consumer(info.name)

    def close(self) -> None:
        """Give back what was not acknowledged, and read no more."""
        if os.getpid() != self._pid:
            return
        if self._end is not None:
            self._end()
            self._end = None
        with self._lock:
            work = _by_key(self._held)
            self._held.clear()
        for key, tokens in work:
            with suppress(KVStreamError):
                self._group(key).nack(self._extend(key, tokens), mode="SILENT")

    # --- the whole queue ------------------------------------------------------------------------

    def size(self, name: str) -> int:
        """Return the number of tasks that no reader has."""
        return self._retry([name], lambda: sum(map(self._size_of, self._streams(name))))

    @staticmethod
    def _size_of(stream: Stream) -> int:
        return len(stream) - sum(stream.group(GROUP).pending().consumers.values())

    def items(self, name: str, limit: int | None = None) -> list[bytes]:
        """Return the tasks that no reader has, in the order in which they will be read."""

        def read() -> list[bytes]:
            return [body for stream in self._streams(name) for body in self._ready(stream, limit)]

        return self._retry([name], read)[:limit]

    def _ready(self, stream: Stream, limit: int | None) -> Iterator[bytes]:
        taken = self._list_pending(stream)
        for entry in stream.scan():
            if entry.id not in taken:
                yield _body(entry)
                limit = None if limit is None else limit - 1
                if limit == 0:
                    return

    def _list_pending(self, stream: Stream) -> set[StreamID]:
        group = stream.group(GROUP)
        summary = group.pending()
        return {
            pending.id
            for consumer, count in summary.consumers.items()
            for pending in group.pending_range(count=count, consumer=consumer)
        }

    def purge(self, name: str) -> int:
        """Delete the tasks that no reader has; return how many."""
        return self._retry([name], lambda: sum(map(self._purge, self._streams(name))))

    def _purge(self, stream: Stream) -> int:
        purged, group = 0, stream.group(GROUP)
        while ids := [entry.id for entry in group.consumer(self.consumer).read(_PURGE_PAGE)]:
            group.ack_delete(ids)
            purged += len(ids)
        return purged

    def delete(self, name: str) -> None:
        """Delete the queue, with the tasks in work.

        The list of priorities stays: other processes may still add tasks of each.
        """
        self._open().delete(*(stream.key for stream in self._streams(name)))
        self._queues.pop(name, None)


def _task(queue: str, key: bytes, entry: Entry[bytes]) -> Task:
    return Task(queue, _body(entry), Ref(key, entry.id, (entry.deliveries or 0) + 1))


def _body(entry: Entry[bytes]) -> bytes:
    """Return the task in an entry; empty, so no task, if another program has added the entry."""
    return entry.fields.get(BODY, b"")


def _by_key(refs: Collection[Ref]) -> list[tuple[bytes, list[leases.Token]]]:
    """Return the tokens of tasks by the keys of their streams."""
    tokens_by_key: dict[bytes, list[leases.Token]] = defaultdict(list)
    for ref in refs:
        tokens_by_key[ref.key].append((ref.id, ref.deliveries))
    return list(tokens_by_key.items())
