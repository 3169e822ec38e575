"""INFO: the state of the server, in the sections and fields that tools of Redis read.

Fields of features that kvstream does not have (eviction, forks) are 0: tools read them without
checking that they exist.
"""

import functools
import os
import platform
import re
import resource
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias
from weakref import WeakKeyDictionary

from kvstream.commands.args import Argv, text
from kvstream.commands.command import Family, flags
from kvstream.commands.replies import Reply, Verbatim
from kvstream.errors import ArchiveTaken
from kvstream.layout import compiled_state
from kvstream.layout.keys import database_of
from kvstream.meta.txn import Txn
from kvstream.operations import keyspace
from kvstream.operations.queues.workers import STATES, RegistryScan, jobs_of
from kvstream.replicas.follower import Follower, Link
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.client import ChannelKind, Client
from kvstream.server.runtime.executor import Executor, server_of
from kvstream.server.runtime.limits import PAGE_BYTES, memory_of
from kvstream.server.runtime.replication.replication import Replication
from kvstream.server.runtime.replication.states import State
from kvstream.server.runtime.scripts import REDIS_VERSION
from kvstream.server.runtime.tracking import figures
from kvstream.server.settings import SERVER_SETTINGS
from kvstream.server.stats import SlowCalls
from kvstream.storage.changes import archived_sizes
from kvstream.types.clock import monotonic
from kvstream.types.machine import thread_times
from kvstream.types.options import Durability
from kvstream.version import VERSION

COMMANDS = Family("server")
_SHARES = {"current_fork_perc", "instantaneous_input_repl_kbps", "instantaneous_output_repl_kbps"}

_NAMES = {
    "Memory": """
        mem_not_counted_for_evict mem_replication_backlog
        mem_total_replication_buffers mem_replica_full_sync_buffer mem_clients_slaves
        mem_cluster_links mem_cluster_slot_migration_output_buffer
        mem_cluster_slot_migration_input_buffer mem_cluster_slot_migration_input_buffer_peak
        mem_aof_buffer mem_overhead_db_hashtable_rehashing active_defrag_running
        lazyfree_pending_objects lazyfreed_objects
    """,
    "Persistence": """
        async_loading aof_rewrite_scheduled aof_pending_bio_fsync current_cow_peak
        current_cow_size current_cow_size_age current_fork_perc current_save_keys_processed
        current_save_keys_total rdb_last_cow_size rdb_last_load_keys_expired
        rdb_last_load_keys_loaded aof_last_cow_size module_fork_in_progress
        module_fork_last_cow_size
    """,
    "Stats": """
        total_net_repl_input_bytes instantaneous_input_repl_kbps instantaneous_output_repl_kbps
        sync_partial_err expired_subkeys expired_subkeys_active expired_time_cap_reached_count
        evicted_keys total_eviction_exceeded_time current_eviction_exceeded_time latest_fork_usec
        total_forks migrate_cached_sockets slave_expires_tracked_keys active_defrag_hits
        active_defrag_misses
        active_defrag_key_hits active_defrag_key_misses total_active_defrag_time
        current_active_defrag_time unexpected_error_replies io_threaded_reads_processed
        io_threaded_writes_processed io_threaded_total_prefetch_batches
        io_threaded_total_prefetch_entries acl_access_denied_tls_cert
    """,
}


def _absent_value(name: str) -> object:
    return "0.00" if name in _SHARES else 0


ABSENT: Mapping[str, tuple[tuple[str, object], ...]] = {
    section: tuple((name, _absent_value(name)) for name in names.split())
    for section, names in _NAMES.items()
}
"""By section; they follow its other fields."""


Fields: TypeAlias = Iterable[tuple[str, object]]
REGISTRY_KEYS = 1000
"""Keys that one INFO scans for registries of workers; the next one goes on there."""
_registries: WeakKeyDictionary[Executor, RegistryScan] = WeakKeyDictionary()
"""The registries that the INFOs of each server have found."""
_SEPARATORS = re.compile(r"[\x00-\x1f,=\x7f]")
EXPIRES_COUNTED = 10_000
"""Most expiring keys that one INFO counts, so that it stays quick; the next one counts on."""
_DAY_S = 86400
_US = 1_000_000
_UNITS = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


