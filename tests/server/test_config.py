"""CONFIG: what is true is told, what can change is changed, the rest is refused."""

import pytest
import redis

from kvstream.server.settings import SERVER_SETTINGS
from tests.server.asking import Asker, Failure
from tests.server.conftest import Serve, Served

UNLIKE_REDIS = {
    b"appendonly",
    b"bind",
    b"client-output-buffer-limit",
    b"daemonize",
    b"dbfilename",
    b"dir",
    b"enable-debug-command",
    b"latency-tracking",
    b"lazyfree-lazy-expire",
    b"lazyfree-lazy-user-del",
    b"lazyfree-lazy-user-flush",
    b"port",
    b"supervised",
}
"""Settings that have another value here: what is true, or a default that docs/commands.md tells."""

OURS = {
    *(b"metrics-host", b"metrics-port", b"metrics-streams"),
    *(b"stream-idmp-duration", b"stream-idmp-maxsize"),
}
"""Settings that the redis-server of the tests does not have."""


def _all(asker: Asker) -> dict[bytes, bytes]:
    told = asker.ask("CONFIG GET *")
    return dict(zip(told[::2], told[1::2], strict=True))


def test_defaults_are_those_of_redis(served: Served, redis_port: int) -> None:
    with served.asker() as ours, Asker(redis_port) as theirs:
        told, wanted = _all(ours), _all(theirs)
    assert set(told) - set(wanted) == OURS
    differing = {name for name in told if name in wanted and told[name] != wanted[name]}
    assert differing <= UNLIKE_REDIS


def test_redis_py_reads_and_changes_settings(client: redis.Redis) -> None:
    assert client.config_get("maxclients", "slowlog-max-len") == {
        "maxclients": "10000",
        "slowlog-max-len": "128",
    }
    client.config_set("maxclients", 77, "stream-node-max-entries", "50")
    assert client.config_get("maxclients") == {"maxclients": "77"}
    assert client.config_get("stream-node-max-*")["stream-node-max-entries"] == "50"


def test_all_settings_are_changed_or_none(served: Served) -> None:
    with served.asker() as asker:
        assert asker.ask("CONFIG SET maxclients 5 timeout x") == Failure(
            "ERR CONFIG SET failed (possibly related to argument 'timeout') - argument couldn't be "
            "parsed into an integer"
        )
        assert asker.ask("CONFIG GET maxclients") == [b"maxclients", b"10000"]


@pytest.mark.parametrize("name", sorted(SERVER_SETTINGS))
def test_every_setting_takes_its_own_value_or_says_that_it_is_fixed(
    served: Served, name: bytes
) -> None:
    with served.asker() as asker:
        _, value = asker.ask("CONFIG", "GET", name)
        answer = asker.ask("CONFIG", "SET", name, value)
        if SERVER_SETTINGS[name].parse is None:
            assert answer.endswith("can't set immutable config")
        else:
            assert answer == b"OK"
        assert asker.ask("CONFIG", "GET", name) == [name, value]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("appendonly", "no"),
        ("maxmemory", "100mb"),
        ("maxmemory-policy", "allkeys-lru"),
        ("notify-keyspace-events", "KEA"),
        ("save", "900 1"),
    ],
)
def test_what_is_not_done_is_refused_and_not_pretended(
    served: Served, name: str, value: str
) -> None:
    with served.asker() as asker:
        assert isinstance(asker.ask("CONFIG", "SET", name, value), Failure)


def test_output_limits_are_set_class_by_class(served: Served) -> None:
    with served.asker() as asker:
        asker.ask("CONFIG", "SET", "client-output-buffer-limit", "replica 3mb 2mb 10")
        asker.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 0 0 pubsub 0 0 0")
        _, told = asker.ask("CONFIG GET client-output-buffer-limit")
        assert told == b"normal 1048576 0 0 slave 3145728 2097152 10 pubsub 0 0 0"
        answer = asker.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 1mb x 0")
        assert "Error in hard, soft or soft_seconds" in answer


def test_what_the_server_was_started_with_is_told(serve: Serve) -> None:
    served = serve(maxclients=7, requirepass="secret", timeout=9)
    client = served.client(password="secret")
    told = client.config_get("*")
    assert (told["maxclients"], told["requirepass"], told["timeout"]) == ("7", "secret", "9")
    assert told["port"] == str(served.port)
    assert told["appendfsync"] == "everysec"
