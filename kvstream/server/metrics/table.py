"""Every metric of a server, in one table: docs/metrics.md and the scrape are made from it."""

import platform
from collections.abc import Callable

from kvstream.errors import StoreError, StoreFull
from kvstream.layout.keys import database_of, key_of
from kvstream.operations.info import GroupFigures, StreamFigures
from kvstream.server.metrics.metric import (
    Metric,
    Values,
    View,
    count,
    counter,
    gauge,
    histogram,
    label,
    level,
)
from kvstream.server.stats import CommandStatistics
from kvstream.types.ids import StreamID
from kvstream.version import VERSION

_STATES = ("sound", "full", "failed")


def state_of(refusal: StoreError | None) -> str:
    """Return the state of a store that refuses writes for that reason."""
    if refusal is None:
        return "sound"
    return "full" if isinstance(refusal, StoreFull) else "failed"


# --- one kind of values each --------------------------------------------------------------------


def _of_command(name: str, meaning: str, value: Callable[[CommandStatistics], float]) -> Metric:
    def values(view: View) -> Values:
        return [((command,), value(row)) for command, row in view.commands]

    return counter(f"kvstream_command_{name}_total", meaning, values, ("command",))


def _of_stream(
    name: str,
    meaning: str,
    value: Callable[[StreamFigures], float | None],
    kind: Callable[..., Metric] = gauge,
) -> Metric:
    def values(view: View) -> Values:
        for stream, figures in view.sample.streams:
            found = value(figures)
            if found is not None:
                yield (str(database_of(stream)), label(key_of(stream))), found

    return kind(f"kvstream_stream_{name}", meaning, values, ("db", "stream"))


def _of_group(
    name: str,
    meaning: str,
    value: Callable[[GroupFigures], float | None],
    kind: Callable[..., Metric] = gauge,
) -> Metric:
    def values(view: View) -> Values:
        for stream, group, figures in view.sample.groups:
            found = value(figures)
            if found is not None:
                yield (str(database_of(stream)), label(key_of(stream)), label(group)), found

    return kind(f"kvstream_group_{name}", meaning, values, ("db", "stream", "group"))


def _of_family(name: str, meaning: str, rocksdb_property: str) -> Metric:
    def values(view: View) -> Values:
        found = view.sample.families.get(rocksdb_property, {})
        return [((family,), value) for family, value in found.items()]

    told = f"{meaning} (`rocksdb.{rocksdb_property}`)"
    return gauge(f"kvstream_rocksdb_{name}", told, values, ("family",))


def _of_rocksdb(name: str, meaning: str, rocksdb_property: str) -> Metric:
    told = f"{meaning} (`rocksdb.{rocksdb_property}`)"
    return level(
        f"kvstream_rocksdb_{name}", told, lambda view: view.sample.shared.get(rocksdb_property, 0)
    )


def _seconds(eid: StreamID | None) -> float | None:
    """Return the Unix time of an ID."""
    return None if eid is None else eid.ms / 1000


def _about(view: View) -> Values:
    durability = str(view.executor.engine.durability)
    return [((VERSION, platform.python_version(), durability), 1)]


def _states(view: View) -> Values:
    now = state_of(view.executor.engine.database.refusal())
    return [((state,), float(state == now)) for state in _STATES]


# --- the table ----------------------------------------------------------------------------------

_COMMANDS = (
    _of_command("calls", "Commands that ran.", lambda row: row.calls),
    _of_command("seconds", "Time that they ran, without the commit.", lambda row: row.seconds),
    _of_command("failures", "Of those that ran: answered with an error.", lambda row: row.failed),
    _of_command("rejections", "Refused before they ran.", lambda row: row.rejected),
    counter(
        "kvstream_errors_total",
        "Error replies by their first word, such as WRONGTYPE.",
        lambda view: [((code,), n) for code, n in sorted(view.executor.statistics.errors.items())],
        ("code",),
    ),
)

