"""INFO: the fields that clients and exporters parse exist and are correct."""

import threading
import time

import redis

from kvstream.layout import twins
from tests.patience import until
from tests.server.asking import Asker
from tests.server.conftest import Served

EXPORTED = """
redis_version redis_mode os arch_bits process_id run_id tcp_port uptime_in_seconds uptime_in_days
config_file executable connected_clients cluster_connections maxclients blocked_clients
tracking_clients total_blocking_keys total_blocking_keys_on_nokey used_memory used_memory_human
used_memory_rss used_memory_peak used_memory_overhead used_memory_dataset used_memory_lua
total_system_memory maxmemory maxmemory_policy mem_fragmentation_ratio mem_allocator loading
rdb_changes_since_last_save rdb_bgsave_in_progress rdb_last_save_time rdb_last_bgsave_status
rdb_last_bgsave_time_sec rdb_current_bgsave_time_sec aof_enabled aof_rewrite_in_progress
aof_rewrite_scheduled aof_last_rewrite_time_sec aof_current_rewrite_time_sec
aof_last_bgrewrite_status aof_last_write_status total_connections_received total_commands_processed
instantaneous_ops_per_sec total_net_input_bytes total_net_output_bytes instantaneous_input_kbps
instantaneous_output_kbps rejected_connections evicted_keys pubsub_channels pubsub_patterns
latest_fork_usec total_error_replies role connected_slaves master_replid master_repl_offset
used_cpu_sys used_cpu_user cluster_enabled eventloop_cycles eventloop_duration_sum
eventloop_duration_cmd_sum instantaneous_eventloop_cycles_per_sec listener0 mem_clients_normal
instantaneous_eventloop_duration_usec tracking_total_items expired_subkeys module_fork_in_progress
"""
"""The fields that redis_exporter, redis-py and dashboards read."""

OURS = ("# Queues", "# Workers")
"""The section that Redis lacks; it is shown by default."""


def test_the_fields_for_exporters_exist(client: redis.Redis) -> None:
    reply = client.info()
    assert [name for name in EXPORTED.split() if name not in reply] == []
    assert reply["redis_version"] == "8.10.0"
    assert reply["kvstream_compiled"] == ("no" if twins is None else "yes")
    assert reply["role"] == "master"


def test_sections_are_selected_as_in_redis(served: Served, redis_port: int) -> None:
    def sections(asker: Asker, *words: str) -> list[str]:
        lines = asker.ask("INFO", *words).decode().split("\r\n")
        return [line for line in lines if line.startswith("#") and line not in OURS]

    with served.asker() as ours, Asker(redis_port) as theirs:
        for words in (
            *((), ("all",), ("everything",), ("default",), ("server",), ("CPU", "clients")),
            *(("commandstats",), ("default", "commandstats"), ("nosuch",), ("keyspace", "nosuch")),
        ):
            assert sections(ours, *words) == sections(theirs, *words), words


def test_queues_have_a_section_of_counters(client: redis.Redis, served: Served) -> None:
    served.engine.catalog.queue_events.retries = 3
    for found in (client.info(), client.info("queues")):
        assert found["retries"] == 3
        assert found["dead_max_deliveries"] == 0


def test_commands_and_errors_are_counted(client: redis.Redis, served: Served) -> None:
    client.config_resetstat()
    client.set("k", "v")
    client.get("k")
    client.get("k")
    with served.asker() as asker:
        asker.ask("XADD k * f v")
        asker.ask("NOSUCH")
        asker.ask("GET")
    reply = client.info("all")
    assert reply["cmdstat_get"]["calls"] == 2
    assert (reply["cmdstat_get"]["failed_calls"], reply["cmdstat_get"]["rejected_calls"]) == (0, 1)
    assert reply["cmdstat_xadd"]["failed_calls"] == 1
    assert reply["errorstat_ERR"] == {"count": 2}
    assert reply["errorstat_WRONGTYPE"] == {"count": 1}
    assert reply["total_error_replies"] == 3
    client.config_resetstat()
    assert client.info("stats")["total_error_replies"] == 0
    assert "cmdstat_get" not in client.info("commandstats")


