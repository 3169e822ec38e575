"""How a store is served: every setting of the server, its default and the reason for it.

What CONFIG SET may change is changed in the executor's own copy.

The TOML file that a server was started with, and CONFIG REWRITE: its settings as they are now.

Settings that are options of ``kvstream serve`` stand at the top under the option's name, all others
in the table ``[config]`` under the name that CONFIG has for them. Whatever was not changed stays
as it was written, comments included.
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
from kvstream.storage import files

TABLE = "config"
_HEADER = re.compile(r"\s*\[")
_OWN_HEADER = re.compile(rf"\s*\[\s*{TABLE}\s*\]\s*(#.*)?")
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^#"'\s]+)"""
_LINE = r"""(?P<head>\s*["']?%s["']?\s*=\s*)%s(?P<tail>\s*(#.*)?)"""
"""A setting of one line: whatever is written in several is not understood, and left alone."""


class RewriteFailed(RequestError):
    """The file was not rewritten, and is as it was."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file of settings."""

    path: Path
    options: frozenset[str] = frozenset()
    """The settings that stand at its top."""
    settings: Mapping[bytes, bytes] = field(default_factory=dict)
    """The others, as CONFIG SET would be given them."""

    def rewrite(self, changed: Mapping[str, str]) -> None:
        """Write the settings that have changed into the file, at once or not at all."""
        path = self.path.resolve()
        try:
            mode = path.stat().st_mode & 0o777
            text = rewritten(path.read_text(), changed, self.options)
            files.write(path, text.encode())
            path.chmod(mode)
        except OSError as error:
            raise RewriteFailed(f"Rewriting config file: {error.strerror}") from None
        except UnicodeError:
            raise RewriteFailed("Rewriting config file: not UTF-8") from None


def rewritten(text: str, changed: Mapping[str, str], options: frozenset[str]) -> str:
    """Return a TOML text with settings changed; RewriteFailed where that goes beyond us."""
    lines = text.splitlines()
    wanted: dict[str, Any] = _parsed(text)
    for name, value in changed.items():
        at_top = name in options
        table = wanted if at_top else wanted.setdefault(TABLE, {})
        if not isinstance(table, dict):
            raise RewriteFailed(f"Rewriting config file: {TABLE} is no table")
        table[name] = _typed(value) if at_top else value
        _put(lines, name, _written(table[name]), at_top)
    result = "\n".join(lines) + "\n"
    if _parsed(result) != wanted:
        raise RewriteFailed("Rewriting config file: its settings are not one a line")
    return result


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RewriteFailed(f"Rewriting config file: {error}") from None


def _typed(value: str) -> Any:
    """Return a value as options are written: numbers and truths without quotes."""
    if value in ("yes", "no"):
        return value == "yes"
    return int(value) if re.fullmatch("-?[0-9]{1,18}", value) else value


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _put(lines: list[str], name: str, value: str, at_top: bool) -> None:
    """Give a setting its value, in the line that it has or in a new one."""
    start, end = _section(lines, at_top)
    pattern = re.compile(_LINE % (re.escape(name), _VALUE))
    for at in range(start, end):
        found = pattern.fullmatch(lines[at])
        if found is not None:
            lines[at] = found["head"] + value + found["tail"]
            return
    while end > start and not lines[end - 1].strip():
        end -= 1
    lines.insert(end, f"{name} = {value}")


def _section(lines: list[str], at_top: bool) -> tuple[int, int]:
    """Return where the lines of the top begin and end, or those of our table, which is made."""
    headers = [at for at, line in enumerate(lines) if _HEADER.match(line)]
    if at_top:
        return 0, headers[0] if headers else len(lines)
    for place, at in enumerate(headers):
        if _OWN_HEADER.fullmatch(lines[at]):
            return at + 1, headers[place + 1] if place + 1 < len(headers) else len(lines)
    lines += ["", f"[{TABLE}]"]
    return len(lines), len(lines)


MEGABYTE = 1 << 20

OUTPUT_MAX = 256 * MEGABYTE
"""Bytes of replies that wait for a client to read them; beyond that it is cut off. Redis has no
such limit for plain clients, so that one slow reader can take all of its memory."""
CLIENTS_MEMORY_MAX = 1024 * MEGABYTE
"""Bytes that all clients together may take by what they have sent and not read: as much as one may
send, and four times what one may leave unread. It is Redis's ``maxmemory-clients``, 0 there."""
MAXCLIENTS = 10_000
STREAM_ENTRY_MAX_BYTES = 64 * MEGABYTE
"""Bytes of an entry that XADD takes. To pack, log and keep one takes three times its size beside
what was sent, and the loop does nothing else meanwhile: some 4 ms a megabyte."""
BULK_MAX = 512 * MEGABYTE
"""Longest argument of a request: Redis's ``proto-max-bulk-len``."""
QUERY_MAX = 1024 * MEGABYTE
"""Bytes of unfinished requests of one client: Redis's ``client-query-buffer-limit``."""
TCP_KEEPALIVE_S = 300
SLOWER_THAN_US = 10_000
SLOWLOG_LENGTH = 128
TRACKED_KEYS_MAX = 1_000_000
ACLLOG_LENGTH = 128
AUTHENTICATION_S = 60
"""Time in which a client must have given its password, people type theirs, or its first request."""
HANDSHAKE_S = 10
"""Time for the handshake of TLS: it is a few packets."""
SHUTDOWN_TIMEOUT_S = 10
"""Redis's ``shutdown-timeout``: how long the clients of a server that stops may take to read."""
CHECKPOINTS_KEPT = 2
HOT_MEMORY = 16 * MEGABYTE
"""For a hundred thousand entries of 100 bytes: more are a part of what RocksDB's cache is for."""
METRICS_STREAMS = 200
"""Streams with metrics of their own: six time series each, and six for each of their groups."""


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """What may wait for clients of one class: at once, or for so many seconds; 0: no limit."""

    hard: int = 0
    soft: int = 0
    seconds: int = 0


