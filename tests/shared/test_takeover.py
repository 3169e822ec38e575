"""What happens to the clients of a shared store when its owner ends."""

import gc
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import (
    Conflict,
    InvalidArgument,
    ManualClock,
    PendingEntry,
    Queue,
    Store,
    StoreClosed,
    StoreLocked,
    UnknownOutcome,
    UnsafeDirectory,
)
from kvstream.layout.keys import U64
from kvstream.remote.procedures import pending_rows
from kvstream.shared.owner import SOCKET, Claim
from kvstream.storage.batch import Family
from tests import forking
from tests.patience import PATIENCE_S, until
from tests.shared.conftest import Holder, end, is_owner, kill, shared

Start = Callable[[], Holder]


class Call(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.result: Any = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:
            self.error = error

    def get(self) -> Any:
        self.join(PATIENCE_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def blocked(store: Store) -> int:
    return int(store.stats()["clients"]["blocked_clients"])


@pytest.mark.parametrize("stop", [end, kill])
def test_blocked_reads_go_on_with_the_next_owner(
    directory: Path, holder: Start, stop: Callable[[Holder], None]
) -> None:
    owner = holder()
    with shared(directory) as store:
        stream = store.stream("s")
        worker = stream.create_group("g").consumer("c")
        calls = [
            Call(lambda: stream.read(block=PATIENCE_S)),
            Call(lambda: worker.read(block=PATIENCE_S)),
            Call(lambda: store.read({"s": "$"}, block=PATIENCE_S)[b"s"]),
        ]
        until(lambda: blocked(store) == 3)
        stop(owner)
        added = stream.add({"n": 1})
        assert [[entry.id for entry in call.get()] for call in calls] == [[added]] * 3
        assert is_owner(store)


@pytest.mark.parametrize("is_extended", [False, True])
def test_a_message_that_was_taken_before_a_lost_read_is_not_taken_again(
    directory: Path, holder: Start, monkeypatch: pytest.MonkeyPatch, is_extended: bool
) -> None:
    """Its lease begins anew while the read waits, or the next owner answers late."""

    def answered_late(*args: Any) -> Iterator[PendingEntry]:
        rows = list(pending_rows(*args))
        time.sleep(0.3)
        yield from rows

    if not is_extended:
        monkeypatch.setattr("kvstream.remote.repeating.pending_rows", answered_late)
    owner = holder()
    with shared(directory) as store:
        queue = Queue(store, "q", lease=PATIENCE_S)
        queue.put({"n": 1})
        taken = queue.get_one()
        assert taken is not None
        call = Call(lambda: queue.get(block=PATIENCE_S))
        until(lambda: blocked(store) == 1)
        if is_extended:
            time.sleep(0.01)  # so it was delivered before the read by the clock, too
            taken.extend()
        kill(owner)
        added = queue.put({"n": 2})
        assert [message.id for message in call.get()] == [added]
        assert is_owner(store)
        taken.ack()


@pytest.mark.parametrize("stop", [end, kill])
def test_a_blocked_read_misses_nothing_while_nobody_owns_the_store(
    directory: Path, holder: Start, stop: Callable[[Holder], None]
) -> None:
    owner, other = holder(), holder()
    with shared(directory) as store:
        stream = store.stream("s")
        stream.add({"n": 0})
        call = Call(lambda: stream.read("$", block=PATIENCE_S))
        until(lambda: blocked(store) == 1)
        stop(owner)
        with shared(directory) as another:
            another.stream("s").add({"n": 1})
        assert [entry.fields for entry in call.get()] == [{b"n": b"1"}]
        kill(other)


def frozen(owner: Holder, call: Callable[[], Any], begun: Call | None = None) -> Call:
    """Kill an owner that has got a call, of a thread that has ``begun``, and has not run it."""
    os.kill(owner.pid, signal.SIGSTOP)
    state = Path(f"/proc/{owner.pid}/stat")
    until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
    made = Call(call)
    time.sleep(0.1)  # it is sent by then; if not, the test proves less
    kill(owner)
    return begun or made


def test_what_is_safe_is_repeated(directory: Path, holder: Start) -> None:
    with shared(directory) as first:
        stream = first.stream("s")
        ids = stream.add_many([{"n": n} for n in range(3)])
        stream.create_group("g", "0").consumer("c").read(2)
    for call, wanted in (
        (lambda store: len(store.stream("s")), 3),
        (lambda store: store.stream("s").add({"n": 3}) > ids[-1], True),
        (lambda store: store.stream("s").add({"n": 4}, idmp=("p", "1")) > ids[-1], True),
        (lambda store: store.stream("s").group("g").ack(ids[0]), 1),
        (lambda store: store.stream("s").delete(ids[2]), 1),
        (lambda store: len(store.stream("s").group("g").consumer("c").read(1)), 1),
        (lambda store: sorted(store.keys()), [b"s"]),
        (lambda store: [each.key for each in store.key_infos()], [b"s"]),
        (lambda store: str(store.stream("s").add({"n": 5}, id=f"{1 << 50}-1")), f"{1 << 50}-1"),
    ):
        owner = holder()
        with shared(directory) as store:
            assert frozen(owner, partial(call, store)).get() == wanted
    with shared(directory) as store:
        assert [entry.fields[b"n"] for entry in store.stream("s")] == [b"0", b"1", b"3", b"4", b"5"]


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.stream("s").add_many([{"n": 1}]),
        lambda store: store.stream("s").create_group("g"),
        lambda store: store.rename("s", "t"),
    ],
)
def test_what_is_not_safe_has_an_unknown_outcome(
    directory: Path, holder: Start, call: Callable[[Store], Any]
) -> None:
    owner = holder()
    with shared(directory) as store:
        store.stream("s").add({"n": 0}, id="1-1")
        with pytest.raises(UnknownOutcome):
            frozen(owner, lambda: call(store)).get()
        assert store.stream("s").add({"n": 2})
        assert is_owner(store)


