"""Whose an engine is: of the process that opened the store, and of one of its threads at a time.

Where the server that holds a store is reached: a file beside its rows, for those on the machine.

::

    <store>/loads/server      JSON: {"url": "redis://127.0.0.1:6379", "run_id": "..."}

Without a password: who wants in must know it. A server that was killed leaves the file, so whoever
reads it asks the server for its ``run_id`` before believing it. This module knows files alone.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Concatenate, NamedTuple, NoReturn, ParamSpec, TypeVar

from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.storage import directory, files
from kvstream.storage.files import DIRECTORY_MODE

FOLDER = "loads"
"""The folder in the store's own for what concerns loading through its server."""
_FILE = "server"
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Address(NamedTuple):
    """A server, and what tells it from others that have its port later."""

    url: str
    run_id: str


def url_of(host: str, port: int, tls: bool) -> str:
    """Return the URL under which a server that listens there is reached from its own machine."""
    host = _ANYWHERE.get(host, host)
    shown = f"[{host}]" if ":" in host else host
    return f"{'rediss' if tls else 'redis'}://{shown}:{port}"


def folder_of(store: Path) -> Path:
    """Return the folder for loads, made where it is not there."""
    folder = store / FOLDER
    with suppress(FileExistsError):
        folder.mkdir(DIRECTORY_MODE)
    return folder


def note(store: Path, address: Address) -> None:
    """Say where the store is served."""
    text = json.dumps(address._asdict())
    files.write(folder_of(store) / _FILE, text.encode())


def forget(store: Path) -> None:
    """Say that it is served no more."""
    with suppress(OSError):
        (store / FOLDER / _FILE).unlink()


def address_of(store: Path) -> Address | None:
    """Return where a store is, or was, served; None where nobody says."""
    path = store / FOLDER / _FILE
    try:
        told = json.loads(files.read(path))
        return Address(str(told["url"]), str(told["run_id"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


P = ParamSpec("P")
T = TypeVar("T")


class Owned:
    """The lock of an engine, the transaction that its holder has open, and what others are told."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._compacting, self._flushing = threading.Lock(), threading.Lock()
        self._open: Txn | None = None
        self._opener = 0
        directory.register(self)

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
        vars(self)["_begin"] = directory.Gone(
            directory.FORKED
        )  # found before the method of that name

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an open store cannot be pickled: one process at a time has it, and others reach it "
            "through `kvstream serve`, or open it themselves once it is closed"
        )
