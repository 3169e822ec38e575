"""CONFIG: settings are shown truthfully, and are either changed or refused."""

from unittest.mock import patch

import pytest
import redis

from kvstream.server.runtime.limits import resident_bytes
from kvstream.server.settings import SERVER_SETTINGS
from tests.patience import until
from tests.server.asking import Asker, Failure
from tests.server.conftest import Serve, Served
from tests.server.talking import Server, Talker

UNLIKE_REDIS = {
    b"appendonly",
    b"bind",
    b"client-output-buffer-limit",
    b"daemonize",
    b"dbfilename",
    b"dir",
    b"disable-thp",
    b"enable-debug-command",
    b"maxmemory-clients",
    b"port",
    b"repl-backlog-size",
    b"set-proc-title",
    b"supervised",
}
"""Settings with another value than in Redis: the true one, or a default of docs/commands.md."""

OURS = {
    *(b"dump-target", b"hot-entries-memory", b"log-format", b"script-memory"),
    *(b"metrics-host", b"metrics-port", b"metrics-streams"),
    *(b"stream-entry-max-bytes", b"stream-idmp-duration", b"stream-idmp-maxsize"),
    *(b"aof-load-corrupt-tail-max-size", b"cluster-compatibility-sample-ratio"),
    *(b"cluster-slot-migration-handoff-max-lag-bytes", b"cluster-slot-stats-enabled"),
    b"cluster-slot-migration-write-pause-timeout",
    *(b"set-max-listpack-entries", b"set-max-listpack-value"),
    *(b"aof-rewrite-cpulist", b"bgsave-cpulist", b"bio-cpulist", b"server-cpulist"),
    *(b"cluster-announce-human-nodename", b"hide-user-data-from-log", b"key-memory-histograms"),
    *(b"locale-collate", b"lookahead", b"max-new-connections-per-cycle"),
    *(b"max-new-tls-connections-per-cycle", b"replica-full-sync-buffer-limit"),
    *(b"replica-acks", b"replica-ack-timeout", b"replica-acks-degrade", b"replica-lease-ms"),
    *(b"replica-recovery-timeout", b"replica-validity"),
    *(b"slowlog-entry-max-argc", b"slowlog-entry-max-string-len"),
}
"""Settings that the redis-server of the tests lacks, or does not show."""


def _all(asker: Asker) -> dict[bytes, bytes]:
    reply = asker.ask("CONFIG GET *")
    return dict(zip(reply[::2], reply[1::2], strict=True))


def test_defaults_are_those_of_redis(served: Served, redis_port: int) -> None:
    with served.asker() as ours, Asker(redis_port) as theirs:
        found, wanted = _all(ours), _all(theirs)
    assert set(found) - set(wanted) == OURS
    differing = {name for name in found if name in wanted and found[name] != wanted[name]}
    assert differing <= UNLIKE_REDIS


def test_the_memory_of_clients_may_be_a_share(served: Served) -> None:
    with served.asker() as asker:
        asker.ask("CONFIG SET maxmemory 1gb")
        asker.ask("CONFIG SET maxmemory-clients 5%")
        assert served.executor.options.clients_memory_max == (1 << 30) // 20


BYTES, ENTRIES = "stream-node-max-bytes", "stream-node-max-entries"


def test_settings_are_found_by_patterns_each_once(served: Served) -> None:
    with served.asker() as asker:
        assert asker.ask(f"CONFIG GET stream-node-* {BYTES}") == [
            *(BYTES.encode(), b"4096"),
            *(ENTRIES.encode(), b"100"),
        ]
        assert asker.ask("CONFIG GET stream-idmp-*") == [
            *(b"stream-idmp-duration", b"100"),
            *(b"stream-idmp-maxsize", b"100"),
        ]


def test_a_setting_of_streams_applies_to_later_commands(served: Served) -> None:
    with served.asker() as asker:
        assert asker.ask(f"CONFIG SET {ENTRIES} 2") == b"OK"
        for number in range(1, 6):
            asker.ask(f"XADD s {number} f v")
        assert asker.ask("XTRIM s MAXLEN ~ 2") == 2
        assert asker.ask("CONFIG SET stream-idmp-duration 5 Stream-Idmp-Maxsize 7") == b"OK"
        asker.ask("XADD t IDMP p i * f v")
        info = asker.ask("XINFO STREAM t")
        assert info[14:18] == [b"idmp-duration", 5, b"idmp-maxsize", 7]