_CLIENTS = (
    level("kvstream_clients", "Connected clients.", lambda view: len(view.executor.clients)),
    level("kvstream_clients_max", "As many may be.", lambda view: view.executor.options.maxclients),
    level(
        "kvstream_blocked_clients",
        "Clients that wait in a blocking command.",
        lambda view: len(view.executor.blocked),
    ),
    count(
        "kvstream_connections_total",
        "Connections that were let in.",
        lambda view: view.executor.statistics.connections,
    ),
    count(
        "kvstream_rejected_connections_total",
        "Connections that were not: too many, or protected mode.",
        lambda view: view.executor.statistics.rejected_connections,
    ),
    count(
        "kvstream_output_disconnections_total",
        "Clients cut off because they left too much unread.",
        lambda view: view.executor.statistics.output_disconnections,
    ),
    counter(
        "kvstream_denials_total",
        "What somebody had no right to: auth, cmd or key.",
        lambda view: [((kind,), n) for kind, n in sorted(view.executor.statistics.denied.items())],
        ("kind",),
    ),
    count(
        "kvstream_received_bytes_total",
        "Bytes that clients have sent.",
        lambda view: view.executor.statistics.bytes_in,
    ),
    count(
        "kvstream_sent_bytes_total",
        "Bytes that clients were sent.",
        lambda view: view.executor.statistics.bytes_out,
    ),
)

_LOOP = (
    histogram(
        "kvstream_loop_gap_seconds",
        "How late a timer of 50 ms came: so long a request would have waited for the loop.",
        lambda view: view.meter.loop_gap_seconds,
    ),
    level(
        "kvstream_loop_silence_seconds",
        "Since the loop was last seen at work; at most 0.05 while it is well.",
        lambda view: view.meter.silence(),
    ),
    histogram(
        "kvstream_turn_seconds",
        "Time of a turn of the loop, from its first request to its commit.",
        lambda view: view.meter.turn_seconds,
    ),
    histogram(
        "kvstream_turn_requests",
        "Requests that one turn ran, and that share its commit.",
        lambda view: view.meter.turn_requests,
    ),
)

_STORE = (
    histogram(
        "kvstream_commit_seconds",
        "Time to write one batch to RocksDB: into the log, not yet to the disk.",
        lambda view: view.meter.commit_seconds,
    ),
    histogram(
        "kvstream_fsync_seconds",
        "Time of an fsync of the log.",
        lambda view: view.meter.fsync_seconds,
    ),
    gauge(
        "kvstream_store_state",
        "1 for the state of the store: sound; full: writes wait for space; failed: until restart.",
        _states,
        ("state",),
    ),
    level(
        "kvstream_store_bytes",
        "Bytes of all files of the store.",
        lambda view: view.sample.store_bytes,
    ),
    level(
        "kvstream_wal_bytes",
        "Bytes of the write-ahead log.",
        lambda view: view.sample.log_bytes,
    ),
    gauge(
        "kvstream_keys",
        "Keys of a database.",
        lambda view: [((str(db),), n) for db, n in sorted(view.sample.keys.items())],
        ("db",),
    ),
    level(
        "kvstream_last_save_timestamp_seconds",
        "Unix time of the last checkpoint by SAVE or BGSAVE, or of the start.",
        lambda view: view.executor.saving.last_save,
    ),
    level(
        "kvstream_last_save_failed",
        "1 where it failed.",
        lambda view: view.executor.saving.last_failed,
    ),
    level(
        "kvstream_changes_since_save",
        "Writing commands since then.",
        lambda view: view.executor.statistics.changes - view.executor.saving.saved_changes,
    ),
)

_STREAMS = (
    level(
        "kvstream_streams",
        "Streams that the walks over the keys have found.",
        lambda view: view.sample.streams_found,
    ),
    level(
        "kvstream_streams_left_out",
        "Of those, not shown: beyond `--metrics-streams`.",
        lambda view: max(0, view.sample.streams_found - len(view.sample.streams)),
    ),
    level(
        "kvstream_groups_left_out",
        "Groups not shown: beyond a hundred of one stream.",
        lambda view: view.sample.groups_left_out,
    ),
    level(
        "kvstream_unreadable",
        "Streams and groups not shown because they are damaged: see `kvstream check`.",
        lambda view: view.sample.unreadable,
    ),
    _of_stream("length", "Entries of a stream.", lambda row: row.length),
    _of_stream(
        "entries_added_total", "Entries ever added to it.", lambda row: row.entries_added, counter
    ),
    _of_stream("groups", "Groups that it has.", lambda row: row.groups),
    _of_stream(
        "first_id_timestamp_seconds",
        "Time part of the ID of its first entry; none where it has no entry.",
        lambda row: _seconds(row.first),
    ),
    _of_stream(
        "last_id_timestamp_seconds",
        "Time part of the last ID that it gave out.",
        lambda row: _seconds(row.last),
    ),
    _of_stream("last_id_sequence", "Sequence part of that ID.", lambda row: row.last.seq),
)

