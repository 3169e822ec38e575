"""Commands of operation: saving, stopping, SLOWLOG, MONITOR."""

import time

from kvstream.commands.args import Argv, at_least, bad_subcommand, integer, syntax_error
from kvstream.commands.command import OPERATE, Answer, Family, flags
from kvstream.commands.replies import OK, Reply, Simple
from kvstream.errors import RequestError
from kvstream.logs import NOTICE, DeferredLogger
from kvstream.meta.txn import Txn
from kvstream.server.runtime.call_text import Shown
from kvstream.server.runtime.checkpoints import Job
from kvstream.server.runtime.client import Client, ReplyMode
from kvstream.server.runtime.executor import server_of
from kvstream.version import VERSION

_log = DeferredLogger(__name__)
COMMANDS = Family("server")
COMMANDS.add_help("slowlog", since="6.2.0")
_SAVE = flags("admin noscript no_async_loading")
_SLOWLOG = flags("admin loading stale local")
_US = 1_000_000


@COMMANDS.command(
    *("time", "", flags("loading stale fast local")),
    since="2.6.0",
    tips="nondeterministic_output",
)
def time_(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the server's time: Unix seconds, and microseconds."""
    seconds, microseconds = divmod(time.time_ns() // 1000, _US)
    return [b"%d" % seconds, b"%d" % microseconds]


@COMMANDS.command("lolwut", "[VERSION version]", flags("readonly fast local"), since="5.0.0")
def lolwut(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return a line of art.

    VERSION: A number, which is ignored.
    """
    if len(argv) > 2 and argv[1].upper() == b"VERSION":
        integer(argv[2])
    return f"Streams run to the sea; these stay. kvstream {VERSION}\n".encode()


# --- saving -------------------------------------------------------------------------------------

_SAVING = "Background save already in progress"
_COMPACTING = "Background append only file rewriting already in progress"


def _own(job: Job | None, request: Argv, busy: str) -> Job | None:
    """Return the running job that this request started before its turn was rolled back.

    Raises RequestError with the text ``busy`` if another request's job is running.
    """
    if job is None or job.done:
        return None
    if job.owner is not request:
        raise RequestError(busy)
    return job


@COMMANDS.command(
    *("lastsave", "", flags("loading stale fast local")),
    since="1.0.0",
    categories="admin dangerous",
    tips="nondeterministic_output",
)
def lastsave(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the Unix time of the last save, or of the start of the server."""
    return server_of(client).checkpoints.last_save


@COMMANDS.command("save", "", _SAVE | flags("no_multi"), since="1.0.0")
def save(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Write a checkpoint of the store and wait for it; other clients are served meanwhile.

    A checkpoint is a store of its own in the directory for checkpoints, which keeps the newest
    ones. Without such a directory SAVE and BGSAVE make the store itself durable. `save` is empty by
    default, since every write is in the log; with save points BGSAVE starts by itself.
    """
    return _save(client, argv).wait()


def _save(client: Client, request: Argv) -> Job:
    """Start a save."""
    server = server_of(client)
    job = _own(server.checkpoints.save, request, _SAVING)
    return job or server.checkpoints.start_save(request, server.statistics.changes)


def _describe_start(client: Client) -> str:
    """Return Redis's word for a background job: within EXEC it starts after EXEC."""
    return "scheduled" if client.in_exec else "started"


@COMMANDS.command("bgsave", "[SCHEDULE]", _SAVE, since="1.0.0")
def bgsave(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Start a checkpoint of the store.

    SCHEDULE: Ignored: a save never waits for a compaction.
    """
    if len(argv) > 2 or (len(argv) == 2 and argv[1].upper() != b"SCHEDULE"):
        raise syntax_error()
    _save(client, argv)
    return Simple(f"Background saving {_describe_start(client)}")


@COMMANDS.command("bgrewriteaof", "", _SAVE, since="1.0.0")
def bgrewriteaof(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Start a compaction of the store, which frees the disk space of deleted data."""
    checkpoints = server_of(client).checkpoints
    if _own(checkpoints.compaction, argv, _COMPACTING) is None:
        checkpoints.start_compaction(argv)
    return Simple(f"Background append only file rewriting {_describe_start(client)}")


# --- the end ------------------------------------------------------------------------------------

_HOW = {b"NOSAVE", b"SAVE", b"NOW", b"FORCE", b"ABORT"}


@COMMANDS.command(
    "shutdown",
    "[NOSAVE|SAVE] [NOW] [FORCE] [ABORT]",
    flags("admin noscript loading stale no_multi allow_busy local"),
    since="1.0.0",
)
def shutdown(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Stop the server. Acknowledged writes are kept in any case.

    NOSAVE: Write no checkpoint: the default.
    SAVE: Write a checkpoint first.
    NOW: Do not wait until the replicas have all writes.
    FORCE: Ignored.
    ABORT: Refused: a shutdown starts at once and cannot be aborted.
    """
    words = {word.upper() for word in argv[1:]}
    if not words <= _HOW or {b"SAVE", b"NOSAVE"} <= words:
        raise syntax_error()
    if b"ABORT" in words:
        if len(words) > 1:
            raise syntax_error()
        raise RequestError("No shutdown in progress.")
    server = server_of(client)
    server.replication.is_waited_for &= b"NOW" not in words
    if server.busy.is_on and b"NOSAVE" not in words:
        return server.busy.error
    client.reply_mode = ReplyMode.OFF  # SHUTDOWN has no reply: the connection is closed
    if b"SAVE" in words:
        server.checkpoints.start_save(argv, server.statistics.changes)
    _log.log(NOTICE, "%s, user %s, has sent SHUTDOWN", client.address, Shown([client.user.name]))
    server.stop()
    return OK


# --- watching -----------------------------------------------------------------------------------


@COMMANDS.command("monitor", "", OPERATE, since="1.0.0")
def monitor(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Send every command that the server runs to this connection.

    MONITOR and SLOWLOG hide all arguments of ACL after the subcommand; Redis hides those of
    SETUSER, GETUSER and DELUSER. MONITOR shows AUTH without the password.
    """
    if client.in_exec:
        raise RequestError("MONITOR isn't allowed for DENY BLOCKING client")
    client.monitors = True
    server_of(client).pubsub.monitors[client] = None
    return OK


@COMMANDS.command(
    *("slowlog|get", "[count]", _SLOWLOG),
    since="2.2.12",
    tips="nondeterministic_output request_policy:all_nodes",
)
def slowlog_get(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the newest slow commands, ten by default; -1 for all.

    Each has its number, Unix time, microseconds, words, client address, client name, and the number
    of its words; `slowlog-entry-max-argc` and `slowlog-entry-max-string-len` bound the words shown.
    """
    count = 10
    if len(argv) == 3:
        message = "count should be greater than or equal to -1"
        count = at_least(-1, argv[2], message, message)
    elif len(argv) > 3:
        raise bad_subcommand(argv)
    return [
        [
            *(entry.number, entry.at, entry.microseconds, entry.argv),
            *(entry.address.encode(), entry.name, entry.words),
        ]
        for entry in server_of(client).slowlog.newest(count)
    ]


@COMMANDS.command(
    *("slowlog|len", "", _SLOWLOG),
    since="2.2.12",
    tips="nondeterministic_output request_policy:all_nodes response_policy:agg_sum",
)
def slowlog_len(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the number of slow commands in the log."""
    return len(server_of(client).slowlog)


@COMMANDS.command(
    *("slowlog|reset", "", _SLOWLOG),
    since="2.2.12",
    tips="request_policy:all_nodes response_policy:all_succeeded",
)
def slowlog_reset(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Clear the log of slow commands."""
    server_of(client).slowlog.clear()
    return OK
