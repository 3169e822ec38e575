"""CONFIG: the settings of streams and of the server in one table."""

from kvstream.commands.args import Argv, syntax_error, text
from kvstream.commands.command import OPERATE, Family
from kvstream.commands.replies import OK, Map, Reply
from kvstream.errors import InvalidArgument, RequestError
from kvstream.logs import NOTICE, DeferredLogger
from kvstream.meta.txn import Txn
from kvstream.server.inert_settings import ALIASES, HIDDEN
from kvstream.server.runtime.call_text import Shown, redact
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import server_of
from kvstream.server.settings import SERVER_SETTINGS, change_of, failure
from kvstream.types.glob import matcher

_log = DeferredLogger(__name__)
COMMANDS = Family("server")
COMMANDS.add_help("config", since="5.0.0")
_SIGNS = frozenset(b"*?[")
"""Characters of a pattern; a plain name is returned as it was asked."""


@COMMANDS.command("config|get", "parameter [parameter ...]", OPERATE, since="2.0.0")
def config_get(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the settings whose names match any of the patterns."""
    names, server = set(SERVER_SETTINGS), server_of(client)
    settings: dict[bytes, bytes] = {}
    for pattern in argv[2:]:
        if _SIGNS.isdisjoint(pattern):
            settings |= {pattern: pattern.lower()} if pattern.lower() in names else {}
        else:
            test = matcher(pattern, ignore_case=True)
            settings |= {name: name for name in names - HIDDEN if test(name)}
    return Map(
        [(shown, SERVER_SETTINGS[name].read(server)) for shown, name in sorted(settings.items())]
    )


@COMMANDS.command(
    *("config|set", "setting value [setting value ...]", OPERATE),
    since="2.0.0",
    tips="request_policy:all_nodes response_policy:all_succeeded",
)
def config_set(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Change settings until the server is stopped, all of them or none.

    The settings of streams are `stream-node-max-entries`, `stream-node-max-bytes`,
    `stream-idmp-duration`, `stream-idmp-maxsize`, `stream-entry-max-bytes` and `dump-target`.

    Settings that kvstream cannot follow show what is done (`appendonly yes`), and another value is
    refused with the reason. Settings of features that are missing (other types, Redis's files) are
    stored and shown without effect, since tools set them. `appendfsync` changes the durability of
    the running server; `always` is `archive` if it was started with that.

    Of replication these have an effect: `masterauth`, `masteruser`, `replica-announce-ip`,
    `replica-announce-port`, `replica-priority`, `replica-serve-stale-data`, `repl-timeout`,
    `repl-backlog-size` (bytes of logs on disk, 1 GB by default), `repl-backlog-ttl`,
    `min-replicas-to-write`, `min-replicas-max-lag`, `tls-replication`, and of kvstream's own
    `replica-acks`, `replica-ack-timeout` (ms), `replica-acks-degrade`, `replica-lease-ms`,
    `replica-validity` (seconds after which a replica without a link has the priority 0; 0: never)
    and `replica-recovery-timeout` (seconds for which a primary asks its replicas after a power
    loss).

    A memory value beyond 63 bits is refused: Redis wraps `20000000000gb` around.
    """
    if len(argv) % 2:
        raise syntax_error()
    asked: dict[bytes, bytes] = {}
    for raw_name, raw in zip(argv[2::2], argv[3::2], strict=True):
        name = raw_name.lower()
        setting = SERVER_SETTINGS.get(name)
        if setting is None:
            raise InvalidArgument(
                f"Unknown option or number of arguments for CONFIG SET - '{text(raw_name)}'"
            )
        if setting.parse is None:
            raise failure(raw_name, setting.refusal)
        if ALIASES.get(name, name) in {ALIASES.get(other, other) for other in asked}:
            raise failure(raw_name, "duplicate parameter")
        asked[name] = raw
    changes = [change_of(server_of(client), name, raw) for name, raw in asked.items()]
    for change in changes:
        change()
    server_of(client).options.changed |= asked.keys()
    _log_change(client, argv)
    return OK


@COMMANDS.command(
    *("config|resetstat", "", OPERATE),
    since="2.0.0",
    tips="request_policy:all_nodes response_policy:all_succeeded",
)
def config_resetstat(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Reset the counters of INFO to zero."""
    server_of(client).statistics.reset()
    txn.catalog.expired = txn.catalog.expired_unasked = 0
    txn.catalog.reply_cache.hits = txn.catalog.reply_cache.misses = 0
    return OK


@COMMANDS.command(
    *("config|rewrite", "", OPERATE),
    since="2.8.0",
    tips="request_policy:all_nodes response_policy:all_succeeded",
)
def config_rewrite(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Write the settings that CONFIG SET has changed to the server's configuration file.

    Options of `kvstream serve` stand at the top of the TOML file, all others in its table
    `[config]`. Settings that were not changed stay as they were written.
    """
    server = server_of(client)
    file = server.options.config_file
    if file is None:
        raise RequestError("The server is running without a config file")
    changed = sorted(server.options.changed)
    file.rewrite({text(name): text(SERVER_SETTINGS[name].read(server)) for name in changed})
    _log_change(client, argv)
    return OK


def _log_change(client: Client, argv: Argv) -> None:
    """Log a change of settings, without passwords."""
    user, words = Shown([client.user.name]), Shown(redact(list(argv)))
    _log.log(NOTICE, "%s, user %s: %s", client.address, user, words)