def test_the_adds_of_a_client_leave_one_row_and_nothing_in_streams(directory: Path) -> None:
    with shared(directory), shared(directory) as client:
        for name in "stsu":
            client.stream(name).add({"n": 1})
        assert client.stream("s").info().pids_tracked == 0
    with Store.open(directory) as store:
        rows = store.engine.run(lambda txn: list(txn.batch.scan(Family.METADATA, b"O", b"P")))
        assert [U64.unpack_from(value, 8)[0] for _, value in rows] == [4]


def transact(store: Store) -> None:
    with store.transaction():
        store.stream("s").add({"n": 1})


def test_a_transaction_whose_end_was_sent_has_an_unknown_outcome(
    directory: Path, holder: Start
) -> None:
    owner = holder()
    with shared(directory) as store:

        def commit() -> None:
            with store.transaction():
                store.stream("s").add({"n": 1})
                entered.set()
                leave.wait()

        entered, leave = threading.Event(), threading.Event()
        call = Call(commit)
        entered.wait()
        with pytest.raises(UnknownOutcome):
            frozen(owner, leave.set, call).get()


def test_a_transaction_whose_owner_ends_before_its_end_does_nothing(
    directory: Path, holder: Start
) -> None:
    owner = holder()
    with shared(directory) as store:
        stream = store.stream("s")
        with pytest.raises(Conflict, match="run it again"), store.transaction():  # noqa: PT012
            assert len(stream) == 0
            stream.add({"n": 1})
            kill(owner)
        transact(store)
        assert len(stream) == 1


def committed(store: Store, name: str) -> bool:
    """Add an entry in a transaction; return False if nothing was done."""
    try:
        with store.transaction():
            store.stream("all").add({"by": name})
    except Conflict:
        return False
    return True


def test_an_owner_that_closes_loses_no_call(directory: Path) -> None:
    """Calls that cannot be repeated never have an unknown outcome then."""
    stop = threading.Event()

    def work(store: Store, name: str) -> int:
        done = 0
        while not stop.is_set():
            store.stream(name).add({"n": done}, id=f"{done + 1}-1")
            while not committed(store, name):
                pass
            done += 1
        return done

    owner = shared(directory)
    stores = [shared(directory) for _ in range(3)]
    calls = [Call(partial(work, store, f"s{n}")) for n, store in enumerate(stores)]
    until(lambda: len(owner.stream("all")) > 10)
    owner.close()
    until(lambda: any(map(is_owner, stores)))
    size = len(stores[0].stream("all"))
    until(lambda: len(stores[0].stream("all")) > size + 10)
    stop.set()
    done = [call.get() for call in calls]
    assert [len(stores[0].stream(f"s{n}")) for n in range(3)] == done
    assert len(stores[0].stream("all")) == sum(done)
    for store in stores:
        store.close()


