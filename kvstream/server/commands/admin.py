"""Commands of those who operate the server: saving, stopping, watching it work.

CONFIG: the settings of streams and of the server as one table.

HELP of the containers: how each subcommand is written, and what it does.

Where a command of the server runs: at the server whose client has sent it.
"""

import logging
import time
from collections.abc import Callable

from kvstream.commands.args import Argv, at_least, integer, syntax_error, text
from kvstream.commands.command import Answer, Blocked
from kvstream.commands.config import SETTINGS, failure
from kvstream.commands.replies import OK, Map, Reply, Simple
from kvstream.errors import InvalidArgument, RequestError
from kvstream.logs import NOTICE
from kvstream.meta.txn import Txn
from kvstream.server.inert_settings import HIDDEN
from kvstream.server.runtime.client import Answers, Client
from kvstream.server.runtime.dispatch import Shown, told
from kvstream.server.runtime.executor import Executor
from kvstream.server.settings import SERVER_SETTINGS, change_of, read
from kvstream.types.glob import matcher
from kvstream.types.options import Durability
from kvstream.version import VERSION

Handler = Callable[[Txn, Client, Argv], Reply]


def help_of(container: str, *subcommands: tuple[str, str]) -> Handler:
    """Return the handler of a container's HELP."""
    lines = [f"{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    for written, meaning in (*subcommands, ("HELP", "Show these lines.")):
        lines += [written, "    " + meaning]
    reply = [Simple(line) for line in lines]

    def show(txn: Txn, client: Client, argv: Argv) -> Reply:
        """Show the subcommands."""
        return reply

    return show


def not_so(container: str, argv: Argv) -> RequestError:
    """Return the error of a subcommand that is not here, or not with so many arguments."""
    return RequestError(
        f"unknown subcommand or wrong number of arguments for '{text(argv[1])}'. "
        f"Try {container} HELP."
    )


def server_of(client: Client) -> Executor:
    """Return the server that a client has come to."""
    assert isinstance(client.server, Executor)
    return client.server


_log = logging.getLogger(__name__)

_US = 1_000_000


def time_(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the server's time: Unix seconds, and microseconds."""
    seconds, microseconds = divmod(time.time_ns() // 1000, _US)
    return [b"%d" % seconds, b"%d" % microseconds]


def role(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer that this is a master without replicas."""
    return [b"master", 0, []]


def lolwut(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer a line for people."""
    return f"Streams run to the sea; these stay. kvstream {VERSION}\n".encode()


# --- saving -------------------------------------------------------------------------------------

_SAVING = "Background save already in progress"


def lastsave(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the Unix time of the last save, or of the start."""
    return server_of(client).saving.last_save


def save(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Write a checkpoint of the store and wait for it; other clients go on meanwhile."""
    saving = server_of(client).saving
    job = saving.save
    if saving.is_saving and job is not None and job.owner is argv:
        return job.wait()  # begun by this request, whose turn had to be run again
    if saving.is_saving:
        raise RequestError(_SAVING)
    return saving.start_save(argv, server_of(client).statistics.changes).wait()


def _begun(client: Client) -> str:
    """Return what Redis says of work in the background: it does not begin before EXEC ends."""
    return "scheduled" if client.in_exec else "started"


def bgsave(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Begin a checkpoint of the store."""
    if len(argv) > 2 or (len(argv) == 2 and argv[1].upper() != b"SCHEDULE"):
        raise syntax_error()
    saving = server_of(client).saving
    owner = saving.save.owner if saving.save is not None else None
    if saving.is_saving and owner is not argv:
        raise RequestError(_SAVING)
    if not saving.is_saving:
        saving.start_save(argv, server_of(client).statistics.changes)
    return Simple(f"Background saving {_begun(client)}")


def bgrewriteaof(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Begin a compaction: what is deleted leaves the disk."""
    saving = server_of(client).saving
    owner = saving.compaction.owner if saving.compaction is not None else None
    if saving.is_compacting and owner is not argv:
        raise RequestError("Background append only file rewriting already in progress")
    if not saving.is_compacting:
        saving.start_compaction(argv)
    return Simple(f"Background append only file rewriting {_begun(client)}")


def _timeout(raw: bytes) -> int:
    return at_least(0, raw, "timeout is negative", "timeout is not an integer or out of range")


_REPLICAS = b"r"
"""What those wait for who want replicas: not the name of any key, and never news."""


def _never(txn: Txn) -> None:
    """Replicas never come."""


def wait(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Answer 0, the number of replicas: after the timeout, where more are wanted."""
    wanted, timeout_ms = integer(argv[1]), _timeout(argv[2])
    if wanted <= 0:
        return 0
    return Blocked([_REPLICAS], _never, timeout_ms or None, expired=0)


def waitaof(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Wait until all that was written is on disk; answer 1 and the number of replicas, 0."""
    local = integer(argv[1])
    if not 0 <= local <= 1:
        raise InvalidArgument("value is out of range, value must between 0 and 1")
    message = "value is out of range, must be positive"
    replicas = at_least(0, argv[2], message, message)
    timeout_ms = _timeout(argv[3]) or None
    if replicas:
        return Blocked([_REPLICAS], _never, timeout_ms, expired=[0, 0])
    if not local:
        return [int(server_of(client).engine.durability is Durability.ALWAYS), 0]
    return server_of(client).saving.start_sync().wait([1, 0], timeout_ms, [0, 0])


# --- the end ------------------------------------------------------------------------------------

_HOW = {b"NOSAVE", b"SAVE", b"NOW", b"FORCE", b"ABORT"}


def shutdown(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Stop the server; with SAVE after a checkpoint. Everything acknowledged stays in any case."""
    words = {word.upper() for word in argv[1:]}
    if not words <= _HOW or {b"SAVE", b"NOSAVE"} <= words:
        raise syntax_error()
    if b"ABORT" in words:
        if len(words) > 1:
            raise syntax_error()
        raise RequestError("No shutdown in progress.")
    server = server_of(client)
    client.answers = Answers.OFF  # nobody answers SHUTDOWN: the connection ends
    if b"SAVE" in words:
        server.saving.start_save(argv, server.statistics.changes)
    _log.log(NOTICE, "%s, user %s, has sent SHUTDOWN", client.address, Shown([client.user.name]))
    server.stop()
    return OK


# --- watching -----------------------------------------------------------------------------------


def monitor(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Show this connection every command from here on."""
    client.monitors = True
    client.pages = False  # what it is shown must not come in the middle of a reply
    server_of(client).monitors[client] = None
    return OK


def slowlog_get(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the newest slow commands: ten unless told, all of them for -1."""
    count = 10
    if len(argv) == 3:
        message = "count should be greater than or equal to -1"
        count = at_least(-1, argv[2], message, message)
    elif len(argv) > 3:
        raise not_so("SLOWLOG", argv)
    return [
        [each.number, each.at, each.microseconds, each.argv, each.address.encode(), each.name]
        for each in server_of(client).slowlog.newest(count)
    ]


def slowlog_len(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer how many slow commands are kept."""
    return len(server_of(client).slowlog)


def slowlog_reset(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Forget the slow commands."""
    server_of(client).slowlog.clear()
    return OK


slowlog_help = help_of(
    "SLOWLOG",
    ("GET [<count>]", "Show the newest slow commands: number, Unix time, microseconds, words,"),
    ("    address and name of the client", "10 unless given; -1 for all."),
    ("LEN", "Show how many are kept."),
    ("RESET", "Forget them."),
)


# --- scripts: none are kept ---------------------------------------------------------------------


def _check_flush(argv: Argv, command: str, support: str) -> None:
    if len(argv) > 3 or (len(argv) == 3 and argv[2].upper() not in (b"ASYNC", b"SYNC")):
        raise RequestError(f"{command} FLUSH {support} SYNC|ASYNC option")


def function_flush(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer OK: there are no functions."""
    if len(argv) > 3:
        raise not_so("FUNCTION", argv)
    _check_flush(argv, "FUNCTION", "only supports")
    return OK


def script_flush(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer OK: there are no scripts."""
    _check_flush(argv, "SCRIPT", "only support")
    return OK


_FLUSH = ("FLUSH [ASYNC|SYNC]", "Answer OK: there is nothing to be flushed.")
function_help = help_of("FUNCTION", _FLUSH)
script_help = help_of("SCRIPT", _FLUSH)


_SIGNS = frozenset(b"*?[")
"""What makes a word a pattern; a name is shown as it was given."""


def config_get(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the settings whose names match any of the patterns."""
    names = {*SETTINGS, *SERVER_SETTINGS}
    found: dict[bytes, bytes] = {}
    for pattern in argv[2:]:
        if _SIGNS.isdisjoint(pattern):
            found |= {pattern: pattern.lower()} if pattern.lower() in names else {}
        else:
            test = matcher(pattern, ignore_case=True)
            found |= {name: name for name in names - HIDDEN if test(name)}
    return Map([(shown, read(server_of(client), found[shown])) for shown in sorted(found)])


def config_set(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Change settings until the server is stopped, all of them or none."""
    if len(argv) % 2:
        raise syntax_error()
    given: dict[bytes, bytes] = {}
    for raw_name, raw in zip(argv[2::2], argv[3::2], strict=True):
        name = raw_name.lower()
        if name not in SETTINGS and name not in SERVER_SETTINGS:
            raise InvalidArgument(
                f"Unknown option or number of arguments for CONFIG SET - '{text(raw_name)}'"
            )
        if name in given:
            raise failure(raw_name, "duplicate parameter")
        given[name] = raw
    changes = [change_of(server_of(client), name, raw) for name, raw in given.items()]
    for change in changes:
        change()
    server_of(client).options.changed |= given.keys()
    _log_change(client, argv)
    return OK


def config_resetstat(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Set the counters of INFO to zero."""
    server_of(client).statistics.reset()
    txn.catalog.expired = txn.catalog.expired_unasked = 0
    txn.catalog.hot.hits = txn.catalog.hot.misses = 0
    return OK


def config_rewrite(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Write the settings that CONFIG SET has changed into the file that the server began with."""
    server = server_of(client)
    file = server.options.config_file
    if file is None:
        raise RequestError("The server is running without a config file")
    changed = sorted(server.options.changed)
    file.rewrite({text(name): text(read(server, name)) for name in changed})
    _log_change(client, argv)
    return OK


def _log_change(client: Client, argv: Argv) -> None:
    """Log a change of settings, without what may be passwords."""
    user, words = Shown([client.user.name]), Shown(told(list(argv)))
    _log.log(NOTICE, "%s, user %s: %s", client.address, user, words)


config_help = help_of(
    "CONFIG",
    ("GET <pattern> [<pattern> ...]", "Show the settings whose names match a pattern."),
    ("RESETSTAT", "Set the counters of INFO to zero."),
    ("REWRITE", "Write changed settings into the file that the server began with."),
    ("SET <directive> <value> [<directive> <value> ...]", "Change settings while serving."),
)
