"""The table of all metrics, from which /metrics and docs/metrics.md are made."""

import platform
from collections.abc import Callable

from kvstream.errors import StoreError, StoreFull
from kvstream.layout.keys import database_of, key_of
from kvstream.meta.events.queues import MEANINGS, QueueEvents
from kvstream.operations.queues.workers import STATES, jobs_of
from kvstream.server.metrics.metric import (
    Metric,
    Source,
    Values,
    View,
    count,
    counter,
    gauge,
    getter,
    histogram,
    label,
    level,
)
from kvstream.server.runtime.client import ChannelKind
from kvstream.server.runtime.replication.states import State
from kvstream.types.ids import StreamID
from kvstream.version import VERSION

_STATES = ("sound", "full", "failed")


def state_of(refusal: StoreError | None) -> str:
    """Return the state of a store from the error with which it refuses writes."""
    if refusal is None:
        return "sound"
    return "full" if isinstance(refusal, StoreFull) else "failed"


# --- metrics by source of values ----------------------------------------------------------------


def _of_command(name: str, meaning: str, source: Source) -> Metric:
    value = getter(source)

    def values(view: View) -> Values:
        return [((command,), value(row)) for command, row in view.commands]

    return counter(f"kvstream_command_{name}_total", meaning, values, ("command",))


def _of_stream(
    name: str,
    meaning: str,
    source: Source,
    kind: Callable[..., Metric] = gauge,
) -> Metric:
    value = getter(source)

    def values(view: View) -> Values:
        for stream, figures in view.sample.streams:
            number = value(figures)
            if number is not None:
                yield (str(database_of(stream)), label(key_of(stream))), number

    return kind(f"kvstream_stream_{name}", meaning, values, ("db", "stream"))


def _of_group(
    name: str,
    meaning: str,
    source: Source,
    kind: Callable[..., Metric] = gauge,
) -> Metric:
    value = getter(source)

    def values(view: View) -> Values:
        for stream, group, figures in view.sample.groups:
            number = value(figures)
            if number is not None:
                yield (str(database_of(stream)), label(key_of(stream)), label(group)), number

    return kind(f"kvstream_group_{name}", meaning, values, ("db", "stream", "group"))


def _of_family(name: str, meaning: str, rocksdb_property: str) -> Metric:
    def values(view: View) -> Values:
        properties = view.sample.families.get(rocksdb_property, {})
        return [((family,), value) for family, value in properties.items()]

    text = f"{meaning} (`rocksdb.{rocksdb_property}`)"
    return gauge(f"kvstream_rocksdb_{name}", text, values, ("family",))


def _of_rocksdb(name: str, meaning: str, rocksdb_property: str) -> Metric:
    text = f"{meaning} (`rocksdb.{rocksdb_property}`)"
    return level(
        f"kvstream_rocksdb_{name}", text, lambda view: view.sample.shared.get(rocksdb_property, 0)
    )


def _seconds(eid: StreamID | None) -> float | None:
    """Return the Unix time of an ID."""
    return None if eid is None else eid.ms / 1000


def _build_info(view: View) -> Values:
    durability = str(view.executor.engine.durability)
    return [((VERSION, platform.python_version(), durability), 1)]


def _states(view: View) -> Values:
    now = state_of(view.executor.engine.database.refusal())
    return [((state,), float(state == now)) for state in _STATES]


# --- the table ----------------------------------------------------------------------------------

_COMMANDS = (
    _of_command("calls", "Commands that ran.", "calls"),
    _of_command("seconds", "Time in which they ran, without the commit.", "seconds"),
    _of_command("failures", "Commands that ran and returned an error.", "failed"),
    _of_command("rejections", "Commands that were refused before they ran.", "rejected"),
    counter(
        "kvstream_errors_total",
        "Error replies by their first word, such as WRONGTYPE.",
        lambda view: [((code,), n) for code, n in sorted(view.executor.statistics.errors.items())],
        ("code",),
    ),
)

