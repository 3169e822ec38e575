"""Whose an engine is: of the process that opened the store, and of one of its threads at a time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, NoReturn, ParamSpec, TypeVar

from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.storage import fork

P = ParamSpec("P")
T = TypeVar("T")


class Owned:
    """The lock of an engine, the transaction that its holder has open, and what others are told."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._compacting, self._flushing = threading.Lock(), threading.Lock()
        self._open: Txn | None = None
        self._opener = 0
        fork.register(self)

    def is_open_here(self) -> bool:
        """Tell whether this thread is inside a transaction or a turn."""
        return self._open is not None and self._opener == threading.get_ident()

    def is_held_here(self) -> bool:
        """Tell whether this thread has the lock."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep all others out through several commits of this thread, of which none is open."""
        with self._lock:
            if self._open is not None:
                raise InvalidArgument("a transaction is open in this thread already")
            yield

    def _join(
        self,
        txn: Txn,
        operation: Callable[Concatenate[Txn, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run ``operation`` as a part of a transaction that is open; it may fail as a whole."""
        try:
            return operation(txn, *args, **kwargs)
        except RequestError:  # refused before anything was changed
            raise
        except BaseException:
            txn.failed = True
            raise

    def refuse_after_fork(self) -> None:
        """Make every use in this process, a forked child, raise StoreClosed.

        Another thread of the parent may have held the lock: nobody here would ever let go of it.
        """
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock, self._open = threading.RLock(), None
        self._compacting, self._flushing = threading.Lock(), threading.Lock()
        vars(self)["_begin"] = fork.Gone(fork.FORKED)  # found before the method of that name

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an open store cannot be pickled: one process at a time has it, and others reach it "
            "through `kvstream serve`, or open it themselves once it is closed"
        )
