"""Settings of Redis that are kept as they are set: of replication, other types, files and threads.

Tools and tests set them and read them back. Each has Redis's default and accepts what Redis
accepts. ``Replication`` reads those of replication where it needs them; the others have no effect.
"""

import re
from collections.abc import Mapping

from kvstream.commands.args import I32_MAX, I32_MIN
from kvstream.errors import InvalidArgument
from kvstream.server.options import ServerOptions
from kvstream.server.setting_values import (
    Parse,
    clamp,
    count,
    memory,
    split,
    truth,
    word,
)

_OOM_SCORE_MAX = 2000
_MB = 1 << 20
_BACKLOG_MIN = 16 << 10
"""Redis's smallest replication backlog."""
_BACKLOG_BYTES = 1 << 30
"""Bytes of logs that are kept for replicas: on disk, not in memory as in Redis, where it is 1 MB. A
replica that was away for longer than these take to write gets a copy."""


def _text(raw: bytes) -> object:
    return raw


def _text_like(pattern: bytes, reason: str) -> Parse:
    """Return a parser of text that matches a pattern as a whole."""
    compiled = re.compile(pattern)

    def parse(raw: bytes) -> object:
        if compiled.fullmatch(raw) is None:
            raise InvalidArgument(reason)
        return raw

    return parse


_natural = count(0)
_score = count(-_OOM_SCORE_MAX, _OOM_SCORE_MAX)


def _three(raw: bytes) -> object:
    words = split(raw)
    if len(words) != 3:
        raise InvalidArgument("wrong number of arguments")
    return b" ".join(str(_score(each)).encode() for each in words)


def _each(default: object, parse: Parse, names: str) -> dict[bytes, tuple[object, Parse]]:
    return {name.encode(): (default, parse) for name in names.split()}


_POLICIES = tuple(
    b"%b-%b" % (which, how)
    for which in (b"volatile", b"allkeys")
    for how in (b"lru", b"lfu", b"random", b"ttl", b"lrm")
    if (which, how) != (b"allkeys", b"ttl")
)