@pytest.mark.parametrize(("name", "most"), [("duration", 86400), ("maxsize", 10000)])
def test_a_refused_change_changes_nothing(served: Served, name: str, most: int) -> None:
    with served.asker() as asker:
        before = asker.ask("CONFIG GET *")
        for value in (0, most + 1):
            reply = asker.ask(f"CONFIG SET maxclients 7 stream-idmp-{name} {value}")
            assert reply.endswith(f"argument must be between 1 and {most} inclusive")
        assert asker.ask("CONFIG GET *") == before


def test_settings_for_tests_are_shown_only_by_their_full_name(served: Served) -> None:
    with served.asker() as asker:
        assert asker.ask("CONFIG GET key-load-dela?") == []
        assert asker.ask("CONFIG GET Key-Load-Delay") == [b"Key-Load-Delay", b"0"]


def test_redis_py_reads_and_changes_settings(client: redis.Redis) -> None:
    assert client.config_get("maxclients", "slowlog-max-len") == {
        "maxclients": "10000",
        "slowlog-max-len": "128",
    }
    client.config_set("maxclients", 77, "stream-node-max-entries", "50")
    assert client.config_get("maxclients") == {"maxclients": "77"}
    assert client.config_get("stream-node-max-*")["stream-node-max-entries"] == "50"


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("replica-priority", "slave-priority"),
        ("min-replicas-to-write", "min-slaves-to-write"),
        ("hash-max-listpack-value", "hash-max-ziplist-value"),
    ],
)
def test_a_setting_is_given_once_by_either_name(served: Served, name: str, alias: str) -> None:
    with served.asker() as asker:
        value = asker.ask("CONFIG", "GET", name)[1].decode()
        for words in ((name, value, alias, value), (alias, value, name, value)):
            refused = asker.ask("CONFIG", "SET", *words)
            assert refused == (
                f"ERR CONFIG SET failed (possibly related to argument '{words[2]}') - "
                "duplicate parameter"
            )
        assert asker.ask("CONFIG", "SET", alias, value) == b"OK"


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("client-query-buffer-limit", "18446744073709551616", 1048576),
        ("hash-max-listpack-entries", "-1", 0),
        ("maxmemory", "9223372036854775808", 0),
        ("stream-node-max-bytes", "9223372036854775808", 0),
        ("tracking-table-max-keys", "-1", 0),
    ],
)
def test_a_number_out_of_bounds_is_refused_with_the_bounds(
    served: Served, name: str, value: str, least: int
) -> None:
    with served.asker() as asker:
        refused = asker.ask("CONFIG", "SET", name, value)
        bounds = f"between {least} and 9223372036854775807 inclusive"
        assert refused.endswith(f"'{name}') - argument must be {bounds}")


def test_settings_of_a_signal_take_several_words(served: Served) -> None:
    with served.asker() as asker:
        assert asker.ask("CONFIG SET shutdown-on-sigterm default") == b"OK"
        refused = asker.ask("CONFIG", "SET", "shutdown-on-sigterm", "save now")
        assert refused.endswith("it has no other value here")
        refused = asker.ask("CONFIG", "SET", "shutdown-on-sigterm", "save later")
        assert refused.endswith("one of the following: default, save, nosave, now, force")


def test_every_setting_takes_its_own_value_or_is_refused_as_fixed(served: Served) -> None:
    with served.asker() as asker:
        for name in sorted(SERVER_SETTINGS):
            _, value = asker.ask("CONFIG", "GET", name)
            answer = asker.ask("CONFIG", "SET", name, value)
            if name in (b"dbfilename", b"dir"):
                assert answer.endswith("can't set protected config"), name
            elif SERVER_SETTINGS[name].parse is None:
                assert answer.endswith("can't set immutable config"), name
            else:
                assert answer == b"OK", name
            assert asker.ask("CONFIG", "GET", name) == [name, value]


