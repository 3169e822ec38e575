"""TLS of ``kvstream serve``: its options, its files, and new certificates."""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests import forking
from tests.cli.program import ENVIRONMENT, Program
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.server.net.authorities import Authority, Identity
from tests.server.talking import request


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


class Secured:
    """A server that accepts only TLS."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self.identity = authority.certify("localhost")
        self.port = free_port()
        self.process = forking.start(
            [
                *(sys.executable, "-m", "kvstream", "serve", "--dir", str(directory)),
                *("--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"),
                *("--tls-cert-file", self.identity.certificate),
                *("--tls-key-file", self.identity.key),
            ],
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline().strip() for _ in range(3)]

    def shown(self) -> str:
        """Return the certificate of the server."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as raw,
            context.wrap_socket(raw) as connection,
        ):
            connection.sendall(request("PING"))
            assert connection.recv(100) == b"+PONG\r\n"
            shown = connection.getpeercert(binary_form=True)
        assert shown is not None
        return ssl.DER_cert_to_PEM_cert(shown)

    def end(self) -> tuple[int, str]:
        """Stop the server; return the exit code and its errors."""
        self.process.terminate()
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors


@pytest.fixture
def secured(tmp_path: Path, authority: Authority) -> Iterator[Secured]:
    server = Secured(tmp_path / "store", authority)
    yield server
    if server.process.returncode is None:
        server.process.kill()
        server.process.communicate()


def test_with_port_0_the_server_accepts_only_tls(secured: Secured, authority: Authority) -> None:
    assert secured.lines[0].endswith(f" at 127.0.0.1:{secured.port} with TLS")
    assert secured.lines[2] == f"connect with: redis-cli -h 127.0.0.1 -p {secured.port} --tls"
    client = redis.Redis(
        host="localhost", port=secured.port, ssl=True, ssl_ca_certs=authority.certificate
    )
    pipe = client.pipeline()
    for number in range(2000):
        pipe.xadd("s", {"n": number, "text": "v" * 1000})
    added = pipe.execute()
    assert [eid for eid, _ in client.xrange("s") or []] == added
    assert client.config_get("tls-port") == {"tls-port": str(secured.port)}
    assert client.config_get("port") == {"port": "0"}
    client.close()
    assert secured.end() == (0, "")


def test_a_client_that_does_not_read_is_disconnected(
    secured: Secured, authority: Authority
) -> None:
    context = ssl.create_default_context(cafile=authority.certificate)
    client = redis.Redis(
        host="localhost", port=secured.port, ssl=True, ssl_ca_certs=authority.certificate
    )
    client.config_set("client-output-buffer-limit", "normal 8mb 0 0")
    client.set("k", b"v" * (1 << 20))
    with (
        socket.create_connection(("localhost", secured.port), timeout=PATIENCE_S) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as slow,
    ):
        slow.sendall(request("GET", "k") * 40)
        until(lambda: client.info("stats")["client_output_buffer_limit_disconnections"] == 1)
        assert len(client.client_list()) == 1
    client.close()
    code, errors = secured.end()
    assert code == 0
    assert re.search(
        r" WARNING server.runtime.limits: \S+ is cut off: it has not read \d+ bytes of replies\n$",
        errors,
    )


def test_a_plaintext_client_is_refused_without_a_log_line(secured: Secured) -> None:
    with socket.create_connection(("127.0.0.1", secured.port), timeout=PATIENCE_S) as connection:
        connection.sendall(request("PING") * 3)
        assert b"PONG" not in b"".join(iter(lambda: connection.recv(1000), b""))
    assert secured.end() == (0, "")


def test_new_certificates_are_used_after_sighup(secured: Secured, tmp_path: Path) -> None:
    before = secured.shown()
    fresh = Authority(tmp_path / "fresh").certify("localhost")
    put_in_place(fresh, secured.identity)
    assert secured.shown() == before
    secured.process.send_signal(signal.SIGHUP)
    until(lambda: secured.shown() != before)
    assert secured.end() == (0, "")


def test_bad_certificates_leave_the_old_ones_in_use(secured: Secured) -> None:
    before = secured.shown()
    Path(secured.identity.key).write_text("nothing")
    secured.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert secured.shown() == before
    code, errors = secured.end()
    assert code == 0
    assert errors.count("\n") == 1
    assert errors.endswith(
        " WARNING server.serving: goes on with the certificates that it has: "
        f"tls-key-file {secured.identity.key}: there is no private key in PEM in it\n"
    )


def put_in_place(fresh: Identity, old: Identity) -> None:
    for new_file, old_file in zip(fresh, old, strict=True):
        Path(new_file).replace(old_file)


def test_sighup_does_not_end_a_server_without_tls(tmp_path: Path) -> None:
    process = forking.start(
        [sys.executable, "-m", "kvstream", "serve", "--dir", str(tmp_path / "s"), "--port", "0"],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_bad_files_are_refused_before_the_store_is_opened(
    kvstream: Program, tmp_path: Path, authority: Authority
) -> None:
    identity = authority.certify("localhost")
    words = ("serve", "--dir", str(tmp_path / "new"), "--tls-port", "6391")
    errors = kvstream(*words, code=2).stderr
    assert errors == "Error: tls-port needs tls-cert-file and tls-key-file\n"
    files = ("--tls-cert-file", identity.certificate, "--tls-key-file", "gone.key")
    assert kvstream(*words, *files, code=2).stderr == (
        "Error: tls-key-file gone.key: No such file or directory\n"
    )
    assert not (tmp_path / "new").exists()
