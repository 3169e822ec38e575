"""MEMORY of a server: what takes memory, and what to do about it.

OBJECT FREQ and IDLETIME, of which a server answers one: its ``maxmemory-policy`` says which.

Nothing is evicted whatever the policy, and how often keys are used is not counted: FREQ is 0.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from kvstream.commands import dump
from kvstream.commands.args import Argv
from kvstream.commands.command import Answer, Command, Container, Handler
from kvstream.commands.replies import OK, Double, Map, Reply, Verbatim
from kvstream.errors import InvalidArgument
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace
from kvstream.server.commands.admin import help_of, server_of
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.limits import Memory, give_back, memory_of
from kvstream.server.settings import SERVER_SETTINGS

_MB = 1 << 20
FELL = 1.5
"""Where the process took so many times as much before, that is told."""
CLIENT_BYTES = 200 * 1024
"""Waiting of each client, on the average, is told of as much."""
_NOT_HERE = (
    *("replication.backlog", "replica.fullsync.buffer", "clients.slaves", "cluster.links"),
    *("aof.buffer", "lua.caches", "functions.caches", "script.VMs"),
)


def memory_stats(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer what takes memory: the process, its clients, the parts of RocksDB."""
    server = server_of(client)
    now = memory_of(server)
    server.statistics.peaked(now.peak)
    databases = range(server.engine.options.databases)
    keys = {db: size for db in databases if (size := keyspace.size(txn, db))}
    count = sum(keys.values())
    overhead = max(now.used - now.data, 0)
    tables = Map([(b"overhead.hashtable.main", 0), (b"overhead.hashtable.expires", 0)])
    figures: dict[str, Reply] = {
        "peak.allocated": now.peak,
        "total.allocated": now.used,
        "startup.allocated": server.memory_at_start,
        **dict.fromkeys(_NOT_HERE, 0),
        "clients.normal": now.clients,
        **{f"db.{db}": tables for db in keys},
        "overhead.db.hashtable.lut": 0,
        "overhead.db.hashtable.rehashing": 0,
        "overhead.total": overhead,
        "db.dict.rehashing.count": 0,
        "keys.count": count,
        "keys.bytes-per-key": now.data // count if count else 0,
        "dataset.bytes": now.data,
        "dataset.percentage": Double(100 * now.data / now.used),
        "peak.percentage": Double(100 * now.used / now.peak),
        "fragmentation": Double(1.0),
        "fragmentation.bytes": 0,
        **{f"rocksdb.{name}": size for name, size in _of_rocksdb(now)},
        "hot-entries": now.hot,
    }
    return Map([(name.encode(), figure) for name, figure in figures.items()])


def _of_rocksdb(now: Memory) -> Iterator[tuple[str, int]]:
    yield "block-cache", now.blocks
    yield "memtables", now.memtables
    yield "table-readers", now.readers


def memory_malloc_stats(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer in lines for people what the process takes, and RocksDB in it."""
    now = memory_of(server_of(client))
    rows = (
        ("the process", now.used),
        ("at the most", now.peak),
        *((f"RocksDB: {name}", size) for name, size in _of_rocksdb(now)),
        ("entries as they were sent", now.hot),
        ("clients", now.clients),
    )
    return Verbatim("".join(f"{name:<26}{size:>16} bytes\n" for name, size in rows))


def memory_doctor(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Say what of the memory that is taken is out of the common."""
    server = server_of(client)
    now, clients = memory_of(server), len(server.clients)
    advice = []
    if now.peak > FELL * now.used:
        advice.append(
            f"The process took {now.peak // _MB} MB before, {now.peak / now.used:.1f} times what "
            "it takes now: its limits should allow for that to come again."
        )
    if clients and now.clients > clients * CLIENT_BYTES:
        advice.append(
            f"{now.clients // _MB} MB wait for {clients} clients or were sent by them: see omem "
            "and qbuf of CLIENT LIST, and client-output-buffer-limit."
        )
    if not advice:
        advice = [f"Nothing is out of the common: {now.used // _MB} MB, {now.data // _MB} of data."]
    return Verbatim("".join(line + "\n" for line in advice))


def memory_purge(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Begin to give memory that is free back to the system."""
    give_back()
    return OK


memory_help = help_of(
    "MEMORY",
    ("DOCTOR", "Say what of the memory that is taken is out of the common."),
    ("MALLOC-STATS", "Show what takes memory, in lines for people."),
    ("PURGE", "Begin to give memory that is free back to the system."),
    ("STATS", "Show what takes memory, in bytes."),
    ("USAGE <key> [SAMPLES <count>]", "Show the bytes of a key's rows, estimated from so many of"),
    ("    each kind", "5 unless given; 0: from all."),
)


POLICY = b"maxmemory-policy"


def policy_of(client: Client) -> bytes:
    """Return by what Redis would evict keys."""
    return SERVER_SETTINGS[POLICY].read(server_of(client))


def freq(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Answer 0 under a policy that counts accesses, an error under others."""
    if not policy_of(client).endswith(b"lfu"):
        return dump.freq(txn, client, argv)
    return 0 if keyspace.exists(txn, client.prefix + argv[2]) else None


def idletime(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Answer the seconds since the last use, or an error under a policy that counts accesses."""
    found = dump.idletime(txn, client, argv)
    if found is not None and policy_of(client).endswith(b"lfu"):
        raise InvalidArgument(
            "An LFU maxmemory policy is selected, idle time not tracked. Please note that when "
            "switching between policies at runtime LRU and LFU data will take some time to adjust."
        )
    return found


def with_policy(row: Command | Container) -> Container:
    """Return the commands of OBJECT as a server has them."""
    assert isinstance(row, Container)
    ours = {b"freq": freq, b"idletime": idletime}
    subcommands = {
        word: replace(each, run=cast(Handler, ours[word])) if word in ours else each
        for word, each in row.subcommands.items()
    }
    return replace(row, subcommands=subcommands)
