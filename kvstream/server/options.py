"""The options of a server with their defaults and reasons, and the TOML file they come from.

CONFIG SET changes the executor's own copy; CONFIG REWRITE writes the changes into the file. Options
of ``kvstream serve`` stand at the top of the file under the option's name, all other settings in
the table ``[config]`` under their name in CONFIG. Unchanged lines stay as they are, comments
included.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstream.errors import RequestError
from kvstream.logs import LEVEL
from kvstream.resp.requests import BULK_MAX, QUERY_MAX
from kvstream.storage import files
from kvstream.types.options import (
    MAXCLIENTS,
    MEGABYTE,
    METRICS_STREAMS,
    OUTPUT_MAX,
    SHUTDOWN_TIMEOUT_S,
    STREAM_ENTRY_MAX_BYTES,
)

TABLE = "config"
_HEADER = re.compile(r"\s*\[")
_OWN_HEADER = re.compile(rf"\s*\[\s*{TABLE}\s*\]\s*(#.*)?")
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^#"'\s]+)"""
_LINE = r"""(?P<head>\s*["']?%s["']?\s*=\s*)%s(?P<tail>\s*(#.*)?)"""
"""A setting on one line; a setting on several lines is left alone."""


class RewriteFailed(RequestError):
    """The file was not rewritten, and is unchanged."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file of settings."""

    path: Path
    options: frozenset[str] = frozenset()
    """The settings at the top of the file."""
    settings: Mapping[bytes, bytes] = field(default_factory=dict)
    """The other settings, as CONFIG SET takes them."""

    def rewrite(self, changed: Mapping[str, str]) -> None:
        """Write changed settings into the file, atomically."""
        path = self.path.resolve()
        try:
            mode = path.stat().st_mode & 0o777
            text = rewrite_text(path.read_text(), changed, self.options)
            files.write(path, text.encode())
            path.chmod(mode)
        except OSError as error:
            raise RewriteFailed(f"Rewriting config file: {error.strerror}") from None
        except UnicodeError:
            raise RewriteFailed("Rewriting config file: not UTF-8") from None


def rewrite_text(text: str, changed: Mapping[str, str], options: frozenset[str]) -> str:
    """Return a TOML text with changed settings; RewriteFailed if that is not possible."""
    lines = text.splitlines()
    wanted: dict[str, Any] = _parse(text)
    for name, value in changed.items():
        at_top = name in options
        table = wanted if at_top else wanted.setdefault(TABLE, {})
        if not isinstance(table, dict):
            raise RewriteFailed(f"Rewriting config file: {TABLE} is no table")
        table[name] = _guess_type(value) if at_top else value
        _put(lines, name, _write_value(table[name]), at_top)
    result = "\n".join(lines) + "\n"
    if _parse(result) != wanted:
        raise RewriteFailed("Rewriting config file: its settings are not one a line")
    return result


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RewriteFailed(f"Rewriting config file: {error}") from None


def _guess_type(value: str) -> Any:
    """Return a value as options are written: numbers and booleans without quotes."""
    if value in ("yes", "no"):
        return value == "yes"
    return int(value) if re.fullmatch("-?[0-9]{1,18}", value) else value


def _write_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _put(lines: list[str], name: str, value: str, at_top: bool) -> None:
    """Set a value on the setting's line, or on a new one."""
    start, end = _section(lines, at_top)
    pattern = re.compile(_LINE % (re.escape(name), _VALUE))
    for at in range(start, end):
        match = pattern.fullmatch(lines[at])
        if match is not None:
            lines[at] = match["head"] + value + match["tail"]
            return
    while end > start and not lines[end - 1].strip():
        end -= 1
    lines.insert(end, f"{name} = {value}")


