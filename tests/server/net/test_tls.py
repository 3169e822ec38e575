"""TLS: accepted and refused clients, and the files of a server; with real certificates."""

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kvstream.server.net import tls
from kvstream.server.net.tls import BadCertificate, load
from kvstream.server.options import ServerOptions
from tests.patience import PATIENCE_S, until
from tests.server.conftest import Serve, Served
from tests.server.net.authorities import Authority, Identity
from tests.server.talking import request

PING = request("PING")

CUT_OFF = b"client_output_buffer_limit_disconnections:1\r\n"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """An authority unknown to the server."""
    return Authority(tmp_path / "stranger")


@pytest.fixture
def host(authority: Authority) -> Identity:
    return authority.certify("localhost")


@pytest.fixture
def files(authority: Authority, host: Identity) -> dict[str, Path]:
    """The options of a server that name its files."""
    return {
        "tls_cert_file": Path(host.certificate),
        "tls_key_file": Path(host.key),
        "tls_ca_cert_file": Path(authority.certificate),
    }


@pytest.fixture
def secured(serve: Serve, files: dict[str, Path]) -> Served:
    """A server that requires client certificates."""
    return serve(tls=True, **files)


def trusting(authority: Authority, identity: Identity | None = None) -> ssl.SSLContext:
    """Return the side of a client that trusts an authority, and may have a certificate."""
    context = ssl.create_default_context(cafile=authority.certificate)
    if identity is not None:
        context.load_cert_chain(*identity)
    return context


def to_tls(served: Served) -> socket.socket:
    return socket.create_connection(("localhost", served.tls_port), timeout=PATIENCE_S)


@contextmanager
def connected(served: Served, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        to_tls(served) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as connection,
    ):
        yield connection


def answer(served: Served, context: ssl.SSLContext, data: bytes = PING) -> bytes:
    """Return the first bytes received, or nothing if the server has closed the connection."""
    with connected(served, context) as connection:
        connection.sendall(data)
        return connection.recv(1000)


def is_refused(served: Served, context: ssl.SSLContext) -> bool:
    """Return whether a client gets no data: in TLS 1.3 it can send some before it is refused."""
    try:
        return answer(served, context) == b""
    except (ssl.SSLError, ConnectionResetError):
        return True


def _options(served: Served, authority: Authority, identity: Identity | None) -> dict[str, Any]:
    options: dict[str, Any] = {"host": "localhost", "port": served.tls_port, "ssl": True}
    options["ssl_ca_certs"] = authority.certificate
    if identity is not None:
        options |= {"ssl_certfile": identity.certificate, "ssl_keyfile": identity.key}
    return options


def test_redis_py_connects_by_tls_with_a_certificate(secured: Served, authority: Authority) -> None:
    identity = authority.certify("ann")
    url = f"rediss://localhost:{secured.tls_port}?ssl_ca_certs={authority.certificate}"
    url += f"&ssl_certfile={identity.certificate}&ssl_keyfile={identity.key}"
    client = redis.Redis.from_url(url, protocol=3)
    added = client.xadd("s", {"f": b"v" * 100_000})
    assert client.xrange("s") == [(added, {b"f": b"v" * 100_000})]
    pipe = client.pipeline(transaction=True)
    for number in range(500):
        pipe.xadd("s", {"n": number})
    assert len(pipe.execute()) == 500
    client.close()


def test_redis_cli_connects_by_tls(secured: Served, authority: Authority) -> None:
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli is not installed: apt-get install redis-tools")
    identity = authority.certify("ann")
    words = ["redis-cli", "-h", "localhost", "-p", str(secured.tls_port), "--tls"]
    words += ["--cacert", authority.certificate]
    words += ["--cert", identity.certificate, "--key", identity.key, "PING"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.returncode, ran.stdout) == (0, "PONG\n")


def test_an_idle_client_need_not_confirm_the_end(
    secured: Served, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "SHUTDOWN_S", 1000.0)
    with connected(secured, trusting(authority, authority.certify("ann"))) as connection:
        connection.sendall(PING + request("QUIT"))
        until(lambda: secured.executor.statistics.connections and not secured.executor.clients)
        assert connection.recv(100) + connection.recv(100) == b"+PONG\r\n+OK\r\n"
        assert connection.recv(100) == b""


