"""The settings of CONFIG: how a value is parsed, its bounds, and the effect of a change.

A setting of Redis that does not apply here shows the true value and refuses any other.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kvstream.commands.args import I32_MAX, I64_MAX, integer, text
from kvstream.errors import InvalidArgument
from kvstream.logs import LEVELS
from kvstream.meta.events.keys import flags_of, letters_of
from kvstream.operations.images.dump import check_target
from kvstream.server.inert_settings import ALIASES, KEPT
from kvstream.server.options import OutputLimit
from kvstream.server.runtime.limits import clients_possible
from kvstream.server.setting_values import (
    Parse,
    count,
    memory,
    memory_or_share,
    memory_size,
    split,
    truth,
    within,
    word,
    words,
)
from kvstream.types.options import (
    ENTRY_BYTES_MAX,
    IDMP_DURATION_MAX_S,
    IDMP_MAXSIZE_MAX,
    MEGABYTE,
    Durability,
)

if TYPE_CHECKING:
    from kvstream.server.runtime.executor import Executor

U32_MAX = (1 << 32) - 1
_DECIMAL = re.compile(rb"[+-]?[0-9]{1,18}")
Read = Callable[["Executor"], bytes]
Apply = Callable[["Executor", object], None]


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """One setting of the server."""

    read: Read
    parse: Parse | None = None
    """Parses the argument, or raises InvalidArgument; None: the setting cannot change."""
    apply: Apply = lambda executor, value: None
    refusal: str = "can't set immutable config"
    """Why it cannot change."""


def _show(value: object) -> bytes:
    if isinstance(value, bool):
        return b"yes" if value else b"no"
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        return b" ".join(b"%g" % each for each in value)
    return str("" if value is None else value).encode("utf-8", "surrogateescape")


def _option(
    attribute: str,
    parse: Parse | None = None,
    then: Callable[["Executor"], None] = lambda executor: None,
    shown: Callable[[Any], bytes] = _show,
) -> ServerSetting:
    """Return a setting that is a field of ServerOptions; without ``parse`` it is read-only.

    ``then`` is called after a change; ``shown`` returns a value as CONFIG GET shows it.
    """

    def apply(executor: "Executor", value: object) -> None:
        setattr(executor.options, attribute, value)
        then(executor)

    return ServerSetting(lambda executor: shown(getattr(executor.options, attribute)), parse, apply)


def _any(raw: bytes) -> object:
    return raw.lower()


def _fixed_setting(
    value: bytes, reason: str = "it has no other value here", possible: Parse = _any
) -> ServerSetting:
    """Return a setting of Redis with a fixed value; setting it to that value is allowed.

    ``possible`` parses what Redis accepts: its errors come before ``reason``.
    """

    def parse(raw: bytes) -> object:
        if _show(possible(raw)) != value:
            raise InvalidArgument(reason)
        return value

    return ServerSetting(lambda executor: value, parse)


def _protected_setting(read: Read) -> ServerSetting:
    """Return a read-only setting that Redis protects from clients, too."""
    return ServerSetting(read, refusal="can't set protected config")


def _always(value: bytes) -> ServerSetting:
    return ServerSetting(lambda executor: value)


# --- kinds of values ----------------------------------------------------------------------------


def _password(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _percentiles(raw: bytes) -> list[float]:
    try:
        ranks = [float(rank.replace(b"_", b"x")) for rank in split(raw)]
    except ValueError:
        raise InvalidArgument("Invalid latency-tracking-info-percentiles parameters") from None
    if not all(0 <= rank <= 100 for rank in ranks):
        raise InvalidArgument(
            "latency-tracking-info-percentiles parameters should sit between [0.0,100.0]"
        )
    return ranks


_CLASSES = {b"normal": b"normal", b"slave": b"slave", b"replica": b"slave", b"pubsub": b"pubsub"}


def _output_limits(raw: bytes) -> dict[bytes, OutputLimit]:
    parts = split(raw)
    if len(parts) % 4:
        raise InvalidArgument("Wrong number of arguments in buffer limit configuration.")
    limits: dict[bytes, OutputLimit] = {}
    for at in range(0, len(parts), 4):
        name = _CLASSES.get(parts[at].lower())
        if name is None:
            raise InvalidArgument("Invalid client class specified in buffer limit configuration.")
        try:
            hard, soft = (memory_size(part) for part in parts[at + 1 : at + 3])
            seconds = within(integer(parts[at + 3]), 0, I32_MAX)
            limits[name] = OutputLimit(within(hard, 0, I64_MAX), within(soft, 0, I64_MAX), seconds)
        except InvalidArgument:
            raise InvalidArgument(
                "Error in hard, soft or soft_seconds setting in buffer limit configuration."
            ) from None
    return limits


def _save_points(raw: bytes) -> list[tuple[int, int]]:
    numbers = [int(part) if _DECIMAL.fullmatch(part) else -1 for part in split(raw)]
    points = list(zip(numbers[::2], numbers[1::2], strict=False))
    if len(numbers) % 2 or any(seconds < 1 or least < 0 for seconds, least in points):
        raise InvalidArgument("Invalid save parameters")
    return points


_LEVEL = word(b"everysec", b"always", b"no")


def _durability(raw: bytes) -> Durability:
    level = _LEVEL(raw)
    assert isinstance(level, bytes)
    return Durability(level.decode())


def _event_flags(raw: bytes) -> int:
    flags = flags_of(raw.decode("latin-1"))
    if flags is None:
        raise InvalidArgument("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")
    return flags


# --- effects of changes -----------------------------------------------------------------------


def _set_durability(executor: "Executor", value: object) -> None:
    """Set the level; a server that was started with ``archive`` has it for Redis's ``always``."""
    assert isinstance(value, Durability)
    engine = executor.engine
    is_archive = value is Durability.ALWAYS and engine.options.durability is Durability.ARCHIVE
    engine.set_durability(Durability.ARCHIVE if is_archive else value)


