"""The door of the model: ``run(db, b"XADD", b"s", b"*", b"f", b"v")``."""

from collections.abc import Callable

from tests.model import groups, inspecting, reading, writing
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
    b"del": (-2, inspecting.delete),
    b"exists": (-2, inspecting.exists),
    b"type": (2, inspecting.type_of),
    b"rename": (3, inspecting.rename),
    b"set": (-3, inspecting.set_string),
    b"dbsize": (1, inspecting.dbsize),
    b"flushdb": (-1, inspecting.flushdb),
}
"""The handler of each command and its arity: of all words, at least -n when negative."""
CONTAINERS = {name.split(b"|")[0] for name in COMMANDS if b"|" in name}


def run(db: Redis, *argv: bytes) -> Reply:
    """Return the reply to one command."""
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
        raise fail(f"unknown command '{text(argv[0])}', with args beginning with: {rest}")
    return name