def test_a_program_may_end_while_a_daemon_thread_reads(directory: Path) -> None:
    program = """if True:
        import sys, threading, time, kvstream
        store = kvstream.open(sys.argv[1], shared=True)
        stream = store.stream("s")
        worker = stream.create_group("g").consumer("c")
        for read in (lambda: stream.read(block=0), lambda: worker.read(block=0)):
            threading.Thread(target=read, daemon=True).start()
        while len(store._engine.own_engine.waiters) < 2:
            time.sleep(0.01)
    """
    done = subprocess.run([sys.executable, "-c", program, str(directory)], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_two_stores_of_one_process_share_a_directory(directory: Path) -> None:
    with shared(directory) as first, shared(directory) as second:
        assert (is_owner(first), is_owner(second)) == (True, False)
        eid = second.stream("s").add({"n": 1})
        assert [entry.id for entry in first.stream("s")] == [eid]
        first.close()
        first.close()
        with pytest.raises(StoreClosed):
            first.size()
        assert second.stream("s").add({"n": 2}) > eid
        assert is_owner(second)
    with pytest.raises(StoreClosed):
        second.size()


def test_a_socket_that_a_killed_owner_left_is_replaced(directory: Path, holder: Start) -> None:
    kill(holder())
    assert (directory / SOCKET).is_socket()
    with shared(directory) as store:
        assert is_owner(store)
        assert stat.S_IMODE((directory / SOCKET).stat().st_mode) == 0o600
    assert not (directory / SOCKET).exists()
    with Store.open(directory) as alone:
        assert alone.size() == 0


def test_a_store_that_is_not_shared_tells_its_process(directory: Path) -> None:
    with Store.open(directory):
        for opening in (partial(shared, directory), partial(Store.open, directory)):
            with pytest.raises(
                StoreLocked, match=rf"this process \(PID {os.getpid()}\) has the store"
            ):
                opening()
    with (
        shared(directory),
        pytest.raises(StoreLocked, match=rf"this process \(PID {os.getpid()}\) has the store"),
    ):
        Store.open(directory)


def test_an_owner_that_does_not_come_is_waited_for(directory: Path) -> None:
    shared(directory).close()
    claim = Claim(directory)
    with pytest.raises(StoreLocked, match=rf"after 0\.2 s: process {os.getpid()} is opening"):
        kvstream.open(directory, shared=True, wait_s=0.2)
    call = Call(lambda: shared(directory))
    time.sleep(0.05)
    claim.release()
    call.get().close()


def test_a_long_path_has_a_socket(tmp_path: Path, holder: Start) -> None:
    directory = tmp_path / ("x" * 120) / "store"
    with shared(directory) as first, shared(directory) as second:
        second.stream("s").add({"n": 1})
        assert len(first.stream("s")) == 1


def test_an_opening_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 120) / "store"  # its socket's path leads through a descriptor
    with shared(directory):
        before = os.listdir("/proc/self/fd")
        for _ in range(10):
            with pytest.raises(InvalidArgument, match="durability"):
                kvstream.open(directory, shared=True, durability="always")
        assert len(os.listdir("/proc/self/fd")) < len(before) + 5  # the owner's may come and go


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shared": True, "read_only": True}, "read_only"),
        ({"shared": True, "clock": ManualClock()}, "clock"),
        ({"wait_s": 1}, "wait_s"),
        ({"shared": "yes"}, "shared is True or False"),
        ({"shared": True, "wait_s": -1}, "negative"),
        ({"shared": True, "nonsense": 1}, "nonsense"),
    ],
)
def test_options_that_do_not_go_together(
    directory: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        kvstream.open(directory, **options)
    assert not directory.exists()


def test_a_weaker_durability_is_refused(directory: Path) -> None:
    with shared(directory), pytest.raises(InvalidArgument, match="durability no, not always"):
        kvstream.open(directory, shared=True, durability="always")


def test_a_store_that_others_may_write_to_is_refused(directory: Path, holder: Start) -> None:
    holder()
    directory.chmod(0o770)
    with pytest.raises(UnsafeDirectory, match="written to by others"):
        shared(directory)


AS_NOBODY = """
import encodings.idna, os, sys, redis, kvstream, kvstream.shared.engine
os.setuid(65534)
try:
    kvstream.open(sys.argv[1], shared=True)
except kvstream.KVStreamError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users can enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_nobody(directory: Path) -> str:
    command = [sys.executable, "-c", AS_NOBODY, str(directory)]
    done = forking.run(command, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_user_is_refused(public: Path) -> None:
    directory = public / "store"
    with shared(directory):
        assert as_nobody(directory).startswith("UnsafeDirectory")
        directory.chmod(0o755)
        assert "belongs to user 0" in as_nobody(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_directory_that_cannot_be_written_says_so(public: Path) -> None:
    directory = public / "store"
    directory.mkdir(0o700)
    os.chown(directory, 65534, 65534)
    assert as_nobody(directory) == ""
    directory.chmod(0o500)
    assert f"cannot open the store in {directory}" in as_nobody(directory)


def test_calls_on_files_are_refused_for_owner_and_client(directory: Path) -> None:
    with shared(directory) as owner, shared(directory) as client:
        for store in (owner, client):
            with pytest.raises(InvalidArgument, match="works on the files of a store"):
                store.check()
            store.compact()
            assert store.stats()["persistence"]["kvstream_durability"] == "no"


def test_anything_else_in_the_place_of_the_socket_is_no_owner(directory: Path) -> None:
    shared(directory).close()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(directory / SOCKET))
    with shared(directory) as store:
        assert is_owner(store)


def test_a_connection_that_comes_as_the_owner_closes_is_closed(directory: Path) -> None:
    """The loop sees both in one iteration; CPython then leaves the transport to the collector."""
    with shared(directory) as store, socket.socket(socket.AF_UNIX) as comes:
        server = store._engine._owner._server  # type: ignore[attr-defined]
        goes_on = threading.Event()
        server._loop.call_soon_threadsafe(goes_on.wait)
        server._loop.call_soon_threadsafe(server._stopping.set)
        comes.connect(str(directory / SOCKET))
        goes_on.set()
        store.close()
        gc.collect()
        with suppress(ConnectionResetError):  # it was not accepted any more
            assert comes.recv(1) == b""
