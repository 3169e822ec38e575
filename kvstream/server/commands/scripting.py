"""EVAL, EVALSHA and SCRIPT: scripts in Lua. FCALL and FUNCTION: functions kept in the store."""

from kvstream.commands.args import bad_subcommand, text
from kvstream.commands.command import Answer, CountedKeys, Family, flags
from kvstream.commands.replies import OK, Map, Reply, SetReply, Simple
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn
from kvstream.operations import functions
from kvstream.operations.functions import Policy
from kvstream.server.runtime.busy import FUNCTION_KILL, SCRIPT_KILL
from kvstream.server.runtime.client import Argv, Client
from kvstream.server.runtime.executor import server_of
from kvstream.server.scripting.libraries import Function
from kvstream.server.scripting.script import ScriptFlag
from kvstream.types.glob import matcher

COMMANDS = Family("scripting")
COMMANDS.add_help("script", since="5.0.0")
_RUNS = "noscript stale skip_monitor no_mandatory_keys movablekeys script_runner"
_RUN, _RUN_RO = flags(f"{_RUNS} may_replicate"), flags(f"{_RUNS} readonly")
_KEYS = CountedKeys(0, 0)
_RW, _RO = "RW access update", "RO access"
_ARGUMENTS = "numkeys [key [key ...]] [arg [arg ...]]"


