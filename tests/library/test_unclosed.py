"""Stores that the program drops without closing them: a warning, and a free directory."""

import _thread
import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import Queue, Store
from kvstream.engine import unclosed
from kvstream.errors import StoreLocked
from kvstream.jobs import Jobs
from tests.patience import until

SAYS = "was not closed"


@pytest.fixture(autouse=True)
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """Record the warnings of all threads, and wait for the stores that are being closed."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found
        gc.collect()
        until(lambda: not unclosed._closing, "dropped stores to be closed")


def plain(directory: Path) -> None:
    store = Store.open(directory)
    store.stream("s").add({"n": 1})


def to_read(directory: Path) -> None:
    Store.open(directory, read_only=True).size()


def always(directory: Path) -> None:
    Store.open(directory, durability="always").stream("s").add({"n": 1})


def queue(directory: Path) -> None:
    jobs = Queue(Store.open(directory), "q")
    jobs.put({"n": 1})
    jobs.get(1)


def shared(directory: Path) -> None:
    kvstream.open(directory, shared=True).stream("s").add({"n": 1})


def with_jobs(directory: Path) -> None:
    jobs = Jobs(directory, shared=False)

    @jobs.task
    def work() -> None: ...

    work.enqueue()


def in_asyncio(directory: Path) -> None:
    async def main() -> None:
        store: Any = await kvstream.aio.open(directory).__aenter__()
        await store.stream("s").add({"n": 1})

    asyncio.run(main())


def in_a_cycle(directory: Path) -> None:
    found: list[Any] = [Store.open(directory)]
    found.append(found)


KINDS: list[Callable[[Path], None]] = [
    *(plain, to_read, always, queue, shared, with_jobs, in_asyncio, in_a_cycle)
]


@pytest.mark.parametrize("use", KINDS)
def test_a_directory_is_free_again(
    tmp_path: Path, use: Callable[[Path], None], recorded: list[warnings.WarningMessage]
) -> None:
    directory = tmp_path / "store"
    Store.open(directory).close()
    use(directory)
    use(directory)
    gc.collect()
    with Store.open(directory) as store:
        assert store.check() == []
    assert any(SAYS in str(each.message) for each in recorded)
    assert {each.category for each in recorded} == {ResourceWarning}


def test_what_was_written_is_kept(tmp_path: Path) -> None:
    for _ in range(3):
        plain(tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        assert len(store.stream("s")) == 3


def test_the_warning_comes_at_the_drop(
    tmp_path: Path, recorded: list[warnings.WarningMessage]
) -> None:
    store = Store.open(tmp_path / "store")
    assert recorded == []
    del store
    [warned] = recorded
    assert str(tmp_path / "store") in str(warned.message)
    assert warned.filename == __file__


def test_a_closed_store_gives_no_warning(
    tmp_path: Path, recorded: list[warnings.WarningMessage]
) -> None:
    with Store.open(tmp_path / "store"):
        pass
    gc.collect()
    assert recorded == []


@pytest.mark.parametrize("derive", ["stream", "group", "queue", "transaction"])
def test_what_was_made_from_a_store_keeps_it_open(tmp_path: Path, derive: str) -> None:
    store = Store.open(tmp_path / "store")
    stream = store.stream("s")
    kept: Any = {
        "stream": stream,
        "group": stream.create_group("g"),
        "queue": Queue(store, "q"),
        "transaction": store.transaction(),
    }[derive]
    del store, stream
    gc.collect()
    assert not unclosed._closing
    with pytest.raises(StoreLocked):
        Store.open(tmp_path / "store")
    del kept
    Store.open(tmp_path / "store").close()


def test_a_collection_inside_a_call_takes_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may run under the lock of another store, and of the dropped store's threads."""
    with Store.open(tmp_path / "other") as other:
        showing: list[str] = []

        def show(*args: Any, **_: Any) -> None:  # as a log handler that writes to a stream
            other.stream("warnings").add({"text": str(args[0])})
            showing.append(threading.current_thread().name)

        monkeypatch.setattr(warnings, "showwarning", show)

        def collect(txn: Any) -> None:
            in_a_cycle(tmp_path / "store")
            gc.collect()

        other.engine.run(collect)
        until(lambda: showing, "the warning")
        assert showing == ["kvstream-closer"]
        assert len(other.stream("warnings")) == 1
    Store.open(tmp_path / "store").close()


def test_a_child_does_not_close_the_store_of_its_parent(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    holder = [store]
    del store

    child = os.fork()
    if child == 0:
        holder.clear()
        gc.collect()
        os._exit(bool(unclosed._closing))
    assert os.waitpid(child, 0)[1] == 0
    holder[0].stream("s").add({"n": 1})
    holder[0].close()


def test_a_program_that_ends_with_open_stores_ends_in_order(tmp_path: Path) -> None:
    program = (
        "import sys, kvstream\n"
        "kept = kvstream.Store.open(sys.argv[1])\n"
        "kept.stream('s').add({'n': 1})\n"
        "kvstream.Store.open(sys.argv[2]).stream('s').add({'n': 1})\n"
    )
    paths = [str(tmp_path / "kept"), str(tmp_path / "dropped")]
    done = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for path in paths:
        with Store.open(path) as store:
            assert len(store.stream("s")) == 1


def test_an_opening_that_failed_gives_no_warning(
    tmp_path: Path, recorded: list[warnings.WarningMessage]
) -> None:
    with Store.open(tmp_path / "store"):
        with suppress(StoreLocked):
            Store.open(tmp_path / "store")
        gc.collect()
    assert recorded == []


def test_the_last_reference_may_go_with_a_thread(tmp_path: Path) -> None:
    """Then no frame of Python is above the finalizer."""
    holder = [Store.open(tmp_path / "store")]
    _thread.start_new_thread(holder.clear, ())
    until(lambda: not holder, "the store to be dropped")
    until(lambda: not unclosed._closing, "the store to be closed")
    Store.open(tmp_path / "store").close()
