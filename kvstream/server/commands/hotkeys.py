"""HOTKEYS: start, stop and show the tracking of hot keys."""

from kvstream.commands.args import I32_MAX, Argv, integer, syntax_error
from kvstream.commands.command import Family, flags
from kvstream.commands.replies import OK, Map, Reply
from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.server.hotkeys import HotKeys
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import server_of

COMMANDS = Family("server")
COMMANDS.add_help("hotkeys", since="8.6.1")
_FLAGS = flags("admin noscript local")
_TIPS = "request_policy:special"
_ALL_SLOTS = [[0, 16383]]
_METRICS = (b"CPU", b"NET")
_LIMITS = {
    b"COUNT": ("count", 64, "COUNT must be between 1 and 64"),
    b"DURATION": ("seconds", 1_000_000, "DURATION must be between 1 and 1000000"),
    b"SAMPLE": ("ratio", I32_MAX, "SAMPLE ratio must be positive"),
}
"""Options: their names in HotKeys, their greatest values, and the errors beyond these."""


@COMMANDS.command(
    "hotkeys|start",
    "METRICS count [CPU] [NET] [COUNT k] [DURATION seconds] [SAMPLE ratio]",
    _FLAGS,
    since="8.6.0",
    tips=_TIPS,
    arity=-2,
)
def hotkeys_start(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Start to track which keys take most time and most bytes of the network.

    METRICS: How many metrics follow.
    CPU: The time of the calls of commands.
    NET: The bytes of requests and replies.
    COUNT: Show so many keys; 10 by default.
    DURATION: Stop by itself after this time.
    SAMPLE: Count one call of so many, by chance.

    Meanwhile short commands take about twice as long. Redis estimates the sums. kvstream counts the
    sums of at least 10,000 keys, and drops the smallest ones of more. SLOTS is for clusters.
    """
    recorder = server_of(client).recorder
    if recorder.counts_hot_keys:
        raise RequestError("hotkey tracking session already in progress")
    if len(argv) < 4 or argv[2].upper() != b"METRICS":
        raise InvalidArgument("METRICS parameter is required")
    count = _within(argv[3], 2, "METRICS count must be > 0 and <= 2")
    named = _metrics(argv[4 : 4 + count], count)
    limits = _options(argv[4 + count :])
    recorder.hot_keys = HotKeys(cpu=b"CPU" in named, net=b"NET" in named, **limits)
    return OK


def _metrics(words: Argv, count: int) -> list[bytes]:
    """Return the metrics that are known; other ones are for newer servers."""
    named = [word.upper() for word in words]
    for metric in _METRICS:
        if named.count(metric) > 1:
            raise InvalidArgument(f"METRICS {metric.decode()} defined more than once!")
    if len(words) < count:
        raise InvalidArgument("METRICS count does not match number of metric types provided")
    if not set(named) & set(_METRICS):
        raise InvalidArgument("METRICS no valid metrics passed. Supported: CPU|NET")
    return named


def _options(words: Argv) -> dict[str, int]:
    limits: dict[str, int] = {}
    for at in range(0, len(words), 2):
        word = words[at].upper()
        if word == b"SLOTS" and at + 1 < len(words):
            raise InvalidArgument("SLOTS parameter cannot be used in non-cluster mode")
        if word not in _LIMITS or at + 1 == len(words):
            raise syntax_error()
        name, most, message = _LIMITS[word]
        limits[name] = _within(words[at + 1], most, message)
    return limits


def _within(raw: bytes, most: int, message: str) -> int:
    number = integer(raw, message)
    if not 1 <= number <= most:
        raise InvalidArgument(message)
    return number


@COMMANDS.command("hotkeys|stop", "", _FLAGS, since="8.6.0", tips=_TIPS)
def hotkeys_stop(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Stop the tracking and keep what was found; null if it does not run."""
    hot = server_of(client).recorder.hot_keys
    if hot is None or not hot.is_active:
        return None
    hot.stop()
    return OK


@COMMANDS.command(
    *("hotkeys|get", "", _FLAGS),
    since="8.6.0",
    tips=f"nondeterministic_output {_TIPS} response_policy:special",
)
def hotkeys_get(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the results of the current or last tracking; null if there was none.

    The result is an array of one map, since clusters of Redis have a map for each node. The hottest
    key comes first; microseconds or bytes follow each key.
    """
    hot = server_of(client).recorder.hot_keys
    if hot is None:
        return None
    fields: dict[str, Reply] = {
        "tracking-active": int(hot.is_active),
        "sample-ratio": hot.ratio,
        "selected-slots": _ALL_SLOTS,
        "all-commands-all-slots-us": int(hot.seconds * 1_000_000),
        "net-bytes-all-commands-all-slots": hot.bytes,
        "collection-start-time-unix-ms": hot.start_ms,
        "collection-duration-ms": hot.duration_ms,
    }
    if hot.cpu is not None:
        fields["total-cpu-time-user-ms"], fields["total-cpu-time-sys-ms"] = hot.processor_ms()
    if hot.net is not None:
        fields["total-net-bytes"] = int(hot.net.all)
    if hot.cpu is not None:
        fields["by-cpu-time-us"] = hot.list_largest(hot.cpu, 1_000_000)
    if hot.net is not None:
        fields["by-net-bytes"] = hot.list_largest(hot.net)
    return [Map([(name.encode(), value) for name, value in fields.items()])]


@COMMANDS.command("hotkeys|reset", "", _FLAGS, since="8.6.0", tips=_TIPS)
def hotkeys_reset(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Forget the results of the last tracking; an error while it runs."""
    recorder = server_of(client).recorder
    if recorder.counts_hot_keys:
        raise RequestError("hotkey tracking session in progress, stop tracking first")
    recorder.hot_keys = None
    return OK
