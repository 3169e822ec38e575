"""Calls that wait: in threads of their own, or as waiters that only record their outcomes."""

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kvstream import Store
from kvstream.engine.waiters import Outcome, Waiter
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.operations import readgroup
from kvstream.operations.reads import read
from kvstream.types.ids import IDLike, StreamID
from tests.patience import PATIENCE_S, until

T = TypeVar("T")


def waiting(store: Store) -> int:
    """Return how many calls wait in the store."""
    with store.transaction():  # no call starts or ends meanwhile
        return len(store.engine.waiters)


class Call(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._reply: list[T] = []
        self._error: BaseException | None = None
        self.began = time.monotonic()
        self.seconds = 0.0
        """The duration of the call."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._reply.append(self._function())
        except BaseException as error:
            self._error = error
        self.seconds = time.monotonic() - self.began

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> T:
        """Return the result of the call, or raise its exception."""
        self._thread.join(PATIENCE_S)
        assert self.ended, "the call still waits"
        if self._error is not None:
            raise self._error
        return self._reply[0]


def blocked(store: Store, function: Callable[[], T]) -> Call[T]:
    """Start a call that will wait, and return once it does."""
    before = waiting(store)
    call = Call(function)
    until(lambda: call.ended or waiting(store) > before, "a call to wait")
    assert not call.ended, f"the call did not wait: {call.result()!r}"
    return call


class Watch:
    """A waiter without a thread: ``outcomes`` receives its outcomes at once."""

    def __init__(
        self, store: Store, keys: list[bytes], attempt: Callable[[Txn], Any], expect_reply: bool
    ) -> None:
        self.outcomes: list[Outcome] = []
        names = [qualified(0, key) for key in keys]
        reply, waiter = store.engine.submit(names, attempt, self.outcomes.append)
        assert (waiter is None) == expect_reply
        self.reply = reply
        self._waiter = waiter

    @property
    def waiter(self) -> Waiter:
        assert self._waiter is not None
        return self._waiter

    @property
    def ids(self) -> list[int]:
        """The milliseconds of the IDs of the received entries."""
        return [entry.id.ms for _, found in self.outcomes[0].get() for entry in found]


def watch_stream(store: Store, key: bytes, after: int = 0, count: int | None = None) -> Watch:
    """Wait as XREAD does for entries after ``after`` milliseconds."""
    wanted = [(qualified(0, key), StreamID(after, 0))]
    return Watch(
        store, [key], lambda txn: read.read(txn, read.StreamsRead(wanted, count)) or None, False
    )


def watch_group(
    store: Store, key: bytes, group: bytes, consumer: bytes, count: int | None = None
) -> Watch:
    """Wait as XREADGROUP does."""
    wanted = [(qualified(0, key), readgroup.NEW)]

    def attempt(txn: Txn) -> read.Reply | None:
        return readgroup.read_group(txn, group, consumer, wanted, count) or None

    return Watch(store, [key], attempt, False)


def add(store: Store, key: bytes, *ids: IDLike) -> list[StreamID]:
    """Add entries with these IDs in one commit."""
    with store.transaction():
        return [store.stream(key).add({"f": "v"}, id=eid) for eid in ids]


def ms_of(entries: list[Any]) -> list[int]:
    """Return the milliseconds of the IDs of entries."""
    return [entry.id.ms for entry in entries]