def _read_durability(executor: "Executor") -> bytes:
    """Return the level as one of Redis's."""
    level = executor.engine.durability
    return _show(Durability.ALWAYS if level is Durability.ARCHIVE else level)


def _set_output_limits(executor: "Executor", value: object) -> None:
    assert isinstance(value, dict)
    executor.options.output_limits |= value
    executor.limits.bound_replies()


def _read_output_limits(executor: "Executor") -> bytes:
    return b" ".join(
        b"%b %d %d %d" % (name, limit.hard, limit.soft, limit.seconds)
        for name, limit in executor.options.output_limits.items()
    )


def _require_password(executor: "Executor") -> None:
    executor.acl.require(executor.options.requirepass.encode("utf-8", "surrogateescape"))


def _set_reader_limits(executor: "Executor") -> None:
    for client in executor.clients.values():
        client.reader.bulk_max = executor.options.bulk_max
        client.reader.query_max = executor.options.query_max


def _watch_latency(executor: "Executor") -> None:
    executor.latency.watch(executor.engine, executor.options.latency_threshold_ms)
    executor.recorder.set_slow()


def _bound_hot(executor: "Executor") -> None:
    executor.engine.catalog.reply_cache.bound(executor.options.hot_memory)


def _resize_slowlog(executor: "Executor") -> None:
    executor.slowlog.resize(executor.options.slowlog_length)


def _bound_slowlog(executor: "Executor") -> None:
    options = executor.options
    executor.slowlog.words_max = options.slowlog_words_max
    executor.slowlog.bytes_max = options.slowlog_bytes_max


def _resize_acllog(executor: "Executor") -> None:
    executor.dispatcher.denials.resize(executor.options.acllog_length)


def _set_acl_default(executor: "Executor") -> None:
    executor.acl.all_channels = executor.options.acl_pubsub_default == b"allchannels"


def _checkpoint_dir(executor: "Executor") -> bytes:
    return _show(executor.options.checkpoint_dir or executor.engine.database.directory)


def _level(raw: bytes) -> str:
    name = text(raw).lower()
    if name not in LEVELS:
        raise InvalidArgument(
            "argument(s) must be one of the following: debug, verbose, notice, warning, nothing"
        )
    return name


def _set_level(executor: "Executor") -> None:
    executor.set_level(executor.options.loglevel)


def _max_clients(raw: bytes) -> object:
    wanted = count(1, U32_MAX)(raw)
    assert isinstance(wanted, int)
    possible = clients_possible(wanted)
    if possible < wanted:
        raise InvalidArgument(
            "The operating system is not able to handle the specified number of clients, try "
            f"with {possible}"
        )
    return wanted


def _read_source(executor: "Executor") -> bytes:
    source = executor.replication.source
    return b"" if source is None else _show(f"{source.host} {source.port}")


