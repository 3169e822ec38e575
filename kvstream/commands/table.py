"""The one table of commands: dispatch, arity errors and docs/commands.md are made of it.

The dispatcher: one request in, one reply out, for a caller that may wait.

A server does the same with ``find`` and the handlers, and queues what is Blocked instead of
waiting.
"""

from collections.abc import Mapping
from typing import Any

from kvstream.commands import claim, config, dump, groups, info, keyspace, read, streams, strings
from kvstream.commands.args import Argv, text, wrong_arity
from kvstream.commands.command import (
    COUNTED_PAIRS,
    EVERY,
    FIRST,
    FIRST_TWO,
    NO_KEYS,
    PAIRS,
    SECOND,
    STREAMS,
    Answer,
    Blocked,
    Command,
    Container,
    Flag,
    Later,
    Session,
    Stepwise,
)
from kvstream.commands.replies import ErrorReply, Reply
from kvstream.engine.blocking_reads import wait_for
from kvstream.engine.engine import Engine
from kvstream.errors import KVStreamError, RequestError

_READ = frozenset({Flag.READONLY})
_FAST_READ = frozenset({Flag.READONLY, Flag.FAST})
_WRITE = frozenset({Flag.WRITE})
_FAST_WRITE = frozenset({Flag.WRITE, Flag.FAST})
_GROW = frozenset({Flag.WRITE, Flag.DENYOOM})
_FAST_GROW = frozenset({Flag.WRITE, Flag.DENYOOM, Flag.FAST})
_ADMIN = frozenset({Flag.ADMIN})
_FAST = frozenset({Flag.FAST})
_BLOCKS = frozenset({Flag.BLOCKING, Flag.MOVABLEKEYS})


def _container(name: str, since: str, commands: tuple[Command, ...]) -> Container:
    subcommands = {row.name.partition("|")[2].encode(): row for row in commands}
    return Container(name, since, subcommands)


_XGROUP = (
    Command("xgroup|create", -5, _GROW, SECOND, groups.xgroup_create, "5.0.0"),
    Command("xgroup|createconsumer", 5, _GROW, SECOND, groups.xgroup_createconsumer, "6.2.0"),
    Command("xgroup|delconsumer", 5, _WRITE, SECOND, groups.xgroup_delconsumer, "5.0.0"),
    Command("xgroup|destroy", 4, _WRITE, SECOND, groups.xgroup_destroy, "5.0.0"),
    Command("xgroup|help", 2, _FAST, NO_KEYS, groups.xgroup_help, "5.0.0"),
    Command("xgroup|setid", -5, _WRITE, SECOND, groups.xgroup_setid, "5.0.0"),
)
_XINFO = (
    Command("xinfo|consumers", 4, _READ, SECOND, info.xinfo_consumers, "5.0.0"),
    Command("xinfo|groups", 3, _READ, SECOND, info.xinfo_groups, "5.0.0"),
    Command("xinfo|help", 2, _FAST, NO_KEYS, info.xinfo_help, "5.0.0"),
    Command("xinfo|stream", -3, _READ, SECOND, info.xinfo_stream, "5.0.0"),
)
_CONFIG = (
    Command("config|get", -3, _ADMIN, NO_KEYS, config.config_get, "2.0.0"),
    Command("config|help", 2, _FAST, NO_KEYS, config.config_help, "5.0.0"),
    Command("config|set", -4, _ADMIN, NO_KEYS, config.config_set, "2.0.0"),
)
_MEMORY = (
    Command("memory|help", 2, _FAST, NO_KEYS, dump.memory_help, "4.0.0"),
    Command("memory|usage", -3, _READ, SECOND, dump.memory_usage, "4.0.0"),
)
_OBJECT = (
    Command("object|encoding", 3, _READ, SECOND, dump.encoding, "2.2.3"),
    Command("object|freq", 3, _READ, SECOND, dump.freq, "4.0.0"),
    Command("object|help", 2, _FAST, NO_KEYS, dump.object_help, "6.2.0"),
    Command("object|idletime", 3, _READ, SECOND, dump.idletime, "2.2.3"),
    Command("object|refcount", 3, _READ, SECOND, dump.refcount, "2.2.3"),
)