_CLIENTS = (
    level("kvstream_clients", "Connected clients.", lambda view: len(view.executor.clients)),
    level("kvstream_clients_max", "Maximum number of clients.", "executor.options.maxclients"),
    level(
        "kvstream_blocked_clients",
        "Clients that are blocked in a command.",
        lambda view: len(view.executor.blocked),
    ),
    level(
        "kvstream_subscribed_clients",
        "Clients that are subscribed to a channel or pattern.",
        lambda view: len(view.executor.pubsub.clients),
    ),
    level(
        "kvstream_channels",
        "Channels with subscribers, shard channels included.",
        lambda view: sum(
            len(view.executor.pubsub.names[kind])
            for kind in (ChannelKind.CHANNEL, ChannelKind.SHARD)
        ),
    ),
    level(
        "kvstream_channel_patterns",
        "Patterns with subscribers.",
        lambda view: len(view.executor.pubsub.names[ChannelKind.PATTERN]),
    ),
    count(
        "kvstream_messages_total",
        "Messages published to channels, by clients or by the server itself.",
        "executor.pubsub.published",
    ),
    count("kvstream_connections_total", "Accepted connections.", "executor.statistics.connections"),
    count(
        "kvstream_rejected_connections_total",
        "Refused connections: too many clients, or protected mode.",
        "executor.statistics.rejected_connections",
    ),
    count(
        "kvstream_output_disconnections_total",
        "Clients disconnected because they left too many replies unread.",
        "executor.statistics.output_disconnections",
    ),
    counter(
        "kvstream_denials_total",
        "Requests denied by ACL: auth, cmd, key or channel.",
        lambda view: [((kind,), n) for kind, n in sorted(view.executor.statistics.denied.items())],
        ("kind",),
    ),
    count(
        "kvstream_received_bytes_total",
        "Bytes received from clients.",
        "executor.statistics.bytes_in",
    ),
    count("kvstream_sent_bytes_total", "Bytes sent to clients.", "executor.statistics.bytes_out"),
)

_LOOP = (
    histogram(
        "kvstream_loop_gap_seconds",
        "Delay of a timer of 50 ms: how long a request waits for the event loop.",
        "histograms.loop_gap_seconds",
    ),
    level(
        "kvstream_loop_silence_seconds",
        "Time since the event loop last ran a timer of 50 ms.",
        lambda view: view.histograms.silence(),
    ),
    histogram(
        "kvstream_turn_seconds",
        "Time of a turn of the event loop, from its first request to its commit.",
        "histograms.turn_seconds",
    ),
    histogram(
        "kvstream_turn_requests",
        "Requests in one turn, which share its commit.",
        "histograms.turn_requests",
    ),
)

_STORE = (
    histogram(
        "kvstream_commit_seconds",
        "Time to write one batch to RocksDB, without the fsync.",
        "histograms.commit_seconds",
    ),
    histogram(
        "kvstream_fsync_seconds",
        "Time of an fsync of the write-ahead log.",
        "histograms.fsync_seconds",
    ),
    gauge(
        "kvstream_store_state",
        "1 for the current state: sound; full: no disk space; failed: no writes until a restart.",
        _states,
        ("state",),
    ),
    level("kvstream_store_bytes", "Bytes of all files of the store.", "sample.store_bytes"),
    level("kvstream_wal_bytes", "Bytes of the write-ahead log.", "sample.log_bytes"),
    gauge(
        "kvstream_keys",
        "Keys in a database.",
        lambda view: [((str(db),), n) for db, n in sorted(view.sample.keys.items())],
        ("db",),
    ),
    level(
        "kvstream_last_save_timestamp_seconds",
        "Unix time of the last checkpoint by SAVE or BGSAVE, or of the start.",
        "executor.checkpoints.last_save",
    ),
    level(
        "kvstream_last_save_failed",
        "1 if the last checkpoint failed.",
        "executor.checkpoints.last_failed",
    ),
    level(
        "kvstream_changes_since_save",
        "Writing commands since the last checkpoint.",
        lambda view: view.executor.statistics.changes - view.executor.checkpoints.saved_changes,
    ),
)