_GROUPS = (
    _of_group(
        "lag",
        "Entries not yet delivered to a group; none where Redis's rules cannot tell.",
        lambda row: row.lag,
    ),
    _of_group("pending", "Entries delivered and not acknowledged.", lambda row: row.pending),
    _of_group("nacked", "Of those, given back by XNACK and nobody's.", lambda row: row.nacked),
    _of_group("consumers", "Consumers of a group.", lambda row: row.consumers),
    _of_group(
        "entries_read_total",
        "Entries that the group was given, by Redis's rules; none where these cannot tell.",
        lambda row: row.entries_read,
        counter,
    ),
    _of_group(
        "oldest_pending_age_seconds",
        "Since the oldest delivery that waits for its acknowledgement; 0: none waits.",
        lambda row: row.oldest_ms / 1000,
    ),
)

_ROCKSDB = (
    _of_family("memtable_bytes", "Bytes in memtables.", "cur-size-all-mem-tables"),
    _of_family("immutable_memtables", "Memtables to be flushed.", "num-immutable-mem-table"),
    _of_family("flush_pending", "1 where a flush waits.", "mem-table-flush-pending"),
    _of_family("estimated_keys", "Rows, about.", "estimate-num-keys"),
    _of_family("live_data_bytes", "Bytes of live rows, about.", "estimate-live-data-size"),
    _of_family(
        "table_reader_bytes",
        "Bytes of indexes and filters outside of the block cache.",
        "estimate-table-readers-mem",
    ),
    _of_family("sst_bytes", "Bytes of tables.", "total-sst-files-size"),
    _of_family("level0_files", "Tables of level 0.", "num-files-at-level0"),
    _of_family("compaction_pending", "1 where a compaction waits.", "compaction-pending"),
    _of_family(
        "pending_compaction_bytes",
        "Bytes that compaction has yet to go over, about.",
        "estimate-pending-compaction-bytes",
    ),
    _of_rocksdb("block_cache_bytes", "Bytes in the block cache.", "block-cache-usage"),
    _of_rocksdb("block_cache_capacity_bytes", "As many may be.", "block-cache-capacity"),
    _of_rocksdb("block_cache_pinned_bytes", "Of those, in use now.", "block-cache-pinned-usage"),
    _of_rocksdb("running_compactions", "Compactions at work.", "num-running-compactions"),
    _of_rocksdb("running_flushes", "Flushes at work.", "num-running-flushes"),
    _of_rocksdb("write_stopped", "1 while writes wait for compaction.", "is-write-stopped"),
    _of_rocksdb(
        "delayed_write_bytes_per_second",
        "Rate to which writes are slowed down; 0: they are not.",
        "actual-delayed-write-rate",
    ),
    _of_rocksdb("background_errors", "Errors of flushes and compactions.", "background-errors"),
)

_SELF = (
    gauge(
        "kvstream_build_info",
        "1, with what is running.",
        _about,
        ("version", "python", "durability"),
    ),
    level(
        "kvstream_sample_age_seconds",
        "Since streams, groups and RocksDB were looked at: seconds; more while the store hangs.",
        lambda view: view.sample_age,
    ),
    level(
        "kvstream_sample_duration_seconds",
        "How long that took, pauses included.",
        lambda view: view.sample.seconds,
    ),
    count(
        "kvstream_sample_failures_total",
        "How often it failed.",
        lambda view: view.sample_failures,
    ),
)

SECTIONS: dict[str, tuple[Metric, ...]] = {
    "Commands": _COMMANDS,
    "Clients": _CLIENTS,
    "Loop": _LOOP,
    "Store": _STORE,
    "Streams": _STREAMS,
    "Groups": _GROUPS,
    "RocksDB": _ROCKSDB,
    "This page": _SELF,
}

METRICS = tuple(metric for section in SECTIONS.values() for metric in section)
