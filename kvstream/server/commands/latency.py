"""LATENCY: when something took long, and how long the calls of each command took."""

import time
from collections.abc import Iterable

from kvstream.commands.args import Argv, text
from kvstream.commands.command import Container
from kvstream.commands.replies import Map, Reply, Verbatim
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn
from kvstream.server.commands.admin import help_of, server_of
from kvstream.server.runtime.client import Client
from kvstream.server.stats import Event

_ROWS = 4
"""Of a graph, from nothing to the longest."""
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


def latency_latest(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer each event with its last spike, Unix time and milliseconds, and its longest."""
    return [
        [name.encode(), *event.samples[-1], event.longest_ms]
        for name, event in list(server_of(client).latency.events.items())
    ]


def latency_history(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the spikes of an event, oldest first: Unix time and milliseconds."""
    event = server_of(client).latency.events.get(text(argv[2]).lower(), Event())
    return [list(sample) for sample in event.samples]


def latency_reset(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Forget events, all of them unless some are named, and answer how many there were."""
    return server_of(client).latency.reset({text(name).lower() for name in argv[2:]})


def latency_graph(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Draw the spikes of an event, each with its age under it."""
    name = text(argv[2])
    event = server_of(client).latency.events.get(name.lower())
    if event is None:
        raise RequestError(f"No samples available for event '{name}'")
    now, heights = int(time.time()), [ms for _, ms in event.samples]
    low, high = min(heights), max(heights)
    span = max(high - low, 1)
    columns = ["#" * (1 + (ms - low) * (_ROWS - 1) // span) for _, ms in event.samples]
    bars = ["".join(_at(column, row) for column in columns) for row in range(_ROWS - 1, -1, -1)]
    ages = [_age(now - at) for at, _ in event.samples]
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


def latency_histogram(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer how many calls of commands took how many microseconds at the most, since the start."""
    rows = server_of(client).statistics.commands
    names = _named(client, argv[2:]) if len(argv) > 2 else sorted(rows)
    told: list[tuple[Reply, Reply]] = []
    for name in names:
        if name in rows and rows[name].durations.calls:
            times = rows[name].durations
            bounds = Map([(bound, count) for bound, count in times.histogram()])
            shown = Map([(b"calls", times.calls), (b"histogram_usec", bounds)])
            told.append((name.encode(), shown))
    return Map(told)


def _named(client: Client, words: Iterable[bytes]) -> list[str]:
    """Return the commands that are meant, those of containers one by one."""
    names: list[str] = []
    for word in words:
        found = server_of(client).commands.get(word.lower())
        if isinstance(found, Container):
            names += [row.name for row in found.subcommands.values()]
            names += [found.alone.name] if found.alone is not None else []
        else:
            names.append(text(word).lower())
    return names


def latency_doctor(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Say what took long, and what that may come from."""
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
        times = [ms for _, ms in event.samples]
        mean = sum(times) / len(times)
        lines.append(
            f"{name}: {len(times)} spikes, {mean:.0f} ms on the average, the longest "
            f"{event.longest_ms} ms. {_ADVICE.get(name, '')}"
        )
    return Verbatim("".join(line + "\n" for line in lines))


latency_help = help_of(
    "LATENCY",
    ("DOCTOR", "Say what took long, and what that may come from."),
    ("GRAPH <event>", "Draw the spikes of an event."),
    ("HISTOGRAM [<command> ...]", "Show how many calls of commands took how long at the most."),
    ("HISTORY <event>", "Show the spikes of an event: Unix time and milliseconds."),
    ("LATEST", "Show the last and the longest spike of each event."),
    ("RESET [<event> ...]", "Forget events, all of them unless some are named."),
)
