"""What stores, streams and queues need of an engine: a store in this process, or a server.

``Engine`` runs operations on the store that this process has open. ``kvstream.remote.engine`` sends
them to a server as commands, under the same names: an operation is a function of
``kvstream.operations``, or a read of ``kvstream.engine.blocking_reads``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from kvstream.meta.txn import Txn
from kvstream.types.clock import Clock
from kvstream.types.options import StoreOptions
from kvstream.types.records import Entry, KeyInfo

P = ParamSpec("P")
T = TypeVar("T")


class AnyEngine(Protocol):
    """An engine in this process or on a server. Every method may be called from any thread."""

    clock: Clock
    """The clock of the store or server, by which IDs are made and keys expire."""
    local_clock: Clock
    """A clock that is read without asking a server; it may differ from that of the store."""
    options: StoreOptions

    @property
    def place(self) -> str:
        """The directory, or the address of the server."""
        ...

    def run(
        self, operation: Callable[Concatenate[Txn, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``operation`` as one commit, or as part of this thread's open transaction."""
        ...

    def wait_for(
        self,
        names: list[bytes],
        attempt: Callable[[Txn], T | None],
        timeout_s: float | None,
        retry_at: Callable[[Txn], int | None] | None = None,
    ) -> T | None:
        """Run ``attempt`` until it replies; return None after ``timeout_s`` (None: never).

        The ``interrupt`` of a read ends the wait earlier, also with None.
        ``retry_at`` returns the Unix time in milliseconds at which another try may help although
        nothing is written, or None if that is unknown. In a transaction it tries once, and warns if
        there is no reply.
        """
        ...

    def every(self, seconds: float, call: Callable[[], object]) -> Callable[[], None]:
        """Call a function every ``seconds`` in the background; return the function that ends it."""
        ...

    @property
    def sleep(self) -> Callable[[float], None]:
        """Pause the caller for some seconds: its thread, or in asyncio its task."""
        ...

    def transaction(self) -> AbstractContextManager[Any]:
        """Run everything that this thread does inside as one commit; an exception undoes it."""
        ...

    def brief_transaction(self) -> AbstractContextManager[Any]:
        """Run a short block of kvstream's own code, as ``transaction`` does or faster."""
        ...

    def is_open_here(self) -> bool:
        """Return whether this thread is inside a transaction."""
        ...

    @property
    def own_engine(self) -> Any:
        """The ``Engine`` if this process owns the store, else None."""
        ...

    @property
    def url(self) -> str:
        """Where redis-py finds the process that owns the store; "" if no other does."""
        ...

    def keys(self, db: int, pattern: bytes | None) -> Iterator[bytes]:
        """Yield the keys of a database, those that match a Redis ``pattern`` if given."""
        ...

    def key_infos(self, db: int, pattern: bytes | None, usage: bool) -> Iterator[KeyInfo]:
        """Yield the keys as ``keys`` does, with type, counters and expiry."""
        ...

    def page_size(self, last: Sequence[Entry], most: int) -> int:
        """Return how many entries to read next, at most ``most``, after the ``last`` page."""
        ...

    def compact(self) -> None:
        """Free the disk space of deleted rows."""
        ...

    def statistics(self) -> dict[str, Any]:
        """Return sizes and counters; their names depend on the kind of engine."""
        ...

    def close(self, discard: bool = False) -> None:
        """Close the store or the connections; a second call does nothing."""
        ...