def _inert(name: bytes) -> ServerSetting:
    """Return a setting without effect."""
    default, parse = KEPT[name]

    def apply(executor: "Executor", value: object) -> None:
        executor.options.kept = {**executor.options.kept, name: value}
        executor.replication.refresh()

    return ServerSetting(
        lambda executor: _show(executor.options.kept.get(name, default)), parse, apply
    )


def _of_streams(attribute: str, parse: Parse) -> ServerSetting:
    """Return a setting of streams, an attribute of the catalog's limits."""

    def read(executor: "Executor") -> bytes:
        return _show(getattr(executor.engine.catalog.limits, attribute))

    def apply(executor: "Executor", value: object) -> None:
        setattr(executor.engine.catalog.limits, attribute, value)

    return ServerSetting(read, parse, apply)


def _dump_target(raw: bytes) -> str:
    return check_target(text(raw).lower())


STREAM_SETTINGS: dict[bytes, tuple[str, Parse]] = {
    b"dump-target": ("dump_target", _dump_target),
    b"stream-entry-max-bytes": ("entry_max_bytes", memory(MEGABYTE, ENTRY_BYTES_MAX)),
    b"stream-node-max-bytes": ("node_max_bytes", memory(0)),
    b"stream-node-max-entries": ("node_max_entries", count(0)),
    b"stream-idmp-duration": ("idmp_duration_s", count(1, IDMP_DURATION_MAX_S)),
    b"stream-idmp-maxsize": ("idmp_maxsize", count(1, IDMP_MAXSIZE_MAX)),
}
"""By name: the attribute of the catalog's limits, and the parser. 0 bytes or entries of a node: no
limit."""
_SHUTDOWN = words(b"default", b"save", b"nosave", b"now", b"force")
_NONE = dict.fromkeys(
    (
        *(b"aof-rewrite-cpulist", b"bgsave-cpulist", b"bio-cpulist", b"server-cpulist"),
        *(b"aof_rewrite_cpulist", b"bgsave_cpulist", b"bio_cpulist", b"server_cpulist"),
        *(b"pidfile", b"tls-protocols"),
        *(b"tls-ca-cert-dir", b"tls-dh-params-file", b"tls-ciphers", b"tls-ciphersuites"),
    ),
    b"",
)
_READ_ONLY = {
    **_NONE,
    **dict.fromkeys(
        (
            *(b"always-show-logo", b"disable-thp", b"enable-module-command"),
            *(b"enable-protected-configs", b"set-proc-title", b"syslog-enabled"),
            *(b"cluster-enabled", b"daemonize", b"supervised"),
        ),
        b"no",
    ),
    **dict.fromkeys((b"cluster-port", b"socket-mark-id"), b"0"),
    b"io-threads": b"1",
    b"tcp-backlog": b"511",
    b"appenddirname": b"appendonlydir",
    b"appendfilename": b"appendonly.aof",
    b"cluster-config-file": b"nodes.conf",
    b"rdbchecksum": b"yes",
    b"syslog-facility": b"local0",
    b"syslog-ident": b"redis",
}
"""Read-only settings of Redis, with the true values of this server."""