STREAM_COMMANDS: tuple[Command | Container, ...] = (
    Command("xack", -4, _FAST_WRITE, FIRST, groups.xack, "5.0.0"),
    Command("xackdel", -6, _FAST_WRITE, FIRST, groups.xackdel, "8.2.0"),
    Command("xadd", -5, _FAST_GROW, FIRST, streams.xadd, "5.0.0"),
    Command("xautoclaim", -6, _FAST_WRITE, FIRST, claim.xautoclaim, "6.2.0"),
    Command("xcfgset", -2, _FAST_WRITE, FIRST, streams.xcfgset, "8.6.0"),
    Command("xclaim", -6, _FAST_WRITE, FIRST, claim.xclaim, "5.0.0"),
    Command("xdel", -3, _FAST_WRITE, FIRST, streams.xdel, "5.0.0"),
    Command("xdelex", -5, _FAST_WRITE, FIRST, streams.xdelex, "8.2.0"),
    _container("xgroup", "5.0.0", _XGROUP),
    Command("xidmprecord", 5, _FAST_GROW, FIRST, streams.xidmprecord, "8.8.0"),
    _container("xinfo", "5.0.0", _XINFO),
    Command("xlen", 2, _FAST_READ, FIRST, streams.xlen, "5.0.0"),
    Command("xnack", -7, _FAST_WRITE, FIRST, groups.xnack, "8.8.0"),
    Command("xpending", -3, _READ, FIRST, claim.xpending, "5.0.0"),
    Command("xrange", -4, _READ, FIRST, streams.xrange, "5.0.0"),
    Command("xread", -4, _BLOCKS | _READ, STREAMS, read.xread, "5.0.0"),
    Command("xreadgroup", -7, _BLOCKS | _WRITE, STREAMS, read.xreadgroup, "5.0.0"),
    Command("xrevrange", -4, _READ, FIRST, streams.xrevrange, "5.0.0"),
    Command("xsetid", -3, _FAST_GROW, FIRST, streams.xsetid, "5.0.0"),
    Command("xtrim", -4, _WRITE, FIRST, streams.xtrim, "5.0.0"),
)
KEY_COMMANDS: tuple[Command | Container, ...] = (
    Command("copy", -3, _GROW, FIRST_TWO, keyspace.copy, "6.2.0"),
    Command("dbsize", 1, _FAST_READ, NO_KEYS, keyspace.dbsize, "1.0.0"),
    Command("del", -2, _WRITE, EVERY, keyspace.delete, "1.0.0"),
    Command("dump", 2, _READ, FIRST, dump.dump, "2.6.0"),
    Command("exists", -2, _FAST_READ, EVERY, keyspace.exists, "1.0.0"),
    Command("expire", -3, _FAST_WRITE, FIRST, keyspace.expire, "1.0.0"),
    Command("expireat", -3, _FAST_WRITE, FIRST, keyspace.expireat, "1.2.0"),
    Command("expiretime", 2, _FAST_READ, FIRST, keyspace.expiretime, "7.0.0"),
    Command("flushall", -1, _WRITE, NO_KEYS, keyspace.flushall, "1.0.0"),
    Command("flushdb", -1, _WRITE, NO_KEYS, keyspace.flushdb, "1.0.0"),
    Command("keys", 2, _READ, NO_KEYS, keyspace.keys, "1.0.0"),
    _container("memory", "4.0.0", _MEMORY),
    _container("object", "2.2.3", _OBJECT),
    Command("move", 3, _FAST_WRITE, FIRST, keyspace.move, "1.0.0"),
    Command("persist", 2, _FAST_WRITE, FIRST, keyspace.persist, "2.2.0"),
    Command("pexpire", -3, _FAST_WRITE, FIRST, keyspace.pexpire, "2.6.0"),
    Command("pexpireat", -3, _FAST_WRITE, FIRST, keyspace.pexpireat, "2.6.0"),
    Command("pexpiretime", 2, _FAST_READ, FIRST, keyspace.pexpiretime, "7.0.0"),
    Command("pttl", 2, _FAST_READ, FIRST, keyspace.pttl, "2.6.0"),
    Command("randomkey", 1, _READ, NO_KEYS, keyspace.randomkey, "1.0.0"),
    Command("rename", 3, _WRITE, FIRST_TWO, keyspace.rename, "1.0.0"),
    Command("renamenx", 3, _FAST_WRITE, FIRST_TWO, keyspace.renamenx, "1.0.0"),
    Command("restore", -4, _GROW, FIRST, dump.restore, "2.6.0"),
    Command("scan", -2, _READ, NO_KEYS, keyspace.scan, "2.8.0"),
    Command("swapdb", 3, _FAST_WRITE, NO_KEYS, keyspace.swapdb, "4.0.0"),
    Command("touch", -2, _FAST_READ, EVERY, keyspace.exists, "3.2.1"),
    Command("ttl", 2, _FAST_READ, FIRST, keyspace.ttl, "1.0.0"),
    Command("type", 2, _FAST_READ, FIRST, keyspace.kind, "1.0.0"),
    Command("unlink", -2, _FAST_WRITE, EVERY, keyspace.delete, "4.0.0"),
)
STRING_COMMANDS: tuple[Command | Container, ...] = (
    Command("append", 3, _FAST_GROW, FIRST, strings.append, "2.0.0"),
    Command("decr", 2, _FAST_GROW, FIRST, strings.decr, "1.0.0"),
    Command("decrby", 3, _FAST_GROW, FIRST, strings.decrby, "1.0.0"),
    Command("delex", -2, _FAST_WRITE, FIRST, strings.delex, "8.4.0"),
    Command("digest", 2, _FAST_READ, FIRST, strings.digest, "8.4.0"),
    Command("get", 2, _FAST_READ, FIRST, strings.get, "1.0.0"),
    Command("getdel", 2, _FAST_WRITE, FIRST, strings.getdel, "6.2.0"),
    Command("getex", -2, _FAST_WRITE, FIRST, strings.getex, "6.2.0"),
    Command("getrange", 4, _READ, FIRST, strings.getrange, "2.4.0"),
    Command("getset", 3, _FAST_GROW, FIRST, strings.getset, "1.0.0"),
    Command("incr", 2, _FAST_GROW, FIRST, strings.incr, "1.0.0"),
    Command("incrby", 3, _FAST_GROW, FIRST, strings.incrby, "1.0.0"),
    Command("incrbyfloat", 3, _FAST_GROW, FIRST, strings.incrbyfloat, "2.6.0"),
    Command("increx", -2, _FAST_GROW, FIRST, strings.increx, "8.8.0"),
    Command("mget", -2, _FAST_READ, EVERY, strings.mget, "1.0.0"),
    Command("mset", -3, _GROW, PAIRS, strings.mset, "1.0.1"),
    Command("msetex", -4, _GROW | {Flag.MOVABLEKEYS}, COUNTED_PAIRS, strings.msetex, "8.4.0"),
    Command("msetnx", -3, _GROW, PAIRS, strings.msetnx, "1.0.1"),
    Command("psetex", 4, _GROW, FIRST, strings.psetex, "2.6.0"),
    Command("set", -3, _GROW, FIRST, strings.set_, "1.0.0"),
    Command("setex", 4, _GROW, FIRST, strings.setex, "2.0.0"),
    Command("setnx", 3, _FAST_GROW, FIRST, strings.setnx, "1.0.0"),
    Command("setrange", 4, _GROW, FIRST, strings.setrange, "2.2.0"),
    Command("strlen", 2, _FAST_READ, FIRST, strings.strlen, "2.2.0"),
    Command("substr", 4, _READ, FIRST, strings.getrange, "1.0.0"),
)
CONNECTION_COMMANDS: tuple[Command | Container, ...] = (
    _container("config", "2.0.0", _CONFIG),
    Command("echo", 2, _FAST, NO_KEYS, keyspace.echo, "1.0.0"),
    Command("ping", -1, _FAST, NO_KEYS, keyspace.ping, "1.0.0"),
    Command("select", 2, _FAST, NO_KEYS, keyspace.select, "1.0.0"),
)

