"""Run a command on the model: ``run(db, b"XADD", b"s", b"*", b"f", b"v")``."""

from collections.abc import Callable

from tests.model import groups, inspecting, keyspace, reading, strings, writing
from tests.model.arguments import Args, Failure, fail, text
from tests.model.database import Redis
from tests.model.replies import ErrorReply, Reply

Handler = Callable[[Redis, Args], Reply]

COMMANDS: dict[bytes, tuple[int, Handler]] = {
    b"xadd": (-5, writing.xadd),
    b"xtrim": (-4, writing.xtrim),
    b"xdel": (-3, writing.xdel),
    b"xdelex": (-5, writing.xdelex),
    b"xackdel": (-6, writing.xackdel),
    b"xsetid": (-3, writing.xsetid),
    b"xcfgset": (-2, writing.xcfgset),
    b"xidmprecord": (5, writing.xidmprecord),
    b"xlen": (2, reading.xlen),
    b"xrange": (-4, reading.xrange),
    b"xrevrange": (-4, reading.xrevrange),
    b"xread": (-4, reading.xread),
    b"xreadgroup": (-7, reading.xread),
    b"xgroup|create": (-5, groups.xgroup_create),
    b"xgroup|setid": (-5, groups.xgroup_setid),
    b"xgroup|destroy": (4, groups.xgroup_destroy),
    b"xgroup|createconsumer": (5, groups.xgroup_createconsumer),
    b"xgroup|delconsumer": (5, groups.xgroup_delconsumer),
    b"xgroup|help": (2, inspecting.xgroup_help),
    b"xinfo|help": (2, inspecting.xinfo_help),
    b"xack": (-4, groups.xack),
    b"xnack": (-7, groups.xnack),
    b"xpending": (-3, groups.xpending),
    b"xclaim": (-6, groups.xclaim),
    b"xautoclaim": (-6, groups.xautoclaim),
    b"xinfo|stream": (-3, inspecting.xinfo_stream),
    b"xinfo|groups": (3, inspecting.xinfo_groups),
    b"xinfo|consumers": (4, inspecting.xinfo_consumers),
    b"config|set": (-4, inspecting.config_set),
    b"append": (3, strings.append),
    b"copy": (-3, keyspace.copy),
    b"dbsize": (1, keyspace.dbsize),
    b"decr": (2, strings.counted(-1, by=False)),
    b"decrby": (3, strings.counted(-1, by=True)),
    b"del": (-2, keyspace.delete),
    b"exists": (-2, keyspace.exists),
    b"expire": (-3, keyspace.expire(1000, from_now=True)),
    b"expireat": (-3, keyspace.expire(1000, from_now=False)),
    b"expiretime": (2, keyspace.time_left(1000, from_now=False)),
    b"flushdb": (-1, keyspace.flushdb),
    b"get": (2, strings.get),
    b"getdel": (2, strings.getdel),
    b"getex": (-2, strings.getex),
    b"getset": (3, strings.getset),
    b"incr": (2, strings.counted(1, by=False)),
    b"incrby": (3, strings.counted(1, by=True)),
    b"keys": (2, keyspace.keys),
    b"mget": (-2, strings.mget),
    b"object|encoding": (3, keyspace.encoding),
    b"persist": (2, keyspace.persist),
    b"pexpire": (-3, keyspace.expire(1, from_now=True)),
    b"pexpireat": (-3, keyspace.expire(1, from_now=False)),
    b"pexpiretime": (2, keyspace.time_left(1, from_now=False)),
    b"psetex": (4, strings.psetex),
    b"pttl": (2, keyspace.time_left(1, from_now=True)),
    b"rename": (3, keyspace.rename),
    b"renamenx": (3, keyspace.renamenx),
    b"set": (-3, strings.set_string),
    b"setex": (4, strings.setex),
    b"setnx": (3, strings.setnx),
    b"strlen": (2, strings.strlen),
    b"touch": (-2, keyspace.exists),
    b"ttl": (2, keyspace.time_left(1000, from_now=True)),
    b"type": (2, keyspace.type_of),
    b"unlink": (-2, keyspace.delete),
}
"""The handler of each command and its arity: of all words, at least -n when negative."""
CONTAINERS = {name.split(b"|")[0] for name in COMMANDS if b"|" in name}


def run(db: Redis, *argv: bytes) -> Reply:
    """Return the reply to one command."""
    db.drop_expired()
    try:
        name = command_name(argv)
        arity, handler = COMMANDS[name]
        if len(argv) < -arity or (arity > 0 and len(argv) != arity):
            raise fail(f"wrong number of arguments for '{text(name)}' command")
        return handler(db, argv)
    except Failure as failure:
        return ErrorReply(str(failure).encode("latin-1"))


def command_name(argv: Args) -> bytes:
    name = argv[0].lower()
    if name in CONTAINERS:
        if len(argv) == 1:
            raise fail(f"wrong number of arguments for '{text(name)}' command")
        if name + b"|" + argv[1].lower() not in COMMANDS:
            raise fail(f"unknown subcommand '{text(argv[1])}'. Try {text(name).upper()} HELP.")
        return name + b"|" + argv[1].lower()
    if name not in COMMANDS:
        rest = "".join(f"'{text(arg)}' " for arg in argv[1:])
        rest = rest and f", with args beginning with: {rest}"
        raise fail(f"unknown command '{text(argv[0])}'{rest}")
    return name
