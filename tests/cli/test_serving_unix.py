"""``kvstream serve --unixsocket``: permissions, clients as Redis shows them, left sockets."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import redis

import kvstream
from kvstream.engine import server_address
from tests.cli.program import Program
from tests.cli.test_serving import served
from tests.ports import free_port


@pytest.fixture
def path() -> Iterator[Path]:
    """The path of a socket, which may have 107 bytes."""
    with TemporaryDirectory(prefix="kvstream-") as folder:
        yield Path(folder) / "kv.sock"


def options(tmp_path: Path, path: Path) -> list[str]:
    return ["--dir", str(tmp_path / "data"), "--port", "0", "--unixsocket", str(path)]


def test_clients_of_the_socket_alone(tmp_path: Path, path: Path) -> None:
    with served(*options(tmp_path, path)) as (process, lines):
        assert lines[0].endswith(f"/data at {path}")
        assert lines[2] == f"connect with: redis-cli -s {path}"
        with kvstream.open(f"unix://{path}") as store:
            store.stream("orders").add({"sku": "a1"})
        with redis.Redis(unix_socket_path=str(path)) as client:
            assert client.xlen("orders") == 1
            assert client.config_get("unixsocket*") == {
                "unixsocket": str(path),
                "unixsocketperm": "0",
            }
            assert client.info("server")["listener0"] == {"name": "unix", "bind": str(path)}
        address = server_address.read(tmp_path / "data")
        assert address is not None
        assert address.url == f"unix://{path}"
        process.send_signal(signal.SIGTERM)
        process.wait()
        assert not path.exists()


def test_a_client_is_shown_by_the_path_of_the_socket(tmp_path: Path, path: Path) -> None:
    with (
        served(*options(tmp_path, path)),
        redis.Redis(unix_socket_path=str(path), decode_responses=True) as client,
        socket.socket(socket.AF_UNIX) as watching,
    ):
        (shown,) = client.client_list()
        assert (shown["addr"], shown["laddr"], shown["flags"]) == (f"{path}:0", f"{path}:0", "U")
        watching.connect(str(path))
        watching.sendall(b"MONITOR\r\n")
        lines = watching.makefile("rb")
        assert lines.readline() == b"+OK\r\n"
        client.get("key")
        assert lines.readline().endswith(b' [0 unix:%b] "GET" "key"\r\n' % os.fsencode(path))
        assert client.client_kill_filter(addr=f"{path}:0", skipme=True) == 1
        assert lines.readline() == b""


def test_the_port_and_the_socket_serve_the_same_store(tmp_path: Path, path: Path) -> None:
    config = tmp_path / "kvstream.toml"
    config.write_text(f'port = {free_port()}\nunixsocket = "{path}"\nunixsocketperm = 770\n')
    with served("--config", str(config), "--dir", str(tmp_path / "data")) as (_, lines):
        port = int(lines[2].rpartition(" ")[2])
        assert lines[0].endswith(f" at 127.0.0.1:{port} and {path}")
        assert path.stat().st_mode & 0o777 == 0o770
        with redis.Redis(port=port) as one, redis.Redis(unix_socket_path=str(path)) as other:
            one.set("key", "value")
            assert other.get("key") == b"value"
            assert other.config_get("unixsocketperm") == {"unixsocketperm": "770"}
            found = other.info("server")
            assert [found[f"listener{number}"]["name"] for number in (0, 1)] == ["tcp", "unix"]


def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with (
        served(*options(tmp_path, path)),
        redis.Redis(unix_socket_path=str(path)) as client,
    ):
        assert client.ping()


def test_the_socket_of_another_server_is_left(tmp_path: Path, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other, served(*options(tmp_path, path)) as (process, _):
        path.unlink()
        other.bind(str(path))
        process.send_signal(signal.SIGTERM)
        process.wait()
        assert path.is_socket()


@pytest.mark.parametrize("what", ["a server", "a file"])
def test_a_path_in_use_is_refused(kvstream: Program, tmp_path: Path, path: Path, what: str) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        if what == "a server":
            other.bind(str(path))
            other.listen()
        else:
            path.write_text("mine")
        result = kvstream("serve", *options(tmp_path, path), code=5)
    assert result.stderr == f"Error: cannot listen at {path}: address already in use\n"
    assert path.exists()


def test_a_path_that_is_too_long_is_refused(kvstream: Program, tmp_path: Path) -> None:
    path = Path("/tmp") / ("long" * 40)
    result = kvstream("serve", *options(tmp_path, path), code=5)
    assert result.stderr == f"Error: cannot listen at {path}: af_unix path too long\n"


def test_permissions_are_octal(kvstream: Program, tmp_path: Path, path: Path) -> None:
    result = kvstream("serve", *options(tmp_path, path), "--unixsocketperm", "rw", code=2)
    assert "'rw' is no mode in octal digits, such as 770" in result.stderr
    assert not os.path.lexists(path)
