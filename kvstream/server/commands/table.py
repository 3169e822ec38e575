"""The server's table: the commands of the store, and those of connections and operation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from kvstream.commands.command import EVERY, NO_KEYS, Command, Container, Flag, Handler, Keys
from kvstream.commands.table import COMMANDS
from kvstream.server.commands import (
    acl,
    admin,
    client,
    command,
    connection,
    debug,
    info,
    kvstream_load,
    latency,
    memory,
)

_LOCAL = frozenset({Flag.LOCAL})
_FAST = frozenset({Flag.FAST, Flag.LOCAL})
_ADMIN = frozenset({Flag.ADMIN, Flag.LOCAL})
_JOB = frozenset({Flag.ADMIN})
"""Not local: it waits for what is committed, or for a thread."""
_ALONE = frozenset({Flag.ADMIN, Flag.NO_MULTI})
_LOADS = frozenset({Flag.ADMIN, Flag.WRITE, Flag.DENYOOM, Flag.NO_MULTI})
_DOOR = frozenset({Flag.FAST, Flag.LOCAL, Flag.NO_AUTH})
_MULTI = frozenset({Flag.FAST, Flag.LOCAL, Flag.IMMEDIATE})

_OURS = "kvstream 0.1.0"
"""Since when there is what no Redis has."""


def _row(
    name: str,
    arity: int,
    flags: frozenset[Flag],
    run: Callable[..., Any],
    since: str,
    keys: Keys | None = NO_KEYS,
) -> Command:
    """Return a row whose handler takes a Client as its session."""
    return Command(name, arity, flags, keys, cast(Handler, run), since)


def _with(row: Command | Container, more: tuple[Command, ...]) -> Container:
    """Return a container of the store with what the server has beside."""
    assert isinstance(row, Container)
    ours = {each.name.partition("|")[2].encode(): each for each in more}
    return replace(row, subcommands=dict(sorted({**row.subcommands, **ours}.items())))


def _container(since: str, rows: tuple[Command, ...], alone: Command | None = None) -> Container:
    name = rows[0].name.partition("|")[0]
    subcommands = {row.name.partition("|")[2].encode(): row for row in rows}
    return Container(name, since, subcommands, alone)


_ACL = (
    _row("acl|cat", -2, _LOCAL, acl.acl_cat, "6.0.0"),
    _row("acl|deluser", -3, _ADMIN, acl.acl_deluser, "6.0.0"),
    _row("acl|dryrun", -4, _ADMIN, acl.acl_dryrun, "7.0.0"),
    _row("acl|genpass", -2, _LOCAL, acl.acl_genpass, "6.0.0"),
    _row("acl|getuser", 3, _ADMIN, acl.acl_getuser, "6.0.0"),
    _row("acl|help", 2, _LOCAL, acl.acl_help, "6.0.0"),
    _row("acl|list", 2, _ADMIN, acl.acl_list, "6.0.0"),
    _row("acl|load", 2, _ADMIN, acl.acl_load, "6.0.0"),
    _row("acl|log", -2, _ADMIN, acl.acl_log, "6.0.0"),
    _row("acl|save", 2, _ADMIN, acl.acl_save, "6.0.0"),
    _row("acl|setuser", -3, _ADMIN, acl.acl_setuser, "6.0.0"),
    _row("acl|users", 2, _ADMIN, acl.acl_users, "6.0.0"),
    _row("acl|whoami", 2, _LOCAL, acl.acl_whoami, "6.0.0"),
)
_CLIENT = (
    _row("client|caching", 3, _LOCAL, client.client_caching, "6.0.0"),
    _row("client|getname", 2, _LOCAL, client.client_getname, "2.6.9"),
    _row("client|getredir", 2, _LOCAL, client.client_getredir, "6.0.0"),
    _row("client|help", 2, _LOCAL, client.client_help, "5.0.0"),
    _row("client|id", 2, _LOCAL, client.client_id, "5.0.0"),
    _row("client|info", 2, _LOCAL, client.client_info, "6.2.0"),
    _row("client|kill", -3, _ADMIN, client.client_kill, "2.4.0"),
    _row("client|list", -2, _ADMIN, client.client_list, "2.4.0"),
    _row("client|no-evict", 3, _ADMIN, client.client_no_evict, "7.0.0"),
    _row("client|no-touch", 3, _LOCAL, client.client_no_touch, "7.2.0"),
    _row("client|pause", -3, _ADMIN, client.client_pause, "3.0.0"),
    _row("client|reply", 3, _LOCAL, client.client_reply, "3.2.0"),
    _row("client|setinfo", 4, _LOCAL, client.client_setinfo, "7.2.0"),
    _row("client|setname", 3, _LOCAL, client.client_setname, "2.6.9"),
    _row("client|tracking", -3, _LOCAL, client.client_tracking, "6.0.0"),
    _row("client|trackinginfo", 2, _LOCAL, client.client_trackinginfo, "6.2.0"),
    _row("client|unblock", -3, _ADMIN, client.client_unblock, "5.0.0"),
    _row("client|unpause", 2, _ADMIN, client.client_unpause, "6.2.0"),
)
_COMMAND = (
    _row("command|count", 2, _LOCAL, command.command_count, "2.8.13"),
    _row("command|docs", -2, _LOCAL, command.command_docs, "7.0.0"),
    _row("command|getkeys", -3, _LOCAL, command.command_getkeys, "2.8.13"),
    _row("command|getkeysandflags", -3, _LOCAL, command.command_getkeysandflags, "7.0.0"),
    _row("command|help", 2, _LOCAL, command.command_help, "5.0.0"),
    _row("command|info", -2, _LOCAL, command.command_info, "2.8.13"),
    _row("command|list", -2, _LOCAL, command.command_list, "7.0.0"),
)
_COMMAND_ALONE = _row("command", -1, _LOCAL, command.command, "2.8.13")
_CONFIG = (
    _row("config|get", -3, _ADMIN, admin.config_get, "2.0.0"),
    _row("config|help", 2, _LOCAL, admin.config_help, "5.0.0"),
    _row("config|resetstat", 2, _ADMIN, admin.config_resetstat, "2.0.0"),
    _row("config|rewrite", 2, _ADMIN, admin.config_rewrite, "2.8.0"),
    _row("config|set", -4, _ADMIN, admin.config_set, "2.0.0"),
)
_LATENCY = (
    _row("latency|doctor", 2, _ADMIN, latency.latency_doctor, "2.8.13"),
    _row("latency|graph", 3, _ADMIN, latency.latency_graph, "2.8.13"),
    _row("latency|help", 2, _LOCAL, latency.latency_help, "2.8.13"),
    _row("latency|histogram", -2, _ADMIN, latency.latency_histogram, "7.0.0"),
    _row("latency|history", 3, _ADMIN, latency.latency_history, "2.8.13"),
    _row("latency|latest", 2, _ADMIN, latency.latency_latest, "2.8.13"),
    _row("latency|reset", -2, _ADMIN, latency.latency_reset, "2.8.13"),
)
_MEMORY = (
    _row("memory|doctor", 2, _LOCAL, memory.memory_doctor, "4.0.0"),
    _row("memory|help", 2, _LOCAL, memory.memory_help, "4.0.0"),
    _row("memory|malloc-stats", 2, _LOCAL, memory.memory_malloc_stats, "4.0.0"),
    _row("memory|purge", 2, _LOCAL, memory.memory_purge, "4.0.0"),
    _row("memory|stats", 2, frozenset(), memory.memory_stats, "4.0.0"),
)
_LOAD = (
    _row("kvstream.load|commit", -7, _LOADS, kvstream_load.load_commit, _OURS),
    _row("kvstream.load|discard", 3, _ADMIN, kvstream_load.load_discard, _OURS),
    _row("kvstream.load|help", 2, _LOCAL, kvstream_load.load_help, _OURS),
    _row("kvstream.load|put", 6, _ADMIN | {Flag.DENYOOM}, kvstream_load.load_put, _OURS),
    _row("kvstream.load|state", 4, _LOADS, kvstream_load.load_state, _OURS, Keys(2, 2)),
    _row("kvstream.load|ticket", -2, _LOADS, kvstream_load.load_ticket, _OURS, Keys(2, -1)),
)
_FUNCTION = (
    _row("function|flush", -2, frozenset({Flag.WRITE}), admin.function_flush, "7.0.0"),
    _row("function|help", 2, _LOCAL, admin.function_help, "7.0.0"),
)
_SCRIPT = (
    _row("script|flush", -2, _LOCAL, admin.script_flush, "2.6.0"),
    _row("script|help", 2, _LOCAL, admin.script_help, "5.0.0"),
)
_SLOWLOG = (
    _row("slowlog|get", -2, _ADMIN, admin.slowlog_get, "2.2.12"),
    _row("slowlog|help", 2, _LOCAL, admin.slowlog_help, "6.2.0"),
    _row("slowlog|len", 2, _ADMIN, admin.slowlog_len, "2.2.12"),
    _row("slowlog|reset", 2, _ADMIN, admin.slowlog_reset, "2.2.12"),
)

CONNECTION_COMMANDS: tuple[Command | Container, ...] = (
    _row("auth", -2, _DOOR, acl.auth, "1.0.0"),
    _container("2.4.0", _CLIENT),
    _row("hello", -1, _DOOR, connection.hello, "6.0.0"),
    _row("quit", -1, _DOOR | {Flag.IMMEDIATE}, connection.quit_, "1.0.0"),
    _row("reset", 1, _DOOR | {Flag.IMMEDIATE}, connection.reset, "6.2.0"),
)
TRANSACTION_COMMANDS: tuple[Command | Container, ...] = (
    _row("discard", 1, _MULTI, connection.discard, "2.0.0"),
    _row("exec", 1, frozenset({Flag.IMMEDIATE}), connection.exec_, "1.2.0"),
    _row("multi", 1, _MULTI, connection.multi, "1.2.0"),
    _row("unwatch", 1, _FAST, connection.unwatch, "2.2.0"),
    _row(
        *("watch", -2, frozenset({Flag.FAST, Flag.IMMEDIATE}), connection.watch, "2.2.0"),
        keys=EVERY,
    ),
)
OPERATION_COMMANDS: tuple[Command | Container, ...] = (
    _container("6.0.0", _ACL),
    _row("bgrewriteaof", 1, _JOB, admin.bgrewriteaof, "1.0.0"),
    _row("bgsave", -1, _JOB, admin.bgsave, "1.0.0"),
    _container("2.8.13", _COMMAND, _COMMAND_ALONE),
    _container("2.0.0", _CONFIG),
    _row("debug", -2, _JOB, debug.debug, "1.0.0"),
    _container("7.0.0", _FUNCTION),
    _row("info", -1, frozenset(), info.info, "1.0.0"),
    _container(_OURS, _LOAD),
    _row("lastsave", 1, _FAST, admin.lastsave, "1.0.0"),
    _container("2.8.13", _LATENCY),
    _row("lolwut", -1, _FAST | {Flag.READONLY}, admin.lolwut, "5.0.0"),
    _row("monitor", 1, _ADMIN, admin.monitor, "1.0.0"),
    _row("role", 1, _FAST, admin.role, "2.8.12"),
    _row("save", 1, _ALONE, admin.save, "1.0.0"),
    _container("2.6.0", _SCRIPT),
    _row("shutdown", -1, _ADMIN | {Flag.NO_MULTI}, admin.shutdown, "1.0.0"),
    _container("2.2.12", _SLOWLOG),
    _row("time", 1, _FAST, admin.time_, "2.6.0"),
    _row("wait", 3, frozenset({Flag.BLOCKING}), admin.wait, "3.0.0"),
    _row("waitaof", 4, frozenset({Flag.BLOCKING}), admin.waitaof, "7.2.0"),
)

SERVER_COMMANDS = (*CONNECTION_COMMANDS, *TRANSACTION_COMMANDS, *OPERATION_COMMANDS)
TABLE: dict[bytes, Command | Container] = {
    **COMMANDS,
    b"memory": _with(COMMANDS[b"memory"], _MEMORY),
    b"object": memory.with_policy(COMMANDS[b"object"]),
    **{row.name.encode(): row for row in SERVER_COMMANDS},
}
"""Every command of the server by its name in small letters."""
