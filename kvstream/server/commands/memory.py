"""MEMORY of a server, and OBJECT FREQ and IDLETIME.

``maxmemory-policy`` selects which of FREQ and IDLETIME has a reply. Nothing is evicted under any
policy, and accesses are not counted: FREQ is 0.
"""

from collections.abc import Iterator

from kvstream.commands import dump
from kvstream.commands.args import Argv
from kvstream.commands.command import Answer, Family, flags
from kvstream.commands.replies import OK, Double, Map, Reply, Verbatim
from kvstream.errors import InvalidArgument
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import server_of
from kvstream.server.runtime.limits import Memory, give_back, memory_of
from kvstream.server.settings import SERVER_SETTINGS

COMMANDS = Family("server")
COMMANDS.add_help("memory", since="4.0.0", more=dump.COMMANDS)
_LOCAL = flags("local")
_TIPS = "nondeterministic_output request_policy:all_shards response_policy:special"
_MB = 1 << 20
FELL = 1.5
"""DOCTOR reports a peak of so many times the present memory."""
CLIENT_BYTES = 200 * 1024
"""DOCTOR reports buffers of so many bytes a client."""
_ABSENT = (
    *("replication.backlog", "replica.fullsync.buffer", "clients.slaves", "cluster.links"),
    *("aof.buffer", "lua.caches", "functions.caches", "script.VMs"),
)


@COMMANDS.command("memory|stats", since="4.0.0", tips=_TIPS)
def memory_stats(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the memory of the process, its clients, and the parts of RocksDB.

    Figures of missing features (replicas, scripts, hash tables) are 0; those of an allocator are
    left out.
    """
    server = server_of(client)
    now = memory_of(server)
    server.statistics.note_peak(now.peak)
    databases = range(server.engine.options.databases)
    keys = {db: size for db in databases if (size := keyspace.size(txn, db))}
    count = sum(keys.values())
    overhead = max(now.used - now.data, 0)
    tables = Map([(b"overhead.hashtable.main", 0), (b"overhead.hashtable.expires", 0)])
    figures: dict[str, Reply] = {
        "peak.allocated": now.peak,
        "total.allocated": now.used,
        "startup.allocated": server.memory_at_start,
        **dict.fromkeys(_ABSENT, 0),
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
        "hot-entries": now.reply_cache,
    }
    return Map([(name.encode(), figure) for name, figure in figures.items()])


def _of_rocksdb(now: Memory) -> Iterator[tuple[str, int]]:
    yield "block-cache", now.blocks
    yield "memtables", now.memtables
    yield "table-readers", now.readers


@COMMANDS.command("memory|malloc-stats", "", _LOCAL, since="4.0.0", tips=_TIPS)
def memory_malloc_stats(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the memory of the process and of RocksDB in it, as text."""
    now = memory_of(server_of(client))
    rows = (
        ("the process", now.used),
        ("at the most", now.peak),
        *((f"RocksDB: {name}", size) for name, size in _of_rocksdb(now)),
        ("entries as they were sent", now.reply_cache),
        ("clients", now.clients),
    )
    return Verbatim("".join(f"{name:<26}{size:>16} bytes\n" for name, size in rows))


@COMMANDS.command("memory|doctor", "", _LOCAL, since="4.0.0", tips=_TIPS)
def memory_doctor(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return a report on unusual memory use."""
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


@COMMANDS.command(
    *("memory|purge", "", _LOCAL),
    since="4.0.0",
    tips="request_policy:all_shards response_policy:all_succeeded",
)
def memory_purge(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Start a thread that returns free memory to the system."""
    give_back()
    return OK


def _is_lfu(client: Client) -> bool:
    """Return whether the eviction policy is an LFU one."""
    return SERVER_SETTINGS[b"maxmemory-policy"].read(server_of(client)).endswith(b"lfu")


@COMMANDS.override(dump.COMMANDS.commands["object|freq"])
def freq(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Return 0 under an LFU policy, an error under others; null if the key does not exist."""
    if not _is_lfu(client):
        return dump.freq(txn, client, argv)
    return 0 if keyspace.exists(txn, client.prefix + argv[2]) else None


@COMMANDS.override(dump.COMMANDS.commands["object|idletime"])
def idletime(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Return the seconds since a key was last used; an error under an LFU policy.

    The time counts from the start of the server and is kept for the 20,000 keys that were used
    last; for other keys the result is a lower bound.
    """
    seconds = dump.idletime(txn, client, argv)
    if seconds is not None and _is_lfu(client):
        raise InvalidArgument(
            "An LFU maxmemory policy is selected, idle time not tracked. Please note that when "
            "switching between policies at runtime LRU and LFU data will take some time to adjust."
        )
    return seconds
