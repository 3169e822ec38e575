"""A redis-server for the tests, to which raw bytes are sent."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstream.resp import replies, requests, twins
from tests.commands.conftest import dispatcher
from tests.patience import PATIENCE_S

__all__ = ["dispatcher"]

Converse = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def redis_bytes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Converse]:
    """Send bytes over a new connection, close that side, and return all replies."""
    yield from _serve(tmp_path_factory.mktemp("redis"))


@pytest.fixture(scope="module")
def locked_redis_bytes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Converse]:
    """The same for a server with the password ``secret``."""
    yield from _serve(tmp_path_factory.mktemp("redis"), "--requirepass", "secret")


def _serve(directory: Path, *options: str) -> Iterator[Converse]:
    if shutil.which("redis-server") is None:
        if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1":
            pytest.fail("redis-server is required here: apt-get install redis-server")
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    path = directory / "socket"
    command = ["redis-server", "--port", "0", "--save", "", "--unixsocket", str(path)]
    process = subprocess.Popen(
        [*command, "--dir", str(directory), *options], stdout=subprocess.DEVNULL
    )
    try:
        _connect(path).close()
        yield lambda data: _converse(path, data)
    finally:
        process.kill()
        process.wait()


def _connect(path: Path) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            return connection
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _converse(path: Path, data: bytes) -> bytes:
    with _connect(path) as connection:
        connection.settimeout(PATIENCE_S)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def _ways() -> list[str]:
    return ["python"] if twins is None else ["python", "compiled"]


@pytest.fixture(scope="module", params=_ways())
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with only the Python functions, and with the compiled ones if there are any."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(requests, "_take_plain", requests.take_plain)
            patch.setattr(replies, "twins", None)
        yield str(request.param)
