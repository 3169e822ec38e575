"""Sentinels with TLS and a password of their own: no spelling of the URL goes without either."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme

import kvstream
from kvstream import AccessDenied, ServerUnavailable, Store
from tests.patience import until
from tests.ports import free_port
from tests.replicas.sentinels import NAME, sentinel_program
from tests.replicas.servers import Node


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """What stands behind the scheme in a URL of a Sentinel that asks for TLS and a password."""
    program, authority = sentinel_program(), trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    own.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    files = {"cert-file": "cert.pem", "key-file": "key.pem", "ca-cert-file": "ca.pem"}
    tls = {f"tls-{name}": str(tmp_path / file) for name, file in files.items()}
    tls |= {"tls-auth-clients": "no"}
    words = [word for name, value in tls.items() for word in (f"--{name}", value)]
    port, sentinel = free_port(), free_port()
    words += ["--tls-port", str(port), "--requirepass", "of-servers"]
    node = Node(tmp_path / "one", *words, port=free_port())
    settings = [*tls.items(), ("tls-port", sentinel), ("port", 0), ("tls-replication", "yes")]
    lines = [f"{name} {value}\n" for name, value in settings]
    lines += [f"dir {tmp_path}\n", "requirepass of-sentinels\n"]
    lines += [f"sentinel monitor {NAME} 127.0.0.1 {port} 1\n"]
    lines += [f"sentinel auth-pass {NAME} of-servers\n"]
    (tmp_path / "sentinel.conf").write_text("".join(lines))
    command = [program, str(tmp_path / "sentinel.conf"), "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    client: Any = redis.Redis(
        *("127.0.0.1", sentinel),
        ssl=True,
        ssl_ca_certs=str(tmp_path / "ca.pem"),
        password="of-sentinels",
    )
    try:
        with client:
            until(lambda: _knows(client), "the primary", 0.05)
        yield (
            f"://:of-servers@127.0.0.1:{sentinel}/{NAME}?ssl_ca_certs={tmp_path}/ca.pem"
            "&sentinel_password=of-sentinels"
        )
    finally:
        process.kill()
        process.wait()
        node.end()
    with Store.open(node.directory) as store:
        assert store.check() == []


def _knows(client: Any) -> bool:
    try:
        return bool(client.sentinel_master(NAME)["flags"] == "master")
    except redis.ConnectionError:
        return False


def test_every_spelling_has_tls_and_both_passwords(guarded: str) -> None:
    for count, scheme in enumerate(
        ("rediss+sentinel", "REDISS+SENTINEL", "valkeys+sentinel", "Valkeys+Sentinel")
    ):
        with kvstream.open(scheme + guarded) as store:
            store.stream("s").add({"n": 1})
            assert len(store.stream("s")) == count + 1
    wrong = f"rediss+sentinel{guarded.replace('of-sentinels', 'x')}"
    with pytest.raises(AccessDenied, match=f"primary of {NAME}"):
        kvstream.open(wrong)
    with pytest.raises(AccessDenied):
        kvstream.open(f"rediss+sentinel{guarded.replace('of-servers', 'x')}")
    plain = guarded.partition("?")[0] + "?sentinel_password=of-sentinels"
    with pytest.raises(ServerUnavailable):
        kvstream.open(f"redis+sentinel{plain}", wait_s=0)
    with pytest.raises(ServerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        kvstream.open(f"rediss+sentinel{plain}")  # at once: to ask again would not help