@functools.cache
def run_id() -> str:
    """Return the identity of this process."""
    return secrets.token_hex(20)


@COMMANDS.command(
    *("info", "[section [section ...]]", flags("loading stale")),
    since="1.0.0",
    categories="dangerous",
    tips="nondeterministic_output request_policy:all_shards response_policy:special",
)
def info(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the state of the server, all of it or by sections.

    `redis_version` is 8.10.0, since clients choose by it what they send; beside it are
    `kvstream_version` and `kvstream_compiled`: yes, no, or which compiled modules are missing.
    `used_memory` is the memory of the whole process. `rdb_changes_since_last_save` counts commands
    that may write, not keys. Each INFO counts `expires` and `avg_ttl` over 10,000 more keys, until
    all are counted.

    System calls are not counted. Fields of missing features (forks, eviction) are 0; those of the
    allocator and of copy-on-write are left out. In section Replication offsets count rows, not
    bytes. A cycle of the event loop is a
    turn of requests, so an idle server has none. Section Persistence shows with `archive_`
    how far the archive of the store is. Section Queues counts the events of queues. Section
    Workers, which must be asked for, shows the workers of jobs by state, and for each task how many
    jobs run, how many of them are late and how long the oldest has run. Registries of workers are
    found by a scan of 1000 keys in each call.
    """
    asked = {text(word).lower() for word in argv[1:]} or {"default"}
    parts: list[str] = []
    for name, (in_default, fields) in _SECTIONS.items():
        whole = asked & {"all", "everything"} or (in_default and "default" in asked)
        if whole or name.lower() in asked:
            pairs = (*fields(server_of(client), txn), *ABSENT.get(name, ()))
            lines = "".join(f"{key}:{value}\r\n" for key, value in pairs)
            parts.append(f"# {name}\r\n{lines}")
    return Verbatim("\r\n".join(parts))


def _server(server: Executor, txn: Txn) -> Fields:
    uptime = int(time.time()) - server.started_at
    file = server.options.config_file
    return (
        ("redis_version", REDIS_VERSION.decode()),
        ("kvstream_version", VERSION),
        ("kvstream_compiled", compiled_state()),
        ("redis_git_sha1", "00000000"),
        ("redis_git_dirty", 0),
        ("redis_build_id", VERSION),
        ("redis_mode", "standalone"),
        ("os", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("arch_bits", 64 if sys.maxsize > 1 << 32 else 32),
        ("monotonic_clock", "POSIX clock_gettime"),
        ("multiplexing_api", "epoll"),
        ("python_version", platform.python_version()),
        ("process_id", os.getpid()),
        ("process_supervised", "no"),
        ("run_id", run_id()),
        ("tcp_port", server.options.port),
        ("server_time_usec", time.time_ns() // 1000),
        ("uptime_in_seconds", uptime),
        ("uptime_in_days", uptime // _DAY_S),
        ("hz", 10),
        ("configured_hz", 10),
        ("lru_clock", int(time.time()) & 0xFFFFFF),
        ("executable", sys.executable),
        ("config_file", "" if file is None else file.path.resolve()),
        ("io_threads_active", 0),
        *((f"listener{number}", text) for number, text in enumerate(_listeners(server.options))),
    )


def _listeners(options: ServerOptions) -> Iterator[str]:
    if options.port:
        yield f"name=tcp,bind={options.host},port={options.port}"
    if options.unixsocket is not None:
        yield f"name=unix,bind={options.unixsocket}"
    if options.tls_port:
        yield f"name=tls,bind={options.host},port={options.tls_port}"


def _clients(server: Executor, txn: Txn) -> Fields:
    blocks = [client.block for client in server.blocked if client.block is not None]
    waits = [block.wait for block in blocks]
    # Names of keys have two bytes at least; a wait for a job, or for the end of a pause, has one.
    names = {name for wait in waits for name in wait.names if len(name) > 1}
    on_nokey = {name for wait in waits if wait.group is not None for name in wait.names}
    watched = [client.watched for client in server.clients.values() if client.watched]
    return (
        ("connected_clients", len(server.clients)),
        ("cluster_connections", 0),
        ("maxclients", server.options.maxclients),
        ("client_recent_max_input_buffer", server.limits.recent_input),
        ("client_recent_max_output_buffer", server.limits.recent_output),
        ("blocked_clients", len(server.blocked)),
        ("tracking_clients", len(server.trackers.clients)),
        ("pubsub_clients", len(server.pubsub.clients)),
        ("watching_clients", len(watched)),
        ("clients_in_timeout_table", sum(block.until is not None for block in blocks)),
        ("total_watched_keys", len({name for each in watched for name in each})),
        ("total_blocking_keys", len(names)),
        ("total_blocking_keys_on_nokey", len(on_nokey)),
    )


def _memory(server: Executor, txn: Txn) -> Fields:
    now, scripts, functions = memory_of(server), server.scripts, server.functions
    libraries, function_count = functions.counts(txn)
    vm, scripts_memory = scripts.memory + functions.memory, scripts.cache.memory
    used, peak, data = now.used, now.peak, now.data
    total = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    overhead = max(used - data, 0)
    return (
        ("used_memory", used),
        ("used_memory_human", _human(used)),
        ("used_memory_rss", used),
        ("used_memory_rss_human", _human(used)),
        ("used_memory_peak", peak),
        ("used_memory_peak_human", _human(peak)),
        ("used_memory_peak_time", server.statistics.note_peak(peak)),
        ("used_memory_peak_perc", f"{100 * used / peak:.2f}%"),
        ("used_memory_overhead", overhead),
        ("used_memory_startup", server.memory_at_start),
        ("used_memory_dataset", data),
        ("used_memory_dataset_perc", f"{100 * data / used:.2f}%"),
        ("used_memory_hot_entries", now.reply_cache),
        ("total_system_memory", total),
        ("total_system_memory_human", _human(total)),
        ("used_memory_lua", scripts.memory),
        ("used_memory_vm_eval", scripts.memory),
        ("used_memory_lua_human", _human(scripts.memory)),
        ("used_memory_scripts_eval", scripts_memory),
        ("number_of_cached_scripts", len(scripts.cache)),
        ("number_of_functions", function_count),
        ("number_of_libraries", libraries),
        ("used_memory_vm_functions", functions.memory),
        ("used_memory_vm_total", vm),
        ("used_memory_vm_total_human", _human(vm)),
        ("used_memory_functions", functions.text_memory),
        ("used_memory_scripts", scripts_memory + functions.text_memory),
        ("used_memory_scripts_human", _human(scripts_memory + functions.text_memory)),
        ("maxmemory", server.options.maxmemory),
        ("maxmemory_human", _human(server.options.maxmemory)),
        ("maxmemory_policy", SERVER_SETTINGS[b"maxmemory-policy"].read(server).decode()),
        ("mem_fragmentation_ratio", "1.00"),
        ("mem_fragmentation_bytes", 0),
        ("mem_clients_normal", now.clients),
        ("mem_allocator", "libc"),
    )


def _human(size: int) -> str:
    for unit, letter in _UNITS:
        if size >= unit:
            return f"{size / unit:.2f}{letter}"
    return f"{size}B"


def _persistence(server: Executor, txn: Txn) -> Fields:
    checkpoints, failure = server.checkpoints, server.engine.database.failure
    begun = checkpoints.save.begun if checkpoints.is_saving and checkpoints.save else None
    durability = server.engine.durability
    job = checkpoints.compaction
    compaction = int(job.seconds) if job is not None and job.done else -1
    compacting = int(monotonic() - job.begun) if job is not None and not job.done else -1
    return (
        ("loading", 0),
        ("rdb_changes_since_last_save", server.statistics.changes - checkpoints.saved_changes),
        ("rdb_bgsave_in_progress", int(checkpoints.is_saving)),
        ("rdb_last_save_time", checkpoints.last_save),
        ("rdb_last_bgsave_status", "err" if checkpoints.last_failed else "ok"),
        ("rdb_last_bgsave_time_sec", checkpoints.last_seconds),
        ("rdb_current_bgsave_time_sec", -1 if begun is None else int(monotonic() - begun)),
        ("rdb_saves", checkpoints.saves),
        ("aof_enabled", 1),
        ("aof_rewrite_in_progress", int(checkpoints.is_compacting)),
        ("aof_last_rewrite_time_sec", compaction),
        ("aof_current_rewrite_time_sec", compacting),
        ("aof_last_bgrewrite_status", "err" if job is not None and job.error else "ok"),
        ("aof_last_write_status", "ok" if failure is None else "err"),
        ("aof_current_size", server.engine.database.size_on_disk()),
        ("kvstream_durability", str(Durability(durability))),
        ("kvstream_archive", server.engine.options.archive),
        *_archive(server),
    )


def _archive(server: Executor) -> Fields:
    """Return how far the archive is."""
    status = server.engine.archiving.status()
    if status is None:
        is_taken = isinstance(server.engine.database.failure, ArchiveTaken)
        sleeps = "taken" if is_taken else "asleep"
        return (("archive_state", sleeps if server.engine.options.archive else "off"),)
    return (
        ("archive_state", status.state),
        ("archive_error", " ".join((status.error or status.snapshot_error).split())),
        ("archive_sequence", status.reached),
        ("archive_piece", status.piece),
        ("archive_last_put_time", status.put_ms // 1000),
        ("archive_lag_seconds", f"{status.behind_s:.1f}"),
        ("archive_lag_bytes", status.behind_bytes),
        ("archive_snapshot_sequence", status.snapshot_sequence),
        ("archive_last_snapshot_time", status.snapshot_ms // 1000),
        ("archive_puts", status.puts),
        ("archive_put_bytes", status.put_bytes),
    )


def _stats(server: Executor, txn: Txn) -> Fields:
    counted, cache = server.statistics, server.engine.catalog.reply_cache
    calls, read, written, turns, seconds = counted.rates()
    names = server.pubsub.names
    return (
        ("total_connections_received", counted.connections),
        ("total_commands_processed", counted.calls),
        ("instantaneous_ops_per_sec", round(calls)),
        ("total_net_input_bytes", counted.bytes_in),
        ("total_net_output_bytes", counted.bytes_out),
        ("instantaneous_input_kbps", f"{read / 1024:.2f}"),
        ("instantaneous_output_kbps", f"{written / 1024:.2f}"),
        ("total_net_repl_output_bytes", server.replication.replicas.counts.sent),
        ("rejected_connections", counted.rejected_connections),
        ("sync_full", server.replication.replicas.counts.copies),
        ("sync_partial_ok", server.replication.replicas.counts.resumed),
        *((f"slowlog_commands_{name}", value) for name, value in _slow(counted.slow_calls)),
        ("evicted_clients", counted.evicted_clients),
        ("expired_keys", server.engine.catalog.expired),
        ("expired_keys_active", server.engine.catalog.expired_unasked),
        ("keyspace_hits", counted.keyspace_hits),
        ("keyspace_misses", counted.keyspace_misses),
        ("evicted_scripts", server.scripts.cache.evicted),
        ("hot_entries_hits", cache.hits),
        ("hot_entries_misses", cache.misses),
        ("total_error_replies", counted.error_replies),
        ("client_query_buffer_limit_disconnections", counted.input_disconnections),
        ("client_output_buffer_limit_disconnections", counted.output_disconnections),
        *((f"acl_access_denied_{kind}", counted.denied.get(kind, 0)) for kind in _DENIED),
        ("pubsub_channels", len(names[ChannelKind.CHANNEL])),
        ("pubsub_patterns", len(names[ChannelKind.PATTERN])),
        ("pubsubshard_channels", len(names[ChannelKind.SHARD])),
        *figures(server.trackers).items(),
        ("eventloop_cycles", counted.turns),
        ("eventloop_duration_sum", round(counted.turn_seconds * _US)),
        ("eventloop_duration_cmd_sum", round(_US * counted.seconds)),
        ("instantaneous_eventloop_cycles_per_sec", round(turns)),
        ("instantaneous_eventloop_duration_usec", round(_US * seconds / turns) if turns else 0),
    )


_DENIED = ("auth", "cmd", "key", "channel")


def _replication(server: Executor, txn: Txn) -> Fields:
    replication = server.replication
    history, follower = replication.history, replication.follower
    former = history.former[-1] if history is not None and history.former else None
    kept = sum(size for _, size in archived_sizes(server.engine.database.own_path))
    role = [("role", "master")] if follower is None else _of_replica(replication, follower)
    return (
        *role,
        *_replicas(replication),
        ("master_failover_state", replication.failover.state),
        ("replication_state", replication.state),
        ("replication_lag_rows", replication.lag_rows),
        ("replication_lag_seconds", f"{replication.lag_s:.1f}"),
        ("master_replid", run_id() if history is None else history.branch.hex()),
        ("master_replid2", "0" * 40 if former is None else former.branch.hex()),
        ("master_repl_offset", replication.lsn),
        ("second_repl_offset", -1 if former is None else former.lsn),
        ("repl_backlog_active", int(history is not None)),
        ("repl_backlog_size", replication.setting("repl-backlog-size")),
        ("repl_backlog_first_byte_offset", 0 if history is None else history.base),
        ("repl_backlog_histlen", kept),
    )


def _replicas(replication: Replication) -> Fields:
    now = monotonic()
    wanted = replication.setting("min-replicas-to-write")
    yield "connected_slaves", len(replication.replicas)
    if wanted:
        yield "min_slaves_good_slaves", replication.count_good()
    if acks := replication.setting("replica-acks"):
        yield "replica_acks", acks
        yield "replica_acks_degraded", int(replication.state is State.DEGRADED)
    for number, each in enumerate(replication.replicas):
        place = f"ip={each.address},port={each.port},state={each.state}"
        yield f"slave{number}", f"{place},offset={each.lsn},lag={int(now - each.at)}"


def _of_replica(replication: Replication, follower: Follower) -> list[tuple[str, object]]:
    """Return the fields of a replica, as Sentinel reads them."""
    now, is_up = monotonic(), follower.link is Link.CONNECTED
    host, port = follower.source
    since = ("up", follower.up_since) if is_up else ("down", follower.down_since)
    return [
        ("role", "slave"),
        ("master_host", host),
        ("master_port", port),
        ("master_link_status", "up" if is_up else "down"),
        ("master_last_io_seconds_ago", int(now - follower.last_io) if is_up else -1),
        ("master_sync_in_progress", int(follower.link is Link.SYNC)),
        ("slave_read_repl_offset", replication.lsn),
        ("slave_repl_offset", replication.lsn),
        *_of_copy(follower.bytes_left, follower.bytes_total),
        (f"master_link_{since[0]}_since_seconds", int(now - since[1])),
        ("master_link_error", " ".join(follower.error.split())),
        ("slave_priority", replication.priority),
        ("slave_read_only", 1),
        ("replica_announced", int(replication.setting("replica-announced"))),
    ]


def _of_copy(left: int, total: int) -> list[tuple[str, object]]:
    """Return how far the copy is that a replica takes; nothing if it takes none."""
    if not left:
        return []
    return [
        ("master_sync_total_bytes", total),
        ("master_sync_read_bytes", total - left),
        ("master_sync_left_bytes", left),
        ("master_sync_perc", f"{100 * (total - left) / total:.2f}"),
    ]


def _cpu(server: Executor, txn: Txn) -> Fields:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    loop_user, loop_sys = thread_times()
    return (
        ("used_cpu_sys", f"{own.ru_stime:.6f}"),
        ("used_cpu_user", f"{own.ru_utime:.6f}"),
        ("used_cpu_sys_children", f"{children.ru_stime:.6f}"),
        ("used_cpu_user_children", f"{children.ru_utime:.6f}"),
        ("used_cpu_sys_main_thread", f"{loop_sys:.6f}"),
        ("used_cpu_user_main_thread", f"{loop_user:.6f}"),
    )


def _commandstats(server: Executor, txn: Txn) -> Fields:
    for name, row in sorted(server.statistics.commands.items()):
        spent = round(row.seconds * _US)
        mean = spent / row.calls if row.calls else 0.0
        line = (
            f"calls={row.calls},usec={spent},usec_per_call={mean:.2f},"
            f"rejected_calls={row.rejected},failed_calls={row.failed}"
        )
        if row.slow.count:
            line += "".join(f",slowlog_{name}={value}" for name, value in _slow(row.slow))
        yield f"cmdstat_{name}", line


def _slow(calls: SlowCalls) -> list[tuple[str, str]]:
    """Return the figures of slow calls, in milliseconds."""
    times = ("time_ms_sum", calls.microseconds), ("time_ms_max", calls.longest)
    return [("count", str(calls.count)), *((name, f"{us / 1000:.2f}") for name, us in times)]


def _errorstats(server: Executor, txn: Txn) -> Fields:
    for code, count in sorted(server.statistics.errors.items()):
        yield f"errorstat_{code}", f"count={count}"


def _latencystats(server: Executor, txn: Txn) -> Fields:
    if not server.options.latency_tracking:
        return
    ranks = server.options.latency_percentiles
    for name, row in sorted(server.statistics.commands.items()):
        if row.durations.calls:
            times = zip(ranks, row.durations.percentiles(ranks), strict=True)
            shown = ",".join(f"p{rank:g}={_US * seconds:.3f}" for rank, seconds in times)
            yield f"latency_percentiles_usec_{name}", shown


def _queues(server: Executor, txn: Txn) -> Fields:
    return txn.catalog.queue_events.counts().items()


def _workers(server: Executor, txn: Txn) -> Fields:
    """The workers of jobs, and what they have in work; a call scans some keys for registries."""
    registries = _registries.get(server)
    if registries is None:
        registries = _registries[server] = RegistryScan(server.engine.options.databases)
    registries.look(txn, REGISTRY_KEYS)
    found = [*registries.figures(txn)]
    for n, (name, workers) in enumerate(found):
        states = ",".join(f"{state}={workers.states[state]}" for state in STATES)
        of = f"db={database_of(name)},jobs={_plain(text(jobs_of(name)))}"
        yield f"workers_{n}", f"{of},{states},hanging={workers.hanging}"
    tasks = [(name, *each) for name, workers in found for each in workers.tasks.items()]
    for n, (name, (queue, task), row) in enumerate(tasks):
        of = f"db={database_of(name)},queue={_plain(queue)},task={_plain(task)}"
        counts = f"running={row.running},late={row.late},oldest_seconds={row.oldest_s:.3f}"
        yield f"jobs_running_{n}", f"{of},{counts}"


def _plain(name: str) -> str:
    """Return a name without characters that end a value or a line."""
    return _SEPARATORS.sub(lambda each: f"\\x{ord(each[0]):02x}", name)


def _nothing(server: Executor, txn: Txn) -> Fields:
    return ()


def _cluster(server: Executor, txn: Txn) -> Fields:
    return (("cluster_enabled", 0),)


def _keyspace(server: Executor, txn: Txn) -> Fields:
    expiries_of = keyspace.expiries(txn, EXPIRES_COUNTED)
    for db in range(server.engine.options.databases):
        keys = keyspace.size(txn, db)
        if keys:
            expiries = expiries_of(db)
            mean = expiries.times // expiries.keys - txn.now_ms if expiries.keys else 0
            yield f"db{db}", f"keys={keys},expires={expiries.keys},avg_ttl={mean},subexpiry=0"


_SECTIONS: dict[str, tuple[bool, Callable[[Executor, Txn], Fields]]] = {
    "Server": (True, _server),
    "Clients": (True, _clients),
    "Memory": (True, _memory),
    "Persistence": (True, _persistence),
    "Stats": (True, _stats),
    "Queues": (True, _queues),
    "Workers": (False, _workers),
    "Replication": (True, _replication),
    "CPU": (True, _cpu),
    "Modules": (True, _nothing),
    "Commandstats": (False, _commandstats),
    "Errorstats": (True, _errorstats),
    "Latencystats": (False, _latencystats),
    "Cluster": (True, _cluster),
    "Keyspace": (True, _keyspace),
}
"""By name: whether INFO without arguments shows the section, and its fields."""