_ARCHIVE_STATES = ("off", "starting", "follows", "unreachable", "failed", "taken", "closed")


def _of_archive(name: str, meaning: str, source: Source) -> tuple[str, str, Source]:
    """Return the arguments of a metric of the archive, which is 0 if the store has none."""
    value = getter(source)

    def value_of(view: View) -> float | None:
        status = view.executor.engine.archiving.status()
        return 0 if status is None else value(status)

    return f"kvstream_archive_{name}", meaning, value_of


def _archive_states(view: View) -> Values:
    status = view.executor.engine.archiving.status()
    now = "off" if status is None else status.state
    return [((state,), float(state == now)) for state in _ARCHIVE_STATES]


_ARCHIVE = (
    gauge(
        "kvstream_archive_state",
        "1 for the current state: off; follows; unreachable or failed: it is tried again; taken: "
        "another owner has it, and all writes are refused.",
        _archive_states,
        ("state",),
    ),
    level(*_of_archive("sequence", "The last commit that is in the archive.", "reached")),
    level(
        *_of_archive(
            "lag_seconds", "How long commits have waited for the archive; 0: none.", "behind_s"
        )
    ),
    level(
        *_of_archive("lag_bytes", "Bytes of the log that are not in the archive.", "behind_bytes")
    ),
    level(
        *_of_archive(
            "last_put_timestamp_seconds",
            "Unix time of the last piece. Nothing is put while nothing is written.",
            lambda status: status.put_ms / 1000,
        )
    ),
    level(
        *_of_archive(
            "last_snapshot_timestamp_seconds",
            "Unix time of the last snapshot; 0: none since the start.",
            lambda status: status.snapshot_ms / 1000,
        )
    ),
    count(*_of_archive("puts_total", "Objects put into the archive.", "puts")),
    count(*_of_archive("put_bytes_total", "Bytes put into the archive.", "put_bytes")),
)


def _roles(view: View) -> Values:
    is_replica = view.executor.replication.follower is not None
    return [(("primary",), float(not is_replica)), (("replica",), float(is_replica))]


def _role_states(view: View) -> Values:
    present = view.executor.replication.state
    return [((state.value,), float(state is present)) for state in State]


_REPLICATION = (
    gauge("kvstream_replication_role", "1 for the current role.", _roles, ("role",)),
    gauge("kvstream_replication_state", "1 for the current state.", _role_states, ("state",)),
    level(
        "kvstream_replication_lsn",
        "Rows in the history of the store; 0 while it has none.",
        "executor.replication.lsn",
    ),
    level(
        "kvstream_replication_replicas",
        "Replicas that are connected.",
        lambda view: len(view.executor.replication.replicas),
    ),
    level(
        "kvstream_replication_lag_rows",
        "Rows that the slowest replica lacks, or that this replica lacks.",
        "executor.replication.lag_rows",
    ),
    level(
        "kvstream_replication_lag_seconds",
        "How old the oldest of the replicas' last answers is, or what this replica heard last.",
        "executor.replication.lag_s",
    ),
    level(
        "kvstream_replication_link_up",
        "1 while this replica gets the log of its primary; 1 on a primary.",
        lambda view: float(view.executor.replication.link_is_up),
    ),
    count(
        "kvstream_replication_copies_total",
        "Copies begun for replicas.",
        "executor.replication.replicas.counts.copies",
    ),
    count(
        "kvstream_replication_sent_bytes_total",
        "Bytes sent to replicas.",
        "executor.replication.replicas.counts.sent",
    ),
)