def _section(lines: list[str], at_top: bool) -> tuple[int, int]:
    """Return the range of the lines at the top, or of the table, which is created if missing."""
    headers = [at for at, line in enumerate(lines) if _HEADER.match(line)]
    if at_top:
        return 0, headers[0] if headers else len(lines)
    for place, at in enumerate(headers):
        if _OWN_HEADER.fullmatch(lines[at]):
            return at + 1, headers[place + 1] if place + 1 < len(headers) else len(lines)
    lines += ["", f"[{TABLE}]"]
    return len(lines), len(lines)


CLIENTS_MEMORY_MAX = 1024 * MEGABYTE
"""Bytes that the unfinished requests and unread replies of all clients may take: as much as one
client may send, and four times what one may leave unread. Redis's ``maxmemory-clients``, which is 0
there."""
SCRIPT_MEMORY = 256 * MEGABYTE
"""Bytes that scripts may take in Lua: four times the largest entry. Redis has no such limit: there
one script can take all memory."""
BUSY_REPLY_MS = 5000
"""Redis's ``busy-reply-threshold``: milliseconds after which other clients get BUSY while a script
runs."""
TCP_KEEPALIVE_S = 300
SLOWER_THAN_US = 10_000
SLOWLOG_LENGTH = 128
WORDS_MAX = 32
BYTES_MAX = 128
"""Words of a request that SLOWLOG keeps, and bytes of a word: Redis's defaults."""
TRACKED_KEYS_MAX = 1_000_000
ACLLOG_LENGTH = 128
AUTHENTICATION_S = 60
"""Seconds for a client to send its password, which people type, or its first request."""
HANDSHAKE_S = 10
"""Seconds for the TLS handshake, which is a few packets."""
CHECKPOINTS_KEPT = 2
HOT_MEMORY = 16 * MEGABYTE
"""About a hundred thousand entries of 100 bytes. More would duplicate RocksDB's cache."""


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """The limits on unread replies of a class of clients; 0: no limit."""

    hard: int = 0
    soft: int = 0
    """It is exceeded for at most ``seconds``."""
    seconds: int = 0


def _output_limits() -> dict[bytes, OutputLimit]:
    """Return Redis's limits, except that of normal clients."""
    return {
        b"normal": OutputLimit(OUTPUT_MAX),
        b"slave": OutputLimit(256 * MEGABYTE, 64 * MEGABYTE, 60),
        b"pubsub": OutputLimit(32 * MEGABYTE, 8 * MEGABYTE, 60),
    }