def test_commands_that_add_are_refused_above_maxmemory(served: Served, protocol: int) -> None:
    refusal = "OOM command not allowed when used memory > 'maxmemory'."
    with served.asker(protocol) as asker, served.asker() as other:
        asker.ask("SET k v")
        asker.ask("MULTI")
        asker.ask("SET k w")
        other.ask("CONFIG SET maxmemory 1mb")
        assert asker.ask("EXEC") == f"EXECABORT Transaction discarded because of: {refusal}"
        adding = ("XADD s * f v", "SET k w", "COPY k c", "INCR n")
        for request in (*adding, "SUBSCRIBE c", "PSUBSCRIBE c", "SSUBSCRIBE c"):
            assert asker.ask(request) == refusal, request
        asker.send_bytes(b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nf\r\n$1\r\nv\r\n" * 3)
        assert [asker.read() for _ in range(3)] == [refusal] * 3
        assert asker.ask("GET k") == b"v"
        assert b"maxmemory_human:1.00M\r\n" in asker.ask("INFO memory")
        asker.ask("MULTI")
        asker.ask("DEL k")
        assert asker.ask("EXEC") == [1]
        asker.ask("MULTI")
        assert asker.ask("SET k w") == refusal
        assert asker.ask("DISCARD") == b"OK"
        assert b"cmdstat_copy:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1" in asker.ask(
            "INFO commandstats"
        )
        asker.ask("CONFIG SET maxmemory 100gb")
        assert isinstance(asker.ask("XADD s * f v"), bytes)


def test_memory_is_checked_before_each_turn(server: Server, ann: Talker) -> None:
    ann.ask("CONFIG", "SET", "maxmemory", str(resident_bytes() + (32 << 20)))
    assert ann.ask("SET", "k", "v") == b"+OK\r\n"
    much = b"x" * (128 << 20)
    assert ann.ask("SET", "k", "v").startswith(b"-OOM ")
    del much
    assert ann.ask("SET", "k", "v") == b"+OK\r\n"


def test_save_points_start_saves_automatically(served: Served) -> None:
    checkpoints = served.executor.checkpoints
    with served.asker() as asker:
        assert asker.ask("CONFIG GET save") == [b"save", b""]
        for wrong in ("a", "900", "0 1", "1 -1"):
            assert "Invalid save parameters" in asker.ask("CONFIG", "SET", "save", wrong)
        asker.ask("CONFIG", "SET", "save", "900 1 1 3")
        assert asker.ask("CONFIG GET save") == [b"save", b"900 1 1 3"]
        for _ in range(2):
            asker.ask("XADD s * f v")
        checkpoints.save_if_due([(900, 1), (1, 3)], 2)
        assert checkpoints.save is None
        asker.ask("XADD s * f v")
        until(lambda: checkpoints.saves == 1)  # by the server's own clock, within a second or two
        asker.ask("CONFIG", "SET", "save", "")
        assert b"rdb_changes_since_last_save:0\r\n" in asker.ask("INFO persistence")
        checkpoints.last_save -= 1
        checkpoints.last_failed = True
        failed = checkpoints.save
        with patch("kvstream.server.runtime.checkpoints.RETRY_S", 3600):
            checkpoints.save_if_due([(1, 0)], 9)
        assert checkpoints.save is failed  # it is not retried at once


def test_the_options_of_the_start_are_shown(serve: Serve) -> None:
    served = serve(maxclients=7, requirepass="secret", timeout=9)
    client = served.client(password="secret")
    reply = client.config_get("*")
    assert (reply["maxclients"], reply["requirepass"], reply["timeout"]) == ("7", "secret", "9")
    assert reply["port"] == str(served.port)
    assert reply["appendfsync"] == "everysec"


def test_the_durability_changes_while_serving(served: Served) -> None:
    with served.asker() as asker:
        for level in (b"always", b"no", b"everysec", b"always"):
            assert asker.ask(b"CONFIG", b"SET", b"appendfsync", level) == b"OK"
            assert asker.ask("CONFIG GET appendfsync") == [b"appendfsync", level]
            assert b"kvstream_durability:" + level in asker.ask("INFO persistence")
            asker.ask("SET k v")
        assert served.engine.committer.durable_sequence == served.engine.seen_sequence
        answer = asker.ask("CONFIG SET appendfsync sometimes")
        assert "one of the following: everysec, always, no" in answer


def test_settings_that_cannot_be_kept_are_refused(served: Served) -> None:
    with served.asker() as asker:
        assert isinstance(asker.ask("CONFIG SET appendonly no"), Failure)
        reply = asker.ask("CONFIG SET replica-read-only no")
        assert reply.endswith("a replica takes no writes")


def test_the_policy_decides_whether_object_has_frequency_or_idle_time(
    served: Served, redis_port: int
) -> None:
    with served.asker() as ours, Asker(redis_port) as theirs:
        for asker in (ours, theirs):
            assert asker.ask("SET k v") == b"OK"
            assert asker.ask("OBJECT IDLETIME k") in range(60)
        for line in (
            "OBJECT FREQ k",
            *("CONFIG SET maxmemory-policy allkeys-lfu", "CONFIG GET maxmemory-policy"),
            *("OBJECT IDLETIME k", "OBJECT IDLETIME missing", "OBJECT FREQ missing"),
        ):
            assert (line, ours.ask(line)) == (line, theirs.ask(line))
        assert ours.ask("OBJECT FREQ k") == 0
        assert b"maxmemory_policy:allkeys-lfu\r\n" in ours.ask("INFO memory")
        assert "must be one of the following" in ours.ask("CONFIG SET maxmemory-policy x")
        theirs.ask("CONFIG SET maxmemory-policy noeviction")