_STREAMS = (
    level("kvstream_streams", "Streams found by the scans of the keys.", "sample.streams_found"),
    level(
        "kvstream_streams_left_out",
        "Of those, not shown: beyond `--metrics-streams`.",
        lambda view: max(0, view.sample.streams_found - len(view.sample.streams)),
    ),
    level(
        "kvstream_groups_left_out",
        "Groups without metrics: more than 100 of one stream.",
        "sample.groups_left_out",
    ),
    level(
        "kvstream_unreadable",
        "Damaged streams and groups, which have no metrics: see `kvstream check`.",
        "sample.unreadable",
    ),
    _of_stream("length", "Entries in a stream.", "length"),
    _of_stream("entries_added_total", "Entries ever added to a stream.", "entries_added", counter),
    _of_stream("groups", "Groups of a stream.", "groups"),
    _of_stream("delayed", "Delayed messages, which are not in the stream yet.", "delayed"),
    _of_stream(
        "first_id_timestamp_seconds",
        "Time of the ID of the first entry; none if the stream is empty.",
        lambda row: _seconds(row.first),
    ),
    _of_stream(
        "last_id_timestamp_seconds",
        "Time of the last ID.",
        lambda row: _seconds(row.last),
    ),
    _of_stream("last_id_sequence", "Sequence of the last ID.", "last.seq"),
)

_GROUPS = (
    _of_group(
        "lag",
        "Entries not yet delivered to a group; none if it is unknown by Redis's rules, 0 where "
        "keys take turns: `kvstream_group_nacked` counts these.",
        "lag",
    ),
    _of_group("pending", "Entries delivered to a group and not acknowledged.", "pending"),
    _of_group(
        "nacked",
        "Pending entries without a consumer: given back, or not delivered since they wait for "
        "a turn or for their key.",
        "nacked",
    ),
    _of_group(
        "waiting",
        "Of these, entries that wait for a time or for another entry of their key.",
        "waiting",
    ),
    _of_group("consumers", "Consumers of a group.", "consumers"),
    _of_group(
        "entries_read_total",
        "Entries delivered to a group; none if it is unknown by Redis's rules.",
        "entries_read",
        counter,
    ),
    _of_group(
        "oldest_pending_age_seconds",
        "Time since the oldest delivery that is not acknowledged; 0 if there is none.",
        lambda row: row.oldest_ms / 1000,
    ),
)


def _events(view: View) -> QueueEvents:
    return view.executor.engine.catalog.queue_events


def _of_queues(name: str, meaning: str) -> Metric:
    return count(
        f"kvstream_queue_{name}_total",
        f"{meaning}.",
        lambda view: getattr(_events(view), name),
    )


_QUEUES = (
    *(_of_queues(name, meaning) for name, meaning in MEANINGS.items()),
    counter(
        "kvstream_queue_dead_letters_total",
        "Entries that became dead letters: max-deliveries, fatal or expired.",
        lambda view: [((reason,), n) for reason, n in _events(view).dead.items()],
        ("reason",),
    ),
    counter(
        "kvstream_queue_limited_reads_total",
        "Reads that a limit of a group kept from entries: in-flight, rate or paused.",
        lambda view: [((limit,), n) for limit, n in _events(view).limited.items()],
        ("limit",),
    ),
)


def _of_tasks(name: str, meaning: str, source: Source) -> Metric:
    value = getter(source)

    def values(view: View) -> Values:
        for registry, figures in view.sample.workers:
            db = str(database_of(registry))
            for (queue, task), row in figures.tasks.items():
                yield (db, label(queue.encode()), label(task.encode())), value(row)

    return gauge(f"kvstream_jobs_{name}", meaning, values, ("db", "queue", "task"))


def _workers(view: View) -> Values:
    for registry, figures in view.sample.workers:
        of = str(database_of(registry)), label(jobs_of(registry))
        yield from (((*of, state), figures.states[state]) for state in STATES)


def _hanging(view: View) -> Values:
    for registry, figures in view.sample.workers:
        yield (str(database_of(registry)), label(jobs_of(registry))), figures.hanging


