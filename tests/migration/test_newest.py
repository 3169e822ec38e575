"""Features of the newest servers: kvstream's own server stands in, as no Redis 8.8 is available."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream import KVStreamError, Store
from kvstream.migration import LossRefused, run, verify
from tests.migration.filling import fill
from tests.migration.servers import RedisServer
from tests.server.conftest import Served
from tests.server.net.authorities import Authority


@pytest.fixture
def newest(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "served")
    yield served
    served.stop()


def url_of(served: Served) -> str:
    return f"redis://127.0.0.1:{served.port}"


def refusing(served: Served, command: str) -> str:
    """Create a user without the right to a command, and return a URL to log in as that user."""
    client: Any = served.client()
    words = ("some", "on", "nopass", "~*", "+@all", command)
    client.execute_command("ACL", "SETUSER", *words)
    return url_of(served).replace("redis://", "redis://some:any@")


def use_all(client: Any) -> None:
    """Give entries back, and record idempotent IDs of producers."""
    for number in range(1, 30):
        client.execute_command("XADD", "s", f"{number}-0", "n", number)
    client.execute_command("XGROUP", "CREATE", "s", "g", "0")
    client.execute_command("XREADGROUP", "GROUP", "g", "c", "COUNT", 20, "STREAMS", "s", ">")
    client.execute_command("XNACK", "s", "g", "FAIL", "IDS", 2, "7-0", "3-0")
    client.execute_command("XNACK", "s", "g", "FATAL", "IDS", 1, "5-0")
    client.execute_command("XDEL", "s", "3-0", "4-0")
    client.execute_command("XCFGSET", "s", "IDMP-DURATION", 3600, "IDMP-MAXSIZE", 50)
    for word in ("one", "two", "one"):
        client.execute_command("XADD", "s", "IDMP", "producer", word, "*", "n", word)


def test_all_features_of_the_newest_servers_are_migrated(newest: Served, tmp_path: Path) -> None:
    use_all(newest.client())
    store, file, back = tmp_path / "store", tmp_path / "out.rdb", tmp_path / "back"
    run(url_of(newest), store)
    assert verify(url_of(newest), store).differences == []
    run(store, file)
    run(file, back)
    assert verify(store, back).differences == []
    other = Served(tmp_path / "other")
    try:
        run(back, url_of(other))
        assert verify(url_of(newest), url_of(other)).differences == []
    finally:
        other.stop()


def test_a_redis_is_migrated_to_a_kvstream_server(source: RedisServer, newest: Served) -> None:
    fill(source.client())
    run(source.url, url_of(newest))
    assert verify(source.url, url_of(newest)).differences == []


def test_a_server_is_read_and_written_by_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    host = authority.certify("localhost")
    options = {
        "tls_cert_file": Path(host.certificate),
        "tls_key_file": Path(host.key),
        "tls_auth_clients": "no",
    }
    served = Served(tmp_path / "served", tls=True, **options)
    try:
        url = f"rediss://localhost:{served.tls_port}"
        known = f"{url}?ssl_ca_certs={authority.certificate}"
        use_all(served.client())
        run(known, tmp_path / "store")
        served.client().flushall()
        run(tmp_path / "store", known)
        assert verify(tmp_path / "store", known).differences == []
        with pytest.raises(KVStreamError, match="CERTIFICATE_VERIFY_FAILED"):
            run(url, tmp_path / "other")
    finally:
        served.stop()


def test_entries_given_back_and_producers_are_written_by_commands_without_restore(
    newest: Served, tmp_path: Path
) -> None:
    other = Served(tmp_path / "other")
    try:
        use_all(other.client())
        run(url_of(other), tmp_path / "store")
        url = refusing(newest, "-restore")
        names = {"active-time", "idempotency"}
        with pytest.raises(LossRefused) as refusal:
            run(tmp_path / "store", url)
        assert {loss.name for loss in refusal.value.losses} == names
        run(tmp_path / "store", url, allow_loss=names)
        found = verify(tmp_path / "store", url_of(newest)).differences
        unlike = {each.what for each in found if not each.may_move}
        assert unlike == {"idempotency, duplicates"}
    finally:
        other.stop()


def test_new_features_that_commands_cannot_read_are_refused(newest: Served, tmp_path: Path) -> None:
    use_all(newest.client())
    url = refusing(newest, "-dump")
    with pytest.raises(LossRefused) as refusal:
        run(url, tmp_path / "store")
    names = {loss.name for loss in refusal.value.losses}
    assert names == {"nacked", "idempotency"}
    run(url, tmp_path / "store", allow_loss=names)
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert store.check() == []
        pending = store.stream("s").group("g").pending_range()
        assert [each.id.ms for each in pending if not each.consumer] == [3, 5, 7]


def test_losses_on_older_servers_are_named(
    newest: Served, target: RedisServer, tmp_path: Path
) -> None:
    use_all(newest.client())
    with pytest.raises(LossRefused) as refusal:
        run(url_of(newest), target.url)
    names = {loss.name for loss in refusal.value.losses}
    assert names >= {"nacked", "idempotency"}
    assert target.client().dbsize() == 0
    run(url_of(newest), target.url, allow_loss=names)
    found = {
        each.what for each in verify(url_of(newest), target.url).differences if not each.may_move
    }
    assert "group 'g', pending 7-0, owner" in found
    assert not [what for what in found if what.startswith("entry")]
