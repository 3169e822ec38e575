"""A store belongs to the process that opened it: the errors in a forked child, and of pickle."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from kvstream import Store
from tests.patience import PATIENCE_S

FORKING = """
import os, sys, threading
from kvstream import Store, StoreClosed

store = Store.open(sys.argv[1], durability=sys.argv[2])
stream = store.stream("s")
stream.add({"a": 1})
entered, leave = threading.Event(), threading.Event()

def hold():
    with store.transaction():
        entered.set()
        leave.wait()

holder = threading.Thread(target=hold)
holder.start()
entered.wait()
child = os.fork()
if child == 0:
    for use in (stream.info, stream.range, lambda: len(stream), lambda: stream.add({"b": 2})):
        try:
            use()
        except StoreClosed as error:
            assert "only the parent can use it" in str(error)
        else:
            os._exit(1)
    store.close()
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
leave.set()
holder.join()
stream.add({"c": 3})
assert len(stream) == 2
store.close()
sys.exit(status)
"""


@pytest.mark.parametrize("durability", ["always", "no"])
def test_a_child_forked_while_a_thread_held_the_store_is_refused_at_once(
    tmp_path: Path, durability: str
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(tmp_path / "data"), durability]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")


MAIN = """
import multiprocessing, os, signal, sys
import kvstream
from kvstream import Store

here, mine, how, before = sys.argv[1:]
Store.open(here).close()

def child():
    signal.alarm(60)
    for opening in (lambda: Store.open(mine), lambda: kvstream.open(mine)):
        try:
            opening()
        except kvstream.StoreError as error:
            assert type(error) is kvstream.StoreError, error
            for word in ("forked", "spawn", "in children only", "shared=True"):
                assert word in str(error), error
        else:
            os._exit(1)
    assert not os.path.exists(mine)
    if before != "open":
        with Store.open(here, read_only=True) as store:
            assert store.keys() == []

if before == "open":
    store = Store.open(here)
elif before == "read":
    with Store.open(here, read_only=True) as store:
        store.keys()
if how == "fork":
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(42)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
else:
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    code = 42 + process.exitcode
print(code, flush=True)
"""


@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
@pytest.mark.parametrize("before", ["open", "closed", "read"])
def test_a_child_forked_after_a_store_was_open_cannot_open_one(
    tmp_path: Path, how: str, before: str
) -> None:
    words = [str(tmp_path / "data"), str(tmp_path / "other"), how, before]
    command = [sys.executable, "-W", "ignore", "-c", MAIN, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_a_child_forked_before_any_store_was_open_opens_one(tmp_path: Path) -> None:
    code = """
import os, sys
import kvstream
pid = os.fork()
if pid == 0:
    with kvstream.open(sys.argv[1]) as store:
        store.stream("s").add({"a": 1})
        store.compact()
    sys.exit(42)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_open_objects_cannot_be_pickled_and_the_error_has_the_reason(store: Store) -> None:
    stream = store.stream("s")
    group = stream.create_group("g")
    for handle in (store, stream, group, group.consumer("c")):
        with pytest.raises(TypeError, match="an open store cannot be pickled"):
            pickle.dumps(handle)
        with pytest.raises(TypeError, match="an open store cannot be pickled"):
            copy.deepcopy(handle)


def test_results_can_be_pickled(store: Store) -> None:
    store.stream("s").add({"a": 1})
    (entry,) = store.stream("s").range()
    assert pickle.loads(pickle.dumps(entry)) == entry


def test_the_error_of_a_direct_construction_names_open(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"Store\.open\(path\) opens a store"):
        Store(tmp_path / "data")  # type: ignore[call-overload]


def test_the_repr_of_a_store_has_its_directory(store: Store) -> None:
    directory = str(store.engine.database.directory)
    assert repr(store.select(3)) == f"<Store {directory!r}, db 3>"
