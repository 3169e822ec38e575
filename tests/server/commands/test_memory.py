"""MEMORY of a server: figures of the process and of RocksDB, with the names of Redis."""

from typing import Any
from unittest.mock import patch

import redis

from kvstream.server.runtime.limits import Memory, give_back
from tests.server.asking import Failure
from tests.server.conftest import Served

_MB = 1 << 20


def test_stats_show_the_memory_of_the_process(served: Served, protocol: int) -> None:
    with served.asker(protocol) as asker:
        asker.ask("XADD s * f v")
        asker.ask("SELECT 3")
        asker.ask("SET k v")
        reply: Any = asker.ask("MEMORY STATS")
    stats = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    assert stats[b"keys.count"] == 2
    databases = {name for name in stats if name.startswith(b"db.") and name[3:].isdigit()}
    assert databases == {b"db.0", b"db.3"}
    assert stats[b"peak.allocated"] >= stats[b"total.allocated"] > 10 * _MB
    assert stats[b"rocksdb.memtables"] > 0
    assert stats[b"dataset.bytes"] >= stats[b"rocksdb.memtables"]
    assert stats[b"keys.bytes-per-key"] == stats[b"dataset.bytes"] // 2
    assert 0 < float(stats[b"dataset.percentage"]) < 100 >= float(stats[b"peak.percentage"])


def test_redis_py_reads_them(client: redis.Redis) -> None:
    client.set("k", "v")
    stats = client.memory_stats()
    assert isinstance(stats["db.0"], dict)
    assert stats["startup.allocated"] > 10 * _MB
    assert client.memory_purge() is True
    reply = client.memory_malloc_stats()
    assert b"memtables" in reply.encode() if isinstance(reply, str) else b"memtables" in reply


def test_doctor_reports_unusual_figures(served: Served) -> None:
    with served.asker() as asker:
        usual = Memory(100 * _MB, 120 * _MB, 0, 0, _MB, 0, clients=0)
        with patch("kvstream.server.commands.memory.memory_of", return_value=usual):
            assert asker.ask("MEMORY DOCTOR") == (
                b"Nothing is out of the common: 100 MB, 1 of data.\n"
            )
        odd = Memory(100 * _MB, 300 * _MB, 0, 0, _MB, 0, clients=50 * _MB)
        with patch("kvstream.server.commands.memory.memory_of", return_value=odd):
            peak, clients = asker.ask("MEMORY DOCTOR").decode().splitlines()
        assert "300 MB before, 3.0 times" in peak
        assert "50 MB wait for 1 clients" in clients
        assert isinstance(asker.ask("MEMORY DOCTOR x"), Failure)


def test_purge_returns_free_memory_if_possible() -> None:
    with patch("kvstream.server.runtime.limits.CDLL", return_value=object()):
        give_back()  # no glibc: there is nothing to do
    give_back()