def _output_limits() -> dict[bytes, OutputLimit]:
    """Return Redis's limits, but for the one of plain clients."""
    return {
        b"normal": OutputLimit(OUTPUT_MAX),
        b"slave": OutputLimit(256 * MEGABYTE, 64 * MEGABYTE, 60),
        b"pubsub": OutputLimit(32 * MEGABYTE, 8 * MEGABYTE, 60),
    }


@dataclass(slots=True, kw_only=True)
class ServerOptions:
    """How a store is served; sizes in bytes, times in seconds."""

    host: str = "127.0.0.1"
    port: int = 6379
    """0: any that is free or, where there is a port for TLS, none."""
    tls_port: int = 0
    """0: none."""
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_key_file_pass: str = ""
    """Of a key that is encrypted."""
    tls_ca_cert_file: Path | None = None
    """Whose certificates clients may have."""
    tls_auth_clients: str = "yes"
    """Whether clients must have a certificate: yes, no, or optional."""
    tls_handshake_s: int = HANDSHAKE_S
    shutdown_timeout: int = SHUTDOWN_TIMEOUT_S
    output_max: int = OUTPUT_MAX
    """The hard limit of plain clients; 0: none."""
    output_limits: dict[bytes, OutputLimit] = field(default_factory=_output_limits)
    """By Redis's names of the classes: normal, slave, pubsub; all clients here are of the first."""
    stream_entry_max_bytes: int = STREAM_ENTRY_MAX_BYTES
    """From BURST_BYTES_MAX to ENTRY_BYTES_MAX; what is restored or loaded may have more."""
    maxmemory_clients: int | bytes = CLIENTS_MEMORY_MAX
    """Bytes, or a share of ``maxmemory`` as ``5%``; 0: no limit."""
    maxclients: int = MAXCLIENTS
    timeout: int = 0
    """An idle client is closed after it; 0: never."""
    authentication_s: int = AUTHENTICATION_S
    """A client that needs a password and has not given it by then is closed, and one whose first
    request merely trickles in; 0: never."""
    tcp_keepalive: int = TCP_KEEPALIVE_S
    requirepass: str = ""
    protected_mode: bool = True
    bulk_max: int = BULK_MAX
    query_max: int = QUERY_MAX
    hot_memory: int = HOT_MEMORY
    """Bytes of entries shown lately that are kept as they were sent; 0: none."""
    slower_than_us: int = SLOWER_THAN_US
    """Microseconds from which on SLOWLOG keeps a command; negative: none, 0: every one."""
    slowlog_length: int = SLOWLOG_LENGTH
    latency_threshold_ms: int = 0
    """Milliseconds from which on LATENCY notes what took so long; 0: nothing."""
    latency_tracking: bool = True
    """Whether INFO tells how long the calls of each command took."""
    latency_percentiles: list[float] = field(default_factory=lambda: [50.0, 99.0, 99.9])
    tracked_keys_max: int = TRACKED_KEYS_MAX
    """Keys that are remembered for clients with caches; 0: no limit."""
    acllog_length: int = ACLLOG_LENGTH
    """Refusals that ACL LOG keeps."""
    maxmemory: int = 0
    """Bytes that the process may take before commands that add are refused; 0: no limit."""
    save_points: list[tuple[int, int]] = field(default_factory=list)
    """Seconds since the last save, and changes since: a save begins where both are reached."""
    checkpoint_dir: Path | None = None
    """Where SAVE and BGSAVE put checkpoints; None: they make all durable where it is."""
    checkpoints_kept: int = CHECKPOINTS_KEPT
    """Older ones are deleted when a new one is whole."""
    aclfile: Path | None = None
    enable_debug_command: str = "local"
    """Who may use DEBUG: no, yes, or local for clients on this machine."""
    kept: dict[bytes, object] = field(default_factory=dict)
    """Settings from which nothing follows, where they are not Redis's defaults."""
    changed: frozenset[bytes] = frozenset()
    """Settings that CONFIG SET has changed."""
    config_file: ConfigFile | None = None
    """What CONFIG REWRITE writes to, and settings that hold from the start."""

    loglevel: str = LEVEL
    """What is logged: debug, verbose, notice, warning, or nothing."""
    logfile: Path | None = None
    """None: stderr."""
    log_format: str = "text"
    """text, or json for one object a line."""

    metrics_port: int | None = None
    """Where Prometheus may ask; 0: any that is free, None: nothing is measured."""
    metrics_host: str = "127.0.0.1"
    metrics_streams: int = METRICS_STREAMS

    def __post_init__(self) -> None:
        limits = dict(self.output_limits)
        if self.output_max != OUTPUT_MAX:
            limits[b"normal"] = OutputLimit(self.output_max)
        self.output_limits = limits

    @property
    def clients_memory_max(self) -> int:
        """Bytes that all clients together may take; 0: as many as there are."""
        most = self.maxmemory_clients
        return most if isinstance(most, int) else self.maxmemory * int(most[:-1]) // 100