@dataclass(slots=True, kw_only=True)
class ServerOptions:
    """The options of a server; sizes in bytes, times in seconds."""

    host: str = "127.0.0.1"
    port: int = 6379
    """0: any free port, or none if there is a TLS port or a Unix socket."""
    unixsocket: Path | None = None
    """The path of a Unix socket for clients on this machine."""
    unixsocketperm: int = 0
    """Its permissions; 0: as the umask has them."""
    tls_port: int = 0
    """0: no TLS."""
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_key_file_pass: str = ""
    """The passphrase of an encrypted key."""
    tls_ca_cert_file: Path | None = None
    """The certificate authorities of clients."""
    tls_auth_clients: str = "yes"
    """Whether clients must have a certificate: yes, no, or optional."""
    tls_handshake_s: int = HANDSHAKE_S
    shutdown_timeout: int = SHUTDOWN_TIMEOUT_S
    output_max: int = OUTPUT_MAX
    """The hard limit of normal clients; 0: none."""
    output_limits: dict[bytes, OutputLimit] = field(default_factory=_output_limits)
    """By Redis's names of the classes: normal, slave, pubsub. No client here is a slave."""
    stream_entry_max_bytes: int = STREAM_ENTRY_MAX_BYTES
    """From BATCH_BYTES_MAX to ENTRY_BYTES_MAX; restored and loaded entries may be larger."""
    maxmemory_clients: int | bytes = CLIENTS_MEMORY_MAX
    """Bytes, or a percentage of ``maxmemory`` such as ``5%``; 0: no limit."""
    maxclients: int = MAXCLIENTS
    script_memory: int = SCRIPT_MEMORY
    busy_reply_ms: int = BUSY_REPLY_MS
    """0: a script is never interrupted."""
    timeout: int = 0
    """An idle client is disconnected after this time; 0: never."""
    authentication_s: int = AUTHENTICATION_S
    """A client that has not sent a required password, or whose first request arrives too slowly, is
    disconnected after this time; 0: never."""
    tcp_keepalive: int = TCP_KEEPALIVE_S
    requirepass: str = ""
    protected_mode: bool = True
    bulk_max: int = BULK_MAX
    query_max: int = QUERY_MAX
    hot_memory: int = HOT_MEMORY
    """Bytes of the cache of encoded entries; 0: no cache."""
    slower_than_us: int = SLOWER_THAN_US
    """Microseconds above which SLOWLOG records a command; negative: none, 0: all."""
    slowlog_length: int = SLOWLOG_LENGTH
    slowlog_words_max: int = WORDS_MAX
    slowlog_bytes_max: int = BYTES_MAX
    """Words of a command that SLOWLOG keeps, and bytes of each."""
    latency_threshold_ms: int = 0
    """Milliseconds above which LATENCY records an event; 0: none."""
    latency_tracking: bool = True
    """Whether INFO shows the call times of each command."""
    latency_percentiles: list[float] = field(default_factory=lambda: [50.0, 99.0, 99.9])
    tracked_keys_max: int = TRACKED_KEYS_MAX
    """Keys that are tracked for clients with caches; 0: no limit."""
    notify_keyspace_events: int = 0
    """The flags of ``notify-keyspace-events``, as bits of ``meta/events/keys.py``."""
    acllog_length: int = ACLLOG_LENGTH
    """Refusals kept by ACL LOG."""
    acl_pubsub_default: bytes = b"resetchannels"
    """The channels of new ACL users: resetchannels for none, or allchannels."""
    maxmemory: int = 0
    """Bytes of the process above which commands that add data are refused; 0: no limit."""
    save_points: list[tuple[int, int]] = field(default_factory=list)
    """Seconds since the last save and changes since: a save starts if both are reached."""
    checkpoint_dir: Path | None = None
    """The directory of checkpoints by SAVE and BGSAVE; None: they only make everything durable."""
    checkpoints_kept: int = CHECKPOINTS_KEPT
    """Older checkpoints are deleted after a new one is complete."""
    aclfile: Path | None = None
    enable_debug_command: str = "local"
    """Clients that may use DEBUG: no, yes, or local for those on this machine."""
    kept: dict[bytes, object] = field(default_factory=dict)
    """Settings without effect that differ from Redis's defaults."""
    changed: frozenset[bytes] = frozenset()
    """Settings that CONFIG SET has changed."""
    config_file: ConfigFile | None = None
    """The file of CONFIG REWRITE, and the settings that it gave at the start."""

    loglevel: str = LEVEL
    """The log level: debug, verbose, notice, warning or nothing."""
    logfile: Path | None = None
    """None: stderr."""
    log_format: str = "text"
    """text, or json for one object a line."""

    replicaof: tuple[str, int] | None = None
    """The host and port to follow, unless the store's role was set before."""

    metrics_port: int | None = None
    """The port for Prometheus; 0: any free port, None: no metrics."""
    metrics_host: str = "127.0.0.1"
    metrics_streams: int = METRICS_STREAMS

    def __post_init__(self) -> None:
        limits = dict(self.output_limits)
        if self.output_max != OUTPUT_MAX:
            limits[b"normal"] = OutputLimit(self.output_max)
        self.output_limits = limits

    @property
    def clients_memory_max(self) -> int:
        """The limit on memory of all clients in bytes; 0: none."""
        most = self.maxmemory_clients
        return most if isinstance(most, int) else self.maxmemory * int(most[:-1]) // 100