SERVER_SETTINGS: dict[bytes, ServerSetting] = {
    **{name: _of_streams(*setting) for name, setting in STREAM_SETTINGS.items()},
    **{name: _inert(name) for name in KEPT},
    **{name: _always(value) for name, value in _READ_ONLY.items()},
    b"aclfile": _option("aclfile"),
    b"acllog-max-len": _option("acllog_length", count(0), _resize_acllog),
    b"acl-pubsub-default": _option(
        "acl_pubsub_default", word(b"allchannels", b"resetchannels"), _set_acl_default
    ),
    b"activedefrag": _fixed_setting(b"no", possible=truth),
    b"appendfsync": ServerSetting(_read_durability, _durability, _set_durability),
    b"appendonly": _fixed_setting(b"yes", "every write goes into the log, always"),
    b"busy-reply-threshold": _option("busy_reply_ms", count(0)),
    b"bind": _option("host"),
    b"client-output-buffer-limit": ServerSetting(
        _read_output_limits, _output_limits, _set_output_limits
    ),
    b"client-query-buffer-limit": _option("query_max", memory(1 << 20), _set_reader_limits),
    b"databases": ServerSetting(lambda executor: b"%d" % executor.engine.options.databases),
    b"dbfilename": _protected_setting(lambda executor: b""),
    b"dir": _protected_setting(_checkpoint_dir),
    b"enable-debug-command": _option("enable_debug_command"),
    b"hot-entries-memory": _option("hot_memory", memory(0), _bound_hot),
    b"latency-monitor-threshold": _option("latency_threshold_ms", count(0), _watch_latency),
    b"latency-tracking": _option("latency_tracking", truth),
    b"lua-time-limit": _option("busy_reply_ms", count(0)),
    b"latency-tracking-info-percentiles": _option("latency_percentiles", _percentiles),
    b"log-format": _option("log_format"),
    b"logfile": _option("logfile"),
    b"loglevel": _option("loglevel", _level, _set_level),
    b"maxclients": _option("maxclients", _max_clients),
    b"maxmemory": _option(
        "maxmemory", memory(0), lambda executor: executor.limits.look_at_memory()
    ),
    b"maxmemory-clients": _option(
        "maxmemory_clients", memory_or_share, lambda executor: executor.limits.look_soon()
    ),
    b"metrics-host": _option("metrics_host"),
    b"metrics-port": _option("metrics_port", shown=lambda port: b"%d" % (port or 0)),
    b"metrics-streams": _option("metrics_streams"),
    b"replicaof": ServerSetting(_read_source),
    b"slaveof": ServerSetting(_read_source),
    b"replica-read-only": _fixed_setting(b"yes", "a replica takes no writes", truth),
    b"notify-keyspace-events": _option(
        *("notify_keyspace_events", _event_flags),
        lambda executor: executor.configure_notifications(),
        lambda flags: letters_of(flags).encode(),
    ),
    b"port": _option("port"),
    b"proto-max-bulk-len": _option("bulk_max", memory(1 << 20), _set_reader_limits),
    b"protected-mode": _option("protected_mode", truth),
    b"requirepass": _option("requirepass", _password, _require_password),
    b"save": _option(
        *("save_points", _save_points),
        shown=lambda points: b" ".join(b"%d %d" % point for point in points),
    ),
    b"shutdown-timeout": _option("shutdown_timeout", count(0, I32_MAX)),
    b"script-memory": _option("script_memory", memory(MEGABYTE)),
    b"slowlog-entry-max-argc": _option("slowlog_words_max", count(2, I32_MAX), _bound_slowlog),
    b"slowlog-entry-max-string-len": _option("slowlog_bytes_max", count(1), _bound_slowlog),
    b"slowlog-log-slower-than": _option(
        "slower_than_us", count(-1), lambda executor: executor.recorder.set_slow()
    ),
    b"slowlog-max-len": _option("slowlog_length", count(0), _resize_slowlog),
    b"oom-score-adj": _fixed_setting(
        b"no", "the system decides that", word(b"no", b"yes", b"relative", b"absolute")
    ),
    b"shutdown-on-sigint": _fixed_setting(b"default", possible=_SHUTDOWN),
    b"shutdown-on-sigterm": _fixed_setting(b"default", possible=_SHUTDOWN),
    b"tcp-keepalive": _option("tcp_keepalive", count(0, I32_MAX)),
    b"timeout": _option("timeout", count(0, I32_MAX)),
    b"tls-auth-clients": _option("tls_auth_clients"),
    b"tls-ca-cert-file": _option("tls_ca_cert_file"),
    b"tls-cert-file": _option("tls_cert_file"),
    b"tls-key-file": _option("tls_key_file"),
    b"tls-key-file-pass": _option("tls_key_file_pass"),
    b"tls-port": _option("tls_port"),
    b"tracking-table-max-keys": _option("tracked_keys_max", count(0)),
    b"unixsocket": _option("unixsocket"),
    b"unixsocketperm": _option("unixsocketperm", shown=lambda mode: b"%o" % mode),
}
"""By name."""
SERVER_SETTINGS |= {alias: SERVER_SETTINGS[name] for alias, name in ALIASES.items()}


def parse_value(name: bytes, raw: bytes) -> object:
    """Return the value that a setting would have; InvalidArgument with the reason if it cannot."""
    setting = SERVER_SETTINGS[name]
    if setting.parse is None:
        raise failure(name, setting.refusal)
    try:
        return setting.parse(raw)
    except InvalidArgument as error:
        raise failure(name, str(error)) from None


def failure(name: bytes, reason: str) -> InvalidArgument:
    """Return the error of a setting that cannot be set."""
    return InvalidArgument(
        f"CONFIG SET failed (possibly related to argument '{text(name)}') - {reason}"
    )


def change_of(executor: "Executor", name: bytes, raw: bytes) -> Callable[[], None]:
    """Return the function that gives a setting a parsed value."""
    return partial(SERVER_SETTINGS[name].apply, executor, parse_value(name, raw))