def test_turns_of_the_loop_are_counted_and_timed(client: redis.Redis, served: Served) -> None:
    before = client.info("stats")
    client.set("k", "v")
    with served.asker() as asker:
        asker.ask("DEBUG SLEEP 0.02")
    reply = client.info("stats")
    assert reply["eventloop_cycles"] >= before["eventloop_cycles"] + 3
    for name in ("eventloop_duration_sum", "eventloop_duration_cmd_sum"):
        assert reply[name] >= before[name] + 20_000
    assert reply["eventloop_duration_sum"] >= reply["eventloop_duration_cmd_sum"]


def test_keys_and_their_expiry_are_counted_by_database(client: redis.Redis) -> None:
    client.set("k", "v")
    client.set("l", "v", px=60_000)
    client.select(2)
    client.set("m", "v")
    reply = client.info("keyspace")
    assert {"keys": 2, "expires": 1}.items() <= reply["db0"].items()
    assert 59_000 < reply["db0"]["avg_ttl"] <= 60_000
    assert {"keys": 1, "expires": 0, "avg_ttl": 0}.items() <= reply["db2"].items()
    assert "db1" not in reply


def test_blocked_clients_are_counted_by_key(client: redis.Redis, served: Served) -> None:
    client.xgroup_create("s", "g", "$", mkstream=True)
    with served.asker() as one, served.asker() as two:
        one.send("XREAD", "BLOCK", "0", "STREAMS", "s", "t", "$", "$")
        two.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "60000", "STREAMS", "s", ">")
        until(lambda: client.info("clients")["blocked_clients"] == 2)
        reply = client.info("clients")
        assert (reply["total_blocking_keys"], reply["total_blocking_keys_on_nokey"]) == (2, 1)
        assert reply["clients_in_timeout_table"] == 1
        assert reply["connected_clients"] == 3
    until(lambda: client.info("clients")["blocked_clients"] == 0)


def test_a_request_that_a_pause_holds_blocks_no_key(client: redis.Redis, served: Served) -> None:
    client.xgroup_create("s", "g", "$", mkstream=True)
    client.client_pause(60_000, all=False)
    with served.asker() as held:
        held.send("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
        until(lambda: client.info("clients")["blocked_clients"] == 1)
        reply = client.info("clients")
        assert (reply["total_blocking_keys"], reply["total_blocking_keys_on_nokey"]) == (0, 0)
        client.client_unpause()


def test_a_save_resets_the_changes_since_the_last_save(client: redis.Redis) -> None:
    client.set("k", "v")
    client.xadd("s", {"f": "v"})
    assert client.info()["rdb_changes_since_last_save"] == 2
    client.get("k")
    client.save()
    reply = client.info()
    assert (reply["rdb_changes_since_last_save"], reply["rdb_saves"]) == (0, 1)


def test_the_time_of_the_memory_peak_stays_until_a_higher_peak(client: redis.Redis) -> None:
    first, second = client.info("memory"), client.info("memory")
    assert time.time() - 600 < first["used_memory_peak_time"] <= second["used_memory_peak_time"]
    if second["used_memory_peak"] == first["used_memory_peak"]:
        assert second["used_memory_peak_time"] == first["used_memory_peak_time"]


def test_rates_are_those_of_the_last_seconds(client: redis.Redis) -> None:
    def reply() -> object:
        for _ in range(10):
            client.ping()
        rates = client.info("stats")
        return rates["instantaneous_ops_per_sec"] > 50 and rates["instantaneous_input_kbps"] > 0

    until(reply, "the rates of these requests")


def test_info_is_answered_while_others_write(client: redis.Redis, served: Served) -> None:
    over = threading.Event()

    def write() -> None:
        with served.asker() as asker:
            while not over.is_set():
                asker.ask("XADD s * f v")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [client.info()["total_commands_processed"] for _ in range(20)]
    finally:
        over.set()
        writer.join()
    assert seen == sorted(seen)
    assert client.info("keyspace")["db0"]["keys"] == 1
