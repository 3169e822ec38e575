"""Writes docs/metrics.md: ``python -m kvstream.server.metrics.reference > docs/metrics.md``.

All is taken from the table of metrics; a test keeps the file current.
"""

from collections.abc import Iterator

from kvstream.server.metrics.endpoint import CONNECTIONS_MAX, REQUEST_S, REQUESTS_MAX
from kvstream.server.metrics.sample import GROUPS_MAX, SAMPLE_S
from kvstream.server.metrics.table import SECTIONS

INTRODUCTION = f"""\
# Metrics

<!-- Written by `python -m kvstream.server.metrics.reference > docs/metrics.md`; do not edit. -->

`kvstream serve --metrics-port 9121` serves two paths on a port of their own, at `--metrics-host`,
by default 127.0.0.1. Nobody is asked for a password there: the names of streams and groups can be
read by whoever reaches the port.

- `/metrics`: what is listed here, for Prometheus.
- `/healthz`: 200 while the store takes writes; 503 with the reason when it does not, as when the
  disk is full, a write has failed, the loop hangs, or the server is stopping.

A client has {REQUEST_S:.0f} seconds from its connection to the end of its answer, however it spends
them. Where there are more than {CONNECTIONS_MAX} connections an old one is closed. No more than
{REQUESTS_MAX} scrapes are answered at once, the next with 503; `/healthz` is answered beside them,
whatever others ask or leave unread.

```yaml
scrape_configs:
  - job_name: kvstream
    static_configs:
      - targets: ["127.0.0.1:9121"]
```

[grafana.json](grafana.json) is a board for Grafana: import it, and choose your Prometheus.

Counters begin at 0 with the server; CONFIG RESETSTAT begins anew with those of commands, errors,
clients and bytes. Streams, groups and RocksDB are looked at when somebody asks and the last look is
{SAMPLE_S:.0f} seconds old, in slices of a millisecond, so that no client waits for it. Shown are as
many streams as `--metrics-streams` says, those that were made first, with {GROUPS_MAX} groups each;
the metrics `_left_out` say what is missing. In names, bytes that are no UTF-8 stand as `\\xff` and
backslashes doubled; a long name is cut, and told apart by a hash.
"""

_PROCESS = """
## Process

Beside these there are the metrics of prometheus-client itself: `process_cpu_seconds_total`,
`process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_open_fds`,
`process_max_fds`, `process_start_time_seconds`, `python_gc_*` and `python_info`."""


ALERTS = {
    "Writes are refused": 'kvstream_store_state{state="sound"} == 0',
    "Nobody acknowledges": "kvstream_group_oldest_pending_age_seconds > 600",
    "A group falls behind": "deriv(kvstream_group_lag[15m]) > 0 and kvstream_group_lag > 10000",
    "The loop is held": (
        "histogram_quantile(0.99, sum by (le, instance) "
        "(rate(kvstream_loop_gap_seconds_bucket[5m]))) > 0.02"
    ),
    "The disk is slow": (
        "rate(kvstream_fsync_seconds_sum[5m]) / rate(kvstream_fsync_seconds_count[5m]) > 0.1"
    ),
    "Compaction cannot keep up": "kvstream_rocksdb_write_stopped == 1",
    "No checkpoint for a day": "time() - kvstream_last_save_timestamp_seconds > 86400",
    "Streams that nobody watches": "kvstream_streams_left_out > 0",
}
"""What an operator may want to be told of; the bounds are examples."""


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
    yield "\n## Alerts\n\nExamples; the bounds are yours to choose.\n"
    yield "| when | expression |\n| --- | --- |"
    yield from (f"| {title} | `{expression}` |" for title, expression in ALERTS.items())


if __name__ == "__main__":
    print("\n".join(reference()))
