"""Debian's Prometheus exporter for Redis reads the replication of a pair."""

import re
import subprocess
import time
import urllib.request
from pathlib import Path

from tests.clients.debian import require
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.replicas.servers import Node, refuse_differences, replica_of, wait_equal

PROGRAM = "prometheus-redis-exporter"
_SAMPLE = re.compile(r"^redis_(\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)


def figures(program: str, port: int) -> dict[str, float]:
    """Return what the exporter says of a server: the last sample of each name."""
    web = free_port()
    addresses = ["-redis.addr", f"redis://127.0.0.1:{port}", "-web.listen-address"]
    process = subprocess.Popen(
        [program, *addresses, f"127.0.0.1:{web}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + PATIENCE_S
    try:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{web}/metrics") as page:
                    text = page.read().decode()
                return {name: float(value) for name, value in _SAMPLE.findall(text)}
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


def test_it_shows_the_offsets_of_a_pair(tmp_path: Path) -> None:
    program = require(PROGRAM, package=PROGRAM)
    primary = Node(tmp_path / "one")
    replica = replica_of(primary, tmp_path / "two")
    try:
        with primary.client() as client:
            for number in range(20):
                client.xadd("orders", {"n": number})
            wait_equal(primary, replica)
            until(lambda: f"offset={primary.offset()}" in primary.replication()["slave0"], "it")
            ours, theirs = figures(program, primary.port), figures(program, replica.port)
            assert ours["connected_slaves"] == ours["replica_resyncs_full"] == 1
            assert ours["connected_slave_offset_bytes"] == ours["master_repl_offset"] > 20
            assert theirs["slave_repl_offset"] == theirs["master_repl_offset"]
            assert theirs["slave_repl_offset"] == ours["master_repl_offset"]
            assert theirs["master_link_up"] == 1
            assert theirs["master_sync_in_progress"] == ours["connected_slave_lag_seconds"] == 0
            client.config_set("repl-timeout", 600)
            replica.freeze()
            client.xadd("orders", {"n": 20})
            late = figures(program, primary.port)
            assert late["master_repl_offset"] > late["connected_slave_offset_bytes"]
    finally:
        replica.end()
        primary.end()
    refuse_differences(primary.directory, replica.directory)
