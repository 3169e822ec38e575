"""LATENCY: latency spikes by event, and histograms by command."""

import time
from collections.abc import Iterable

from kvstream.commands.args import Argv, text
from kvstream.commands.command import OPERATE, Container, Family
from kvstream.commands.replies import Map, Reply, Verbatim
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import server_of
from kvstream.server.stats import Event

COMMANDS = Family("server")
COMMANDS.add_help("latency", since="2.8.13")
_TIPS = "nondeterministic_output request_policy:all_nodes response_policy:special"
_ROWS = 4
"""Rows of a graph."""
_AGES = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_ADVICE = {
    "command": "SLOWLOG GET shows what was asked. Long reads, large transactions and deep MULTI "
    "are the usual reasons.",
    "fast-command": "Such commands wait for nothing: the machine, or the lock of the interpreter, "
    "had no time for this process.",
    "aof-write": "The disk took long to take writes, or RocksDB had too much to compact: see its "
    "LOG, and a quicker disk.",
    "aof-fsync-always": "Everybody waits for these fsyncs: a quicker disk, or durability everysec, "
    "which acknowledges before them.",
}


@COMMANDS.command("latency|latest", "", OPERATE, since="2.8.13", tips=_TIPS)
def latency_latest(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the last spike of each event and its maximum: Unix time and milliseconds.

    The events are `command`, `fast-command`, `aof-write` (a write to RocksDB) and
    `aof-fsync-always` (an fsync that clients wait for).
    """
    return [
        [name.encode(), *event.samples[-1], event.longest_ms]
        for name, event in list(server_of(client).latency.events.items())
    ]


@COMMANDS.command("latency|history", "event", OPERATE, since="2.8.13", tips=_TIPS)
def latency_history(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the spikes of an event, oldest first: Unix time and milliseconds."""
    event = server_of(client).latency.events.get(text(argv[2]).lower(), Event())
    return [[*sample] for sample in list(event.samples)]


@COMMANDS.command(
    *("latency|reset", "[event [event ...]]", OPERATE),
    since="2.8.13",
    tips="request_policy:all_nodes response_policy:agg_sum",
)
def latency_reset(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Forget all events, or the given ones; return how many there were."""
    return server_of(client).latency.reset({text(name).lower() for name in argv[2:]})


@COMMANDS.command("latency|graph", "event", OPERATE, since="2.8.13", tips=_TIPS)
def latency_graph(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Draw the spikes of an event, each with its age under it."""
    name = text(argv[2])
    event = server_of(client).latency.events.get(name.lower())
    if event is None:
        raise RequestError(f"No samples available for event '{name}'")
    now, samples = int(time.time()), list(event.samples)  # other threads add some
    heights = [ms for _, ms in samples]
    low, high = min(heights), max(heights)
    span = max(high - low, 1)
    columns = ["#" * (1 + (ms - low) * (_ROWS - 1) // span) for ms in heights]
    bars = ["".join(_at(column, row) for column in columns) for row in range(_ROWS - 1, -1, -1)]
    ages = [_age(now - at) for at, _ in samples]
    labels = ["".join(_at(age, row) for age in ages) for row in range(max(map(len, ages)))]
    head = f"{name.lower()} - high {high} ms, low {low} ms (all time high {event.longest_ms} ms)"
    return Verbatim("\n".join([head, "-" * 80, *bars, "", *labels, ""]))


def _at(column: str, row: int) -> str:
    return column[row] if row < len(column) else " "


def _age(seconds: int) -> str:
    for unit, letter in _AGES:
        if seconds >= unit:
            return f"{seconds // unit}{letter}"
    return "0s"


@COMMANDS.command(
    *("latency|histogram", "[command [command ...]]", OPERATE),
    since="7.0.0",
    tips=_TIPS,
)
def latency_histogram(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the cumulative histogram of the latencies of commands, in microseconds.

    Here and in INFO latencystats the time of a command excludes the commit, which it shares with
    others. XADDs that ran together count with their mean time. `latency-tracking no` hides them.
    """
    rows = server_of(client).statistics.commands
    names = _resolve_names(client, argv[2:]) if len(argv) > 2 else sorted(rows)
    rows_shown: list[tuple[Reply, Reply]] = []
    for name in names:
        if name in rows and rows[name].durations.calls:
            times = rows[name].durations
            bounds = Map([(bound, count) for bound, count in times.histogram()])
            shown = Map([(b"calls", times.calls), (b"histogram_usec", bounds)])
            rows_shown.append((name.encode(), shown))
    return Map(rows_shown)


def _resolve_names(client: Client, words: Iterable[bytes]) -> list[str]:
    """Return the names of the commands, containers replaced by their subcommands."""
    names: list[str] = []
    for word in words:
        command = server_of(client).commands.get(word.lower())
        if isinstance(command, Container):
            names += [row.name for row in command.subcommands.values()]
            names += [command.alone.name] if command.alone is not None else []
        else:
            names.append(text(word).lower())
    return names


@COMMANDS.command("latency|doctor", "", OPERATE, since="2.8.13", tips=_TIPS)
def latency_doctor(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return a report on the spikes and their possible causes."""
    latency = server_of(client).latency
    if not latency.events:
        nothing = "Nothing has taken long."
        off = (
            "What takes long is not noted: CONFIG SET latency-monitor-threshold <milliseconds> "
            "begins with it."
        )
        return Verbatim((nothing if latency.threshold_ms else off) + "\n")
    lines = []
    for name, event in list(latency.events.items()):
        times = [ms for _, ms in list(event.samples)]
        mean = sum(times) / len(times)
        lines.append(
            f"{name}: {len(times)} spikes, {mean:.0f} ms on the average, the longest "
            f"{event.longest_ms} ms. {_ADVICE.get(name, '')}"
        )
    return Verbatim("".join(line + "\n" for line in lines))