_WORKERS = (
    gauge(
        "kvstream_workers",
        "Workers of jobs; lost ones are those that were lost within a day.",
        _workers,
        ("db", "jobs", "state"),
    ),
    _of_tasks("running", "Jobs in work, at the last beats of their workers.", "running"),
    _of_tasks(
        "oldest_running_seconds",
        "How long the job has run that runs longest; none if none runs.",
        "oldest_s",
    ),
    _of_tasks(
        "late",
        "Jobs that have run for longer than their timeout, or than an hour if they have none.",
        "late",
    ),
    gauge(
        "kvstream_jobs_hanging",
        "Jobs that were given up at their timeout, and whose threads go on.",
        _hanging,
        ("db", "jobs"),
    ),
)

_ROCKSDB = (
    _of_family("memtable_bytes", "Bytes in memtables.", "cur-size-all-mem-tables"),
    _of_family(
        "immutable_memtables", "Memtables that wait for a flush.", "num-immutable-mem-table"
    ),
    _of_family("flush_pending", "1 if a flush is pending.", "mem-table-flush-pending"),
    _of_family("estimated_keys", "Estimated number of rows.", "estimate-num-keys"),
    _of_family("live_data_bytes", "Estimated bytes of live rows.", "estimate-live-data-size"),
    _of_family(
        "table_reader_bytes",
        "Bytes of indexes and filters outside the block cache.",
        "estimate-table-readers-mem",
    ),
    _of_family("sst_bytes", "Bytes of SST files.", "total-sst-files-size"),
    _of_family("level0_files", "SST files of level 0.", "num-files-at-level0"),
    _of_family("compaction_pending", "1 if a compaction is pending.", "compaction-pending"),
    _of_family(
        "pending_compaction_bytes",
        "Estimated bytes that wait for compaction.",
        "estimate-pending-compaction-bytes",
    ),
    _of_rocksdb("block_cache_bytes", "Bytes in the block cache.", "block-cache-usage"),
    _of_rocksdb(
        "block_cache_capacity_bytes", "Maximum bytes of the block cache.", "block-cache-capacity"
    ),
    _of_rocksdb(
        "block_cache_pinned_bytes",
        "Bytes in the block cache that are in use.",
        "block-cache-pinned-usage",
    ),
    _of_rocksdb("running_compactions", "Running compactions.", "num-running-compactions"),
    _of_rocksdb("running_flushes", "Running flushes.", "num-running-flushes"),
    _of_rocksdb("write_stopped", "1 while writes wait for compaction.", "is-write-stopped"),
    _of_rocksdb(
        "delayed_write_bytes_per_second",
        "Limit to which writes are slowed down; 0 if they are not.",
        "actual-delayed-write-rate",
    ),
    _of_rocksdb("background_errors", "Errors of flushes and compactions.", "background-errors"),
)

_SELF = (
    gauge(
        "kvstream_build_info",
        "1; its labels describe the server.",
        _build_info,
        ("version", "python", "durability"),
    ),
    level(
        "kvstream_sample_age_seconds",
        "Age of the sample of streams, groups and RocksDB.",
        "sample_age",
    ),
    level(
        "kvstream_sample_duration_seconds",
        "Time to take the sample, including pauses.",
        "sample.seconds",
    ),
    count("kvstream_sample_failures_total", "Samples that failed.", "sample_failures"),
)

SECTIONS: dict[str, tuple[Metric, ...]] = {
    "Commands": _COMMANDS,
    "Clients": _CLIENTS,
    "Loop": _LOOP,
    "Store": _STORE,
    "Archive": _ARCHIVE,
    "Replication": _REPLICATION,
    "Streams": _STREAMS,
    "Groups": _GROUPS,
    "Queues": _QUEUES,
    "Workers": _WORKERS,
    "RocksDB": _ROCKSDB,
    "This page": _SELF,
}

METRICS = tuple(metric for section in SECTIONS.values() for metric in section)