def test_a_slow_client_gets_its_last_replies_before_the_end(
    secured: Served, authority: Authority
) -> None:
    value = b"v" * 8_000_000
    secured.client().set("k", value)
    with connected(secured, trusting(authority, authority.certify("ann"))) as connection:
        connection.sendall(request("GET", "k") + request("QUIT"))
        time.sleep(0.3)
        received = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    assert received == b"$8000000\r\n" + value + b"\r\n+OK\r\n"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_1_3_are_supported(
    secured: Served, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = trusting(authority, authority.certify("ann"))
    context.minimum_version = context.maximum_version = version
    assert answer(secured, context) == b"+PONG\r\n"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
def test_older_versions_are_refused(secured: Served, authority: Authority) -> None:
    context = trusting(authority, authority.certify("ann"))
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # otherwise this side would not offer it
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    assert is_refused(secured, context)
    assert len(secured.executor.clients) == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("kind", ["none", "unknown", "expired"])
def test_no_data_for_a_client_without_a_good_certificate(
    secured: Served, authority: Authority, stranger: Authority, kind: str, version: ssl.TLSVersion
) -> None:
    identity = {
        "none": None,
        "unknown": stranger.certify("eve"),
        "expired": authority.certify("old", expired=True),
    }[kind]
    context = trusting(authority, identity)
    context.minimum_version = context.maximum_version = version
    assert is_refused(secured, context)
    with secured.asker() as asker:
        assert asker.ask("CLIENT LIST").count(b"\n") == 1
        assert asker.ask("CLIENT ID") == 1  # no other client was registered


def test_an_optional_certificate_may_be_missing_but_not_bad(
    serve: Serve, files: dict[str, Path], authority: Authority, stranger: Authority
) -> None:
    served = serve(tls=True, tls_auth_clients="optional", **files)
    assert answer(served, trusting(authority)) == b"+PONG\r\n"
    assert answer(served, trusting(authority, authority.certify("ann"))) == b"+PONG\r\n"
    assert is_refused(served, trusting(authority, stranger.certify("eve")))


def test_a_server_without_client_certificates_needs_no_authority(
    serve: Serve, files: dict[str, Path], authority: Authority
) -> None:
    del files["tls_ca_cert_file"]
    served = serve(tls=True, tls_auth_clients="no", **files)
    assert answer(served, trusting(authority)) == b"+PONG\r\n"


def test_a_client_refuses_a_server_of_an_unknown_authority(
    secured: Served, authority: Authority, stranger: Authority
) -> None:
    options = _options(secured, stranger, authority.certify("ann"))
    client = redis.Redis(**options, retry=Retry(NoBackoff(), 0))
    with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        client.ping()
    client.close()


def test_plaintext_gets_no_data_on_the_tls_port(secured: Served) -> None:
    with socket.create_connection(
        ("localhost", secured.tls_port), timeout=PATIENCE_S
    ) as connection:
        connection.sendall(PING * 10)
        received = b"".join(iter(lambda: connection.recv(1000), b""))
    assert b"PONG" not in received
    until(lambda: secured.executor.limits.entering == 0)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_a_slow_handshake_is_ended(
    serve: Serve, files: dict[str, Path], authority: Authority, sent: bytes
) -> None:
    served = serve(tls=True, tls_handshake_s=1, **files)
    began = time.monotonic()
    with to_tls(served) as connection:
        connection.sendall(sent)
        with suppress(ConnectionResetError):
            assert connection.recv(100) == b""
        assert 0.5 < time.monotonic() - began < ServerOptions().tls_handshake_s
    assert answer(served, trusting(authority, authority.certify("ann"))) == b"+PONG\r\n"


def test_the_timeout_of_handshakes_is_ten_seconds() -> None:
    assert ServerOptions().tls_handshake_s == 10


def test_connections_in_their_handshake_count_among_the_clients(
    serve: Serve, files: dict[str, Path]
) -> None:
    served = serve(tls=True, maxclients=2, **files)
    with (
        to_tls(served),
        to_tls(served),
    ):
        until(lambda: served.executor.limits.entering == 2)
        with served.asker() as asker:
            assert asker.read() == "ERR max number of clients reached"
        with to_tls(served) as third:
            assert third.recv(100) == b""


class Ends:
    """A client of TLS that decides which messages of it are sent together."""

    def __init__(self, context: ssl.SSLContext, connection: socket.socket) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.sides = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._connection = connection

    def shake_hands(self) -> None:
        """Do the handshake, but for sending its last part."""
        while True:
            try:
                self.sides.do_handshake()
                return
            except ssl.SSLWantReadError:
                self.send()
                self._receive()

    def send(self) -> None:
        self._connection.sendall(self._outgoing.read())

    def read(self) -> bytes:
        """Return the next bytes of the server; none at the end of the connection."""
        while True:
            try:
                return self.sides.read(100)
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLWantReadError:
                self._receive()

    def _receive(self) -> None:
        received = self._connection.recv(1 << 16)
        if received:
            self._incoming.write(received)
        else:
            self._incoming.write_eof()


@pytest.fixture
def ends(secured: Served, authority: Authority) -> Iterator[Ends]:
    """A client whose handshake is done, but for sending its last part."""
    context = trusting(authority, authority.certify("ann"))
    with socket.create_connection(("localhost", secured.tls_port), PATIENCE_S) as connection:
        ends = Ends(context, connection)
        ends.shake_hands()
        yield ends


def test_requests_sent_with_the_end_of_the_handshake_are_answered(ends: Ends) -> None:
    ends.sides.write(PING)
    ends.send()  # the last part of the handshake, and the request
    assert ends.read() == b"+PONG\r\n"


def test_requests_sent_with_the_end_of_the_connection_are_answered(ends: Ends) -> None:
    ends.sides.write(2 * PING)
    with suppress(ssl.SSLWantReadError):
        ends.sides.unwrap()
    ends.send()  # the requests, and close_notify
    assert ends.read() == b"+PONG\r\n+PONG\r\n"
    assert ends.read() == b""


def test_a_renegotiation_is_refused(secured: Served, authority: Authority) -> None:
    context = load(secured.executor.options)
    assert context.options & ssl.OP_NO_RENEGOTIATION
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    identity = authority.certify("ann")
    words = ["openssl", "s_client", "-connect", f"localhost:{secured.tls_port}", "-tls1_2"]
    words += ["-cert", identity.certificate, "-key", identity.key, "-CAfile", authority.certificate]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for line in process.stdout:
        if b"Verify return code" in line:
            break
    process.stdin.write(b"R\n")  # a line with this start requests one in s_client
    process.stdin.flush()
    process.wait(PATIENCE_S)
    assert b"no renegotiation" in process.stdout.read()
    process.stdin.close()
    process.stdout.close()


def test_a_slow_reader_is_disconnected_over_tls_too(
    serve: Serve, files: dict[str, Path], authority: Authority
) -> None:
    served = serve(tls=True, output_max=1 << 20, **files)
    with (
        served.asker() as asker,
        connected(served, trusting(authority, authority.certify("ann"))) as slow,
    ):
        asker.ask("SET", "k", b"v" * (1 << 20))
        slow.sendall(request("GET", "k") * 40)
        until(lambda: CUT_OFF in asker.ask("INFO stats"))


# --- files --------------------------------------------------------------------------------------


def _refusal(files: dict[str, Path], **changed: Any) -> str:
    """Return the error of a start of a server with these options."""
    with pytest.raises(BadCertificate) as caught:
        load(ServerOptions(tls_port=1, **{**files, **changed}))
    return str(caught.value)


def test_missing_files_are_named(files: dict[str, Path], tmp_path: Path) -> None:
    gone = tmp_path / "gone.pem"
    for option in ("tls_cert_file", "tls_key_file", "tls_ca_cert_file"):
        found = _refusal(files, **{option: gone})
        assert found == f"{option.replace('_', '-')} {gone}: No such file or directory"
    assert _refusal(files, tls_key_file=None) == "tls-port needs tls-cert-file and tls-key-file"
    assert _refusal(files, tls_ca_cert_file=None).startswith("tls-auth-clients needs tls-ca-cert")


def test_files_with_other_content_are_named(files: dict[str, Path], host: Identity) -> None:
    found = _refusal(files, tls_cert_file=Path(host.key))
    assert found == f"tls-cert-file {host.key}: there is no certificate in PEM in it"
    found = _refusal(files, tls_key_file=Path(host.certificate))
    assert found == f"tls-key-file {host.certificate}: there is no private key in PEM in it"


def test_the_key_of_another_certificate_is_refused(
    files: dict[str, Path], host: Identity, authority: Authority
) -> None:
    other = authority.certify("other")
    found = _refusal(files, tls_key_file=Path(other.key))
    reason = f"the key is not that of the certificate in {host.certificate}"
    assert found == f"tls-key-file {other.key}: {reason}"


def test_an_encrypted_key_is_refused_without_asking_for_its_password(
    files: dict[str, Path], host: Identity, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(host.key).read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    found = _refusal(files, tls_key_file=locked)
    assert found == f"tls-key-file {locked}: the key is encrypted: give tls-key-file-pass"
    found = _refusal(files, tls_key_file=locked, tls_key_file_pass="wrong")
    assert found == f"tls-key-file {locked}: tls-key-file-pass is not the password of the key"
    own: dict[str, Any] = {**files, "tls_key_file": locked, "tls_key_file_pass": "secret"}
    load(ServerOptions(tls_port=1, **own))


def test_a_damaged_certificate_is_refused(files: dict[str, Path], host: Identity) -> None:
    path = Path(host.certificate)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "AAAA", *lines[3:]]))
    assert _refusal(files).startswith(f"tls-cert-file {path}, tls-key-file {host.key}: ")
