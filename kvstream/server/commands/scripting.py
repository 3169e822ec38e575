"""EVAL, EVALSHA and SCRIPT: scripts in Lua."""

from kvstream.commands.command import Answer, CountedKeys, Family, flags
from kvstream.commands.replies import OK, Reply
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn
from kvstream.server.commands.admin import server_of
from kvstream.server.runtime.busy import SCRIPT_KILL
from kvstream.server.runtime.client import Argv, Client

COMMANDS = Family("scripting")
COMMANDS.add_help("script", since="5.0.0")
_EVAL = flags("noscript stale skip_monitor may_replicate no_mandatory_keys movablekeys")
_EVAL_RO = flags("readonly noscript stale skip_monitor no_mandatory_keys movablekeys")
_KEYS = CountedKeys(0, 0)
_RW, _RO = "RW access update", "RO access"


@COMMANDS.command(
    *("eval", "script numkeys [key [key ...]] [arg [arg ...]]", _EVAL, _KEYS),
    since="2.6.0",
    uses=_RW,
)
def eval_(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Run a script in Lua 5.1.

    The script is one turn and one commit. docs/scripting.md has what it may call, and its limits.
    """
    return server_of(client).scripts.run_text(txn, client, argv, reads=False)


@COMMANDS.command(
    *("eval_ro", "script numkeys [key [key ...]] [arg [arg ...]]", _EVAL_RO, _KEYS),
    since="7.0.0",
    uses=_RO,
)
def eval_ro(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Run a script that may not write."""
    return server_of(client).scripts.run_text(txn, client, argv, reads=True)


@COMMANDS.command(
    *("evalsha", "sha1 numkeys [key [key ...]] [arg [arg ...]]", _EVAL, _KEYS),
    since="2.6.0",
    uses=_RW,
)
def evalsha(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Run a script that the server keeps, by the SHA-1 of its text."""
    return server_of(client).scripts.run_sha(txn, client, argv, reads=False)


@COMMANDS.command(
    *("evalsha_ro", "sha1 numkeys [key [key ...]] [arg [arg ...]]", _EVAL_RO, _KEYS),
    since="7.0.0",
    uses=_RO,
)
def evalsha_ro(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Run a script that the server keeps and that may not write."""
    return server_of(client).scripts.run_sha(txn, client, argv, reads=True)


# --- the scripts that are kept ------------------------------------------------------------------


@COMMANDS.command(
    *("script|load", "script", flags("noscript stale local")),
    since="2.6.0",
    tips="request_policy:all_nodes response_policy:all_succeeded",
)
def script_load(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Keep a script until SCRIPT FLUSH, without running it; return the SHA-1 of its text."""
    return server_of(client).scripts.load(argv[2]).sha


@COMMANDS.command(
    *("script|exists", "sha1 [sha1 ...]", flags("noscript local")),
    since="2.6.0",
    tips="request_policy:all_shards response_policy:agg_logical_and",
)
def script_exists(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return for each SHA-1 whether the server keeps its script."""
    cache = server_of(client).scripts.cache
    return [int(cache.has(sha)) for sha in argv[2:]]


@COMMANDS.command(
    *("script|show", "sha1", flags("noscript local")),
    since="8.0.0",
)
def script_show(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the text of a script that the server keeps."""
    return server_of(client).scripts.source_of(argv[2])


@COMMANDS.command(
    *("script|flush", "[ASYNC|SYNC]", flags("noscript local")),
    since="2.6.0",
    tips="request_policy:all_nodes response_policy:all_succeeded",
)
def script_flush(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Forget all scripts.

    ASYNC: The same: the scripts take little time to forget.
    SYNC: The same.
    """
    if len(argv) > 3 or (len(argv) == 3 and argv[2].upper() not in (b"ASYNC", b"SYNC")):
        raise RequestError("SCRIPT FLUSH only support SYNC|ASYNC option")
    server_of(client).scripts.flush()
    return OK


@COMMANDS.command(
    *("script|kill", "", flags("noscript allow_busy local")),
    since="2.6.0",
    tips="request_policy:all_shards response_policy:one_succeeded",
)
def script_kill(txn: Txn, client: Client, argv: Argv) -> Reply:
    """End the script that runs, if it has not written."""
    server_of(client).scripts.busy.kill(SCRIPT_KILL)
    return OK


@COMMANDS.command(*("script|debug", "YES|SYNC|NO", flags("noscript local")), since="3.2.0")
def script_debug(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Set the mode of the debugger, which the server does not have.

    YES: Refused.
    SYNC: Refused.
    NO: Accepted.
    """
    if argv[2].upper() not in (b"YES", b"SYNC", b"NO"):
        raise RequestError("Use SCRIPT DEBUG YES/SYNC/NO")
    if argv[2].upper() != b"NO":
        raise RequestError("the server has no debugger of scripts")
    return OK