KEPT: Mapping[bytes, tuple[object, Parse]] = {
    **_each(
        True,
        truth,
        "activerehashing aof-load-truncated aof-rewrite-incremental-fsync aof-use-rdb-preamble "
        "close-on-replica-write crash-memcheck-enabled dynamic-hz lazyexpire-nested-arbitrary-keys "
        "rdb-save-incremental-fsync repl-diskless-sync "
        "rdbcompression replica-ignore-maxmemory replica-read-only replica-serve-stale-data "
        "cluster-allow-pubsubshard-when-down cluster-allow-replica-migration "
        "cluster-require-full-coverage crash-log-enabled jemalloc-bg-thread replica-announced "
        "stop-writes-on-bgsave-error",
    ),
    **_each(
        False,
        truth,
        "aof-timestamp-enabled lazyfree-lazy-eviction lazyfree-lazy-expire "
        "lazyfree-lazy-server-del lazyfree-lazy-user-del lazyfree-lazy-user-flush "
        "no-appendfsync-on-rewrite rdb-del-sync-files "
        "cluster-allow-reads-when-down cluster-replica-no-failover cluster-slot-stats-enabled "
        "hide-user-data-from-log "
        "tls-replication "
        "key-memory-histograms repl-disable-tcp-nodelay replica-ignore-disk-write-errors "
        "replica-lazy-flush",
    ),
    **_each(0, count(-I32_MAX, I32_MAX), "key-load-delay rdb-key-save-delay"),
    **_each(
        0,
        count(0, I32_MAX),
        "list-compress-depth repl-diskless-sync-max-replicas",
    ),
    **_each(128, _natural, "set-max-listpack-entries zset-max-listpack-entries"),
    **_each(64, _natural, "set-max-listpack-value"),
    **_each(64, memory(0), "hash-max-listpack-value zset-max-listpack-value"),
    **_each(512, _natural, "hash-max-listpack-entries set-max-intset-entries"),
    **_each(
        10,
        count(0, I32_MAX),
        "cluster-replica-validity-factor lfu-log-factor min-replicas-max-lag",
    ),
    **_each(0, count(0, I32_MAX), "min-replicas-to-write"),
    **_each(
        0,
        count(0, 65535),
        "cluster-announce-bus-port cluster-announce-port cluster-announce-tls-port "
        "replica-announce-port",
    ),
    **_each(
        b"",
        _text,
        "bind-source-addr cluster-announce-ip ignore-warnings locale-collate replica-announce-ip",
    ),
    b"active-defrag-cycle-max": (25, count(1, 99)),
    b"active-defrag-cycle-min": (1, count(1, 99)),
    b"active-defrag-ignore-bytes": (100 * _MB, memory(1)),
    b"active-defrag-max-scan-fields": (1000, count(1)),
    b"active-defrag-threshold-lower": (10, count(0, 1000)),
    b"active-defrag-threshold-upper": (100, count(0, 1000)),
    b"aof-load-corrupt-tail-max-size": (0, count(0)),
    b"cluster-announce-hostname": (
        b"",
        _text_like(
            rb"[0-9A-Za-z.-]*",
            "Hostnames may only contain alphanumeric characters, hyphens or dots",
        ),
    ),
    b"cluster-announce-human-nodename": (
        b"",
        _text_like(
            rb"[^!#$%&()*+:;<>?@\[\]^{|}~]*",
            "Announced human node name contained invalid character",
        ),
    ),
    b"cluster-compatibility-sample-ratio": (0, count(0, 100)),
    b"cluster-slot-migration-handoff-max-lag-bytes": (_MB, memory(0)),
    b"cluster-slot-migration-write-pause-timeout": (10_000, count(0)),
    b"oom-score-adj-values": (b"0 200 800", _three),
    b"cluster-link-sendbuf-limit": (0, memory(0)),
    b"cluster-migration-barrier": (1, count(0, I32_MAX)),
    b"cluster-node-timeout": (15000, count(0)),
    b"cluster-preferred-endpoint-type": (
        b"ip",
        word(b"ip", b"hostname", b"unknown-endpoint"),
    ),
    b"active-expire-effort": (1, count(1, 10)),
    b"auto-aof-rewrite-min-size": (64 * _MB, memory(0)),
    b"auto-aof-rewrite-percentage": (100, count(0, I32_MAX)),
    b"hz": (10, clamp(count(0, I32_MAX), 1, 500)),
    b"hll-sparse-max-bytes": (3000, memory(0)),
    b"lfu-decay-time": (1, count(0, I32_MAX)),
    b"list-max-listpack-size": (-2, count(I32_MIN, I32_MAX)),
    b"lookahead": (16, count(1, I32_MAX)),
    b"max-new-connections-per-cycle": (10, count(1, 1000)),
    b"max-new-tls-connections-per-cycle": (1, count(1, 1000)),
    b"maxmemory-eviction-tenacity": (10, count(0, 100)),
    b"maxmemory-policy": (b"noeviction", word(*_POLICIES, b"noeviction")),
    b"maxmemory-samples": (5, count(1, 64)),
    b"proc-title-template": (
        b"{title} {listen-addr} {server-mode}",
        _text_like(
            rb"(?:[^{}]|\{(?:title|listen-addr|server-mode|port|tls-port|unixsocket|config-file)\})+",
            "template format is invalid or contains unknown variables",
        ),
    ),
    b"masterauth": (b"", _text),
    b"masteruser": (b"", _text),
    b"propagation-error-behavior": (
        b"ignore",
        word(b"ignore", b"panic", b"panic-on-replicas"),
    ),
    b"repl-backlog-size": (_BACKLOG_BYTES, clamp(memory(1), _BACKLOG_MIN)),
    b"repl-backlog-ttl": (3600, count(0)),
    b"repl-diskless-load": (
        b"disabled",
        word(b"disabled", b"on-empty-db", b"swapdb", b"flushdb"),
    ),
    b"repl-diskless-sync-delay": (5, count(0, I32_MAX)),
    b"repl-ping-replica-period": (10, count(1, I32_MAX)),
    b"replica-full-sync-buffer-limit": (0, memory(0)),
    b"repl-timeout": (60, count(1, I32_MAX)),
    b"replica-priority": (100, count(0, I32_MAX)),
    b"replica-acks": (0, count(0, I32_MAX)),
    b"replica-ack-timeout": (2000, count(1, I32_MAX)),
    b"replica-acks-degrade": (False, truth),
    b"replica-lease-ms": (1000, count(0, I32_MAX)),
    b"replica-recovery-timeout": (30, count(0, I32_MAX)),
    b"replica-validity": (600, count(0, I32_MAX)),
    b"sanitize-dump-payload": (b"no", word(b"no", b"yes", b"clients")),
}
"""By name: the default, and the parser."""

HIDDEN = frozenset(
    (
        *(b"close-on-replica-write", b"key-load-delay", b"lazyexpire-nested-arbitrary-keys"),
        b"rdb-key-save-delay",
    )
)
"""Settings that CONFIG GET shows by their whole name only."""

ALIASES: Mapping[bytes, bytes] = {
    b"cluster-slave-no-failover": b"cluster-replica-no-failover",
    b"cluster-slave-validity-factor": b"cluster-replica-validity-factor",
    b"hash-max-ziplist-entries": b"hash-max-listpack-entries",
    b"hash-max-ziplist-value": b"hash-max-listpack-value",
    b"list-max-ziplist-size": b"list-max-listpack-size",
    b"min-slaves-max-lag": b"min-replicas-max-lag",
    b"min-slaves-to-write": b"min-replicas-to-write",
    b"repl-ping-slave-period": b"repl-ping-replica-period",
    b"slave-announce-ip": b"replica-announce-ip",
    b"slave-announce-port": b"replica-announce-port",
    b"slave-ignore-maxmemory": b"replica-ignore-maxmemory",
    b"slave-lazy-flush": b"replica-lazy-flush",
    b"slave-read-only": b"replica-read-only",
    b"slave-priority": b"replica-priority",
    b"slave-serve-stale-data": b"replica-serve-stale-data",
    b"zset-max-ziplist-entries": b"zset-max-listpack-entries",
    b"zset-max-ziplist-value": b"zset-max-listpack-value",
}
"""Older names of settings."""


def number_of(options: ServerOptions, name: str) -> int:
    """Return the present value of a setting that is a number, or true or false."""
    key = name.encode()
    value = options.kept.get(key, KEPT[key][0])
    assert isinstance(value, int)
    return value


def text_of(options: ServerOptions, name: str) -> str:
    """Return the present value of a setting that is a text."""
    key = name.encode()
    value = options.kept.get(key, KEPT[key][0])
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
