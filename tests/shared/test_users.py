"""The owner of a shared store serves its own user and root, whatever the modes of the files are."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import kvstream
from kvstream import Store, UnsafeDirectory
from kvstream.shared import owner
from kvstream.shared.owner import SOCKET, peer_user
from tests import forking
from tests.patience import PATIENCE_S, until
from tests.shared.conftest import shared

NOBODY = 65534
needs_users = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
CALL = """
import encodings.idna, os, sys, redis, kvstream.shared.engine
place, user, aio = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
if aio:
    import asyncio, redis.asyncio, kvstream.aio
os.setuid(user)
async def add():
    async with kvstream.aio.open(place) as store:
        return await store.stream("s").add({"n": 1})
try:
    if aio:
        asyncio.run(add())
    else:
        with kvstream.open(place) as store:
            store.stream("s").add({"n": 1})
except kvstream.KVStreamError as error:
    print(type(error).__name__, error)
"""
RAW = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as end:
    end.connect(sys.argv[1])
    end.sendall(b"*1\\r\\n$8\\r\\nFLUSHALL\\r\\n")
    print(end.recv(1000).decode())
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users can enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def open_to_all(directory: Path) -> None:
    directory.chmod(0o755)
    (directory / SOCKET).chmod(0o666)


def run_as(user: int, program: str, place: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, place, str(user), *arguments]
    done = forking.run(command, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@needs_users
@pytest.mark.parametrize("arguments", [(), ("aio",)])
def test_another_user_is_refused(
    public: Path, arguments: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    directory = public / "store"
    with shared(directory) as store:
        store.stream("s").add({"n": 0})
        open_to_all(directory)
        place = f"unix://{directory / SOCKET}"
        said = run_as(NOBODY, CALL, place, *arguments)
        assert said == (
            "AccessDenied the shared store is that of user 0, and open to this user and root "
            f"alone, not to user {NOBODY}\n"
        )
        assert run_as(NOBODY, RAW, str(directory / SOCKET)).startswith("-DENIED the shared store")
        assert len(store.stream("s")) == 1
        assert run_as(0, CALL, place, *arguments) == ""
        assert len(store.stream("s")) == 2
        until(lambda: store._engine.clients == 0)  # type: ignore[attr-defined]
    lines = [each.message for each in caplog.records if each.name == owner.__name__]
    assert len(lines) == 2
    assert f"user {NOBODY} may not use the shared store at {directory / SOCKET}" in lines[0]


@needs_users
def test_root_may_use_the_socket_of_another_user_but_not_the_directory(public: Path) -> None:
    program = """if True:
        import encodings.idna, os, sys, redis, kvstream.shared.engine
        os.setuid(int(sys.argv[2]))
        with kvstream.open(sys.argv[1], shared=True) as store:
            print("open", flush=True)
            sys.stdin.read()
            print(len(store.stream("s")))
    """
    directory = public / "store"
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    command = [sys.executable, "-c", program, str(directory), str(NOBODY)]
    pipe = subprocess.PIPE
    with forking.start(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(UnsafeDirectory, match=rf"belongs to user {NOBODY}\b.*owner"):
            kvstream.open(directory, shared=True)
        with kvstream.open(f"unix://{directory / SOCKET}") as store:
            store.stream("s").add({"n": 1})
        assert process.communicate()[0] == "1\n"


def test_the_system_tells_whose_a_connection_is() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with closing(ours), closing(theirs):
        assert peer_user(ours) == os.geteuid()


def test_without_the_system_the_modes_decide(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "peer_user", lambda end: None)
    with shared(directory), shared(directory) as client:
        client.stream("s").add({"n": 1})
    with Store.open(directory) as store:
        assert len(store.stream("s")) == 1
