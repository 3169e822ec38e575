"""Print docs/metrics.md from the table: ``python -m kvstream.server.metrics.reference``.

A test compares the file with this output.
"""

from collections.abc import Iterator

from kvstream.server.metrics.endpoint import CONNECTIONS_MAX, REQUESTS_MAX
from kvstream.server.metrics.sample import GROUPS_MAX, LIMITS
from kvstream.server.metrics.table import SECTIONS

REQUEST_S, SAMPLE_S = int(LIMITS.request_s), int(LIMITS.sample_s)
INTRODUCTION = f"""\
# Metrics

<!-- Written by `python -m kvstream.server.metrics.reference > docs/metrics.md`; do not edit. -->

`kvstream serve --metrics-port 9121` serves two paths on a port of their own, at
`--metrics-host`, by default 127.0.0.1. There is no password: anyone who can reach the port can
read the names of streams and groups.

- `/metrics`: the metrics below, for Prometheus.
- `/healthz`: 200 while the store takes writes; otherwise 503 with the reason, such as a full
  disk, a failed write, a hanging event loop, or a server that is stopping.

A client has {REQUEST_S} seconds from its connection to the end of the response. If there are
more than {CONNECTIONS_MAX} connections, an old one is closed. At most {REQUESTS_MAX} scrapes are
answered at once, another one gets 503; `/healthz` is answered in any case.

```yaml
scrape_configs:
  - job_name: kvstream
    static_configs:
      - targets: ["127.0.0.1:9121"]
```

[grafana.json](grafana.json) is a dashboard for Grafana: import it, and choose your Prometheus.

Counters start at 0 with the server; CONFIG RESETSTAT resets those of commands, errors, clients
and bytes. Streams, groups and RocksDB are sampled when a scrape finds a sample older than
{SAMPLE_S} seconds. Sampling holds the store for about a millisecond at a time. The oldest
streams have metrics, as many as `--metrics-streams`, with {GROUPS_MAX} groups each; the metrics
`_left_out` count the others. In names, bytes that are not UTF-8 are written `\\xff`, and
backslashes are doubled; a long name is cut and gets a hash appended.
"""

_PROCESS = """
## Process

prometheus-client adds metrics of its own: `process_cpu_seconds_total`,
`process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_open_fds`,
`process_max_fds`, `process_start_time_seconds`, `python_gc_*` and `python_info`."""


ALERTS = {
    "Writes are refused": 'kvstream_store_state{state="sound"} == 0',
    "Entries are not acknowledged": "kvstream_group_oldest_pending_age_seconds > 600",
    "A group falls behind": (
        "deriv((kvstream_group_lag + kvstream_group_nacked)[15m:]) > 0 "
        "and kvstream_group_lag + kvstream_group_nacked > 10000"
    ),
    "A job runs for too long": "sum by (db, queue, task) (kvstream_jobs_late) > 0",
    "Jobs hang beyond their timeout": "kvstream_jobs_hanging > 0",
    "A worker is lost": 'kvstream_workers{state="lost"} > 0',
    "The event loop is delayed": (
        "histogram_quantile(0.99, sum by (le, instance) "
        "(rate(kvstream_loop_gap_seconds_bucket[5m]))) > 0.02"
    ),
    "The disk is slow": (
        "rate(kvstream_fsync_seconds_sum[5m]) / rate(kvstream_fsync_seconds_count[5m]) > 0.1"
    ),
    "Compaction cannot keep up": "kvstream_rocksdb_write_stopped == 1",
    "No checkpoint for a day": "time() - kvstream_last_save_timestamp_seconds > 86400",
    "The archive is behind": "kvstream_archive_lag_seconds > 60",
    "A replica is behind": "kvstream_replication_lag_seconds > 10",
    "A replica has no link": "kvstream_replication_link_up == 0",
    "A primary has no replica": (
        'kvstream_replication_role{role="primary"} == 1 and kvstream_replication_replicas == 0'
    ),
    "A primary takes no writes": 'kvstream_replication_state{state=~"fenced|suspect"} == 1',
    "Another server has the archive": 'kvstream_archive_state{state="taken"} == 1',
    "Streams without metrics": "kvstream_streams_left_out > 0",
}
"""Examples of alerts, by what they mean."""


def reference() -> Iterator[str]:
    """Yield the parts of docs/metrics.md."""
    yield INTRODUCTION
    for title, metrics in SECTIONS.items():
        yield f"## {title}\n\n| metric | kind | labels | meaning |\n| --- | --- | --- | --- |"
        for metric in metrics:
            labels = ", ".join(f"`{name}`" for name in metric.labels)
            yield f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.meaning} |"
        yield ""
    yield _PROCESS.strip()
    yield "\n## Alerts\n\nThese are examples: adapt the bounds.\n"
    yield "| when | expression |\n| --- | --- |"
    yield from (f"| {title} | `{expression}` |" for title, expression in ALERTS.items())


if __name__ == "__main__":
    print("\n".join(reference()))