@COMMANDS.command(
    *("eval", f"script {_ARGUMENTS}", _RUN, _KEYS),
    since="2.6.0",
    uses=_RW,
)
def eval_(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Run a script in Lua 5.1.

    The script is one turn and one commit. docs/scripting.md has what it may call, and its limits.
    """
    return server_of(client).scripts.run_text(txn, client, argv, reads=False)


@COMMANDS.command(
    *("eval_ro", f"script {_ARGUMENTS}", _RUN_RO, _KEYS),
    since="7.0.0",
    uses=_RO,
)
def eval_ro(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Run a script that may not write."""
    return server_of(client).scripts.run_text(txn, client, argv, reads=True)


@COMMANDS.command(
    *("evalsha", f"sha1 {_ARGUMENTS}", _RUN, _KEYS),
    since="2.6.0",
    uses=_RW,
)
def evalsha(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Run a script that the server keeps, by the SHA-1 of its text."""
    scripts = server_of(client).scripts
    reply: Answer = scripts.command.run_sha(txn, client, argv, False)
    return scripts.run_sha(txn, client, argv, reads=False) if reply is NotImplemented else reply


@COMMANDS.command(
    *("evalsha_ro", f"sha1 {_ARGUMENTS}", _RUN_RO, _KEYS),
    since="7.0.0",
    uses=_RO,
)
def evalsha_ro(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Run a script that the server keeps and that may not write."""
    scripts = server_of(client).scripts
    reply: Answer = scripts.command.run_sha(txn, client, argv, True)
    return scripts.run_sha(txn, client, argv, reads=True) if reply is NotImplemented else reply


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
    since="Valkey 8.0.0",
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
    server_of(client).busy.kill(SCRIPT_KILL)
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


# --- functions ----------------------------------------------------------------------------------

COMMANDS.add_help("function", since="7.0.0")
_WRITE, _GROW = flags("write noscript"), flags("write denyoom noscript")
_EVERYWHERE = "request_policy:all_shards response_policy:all_succeeded"


@COMMANDS.command(
    *("fcall", f"function {_ARGUMENTS}", _RUN, _KEYS),
    since="7.0.0",
    uses=_RW,
)
def fcall(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Call a function.

    The call is one turn and one commit, as EVAL is.
    """
    return server_of(client).functions.call(txn, client, argv, reads=False)


@COMMANDS.command(
    *("fcall_ro", f"function {_ARGUMENTS}", _RUN_RO, _KEYS),
    since="7.0.0",
    uses=_RO,
)
def fcall_ro(txn: Txn, client: Client, argv: Argv) -> Answer:
    """Call a function that has the flag no-writes."""
    return server_of(client).functions.call(txn, client, argv, reads=True)


# --- libraries ----------------------------------------------------------------------------------


@COMMANDS.command(
    *("function|load", "[REPLACE] function-code", _GROW), since="7.0.0", tips=_EVERYWHERE
)
def function_load(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Store a library and return its name.

    REPLACE: Replace the library of its name.

    The first line of a library is `#!lua name=...`. Its code runs once, for at most half a second,
    and registers functions by redis.register_function.
    """
    *options, source = argv[2:]
    for option in options:
        if option.upper() != b"REPLACE":
            raise RequestError(f"Unknown option given: {text(option)}")
    return server_of(client).functions.load(txn, source, bool(options))


@COMMANDS.command(
    *("function|list", "[LIBRARYNAME library-name-pattern] [WITHCODE]", flags("noscript")),
    since="7.0.0",
    tips="nondeterministic_output_order",
)
def function_list(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the libraries, in the order of their names, and their functions.

    LIBRARYNAME: Only those whose name matches a pattern.
    WITHCODE: Return their texts, too.
    """
    pattern, with_code = None, False
    words = iter(argv[2:])
    for word in words:
        if word.upper() == b"WITHCODE" and not with_code:
            with_code = True
        elif word.upper() == b"LIBRARYNAME" and pattern is None:
            pattern = next(words, None)
            if pattern is None:
                raise RequestError("library name argument was not given")
        else:
            raise RequestError(f"Unknown argument {text(word)}")
    # Library names have letters, digits and underscores only; as in Redis their case is ignored.
    fits = matcher((b"*" if pattern is None else pattern).lower())
    texts = functions.libraries(txn)
    return [
        _library(
            server_of(client).functions.of(txn, name), name, texts[name] if with_code else None
        )
        for name in sorted(texts)
        if fits(name.lower())
    ]


def _library(members: list[Function], name: bytes, source: bytes | None) -> Map:
    listed: list[Reply] = [
        Map(
            [
                (b"name", each.name),
                (b"description", each.description),
                (b"flags", SetReply([Simple(flag) for flag in ScriptFlag if flag in each.flags])),
            ]
        )
        for each in members
    ]
    pairs: list[tuple[Reply, Reply]] = [
        (b"library_name", name),
        (b"engine", b"LUA"),
        (b"functions", listed),
    ]
    return Map(pairs if source is None else [*pairs, (b"library_code", source)])


@COMMANDS.command(*("function|delete", "library-name", _WRITE), since="7.0.0", tips=_EVERYWHERE)
def function_delete(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Delete a library and its functions."""
    functions.delete(txn, argv[2])
    return OK


@COMMANDS.command(*("function|flush", "[ASYNC|SYNC]", _WRITE), since="7.0.0", tips=_EVERYWHERE)
def function_flush(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Delete all libraries; FLUSHALL does not.

    ASYNC: The same: libraries take little time to delete.
    SYNC: The same.
    """
    if len(argv) > 3:
        raise bad_subcommand(argv)
    if len(argv) == 3 and argv[2].upper() not in (b"ASYNC", b"SYNC"):
        raise RequestError("FUNCTION FLUSH only supports SYNC|ASYNC option")
    functions.flush(txn)
    return OK


@COMMANDS.command(*("function|dump", "", flags("noscript")), since="7.0.0")
def function_dump(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return all libraries as a payload for FUNCTION RESTORE, here or in Redis."""
    return functions.dump(txn)


@COMMANDS.command(
    *("function|restore", "serialized-value [FLUSH|APPEND|REPLACE]", _GROW),
    since="7.0.0",
    tips=_EVERYWHERE,
)
def function_restore(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Store the libraries of a payload: all of them, or none and return an error.

    FLUSH: Delete the other libraries.
    APPEND: Refuse a library whose name is taken; the default.
    REPLACE: Replace libraries of the same names.
    """
    if len(argv) > 4:
        raise bad_subcommand(argv)
    policy = Policy.APPEND
    if len(argv) == 4:
        try:
            policy = Policy(text(argv[3]).lower())
        except ValueError:
            raise RequestError(
                "Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE."
            ) from None
    server_of(client).functions.restore(txn, argv[2], policy)
    return OK


@COMMANDS.command(
    *("function|stats", "", flags("noscript allow_busy local")),
    since="7.0.0",
    tips="nondeterministic_output request_policy:all_shards response_policy:special",
)
def function_stats(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the function that runs for long, and the numbers of libraries and functions."""
    server = server_of(client)
    running: Reply = None
    if (found := server.busy.function) is not None:
        name, duration_ms = found
        request: list[Reply] = [*server.busy.request]
        running = Map([(b"name", name), (b"command", request), (b"duration_ms", duration_ms)])
    libraries, count = server.functions.counts(txn)
    counts = Map([(b"libraries_count", libraries), (b"functions_count", count)])
    return Map([(b"running_script", running), (b"engines", Map([(b"LUA", counts)]))])


@COMMANDS.command(
    *("function|kill", "", flags("noscript allow_busy local")),
    since="7.0.0",
    tips="request_policy:all_shards response_policy:one_succeeded",
)
def function_kill(txn: Txn, client: Client, argv: Argv) -> Reply:
    """End the function that runs, if it has not written."""
    server_of(client).busy.kill(FUNCTION_KILL)
    return OK