ALL_COMMANDS = (*STREAM_COMMANDS, *KEY_COMMANDS, *STRING_COMMANDS, *CONNECTION_COMMANDS)
COMMANDS: dict[bytes, Command | Container] = {row.name.encode(): row for row in ALL_COMMANDS}
"""Every command by its name in small letters."""

_QUOTED_MAX = 128
"""Bytes of a request that an error text quotes."""


def find(argv: Argv, commands: Mapping[bytes, Command | Container] | None = None) -> Command:
    """Return the command of a request; RequestError where there is none, or its arity is wrong.

    ``commands`` is the table to look in where that is another than COMMANDS.
    """
    commands = COMMANDS if commands is None else commands
    found = commands.get(argv[0]) or commands.get(argv[0].lower())
    if found is None:
        raise _unknown(argv)
    if isinstance(found, Container):
        found = _subcommand(found, argv)
    arity, words = found.arity, len(argv)
    if words != arity and (arity > 0 or words < -arity):
        raise wrong_arity(found.name)
    return found


def _subcommand(container: Container, argv: Argv) -> Command:
    if len(argv) == 1:
        if container.alone is not None:
            return container.alone
        raise wrong_arity(container.name)
    found = container.subcommands.get(argv[1].lower())
    if found is None:
        name = text(argv[1][:_QUOTED_MAX])
        raise RequestError(f"unknown subcommand '{name}'. Try {container.name.upper()} HELP.")
    return found


def _unknown(argv: Argv) -> RequestError:
    quoted = b""
    for word in argv[1:]:
        if len(quoted) >= _QUOTED_MAX:
            break
        quoted += b"'%b' " % word[: _QUOTED_MAX - len(quoted)]
    name = text(argv[0][:_QUOTED_MAX])
    behind = f", with args beginning with: {text(quoted)}" if quoted else ""
    return RequestError(f"unknown command '{name}'{behind}")


_MS = 1000


class Dispatcher:
    """A client's door to an open store, in its own process."""

    def __init__(self, engine: Engine, db: int = 0) -> None:
        self.engine = engine
        self.session = Session(engine.options.databases, db)

    def execute(self, argv: Argv) -> Reply:
        """Run one command, waiting where it blocks; an error becomes an ErrorReply.

        Inside ``engine.transaction()`` it becomes a part of that commit, and nothing waits.
        """
        try:
            command = find(argv)
            reply: Answer = self.engine.run(command.run, self.session, argv)
            assert not isinstance(reply, Later | Stepwise)  # the session takes no pages
            return self._wait(reply) if isinstance(reply, Blocked) else reply
        except KVStreamError as error:
            return ErrorReply.of(error)

    def _wait(self, wait: Blocked) -> Reply:
        timeout_s = None if wait.timeout_ms is None else wait.timeout_ms / _MS
        found: Any = wait_for(self.engine, wait.names, wait.attempt, timeout_s, wait.retry_at)
        reply: Reply = wait.expired if found is None else found
        return reply
